"""What is begun while data are read: in threads of its own, over before anything forks, and silent where it fails."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphmsda.engine import accelerate, early, kept
from graphmsda.engine.settings import Settings
from tests.engine.test_kept import needs_saving


def test_what_is_begun_early_is_done_before_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def work(*given: object, **options: object) -> None:
        time.sleep(0.2)
        done.append((given, options))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: name)
    monkeypatch.setattr(early, "_meet_gpu", work)
    monkeypatch.setattr(early, "_import_compiler", work)
    early.begin_early(Settings(steps_per_epoch=10, epochs=2))
    assert not done
    child = os.fork()
    if child == 0:
        os._exit(len(done))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert sorted(done, key=str) == [(("libcuda.so.1",), {}), ((), {"whole": False})]


@pytest.mark.parametrize("given", [{"device": "cpu"}, {"accelerate": "off"}, {"devices": 2}])
def test_nothing_is_begun_early_for_runs_without_compilation(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("looked for a GPU"))
    before = threading.active_count()
    early.begin_early(Settings(**given))
    assert threading.active_count() == before


def test_nothing_is_begun_early_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    begun: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", absent)
    monkeypatch.setattr(early, "_import_compiler", lambda **options: begun.append("compiler"))
    monkeypatch.setattr(early, "_meet_gpu", lambda driver: begun.append("GPU"))
    before = threading.active_count()
    early.begin_early(Settings())
    assert threading.active_count() == before
    assert not begun


def test_early_work_that_fails_says_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def broken(number: int) -> None:
        raise RuntimeError("no")

    early._meet_gpu(SimpleNamespace(cuInit=broken))  # type: ignore[arg-type]
    monkeypatch.setattr(early, "importlib", SimpleNamespace(import_module=broken))
    early._import_compiler(whole=True)
    assert capfd.readouterr() == ("", "")


def test_processes_that_compile_are_started_early_where_nothing_was_compiled_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch._inductor import async_compile

    begun: list[str] = []
    monkeypatch.setattr(async_compile, "maybe_warm_pool", lambda: begun.append("pool"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    early._import_compiler(whole=True)
    assert begun == ["pool"]
    assert not early.has_compiled()
    (tmp_path / "aotautograd" / "key").mkdir(parents=True)
    assert early.has_compiled()
    early._import_compiler(whole=True)
    assert begun == ["pool"]


@needs_saving
def test_processes_that_compile_are_not_started_where_functions_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch._inductor import async_compile

    begun: list[str] = []
    monkeypatch.setattr(async_compile, "maybe_warm_pool", lambda: begun.append("pool"))
    monkeypatch.setattr(accelerate, "KEEP", True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    kept.folder().mkdir()
    early._import_compiler(whole=True)
    assert begun == ["pool"]
    (kept.folder() / "move-0.bin").touch()
    early._import_compiler(whole=True)
    assert begun == ["pool"]
