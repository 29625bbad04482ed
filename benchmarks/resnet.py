"""ResNet-18 at 224 pixels: steps of the engine against the bare training loop on one batch that never changes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from steps import CUDA, DEVICE, MIXED, Options, Work, captured, engine_step, free, noise_task, ratio, turn_by_turn

CLASSES = 7  # as in PACS
DOMAINS = 4


def bare_step(images: int, side: int, *, accelerated: bool) -> Work:
    """Return the loop that people write to see how fast a network can train, or the same captured."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=CLASSES).to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(images, 3, side, side, device=DEVICE).contiguous(memory_format=torch.channels_last)
    y = torch.arange(images, device=DEVICE) % CLASSES
    optimiser = torch.optim.Adam(model.parameters(), 5e-5, fused=True, capturable=CUDA)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=MIXED):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()

    return captured(step) if accelerated else step


def measure_resnet(options: Options, side: int = 224) -> Iterator[dict[str, Any]]:
    """Source-only on four sources and MRF on three with a target: as many images a step as the bare loop has.

    On a GPU both are captured and not compiled, as runs of fewer than `accelerate.WORTH_COMPILING` steps are: ResNets
    take minutes to compile.
    """
    mode = "captured" if CUDA else "eager"
    for batch in (options.batch,) if options.batch else ((16, 64) if CUDA else (4,)):
        images = DOMAINS * batch
        shape = {"backbone": "resnet18", "batch_size": batch}
        works: dict[str, Work] = {
            "source-only": engine_step(
                noise_task(DOMAINS, 2 * batch, side=side, classes=CLASSES), "source-only", mode, **shape
            ),
            "mrf": engine_step(noise_task(DOMAINS - 1, 2 * batch, side=side, classes=CLASSES), "mrf", mode, **shape),
            "bare": bare_step(images, side, accelerated=False),
        }
        if CUDA:
            works["bare, captured"] = bare_step(images, side, accelerated=True)
        times = turn_by_turn(works, options)
        for method in ("source-only", "mrf"):
            row = {
                "what": f"images a second of {method} against the bare loop, ResNet-18 at {side}, {DOMAINS} x {batch}",
                "method": method,
                "batch": batch,
                "images a second": {name: images / statistics.median(some) for name, some in times.items()},
                "seconds": times,
                "ratio": ratio(times, "bare", method),
            }
            if CUDA:
                row["against the bare loop captured"] = ratio(times, "bare, captured", method)
            yield row
        del works
        free()
