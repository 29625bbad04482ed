"""Files that are either whole or not there: written beside, synced, renamed."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from graphmsda.errors import UserError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def explain_write_errors(path: Path, remedy: str = "choose another --out") -> Iterator[None]:
    """Turn a full disk or a forbidden folder into one sentence, with a `remedy` for the latter."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise UserError(f"{path}: no room left to write; free some space and run the same command again") from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise UserError(f"{path}: not allowed to write there; {remedy}") from error
        if isinstance(error, NotADirectoryError | FileExistsError | IsADirectoryError):
            raise UserError(f"{path}: a file or folder is in the way ({error.filename}); {remedy}") from error
        raise


@contextmanager
def replacing(path: Path, remedy: str = "choose another --out") -> Iterator[Path]:
    """Give a path beside `path` to write to; on success it takes `path`'s place in one move, else it is removed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with explain_write_errors(path, remedy):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield beside
            with beside.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(beside, path)
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    if sys.platform == "win32":  # folders cannot be opened there
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str, remedy: str = "choose another --out") -> None:
    """Write a text file whole."""
    with replacing(path, remedy) as beside:
        beside.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None) -> None:
    """Write tensors (safetensors) and a JSON-able description of them into one file."""
    from safetensors.torch import save

    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    content = save(plain, metadata={"about": json.dumps(about or {})})
    with replacing(path) as beside:
        beside.write_bytes(content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 - no iterator
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{path} could not be read ({error}); the file is damaged or not one of graphmsda's") from error
