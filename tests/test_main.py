"""The process behind the command: what it waits for, what it returns."""

from __future__ import annotations

import subprocess
import sys

import pytest

THREADS = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from graphmsda.__main__ import leave
atexit.register(lambda: print("exit function"))
pool = ThreadPoolExecutor(1)
pool.submit(lambda: (time.sleep(0.2), print("job of a pool")))
threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
print("main", end=" ")  # not flushed
leave(int(sys.argv[1]))
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True)


@pytest.mark.parametrize("code", [0, 2])
def test_threads_exit_functions_and_output_are_not_lost(code: int) -> None:
    done = run("-c", THREADS, str(code))
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.split("\n") == ["main job of a pool", "thread", "exit function", ""]


def test_a_closed_pipe_is_no_error() -> None:
    text = "import os, sys\nfrom graphmsda.__main__ import leave\nsys.stdout = open(os.dup(1), 'w')\n"
    text += "r, w = os.pipe()\nos.close(r)\nos.dup2(w, sys.stdout.fileno())\nprint('lost')\nleave(0)"
    done = run("-c", text)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_is_the_command() -> None:
    done = run("-m", "graphmsda", "methods", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("graphmsda: ")
    assert done.stderr.count("\n") == 1
    helped = run("-m", "graphmsda", "--help")
    assert helped.returncode == 0
    assert "commands:" in helped.stdout
