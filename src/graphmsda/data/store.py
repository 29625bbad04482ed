"""Decoded once: pictures at the size asked for, in a folder of files that later runs map into memory.

An entry of the cache holds one listing at one size: ``samples.bin`` and ``about.json``. The samples are raw uint8 where
all of them take up to 1 GiB, else JPEG of quality 95 without chroma subsampling, with ``offsets.npy``. There are no
labels in it. Its name is a hash of the listing's content and the settings, so an entry is either right or not there.

It is built beside and moved into place, under a lock: a killed build leaves nothing that could be mistaken for an
entry, and of two processes that want the same one the second waits and reads what the first has made.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from graphmsda import __version__
from graphmsda.data.decoding import decode_in_order
from graphmsda.data.encoded import Encoded
from graphmsda.data.images import Decoded
from graphmsda.data.listing import Listing, Subset, digest_of
from graphmsda.errors import UserError
from graphmsda.files import NO_ROOM, write_text

FORMAT = 1
QUALITY = 95
# Bytes that pictures may take uncompressed: reading a raw picture of 224 pixels a side is a copy of 150 kB, while
# decoding it from JPEG takes about as long as decoding the original of that size did.
LARGEST_RAW = 2**30
ABOUT, SAMPLES, OFFSETS = "about.json", "samples.bin", "offsets.npy"

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Stored:
    """A listing, decoded.

    Attributes:
        x: uint8 ``(N, 3, size, size)``: a mapped tensor, or pictures that are decoded as they are asked for.
        kept: The item of the listing behind each row.
        failures: Item and reason of each picture that could not be read.
        notes: What the user should know, a sentence each.
    """

    x: Tensor | Encoded
    kept: list[int]
    failures: list[tuple[int, str]]
    notes: list[str]


def cache_folder(given: str | Path | None = None) -> Path:
    """Return where entries lie: as given, else ``$GRAPHMSDA_CACHE``, else ``graphmsda`` in the user's cache folder."""
    named = given or os.environ.get("GRAPHMSDA_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "graphmsda"


def open_store(
    listing: Listing, image_size: int, *, cache: str | Path | None = None, advance: Advance = lambda count: None
) -> Stored:
    """Return the pictures of `listing` at `image_size`, decoding them if no entry of the cache holds them yet.

    Args:
        listing: Pictures.
        image_size: Side in pixels.
        cache: Folder of the cache; ``none`` decodes into a temporary folder that goes with this process.
        advance: Called with the number of pictures that were dealt with since the last call.
    """
    folder = _temporary() if cache == "none" else cache_folder(cache)
    name = _entry_name(listing, image_size)
    notes: list[str] = []
    if not (folder / name / ABOUT).is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            notes.append(
                f"{folder}: the cache cannot be written ({error.strerror}), so pictures are decoded for this run only; "
                "choose another folder with --cache"
            )
            folder = _temporary()
        with _locked(folder / f"{name}.lock", listing):
            if not (folder / name / ABOUT).is_file():
                notes += _drop_stale(folder, listing)
                _build(listing, image_size, folder, name, advance)
                advance = lambda count: None  # noqa: E731 - they have been counted
    stored = _open(folder / name, listing, notes)
    advance(len(listing))
    return stored


def _entry_name(listing: Listing, image_size: int) -> str:
    kind = f"jpeg-{QUALITY}" if _is_compressed(listing, image_size) else "raw"
    plain = re.sub(r"[^A-Za-z0-9]+", "-", listing.name).strip("-")[:40] or "domain"
    return f"{plain}-{digest_of(FORMAT, kind, image_size, listing.identity())[:16]}"


def _is_compressed(listing: Listing, image_size: int) -> bool:
    return len(listing) * 3 * image_size**2 > LARGEST_RAW


def _open(path: Path, listing: Listing, notes: list[str]) -> Stored:
    again = f"remove the folder {path} to have it decoded anew"
    try:
        about: dict[str, Any] = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        if about["format"] > FORMAT:
            raise UserError(
                f"{path}: written by a newer graphmsda (format {about['format']}, this one reads {FORMAT}); "
                "upgrade graphmsda or choose another folder with --cache"
            )
        shape, failures = tuple(about["shape"]), [(int(item), str(reason)) for item, reason in about["failures"]]
        if about["count"] != len(listing) or shape[0] != len(listing) - len(failures):
            raise ValueError("counts differ")
        x = _map_samples(path, shape, str(about["digest"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: this entry of the cache is damaged ({error}); {again}") from error
    with suppress(OSError):
        os.utime(path / ABOUT)  # when it was last used
    failed = {item for item, _ in failures}
    return Stored(x, [item for item in range(len(listing)) if item not in failed], failures, notes)


def _map_samples(path: Path, shape: tuple[int, ...], digest: str) -> Tensor | Encoded:
    size = (path / SAMPLES).stat().st_size
    if (path / OFFSETS).is_file():
        offsets = np.load(path / OFFSETS, allow_pickle=False)
        if offsets.shape != (shape[0] + 1,) or int(offsets[-1]) != size:
            raise ValueError(f"{SAMPLES} has {size} bytes, not {int(offsets[-1])}")
        return Encoded(path / SAMPLES, offsets, shape, digest)
    if size != int(np.prod(shape)):
        raise ValueError(f"{SAMPLES} has {size} bytes, not {int(np.prod(shape))}")
    if size == 0:
        return torch.empty(shape, dtype=torch.uint8)
    # Copy on write: torch has no read-only tensors, and nobody may write to the file through one.
    return torch.from_numpy(np.memmap(path / SAMPLES, np.uint8, mode="c", shape=shape))


def _build(listing: Listing, image_size: int, folder: Path, name: str, advance: Advance) -> None:
    """Decode everything into a folder beside, then move it into place."""
    for leftover in folder.glob(f"{name}.*.part"):  # the lock is ours, so whoever wrote these is gone
        remove(leftover)
    beside = folder / f"{name}.{os.getpid()}.part"
    try:
        beside.mkdir()
        about = _write_samples(listing, image_size, beside, advance)
        write_text(beside / ABOUT, json.dumps(about, ensure_ascii=False) + "\n")
        os.rename(beside, folder / name)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise UserError(
            f"{folder}: no room left for the decoded pictures of {listing.origin}; free some space or choose another "
            "folder with --cache"
        ) from error
    finally:
        remove(beside)


def _write_samples(listing: Listing, image_size: int, folder: Path, advance: Advance) -> dict[str, Any]:
    encode = _is_compressed(listing, image_size)
    failures: list[tuple[int, str]] = []
    offsets = [0]
    digest = hashlib.blake2b(digest_size=16)
    with (folder / SAMPLES).open("wb") as file:
        for start, samples, failed, count in decode_in_order(listing, image_size, _to_jpeg if encode else _to_bytes):
            for sample in samples:
                file.write(sample)
                digest.update(sample)
                offsets.append(offsets[-1] + len(sample))
            failures += [(start + position, reason) for position, reason in failed]
            advance(count)
        file.flush()
        os.fsync(file.fileno())
    if encode:
        np.save(folder / OFFSETS, np.asarray(offsets, dtype=np.int64))
    return {
        "format": FORMAT,
        "graphmsda": __version__,
        "origin": os.path.abspath(listing.origin),
        "content": _whole(listing).identity(),
        "count": len(listing),
        "shape": [len(listing) - len(failures), 3, image_size, image_size],
        "failures": failures,
        "digest": digest.hexdigest(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }


def _to_bytes(decoded: Decoded) -> list[bytes]:
    return [row.tobytes() for row in decoded.x.numpy()]


def _to_jpeg(decoded: Decoded) -> list[bytes]:
    result = []
    for row in decoded.x.numpy():
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(row.transpose(1, 2, 0))).save(
            buffer, "JPEG", quality=QUALITY, subsampling=0
        )
        result.append(buffer.getvalue())
    return result


def _whole(listing: Listing) -> Listing:
    return listing.whole if isinstance(listing, Subset) else listing


def _drop_stale(folder: Path, listing: Listing) -> list[str]:
    """Remove entries made from the same place when it held something else."""
    origin, content = os.path.abspath(listing.origin), _whole(listing).identity()
    notes = []
    for path in folder.iterdir():
        try:
            about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
            stale = about["format"] <= FORMAT and about["origin"] == origin and about["content"] != content
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if stale:
            remove(path)
            notes = [f"{listing.origin}: changed since it was last decoded, so it is decoded anew"]
    return notes


@contextmanager
def _locked(path: Path, listing: Listing) -> Iterator[None]:
    """Hold an entry against other processes that would build it too."""
    with path.open("w") as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"graphmsda: waiting for another process that decodes {listing.origin}", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def _temporary() -> Path:
    """Return a folder that goes with this process."""
    import atexit

    path = Path(tempfile.mkdtemp(prefix="graphmsda-"))
    owner = os.getpid()

    def clean() -> None:
        if os.getpid() == owner:  # forked processes leave too
            remove(path)

    atexit.register(clean)
    return path


def remove(path: Path) -> None:
    """Remove a folder; one that is gone or cannot be removed is left at that."""
    shutil.rmtree(path, ignore_errors=True)
