"""``python -m graphmsda`` is the command, and so is ``graphmsda``."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from graphmsda.garbage import garbage_left


def run() -> NoReturn:
    """Run what was typed and leave."""
    with garbage_left():
        from graphmsda.cli import main
    leave(main())


def leave(code: int) -> NoReturn:
    """End this process as Python does, but for taking apart every module and object, which with PyTorch takes a second.

    Threads are waited for and exit functions called first, as always.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads any more, or it is closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
