"""Whether kernels written in Triton can be built and run on this machine.

Both answers are found on import, because `torch.compile` cannot trace the questions.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import torch

TRITON = find_spec("triton") is not None  # looked for, not imported: that takes long, and only GPUs need it


def usable() -> bool:
    """Whether Triton can build kernels here: it needs a C compiler and compute capability 7."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    gpus = range(torch.cuda.device_count())
    return compiler is not None and all(torch.cuda.get_device_capability(gpu) >= (7, 0) for gpu in gpus)
