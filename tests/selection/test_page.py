"""docs/selection.md: its commands can be typed, and it says of each score what the code says."""

from __future__ import annotations

import re
import shlex

from graphmsda.cli import build_parser
from graphmsda.selection import SCORES
from graphmsda.selection.combination import ERRORS
from tests.test_docs import typed
from tests.test_readme import ROOT

PAGE = "docs/selection.md"


def test_commands_are_understood() -> None:
    commands = [shlex.split(line) for line in typed(PAGE) if line.startswith("graphmsda ")]
    assert {words[1] for words in commands} == {"fit", "evaluate", "tune", "select", "figure"}
    for words in commands:
        build_parser().parse_args(words[1:])


def test_every_score_has_its_verdict() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    for name in (*SCORES, "estimate"):
        assert re.search(rf"^\| {name} \|.*\| (use|with care|do not use) \|$", text, re.MULTILINE), name
    for name in ERRORS:
        assert name.replace("-", " ") in text


def test_picture_is_there_and_small() -> None:
    (name,) = re.findall(r"!\[[^]]+\]\((images/[^)]+)\)", (ROOT / PAGE).read_text(encoding="utf-8"))
    assert (ROOT / "docs" / name).stat().st_size < 150_000
