"""Time of `import graphmsda` against `import torch`, in fresh interpreters, turn by turn; prints the ratio."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

REPEATS = 7


def seconds(module: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - begin


def ratio() -> float:
    for module in ("torch", "graphmsda"):
        seconds(module)  # the first import reads the disk
    pairs = [(seconds("torch"), seconds("graphmsda")) for _ in range(REPEATS)]
    torch_time, own_time = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"import torch {torch_time:.2f} s, import graphmsda {own_time:.2f} s, ratio {own_time / torch_time:.2f}")
    return own_time / torch_time


if __name__ == "__main__":
    sys.exit(ratio() >= 1.5)
