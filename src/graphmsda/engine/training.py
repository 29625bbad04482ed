"""What changes while a run trains: weights, optimiser, averages and the number of steps taken.

Batches and random numbers are functions of (seed, step) alone, so these four are all that a checkpoint needs to go on
bit by bit where a run was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmsda import parallel
from graphmsda.backbones import build_backbone
from graphmsda.data.augment import flips_make_sense, strong, weak
from graphmsda.data.sampler import Stream, seed_of
from graphmsda.domains import Batch, Labelled, Task
from graphmsda.engine import folder
from graphmsda.engine.feed import Feed
from graphmsda.engine.optim import AveragedState, build_optimiser, optimiser_tensors, restore_optimiser
from graphmsda.engine.settings import Settings
from graphmsda.files import read_tensors
from graphmsda.methods import Method, build_method

INITIAL, STEP, SHARED, STREAM, VIEW = range(5)  # what a seed is for


VIEWS = {"none": None, "weak": weak, "strong": strong}


class Training:
    """Everything that changes while a run trains, and how to save and restore it."""

    def __init__(self, task: Task, settings: Settings, device: torch.device, autocast: Any) -> None:
        self.task, self.settings, self.device = task, settings, device
        self.step = 0
        torch.manual_seed(seed_of(settings.seed, INITIAL))
        self.method = create_method(task, settings).to(
            device, dtype=torch.float64 if settings.precision == "64" else torch.float32
        )
        self.method.backbone.autocast = autocast
        self.optimiser = build_optimiser(self.method, settings)
        self.average = AveragedState(self.method, settings.average) if settings.average else None
        samples = [*(source.x for source in task.sources), task.target.x]
        streams = [
            Stream(len(x), settings.batch_size, seed_of(settings.seed, STREAM, number))
            for number, x in enumerate(samples)
        ]
        self.feed = Feed(samples, streams, device, settings.resident)
        self.labels = [source.y.to(device) for source in task.sources]
        self.generator = torch.Generator(device)
        self.view = VIEWS[settings.augment] if task.is_images else None
        self.view_generator = torch.Generator(device)
        self.flip = flips_make_sense(task.classes)

    def batch(self) -> Batch:
        """Draw this process's part of the batch of the current step, and set all random numbers for it."""
        settings, step = self.settings, self.step
        torch.manual_seed(seed_of(settings.seed, STEP, step, parallel.rank()))
        self.generator.manual_seed(seed_of(settings.seed, SHARED, step))
        *sources, target = self._views(self.feed.batch(step))
        *rows, _ = self.feed.rows(step, self.device)
        return Batch(
            tuple(Labelled(x, y[i]) for x, y, i in zip(sources, self.labels, rows, strict=True)),
            target,
            torch.full((), step / settings.steps, device=self.device),
            self.generator,
        )

    def _views(self, parts: list[Tensor]) -> list[Tensor]:
        """Return what the chosen augmentation makes of the images, each process with random numbers of its own."""
        if self.view is None:
            return parts
        self.view_generator.manual_seed(seed_of(self.settings.seed, VIEW, self.step, parallel.rank()))
        seen = self.view(torch.cat(parts), self.view_generator, flip=self.flip)
        return list(torch.split(seen, [len(part) for part in parts]))

    def tensors(self) -> dict[str, Tensor]:
        """Return all that a checkpoint holds beside the number of steps."""
        state = {f"method/{name}": tensor for name, tensor in self.method.state_dict().items()}
        state |= {f"optimiser/{k}": v for k, v in optimiser_tensors(self.method, self.optimiser).items()}
        if self.average is not None:
            state |= {f"average/{name}": tensor for name, tensor in self.average.state.items()}
        return state

    def snapshot(self) -> tuple[dict[str, Tensor], int]:
        """Return a copy of the state to go back to."""
        return {name: tensor.detach().clone() for name, tensor in self.tensors().items()}, self.step

    def resume(self, path: Path) -> None:
        """Go to where the checkpoint at `path` stands, if there is one."""
        if not (path / folder.CHECKPOINT).is_file():
            return
        tensors, about = read_tensors(path / folder.CHECKPOINT)

        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

        self.method.load_state_dict(part("method/"))
        restore_optimiser(self.method, self.optimiser, part("optimiser/"))
        if self.average is not None:
            for name, tensor in part("average/").items():
                self.average.state[name].copy_(tensor)
        self.step = int(about["step"])


def create_method(task: Task, settings: Settings) -> Method:
    """Build backbone and method for a task, with random or pretrained weights."""
    domains = len(task.domains)
    shape = tuple(task.target.x.shape[1:])
    backbone = build_backbone(settings.backbone, shape, domains, dropout=settings.dropout, weights=settings.weights)
    return build_method(settings.method, backbone, len(task.classes), domains, settings.parameters)
