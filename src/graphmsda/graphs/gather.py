"""CRF-MSDA: what prototypes say to each query after having heard it, the costly step of message passing (eq. 5)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda.triton_support import TRITON

ELEMENTS = 2**25  # of the largest temporary: 128 MiB in float32
CACHED = 2**20  # numbers that a CPU's last cache holds, with room for others


def gather(
    listen: Tensor,
    share: Tensor | None,
    heard: Tensor | None,
    shared: Tensor,
    message: Tensor,
    bias: Tensor,
    keep: Tensor | None,
    chunk: int | None = None,
) -> Tensor:
    r"""Sum over prototypes of what they say to each query after having heard it.

    .. math:: \text{out}_q = \sum_v l_{qv} \, k_v \odot \mathrm{relu}(a_{qv} P_v + t_{qv} u_q + b)

    Shapes: listen l, share a and heard t (B, n), shared P and keep k (None: all 1) (n, h), message u (B, h), bias b
    (h,) -> (B, h). Gradients flow to all but ``keep``. Where a and t are None, a is 1 and t is l: both ends of an edge
    hear each other alike, and nothing of a prototype's own is lost.

    Args:
        listen: What a query takes from each prototype.
        share: What is left of a prototype's own hidden state.
        heard: What a prototype takes from the query.
        shared: The prototypes' hidden states without the query, before bias and activation.
        message: What a query says.
        bias: Added before the activation.
        keep: Dropout's factors.
        chunk: Queries taken at a time, which bounds memory. By default, on a GPU in float32 where Triton works, kernels
            that never hold B x n x h numbers; otherwise as many queries as fit into 128 MiB, or on a CPU into 4 MiB,
            which its cache holds. 0 takes all at once in plain operations, which an exporter can trace for any batch
            size.

    >>> one = torch.ones(1, 1)
    >>> gather(one, None, None, torch.tensor([[1.0, -3.0]]), torch.tensor([[2.0, 1.0]]), torch.zeros(2), None)
    tensor([[3., 0.]])
    """
    assert (share is None) == (heard is None)
    if chunk is None:
        kernels = _kernels() if message.is_cuda and message.dtype == torch.float32 else None
        if kernels is not None:
            fused: Tensor = kernels.fused_gather(listen, share, heard, shared, message, bias, keep)
            return fused
        chunk = max(1, (CACHED if message.device.type == "cpu" else ELEMENTS) // max(1, shared.numel()))
    if chunk > 0:
        gathered: Tensor = _Gather.apply(listen, share, heard, shared, message, bias, keep, chunk)
        return gathered
    own = shared if share is None else share[:, :, None] * shared
    heard = listen if heard is None else heard
    # Not by `addcmul`, which PyTorch 2.6 cannot write to ONNX for any batch size.
    hidden = F.relu(own + bias + heard[:, :, None] * message[:, None])
    return torch.bmm(listen[:, None], hidden if keep is None else hidden * keep).squeeze(1)


def _kernels() -> Any:
    """Return the module of kernels for GPUs, or None where Triton does not work."""
    if not TRITON:
        return None
    try:
        from graphmsda.graphs import gather_triton
    except ImportError:
        return None
    return gather_triton if gather_triton.USABLE else None


def _weighted(activations: Tensor, rows: Tensor) -> Tensor:
    """Multiply and sum over h, ``(q, v, h), (q, h) -> (q, v)``: this way round a CPU is many times as fast."""
    return torch.bmm(rows[:, None], activations.mT).squeeze(1)


def _say(
    room: Tensor,
    share: Tensor | None,
    heard: Tensor,
    shared: Tensor,
    message: Tensor,
    bias: Tensor,
    keep: Tensor | None,
) -> Tensor:
    """Return what the prototypes are ready to say to some queries, dropout included, ``(q, v, h)``, in a room for it.

    One room serves all chunks of queries: new memory for each would cost a CPU as much as the arithmetic.
    """
    hidden = room[: len(heard)]
    if share is None:
        torch.addcmul(shared + bias, heard[:, :, None], message[:, None], out=hidden)
    else:
        torch.addcmul(bias, share[:, :, None], shared, out=hidden)
        hidden.addcmul_(heard[:, :, None], message[:, None])
    hidden.relu_()
    if keep is not None:
        hidden *= keep
    return hidden


def _rows(tensor: Tensor | None, some: slice) -> Tensor | None:
    return None if tensor is None else tensor[some]


class _Gather(torch.autograd.Function):
    """`gather` in chunks of queries: the B x n x h activations are made anew in the backward pass, never kept."""

    @staticmethod
    def forward(
        ctx: Any,
        listen: Tensor,
        share: Tensor | None,
        heard: Tensor | None,
        shared: Tensor,
        message: Tensor,
        bias: Tensor,
        keep: Tensor | None,
        chunk: int,
    ) -> Tensor:
        ctx.save_for_backward(listen, share, heard, shared, message, bias, keep)
        ctx.chunk = chunk
        heard = listen if heard is None else heard
        out = torch.empty_like(message)
        room = shared.new_empty(min(chunk, len(listen)), *shared.shape)
        for start in range(0, len(listen), chunk):
            some = slice(start, start + chunk)
            hidden = _say(room, _rows(share, some), heard[some], shared, message[some], bias, keep)
            torch.bmm(listen[some, None], hidden, out=out[some, None])
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        listen, share, given, shared, message, bias, keep = ctx.saved_tensors
        heard = listen if given is None else given
        share_grad = None if share is None else torch.zeros_like(share)
        listen_grad, heard_grad, shared_grad, message_grad, bias_grad = (
            torch.zeros_like(tensor) for tensor in (listen, heard, shared, message, bias)
        )
        # Passes over the q x v x h activations are what this costs: weights of q x v and q x h go into the products.
        room = shared.new_empty(min(ctx.chunk, len(listen)), *shared.shape)
        for start in range(0, len(listen), ctx.chunk):
            some = slice(start, start + ctx.chunk)
            slope = _say(room, _rows(share, some), heard[some], shared, message[some], bias, keep)
            said, column = listen[some], grad[some]
            listen_grad[some] = _weighted(slope, column)
            slope.sign_()  # of what was above zero and kept
            if keep is not None:
                slope *= keep
            heard_grad[some] = said * _weighted(slope, column * message[some])
            message_grad[some] = column * torch.bmm((said * heard[some])[:, None], slope).squeeze(1)
            slope *= column[:, None]
            by_prototype = slope.transpose(0, 1)  # v x q x h
            if share_grad is not None:
                share_grad[some] = said * _weighted(by_prototype, shared).T
                bias_grad += torch.bmm(said.T[:, None], by_prototype).sum((0, 1))
                said = said * share[some]
            shared_grad += torch.bmm(said.T[:, None], by_prototype).squeeze(1)
        if share_grad is None:
            bias_grad = shared_grad.sum(0)
        if given is None:
            return listen_grad + heard_grad, None, None, shared_grad, message_grad, bias_grad, None, None
        return listen_grad, share_grad, heard_grad, shared_grad, message_grad, bias_grad, None, None
