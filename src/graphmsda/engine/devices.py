"""Devices, precision and processes, through Lightning Fabric."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from graphmsda.engine.settings import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "64": "64-true"}


def start_fabric(settings: Settings) -> Fabric:
    """Start the processes of a run (settings resolved) and return Fabric's handle on this one.

    Methods are never wrapped for data-parallel training: a wrapped module whose `phases` is called synchronises
    nothing. Fabric launches processes and knows devices and precision; what must agree is in `graphmsda.parallel`.
    """
    from lightning_fabric import Fabric

    for name in ("lightning_fabric", "lightning_fabric.utilities.distributed"):
        logging.getLogger(name).setLevel(logging.WARNING)

    several = settings.devices * settings.nodes > 1
    fabric = Fabric(
        accelerator=settings.device,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy="ddp" if several else "auto",
        precision=PRECISIONS[settings.precision],  # type: ignore[arg-type]
    )
    fabric.launch()
    if settings.device == "cuda":
        # Distances between nearly equal prototypes drown in TF32's ten bits.
        torch.backends.cuda.matmul.allow_tf32 = False
    return fabric
