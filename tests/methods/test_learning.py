"""Every method learns: on the embedded data none falls behind Source-only, and what its paper claims shows.

The grid takes about half an hour on two cores, so it is marked slow. A folder named in ``GRAPHMSDA_LEARNING_STUDY``
keeps it: a stopped test goes on there, and `graphmsda study show` prints it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import pytest

from graphmsda.methods import METHODS
from graphmsda.study.data import Data
from graphmsda.study.executors import choose_executor
from graphmsda.study.grids import table_cells
from graphmsda.study.run import run_study

TARGETS = ("neon", "texture", "chalk")
SEEDS = (0, 1)
BEHIND = 0.01  # what a method may lose to Source-only
# Of two methods that both adapt, what the one that should win may lose to the other: the mean over three targets with
# 115 to 124 test images each and two seeds has a standard error of more than a point.
NOISE = 0.02

# Each was published as better than training on the sources alone.
ABOVE_SOURCE_ONLY = tuple(name for name in METHODS if name != "source-only")
# The first was published as better than the second. MRF+ has no paper: above Source-only is all that is asked of it.
ABOVE = (
    ("jan", "dan"),
    ("rtn", "dan"),
    ("mcd", "dann"),
    ("m3sda-beta", "m3sda"),
    ("meta-mcd", "mcd"),
    ("crf", "m3sda"),
    ("mrf", "m3sda"),
    ("mrf", "crf"),
)


@pytest.fixture(scope="module")
def accuracy(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, float]:
    """Return each method's accuracy on the targets' test parts, averaged over targets and seeds."""
    out = Path(os.environ.get("GRAPHMSDA_LEARNING_STUDY") or tmp_path_factory.mktemp("learning") / "study")
    data, settings = Data("demo"), {"backbone": "small", "epochs": 20, "device": "cpu"}
    cells = table_cells(data, list(METHODS), TARGETS, SEEDS, settings, standards=("multi-source",))
    study = run_study(out, "table", data, cells, executor=choose_executor(2), jobs=2)
    assert not study.errors
    return {
        method: mean(study.rows[cell.path]["accuracy"] for cell in cells if cell.method == method) for method in METHODS
    }


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_every_method_learns_and_keeps_what_its_paper_claims(accuracy: Mapping[str, float]) -> None:
    """One test, for the grid is made once; what fails is told together."""
    shown = {method: round(100 * value, 1) for method, value in accuracy.items()}
    behind = [method for method in METHODS if accuracy[method] < accuracy["source-only"] - BEHIND]
    assert behind == [], shown
    no_gain = [method for method in ABOVE_SOURCE_ONLY if accuracy[method] <= accuracy["source-only"]]
    lost = [(one, other) for one, other in ABOVE if accuracy[one] < accuracy[other] - NOISE]
    assert [*no_gain, *lost] == [], shown


def test_the_claims_are_about_methods_that_there_are() -> None:
    assert {name for pair in ABOVE for name in pair} <= set(METHODS)
    assert all(one != other for one, other in ABOVE)
