"""Optimisers, the learning rate's course, and averaged weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphmsda.engine.settings import Settings


def build_optimiser(method: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Build the optimiser over all parameters; prototypes take no weight decay.

    Weight decay would pull prototypes to the origin, away from the embeddings they stand for.
    """
    prototypes = [p for name, p in method.named_parameters() if name.split(".")[-1] == "prototypes"]
    others = [p for name, p in method.named_parameters() if name.split(".")[-1] != "prototypes"]
    groups = [{"params": others, "weight_decay": settings.weight_decay}]
    if prototypes:
        groups.append({"params": prototypes, "weight_decay": 0.0})
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=0.9, nesterov=True)
    if settings.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=settings.lr)
    return torch.optim.Adam(groups, lr=settings.lr)


def learning_rate(settings: Settings, progress: float) -> float:
    """Return the rate at a progress between 0 and 1: constant, or half a cosine down to 2 % of it.

    >>> [round(learning_rate(Settings(lr=1.0), p), 2) for p in (0, 0.5, 1)]
    [1.0, 0.51, 0.02]
    """
    if settings.schedule == "constant":
        return settings.lr
    return settings.lr * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)


class AveragedState:
    """Moving average of a method's state, parameters and running statistics alike.

    The decay grows from 0 as ``1 - 1/(1 + step/2)`` up to its setting, so that the random start is soon forgotten. An
    entry of a running statistic that is still exactly zero has not been estimated yet (a prototype of a class not met
    so far) and starts at its first value.
    """

    def __init__(self, method: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}

    @torch.no_grad()
    def update(self, method: nn.Module, step: int) -> None:
        """Take in the state after `step` steps."""
        weight = 1 - min(self.decay, 1 - 1 / (1 + step / 2))
        parameters = dict(method.named_parameters())
        torch._foreach_lerp_([self.state[name] for name in parameters], list(parameters.values()), weight)
        for name, tensor in method.named_buffers():
            mean = self.state[name]
            if tensor.is_floating_point():
                mean.copy_(torch.where(mean == 0, tensor, torch.lerp(mean, tensor, weight)))
            else:
                mean.copy_(tensor)


def optimiser_tensors(method: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's memory as tensors named ``parameter/quantity``."""
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in method.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimiser(method: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` returned."""
    parameters = dict(method.named_parameters())
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        # Adam counts its steps in a tensor that stays on the CPU unless the optimiser is fused.
        place = tensor if key == "step" else tensor.to(parameters[name].device)
        optimiser.state[parameters[name]][key] = place.clone()
