import io
import zipfile

import numpy as np
import pytest
import torch

from graphmsda.data.formats import open_listing
from graphmsda.data.listing import choose_image_size
from graphmsda.data.readers.arrays import listing_of_arrays, pair_keys
from graphmsda.errors import UserError


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def error(path, labelled=True):
    with pytest.raises(UserError) as caught:
        open_listing(path, labelled=labelled)
    return str(caught.value)


def test_features(tmp_path):
    x = np.arange(12, dtype=np.float64).reshape(4, 3)
    listing = open_listing(save(tmp_path / "a.b.npz", x=x, y=[10, 2, 2, 10]), labelled=True)
    assert listing.name == "a.b"
    assert listing.labels == ("10", "2", "2", "10")
    assert listing.item_names == [f"a.b.npz[{row}]" for row in range(4)]
    assert (len(listing), listing.feature_count, listing.own_shape, listing.sides(5)) == (4, 3, None, [])
    assert choose_image_size([listing]) is None
    decoded = listing.read([2, 0], None)
    assert decoded.x.dtype == torch.float32
    assert decoded.x.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert decoded.kept == [0, 1]
    assert decoded.failures == []


@pytest.mark.parametrize("shape", [(5, 6, 8), (5, 6, 8, 1), (5, 6, 8, 3)])
def test_images_become_colour_with_channels_first(tmp_path, shape):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    listing = open_listing(save(tmp_path / "x.npz", x=x), labelled=False)
    assert (listing.own_shape, listing.feature_count) == ((6, 8), None)
    decoded = listing.read([4, 1], None).x
    assert decoded.shape == (2, 3, 6, 8)
    expected = np.broadcast_to(x.reshape(5, 6, 8, -1), (5, 6, 8, 3))[[4, 1]].transpose(0, 3, 1, 2)
    assert (decoded.numpy() == expected).all()
    assert listing.read([4], 4).x.shape == (1, 3, 4, 4)
    assert listing.read([], 4).x.shape == (0, 3, 4, 4)


def test_resizing_keeps_flat_colours(tmp_path):
    x = np.full((2, 30, 20, 3), (1, 100, 250), dtype=np.uint8)
    decoded = open_listing(save(tmp_path / "x.npz", x=x), labelled=False).read([0, 1], 16).x
    assert (decoded == torch.tensor([1, 100, 250])[:, None, None]).all()


def test_sizes(tmp_path):
    small = open_listing(save(tmp_path / "s.npz", x=np.zeros((3, 28, 28), np.uint8)), labelled=False)
    large = open_listing(save(tmp_path / "l.npz", x=np.zeros((9, 100, 90), np.uint8)), labelled=False)
    assert choose_image_size([small, small]) is None
    assert choose_image_size([small, large]) == 224
    assert large.sides(4) == [90] * 4


def test_string_labels(tmp_path):
    path = save(tmp_path / "x.npz", x=np.zeros((2, 3)), y=np.array(["cafe\u0301", "tea"]))
    assert open_listing(path, labelled=True).labels == ("caf\u00e9", "tea")


def test_labels_of_the_target_are_not_even_read(tmp_path):
    path = save(tmp_path / "x.npz", x=np.zeros((2, 3)), y=np.array([object(), None]))
    assert open_listing(path, labelled=False).labels is None
    assert "'y' holds Python objects" in error(path)


FEATURES = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"data": FEATURES, "y": [0, 1]}, ["no array named 'x'", "found: data, y"]),
        ({}, ["no array named 'x'", "found: nothing"]),
        ({"x": FEATURES, "labels": [0, 1]}, ["no array named 'y'", "found: x, labels"]),
        ({"x": np.array([object()]), "y": [0]}, ["'x' holds Python objects", "numbers"]),
        ({"x": np.zeros((2, 8, 8, 3)), "y": [0, 1]}, ["x is float64 of shape (2, 8, 8, 3)", "uint8 images", "255 * x"]),
        ({"x": np.zeros((2, 3), int), "y": [0, 1]}, ["x is int64 of shape (2, 3)", "floating-point features"]),
        ({"x": np.zeros((2, 3, 8, 8), np.uint8), "y": [0, 1]}, ["8 channels", "move the channels last"]),
        ({"x": np.zeros((2, 8, 8, 4), np.uint8), "y": [0, 1]}, ["4 channels", "(N, H, W, 1 or 3)"]),
        ({"x": np.zeros((0, 8, 8, 3), np.uint8), "y": []}, ["which is empty"]),
        ({"x": np.zeros((2, 0)), "y": [0, 1]}, ["which is empty"]),
        ({"x": np.array([[0.0], [np.nan], [np.inf]]), "y": [0, 1, 1]}, ["2 of 3 rows", "first: row 1"]),
        ({"x": np.array([[1e300], [0.0]]), "y": [0, 1]}, ["1 of 2 rows", "not finite in 32 bits"]),
        ({"x": FEATURES, "y": [0, 1, 2]}, ["2 samples in x but 3 labels in y"]),
        ({"x": FEATURES, "y": [[0, 1], [1, 0]]}, ["y is int64 of shape (2, 2)"]),
        ({"x_train": FEATURES, "y_test": [0, 1]}, ["no array named 'y_train'", "found: x_train, y_test"]),
        (
            {"x_train": FEATURES, "y_train": [0, 1], "x_test": np.zeros((2, 4)), "y_test": [0, 1]},
            ["shape (3,) in its train part but (4,) in its test part"],
        ),
        ({"x_train": FEATURES, "y_train": [0]}, ["2 samples in x_train but 1 labels in y_train"]),
        ({"x": FEATURES, "y": [0.5, 1.0]}, ["y is float64 of shape (2,)", "integer or string"]),
    ],
)
def test_errors_name_the_file_and_what_was_found(tmp_path, arrays, words):
    path = save(tmp_path / "x.npz", **arrays)
    sentence = error(path)
    assert sentence.startswith(f"{path}: ")
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


