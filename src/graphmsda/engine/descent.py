"""From gradients to new weights: operation by operation, or as one pass over all of them.

The weights of a network like 3conv-2fc are 126 MB; a step reads and writes them and two moments of their size. On a GPU
these bytes are a seventh of a step's time, so they should move once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from graphmsda.engine.optim import MOMENTUM, build_optimiser
from graphmsda.engine.settings import Settings
from graphmsda.graphs.prototypes import wide

Group = tuple[list[nn.Parameter], list[Tensor], list[dict[str, Tensor]], list[Tensor | None], float, Tensor]

ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}
ADAM |= {"foreach": False, "fused": False, "capturable": True}  # each tensor by itself: a compiler joins them


def total_norm(gradients: Sequence[Tensor | None]) -> Tensor:
    """Return the norm of all gradients together, in float32 or wider."""
    squares = [g.square().sum() for g in wide(*(g for g in gradients if g is not None))]
    return torch.stack(squares).sum().sqrt()


def laid_out_as(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return a gradient that lies in memory as its parameter does, which fused optimisers ask for.

    In float64 a convolution's gradient comes with the channels first whatever its weights are.
    """
    if gradient is None or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


class Descent:
    """An optimiser, and the copies of weights that are kept in the lower precision that a network computes in.

    Without copies, mixed precision converts every weight in every step and every gradient back; with them the
    conversion is a part of the optimiser's pass over the weights. `copies` is by name and empty unless it is filled.
    """

    def __init__(self, method: nn.Module, settings: Settings) -> None:
        self.method, self.settings = method, settings
        self.optimiser = build_optimiser(method, settings)
        self.copies: dict[str, Tensor] = {}

    def keep_copies(self, body: nn.Module, dtype: torch.dtype | None) -> None:
        """Keep a copy of each weight of the convolutions and linear layers of `body`."""
        layers = (nn.Conv2d, nn.Linear)
        chosen = {id(m.weight) for m in body.modules() if isinstance(m, layers)} if dtype is not None else set()
        self.copies = {
            name: parameter.detach().to(dtype).requires_grad_()
            for name, parameter in self.method.named_parameters()
            if id(parameter) in chosen
        }

    def leaves(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Return what to take gradients by: the copy of a parameter where there is one, else the parameter."""
        names = {id(p): name for name, p in self.method.named_parameters()}
        return [self.copies.get(names[id(p)], p) for p in parameters]

    def step(
        self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None], *, measured: bool
    ) -> Tensor | None:
        """Take a step along gradients, clipped if so set, and return their norm if it is measured.

        Args:
            parameters: What the gradients belong to.
            gradients: One for each; None leaves the parameter as it is.
            measured: Whether to measure their norm even where nothing is clipped.
        """
        norm = total_norm(gradients) if measured or self.settings.clip else None
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = laid_out_as(parameter, gradient)
        if self.settings.clip and norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.settings.clip, norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return norm

    def in_one_pass(self, compiled: Callable[..., Any]) -> Callable[..., Tensor | None]:
        """Return `step` by way of elementary operations on lists of tensors, for a compiler to fuse."""
        fast = compiled(move)

        def step(
            parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None], *, measured: bool
        ) -> Tensor | None:
            norm = total_norm(gradients) if measured and not self.settings.clip else None
            slopes = {id(p): g for p, g in zip(parameters, gradients, strict=True) if g is not None}
            names = {id(p): name for name, p in self.method.named_parameters()}
            groups: list[Group] = []
            for group in self.optimiser.param_groups:
                chosen = [p for p in group["params"] if id(p) in slopes]
                memory = [self.optimiser.state[p] for p in chosen]
                copies = [self.copies.get(names[id(p)]) for p in chosen]
                given = [slopes[id(p)] for p in chosen]
                groups.append((chosen, given, memory, copies, group["weight_decay"], group["lr"]))
            found: Tensor | None = fast(groups, self.settings.clip, self.settings.optimiser)
            return found if norm is None else norm

        return step


def move(groups: list[Group], clip: float, optimiser: str) -> Tensor | None:
    """Move parameters, moments and copies in place, and return the norm of the gradients where they are clipped."""
    with torch.no_grad():
        norm = total_norm([g for _, slopes, *_ in groups for g in slopes]) if clip else None
        for parameters, given, memory, copies, weight_decay, rate in groups:
            slopes = [g.to(p.dtype) for g, p in zip(given, parameters, strict=True)]
            if norm is not None:
                slopes = [g * (clip / (norm + 1e-6)).clamp(max=1) for g in slopes]
            if optimiser == "sgd":
                # Written out: PyTorch's own reads the rate, and a compiler would keep its first value.
                for parameter, slope, kept in zip(parameters, slopes, memory, strict=True):
                    decayed = slope + weight_decay * parameter
                    speed = kept["momentum_buffer"].mul_(MOMENTUM).add_(decayed)
                    parameter.sub_(rate * (decayed + MOMENTUM * speed))
            else:
                rule: Any = adamw if optimiser == "adamw" else adam
                moments = ([m[key] for m in memory] for key in ("exp_avg", "exp_avg_sq"))
                steps = [m["step"] for m in memory]
                rule(parameters, slopes, *moments, [], steps, lr=rate, weight_decay=weight_decay, **ADAM)
            for parameter, copy in zip(parameters, copies, strict=True):
                if copy is not None:
                    copy.copy_(parameter)
        return norm
