"""Memory that is kept from step to step on a CPU: fewer pages to clear, all of it given back in the end."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
import torch

from graphmsda.engine import memory
from graphmsda.engine.memory import freed_memory_kept

PAGES = 2**14  # of 4 KiB: 64 MiB, which glibc returns to the system at once when they are freed
there = pytest.mark.skipif(memory._glibc() is None, reason="the C library is not glibc")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def touch(times: int) -> int:
    """Ask for four blocks and free them so many times; return how many pages the system had to clear for it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        [torch.ones(PAGES * 1024) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@there
def test_freed_memory_is_not_cleared_again() -> None:
    returned = touch(6)
    with freed_memory_kept():
        kept = touch(6)
    assert kept < returned / 2


@there
def test_it_is_given_back_afterwards() -> None:
    before = resident()
    with freed_memory_kept():
        touch(2)
        assert resident() - before > PAGES / 2
    assert resident() - before < PAGES / 2


@there
def test_what_is_raised_inside_changes_nothing() -> None:
    def fail() -> None:
        with freed_memory_kept():
            touch(1)
            raise ValueError("inside")

    before = resident()
    with pytest.raises(ValueError, match="inside"):
        fail()
    assert resident() - before < PAGES / 2


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_nothing_is_done(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert memory._glibc() is None
    with freed_memory_kept():
        touch(1)
