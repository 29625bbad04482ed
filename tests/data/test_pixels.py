"""Each operation does what torchvision's does to one image, with parameters of each image's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from graphmsda.data import pixels

N = 4


def images(height: int = 17, width: int = 23) -> Tensor:
    """Smooth and noisy parts, greys and pure colours; multiples of 1/255 as decoded images are."""
    x = torch.rand(N, 3, height, width, generator=torch.Generator().manual_seed(0))
    x[1] = torch.linspace(0, 1, width)
    x[2, 1:] *= 0.2
    x[3, :, :5] = 0.5
    return (x * 255).round() / 255


def each(*values: float) -> Tensor:
    return torch.tensor(values)


def ones(x: Tensor) -> Tensor:
    return torch.ones(len(x), device=x.device)


FACTORS = (0.0, 0.4, 1.0, 1.7)
SAME: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, float], Tensor], tuple[float, ...]]] = {
    "brightness": (
        lambda x, f: pixels.jitter(x, brightness=f, contrast=ones(x), saturation=ones(x)),
        V.adjust_brightness,
        FACTORS,
    ),
    "contrast": (
        lambda x, f: pixels.jitter(x, brightness=ones(x), contrast=f, saturation=ones(x)),
        V.adjust_contrast,
        FACTORS,
    ),
    "saturation": (
        lambda x, f: pixels.jitter(x, brightness=ones(x), contrast=ones(x), saturation=f),
        V.adjust_saturation,
        FACTORS,
    ),
    "hue": (pixels.turn_hue, V.adjust_hue, (-0.5, -0.13, 0.0, 0.31)),
    "solarise": (pixels.solarise, V.solarize, (0.0, 0.3, 0.77, 1.0)),
    "sharpen": (pixels.sharpen, V.adjust_sharpness, FACTORS),
    "invert": (lambda x, f: pixels.solarise(x, 0 * f), lambda x, f: V.invert(x), FACTORS),
    "autocontrast": (lambda x, f: pixels.autocontrast(x, f >= 0), lambda x, f: V.autocontrast(x), FACTORS),
    "posterise": (
        pixels.posterise,
        lambda x, b: V.posterize((x * 255).round().to(torch.uint8), int(b)).float() / 255,
        (1, 3, 7, 8),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_as_torchvisions(name: str) -> None:
    ours, theirs, values = SAME[name]
    x = images()
    expected = torch.stack([theirs(image, value) for image, value in zip(x, values, strict=True)])
    torch.testing.assert_close(ours(x, each(*values)), expected, rtol=0, atol=2e-6)


def test_blur_is_the_same_as_torchvisions() -> None:
    x, sigmas = images(), (0.3, 0.8, 1.0, 1.9)
    expected = torch.stack([V.gaussian_blur(i, [7, 7], [s, s]) for i, s in zip(x, sigmas, strict=True)])
    torch.testing.assert_close(pixels.blur(x, each(*sigmas), radius=3), expected, rtol=0, atol=2e-6)


def place(x: Tensor, **changes: Tensor) -> Tensor:
    zeros = torch.zeros(len(x))
    options = {"angle": zeros, "scale": zeros + 1, "right": zeros, "down": zeros, "shear": zeros} | changes
    mirror = changes.get("mirror", zeros > 0)
    return pixels.affine(
        x,
        angle=options["angle"],
        scale=options["scale"],
        shift=(options["right"], options["down"]),
        shear=(options["shear"], changes.get("shear_y", zeros)),
        mirror=mirror,
        padding="zeros",
    )


def test_affine_is_the_same_as_torchvisions() -> None:
    x = images()
    height, width = x.shape[-2:]
    angles, scales, shears = (0.0, 20.0, -75.0, 170.0), (1.0, 0.7, 1.3, 1.1), (0.0, 10.0, -20.0, 5.0)
    rights, downs = (2, -3, 0, 4), (0, 1, -2, 5)
    expected = [
        V.affine(
            image, angle=angle, translate=[right, down], scale=scale, shear=[shear, 0.0],
            interpolation=InterpolationMode.BILINEAR,
        )
        for image, angle, right, down, scale, shear in zip(x, angles, rights, downs, scales, shears, strict=True)
    ]  # fmt: skip
    ours = place(
        x,
        angle=each(*angles),
        scale=each(*scales),
        right=each(*rights) / width,
        down=each(*downs) / height,
        shear=each(*(-math.tan(math.radians(shear)) for shear in shears)),
    )
    # Torchvision fades samples at the border out by a mask of its own; inside both agree.
    inside = (place(torch.ones_like(x), angle=each(*angles), scale=each(*scales), right=each(*rights) / width,
                    down=each(*downs) / height,
                    shear=each(*(-math.tan(math.radians(s)) for s in shears))) > 0.999)  # fmt: skip
    assert inside.float().mean() > 0.5
    torch.testing.assert_close(ours[inside], torch.stack(expected)[inside], rtol=0, atol=1e-4)


def test_affine_moves_right_and_down() -> None:
    x = torch.zeros(1, 3, 8, 12)
    x[:, :, 2, 3] = 1
    moved = place(x, right=each(3 / 12), down=each(2 / 8))
    assert moved[0, 0].argmax() == 4 * 12 + 6
    assert place(x, mirror=each(1) > 0)[0, 0].argmax() == 2 * 12 + 8
    turned = place(torch.nn.functional.pad(x, (0, 0, 2, 2)), angle=each(90.0))  # 12 x 12, (4, 3) -> (3, 7)
    assert turned[0, 0].argmax() == 3 * 12 + 7
    assert place(x, shear_y=each(0.5), shear=each(0.5))[0].sum() > 0


IDENTITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "affine": lambda x: place(x),
    "jitter": lambda x: pixels.jitter(x, brightness=ones(x), contrast=ones(x), saturation=ones(x)),
    "hue": lambda x: pixels.turn_hue(x, 0 * ones(x)),
    "solarise": lambda x: pixels.solarise(x, 2 * ones(x)),
    "posterise": lambda x: pixels.posterise(x, 8 * ones(x)),
    "autocontrast": lambda x: pixels.autocontrast(x, ones(x) < 0),
    "sharpen": lambda x: pixels.sharpen(x, ones(x)),
    "blur": lambda x: pixels.blur(x, 0 * ones(x), radius=3),
    "cut_out": lambda x: pixels.cut_out(x, (ones(x) / 2, ones(x) / 2), 0 * ones(x)),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_nothing_happens_at_zero(name: str) -> None:
    x = images() ** 2  # off the grid of 1/255
    torch.testing.assert_close(IDENTITIES[name](x), x, rtol=0, atol=1e-5)


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "affine": lambda x: place(x, angle=15 * ones(x), scale=0.8 * ones(x), mirror=ones(x) > 0),
    "jitter": lambda x: pixels.jitter(x, brightness=1.8 * ones(x), contrast=1.8 * ones(x), saturation=1.9 * ones(x)),
    "hue": lambda x: pixels.turn_hue(x, 0.4 * ones(x)),
    "solarise": lambda x: pixels.solarise(x, 0.5 * ones(x)),
    "posterise": lambda x: pixels.posterise(x, 2 * ones(x)),
    "autocontrast": lambda x: pixels.autocontrast(x, ones(x) > 0),
    "sharpen": lambda x: pixels.sharpen(x, 1.9 * ones(x)),
    "blur": lambda x: pixels.blur(x, ones(x), radius=2),
    "cut_out": lambda x: pixels.cut_out(x, (ones(x) / 2, ones(x) / 2), 0.4 * ones(x)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [(17, 23), (2, 2), (1, 9)])
def test_range_and_input_are_kept(name: str, size: tuple[int, int]) -> None:
    x = images(*size) if size[1] > 5 else torch.rand(N, 3, *size)
    before = x.clone()
    out = OPERATIONS[name](x)
    assert torch.equal(x, before)
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    assert 0 <= out.min() <= out.max() <= 1 + 1e-6
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("name", OPERATIONS)
def test_shapes_on_another_device(name: str) -> None:
    with torch.device("meta"):
        assert OPERATIONS[name](torch.empty(N, 3, 8, 8)).shape == (N, 3, 8, 8)


def test_cut_out_covers_the_square_asked_for() -> None:
    x = torch.zeros(2, 3, 20, 20)
    out = pixels.cut_out(x, (each(0.5, 0.0), each(0.5, 0.25)), each(0.4, 0.2), fill=1.0)
    assert out[0, 0, 6:14, 6:14].eq(1).all()
    assert out[0].sum() == 3 * 64
    assert out[1, 0, 3:7, :2].eq(1).all()
    assert out[1].sum() == 3 * 8
