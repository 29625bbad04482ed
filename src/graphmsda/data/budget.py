"""Room in memory that threads share: large pictures wait for each other, small ones do not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Budget:
    """An amount that may be spent at any one time."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._renew()
        if hasattr(os, "register_at_fork"):  # a lock held by another thread stays locked for ever in a fork
            os.register_at_fork(after_in_child=self._renew)

    @contextmanager
    def spending(self) -> Iterator[Callable[[int], None]]:
        """Yield a function to call once the amount is known: it waits until so much, or all there is, is free.

        What was spent is free again at the end.
        """
        spent = 0

        def spend(amount: int) -> None:
            nonlocal spent
            amount = min(amount, self.total)
            with self._changed:
                self._changed.wait_for(lambda: self._free >= amount)
                self._free -= amount
            spent += amount

        try:
            yield spend
        finally:
            with self._changed:
                self._free += spent
                self._changed.notify_all()

    def _renew(self) -> None:
        self._changed = threading.Condition()
        self._free = self.total
