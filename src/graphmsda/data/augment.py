"""Random views of training samples: weak (moved a little) and strong (a RandAugment-type policy and cutout).

Images come as uint8 or as floats in [0, 1], shape ``(N, 3, H, W)``, and leave as they came; in between they are floats
of 32 bits. Each image draws parameters of its own from the generator given, which lives on the images' device. Nothing
waits for the device, so a step that makes views can be captured.

The policy is of the kind of RandAugment (Cubuk et al., NeurIPS 2020), with cutout as in FixMatch (Sohn et al., NeurIPS
2020): each image draws `count` of `OPERATIONS`, each at a random strength. Each operation passes over the whole batch
once, in a fixed order, with parameters that change nothing for images that did not draw it. Equalise is left out;
invert, grayscale, hue and blur, which set domains apart, are in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from graphmsda.data.pixels import affine, autocontrast, blur, cut_out, jitter, posterise, sharpen, solarise, turn_hue

# Largest change of each operation at magnitude 1; None for those that are either on or off.
OPERATIONS: dict[str, float | None] = {
    "shift": 0.2,  # of the side, on top of the weak view's
    "scale": 0.3,  # of the logarithm of the size
    "rotate": 30.0,  # degrees
    "shear": 0.3,  # tangent
    "brightness": 0.8,
    "contrast": 0.8,
    "saturation": 0.9,
    "hue": 0.25,  # of the colour circle
    "grayscale": None,
    "invert": None,
    "solarise": 0.8,  # threshold below 1
    "posterise": 4.0,  # bits lost
    "autocontrast": None,
    "sharpness": 0.9,
    "blur": 1.0,  # of `_largest_blur`
}
WEAK_SHIFT, WEAK_SCALE, WEAK_ROTATION = 0.125, 0.1, 5.0
CUTOUT = 0.5  # of the side, at most
CORRUPTED = 0.2  # of the entries of a feature vector
BLOCK = 2**19  # numbers a CPU works on at a time: what its cache holds

NUMBERS = "zero|one|two|three|four|five|six|seven|eight|nine|ten"
KINDS = "digit|number|letter|character|char|symbol|class|label|sample"


def views(x: Tensor, generator: torch.Generator, *, flip: bool, count: int = 3) -> tuple[Tensor, Tensor]:
    """Return a weak and a strong view of the same images."""
    return weak(x, generator, flip=flip), strong(x, generator, flip=flip, count=count)


def weak(x: Tensor, generator: torch.Generator, *, flip: bool, magnitude: float = 1.0) -> Tensor:
    """Shift, resize and turn images a little, and mirror half of them if `flip` says that this keeps their class."""
    return change(x, _weak_parameters(len(x), generator, flip, magnitude), flip)


def strong(
    x: Tensor, generator: torch.Generator, *, flip: bool, count: int = 3, magnitude: float = 1.0, cutout: float = CUTOUT
) -> Tensor:
    """Apply a weak view's changes, `count` of `OPERATIONS` to each image, and cover a square of it.

    Args:
        x: The images.
        generator: Source of random numbers, on the images' device.
        flip: Whether a mirrored image keeps its class (see `flips_make_sense`).
        count: Operations drawn for each image.
        magnitude: Largest strength, from 0 (nothing happens) to 1; more is possible.
        cutout: Largest side of the square, as a fraction of the image's.
    """
    return change(x, _strong_parameters(len(x), generator, flip, count, magnitude, cutout), flip)


def plan(share: Tensor | None, n: int, generator: torch.Generator, *, flip: bool) -> dict[str, Tensor]:
    """Draw what `change` is to do to `n` images, each of which gets a strong view with a probability of its own.

    Args:
        share: These probabilities, ``(n,)``; None where all are zero, which takes far less work.
        n: The number of images.
        generator: Source of random numbers, on the images' device.
        flip: Whether a mirrored image keeps its class.
    """
    if share is None:
        return _weak_parameters(n, generator, flip, 1.0)
    chosen = torch.rand(n, generator=generator, device=generator.device) < share
    return _strong_parameters(n, generator, flip, 3, 1.0, CUTOUT, chosen)


def corrupt(x: Tensor, generator: torch.Generator, share: float = CORRUPTED) -> Tensor:
    """Return feature vectors with a share of their entries taken from other samples of the batch, ``(N, F)``.

    The strong view of samples that are no images: each column keeps its own distribution, whatever its units (as in
    SCARF; Bahri et al., ICLR 2022).
    """
    places = torch.rand(x.shape, generator=generator, device=generator.device)
    return torch.where(places < share, x[places.sum(1).argsort()], x)


def flips_make_sense(classes: Sequence[str]) -> bool:
    """Whether mirrored images keep their classes: not those of digits and letters, nor of things left and right.

    >>> flips_make_sense(["dog", "guitar"]), flips_make_sense(["0", "1"]), flips_make_sense(["digit b"])
    (True, False, False)
    """

    def handed(name: str) -> bool:
        words = [word for word in re.split(r"[\W_]+", name.strip().lower()) if word]
        bare = [word for word in words if not re.fullmatch(KINDS, word)]
        character = len(bare) == 1 and (len(bare[0]) == 1 or bare[0].isdigit() or re.fullmatch(NUMBERS, bare[0]))
        return bool(character or {"left", "right"} & set(words) or not words)

    return not any(handed(name) for name in classes)


def _weak_parameters(n: int, generator: torch.Generator, flip: bool, magnitude: float) -> dict[str, Tensor]:
    across, down, size, turn, mirror = torch.rand(5, n, generator=generator, device=generator.device)
    zeros = torch.zeros_like(across)
    return {
        "right": WEAK_SHIFT * magnitude * (2 * across - 1),
        "down": WEAK_SHIFT * magnitude * (2 * down - 1),
        "scale": torch.exp(WEAK_SCALE * magnitude * (2 * size - 1)),
        "angle": WEAK_ROTATION * magnitude * (2 * turn - 1),
        "shear_x": zeros,
        "shear_y": zeros,
        "mirror": (mirror < 0.5) & flip,
    }


def _strong_parameters(
    n: int,
    generator: torch.Generator,
    flip: bool,
    count: int,
    magnitude: float,
    cutout: float,
    chosen: Tensor | None = None,
) -> dict[str, Tensor]:
    plan = _weak_parameters(n, generator, flip, magnitude)
    device = generator.device
    # The places of random numbers in their order are a random permutation: `count` of them fall below `count`.
    order = torch.rand(n, len(OPERATIONS), generator=generator, device=device).argsort(1).argsort(1)
    taken = order < (count if magnitude else 0)
    if chosen is not None:
        taken = taken & chosen[:, None]
    drawn = dict(zip(OPERATIONS, taken.unbind(1), strict=True))
    strength = torch.rand(n, len(OPERATIONS), generator=generator, device=device)
    largest = {name: magnitude * (most or 0.0) for name, most in OPERATIONS.items()}
    # How far each operation goes: 0 for images that did not draw it.
    once = {name: torch.where(drawn[name], value, 0.0) * largest[name]
            for name, value in zip(OPERATIONS, strength.unbind(1), strict=True)}  # fmt: skip
    both = {name: torch.where(drawn[name], 2 * value - 1, 0.0) * largest[name]
            for name, value in zip(OPERATIONS, strength.unbind(1), strict=True)}  # fmt: skip
    other, across, down, side = torch.rand(4, n, generator=generator, device=device)
    plan["right"] = plan["right"] + both["shift"]
    plan["down"] = plan["down"] + torch.where(drawn["shift"], 2 * other - 1, 0.0) * largest["shift"]
    plan["scale"] = plan["scale"] * torch.exp(both["scale"])
    plan["angle"] = plan["angle"] + both["rotate"]
    plan["shear_x"] = torch.where(other < 0.5, both["shear"], 0.0)
    plan["shear_y"] = torch.where(other < 0.5, 0.0, both["shear"])
    return plan | {
        "brightness": 1 + both["brightness"],
        "contrast": 1 + both["contrast"],
        "saturation": torch.where(drawn["grayscale"], 0.0, 1 + both["saturation"]),
        "hue": both["hue"],
        # Nothing is as bright as 2; everything is as bright as 0, so an inverted image is one solarised from there.
        "threshold": torch.where(drawn["invert"], 0.0, torch.where(drawn["solarise"], 1 - once["solarise"], 2.0)),
        "bits": 8 - torch.ceil(once["posterise"]).clamp(max=7),
        "stretch": drawn["autocontrast"],
        "sharpness": 1 + both["sharpness"],
        "blur": once["blur"],
        "centre_x": across,
        "centre_y": down,
        "covered": side * cutout * magnitude * (1 if chosen is None else chosen),
    }


def change(x: Tensor, plan: dict[str, Tensor], flip: bool) -> Tensor:
    """Change images as planned (`plan`): the whole batch at once, on a CPU in blocks that stay in its cache."""
    if not len(x):
        return x
    block = len(x) if x.device.type != "cpu" else max(1, BLOCK // x[0].numel())
    if len(x) <= block:
        return _apply_block(x, plan, flip)
    parts = zip(torch.split(x, block), *(torch.split(value, block) for value in plan.values()), strict=True)
    return torch.cat([_apply_block(part, dict(zip(plan, values, strict=True)), flip) for part, *values in parts])


def _apply_block(images: Tensor, plan: dict[str, Tensor], flip: bool) -> Tensor:
    x = images.float().div_(255) if images.dtype == torch.uint8 else images.float()
    x = affine(
        x,
        angle=plan["angle"],
        scale=plan["scale"],
        shift=(plan["right"], plan["down"]),
        shear=(plan["shear_x"], plan["shear_y"]),
        mirror=plan["mirror"],
        # Where a mirrored image may be of another class, the strokes of a mirrored border are misleading too.
        padding="reflection" if flip else "border",
    )
    if "hue" in plan:
        x = jitter(x, brightness=plan["brightness"], contrast=plan["contrast"], saturation=plan["saturation"])
        x = autocontrast(solarise(turn_hue(x, plan["hue"]), plan["threshold"]), plan["stretch"])
        x = sharpen(posterise(x, plan["bits"]), plan["sharpness"])
        largest = _largest_blur(x)
        x = blur(x, plan["blur"] * largest, radius=round(2 * largest))
        x = cut_out(x, (plan["centre_x"], plan["centre_y"]), plan["covered"])
    return x.mul_(255).round_().to(torch.uint8) if images.dtype == torch.uint8 else x.to(images.dtype)


def _largest_blur(x: Tensor) -> float:
    """Return the largest standard deviation of a blur in pixels: 1 for images of 32 pixels, 2 for large ones."""
    return min(2.0, max(0.5, min(x.shape[-2:]) / 32))
