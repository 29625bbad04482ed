"""Operations on batches of images, each image with parameters of its own.

Images are floats in [0, 1] of shape ``(N, 3, H, W)``; a parameter is a tensor ``(N,)`` on the same device. Nothing here
is random, waits for the device, loops over images or changes its input, so all of it runs on any device and inside a
captured step. Where torchvision has the operation, results are the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def affine(
    x: Tensor,
    *,
    angle: Tensor,
    scale: Tensor,
    shift: tuple[Tensor, Tensor],
    shear: tuple[Tensor, Tensor],
    mirror: Tensor,
    padding: str = "reflection",
) -> Tensor:
    """Move, turn, resize, shear and mirror images about their centres in one resampling.

    Args:
        x: The images.
        angle: Degrees, clockwise.
        scale: Factor of size: 2 shows the middle quarter of an image.
        shift: To the right and down, as fractions of width and height.
        shear: Tangents of the angles along x and along y.
        mirror: Whether to mirror left and right (before everything else), as a boolean tensor.
        padding: What lies beyond the border: ``reflection``, ``border`` or ``zeros``.
    """
    height, width = x.shape[-2:]
    sin, cos = torch.sin(torch.deg2rad(angle)), torch.cos(torch.deg2rad(angle))
    along_x, along_y = shear
    # Forward: turn * [[1, shear_x], [shear_y, 1]] * scale; what is sampled is its inverse, written out.
    size = 1 / (scale * (1 - along_x * along_y))
    rows = [
        [(cos + along_x * sin) * size, (sin - along_x * cos) * size],
        [(-sin - along_y * cos) * size, (cos - along_y * sin) * size],
    ]
    # A grid counts from -1 to 1 whatever the sides: from there to pixels about the centre, and back.
    side = torch.where(mirror, -1.0, 1.0)
    across = torch.linspace(1 / width - 1, 1 - 1 / width, width, device=x.device) - 2 * shift[0][:, None]
    down = torch.linspace(1 / height - 1, 1 - 1 / height, height, device=x.device) - 2 * shift[1][:, None]
    columns = (side * rows[0][0])[:, None] * across, (rows[1][0] * width / height)[:, None] * across
    lines = (side * rows[0][1] * height / width)[:, None] * down, rows[1][1][:, None] * down
    grid = x.new_empty(len(x), height, width, 2)
    for axis, (column, line) in enumerate(zip(columns, lines, strict=True)):
        grid[..., axis] = column[:, None, :] + line[:, :, None]
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False).clamp_(0, 1)


def luminance(x: Tensor) -> Tensor:
    """Return how bright each pixel looks, ``(N, 1, H, W)``."""
    red, green, blue = x.unbind(1)
    return (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(1)


def jitter(x: Tensor, *, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Change brightness, then contrast, then saturation; 1 leaves an image as it is, saturation 0 makes it grey.

    All three are linear, so they are one pass over the pixels and values are cut to [0, 1] once, at the end.
    """
    grey = luminance(x)
    mean = grey.mean((1, 2, 3))
    colour = _each(brightness * contrast * saturation)
    rest = _each(brightness * contrast * (1 - saturation))
    return torch.addcmul(grey * rest + _each(brightness * (1 - contrast) * mean), x, colour).clamp_(0, 1)


def turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a fraction of the colour circle, from -0.5 to 0.5."""
    value, low = x.amax(1), x.amin(1)
    chroma = value - low
    red, green, blue = x.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    # Hue in sixths of the circle, from the largest channel and the difference of the other two.
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = hue / 6 + turn.view(-1, 1, 1)
    out = torch.empty_like(x)
    for channel, start in enumerate((5, 3, 1)):
        place = hue + start / 6
        place = (place - place.floor()).mul_(6)
        away = place.sub_(2).abs_().neg_().add_(2).clamp_(0, 1)  # the lesser of place and 4 - place, within [0, 1]
        torch.addcmul(value, chroma, away, value=-1, out=out[:, channel])
    return out


def solarise(x: Tensor, threshold: Tensor) -> Tensor:
    """Invert what is at least as bright as the threshold: 0 inverts an image, above 1 leaves it as it is."""
    return (x >= _each(threshold)).to(x.dtype).sub_(x).abs_()  # 1 - x or x, several times faster than a choice of two


def posterise(x: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` (1 to 8) of each of the 256 steps of brightness; 8 leaves an image as it is."""
    step = torch.exp2(8 - bits.to(x.dtype))
    coarse = torch.floor((x * 255).round_() / _each(step)) * _each(step / 255)
    return torch.where(_each(bits) >= 8, x, coarse)


def autocontrast(x: Tensor, apply: Tensor) -> Tensor:
    """Stretch each channel of the images marked in `apply` to the full range; flat channels stay."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    stretched = _each(apply) & (high > low)
    scale = torch.where(stretched, 1 / (high - low).clamp(min=1e-6), 1.0)
    return torch.addcmul(-torch.where(stretched, low * scale, 0.0), x, scale).clamp_(0, 1)


def sharpen(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with a 3 x 3 smoothing: 0 is smooth, 1 as it is, 2 twice as sharp; the outermost pixels stay."""
    if min(x.shape[-2:]) < 3:
        return x
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    smooth = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:])
    middle = x[:, :, 1:-1, 1:-1]
    weight = _each((1 - factor) / 13)
    # smooth = (sum of nine + 4 * middle) / 13; result = middle + (1 - factor) * (smooth - middle)
    out = x.clone()
    out[:, :, 1:-1, 1:-1] = torch.addcmul(middle, smooth.sub_(middle, alpha=9), weight).clamp_(0, 1)
    return out


def blur(x: Tensor, sigma: Tensor, *, radius: int) -> Tensor:
    """Blur by a Gaussian of standard deviation `sigma` pixels, cut off at `radius`; 0 leaves an image as it is."""
    radius = min(radius, *(side - 1 for side in x.shape[-2:]))
    if radius < 1:
        return x
    places = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    weights = torch.softmax(-0.5 * (places / sigma.to(x.dtype).clamp(min=1e-3)[:, None]).square(), 1)
    for axis in (2, 3):
        length = x.shape[axis]
        wide = F.pad(x, (0, 0, radius, radius) if axis == 2 else (radius, radius, 0, 0), mode="reflect")
        x = wide.narrow(axis, 0, length) * _each(weights[:, 0])
        for place in range(1, 2 * radius + 1):
            x.addcmul_(wide.narrow(axis, place, length), _each(weights[:, place]))
    return x


def cut_out(x: Tensor, centre: tuple[Tensor, Tensor], side: Tensor, *, fill: float = 0.5) -> Tensor:
    """Cover a square: `centre` (across, down) and `side` are fractions of width and height; 0 covers nothing."""
    height, width = x.shape[-2:]
    across = (torch.arange(width, device=x.device) + 0.5) / width
    down = (torch.arange(height, device=x.device) + 0.5) / height
    columns = (across - centre[0][:, None]).abs() < side[:, None] / 2
    rows = (down - centre[1][:, None]).abs() < side[:, None] / 2
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], fill, x)


def _each(value: Tensor) -> Tensor:
    """Return a parameter so that it meets each image."""
    return value.view(-1, 1, 1, 1)
