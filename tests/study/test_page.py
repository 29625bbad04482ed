"""What docs/studies.md tells a user to type, run as it stands there but for its length."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from graphmsda.cli import build_parser, main
from graphmsda.study.attempts import BEAT, PATIENCE
from graphmsda.study.work import MOST_LOST
from tests.study.test_commands import FLAGS
from tests.test_cli import make_domain
from tests.test_readme import ROOT, blocks

# Whole runs take minutes: what is added to a command so that it takes a second.
SHORTER = {name: [*FLAGS, "--epochs", "1", "--steps-per-epoch", "1", "--backbone", "small"] for name in
           ("table", "ablation", "sensitivity", "search")}  # fmt: skip
SHORTER["search"] += ["--trials", "2"]
SHORTER["table"] += ["--seeds", "0"]
SHORTER["timing"] = ["--iterations", "1", "--repeats", "1", "--backbone", "small", "--batch-size", "2"]
SHORTER["timing"] += ["--device", "cpu"]


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = []  # in place of the demo's five domains
    for number, name in enumerate(("plain", "neon", "chalk", "a", "b", "c")):
        make_domain(tmp_path / "data" / name, 20 + 30 * number, seed=number, count=4)
        small += [f"data/{name}"] if number < 3 else []
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("docs/studies.md", "sh") for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line)[1:] for line in lines]
    assert [words[1] for words in commands] == [
        "table", "ablation", "sensitivity", "search", "timing", "show", "table", "ablation", "show", "search", "table",
        "table", "table",
    ]  # fmt: skip
    for words in commands:
        if "ray" in words:  # of which test_ray.py has a cluster
            assert build_parser().parse_args(words).gpus_per_run == 0.25
            continue
        if "demo" in words:
            place = words.index("demo")
            words[place - 1 : place + 1] = ["--domains", *small]
        more = SHORTER.get(words[1], [])
        more = more + (["--targets", "neon", "--methods", "mrf"] if "chalk" in words else [])
        more = more + (
            ["--targets", "neon", "--search", "1", "--standards", "multi-source"] if "--search" in words else []
        )
        assert main([*words, *more]) == 0, words
        assert capsys.readouterr().out
    (code,) = blocks("docs/studies.md", "python")
    exec(compile(code, "docs/studies.md", "exec"), {})
    assert capsys.readouterr().out.count(": ") == 4
    for file in ("study.json", "cells/multi-source/neon/mrf/seed0/cell.json", "runs/multi-source/neon/mrf/seed0/"):
        assert file in (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
        assert (tmp_path / "studies" / "demo" / file).exists()
    for file in ("trials/neon/trial-1.json", "recipes/neon/mrf.yaml"):
        assert f"studies/best/{file}" in (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
        assert (tmp_path / "studies" / "best" / file).exists()


def test_numbers_on_the_page() -> None:
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    assert f"every {BEAT:.0f} seconds" in page
    assert f"still for {PATIENCE:.0f} seconds" in page
    assert MOST_LOST == 3
