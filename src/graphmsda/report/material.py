"""What the report of a run is made of: its data, read again, and what the model says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmsda.data.named import NamedTask, find_task
from graphmsda.data.progress import amount_bar
from graphmsda.domains import EvalSet, Samples, Task
from graphmsda.errors import UserError
from graphmsda.figures.runs import target_set
from graphmsda.methods.mrf import MRF
from graphmsda.report.centres import Centres, find_centres, joint_of, weigh
from graphmsda.run import Run
from graphmsda.streaming import chunk_size, embed

COUNT = 5000  # target samples that are looked at, unless asked otherwise
OF_A_SOURCE = 0.2  # of that, of each source


@dataclass(frozen=True)
class Seen:
    """Samples of a domain and what the model says of them.

    Attributes:
        name: The domain.
        x: All of its samples.
        rows: Those that were looked at, ``(N,)``.
        y: Their classes; None where nobody knows them.
        items: Names of all of its samples; None where they have none.
        embedding: ``(N, d)``.
        probabilities: ``(N, K)``.
        lean: How much the prediction owes to each of `Material.lean_names`, rows sum to 1.
        weights: How close each domain's centres lie, ``(N, D)``; rows sum to 1.
        votes: The class that each domain's centres alone would choose, ``(N, D)``.
        dispute: How much the domain tells of the class, from 0, in bits; see `weigh`.
    """

    name: str
    x: Samples
    rows: Tensor
    y: Tensor | None
    items: Sequence[str] | None
    embedding: Tensor
    probabilities: Tensor
    lean: Tensor
    weights: Tensor
    votes: Tensor
    dispute: Tensor

    @property
    def best(self) -> Tensor:
        """The predicted class of each."""
        return self.probabilities.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the predicted class of each."""
        return self.probabilities.amax(1)

    def picture(self, place: int) -> Tensor:
        """Return the sample at a place among those looked at."""
        return self.x[self.rows[place : place + 1]][0]

    def item(self, place: int) -> str:
        """Return what to call it."""
        row = int(self.rows[place])
        return self.items[row] if self.items is not None else f"no. {row + 1}"


@dataclass
class Material:
    """All that a report of a run is made of.

    Attributes:
        run: The run.
        centres: What stands for the classes of its domains.
        history: The rows of its metrics.
        sources: Samples of each source.
        target: Samples of the target; None where its data cannot be read.
        joint: Mean joint posterior of domain and class of the target's queries of each class, ``(K, D, K)``, where the
            method has one; by true class or, where nobody knows that, by predicted class.
        data: What it was trained on, as `graphmsda.selection` takes it.
        count: How many of the target's samples were to be looked at, at most.
        test: The labelled part of the target that `target` was taken from.
        notes: What the user should know of the data.
        missing: Why there are no samples.
    """

    run: Run
    centres: Centres
    history: list[dict[str, Any]]
    sources: list[Seen] = field(default_factory=list)
    target: Seen | None = None
    joint: Tensor | None = None
    data: Task | NamedTask | None = None
    count: int = COUNT
    test: EvalSet | None = None
    notes: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def lean_names(self) -> tuple[str, ...]:
        """The domains that predictions lean on: all where the method has a posterior of them, else the sources."""
        return self.run.domains if isinstance(self.run.method, MRF) else self.run.domains[:-1]

    @property
    def task(self) -> Task | None:
        """The data without what belongs to them."""
        return self.data.task if isinstance(self.data, NamedTask) else self.data

    @property
    def is_images(self) -> bool:
        """Whether there is something to look at."""
        return len(self.run.about["shape"]) == 3

    @property
    def things(self) -> str:
        """What samples are called."""
        return "images" if self.is_images else "samples"


