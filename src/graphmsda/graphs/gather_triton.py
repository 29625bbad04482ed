r"""CRF-MSDA's message passing as GPU kernels: `graphmsda.graphs.gather.gather` without any B x n x h temporary.

Each kernel holds a tile of sums in registers and makes the activations it needs anew, one slice at a time. With
:math:`z_{qv} = a_{qv} P_v + t_{qv} u_q + b`, the gradient :math:`g_q` of the output and the slope
:math:`s_{qv} = g_q \odot k_v \odot [z_{qv} > 0]` there are three directions to sum in:

- over v: the output, from :math:`l \, k \odot \mathrm{relu}(z)`, and the gradient of u, from :math:`l \, t \, s`;
- over h: the gradients of l, t and a, from :math:`s \odot z`, :math:`l \, s \odot u` and :math:`l \, s \odot P`;
- over q: the gradients of P and b, from :math:`l \, a \, s` and :math:`l \, s`.

Where t is not apart from l, neither is its gradient, and a is 1.

No kernel adds across threads, which would take longer than the arithmetic, and none adds atomically: the same input
gives the same bits.
"""

# Triton has no types, and a kernel's arguments get theirs when it is launched.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphmsda.triton_support import usable

# A program of 4 warps holds tiles of ROWS x COLUMNS numbers in registers, 8 to a thread. Their size is fixed, since
# trying several would delay the start of every run. COLUMNS is below the number of threads: Triton then loads a vector
# straight into the threads that need it, not by way of shared memory. Twice the ROWS would save loads, but takes so
# many registers that too few programs run side by side.
ROWS = 16
COLUMNS = 64
# Where tiles are too few to keep a large GPU busy (about eight on each of an H200's 132 processors), sums are split
# into parts that are added up afterwards, though never so short that this costs more than it saves. Nothing is asked
# of the GPU, so that sums have the same order on all of them.
PROGRAMS = 1024
SHORTEST = 64
ALIGNED = 16  # numbers: where each row begins at a multiple of it, four can be read at a time

USABLE = usable()  # asked once, on import

COUNTS = ["queries", "prototypes", "part"]  # not to be compiled for anew when they change; rows of h are to be aligned


