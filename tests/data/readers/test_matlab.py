"""Files in the layouts of the published digit sets, written by scipy and h5py, and files meant to do harm."""

import struct
import sys
import zlib

import h5py
import numpy as np
import pytest
import scipy.io

from graphmsda.data.formats import open_listing
from graphmsda.errors import UserError

RANDOM = np.random.default_rng(0)


def pixels(*shape):
    x = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    x.flat[:2] = 0, 255  # so that the range of the values is plain
    return x


def save(path, compressed=True, **variables):
    scipy.io.savemat(path, variables, do_compression=compressed)
    return path


def save_hdf5(path, **variables):
    """Write as MATLAB 7.3 does: axes reversed, behind a header of 512 bytes, cells as references."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            if value.dtype == object:
                cells = np.empty(value.T.shape, dtype=h5py.ref_dtype)
                for place, child in np.ndenumerate(value.T):
                    cells[place] = file.create_dataset(f"#refs#/{name}{place[0]}{place[1]}", data=child.T).ref
                file.create_dataset(name, data=cells, dtype=h5py.ref_dtype).attrs["MATLAB_class"] = np.bytes_("cell")
            else:
                file.create_dataset(name, data=value.T).attrs["MATLAB_class"] = np.bytes_(value.dtype.name)
    content = bytearray(path.read_bytes())
    content[:128] = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM"
    path.write_bytes(content)
    return path


def images(listing):
    """Return all images as (N, H, W, C)."""
    return listing.read(range(len(listing)), None).x.permute(0, 2, 3, 1).numpy()


def error(path, labelled=True):
    with pytest.raises(UserError) as caught:
        open_listing(path, labelled=labelled)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


WRITERS = pytest.mark.parametrize("write", [save, save_hdf5])


@WRITERS
def test_svhn(tmp_path, write):
    x = pixels(32, 32, 3, 20)
    y = (np.arange(20) % 10 + 1)[:, None].astype(np.uint8)
    path = write(tmp_path / "extra_32x32.mat", X=x, y=y)
    listing = open_listing(path, labelled=True)
    assert listing.own_shape == (32, 32)
    assert (images(listing) == x.transpose(3, 0, 1, 2)).all()
    assert listing.labels == ("1", "2", "3", "4", "5", "6", "7", "8", "9", "0") * 2
    assert listing.parts is None
    assert listing.notes == (f"{path}: the label 10 was read as the digit 0, which it stands for in SVHN",)


def test_the_file_with_test_images_beside_the_one_for_training(tmp_path):
    train = save(tmp_path / "train_32x32.mat", X=pixels(32, 32, 3, 6), y=np.array([[1, 2, 3, 4, 5, 6]]).T)
    test = save(tmp_path / "test_32x32.mat", X=pixels(32, 32, 3, 4), y=np.array([[10, 9, 8, 7]]).T)
    listing = open_listing(train, labelled=True)
    assert listing.parts == ("train",) * 6 + ("test",) * 4
    assert listing.labels == ("1", "2", "3", "4", "5", "6", "0", "9", "8", "7")
    assert listing.notes[0] == f"{train}: test_32x32.mat beside it was taken for its test part"
    assert len(open_listing(train, labelled=False, part="train")) == 6
    alone = open_listing(test, labelled=True)
    assert (alone.parts, len(alone)) == (None, 4)
    alone = open_listing(train, labelled=True, part="test", alone=True)  # who names one file wants that one
    assert (alone.parts, len(alone), alone.notes) == (None, 6, ())
    (tmp_path / "TRAIN.mat").write_bytes(train.read_bytes())
    assert open_listing(tmp_path / "TRAIN.mat", labelled=True).parts is None
    (tmp_path / "restrain.mat").write_bytes(train.read_bytes())
    (tmp_path / "restest.mat").write_bytes(train.read_bytes())
    assert open_listing(tmp_path / "restrain.mat", labelled=True).parts is None


def test_synthetic_digits_count_from_0(tmp_path):
    y = np.arange(10)[:, None]
    listing = open_listing(save(tmp_path / "synth_train_32x32.mat", X=pixels(32, 32, 3, 10), y=y), labelled=True)
    assert listing.labels == tuple("0123456789")
    assert listing.notes == ()


@WRITERS
def test_mnist_of_the_pack(tmp_path, write):
    train, test = pixels(12, 32, 32), pixels(5, 32, 32)
    one_hot = np.eye(10, dtype=np.uint8)
    path = write(
        tmp_path / "mnist_data.mat",
        train_32=train.astype(np.float64),
        test_32=test.astype(np.float64),
        train_28=pixels(12, 28, 28),
        label_train=one_hot[np.arange(12) % 10],
        label_test=one_hot[[3, 1, 4, 1, 5]],
    )
    listing = open_listing(path, labelled=True)
    assert listing.parts == ("train",) * 12 + ("test",) * 5
    assert listing.labels == (*"0123456789", "0", "1", *"31415")
    assert (images(listing)[..., 1] == np.concatenate([train, test])).all()


def test_mnistm_and_synthetic_digits_of_the_pack(tmp_path):
    train, test = pixels(12, 28, 28, 3), pixels(5, 28, 28, 3)
    one_hot = np.eye(10)
    mnistm = {"label_train": one_hot[np.arange(12) % 10], "label_test": one_hot[:5]}
    path = save(tmp_path / "mnistm_with_label.mat", train=train, test=test, **mnistm)
    listing = open_listing(path, labelled=True)
    assert listing.labels == (*"0123456789", "0", "1", *"01234")
    assert (images(listing) == np.concatenate([train, test])).all()
    labels = {"train_label": np.arange(12)[:, None] % 10, "test_label": np.arange(5)[:, None]}
    other = open_listing(save(tmp_path / "syn_number.mat", train_data=train, test_data=test, **labels), labelled=True)
    assert (other.labels, other.parts, other.identity()) == (listing.labels, listing.parts, listing.identity())


@WRITERS
def test_usps_of_the_pack(tmp_path, write):
    train, test = pixels(9, 1, 28, 28), pixels(4, 1, 28, 28)
    cell = np.empty((2, 2), dtype=object)
    cell[0, 0], cell[0, 1] = train.astype(np.float32) / 255, np.arange(9, dtype=np.int64)[:, None]
    cell[1, 0], cell[1, 1] = test.astype(np.float32) / 255, np.arange(4, dtype=np.int64)[:, None]
    path = write(tmp_path / "usps_28x28.mat", dataset=cell)
    listing = open_listing(path, labelled=True)
    assert listing.parts == ("train",) * 9 + ("test",) * 4
    assert listing.labels == (*"012345678", *"0123")
    assert (images(listing)[..., 2] == np.concatenate([train, test])[:, 0]).all()
    assert open_listing(path, labelled=False).labels is None


def test_usps_in_slabs(tmp_path):
    upright = pixels(1100, 10, 16, 16)
    data = upright.transpose(3, 2, 0, 1).reshape(256, 1100, 10)  # pixels of a digit down its columns
    path = save(tmp_path / "usps_all.mat", data=data)
    listing = open_listing(path, labelled=True)
    assert listing.labels == tuple(digit for digit in "1234567890" for _ in range(1100))
    assert (images(listing)[..., 0] == upright.transpose(1, 0, 2, 3).reshape(-1, 16, 16)).all()
    assert "1 to 9, then 0" in listing.notes[0]
    assert open_listing(path, labelled=False).notes == ()


def test_usps_in_columns_and_in_rows(tmp_path):
    upright = pixels(7, 16, 16)
    columns = (upright.reshape(7, 256) / 127.5 - 1).T
    labels = 2 * np.eye(10)[:, [3, 1, 4, 1, 5, 9, 2]] - 1
    path = save(tmp_path / "usps_resampled.mat", train_patterns=columns, train_labels=labels)
    listing = open_listing(path, labelled=True)
    assert listing.labels == tuple("3141592")
    assert (images(listing)[..., 0] == upright).all()
    rows = save(tmp_path / "USPS.mat", fea=columns.T, gnd=np.arange(1, 8)[:, None])
    assert (images(open_listing(rows, labelled=True))[..., 0] == upright).all()


@WRITERS
def test_features(tmp_path, write):
    x = RANDOM.normal(size=(6, 5))
    listing = open_listing(write(tmp_path / "a.mat", features=x, labels=np.arange(6.0)[None]), labelled=True)
    assert (listing.feature_count, listing.labels) == (5, tuple("012345"))
    np.testing.assert_allclose(listing.read(range(6), None).x.numpy(), x, rtol=1e-6)


def test_labels_in_words(tmp_path):
    x = RANDOM.normal(size=(3, 5))
    padded = save(tmp_path / "a.mat", x=x, y=np.array(["cat", "horse", "cat"]))
    cells = save(tmp_path / "b.mat", x=x, y=np.array([["cat"], ["horse"], ["cat"]], dtype=object))
    for path in (padded, cells):
        assert open_listing(path, labelled=True).labels == ("cat", "horse", "cat")


@pytest.mark.parametrize("scale", [1.0, 1 / 255, 2 / 255])
def test_ranges_of_pixels(tmp_path, scale):
    x = pixels(4, 8, 8, 3)
    values = x * scale - (1 if scale == 2 / 255 else 0)
    assert (images(open_listing(save(tmp_path / "a.mat", X=values), labelled=False)) == x).all()


def test_black_and_white(tmp_path):
    x = np.arange(3 * 8 * 8).reshape(3, 8, 8) % 2 == 0
    assert (images(open_listing(save(tmp_path / "a.mat", X=x), labelled=False))[..., 0] == 255 * x).all()


def test_grey_images_with_the_samples_last(tmp_path):
    x = pixels(8, 8, 5)
    assert (images(open_listing(save(tmp_path / "a.mat", X=x), labelled=False))[..., 0] == x.transpose(2, 0, 1)).all()


def test_old_and_foreign_versions(tmp_path):
    x = RANDOM.normal(size=(6, 5))
    scipy.io.savemat(tmp_path / "old.mat", {"x": x, "y": np.arange(6)[:, None]}, format="4")
    assert open_listing(tmp_path / "old.mat", labelled=True).labels == tuple("012345")
    header = b"MATLAB 5.0".ljust(124) + struct.pack(">H", 0x0100) + b"MI"
    flags = struct.pack(">IIII", 6, 8, 6, 0) + struct.pack(">IIii", 5, 8, 2, 2) + struct.pack(">HHc3x", 1, 1, b"x")
    matrix = flags + struct.pack(">II4d", 9, 32, 1, 2, 3, 4)
    (tmp_path / "big.mat").write_bytes(header + struct.pack(">II", 14, len(matrix)) + matrix)
    listing = open_listing(tmp_path / "big.mat", labelled=False)
    assert listing.read([0, 1], None).x.tolist() == [[1, 3], [2, 4]]


@WRITERS
def test_labels_of_the_target_are_not_loaded(tmp_path, write, monkeypatch):
    path = write(tmp_path / "a.mat", X=pixels(8, 8, 3, 5), y=np.array([[np.nan] * 5]).T)
    loaded = []
    for name in ("_load_version5", "_load_hdf5"):
        real = getattr(sys.modules["graphmsda.data.readers.matfile"], name)
        monkeypatch.setattr(f"graphmsda.data.readers.matfile.{name}", lambda *a, r=real: loaded.append(a) or r(*a))
    listing = open_listing(path, labelled=False)
    assert listing.labels is None
    assert len(loaded) == 1
    assert "not all whole numbers" in error(path)


def test_a_part_without_labels_is_left_out(tmp_path):
    x = RANDOM.normal(size=(3, 5))
    path = save(tmp_path / "a.mat", x_train=x, y_train=[0, 1, 0], x_test=x)
    listing = open_listing(path, labelled=True)
    assert listing.parts == ("train",) * 3
    assert listing.notes == (f"{path}: no labels for x_test, which is left out",)
    assert len(open_listing(path, labelled=False)) == 6


FEATURES = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"foo": np.zeros((2, 3)), "bar": {"a": 1}}, ["found: foo (2 x 3, numbers), bar (1 x 1, something else)", "X"]),
        ({}, ["found: nothing"]),
        ({"X": {"a": 1}, "y": [0, 1]}, ["found: X (1 x 1, something else), y (1 x 2, numbers)"]),
        ({"X": FEATURES}, ["no labels for X (found: X)"]),
        ({"X": FEATURES, "y": [1, 2, 3]}, ["2 samples in X but 3 labels in the labels of X"]),
        ({"X": FEATURES, "y": [[1, 1], [0, 1]]}, ["shape (2, 2)", "one 1 in each row"]),
        ({"X": FEATURES, "y": [0.5, 1.0]}, ["not all whole numbers"]),
        ({"X": FEATURES * np.nan, "y": [0, 1]}, ["2 of 2 rows of X", "not finite"]),
        ({"X": np.full((2, 4, 4), np.nan), "y": [0, 1]}, ["pixels of X lie between nan and nan"]),
        ({"X": np.full((2, 4, 4), 300.0), "y": [0, 1]}, ["pixels of X lie between 300 and 300"]),
        ({"X": np.zeros((2, 4, 5)), "y": [0, 1]}, ["X is of shape (2, 4, 5)", "(H, W, C, N)"]),
        ({"X": np.zeros((2, 4, 4, 4)), "y": [0, 1]}, ["X is of shape (2, 4, 4, 4)"]),
        ({"X": FEATURES, "y": np.array([["a", 1]], dtype=object)}, ["cells that hold more than a word"]),
        ({"x_train": FEATURES, "x_test": np.zeros((2, 4)), "y_train": [0, 1], "y_test": [0, 1]}, ["same shape"]),
    ],
)
def test_errors_name_the_file_and_what_was_found(tmp_path, variables, words):
    sentence = error(save(tmp_path / "a.mat", **variables))
    for word in words:
        assert word in sentence


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(class_, shape, name, *inner):
    dimensions = struct.pack(f"<{len(shape)}i", *shape)
    content = element(6, struct.pack("<II", class_, 0)) + element(5, dimensions) + element(1, name) + b"".join(inner)
    return struct.pack("<II", 14, len(content)) + content


def version5(path, *matrices):
    path.write_bytes(b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + b"".join(matrices))
    return path


def packed(content):
    return struct.pack("<II", 15, len(zlib.compress(content))) + zlib.compress(content)


def test_cells_within_cells_do_not_overflow_anything(tmp_path):
    inner = matrix(9, (1, 1), b"", element(2, b"\x01"))
    header = matrix(1, (1, 1), b"")[8:]
    levels, length = [inner], len(inner)
    for _ in range(100_000):
        levels.append(struct.pack("<II", 14, len(header) + length) + header)
        length += len(header) + 8
    deep = b"".join(reversed(levels))
    content = matrix(1, (2, 2), b"dataset", deep, deep, deep, deep)
    assert "found: dataset (2 x 2, cell)" in error(version5(tmp_path / "a.mat", content))


def test_declared_sizes_are_not_believed(tmp_path):
    path = tmp_path / "a.mat"
    far_more = "far more than the file holds"
    for bomb in (
        matrix(9, (2**30, 2**30), b"X", element(2, b"\x01")),
        packed(matrix(9, (2**20, 2**10), b"X", element(2, bytes(2**20)))),
    ):
        assert far_more in error(version5(path, bomb), False)
    assert "found: X (-5 x -3" in error(version5(path, matrix(9, (-5, -3), b"X", element(2, b"\x01"))), False)
    one = matrix(9, (1, 1), b"X", element(2, b"\x01"))
    assert far_more in error(version5(path, matrix(1, (2**20, 2**20), b"y", element(2, b"\x01")), one))
    assert "it ends too early" in error(version5(path, matrix(9, (9, 9), b"X", struct.pack("<II", 2, 81))), False)
    assert "does not fill its shape" in error(version5(path, matrix(9, (9, 9), b"X", element(2, bytes(5)))), False)
    assert "larger than it can be" in error(
        version5(path, matrix(9, (2, 2), b"X", struct.pack("<II", 2, 2**31))), False
    )
    with h5py.File(path, "w") as file:
        file.create_dataset("X", shape=(2**20, 2**20), dtype="f8", chunks=True)
    assert far_more in error(path, False)


def test_a_file_may_not_lead_to_another(tmp_path):
    save_hdf5(tmp_path / "secret.mat", X=pixels(4, 8, 8))
    path = tmp_path / "a.mat"
    with h5py.File(path, "w") as file:
        file["X"] = h5py.ExternalLink(str(tmp_path / "secret.mat"), "/X")
        file.create_dataset("data", shape=(4, 4), dtype="u1", external=[(str(tmp_path / "secret.mat"), 0, 16)])
    assert "found: data (4 x 4, something else)" in error(path, labelled=False)


@WRITERS
def test_damaged_files_are_refused_in_one_sentence(tmp_path, write):
    whole = write(tmp_path / "whole.mat", X=pixels(8, 8, 3, 9), y=np.arange(9)[:, None]).read_bytes()
    path = tmp_path / "a.mat"
    for content in (b"", b"\x00" * 200, b"nothing of the kind" * 20, whole[:100], whole[:600]):
        path.write_bytes(content)
        error(path)
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        for place in random.integers(0, len(content), random.integers(1, 20)):
            content[place] = random.integers(256)
        path.write_bytes(content[: random.integers(len(whole) // 2, 2 * len(whole))])
        try:
            listing = open_listing(path, labelled=True)
            listing.read(range(len(listing)), None)
        except UserError as caught:
            refused += "\n" not in str(caught)
    assert refused > 50


def test_h5py_is_asked_for_where_it_is_missing(tmp_path, monkeypatch):
    path = save_hdf5(tmp_path / "a.mat", X=pixels(4, 8, 8))
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "pip install 'graphmsda[formats]'" in error(path)
