"""Compressed pictures that read like a tensor: rows are decoded when they are asked for."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

THREADS: int | None = None  # None: one a core; set to 1 in processes that decode beside others


class Encoded:
    """JPEG pictures of one size in a file mapped into memory.

    ``pictures[rows]`` decodes like indexing a uint8 tensor ``(N, 3, H, W)`` with a slice or an index tensor; no more is
    held in memory than what is asked for.

    Args:
        path: The pictures, one after the other.
        offsets: Where each begins, and the end: ``(N + 1,)``.
        shape: ``(N, 3, H, W)``.
        digest: Hash of the file.
    """

    dtype = torch.uint8

    def __init__(self, path: Path, offsets: NDArray[np.int64], shape: tuple[int, ...], digest: str) -> None:
        self.path, self.offsets, self.shape, self.digest = path, offsets, shape, digest
        self._bytes = np.memmap(path, np.uint8, mode="c") if offsets[-1] else np.empty(0, np.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        chosen = range(*rows.indices(len(self))) if isinstance(rows, slice) else rows.tolist()
        _, channels, height, width = self.shape
        # Channels last is how pictures come out of the decoder and how networks like to read them.
        pixels = np.empty((len(chosen), height, width, channels), np.uint8)
        # A few at a time: one alone is too little work to hand to another thread.
        parts = [range(start, min(start + 8, len(chosen))) for start in range(0, len(chosen), 8)]

        def fill(part: range) -> None:
            for place in part:
                begin, end = self.offsets[chosen[place] : chosen[place] + 2]
                with Image.open(io.BytesIO(self._bytes[begin:end].data)) as picture:
                    pixels[place] = np.asarray(picture)

        if len(parts) < 2 or THREADS == 1:
            for part in parts:
                fill(part)
        else:
            list(_threads(os.getpid()).map(fill, parts))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)


@lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the decoding threads of this process: a fork has none of its parent's."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="graphmsda-decode")