@triton.jit(do_not_specialize=COUNTS)
def _sum_over_prototypes(
    listen, share, heard, shared, message, bias, keep, grad, out, queries, prototypes, size, part,
    APART: tl.constexpr, KEEP: tl.constexpr, BACKWARD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    q = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    q_in, c_in = q < queries, c < size
    tile = q.to(tl.int64)[:, None] * size + c[None, :]
    inside = q_in[:, None] & c_in[None, :]
    u = tl.load(message + tile, mask=inside, other=0.0)
    b = tl.load(bias + c, mask=c_in, other=0.0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    edge, row = q.to(tl.int64) * prototypes, c.to(tl.int64)
    first = tl.program_id(2) * part
    last = tl.minimum(first + part, prototypes)
    edge += first
    row += tl.cast(first, tl.int64) * size
    for _ in range(first, last):
        weight = tl.load(listen + edge, mask=q_in, other=0.0)
        t = tl.load(heard + edge, mask=q_in, other=0.0) if APART else weight
        z = tl.load(shared + row, mask=c_in, other=0.0)[None, :]
        if APART:
            z = tl.load(share + edge, mask=q_in, other=0.0)[:, None] * z
        z = z + b[None, :] + t[:, None] * u
        if BACKWARD:
            weight *= t
            k = tl.load(keep + row, mask=c_in, other=0.0)[None, :] if KEEP else 1.0
            total += weight[:, None] * tl.where(z <= 0, 0.0, k)
        else:
            z = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
            if KEEP:
                z *= tl.load(keep + row, mask=c_in, other=0.0)[None, :]
            total += weight[:, None] * z
        edge += 1
        row += size
    if BACKWARD:
        total *= tl.load(grad + tile, mask=inside, other=0.0)
    tl.store(out + tl.program_id(2).to(tl.int64) * queries * size + tile, total, mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def _sum_over_queries(
    listen, share, heard, shared, message, bias, keep, grad, out, queries, prototypes, size, part,
    APART: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    v = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    v_in, c_in = v < prototypes, c < size
    tile = v.to(tl.int64)[:, None] * size + c[None, :]
    inside = v_in[:, None] & c_in[None, :]
    p = tl.load(shared + tile, mask=inside, other=0.0)
    b = tl.load(bias + c, mask=c_in, other=0.0)
    k = tl.load(keep + tile, mask=inside, other=0.0) if KEEP else tl.full((ROWS, COLUMNS), 1.0, tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    unshared = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = tl.program_id(2) * part
    last = tl.minimum(first + part, queries)
    edge = tl.cast(first, tl.int64) * prototypes + v
    row = tl.cast(first, tl.int64) * size + c
    for _ in range(first, last):
        weight = tl.load(listen + edge, mask=v_in, other=0.0)
        t = tl.load(heard + edge, mask=v_in, other=0.0) if APART else weight
        u = tl.load(message + row, mask=c_in, other=0.0)
        g = tl.load(grad + row, mask=c_in, other=0.0)
        z = p
        if APART:
            a = tl.load(share + edge, mask=v_in, other=0.0)
            z = a[:, None] * z
        z = z + b[None, :] + t[:, None] * u[None, :]
        slope = tl.where(z <= 0, 0.0, k) * g[None, :]
        if APART:
            unshared += weight[:, None] * slope
            weight *= a
        total += weight[:, None] * slope
        edge += prototypes
        row += size
    plane = tl.cast(prototypes, tl.int64) * size
    out += tl.program_id(2) * (2 if APART else 1) * plane
    tl.store(out + tile, total, mask=inside)
    if APART:
        tl.store(out + plane + tile, unshared, mask=inside)


@triton.jit(do_not_specialize=["queries", "part"])
def _sum_over_columns(
    listen, share, heard, shared, message, bias, keep, grad, out, queries, prototypes, size, part,
    APART: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # P and k are transposed here, and rows of prototypes are lengthened to a multiple of `ALIGNED`.
    q = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    v = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    q_in, v_in = q < queries, v < prototypes
    tile = q.to(tl.int64)[:, None] * prototypes + v[None, :]
    inside = q_in[:, None] & v_in[None, :]
    weight = tl.load(listen + tile, mask=inside, other=0.0)
    if APART:
        t = tl.load(heard + tile, mask=inside, other=0.0)
        a = tl.load(share + tile, mask=inside, other=0.0)
    else:
        t = weight
    by_z = tl.zeros((ROWS, COLUMNS), tl.float32)
    by_u = tl.zeros((ROWS, COLUMNS), tl.float32)
    by_p = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = tl.program_id(2) * part
    last = tl.minimum(first + part, size)
    row = q.to(tl.int64) * size + first
    column = tl.cast(first, tl.int64) * prototypes + v
    for c in range(first, last):
        u = tl.load(message + row, mask=q_in, other=0.0)[:, None]
        g = tl.load(grad + row, mask=q_in, other=0.0)[:, None]
        p = tl.load(shared + column, mask=v_in, other=0.0)[None, :]
        z = a * p if APART else p
        z = z + tl.load(bias + c) + t * u
        k = tl.load(keep + column, mask=v_in, other=0.0)[None, :] if KEEP else 1.0
        slope = tl.where(z <= 0, 0.0, k) * g
        by_z += slope * z
        by_u += slope * u
        if APART:
            by_p += slope * p
        row += 1
        column += prototypes
    plane = tl.cast(queries, tl.int64) * prototypes
    out += tl.program_id(2) * (3 if APART else 1) * plane
    if APART:
        tl.store(out + tile, by_z, mask=inside)
        tl.store(out + plane + tile, weight * by_u, mask=inside)
        tl.store(out + 2 * plane + tile, weight * by_p, mask=inside)
    else:
        tl.store(out + tile, by_z + weight * by_u, mask=inside)


def _run(kernel: Any, inputs: Sequence[Any], sums: tuple[int, ...], length: int, **flags: bool) -> Tensor:
    """Return the parts of ``sums`` = (matrices, rows, columns) of ``length`` terms each: (parts, *sums)."""
    listen, share, _, _, message, _, keep, _ = inputs
    grid = triton.cdiv(sums[1], ROWS), triton.cdiv(sums[2], COLUMNS)
    part = triton.cdiv(length, max(1, min(PROGRAMS // (grid[0] * grid[1]), length // SHORTEST)))
    out: Tensor = message.new_empty(triton.cdiv(length, part), *sums)
    flags |= {"APART": share is not None, "KEEP": keep is not None}
    # Products and sums are to be fused into one instruction, which is not the default of every version of Triton.
    options = {"ROWS": ROWS, "COLUMNS": COLUMNS, "num_warps": 4, "enable_fp_fusion": True}
    with torch.cuda.device_of(message):  # Triton launches on the current GPU
        kernel[(*grid, len(out))](*inputs, out, *listen.shape, message.shape[1], part, **flags, **options)
    return out


def _add(parts: Tensor) -> Tensor:
    return parts[0] if len(parts) == 1 else parts.sum(0)


def _contiguous(*tensors: Any) -> list[Any]:
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _aligned(matrix: Any) -> Any:
    """Return a matrix whose rows have been lengthened, by numbers of no meaning, to a multiple of `ALIGNED`."""
    if matrix is None:
        return None
    rows, columns = matrix.shape
    longer = matrix.new_empty(rows, triton.cdiv(columns, ALIGNED) * ALIGNED)
    longer[:, :columns] = matrix
    return longer


INPUTS = "Tensor listen, Tensor? share, Tensor? heard, Tensor shared, Tensor message, Tensor bias, Tensor? keep"


@torch.library.custom_op("graphmsda::gather", mutates_args=(), schema=f"({INPUTS}) -> Tensor")
def fused_gather(
    listen: Tensor,
    share: Tensor | None,
    heard: Tensor | None,
    shared: Tensor,
    message: Tensor,
    bias: Tensor,
    keep: Tensor | None,
) -> Tensor:
    """`graphmsda.graphs.gather.gather` of float32 tensors, which `torch.compile` takes as one operation."""
    if not listen.numel() * len(bias):
        return message.new_zeros(message.shape)
    inputs = _contiguous(listen, share, heard, shared, message, bias, keep, None)
    return _add(_run(_sum_over_prototypes, inputs, (1, *message.shape), len(shared), BACKWARD=False))[0]


@torch.library.custom_op(
    "graphmsda::gather_backward", mutates_args=(), schema=f"({INPUTS}, Tensor grad) -> (Tensor, Tensor, Tensor)"
)
def _gradients(*tensors: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs = _contiguous(*tensors)
    listen, share, heard, shared, message, bias, keep, grad = inputs
    by_edge, by_query, by_prototype = _empty_gradients(*inputs)
    if not listen.numel() * len(bias):
        return by_edge.zero_(), by_query.zero_(), by_prototype.zero_()
    by_query = _run(_sum_over_prototypes, inputs, (1, *by_query.shape), len(shared), BACKWARD=True)
    by_prototype = _run(_sum_over_queries, inputs, tuple(by_prototype.shape), len(message))
    # Sums over h go through P and k column by column.
    edges = [_aligned(tensor) for tensor in (listen, share, heard, shared.T)]
    inputs = [*edges, message, bias, None if keep is None else _aligned(keep.T), grad]
    by_edge = _run(_sum_over_columns, inputs, (len(by_edge), *edges[0].shape), len(bias))[..., : len(shared)]
    return by_edge.sum(0), _add(by_query)[0], _add(by_prototype)


def _empty_gradients(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the gradients of l, t and a (1 or 3, B, n); of u (B, h); of P, and of b by prototype (1 or 2, n, h)."""
    listen, share, _, shared, message, *_ = inputs
    by_edge, by_prototype = (1, 1) if share is None else (3, 2)
    return (
        listen.new_empty(by_edge, *listen.shape),
        message.new_empty(message.shape),
        shared.new_empty(by_prototype, *shared.shape),
    )


def _save(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    by_edge, by_query, by_prototype = _gradients(*ctx.saved_tensors, grad)
    heard, share = by_edge[1:] if len(by_edge) == 3 else (None, None)
    # Without `share` what reaches P reaches b as well.
    return by_edge[0], share, heard, by_prototype[0], by_query, by_prototype[-1].sum(0), None


fused_gather.register_fake(lambda *inputs: inputs[4].new_empty(inputs[4].shape))
fused_gather.register_autograd(_backward, setup_context=_save)
_gradients.register_fake(_empty_gradients)
