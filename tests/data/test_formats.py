import os

import pytest
from PIL import Image

from graphmsda.data import formats
from graphmsda.data.formats import open_listing, recognise
from graphmsda.errors import UserError


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (6, 6)).save(path)


def make(folder, *names):
    for name in names:
        path = folder / name
        if name.endswith(".png"):
            picture(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return folder


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.zip", "archive"), ("X.ZIP", "archive"), ("x.tar", "archive"), ("x.tar.gz", "archive"),
        ("x.tgz", "archive"), ("x.tar.bz2", "archive"), ("x.tbz2", "archive"), ("x.tar.xz", "archive"),
        ("x.txt", "list"), ("x.lst", "list"), ("x.npz", "npz"), ("x.mat", "mat"), ("x.parquet", "parquet"),
        ("x.csv", "csv"), ("x.jpeg", "image"),
    ],
)  # fmt: skip
def test_files_are_recognised_by_name(tmp_path, name, kind):
    assert recognise(tmp_path / name) == kind


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ((), "folder"),
        (("a/1.png", "b/1.png"), "folder"),
        (("train/a/1.png", "test/a/1.png"), "folder"),
        (("1.png", "2.png", "README.txt"), "folder"),
        (("train-00000.parquet", "README.md"), "parquet"),
        (("data/train-00000.parquet",), "parquet"),
        (("x.parquet", "images/1.png", "images/2.png"), "parquet"),
        (("train.txt", "test.txt", "1.png"), "list"),
        (("train.txt",), "list"),
        (("Train.txt", "images/1.png", "images/2.png"), "list"),
        (("train.txt", "test.txt", "train/1.png", "test/1.png"), "list"),
        (("train.txt", "pictures/1.png", ".cache/1.png"), "list"),
        (("train.txt", "notes/1.md", "code/x.py"), "list"),
    ],
)
def test_folders_are_recognised_by_what_is_in_them(tmp_path, names, kind):
    assert recognise(make(tmp_path, *names)) == kind


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (("train.txt", "cat/1.png", "dog/1.png"), "folder or as list"),
        (("train.txt", "images/cat/1.png", "images/dog/1.png"), "folder or as list"),
        (("train.txt", "train/cat/1.png", "train/dog/1.png"), "folder or as list"),
        (("1.png", "x.parquet"), "folder or as parquet"),
        (("labels.parquet", "cat/1.png", "dog/1.png"), "folder or as parquet"),
        (("train.txt", "x.parquet"), "list or as parquet"),
    ],
)
def test_an_ambiguous_folder_asks_for_the_format(tmp_path, names, kinds):
    with pytest.raises(UserError, match=f"could be read as {kinds}; say which with --format"):
        recognise(make(tmp_path, *names))


def test_the_format_settles_it(tmp_path):
    make(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "train.txt").write_text("cat/1.png 0\n")
    assert len(open_listing(tmp_path, labelled=True, format="folder")) == 2
    assert len(open_listing(tmp_path, labelled=True, format="list")) == 1


def test_recognising_does_not_walk_a_large_tree(tmp_path, monkeypatch):
    make(tmp_path, "train.txt")
    for number in range(30):
        (tmp_path / "images" / str(number) / "deep").mkdir(parents=True)
    for number in range(300):
        (tmp_path / "images" / f"{number}.json").touch()
    looked = []
    scandir = os.scandir

    class Counted:
        def __init__(self, folder):
            self.entries = scandir(folder)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.entries.close()

        def __iter__(self):
            for entry in self.entries:
                looked.append(entry.path)
                yield entry

    monkeypatch.setattr(os, "scandir", Counted)
    monkeypatch.setattr(formats, "GLANCE", 20)
    assert recognise(tmp_path) == "list"
    assert len(looked) < 20 + 20 * 20


def test_what_cannot_be_recognised_or_found(tmp_path):
    make(tmp_path, "x.doc")
    for path, message in (
        (tmp_path / "x.doc", "its name does not tell what it is"),
        (tmp_path / "absent", "not found"),
        ("x" * 5000, "not found"),
        ("a\0b", "not found"),
    ):
        with pytest.raises(UserError, match=message):
            open_listing(path, labelled=False)
    with pytest.raises(UserError, match="--format rar: unknown; choose one of folder, archive"):
        open_listing(tmp_path, labelled=False, format="rar")


def test_a_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"cannot be listed \(Permission denied\)"):
        recognise(tmp_path)


@pytest.mark.parametrize("format", ["npz", "mat", "csv", "image"])
def test_a_folder_is_no_such_file(tmp_path, format):
    with pytest.raises(UserError) as caught:
        open_listing(tmp_path, labelled=False, format=format)
    assert str(caught.value) == f"{tmp_path}: a folder; give a {format} file, or leave out --format {format}"
