"""Optimisers, the learning rate's course, and averaged weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.engine.settings import Settings

MOMENTUM = 0.9  # of stochastic gradient descent, in Nesterov's form
EVERY = 8  # steps between two moves of the averaged state: averaging costs bytes, and successive states differ little


def build_optimiser(method: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Build the optimiser over all parameters; prototypes take no weight decay.

    Weight decay would pull prototypes to the origin, away from the embeddings they stand for. What is not the backbone
    starts from nothing and has a learning rate of its own: with the small one that suits a pretrained network, graph
    layers would hardly learn and prototypes stay where they started. A group's rate is a tensor on the device, which a
    step writes before it uses it: the run's rate times the group's factor.
    """
    factor = settings.head_lr / settings.lr if settings.head_lr and settings.lr else 1.0
    networks = {id(p) for module in method.modules() if isinstance(module, Backbone) for p in module.parameters()}
    parts: dict[str, list[nn.Parameter]] = {"backbone": [], "head": [], "prototypes": []}
    for name, parameter in method.named_parameters():
        last = name.split(".")[-1]
        part = "prototypes" if last.endswith("prototypes") else "backbone" if id(parameter) in networks else "head"
        parts[part].append(parameter)
    rate = torch.tensor(settings.lr, device=next(method.parameters()).device)
    groups = [
        {
            "params": some,
            "weight_decay": 0.0 if part == "prototypes" else settings.weight_decay,
            "factor": 1.0 if part == "backbone" else factor,
            "lr": rate.clone(),
        }
        for part, some in parts.items()
        if some
    ]
    optimiser: torch.optim.Optimizer
    if settings.optimiser == "sgd":
        optimiser = torch.optim.SGD(groups, lr=rate, momentum=MOMENTUM, nesterov=True, fused=True)
        moments: tuple[str, ...] = ("momentum_buffer",)
    else:
        kind = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
        optimiser = kind(groups, lr=rate, fused=True, capturable=rate.is_cuda)
        moments = ("exp_avg", "exp_avg_sq")
    for parameter in method.parameters():  # zeros, as they would be made in the first step: they stay where they are
        optimiser.state[parameter] = {name: torch.zeros_like(parameter) for name in moments}
        if settings.optimiser != "sgd":
            optimiser.state[parameter]["step"] = torch.zeros_like(rate)
    return optimiser


def learning_rate(settings: Settings, progress: float) -> float:
    """Return the rate at a progress between 0 and 1: constant, or half a cosine down to 2 % of it.

    >>> [round(learning_rate(Settings(lr=1.0), p), 2) for p in (0, 0.5, 1)]
    [1.0, 0.51, 0.02]
    """
    if settings.schedule == "constant":
        return settings.lr
    return settings.lr * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)


def averaging_weight(decay: float, step: int) -> float:
    """Return the weight of the state after `step` steps in the moving average, which is moved every `EVERY` steps.

    It is what all steps since the last move would have together. A step's decay grows from 0 as ``1 - 1/(1 + step/2)``
    up to its setting, so that the random start is soon forgotten.

    >>> [round(averaging_weight(0.99, step), 3) for step in (1, 8, 16, 1000)]
    [0.667, 0.978, 0.706, 0.077]
    """
    kept = 1.0
    for past in range((step - 1) // EVERY * EVERY + 1, step + 1):
        kept *= min(decay, 1 - 1 / (1 + past / 2))
    return 1 - kept


class AveragedState:
    """Moving average of a method's state, parameters and running statistics alike.

    An entry of a running statistic that is still exactly zero has not been estimated yet (a prototype of a class not
    met so far) and starts at its first value.
    """

    def __init__(self, method: nn.Module) -> None:
        self.state = {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}
        self._parameters = [name for name, _ in method.named_parameters()]
        # Statistics are many small tensors: those of one type lie in one row and are averaged at once.
        self._rows: dict[torch.dtype, tuple[list[str], Tensor]] = {}
        names = [name for name in self.state if name not in self._parameters]
        for dtype in {self.state[name].dtype for name in names if self.state[name].is_floating_point()}:
            chosen = [name for name in names if self.state[name].dtype == dtype]
            row = torch.cat([self.state[name].flatten() for name in chosen])
            parts = torch.split(row, [self.state[name].numel() for name in chosen])
            self.state |= {k: part.view_as(self.state[k]) for k, part in zip(chosen, parts, strict=True)}
            self._rows[dtype] = chosen, row
        self._others = [name for name in names if not self.state[name].is_floating_point()]
        self._now: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, method: nn.Module, weight: float) -> None:
        """Take in the state after a step with a weight (`averaging_weight`)."""
        now = self._now = self._now or method.state_dict()  # tensors that change and stay where they are
        torch._foreach_lerp_([self.state[k] for k in self._parameters], [now[k] for k in self._parameters], weight)
        for names, row in self._rows.values():
            new = torch.cat([now[name].flatten() for name in names])
            row.copy_(torch.where(row == 0, new, torch.lerp(row, new, weight)))
        if self._others:
            torch._foreach_copy_([self.state[k] for k in self._others], [now[k] for k in self._others])


def optimiser_tensors(method: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's memory as tensors named ``parameter/quantity``."""
    return {
        f"{name}/{key}": value
        for name, parameter in method.named_parameters()
        for key, value in optimiser.state[parameter].items()
    }


def restore_optimiser(method: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` returned."""
    parameters = dict(method.named_parameters())
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        optimiser.state[parameters[name]][key].copy_(tensor)