def gather(
    run: Run, *, data: str | None = None, count: int = COUNT, progress: bool = False, **reading: Any
) -> Material:
    """Read the run's data again and ask the model.

    Args:
        run: The run.
        data: Path of labelled samples of the target; by default a benchmark's test part, else the unlabelled target.
        count: How many samples of the target to look at, at most.
        progress: Show a progress bar on stderr.
        reading: The flags `format`, `root`, `data_root`, `variant` and `cache` of the command line.
    """
    material = Material(run, find_centres(run), run.history(), count=count)
    try:
        material.data, material.test, material.notes = _read(run, reading, progress)
    except UserError as error:
        material.missing = str(error)
    if data is not None:
        material.test = target_set(run, data, **reading)
    elif material.missing:
        return material
    task, test = material.task, material.test
    if task is not None:
        # Runs of a study on one source, or on all as one, have made their own data of the task.
        if task.domains == run.domains and task.fingerprint() != run.about["data"].get("fingerprint"):
            material.notes.append("the data have changed since the run was trained: their fingerprint is another one")
        own = [source for source in task.sources if source.name in run.domains] or list(task.sources)
        few = max(int(OF_A_SOURCE * count), 3 * len(run.classes))
        for source in own:
            # A run of all sources as one domain has one set of statistics for them.
            number = run.domains.index(source.name) if source.name in run.domains else 0
            material.sources.append(_ask(material, source.name, number, source.x, source.y, few, progress=progress))
    assert task is not None or test is not None  # or else nothing could be read
    x, y = (test.x, test.y) if test is not None else (task.target.x, None)  # type: ignore[union-attr]
    items = _item_names(run, data, reading, len(x))
    target = _ask(material, run.domains[-1], len(run.domains) - 1, x, y, count, items, progress)
    material.target = target
    if isinstance(run.method, MRF):
        material.joint = _joint_by_class(run, run.method, target)
    return material


def _read(run: Run, reading: Mapping[str, Any], progress: bool) -> tuple[Task | NamedTask, EvalSet | None, list[str]]:
    """Return the task the run was trained on, its benchmark's test part if it has one, and what to know of them."""
    from graphmsda.data.task import load_task_report

    about = run.about["data"]
    then = about.get("reading") or {}
    places = {name: reading.get(name) for name in ("data_root", "variant", "cache")}
    given = then | {name: value for name, value in places.items() if value is not None}
    root, variant = given.pop("data_root", None), given.pop("variant", None) or about.get("variant")
    if "task" in about:
        named = find_task(about["task"], root=root, variant=variant, progress=progress, **given)
        return named, named.test, list(dict.fromkeys(named.notes))
    if "sources" in about:
        task, notes = load_task_report(about["sources"], about["target"], progress=progress, **given)
        return task, None, list(dict.fromkeys(notes))
    raise UserError(f"{run.path}: does not say where its data lie; give --data with labelled samples of the target")


def _item_names(run: Run, data: str | None, reading: Mapping[str, Any], count: int) -> Sequence[str] | None:
    """Return the names of the target's samples, where they came from files of the user's own and all could be read."""
    from graphmsda.data.formats import open_listing

    about = run.about["data"]
    then = about.get("reading") or {}
    place, part = (data, "test") if data is not None else (about.get("target"), "train")
    if place is None:
        return None
    how = reading if data is not None else then
    base = how.get("root")
    listing = open_listing(
        place, labelled=False, part=part, format=how.get("format"), root=Path(base) if base else None, alone=True
    )
    if len(listing) != count:
        return None
    origin = f"{listing.origin}/"
    return [name.removeprefix(origin) for name in listing.item_names]


@torch.inference_mode()
def _ask(
    material: Material,
    name: str,
    number: int,
    x: Samples,
    y: Tensor | None,
    most: int,
    items: Sequence[str] | None = None,
    progress: bool = False,
) -> Seen:
    """Ask the model about up to `most` samples of a domain, drawn at random."""
    run, method, centres = material.run, material.run.method, material.centres
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:most].sort().values
    read = method.predictor()
    parts: list[tuple[Tensor, ...]] = []
    done = 0
    with amount_bar(f"looking at {name}", len(rows), unit=material.things, enabled=progress) as show:
        for chunk in torch.split(rows, chunk_size(x.shape[1:], run.device)):
            embedding = embed(method, x[chunk].to(run.device), number).float()
            answer, scores = read(embedding)
            weights, votes, dispute = weigh(joint_of(centres, embedding))
            nearest = torch.nn.functional.one_hot(scores.argmax(1), scores.shape[1]).float()
            lean = weights if isinstance(method, MRF) else nearest
            parts.append((embedding, answer.exp().float(), lean, weights, votes, dispute))
            done += len(chunk)
            show(done)
    found = [torch.cat(column).cpu() for column in zip(*parts, strict=True)]
    return Seen(name, x, rows, None if y is None else y[rows].cpu(), items, *found)


@torch.inference_mode()
def _joint_by_class(run: Run, method: MRF, target: Seen) -> Tensor:
    """Return the mean of eqs. 18-19 over the queries of each class; NaN for a class without any."""
    label = target.best if target.y is None else target.y
    classes, domains = len(run.classes), len(run.domains)
    total = torch.zeros(classes, domains, classes, dtype=torch.float64)
    for places in torch.split(torch.arange(len(label)), 512):
        joint = method.log_joint(target.embedding[places].to(run.device)).exp().double().cpu()
        total.index_add_(0, label[places], joint)
    return total / torch.bincount(label, minlength=classes)[:, None, None]
