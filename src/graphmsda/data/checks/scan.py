"""One pass over the items of many listings with all cores: what each image is, without keeping the images."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from graphmsda.data.checks.duplicates import THUMBNAIL_SIDE, Detail, coarse, detail
from graphmsda.data.images import Unreadable, quiet_decoding
from graphmsda.data.listing import Listing
from graphmsda.errors import UserError

CHUNK = 64  # pictures handed to a process at a time
FEW = 500  # pictures below which starting processes costs more than it saves
ROWS = 4096  # feature vectors read at a time
DIGEST = 16  # bytes

Advance = Callable[[str, int], None]

_job: tuple[Listing, Callable[[Image.Image], Any]] | None = None  # what forked processes find in their memory


@dataclass
class Scan:
    """What was found of each item of a listing.

    Attributes:
        digest: Hash of the pixels with their size, or of the feature vector; zeros for what cannot be read.
        hashes: Perceptual hash of each image.
        thumbnails: Each image in grey, ``(N, 16, 16)``.
        contrast: Standard deviation of the most varied colour channel of each image, from 0 to 255.
        sizes: Width and height of each image, ``(N, 2)``; zeros for what cannot be read.
        unreadable: Item and reason.
        range: Smallest and largest finite value of the feature vectors.
        not_finite: Number of feature vectors that hold a value that is not finite.
    """

    digest: NDArray[np.uint8]
    hashes: NDArray[np.uint64]
    thumbnails: NDArray[np.uint8]
    contrast: NDArray[np.float32]
    sizes: NDArray[np.int64]
    unreadable: dict[int, str] = field(default_factory=dict)
    range: tuple[float, float] | None = None
    not_finite: int = 0


def scan(listing: Listing, advance: Advance = lambda name, count: None) -> Scan:
    """Read every item of a listing once."""
    count = len(listing)
    features = listing.feature_count is not None
    pictures = 0 if features else count
    result = Scan(
        np.zeros((count, DIGEST), dtype=np.uint8),
        np.zeros(pictures, dtype=np.uint64),
        np.zeros((pictures, THUMBNAIL_SIDE, THUMBNAIL_SIDE), dtype=np.uint8),
        np.zeros(pictures, dtype=np.float32),
        np.zeros((pictures, 2), dtype=np.int64),
    )
    if features:
        _scan_features(listing, result, advance)
        return result
    for items, chunk in map_pictures(listing, range(count), _look_at):
        for item, found in zip(items, chunk, strict=True):
            if isinstance(found, str):
                result.unreadable[item] = found
                continue
            digest, result.hashes[item], result.thumbnails[item], result.contrast[item], result.sizes[item] = found
            result.digest[item] = np.frombuffer(digest, dtype=np.uint8)
        advance(listing.name, len(items))
    return result


def details(listing: Listing, items: Sequence[int]) -> list[Detail | None]:
    """Return what tells the images at `items` apart; None for one that cannot be read."""
    return [
        None if isinstance(found, str) else found
        for _, chunk in map_pictures(listing, items, detail)
        for found in chunk
    ]


def map_pictures(
    listing: Listing, items: Sequence[int], function: Callable[[Image.Image], Any]
) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Yield, chunk by chunk in order, some items and what `function` makes of each image, or why it is unreadable.

    Processes are forked where that can be, so that the listing need not be pickled; elsewhere threads share the work.
    """
    global _job
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, len(chunks))
    if len(items) < FEW or workers < 2 or multiprocessing.current_process().daemon:
        for chunk in chunks:
            yield chunk, _apply(listing, function, chunk)
        return
    waiting: deque[tuple[Sequence[int], Future[list[Any]]]] = deque()
    fork = sys.platform == "linux"
    _job = (listing, function)
    with quiet_decoding(), _pool(workers, fork=fork) as pool:
        work = _apply_job if fork else partial(_apply, listing, function)
        try:
            for chunk in chunks:  # a few in advance, so that memory does not grow with the listing
                waiting.append((chunk, pool.submit(work, chunk)))
                if len(waiting) > 4 * workers:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        except BrokenProcessPool as error:
            raise UserError(
                f"{listing.origin}: a process that decoded its pictures was killed, perhaps for want of memory; "
                "run the same command again, or with more memory"
            ) from error
        finally:
            _job = None


@contextmanager
def _pool(workers: int, *, fork: bool) -> Iterator[Executor]:
    pool: Executor
    if fork:
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), initializer=_alone)
    else:
        pool = ThreadPoolExecutor(workers)
    try:
        with warnings.catch_warnings():
            # Newer Pythons warn of forking with other threads alive; ours only draw the progress bar.
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
            yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _alone() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer


def _apply_job(items: Sequence[int]) -> list[Any]:
    assert _job is not None
    return _apply(*_job, items)


def _apply(listing: Listing, function: Callable[[Image.Image], Any], items: Sequence[int]) -> list[Any]:
    def attempt(item: int) -> Any:
        try:
            return function(listing.picture(item))
        except Unreadable as error:
            return str(error)

    return [attempt(item) for item in items]


def _look_at(picture: Image.Image) -> tuple[bytes, int, NDArray[np.uint8], float, tuple[int, int]]:
    digest = hashlib.blake2b(picture.tobytes(), digest_size=DIGEST, salt=b"%dx%d" % picture.size).digest()
    contrast = float(detail(picture).pixels.std(axis=(0, 1)).max())
    return digest, *coarse(picture), contrast, picture.size


def _scan_features(listing: Listing, result: Scan, advance: Advance) -> None:
    low, high = np.inf, -np.inf
    for start in range(0, len(listing), ROWS):
        items = range(start, min(start + ROWS, len(listing)))
        decoded = listing.read(items, None)
        x = decoded.x.numpy()
        for position, reason in decoded.failures:
            result.unreadable[items[position]] = reason
        for position, row in zip(decoded.kept, x + 0.0, strict=True):  # -0 and 0 are one value
            digest = hashlib.blake2b(row.tobytes(), digest_size=DIGEST).digest()
            result.digest[items[position]] = np.frombuffer(digest, dtype=np.uint8)
        finite = np.isfinite(x)
        result.not_finite += int((~finite.all(axis=1)).sum())
        if finite.any():
            low, high = min(low, float(x[finite].min())), max(high, float(x[finite].max()))
        advance(listing.name, len(items))
    if low <= high:
        result.range = low, high
