"""What changes while a run trains: weights, optimiser, averages, the stage and the number of steps taken.

Batches and random numbers are functions of (seed, step) alone, so these five are all that a checkpoint needs to go on
bit by bit where a run was.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from graphmsda import parallel
from graphmsda.backbones import Backbone, build_backbone
from graphmsda.data import augment
from graphmsda.data.sampler import Stream, seed_of
from graphmsda.domains import Batch, Labelled, Task
from graphmsda.engine import folder
from graphmsda.engine.course import Course, Moment
from graphmsda.engine.descent import Descent
from graphmsda.engine.feed import Feed
from graphmsda.engine.optim import EVERY, AveragedState, averaging_weight, optimiser_tensors, restore_optimiser
from graphmsda.engine.settings import Settings
from graphmsda.engine.stages import lay_out, stage_at
from graphmsda.files import read_tensors
from graphmsda.methods import Method, build_method

INITIAL, STEP, STREAM, VIEW = 0, 1, 3, 4  # what a seed is for, beside what all processes share (`course`)
# The share of strong views among source and among target samples; a strong target view may come beside these.
SHARES = {"none": (0.0, 0.0), "weak": (0.0, 0.0), "mixed": (0.5, 0.0), "strong": (1.0, 1.0)}


class Training:
    """Everything that changes while a run trains, and how to save and restore it."""

    def __init__(self, task: Task, settings: Settings, device: torch.device) -> None:
        self.task, self.settings, self.device = task, settings, device
        self.step = 0
        torch.manual_seed(seed_of(settings.seed, INITIAL))
        self.method = create_method(task, settings).to(
            device, dtype=torch.float64 if settings.precision == "64" else torch.float32
        )
        for module in self.method.modules():
            if isinstance(module, Backbone):  # a method may have several
                module.mixed = torch.bfloat16 if settings.precision == "bf16" else None
        self.stages = lay_out(self.method.stages, settings.steps)
        self._begun = torch.zeros((), dtype=torch.int64, device=device)  # number of the stage that has begun last
        self._set_stage(0)
        self.method.begin_stage(self.method.stage)
        self.descent = Descent(self.method, settings)
        self.optimiser = self.descent.optimiser
        self.average = AveragedState(self.method) if settings.average else None
        self.method.teacher = self._teacher()
        self._averaged = 0
        self.measured = False  # whether the current step measures its gradients: the last before a reading does
        samples = [*(source.x for source in task.sources), task.target.x]
        streams = [
            Stream(len(x), settings.batch_size, seed_of(settings.seed, STREAM, number))
            for number, x in enumerate(samples)
        ]
        self.feed = Feed(samples, streams, device, settings.resident)
        # All labels in one row: those of a batch are then read at once.
        self.labels = torch.cat([source.y for source in task.sources]).to(device)
        sizes = torch.tensor([len(source.y) for source in task.sources])
        self._begins = (sizes.cumsum(0) - sizes)[:, None].to(device)
        self.course = Course(settings, streams, device, self.stages)
        self.view_generator = torch.Generator(device)
        self.flip = augment.flips_make_sense(task.classes)
        self.changed = self.method.views or (task.is_images and settings.augment != "none")
        self.fetched: list[Tensor] = []
        self._kept: dict[str, Tensor] = {}
        self._live: list[Tensor] = []
        self.replaced: list[tuple[object, str]] = []

    def prepare(self) -> None:
        """Do the host's part of the current step: random numbers, tables, averages, samples that have to be fetched."""
        self.enter_stage()
        self.measured = self.is_read(self.step + 1)
        if (self.step - self.stages[self.stage].first) % EVERY == 0:
            self.take_average()
        seed_generators(seed_of(self.settings.seed, STEP, self.step, parallel.rank()), self.device)
        if self.changed:
            self.view_generator.manual_seed(seed_of(self.settings.seed, VIEW, self.step, parallel.rank()))
        self.course.prepare(self.step)
        if self.feed.ready:
            return
        found = self.feed.fetch(self.step)
        if self.fetched and self.device.type == "cuda":  # a captured step reads where its first samples lay
            torch._foreach_copy_(self.fetched, found)
        else:
            self.fetched = [x.clone() for x in found] if self.device.type == "cuda" else found

    def is_read(self, step: int) -> bool:
        """Whether the device is read after so many steps; it always is at the end of a stage."""
        return self.settings.is_read(step) or any(step == stage.end for stage in self.stages)

    def take_average(self) -> None:
        """Move the averaged state to what it is after the stage's steps so far, once for each number of them."""
        steps = self.step - self.stages[self.stage].first
        if self.average is not None and steps > 0 and self.step != self._averaged:
            self.average.update(self.method, averaging_weight(self.settings.average, steps))
        self._averaged = self.step

    @torch.no_grad()
    def enter_stage(self) -> bool:
        """Begin the stage that the current step is the first of, if it is; return whether that was so.

        A stage ends as a run does, with the averaged weights where they are kept, and the next one starts from them:
        its optimiser without a memory, its average at what the method makes of them (`Method.begin_stage`). All tensors
        stay where they are; what was compiled or captured of the last stage has to be thrown away.
        """
        number = stage_at(self.stages, self.step)
        if number <= self.stage:
            return False
        self.put_back()
        self.take_average()
        if self.average is not None:
            self.method.load_state_dict(self.average.state)
        self._set_stage(number)
        self.method.begin_stage(self.method.stage)
        for tensor in optimiser_tensors(self.method, self.optimiser).values():
            tensor.zero_()
        if self.average is not None:
            for name, tensor in self.method.state_dict().items():
                self.average.state[name].copy_(tensor)
        return True

    def _set_stage(self, number: int) -> None:
        self.stage = number
        self.method.stage = self.stages[number].name
        self._begun.fill_(number)

    def batch(self) -> tuple[Batch, Moment]:
        """Do the device's part: draw this process's part of the batch that was prepared, with the step's numbers."""
        now = self.course.read()
        *sources, target = self.feed.take(now.rows) if self.feed.ready else self.fetched
        seen: Tensor | None = None
        if self.changed:
            sources, target, seen = self._views(sources, target)
        labels = self.labels[now.rows[:-1] + self._begins]
        parts = zip(sources, labels, strict=True)
        return Batch(tuple(Labelled(x, y) for x, y in parts), target, now.progress, now.seed, seen), now

    def _views(self, sources: list[Tensor], target: Tensor) -> tuple[list[Tensor], Tensor, Tensor | None]:
        """Return what the chosen augmentation makes of sources and target, and the target's strong view if wanted.

        Each process draws random numbers of its own.
        """
        kind, generator = self.settings.augment, self.view_generator
        if not self.task.is_images:
            return sources, target, augment.corrupt(target, generator)
        # Images to change, and how likely each is to be changed strongly.
        parts, shares = ([*sources, target], [*(SHARES[kind][0] for _ in sources), SHARES[kind][1]])
        if kind == "none":
            parts, shares = [], []
        if self.method.views:
            parts, shares = [*parts, target], [*shares, 1.0]
        images = torch.cat(parts)
        chances = [x.new_full((len(x),), share, dtype=torch.float32) for x, share in zip(parts, shares, strict=True)]
        plan = augment.plan(torch.cat(chances) if any(shares) else None, len(images), generator, flip=self.flip)
        seen = list(torch.split(self.change(images, plan, self.flip), [len(part) for part in parts]))
        strong = seen.pop() if self.method.views else None
        return (seen[:-1], seen[-1], strong) if seen else (sources, target, strong)

    def change(self, images: Tensor, plan: dict[str, Tensor], flip: bool) -> Tensor:
        """Make the views that were planned; something compiled may stand in its place."""
        return augment.change(images, plan, flip)

    def _teacher(self) -> dict[str, Tensor]:
        """Return what the method sees of the average, or of itself where none is kept; it stays where it is."""
        state = self.method.state_dict() if self.average is None else self.average.state
        parameters = {name for name, _ in self.method.named_parameters()}
        return {k: v for k, v in state.items() if k in parameters or not k.startswith("backbone.")}

    def tensors(self) -> dict[str, Tensor]:
        """Return all that a checkpoint holds beside the number of steps."""
        state = {f"method/{name}": tensor for name, tensor in self.method.state_dict().items()}
        state |= {f"optimiser/{k}": v for k, v in optimiser_tensors(self.method, self.optimiser).items()}
        if self.average is not None:
            state |= {f"average/{name}": tensor for name, tensor in self.average.state.items()}
        # After the last step of a stage the next one may have begun or not.
        return state | ({"stage": self._begun} if len(self.stages) > 1 else {})

    def snapshot(self) -> tuple[dict[str, Tensor], int]:
        """Return a copy of the state to go back to, in place of the last such copy."""
        if not self._kept:
            tensors = self.tensors()
            self._live = [tensor.detach() for tensor in tensors.values()]  # where they are they stay
            self._kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        else:
            torch._foreach_copy_(list(self._kept.values()), self._live)
        return self._kept, self.step

    def put_back(self) -> None:
        """Take out whatever compiled parts stand in place of the methods of objects (`graphmsda.engine.accelerate`)."""
        for owner, name in self.replaced:
            delattr(owner, name)
        self.replaced, self.descent.copies = [], {}

    def restore(self) -> None:
        """Go back to the last copy of the state."""
        self._load(self._kept)

    def resume(self, path: Path) -> None:
        """Go to where the checkpoint at `path` stands, if there is one."""
        if not (path / folder.CHECKPOINT).is_file():
            return
        tensors, about = read_tensors(path / folder.CHECKPOINT)
        self._load(tensors)
        self.step = int(about["step"])

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

        self.method.load_state_dict(part("method/"))
        restore_optimiser(self.method, self.optimiser, part("optimiser/"))
        if self.average is not None:
            for name, tensor in part("average/").items():
                self.average.state[name].copy_(tensor)
        if len(self.stages) > 1:
            self._set_stage(int(tensors["stage"]))


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the random numbers of the host and of one device.

    ``torch.manual_seed`` does the same for the devices of every kind; of those that are not there it keeps the call for
    later, with a stack of where it came from: half a millisecond a step, and memory that grows.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


def create_method(task: Task, settings: Settings) -> Method:
    """Build backbone and method for a task, with random or pretrained weights."""
    domains = len(task.domains)
    shape = tuple(task.target.x.shape[1:])
    backbone = build_backbone(settings.backbone, shape, domains, dropout=settings.dropout, weights=settings.weights)
    return build_method(settings.method, backbone, len(task.classes), domains, settings.parameters)
