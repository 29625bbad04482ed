"""Memory that training on a CPU frees and asks for again in every step."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Parameters of glibc's mallopt(3).
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
LARGEST = 2**31 - 1
# What the library itself arrives at in a process that frees large blocks: its largest threshold for blocks of their
# own, and twice that at the end of the heap.
USUAL = {MMAP_MAX: 65536, MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26}


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep what is freed for the next request inside, and give it back to the system afterwards.

    Large tensors are blocks of their own to the system's allocator, which returns each at once: the next step gets
    fresh pages, and the system clears every one of them when it is first touched. At the shape of Digits-five these are
    200,000 pages a step and a third of its time. Only glibc is told; elsewhere nothing changes, nor in threads but the
    first, whose heaps never hold large blocks.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, LARGEST)
    try:
        yield
    finally:
        for parameter, value in USUAL.items():
            library.mallopt(parameter, value)
        library.malloc_trim(0)


def _glibc() -> Any:
    """Return the C library if it is glibc, else None."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None
