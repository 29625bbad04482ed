r"""Batch normalisation, ReLU and max-pooling (3x3, stride 2, padding 1) as GPU kernels, forward and backward.

The forward pass reads x once and writes the pooled values, the winners' x and, in a byte each, which of a window's 9
places won. The backward pass needs no more than that, x and the gradient :math:`g` of the pooled values: with
:math:`\hat x` as in `graphmsda.norm`, the sums over a domain of what reaches batch normalisation are sums over
*windows*,

.. math:: S_1 = \sum_{\text{windows}} g, \quad S_2 = \sum_{\text{windows}} g \, \hat x_{\text{winner}}

and :math:`\partial L / \partial x` follows in a second pass, where each pixel looks up the windows that it won.

With stride 2, window i covers rows 2i - 1, 2i and 2i + 1. So row 2i lies in window i alone, row 2i + 1 in windows i and
i + 1, and a block of 2x2 pixels in 2x2 windows: the block's own and its neighbours to the right and below.

Nothing is added atomically: the same input gives the same bits.
"""

# Triton has no types, and a kernel's arguments get theirs when it is launched.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import triton
import triton.language as tl

NONE = tl.constexpr(9)  # code of a window without a winner: nothing in it was above 0

# Counts that are not to be compiled for anew when they change; channels are to be aligned.
COUNTS = ["images", "height", "width", "windows"]


