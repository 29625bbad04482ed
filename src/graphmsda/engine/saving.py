"""Checkpoints, written while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from torch import Tensor

from graphmsda import __version__
from graphmsda.files import write_tensors


class Saver:
    """Writes one checkpoint at a time to a file; what goes wrong is raised by the next call, or at the end.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Saver(Path(folder) / "state.safetensors") as saver:
    ...         saver.save({"x": torch.zeros(2)}, step=3)
    ...     (Path(folder) / "state.safetensors").is_file()
    True
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, "graphmsda-saver")
        self._last: Future[None] | None = None

    def save(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Begin to write a state; it may change once this returns."""
        self.wait()
        copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
        about = {"step": step, "graphmsda": __version__}
        self._last = self._thread.submit(write_tensors, self.path, copies, about)

    def wait(self) -> None:
        """Wait until what was begun is on disk."""
        if self._last is not None:
            last, self._last = self._last, None
            last.result()

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        finally:
            self._thread.shutdown()
