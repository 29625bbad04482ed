import bz2

import numpy as np
import pytest

from graphmsda.data.readers.usps import open_libsvm, open_usps_h5
from graphmsda.errors import UserError


def line(label, values):
    return " ".join([str(label), *(f"{place}:{value}" for place, value in values.items())])


def write_libsvm(path, lines):
    text = "\n".join(lines).encode() + b"\n"
    path.write_bytes(bz2.compress(text) if path.suffix == ".bz2" else text)
    return path


@pytest.mark.parametrize("name", ["usps.bz2", "usps"])
def test_libsvm_labels_from_1_become_digits_and_values_become_grey_levels(tmp_path, name):
    dense = {place: 1 if place == 3 else -1 for place in range(1, 257)}
    path = write_libsvm(tmp_path / name, [line(10, dense), line(1, {1: -1, 256: 0.5})])
    listing = open_libsvm(path, labelled=True)
    assert listing.labels == ("9", "0")
    assert listing.own_shape == (16, 16)
    x = listing.read([0, 1], None).x
    assert (x[0] == 0).sum() == 3 * 255
    assert (x[0, :, 0, 2] == 255).all()
    assert x[1, 0, 0, 0] == 0
    assert x[1, 0, 15, 15] == 191
    assert x[1, 0, 7, 7] == 128  # a value left out is 0


def test_libsvm_labels_are_not_looked_at_unless_wanted(tmp_path):
    path = write_libsvm(tmp_path / "usps", [line("secret", {1: 1})])
    assert open_libsvm(path, labelled=False).labels is None
    with pytest.raises(UserError, match="line 1 is not of the form"):
        open_libsvm(path, labelled=True)


@pytest.mark.parametrize("bad", [line(11, {1: 0}), line(0, {1: 0}), "3 257:0", "3 1:x", "3 1", "3 1:2:3"])
def test_libsvm_lines_of_another_form_are_refused(tmp_path, bad):
    path = write_libsvm(tmp_path / "usps", [line(3, {1: 0}), bad])
    with pytest.raises(UserError, match=r"usps: line 2 is not of the form 'label 1:value"):
        open_libsvm(path, labelled=True)


def test_a_libsvm_file_that_is_not_usps_is_told(tmp_path):
    path = tmp_path / "usps.bz2"
    path.write_bytes(b"BZh9 nothing")
    with pytest.raises(UserError, match="cannot be read"):
        open_libsvm(path, labelled=True)
    content = bz2.compress(b"3 1:0\n" * 1000)
    path.write_bytes(content[:-10])
    with pytest.raises(UserError, match="cannot be read"):
        open_libsvm(path, labelled=True)
    with pytest.raises(UserError, match="holds no images"):
        open_libsvm(write_libsvm(tmp_path / "empty", []), labelled=True)
    with pytest.raises(UserError, match="not grey levels"):
        open_libsvm(write_libsvm(tmp_path / "large", [line(3, {1: 7})]), labelled=True)
    with pytest.raises(UserError, match="not grey levels"):
        open_libsvm(write_libsvm(tmp_path / "nan", [line(3, {1: "nan"})]), labelled=True)


def write_h5(path, **parts):
    import h5py

    with h5py.File(path, "w") as file:
        for part, (data, target) in parts.items():
            file[f"{part}/data"] = data
            file[f"{part}/target"] = target
    return path


def test_usps_h5_has_a_group_for_each_part(tmp_path):
    data = np.linspace(0, 1, 512).reshape(2, 256)
    path = write_h5(tmp_path / "usps.h5", train=(data, [6, 0]), test=(data[:1], [3]))
    listing = open_usps_h5(path, "train", labelled=True)
    assert listing.labels == ("6", "0")
    assert (listing.read([1], None).x[0, 1].numpy().ravel() == np.rint(data[1] * 255)).all()
    assert open_usps_h5(path, "test", labelled=True).labels == ("3",)
    assert open_usps_h5(path, "test", labelled=False).labels is None


def test_usps_h5_of_another_make_is_refused(tmp_path):
    path = write_h5(tmp_path / "usps.h5", train=(np.zeros((2, 100)), [1, 2]), test=(np.zeros((1, 256)), [11]))
    with pytest.raises(UserError, match=r"train/data has shape \(2, 100\)"):
        open_usps_h5(path, "train", labelled=True)
    with pytest.raises(UserError, match="labels that are not 0 to 9"):
        open_usps_h5(path, "test", labelled=True)
    with pytest.raises(UserError, match=r"cannot be read as usps.h5"):
        open_usps_h5(path, "validation", labelled=True)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"cannot be read as usps.h5"):
        open_usps_h5(path, "train", labelled=True)
