import gzip
import struct

import numpy as np
import pytest

from graphmsda.data.readers.idx import open_idx, read_idx
from graphmsda.errors import UserError


def write_idx(path, array):
    array = np.asarray(array, dtype=np.uint8)
    content = struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_images_and_labels_are_read(tmp_path, suffix):
    pixels = np.arange(3 * 4 * 5).reshape(3, 4, 5)
    images = write_idx(tmp_path / f"images-idx3-ubyte{suffix}", pixels)
    labels = write_idx(tmp_path / f"labels-idx1-ubyte{suffix}", [7, 0, 9])
    listing = open_idx(images, labels)
    assert listing.labels == ("7", "0", "9")
    assert listing.own_shape == (4, 5)
    assert listing.item_names == [f"{images.name}[{row}]" for row in range(3)]
    x = listing.read([2, 0], None).x
    assert (x.numpy() == pixels[[2, 0]][:, None]).all()
    assert x.shape == (2, 3, 4, 5)
    assert listing.picture(1).size == (5, 4)


def test_without_labels_no_second_file_is_needed(tmp_path):
    images = write_idx(tmp_path / "images", np.zeros((2, 3, 3)))
    assert open_idx(images, None).labels is None


def error(path, dimensions=3):
    with pytest.raises(UserError) as caught:
        read_idx(path, dimensions=dimensions)
    return str(caught.value)


def test_what_is_wrong_with_a_file_is_told_in_one_sentence(tmp_path):
    whole = write_idx(tmp_path / "whole", np.zeros((2, 3, 3))).read_bytes()
    path = tmp_path / "file"
    path.write_bytes(whole[:-1])
    assert error(path) == f"{path}: its header promises 18 values, but it holds 17; download it again"
    path.write_bytes(whole + b"x")
    assert "promises 18 values, but it holds more than that" in error(path)
    path.write_bytes(b"<html>not found</html>")
    assert "does not begin like an IDX file of images" in error(path)
    assert "does not begin like an IDX file of labels" in error(tmp_path / "whole", dimensions=1)
    path.write_bytes(whole[:6])
    assert "cannot be read as an IDX file" in error(path)
    path.write_bytes(struct.pack(">HBB3i", 0, 8, 3, 2**30, 2**30, 2**30))
    assert "its header promises an array of shape" in error(path)
    path.write_bytes(struct.pack(">HBB3i", 0, 8, 3, -1, -2, 3) + b"123456")
    assert "its header promises an array of shape (-1, -2, 3)" in error(path)


def test_a_damaged_gzip_file_is_told(tmp_path):
    path = write_idx(tmp_path / "images.gz", np.random.default_rng(0).integers(0, 255, (20, 9, 9)))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "cannot be read as an IDX file" in error(path)
    path.write_bytes(b"no gzip at all")
    assert "cannot be read as an IDX file" in error(path)


def test_images_and_labels_of_different_number_are_refused(tmp_path):
    images = write_idx(tmp_path / "images", np.zeros((2, 3, 3)))
    labels = write_idx(tmp_path / "labels", [1, 2, 3])
    with pytest.raises(UserError, match="holds 3 labels, but images holds 2 images"):
        open_idx(images, labels)
