"""Python's search for cyclic garbage, put off while there can be none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_left() -> Iterator[None]:
    """Leave cyclic garbage where it is while very many objects are made that are none.

    Python looks for it after every few hundred new objects, going over all others now and then: as long as listing
    a hundred thousand members takes, and a fifth of the time of importing PyTorch.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
