"""Which runs a figure is of, what to call them, and the samples it shows."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmsda.domains import EvalSet, Samples
from graphmsda.engine import folder
from graphmsda.engine.settings import FREE_TO_CHANGE
from graphmsda.errors import UserError
from graphmsda.figures.style import plain, sign
from graphmsda.methods import find_method
from graphmsda.run import Run
from graphmsda.streaming import chunk_size, embed

# What tells no two runs apart for a reader: where and how fast they ran, and what follows from something else.
SILENT = (*FREE_TO_CHANGE, "parameters", "seed", "preset", "steps_per_epoch", "method")


@dataclass(frozen=True)
class Shown:
    """Samples of one domain for a figure.

    Attributes:
        name: The domain.
        number: The domain whose batch statistics read the samples.
        x: Samples.
        y: Class indices; where nobody knows them, what the first run predicts.
        guessed: Whether `y` is predicted.
    """

    name: str
    number: int
    x: Tensor
    y: Tensor
    guessed: bool = False


def run_folders(places: Sequence[Path]) -> list[Path]:
    """Return the run directories that were given or that lie below what was given, each once."""
    found: list[Path] = []
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place}: there is no such folder; give the --out of a `graphmsda fit` or of a study")
        if (place / folder.CONFIG).is_file():
            found.append(place)
            continue
        below = sorted(file.parent for file in place.rglob(folder.CONFIG))
        if not below:
            raise UserError(f"{place}: there is no run in it (no {folder.CONFIG}); give the --out of a `graphmsda fit`")
        found += below
    return list(dict.fromkeys(found))


def load_runs(places: Sequence[Path], device: str = "auto", most: int = 8) -> list[Run]:
    """Load the finished runs that were given; more than `most` panels would be legible on no page."""
    folders = run_folders(places)
    if len(folders) > most:
        raise UserError(f"{places[0]}: {len(folders)} runs were found, which make too many panels; give up to {most}")
    return [Run.load(path, device=device) for path in folders]


def name_runs(configs: Sequence[Mapping[str, Any]], given: Sequence[str] | None = None) -> list[str]:
    """Return what to call each run: its method, and what tells it from the others of that method.

    Runs that differ in nothing but their seeds have one name. Names that were `given` come first.
    """
    if given is not None:
        if len(given) != len(configs):
            raise UserError(f"--labels: {len(given)} were given for {len(configs)} runs; give one for each")
        return [plain(text) for text in given]
    settings = [config["settings"] for config in configs]
    sources = [config["data"]["domains"] for config in configs]
    targets = [domains[-1] for domains in sources]
    names = []
    for own, own_sources, target in zip(settings, sources, targets, strict=True):
        peers = [other for other in settings if other["method"] == own["method"]]
        parts = [method_title(own["method"])]
        for name, value in {**own, **own["parameters"]}.items():
            inside = name in own["parameters"]
            others = [other["parameters"].get(name) if inside else other.get(name) for other in peers]
            if (inside or name not in SILENT) and any(other != value for other in others):
                parts.append(f"{sign(name)} = {told(value)}")
        from_where = {tuple(other) for other in sources if other[-1] == target}
        parts += [f"from {plain(' + '.join(own_sources[:-1]))}"] if len(from_where) > 1 else []
        parts += [f"→ {plain(target)}"] if len(set(targets)) > 1 else []
        names.append(", ".join(parts))
    return names


def name_panels(runs: Sequence[Run], given: Sequence[str] | None = None) -> list[str]:
    """Return names of runs that are drawn apart: where two are the same, the seed or the folder is said too."""
    names = name_runs([{"settings": run.about["settings"], "data": run.about["data"]} for run in runs], given)
    if given is None:
        for more in ([f"seed {run.about['settings']['seed']}" for run in runs], [run.path.name for run in runs]):
            often = Counter(names)
            names = [
                f"{name}, {plain(text)}" if often[name] > 1 else name for name, text in zip(names, more, strict=True)
            ]
    return names


def method_title(name: str) -> str:
    """Return how a paper's table calls a method: what its description begins with, or else its name.

    >>> method_title("crf"), method_title("source-only"), method_title("of-somebody-else")
    ('CRF-MSDA', 'Source-only', 'of-somebody-else')
    """
    try:
        title, colon, _ = (inspect.getdoc(find_method(name)) or "").partition("\n")[0].partition(":")
    except UserError:
        return name
    return title if colon and len(title) <= 24 else name


def told(value: object) -> str:
    """Return a value as people write it.

    >>> told(0.30000000000000004), told(True), told(20.0)
    ('0.3', 'true', '20')
    """
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def chosen_classes(run: Run, names: Sequence[str] | None, most: int) -> list[int]:
    """Return the numbers of the classes that were named, else of the first few."""
    for name in names or ():
        if name not in run.classes:
            few = ", ".join(run.classes[:20]) + (", ..." if len(run.classes) > 20 else "")
            raise UserError(f"--classes {name}: the run {run.path} has no such class; it has {few}")
    return [run.classes.index(name) for name in dict.fromkeys(names)] if names else list(range(len(run.classes)))[:most]


def check_alike(runs: Sequence[Run], what: str) -> None:
    """Refuse runs that cannot be compared side by side because their domains or classes differ."""
    for run in runs[1:]:
        if run.classes != runs[0].classes or run.domains[-1] != runs[0].domains[-1]:
            raise UserError(
                f"{run.path}: adapts to {run.domains[-1]} with {len(run.classes)} classes, {runs[0].path} to "
                f"{runs[0].domains[-1]} with {len(runs[0].classes)}; give runs of one task for {what}"
            )


def target_set(run: Run, data: str | None = None, **reading: Any) -> EvalSet:
    """Return labelled samples of the target: `data`, or the test part of the benchmark that the run was trained on.

    Args:
        run: The run.
        data: Path of labelled data.
        reading: The flags `format`, `root`, `data_root`, `variant` and `cache` of the command line.
    """
    from graphmsda.data.formats import open_listing
    from graphmsda.data.named import find_test
    from graphmsda.data.task import Loading, build_eval_set

    then = run.about["data"].get("reading") or {}
    given = {name: reading.get(name) for name in ("data_root", "variant", "cache")}
    root, variant, cache = (value or then.get(name) for name, value in given.items())
    how: dict[str, Any] = {"cache": cache, "progress": True}
    if data is not None:
        form, base = reading.get("format"), reading.get("root")
        listing = open_listing(data, labelled=True, part="test", format=form, root=base, alone=True)
        size = run.image_size or 0
        found = build_eval_set(listing, run.domains[-1], run.classes, size, Loading(**how))
    elif "task" in run.about["data"]:
        task = run.about["data"]["task"]
        found = find_test(task, run.classes, root=root, variant=variant, image_size=run.image_size, **how)
    else:
        raise UserError(
            f"{run.path}: was trained on your own data, of which no labelled test part is known; give --data PATH with "
            "labelled samples of the target"
        )
    if list(found.x.shape[1:]) != run.about["shape"]:
        raise UserError(f"{data}: its samples are not like those the run was trained on; give data of the same kind")
    return found


def shown_domains(
    run: Run,
    names: Sequence[str] | None,
    *,
    classes: Sequence[int],
    count: int,
    seed: int = 0,
    data: str | None = None,
    **reading: Any,
) -> list[Shown]:
    """Return some samples of each of the domains named, sources first and the target last.

    The target's are of its labelled test part or of `data`; where there is neither, of what it was adapted to, with
    the classes that the run predicts.

    Args:
        run: The run whose data they are.
        names: Domains; by default the first source and the target.
        classes: Classes to take samples of.
        count: How many samples of each domain at most.
        seed: Which samples are drawn.
        data: Path of labelled data of the target.
        reading: As in `target_set`.
    """
    from graphmsda.data.named import find_task
    from graphmsda.data.task import load_task_report

    about, target = run.about["data"], run.domains[-1]
    then = about.get("reading") or {}
    # The form and folder of `data` are those of the target's labelled samples alone.
    places = {name: reading.get(name) for name in ("data_root", "variant", "cache")}
    given = then | {name: value for name, value in places.items() if value is not None}
    sources: dict[str, tuple[Samples, Tensor]] = {}
    unlabelled: Samples | None = None
    if "task" in about:
        root, variant = given.pop("data_root", None), given.pop("variant", None)
        task = find_task(about["task"], root=root, variant=variant, progress=True, **given).task
    elif "sources" in about:
        given = {name: value for name, value in given.items() if name not in ("data_root", "variant")}
        task = load_task_report(about["sources"], about["target"], progress=True, **given)[0]
        unlabelled = task.target.x
    else:
        raise UserError(f"{run.path}: does not say where its data lie; give a run of `graphmsda fit`")
    sources = {source.name: (source.x, source.y) for source in task.sources}
    chosen = list(dict.fromkeys(names)) if names else [next(iter(sources)), target]
    for name in chosen:
        if name not in (*sources, target):
            raise UserError(f"--domains {name}: there is no such domain; choose from {', '.join([*sources, target])}")
    found = []
    for name in sorted(chosen, key=lambda name: name == target):
        guessed = False
        if name != target:
            x, y = sources[name]
            # A run of all sources as one domain has one set of statistics for them.
            number = run.domains.index(name) if name in run.domains else 0
        elif unlabelled is not None and data is None:
            number, guessed = len(run.domains) - 1, True
            x = unlabelled[torch.randperm(len(unlabelled), generator=torch.Generator().manual_seed(seed))[: 10 * count]]
            with torch.inference_mode():
                y = run.method.predict(embed_samples(run, x).to(run.device)).argmax(1).cpu()
        else:
            test = target_set(run, data, **reading)
            x, y, number = test.x, test.y, len(run.domains) - 1
        rows = _draw(y, classes, count, seed)
        if len(rows) == 0:
            raise UserError(f"{name}: has no sample of the classes asked for; choose other --classes")
        found.append(Shown(name, number, x[rows], y[rows], guessed))
    return found


def embed_samples(run: Run, x: Tensor, domain: int = -1) -> Tensor:
    """Embed samples as the run reads a domain: ``(N, ...) -> (N, d)``."""
    with torch.inference_mode():
        chunks = torch.split(x, chunk_size(x.shape[1:], run.device))
        return torch.cat([embed(run.method, chunk.to(run.device), domain).cpu() for chunk in chunks])


def _draw(y: Tensor, classes: Sequence[int], count: int, seed: int) -> Tensor:
    """Return the places of up to `count` samples, of each class as many as of any other while there are some."""
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    of_class = [shuffled[y[shuffled] == number] for number in classes]
    turns = [(turn, place) for rows in of_class for turn, place in enumerate(rows.tolist())]
    return torch.tensor(sorted(place for _, place in sorted(turns)[:count]), dtype=torch.int64)
