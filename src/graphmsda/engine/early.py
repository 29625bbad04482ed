"""What a run on a GPU can begin while its data are read: it takes seconds and depends on none of them."""

from __future__ import annotations

import ctypes
import importlib
import threading
from contextlib import suppress
from pathlib import Path

import torch

from graphmsda.engine import accelerate
from graphmsda.engine.kept import has_kept
from graphmsda.engine.settings import Settings
from graphmsda.forked import wait_before_forks
from graphmsda.garbage import garbage_left


def begin_early(settings: Settings) -> None:
    """Begin to meet the GPU and to import the compiler.

    What goes wrong here is told when the same is done in earnest.

    Args:
        settings: Of the run; they need not be resolved. How long an epoch is may be unknown: then it is taken for long.
    """
    if settings.accelerate == "off" or settings.device == "cpu" or settings.devices * settings.nodes > 1:
        return
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # no GPU of this kind
        return
    long = settings.steps_per_epoch == 0 or settings.steps >= accelerate.WORTH_COMPILING
    for work in (lambda: _meet_gpu(driver), lambda: _import_compiler(whole=long)):
        # No daemon: a process that ends while one is inside a library crashes.
        thread = threading.Thread(target=work, name="graphmsda-early")
        thread.start()
        wait_before_forks(thread)


def _meet_gpu(driver: ctypes.CDLL) -> None:
    with suppress(Exception):
        driver.cuInit(0)  # in this way other threads can go on meanwhile, which PyTorch would not let them
        x = torch.zeros(8, 8, 8, 8, device="cuda", dtype=torch.bfloat16)
        torch.nn.functional.conv2d(x, x)  # loads what convolutions and products are made with
        torch.mm(x[0, 0], x[0, 0])


def _import_compiler(*, whole: bool) -> None:
    with suppress(Exception), garbage_left():
        importlib.import_module("torch._dynamo")  # which optimisers need even where nothing is compiled
        if whole and threading.main_thread().is_alive():  # a user's mistake may have ended it
            if accelerate.KEEP and has_kept():
                importlib.import_module("torch._inductor.select_algorithm")  # what is kept imports this, and no more
                return
            if not has_compiled():
                from torch._inductor.async_compile import maybe_warm_pool

                maybe_warm_pool()  # starts processes that compile, each of which imports PyTorch
            importlib.import_module("torch._inductor.compile_fx")
            from torch._inductor.codecache import CacheBase, torch_key

            torch_key()  # these read all of PyTorch and Triton, once for a process, to tell their versions apart
            CacheBase.get_system()


def has_compiled() -> bool:
    """Whether anything that was compiled lies where PyTorch keeps it: then what is needed now is likely among it.

    Where it is not, processes that compile are started when there is something to compile.
    """
    from torch._inductor.runtime.runtime_utils import cache_dir  # type: ignore[attr-defined]

    kept = Path(cache_dir()) / "aotautograd"
    return kept.is_dir() and any(kept.iterdir())
