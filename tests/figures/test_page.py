"""docs/figures.md: its commands can be typed, its pictures are there and small."""

from __future__ import annotations

import re
import shlex

from graphmsda.cli import build_parser
from tests.test_docs import typed
from tests.test_readme import ROOT

PAGE = "docs/figures.md"


def test_commands_are_understood() -> None:
    commands = [shlex.split(line) for line in typed(PAGE) if line.startswith("graphmsda ")]
    assert {words[2] for words in commands if words[1] == "figure"} == {
        "adjacency", "posterior", "embedding", "curves", "sensitivity",
    }  # fmt: skip
    for words in commands:
        build_parser().parse_args(words[1:])


def test_figures_are_of_runs_that_the_page_makes() -> None:
    commands = [shlex.split(line) for line in typed(PAGE) if line.startswith("graphmsda ")]
    made = {words[words.index("--out") + 1] for words in commands if words[1] in ("fit", "tune")}
    used = {word for words in commands if words[1] == "figure" for word in words if word.startswith("runs/")}
    assert used == made


def test_pictures_are_there_and_small() -> None:
    names = re.findall(r"!\[[^]]+\]\((images/[^)]+)\)", (ROOT / PAGE).read_text(encoding="utf-8"))
    assert len(names) == 5
    for name in names:
        assert (ROOT / "docs" / name).stat().st_size < 150_000, name
