"""Samples in memory are read as they lie where they need not be copied, and are the same either way."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphmsda.data.formats import open_listing
from graphmsda.data.readers.arrays import ArrayListing, listing_of_arrays

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 5, 6, 3), dtype=np.uint8)
FEATURES = np.random.default_rng(1).random((7, 4), dtype=np.float32)


def read_only(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "channels last": PIXELS,
    "channels first": np.ascontiguousarray(PIXELS.transpose(0, 3, 1, 2)),
    "grey": PIXELS[..., 0].copy(),
    "grey, one channel": PIXELS[..., :1].copy(),
    "grey, every other row": PIXELS[::2, ..., 1],
    "every other row": np.repeat(PIXELS, 2, axis=0)[::2],
    "backwards": PIXELS[::-1],
    "colours backwards": PIXELS[..., ::-1],
    "mirrored": PIXELS[:, :, ::-1],
    "cut out": PIXELS[:, 1:4, 2:5],
    "read-only": read_only(PIXELS),
    "read-only grey": read_only(PIXELS[..., 0]),
    "one image over and over": np.broadcast_to(PIXELS[:1], PIXELS.shape),
    "features": FEATURES,
    "read-only features": read_only(FEATURES),
    "features in 64 bits": FEATURES.astype(np.float64),
    "columns backwards": FEATURES[:, ::-1],
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("rows", [range(4), range(2, 4), range(3, 4)])
def test_the_same_in_place(name: str, rows: range) -> None:
    listing = listing_of_arrays(LAYOUTS[name], None, name="memory")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch's, of arrays that cannot be written to
        found, expected = listing.read_in_place(rows, None), listing.read(rows, None)
    assert torch.equal(found.x, expected.x)
    assert (found.kept, found.failures) == (expected.kept, expected.failures)


def test_resized_the_same_in_place() -> None:
    listing = listing_of_arrays(PIXELS, None, name="memory")
    assert torch.equal(listing.read_in_place(range(1, 5), 4).x, listing.read(range(1, 5), 4).x)


@pytest.mark.parametrize("name", ["channels last", "channels first", "every other row", "cut out"])
def test_in_place_means_no_copy(name: str) -> None:
    listing = listing_of_arrays(LAYOUTS[name], None, name="memory")
    assert np.shares_memory(listing.read_in_place(range(2, 4), None).x.numpy(), LAYOUTS[name])


def test_arrays_of_a_file_are_read_in_place(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=PIXELS)
    np.savez(tmp_path / "parts.npz", x_train=PIXELS[:4], x_test=PIXELS[4:])
    for name in ("x.npz", "parts.npz"):
        listing = open_listing(tmp_path / name, labelled=False)
        assert isinstance(listing, ArrayListing)
        assert np.shares_memory(listing.read_in_place(range(7), None).x.numpy(), listing.x)


def test_grey_images_in_place_keep_one_channel_in_memory() -> None:
    x = listing_of_arrays(PIXELS[..., 0].copy(), None, name="memory").read_in_place(range(7), None).x
    assert x.shape == (7, 3, 5, 6)
    assert x.untyped_storage().nbytes() == 7 * 5 * 6


def test_read_copies_with_the_channels_first() -> None:
    """Training draws rows from what it returns, which is fast in this layout alone."""
    x = listing_of_arrays(PIXELS, None, name="memory").read(range(7), None).x
    assert x.is_contiguous()
    assert not np.shares_memory(x.numpy(), PIXELS)


@pytest.mark.parametrize("rows", [range(7), range(2, 5), range(6, 7), range(3, 3)])
def test_names_of_some_are_those_of_all(rows: range, tmp_path: Path) -> None:
    np.savez(tmp_path / "parts.npz", x_train=PIXELS[:4], x_test=PIXELS[4:])
    whole, parts = listing_of_arrays(PIXELS, None, name="a.b"), open_listing(tmp_path / "parts.npz", labelled=False)
    assert isinstance(parts, ArrayListing)
    in_parts = [*(f"parts.npz[train {row}]" for row in range(4)), *(f"parts.npz[test {row}]" for row in range(3))]
    for listing, names in ((whole, [f"a.b[{row}]" for row in range(7)]), (parts, in_parts)):
        assert listing.item_names == names
        assert listing.names_of(rows) == names[rows.start : rows.stop]


def test_names_of_all_are_the_callers_to_change(tmp_path: Path) -> None:
    np.savez(tmp_path / "parts.npz", x_train=PIXELS[:4], x_test=PIXELS[4:])
    listing = open_listing(tmp_path / "parts.npz", labelled=False)
    listing.item_names.clear()
    assert len(listing.item_names) == 7
