import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from graphmsda import forked
from graphmsda.data.checks import scan as module
from graphmsda.data.checks.scan import details, map_pictures, scan
from graphmsda.data.formats import open_listing
from graphmsda.data.images import Decoded
from graphmsda.data.readers.arrays import listing_of_arrays


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(40):
        pixels = rng.integers(0, 256, (10 + number, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    (tmp_path / "07.png").write_bytes(b"")
    (tmp_path / "09.png").write_bytes(b"not a picture")
    return tmp_path


def test_size_digest_and_reason_of_each_item(folder):
    Image.open(folder / "03.png").save(folder / "40.bmp")
    found = scan(open_listing(folder, labelled=False))
    assert found.sizes[:3].tolist() == [[20, 10], [20, 11], [20, 12]]
    assert found.sizes[7].tolist() == [0, 0]
    assert found.unreadable == {7: "empty file", 9: "not a picture or damaged"}
    assert (found.digest[40] == found.digest[3]).all(), "the same pixels in another format"
    assert len(np.unique(found.digest, axis=0)) == 41 - 2 - 1 + 1  # two unreadable ones share zeros, one is a copy
    assert (found.contrast[[0, 1, 2]] > 20).all()


def test_equal_bytes_in_another_shape_are_another_picture():
    wide = scan(listing_of_arrays(np.zeros((1, 2, 8), dtype=np.uint8), None, name="wide"))
    tall = scan(listing_of_arrays(np.zeros((1, 8, 2), dtype=np.uint8), None, name="tall"))
    assert (wide.digest != tall.digest).any()
    assert wide.contrast.tolist() == [0]


@pytest.mark.parametrize("platform", ["linux", "elsewhere"])
def test_many_at_once_give_the_same_as_one_by_one(folder, monkeypatch, platform):
    listing = open_listing(folder, labelled=False)
    alone = scan(listing)
    monkeypatch.setattr(module, "FEW", 1)
    monkeypatch.setattr(module, "CHUNK", 3)
    monkeypatch.setattr(forked, "cores", lambda: 2)
    monkeypatch.setattr(forked.sys, "platform", platform)
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = scan(listing, lambda name, count: seen.append(count))
    assert sum(seen) == 40
    assert (together.digest == alone.digest).all()
    assert (together.hashes == alone.hashes).all()
    assert (together.thumbnails == alone.thumbnails).all()
    assert together.unreadable == alone.unreadable


def test_chunks_come_in_order(folder, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4)
    chunks = list(map_pictures(open_listing(folder, labelled=False), [5, 3, 9, 1, 0], lambda picture: picture.height))
    assert chunks == [([5, 3, 9, 1], [15, 13, "not a picture or damaged", 11]), ([0], [10])]


def test_details_skip_what_cannot_be_read(folder):
    first, second = details(open_listing(folder, labelled=False), [7, 1])
    assert first is None
    assert second is not None
    assert second.pixels.shape == (11, 20, 3)


def test_feature_vectors_have_a_range_and_equal_rows_equal_digests():
    x = np.array([[1.0, -2.5], [0.0, 7.0], [1.0, -2.5], [-0.0, 7.0]], dtype=np.float32)
    found = scan(listing_of_arrays(x, None, name="x"))
    assert found.range == (-2.5, 7.0)
    assert found.not_finite == 0
    assert (found.digest[0] == found.digest[2]).all()
    assert (found.digest[1] == found.digest[3]).all()
    assert (found.digest[0] != found.digest[1]).any()
    assert len(found.hashes) == 0


def test_values_that_are_not_finite_are_counted(monkeypatch):
    listing = listing_of_arrays(np.zeros((3, 2), dtype=np.float32), None, name="x")
    bad = torch.tensor([[1.0, float("nan")], [2.0, 3.0], [float("inf"), 0.0]])
    monkeypatch.setattr(type(listing), "read", lambda self, indices, size: Decoded(bad, [0, 1, 2], []))
    found = scan(listing)
    assert found.not_finite == 2
    assert found.range == (0.0, 3.0)
