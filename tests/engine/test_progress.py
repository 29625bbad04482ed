"""What is shown while training runs, where standard error is a terminal, a file, or not wanted."""

from __future__ import annotations

import re
import sys

import pytest

from graphmsda.engine import progress
from graphmsda.engine.progress import progress_bar


def test_disabled_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar(10, 0, "mrf -> chalk", enabled=False) as tell:
        tell(1)
        tell(10, {"source": 0.5})
    assert capfd.readouterr() == ("", "")


def test_a_file_gets_lines_with_terms_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress_bar(100, 20, "mrf -> chalk", enabled=True) as tell:
        tell(25)
        clock[0] = 5.0
        tell(30, {"source": 3.0})  # too soon for another line
        clock[0] = 12.0
        tell(50)  # nothing new to tell
        tell(60, {"source": 0.51234, "entropy": 12.0})
        clock[0] = 13.0
        tell(61, {"source": 0.1})
        tell(100, {"source": 0.25, "entropy": 1e-5})
    out, err = capsys.readouterr()
    assert out == ""
    first, last = err.splitlines()
    # 40 of the 80 steps left when it began took 12 s
    assert first == "mrf -> chalk: step 60/100, 12 s left, source 0.512 entropy 12"
    assert last == "mrf -> chalk: step 100/100, 0 s left, source 0.25 entropy 1e-05"


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar(100, 20, "mrf -> chalk [new]", enabled=True) as tell:
        tell(60, {"source": 0.51234})
        tell(100)
    out, err = capsys.readouterr()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err)
    assert out == ""
    assert "100/100" in shown
    assert "source 0.512" in shown
    assert "mrf -> chalk [new]" in shown  # a name is shown as it is, not read as markup


def test_nothing_left_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(10, 10, "crf -> neon", enabled=True) as tell:
        tell(10, {"source": 1.0})
    assert "step 10/10, 0 s left" in capsys.readouterr().err