def test_damaged_files(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(b"")
    assert "cannot be read as .npz" in error(path)
    path.write_bytes(b"PK\x03\x04 and nothing else")
    assert "cannot be read as .npz" in error(path)
    with path.open("wb") as file:
        np.save(file, FEATURES)
    assert "one bare array" in error(path)
    save(path, x=np.random.default_rng(0).random((50, 50)), y=np.arange(50))
    content = bytearray(path.read_bytes())
    content[2000:2010] = bytes(10)
    path.write_bytes(content)
    assert "cannot be read as .npz" in error(path)
    content[40:60] = bytes(20)
    path.write_bytes(content)
    assert "cannot be read as .npz" in error(path)


def test_an_array_with_a_broken_header(tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00\x08\x00garbage\n")
    assert "cannot be read as .npz" in error(path)


def test_arrays_in_memory_may_have_their_channels_first_or_last():
    x = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5)
    first = listing_of_arrays(x, ["a", "b"], name="memory")
    last = listing_of_arrays(x.permute(0, 2, 3, 1).numpy(), None, name="memory")
    assert (first.labels, last.labels) == (("a", "b"), None)
    for listing in (first, last):
        assert torch.equal(listing.read([0, 1], None).x, x)
        assert listing.item_names == ["memory[0]", "memory[1]"]
    with pytest.raises(UserError, match="memory: x is int64"):
        listing_of_arrays(np.zeros((2, 3), int), None, name="memory")


def test_parts(tmp_path):
    arrays = {
        "x_test": np.full((2, 4, 4), 7, np.uint8), "y_test": [1, 0],
        "x_train": np.full((3, 4, 4, 1), 9, np.uint8), "y_train": [[0], [1], [1]],
        "x_val": np.full((1, 4, 4, 3), 8, np.uint8), "y_val": [0],
    }  # fmt: skip
    path = save(tmp_path / "x.npz", **arrays)
    listing = open_listing(path, labelled=True)
    assert listing.parts == ("train",) * 3 + ("validation",) + ("test",) * 2
    assert listing.labels == ("0", "1", "1", "0", "1", "0")
    assert listing.read(range(6), None).x[:, 0, 0, 0].tolist() == [9, 9, 9, 8, 7, 7]
    train = open_listing(path, labelled=True, part="train")
    assert (len(train), train.labels) == (3, ("0", "1", "1"))
    assert open_listing(path, labelled=False).labels is None


def test_other_names_of_parts_and_parts_without_labels(tmp_path):
    x = np.zeros((2, 4, 4), np.uint8)
    path = save(tmp_path / "x.npz", train_images=x, train_labels=[[0], [1]], test_images=x)
    listing = open_listing(path, labelled=True)
    assert listing.parts == ("train", "train")
    assert listing.notes == (f"{path}: no labels for test_images, which is left out",)
    assert open_listing(path, labelled=False).parts == ("train", "train", "test", "test")


def test_x_and_y_win_over_parts(tmp_path):
    path = save(tmp_path / "x.npz", x=np.zeros((2, 3)), y=[0, 1], x_test=np.zeros((5, 3)))
    listing = open_listing(path, labelled=True)
    assert (len(listing), listing.parts) == (2, None)


def test_labels_of_parts_are_not_even_read(tmp_path):
    path = save(tmp_path / "x.npz", x_train=np.zeros((2, 3)), y_train=np.array([object(), None]))
    assert open_listing(path, labelled=False).labels is None
    assert "'y_train' holds Python objects" in error(path)


def test_a_column_of_labels(tmp_path):
    path = save(tmp_path / "x.npz", x=np.zeros((2, 3)), y=[[4], [5]])
    assert open_listing(path, labelled=True).labels == ("4", "5")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["train_32", "test_32", "label_train", "label_test", "train_28"],
         {"train": ("train_32", "label_train"), "test": ("test_32", "label_test")}),
        (["trainImages", "trainLabels"], {"train": ("trainImages", "trainLabels")}),
        (["X", "y"], {None: ("X", "y")}),
        (["fea", "gnd"], {None: ("fea", "gnd")}),
        (["validX"], {"validation": ("validX", None)}),
        (["mean", "std"], {None: (None, None)}),
        ([], {None: (None, None)}),
    ],
)  # fmt: skip
def test_keys_are_paired_by_their_words(keys, expected):
    assert pair_keys(keys) == expected


def test_declared_sizes_are_not_believed(tmp_path):
    path = tmp_path / "x.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**50, 4, 4)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(64))
    assert "cannot be read as .npz" in error(path, labelled=False)


def test_what_unfolds_without_end_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros((1000, 28, 28), np.uint8))
    assert len(open_listing(path, labelled=False)) == 1000
    monkeypatch.setattr("graphmsda.data.readers.arrays.most_bytes", lambda path: 50 * path.stat().st_size)
    assert "'x' unfolds to far more than the file holds" in error(path, labelled=False)


def test_an_archive_of_pictures_is_not_read_out_in_full(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for number in range(5000):
            archive.writestr(f"cat/{number}.png", b"")
    with pytest.raises(UserError, match=r"no array named 'x' in it \(found: cat/0.png.*cat/9.png and 4,990 more\)"):
        open_listing(tmp_path / "a.npz", labelled=True)
