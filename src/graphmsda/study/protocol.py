"""The three standards of the paper's tables (Sec. 5.1): what a method is given to train on, and which run is reported.

- *Single best*: one run for each source. The one reported is chosen without target labels (`best_source`), and beside
  it, in a column named oracle, by the accuracy on the target, as the paper does.
- *Source combine*: all sources as one domain.
- *Multi-source*: the sources as they are.

In all of them a source image is met as often: an epoch of *single best* has as many steps as one of *multi-source*, and
one of *source combine* is a pass over all sources.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphmsda.domains import Domain, Samples, Task
from graphmsda.errors import UserError
from graphmsda.methods import METHODS, find_method
from graphmsda.rehearsal import rehearsals
from graphmsda.study.scoring import is_higher_better, read_score

STANDARDS = ("single-best", "source-combine", "multi-source")
TITLES = {"single-best": "Single best", "source-combine": "Source combine", "multi-source": "Multi-source"}
REHEARSAL = "rehearsal"  # no standard: one of the sources plays the target, whose samples are not touched
COMBINED = "all sources"  # name of the one domain of source combine
MOST_COPIED = 2**31  # bytes of sources that are copied into one tensor; more are joined row by row

# Methods of one source; all others are of several. A class may say so itself: `standards = ("multi-source",)`.
ONE_SOURCE = ("dan", "coral", "dann", "adda", "jan", "rtn", "mcd")
BOTH = ("source-only", "adabn")


def standards_of(method: str) -> tuple[str, ...]:
    """Return the standards under which the paper's tables have a method, or methods of its kind.

    >>> standards_of("source-only") == STANDARDS, standards_of("mrf")
    (True, ('multi-source',))
    """
    declared = getattr(find_method(method), "standards", None)
    if declared:
        return tuple(standard for standard in STANDARDS if standard in declared)
    if method in BOTH:
        return STANDARDS
    return STANDARDS[:2] if method in ONE_SOURCE else STANDARDS[2:]


def all_methods(names: Sequence[str]) -> list[str]:
    """Return the methods named, each once; ``all`` stands for those of this package."""
    found = [each for name in names for each in (METHODS if name == "all" else [name])]
    for name in found:
        find_method(name)
    return list(dict.fromkeys(found))


def stage(task: Task, standard: str, source: str | None = None) -> Task:
    """Return what is trained on under a standard; `source` is the one of single best, or that plays the target."""
    if standard == "multi-source":
        return task
    if standard == REHEARSAL:
        return rehearsals(task, {}, [str(source)])[0].task
    if standard == "source-combine":
        x = _join([domain.x for domain in task.sources])
        merged = Domain(COMBINED, x, torch.cat([domain.y for domain in task.sources]))
        return Task((merged,), task.target, task.classes, task.feature_names)
    chosen = tuple(domain for domain in task.sources if domain.name == source)
    if not chosen:
        known = ", ".join(domain.name for domain in task.sources)
        raise UserError(f"single best: there is no source {source!r}; choose one of {known}")
    return Task(chosen, task.target, task.classes, task.feature_names)


def read_as(standard: str, source: str) -> str:
    """Return the domain as which a run of a standard reads held-out images of a source."""
    return COMBINED if standard == "source-combine" else source


def steps_of(task: Task, standard: str, batch_size: int) -> int:
    """Return the steps of an epoch under a standard, where none were asked for; 0 leaves them to the engine.

    A source alone takes as many as all together would: as long as one pass over the largest of them.
    """
    return max(1, max(len(domain.y) for domain in task.sources) // batch_size) if standard == "single-best" else 0


def best_source(rows: Sequence[Mapping[str, Any]], *, oracle: bool = False, score: str = "information") -> str | None:
    r"""Return the source whose runs are reported for one method and target; None where there are no runs.

    Without target labels it is the one whose predictions on the target tell most of the input (Bridle et al., NIPS
    1991; Shi and Sha, ICML 2012), on average over seeds:

    .. math:: I = H(\bar p) - \tfrac1N \sum_i H(p_i), \qquad \bar p = \tfrac1N \sum_i p_i

    A source's held-out accuracy would not do: it says how easy the source is, not how near to the target. Nor would
    what ranks runs of all sources best, which may prefer a run that predicts one class for everything
    (docs/selection.md).

    Args:
        rows: Results of the method on the target, of any sources and seeds.
        oracle: Choose by the accuracy on the target.
        score: Choose by another of `graphmsda.selection.SCORES`.
    """
    return best_of([(row["source"], row) for row in rows], oracle=oracle, score=score)


def best_of(
    rows: Sequence[tuple[str, Mapping[str, Any]]], *, oracle: bool = False, score: str = "information"
) -> str | None:
    """Return the name whose runs are best on average; None where there are none, or a run lacks the score.

    Args:
        rows: Names, each with a run.
        oracle: Judge by the accuracy on the target.
        score: Judge by one of `graphmsda.selection.SCORES`.
    """
    found: dict[str, list[float]] = {}
    for name, row in rows:
        value = row["accuracy"] if oracle else read_score(row, score)
        if value is None:
            return None
        found.setdefault(name, []).append(value)
    sign = 1 if oracle or is_higher_better(score) else -1
    return max(found, key=lambda name: sign * statistics.fmean(found[name])) if found else None


class Joined:
    """Samples of several domains one after the other, read where they lie: ``joined[rows]`` is a tensor.

    Args:
        parts: Samples of one shape and type.
    """

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts = tuple(parts)
        self.shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        self.dtype = parts[0].dtype
        self._ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    @property
    def digest(self) -> str:
        """Hash of all samples."""
        from graphmsda.domains import digest_of

        return hashlib.blake2b(repr([digest_of(part) for part in self.parts]).encode(), digest_size=12).hexdigest()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        chosen = torch.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        of = torch.bucketize(chosen, self._ends, right=True)
        found = torch.empty((len(chosen), *self.shape[1:]), dtype=self.dtype)
        for number, part in enumerate(self.parts):
            places = (of == number).nonzero()[:, 0]
            if len(places):
                found[places] = part[chosen[places] - (self._ends[number] - len(part))]
        return found


def _join(parts: Sequence[Samples]) -> Samples:
    size = sum(len(part) for part in parts) * parts[0].dtype.itemsize * torch.Size(parts[0].shape[1:]).numel()
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return torch.cat(tensors) if len(tensors) == len(parts) and size <= MOST_COPIED else Joined(parts)