@triton.jit
def _windows(first, c, height, width, channels, WINDOWS: tl.constexpr):
    """Return rows and columns of the windows from `first` on, whether they and c exist, and where they are pooled."""
    rows, columns = (height + 1) // 2, (width + 1) // 2
    window = first + tl.arange(0, WINDOWS)
    inside = (window < rows * columns)[:, None] & (c < channels)[None, :]
    return (window // columns)[:, None], (window % columns)[:, None], inside, window[:, None] * channels + c[None, :]


@triton.jit
def _places(x, i, j, c, inside, height, width, channels):
    """Load the 9 places of windows, row by row; one outside the image is read as its neighbour in the window."""
    top, middle, bottom = tl.maximum(2 * i - 1, 0) * width, 2 * i * width, tl.minimum(2 * i + 1, height - 1) * width
    left, centre, right = tl.maximum(2 * j - 1, 0), 2 * j, tl.minimum(2 * j + 1, width - 1)
    c = c[None, :]
    return (
        tl.load(x + ((top + left) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((top + centre) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((top + right) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((middle + left) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((middle + centre) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((middle + right) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((bottom + left) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((bottom + centre) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((bottom + right) * channels + c), mask=inside, other=0.0),
    )


@triton.jit
def _key(x, turned, rank, BITS: tl.constexpr):
    """Return x, or -x in channels that are turned, and a rank in one integer each: ordered by x, then by rank.

    Numbers are ordered as their bits are once those of negative ones are inverted, but for the sign. One comparison
    then finds a value and its place.
    """
    if BITS == 16:  # a bfloat16 is the upper half of a float32
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    else:
        bits = x.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return (_order(bits, BITS) ^ turned) | rank


@triton.jit
def _order(bits, BITS: tl.constexpr):
    """Invert the bits of negative numbers, but for the sign; done twice, nothing."""
    negative = (bits >> 31) & 0x7FFF0000 if BITS == 16 else (bits >> 63) & 0x7FFFFFFF00000000
    return bits ^ negative


@triton.jit(do_not_specialize=COUNTS)
def _pool(
    x, mean, inverse, weight, bias, pooled, codes, winners, images, height, width, channels,
    WINDOWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    BITS: tl.constexpr = x.dtype.element_ty.primitive_bitwidth
    windows = ((height + 1) // 2) * ((width + 1) // 2)
    tiles = tl.cdiv(windows, WINDOWS)
    image = tl.program_id(0) // tiles
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    i, j, inside, tile = _windows((tl.program_id(0) % tiles) * WINDOWS, c, height, width, channels, WINDOWS)
    x += tl.cast(image, tl.int64) * height * width * channels
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = _places(x, i, j, c, inside, height, width, channels)
    c_in = c < channels
    row = (image // images) * channels + c
    m = tl.load(mean + row, mask=c_in, other=0.0)[None, :]
    s = (tl.load(inverse + row, mask=c_in, other=0.0) * tl.load(weight + c, mask=c_in, other=0.0))[None, :]
    b = tl.load(bias + c, mask=c_in, other=0.0)[None, :]
    # Normalisation is monotone, so that the largest normalised value is that of the largest x, or of the smallest where
    # the scale is negative. Of equal ones the first wins, and a place outside the image loses to the neighbour that it
    # was read as.
    turned = tl.where(s < 0, -65536, 0) if BITS == 16 else tl.where(s < 0, -4294967296, 0).to(tl.int64)
    top, left, bottom, right = i > 0, j > 0, 2 * i + 1 < height, 2 * j + 1 < width
    best = _key(x4, turned, 5, BITS)
    best = tl.maximum(best, _key(x0, turned, tl.where(top & left, 9, 0), BITS))
    best = tl.maximum(best, _key(x1, turned, tl.where(top, 8, 0), BITS))
    best = tl.maximum(best, _key(x2, turned, tl.where(top & right, 7, 0), BITS))
    best = tl.maximum(best, _key(x3, turned, tl.where(left, 6, 0), BITS))
    best = tl.maximum(best, _key(x5, turned, tl.where(right, 4, 0), BITS))
    best = tl.maximum(best, _key(x6, turned, tl.where(bottom & left, 3, 0), BITS))
    best = tl.maximum(best, _key(x7, turned, tl.where(bottom, 2, 0), BITS))
    best = tl.maximum(best, _key(x8, turned, tl.where(bottom & right, 1, 0), BITS))
    rank = (best & 15).to(tl.int32)
    bits = _order((best ^ (best & 15)) ^ turned, BITS)
    winner = (bits if BITS == 16 else (bits >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    value = ((winner - m) * s + b).to(x.dtype.element_ty).to(tl.float32)  # rounded as when stored
    none = value <= 0  # false for what is not a number
    tile += tl.cast(image, tl.int64) * windows * channels
    tl.store(pooled + tile, tl.where(none, 0.0, value).to(x.dtype.element_ty), mask=inside)
    tl.store(codes + tile, tl.where(none, NONE, 9 - rank).to(tl.int8), mask=inside)
    tl.store(winners + tile, winner.to(x.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def _sum_over_windows(
    grad, codes, winners, mean, inverse, total, along, images, windows, channels,
    PART: tl.constexpr, WINDOWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    parts = tl.cdiv(windows, PART)
    image = tl.program_id(0) // parts
    first = (tl.program_id(0) % parts) * PART
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    c_in = c < channels
    row = (image // images) * channels + c
    m = tl.load(mean + row, mask=c_in, other=0.0)[None, :]
    before = tl.cast(image, tl.int64) * windows * channels
    plain = tl.zeros((WINDOWS, CHANNELS), tl.float32)
    weighted = tl.zeros((WINDOWS, CHANNELS), tl.float32)
    for start in range(first, tl.minimum(first + PART, windows), WINDOWS):
        window = start + tl.arange(0, WINDOWS)
        inside = (window < windows)[:, None] & c_in[None, :]
        tile = before + window[:, None] * channels + c[None, :]
        code = tl.load(codes + tile, mask=inside, other=NONE)
        g = tl.load(grad + tile, mask=inside, other=0.0)
        winner = tl.load(winners + tile, mask=inside, other=0.0)
        slope = tl.where(code == NONE, 0.0, g.to(tl.float32))
        plain += slope
        weighted += slope * (winner.to(tl.float32) - m)
    out = tl.program_id(0).to(tl.int64) * channels + c
    tl.store(total + out, tl.sum(plain, 0), mask=c_in)
    tl.store(along + out, tl.sum(weighted, 0) * tl.load(inverse + row, mask=c_in, other=0.0), mask=c_in)


@triton.jit(do_not_specialize=COUNTS)
def _spread(
    grad, codes, x, mean, inverse, weight, total, along, out, images, height, width, channels,
    WINDOWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    rows, columns = (height + 1) // 2, (width + 1) // 2
    tiles = tl.cdiv(rows * columns, WINDOWS)
    image = tl.program_id(0) // tiles
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    i, j, inside, tile = _windows((tl.program_id(0) % tiles) * WINDOWS, c, height, width, channels, WINDOWS)

    # A block of 2x2 pixels, and the windows around its first pixel, right of that, below it and across from it.
    # All loads come before anything that waits for them.
    pixel = tl.cast(image, tl.int64) * height * width * channels + ((2 * i * width + 2 * j) * channels + c[None, :])
    line = width * channels
    right_in, below_in = inside & (2 * j + 1 < width), inside & (2 * i + 1 < height)
    x_own = tl.load(x + pixel, mask=inside, other=0.0)
    x_right = tl.load(x + pixel + channels, mask=right_in, other=0.0)
    x_below = tl.load(x + pixel + line, mask=below_in, other=0.0)
    x_across = tl.load(x + pixel + line + channels, mask=right_in & below_in, other=0.0)
    tile += tl.cast(image, tl.int64) * rows * columns * channels
    below = tile + columns * channels
    more, lower = inside & (j + 1 < columns), inside & (i + 1 < rows)
    code_own = tl.load(codes + tile, mask=inside, other=NONE)
    code_right = tl.load(codes + tile + channels, mask=more, other=NONE)
    code_below = tl.load(codes + below, mask=lower, other=NONE)
    code_across = tl.load(codes + below + channels, mask=more & lower, other=NONE)
    g_own = tl.load(grad + tile, mask=inside, other=0.0)
    g_right = tl.load(grad + tile + channels, mask=more, other=0.0)
    g_below = tl.load(grad + below, mask=lower, other=0.0)
    g_across = tl.load(grad + below + channels, mask=more & lower, other=0.0)

    exists = c < channels
    row = (image // images) * channels + c
    each = 1.0 / (tl.cast(images, tl.float32) * height * width)
    s = tl.load(inverse + row, mask=exists, other=0.0)
    m = tl.load(mean + row, mask=exists, other=0.0)[None, :]
    scale = s * tl.load(weight + c, mask=exists, other=0.0)
    level = (tl.load(total + row, mask=exists, other=0.0) * each * scale)[None, :]
    tilt = (tl.load(along + row, mask=exists, other=0.0) * each * s * scale)[None, :]
    scale = scale[None, :]

    g_own, g_right = g_own.to(tl.float32), g_right.to(tl.float32)
    g_below, g_across = g_below.to(tl.float32), g_across.to(tl.float32)
    slope = tl.where(code_own == 4, g_own, 0.0)
    slope = slope * scale - ((x_own.to(tl.float32) - m) * tilt + level)
    tl.store(out + pixel, slope.to(out.dtype.element_ty), mask=inside)
    slope = tl.where(code_own == 5, g_own, 0.0) + tl.where(code_right == 3, g_right, 0.0)
    slope = slope * scale - ((x_right.to(tl.float32) - m) * tilt + level)
    tl.store(out + pixel + channels, slope.to(out.dtype.element_ty), mask=right_in)
    slope = tl.where(code_own == 7, g_own, 0.0) + tl.where(code_below == 1, g_below, 0.0)
    slope = slope * scale - ((x_below.to(tl.float32) - m) * tilt + level)
    tl.store(out + pixel + line, slope.to(out.dtype.element_ty), mask=below_in)
    slope = tl.where(code_own == 8, g_own, 0.0) + tl.where(code_right == 6, g_right, 0.0)
    slope += tl.where(code_below == 2, g_below, 0.0) + tl.where(code_across == 0, g_across, 0.0)
    slope = slope * scale - ((x_across.to(tl.float32) - m) * tilt + level)
    tl.store(out + pixel + line + channels, slope.to(out.dtype.element_ty), mask=right_in & below_in)
