"""Memory that is kept from step to step on a CPU: fewer pages to clear, all of it given back in the end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from graphmsda.engine import memory
from graphmsda.engine.memory import freed_memory_kept

BLOCK = 2**14  # pages of 4 KiB: 64 MiB, which glibc returns to the system at once when they are freed
# In a process of its own, as commands train: in one that had run many other tests, blocks were returned all the same
# (perhaps since glibc gives a thread another heap, which never holds large blocks, once it was refused memory).
SCRIPT = f"""
import json, resource, sys
from graphmsda.engine.memory import freed_memory_kept

def touch(times=6):
    "Ask for four blocks and free them so many times; return how many pages the system had to clear for it."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        [bytearray(b"x") * ({BLOCK} * 4096) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1])

before, returned = resident(), touch()
try:
    with freed_memory_kept():
        kept, inside = touch(), resident()
        if sys.argv[1] == "raise":
            raise ValueError("inside")
except ValueError:
    pass
print(json.dumps({{"returned": returned, "kept": kept, "inside": inside - before, "after": resident() - before}}))
"""


@pytest.mark.skipif(memory._glibc() is None, reason="the C library is not glibc")
@pytest.mark.parametrize("ends", ["well", "raise"])
def test_freed_memory_is_kept_and_given_back(ends: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, ends], capture_output=True, text=True, check=True)
    pages = json.loads(done.stdout)
    assert pages["returned"] > 20 * BLOCK  # else this shows nothing
    assert pages["kept"] < pages["returned"] / 2
    assert pages["inside"] > BLOCK / 2
    assert pages["after"] < BLOCK / 2


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_nothing_is_done(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert memory._glibc() is None
    with freed_memory_kept() as nothing:
        assert nothing is None
