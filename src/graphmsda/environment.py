"""What a process runs on, for the record."""

from __future__ import annotations

import os
import platform

import torch


def hardware() -> str:
    """Return the machine in words: its kind, its cores and its GPU, if it has one."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return f"{machine}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else machine


def environment() -> dict[str, str]:
    """Return versions and hardware, by words that can stand before them."""
    return {"PyTorch": str(torch.__version__), "Python": platform.python_version(), "on": hardware()}
