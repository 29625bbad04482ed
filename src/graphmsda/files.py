"""Files that are either whole or not there: written beside, synced, renamed."""

from __future__ import annotations

import errno
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmsda.errors import UserError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
}  # fmt: skip


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
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            raise UserError(f"{path}: cannot be written ({str(error.strerror).lower()}); {remedy}") from error
        raise


@contextmanager
def replacing(path: Path, remedy: str = "choose another --out") -> Iterator[Path]:
    """Give a path beside `path` to write to; on success it takes `path`'s place in one move, else it is removed."""
    beside = path.with_name(f".{secrets.token_hex(8)}.part")  # threads of one process may write the same file
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


def create_text(path: Path, text: str) -> bool:
    """Write a text file whole unless there is one, and return whether this call made it: of several, one does."""
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{secrets.token_hex(8)}.part")
        beside.write_text(text, encoding="utf-8")
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links: whole but for a kill in this very moment
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                return False
        finally:
            beside.unlink()
    return True


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None) -> None:
    """Write tensors (safetensors) and a JSON-able description of them into one file.

    The library's own function makes two copies of everything first, during which no other thread can run: half a
    second without a training step for each gigabyte.
    """
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    names = sorted(plain, key=lambda name: (-plain[name].dtype.itemsize, name))  # so that each lies at a round address
    header: dict[str, Any] = {"__metadata__": {"about": json.dumps(about or {})}}
    place = 0
    for name in names:
        tensor = plain[name]
        end = place + tensor.nbytes
        header[name] = {"dtype": _KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with replacing(path) as beside, beside.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            file.write(plain[name].view(-1).view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 - no iterator
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{path} could not be read ({error}); the file is damaged or not one of graphmsda's") from error
