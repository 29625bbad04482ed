"""Devices, precision and processes, through Lightning Fabric."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from graphmsda.engine.settings import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def start(settings: Settings) -> tuple[torch.device, Callable[[], None]]:
    """Start the processes of a run (settings resolved); return this one's device and what waits for all others.

    Methods are never wrapped for data-parallel training: a wrapped module whose `phases` is called synchronises
    nothing. Fabric launches processes and gives each its device; what must agree is in `graphmsda.parallel`.
    """
    if settings.device == "cuda":
        # Distances between nearly equal prototypes drown in TF32's ten bits.
        torch.backends.cuda.matmul.allow_tf32 = False
    if settings.devices * settings.nodes == 1:
        return torch.device(settings.device), lambda: None  # importing Fabric takes seconds, which one process saves
    fabric = _launch(settings)
    return fabric.device, fabric.barrier


def _launch(settings: Settings) -> Fabric:
    from lightning_fabric import Fabric

    for name in ("lightning_fabric", "lightning_fabric.utilities.distributed"):
        logging.getLogger(name).setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator=settings.device,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy="ddp",
        precision="64-true" if settings.precision == "64" else "32-true",  # mixed precision is the backbone's
    )
    fabric.launch()
    return fabric
