import gzip
import io
import json
import struct
import zipfile

import numpy as np
import pytest
from PIL import Image

from graphmsda.data.benchmarks.digits_five import MARKER, find
from graphmsda.data.formats import open_listing
from graphmsda.data.obtain import synthesis
from graphmsda.data.obtain.mnist_m import blend, build_mnist_m
from graphmsda.data.obtain.synthesis import Dice
from graphmsda.errors import UserError


def idx(array):
    return struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    """Forty training and twenty test pictures in MNIST's own format: a bar whose place tells the digit."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name, count in (("train", 40), ("t10k", 20)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.zeros((count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[4:24, 4 + 2 * label : 6 + 2 * label] = 255
            image[3, 4 + 2 * label] = 1  # grey counts as ink
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return folder


@pytest.fixture
def photographs(tmp_path):
    """Ten even photographs, each of its own colour, so that a patch tells where it is from."""
    folder = tmp_path / "photographs"
    (folder / "more").mkdir(parents=True)
    for number in range(10):
        colour = (20 * number + 1, 100, 200 - 10 * number)
        Image.new("RGB", (60, 40 + number), colour).save(folder / ("more" if number % 2 else ".") / f"{number}.png")
    return folder


def error(*arguments, **options):
    with pytest.raises(UserError) as caught:
        build_mnist_m(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pictures(path):
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".png")]
        return {name: np.asarray(Image.open(io.BytesIO(archive.read(name)))).astype(int) for name in names}


def test_each_digit_is_the_difference_to_a_photograph(tmp_path, mnist, photographs):
    done = build_mnist_m(mnist, photographs, tmp_path / "mnistm.zip")
    assert (done.train, done.test, done.photographs, done.notes) == (40, 20, (8, 2), ())
    found = pictures(done.path)
    assert len(found) == 60
    for name, x in found.items():
        _, label, file = name.split("/")
        assert x.shape == (32, 32, 3)
        assert int(file.removesuffix(".png")) % 10 == int(label)
        ink = np.zeros((32, 32), dtype=bool)
        ink[6:26, 6 + 2 * int(label) : 8 + 2 * int(label)] = True
        ink[5, 6 + 2 * int(label)] = True
        background = x[0, 0]
        assert (x[~ink] == background).all()
        assert (x[ink] == 255 - background).all()


def test_training_and_test_use_different_photographs(tmp_path, mnist, photographs):
    found = pictures(build_mnist_m(mnist, photographs, tmp_path / "mnistm.zip").path)
    train, test = ({tuple(x[0, 0]) for name, x in found.items() if name.startswith(part)} for part in ("train", "test"))
    assert len(train) > 4
    assert len(test) == 2
    assert not train & test


def test_copies_of_a_photograph_do_not_come_into_both_parts(tmp_path, mnist, photographs):
    for number in range(10):
        (photographs / f"copy-{number}.png").write_bytes((photographs / "0.png").read_bytes())
    (photographs / "small.png").write_bytes(b"")
    Image.new("RGB", (31, 400)).save(photographs / "narrow.png")
    done = build_mnist_m(mnist, photographs, tmp_path / "mnistm.zip")
    assert done.photographs == (8, 2)
    assert done.notes == (f"{photographs}: 12 pictures are unreadable, too small or copies and were left out",)


def test_the_same_seed_gives_the_same_bytes_however_many_processes_blend(tmp_path, mnist, photographs, monkeypatch):
    monkeypatch.setattr(synthesis, "FEW", 0)
    monkeypatch.setattr(synthesis, "CHUNK", 8)
    one = build_mnist_m(mnist, photographs, tmp_path / "1.zip", processes=1).path.read_bytes()
    assert build_mnist_m(mnist, photographs, tmp_path / "2.zip", processes=3).path.read_bytes() == one
    assert build_mnist_m(mnist, photographs, tmp_path / "3.zip", seed=1).path.read_bytes() != one


def test_patches_come_from_everywhere():
    scene = np.arange(40 * 50, dtype=np.uint16).reshape(40, 50)
    scene = np.stack([scene % 256, scene // 256, scene * 0], axis=2).astype(np.uint8)
    corners = set()
    for number in range(2000):
        red, green, _ = blend(Dice(0, "train", number), np.zeros((28, 28), np.uint8), [scene])[0, 0].tolist()
        corners.add(divmod(red + 256 * green, 50))
    assert corners == {(row, column) for row in range(9) for column in range(19)}


def test_mnist_in_any_form(tmp_path, mnist, photographs):
    expected = pictures(build_mnist_m(mnist, photographs, tmp_path / "1.zip").path)
    with zipfile.ZipFile(tmp_path / "digits.zip", "w") as archive:
        for part, name in (("train", "train"), ("test", "t10k")):
            images = np.frombuffer(
                gzip.decompress((mnist / f"{name}-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8
            )
            for number, image in enumerate(images.reshape(-1, 28, 28)):
                content = io.BytesIO()
                Image.fromarray(image).save(content, "png")
                archive.writestr(f"{part}/{number % 10}/{number:03}.png", content.getvalue())
    with zipfile.ZipFile(tmp_path / "digits.zip") as archive:
        archive.extractall(tmp_path / "folder")
    listing = open_listing(tmp_path / "digits.zip", labelled=True)
    for number, form in enumerate((mnist.parent, tmp_path / "digits.zip", tmp_path / "folder", listing)):
        found = pictures(build_mnist_m(form, photographs, tmp_path / f"out-{number}.zip").path)
        assert len(found) == len(expected)
        assert {name.rpartition("/")[0] for name in found} == {name.rpartition("/")[0] for name in expected}


def test_the_archive_says_what_it_is_and_the_benchmark_takes_it(tmp_path, mnist, photographs):
    build_mnist_m(mnist, photographs, tmp_path / "mnistm.zip", seed=3)
    with zipfile.ZipFile(tmp_path / "mnistm.zip") as archive:
        about = json.loads(archive.read(MARKER))
        assert archive.read("README.txt").decode().startswith("Rebuilt MNIST-M: not the published files")
    assert about["command"] == "graphmsda data build-mnist-m --seed 3"
    assert len(about["photographs"]["train"]) == 8
    assert find(tmp_path, "mm").kind == "archive"
    assert len(open_listing(tmp_path / "mnistm.zip", labelled=True, part="test")) == 20


def test_mistakes_are_told(tmp_path, mnist, photographs):
    out = tmp_path / "mnistm.zip"
    assert "--photographs" in error(mnist, tmp_path / "gone", out)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "1.png").write_bytes((photographs / "0.png").read_bytes())
    (tmp_path / "one" / "2.png").write_bytes((photographs / "0.png").read_bytes())
    assert "1 of its 2 pictures can be used; give at least 2 different ones" in error(mnist, tmp_path / "one", out)
    (tmp_path / "none").mkdir()
    assert "no images in it" in error(mnist, tmp_path / "none", out)
    assert "not found" in error(tmp_path / "gone", photographs, out)
    text = error(tmp_path / "none", photographs, out)
    assert text.startswith(f"--mnist {tmp_path / 'none'}: none of train-images-idx3-ubyte.gz")
    assert "give the folder with MNIST's four files" in text
    assert "give the name of a .zip file" in error(mnist, photographs, tmp_path / "mnistm.tar")
    assert "--seed -1" in error(mnist, photographs, out, seed=-1)
    (tmp_path / "flat" / "3").mkdir(parents=True)
    (tmp_path / "flat" / "4").mkdir(parents=True)
    for digit in "34":
        Image.new("L", (28, 28)).save(tmp_path / "flat" / digit / "1.png")
    assert "no train and test part in it" in error(tmp_path / "flat", photographs, out)
    assert not out.exists()


def test_large_photographs_are_shrunk(tmp_path, mnist):
    (tmp_path / "large").mkdir()
    for number in range(2):  # stripes one pixel wide vanish when shrunk
        stripes = np.zeros((1000, 1500, 3), dtype=np.uint8)
        stripes[:, ::2] = 200 + number
        Image.fromarray(stripes).save(tmp_path / "large" / f"{number}.png")
    found = pictures(build_mnist_m(mnist, tmp_path / "large", tmp_path / "out.zip").path)
    assert all(x[0].std() < 30 for x in found.values())
