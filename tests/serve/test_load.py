"""The load test at a small size: nothing is lost, mixed up or left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.test_readme import ROOT


@pytest.mark.slow
def test_some_seconds_of_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import serve

    out = tmp_path / "serve.json"
    flags = ["--minutes", "0.1", "--clients", "3", "--images", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["serve.py", *flags])
    assert serve.main() == 0
    (run,) = json.loads(out.read_text())["runs"]
    (row,) = run["rows"]
    assert row["requests"] > 20
    assert (row["errors"], row["lost"], row["exit code after SIGTERM"]) == (0, 0, 0)
    assert row["threads at start, end"][0] == row["threads at start, end"][1]
