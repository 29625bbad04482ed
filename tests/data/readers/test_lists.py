import os
import unicodedata
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from graphmsda.data.formats import open_listing
from graphmsda.data.readers.lists import open_list, part_named, read_list
from graphmsda.errors import UserError


def pictures(root, *names):
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (6, 6), number).save(path)


def write(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def error(path, **options):
    with pytest.raises(UserError) as caught:
        open_listing(path, **({"labelled": True} | options))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("line", "path", "label"),
    [
        ("a/1.jpg 3", "a/1.jpg", "3"),
        ("  a/1.jpg\t3  ", "a/1.jpg", "3"),
        ("a/1.jpg,3", "a/1.jpg", "3"),
        ("a/1.jpg, 3", "a/1.jpg", "3"),
        ("a b/my cat.jpg 3", "a b/my cat.jpg", "3"),
        ("a b/my cat.jpg,big dog", "a b/my cat.jpg", "big dog"),
        ("a b/my cat.jpg\tbig dog", "a b/my cat.jpg", "big dog"),
        ("a,b.jpg 3", "a,b.jpg", "3"),
        ('"a, b.jpg", 3', "a, b.jpg", "3"),
        ("one.jpg two.jpg 3", "one.jpg two.jpg", "3"),
        ("picture 3", "picture", "3"),
        ("picture,3", "picture", "3"),
    ],
)
def test_lines(tmp_path, line, path, label):
    file = write(tmp_path / "x.txt", f"# a comment\r\n\r\n{line}\r\n")
    (read,) = read_list(file, labelled=True)
    assert (read.number, read.path, read.label) == (3, path, label)
    (read,) = read_list(file, labelled=False)
    assert (read.path, read.label) == (path, None)


def test_paths_alone_serve_where_no_labels_are_wanted(tmp_path):
    pictures(tmp_path, "my cat.png", "b.png")
    path = write(tmp_path / "x.txt", "\ufeffmy cat.png\nb.png\n")
    listing = open_listing(path, labelled=False)
    assert listing.item_names == [f"{tmp_path}/my cat.png", f"{tmp_path}/b.png"]
    assert listing.labels is None
    assert f"{path}: line 1 is 'my cat.png', without a label; give lines of 'path label'" == error(path)


def test_labels_are_not_looked_at_unless_wanted(tmp_path):
    pictures(tmp_path, "a/1.png", "b/2.png")
    path = write(tmp_path / "x.txt", "a/1.png -1\nb/2.png 0.5\na/1.png dog\n")
    listing = open_listing(path, labelled=False)
    assert listing.labels is None
    assert len(listing) == 2
    plain = open_listing(write(tmp_path / "x.txt", "a/1.png 1\nb/2.png 7\n"), labelled=False)
    assert plain.identity() == listing.identity()


def test_numeric_labels_are_named_after_folders_where_they_correspond(tmp_path):
    pictures(tmp_path, "d/cat/1.png", "d/dog/1.png", "d/cat/2.png")
    path = write(tmp_path / "d.txt", "d/cat/1.png 10\nd/dog/1.png 2\nd/cat/2.png 010\n")
    listing = open_listing(path, labelled=True)
    assert listing.labels == ("cat", "dog", "cat")
    assert listing.notes == (
        f"{path}: its 2 numeric labels are named after the folders of the images, such as 2 'dog'",
    )
    assert listing.name == "d"
    assert listing.origin == path


@pytest.mark.parametrize(
    ("lines", "labels"),
    [
        ("cat/1.png 0\ndog/1.png 1\ncat/2.png 1", ("0", "1", "1")),
        ("cat/1.png 0\ncat/2.png 1", ("0", "1")),
        ("cat/1.png 0\ncat/2.png 0", ("0", "0")),
        ("cat/1.png tabby\ndog/1.png poodle", ("tabby", "poodle")),
        ("1/1.png 0\n2/1.png 1", ("0", "1")),
    ],
)
def test_labels_stand_as_they_are_otherwise(tmp_path, lines, labels):
    pictures(tmp_path, "cat/1.png", "cat/2.png", "dog/1.png", "1/1.png", "2/1.png")
    listing = open_listing(write(tmp_path / "x.txt", lines), labelled=True)
    assert listing.labels == labels
    assert listing.notes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png 0\nb.png -1", "label '-1' in line 2 is a negative number; give whole numbers from 0 or 1 on, or names"),
        ("a.png 0\nb.png 1.5", "label '1.5' in line 2 is a fraction; give whole numbers from 0 or 1 on, or names"),
        ("a.png dog\nb.png 1", "label '1' in line 2 is a number but 'dog' in line 1 is not"),
        ("a.png 1\na.png 2", "a.png has label '1' in line 1 and '2' in line 2; keep the right one"),
        ("", "names no images"),
        ("# nothing\n\n", "names no images"),
        ("a.png 1\n,3", "line 2 is ',3', without a label"),
        ("a.png 1\nb.png\0 1", "line 2 is 'b.png\\x00 1', which names no image"),
        ("hello", "line 1 is 'hello', without a label"),
    ],
)
def test_bad_lines(tmp_path, text, message):
    pictures(tmp_path, "a.png", "b.png")
    assert f"{tmp_path / 'x.txt'}: {message}" in error(write(tmp_path / "x.txt", text))


def test_bad_files(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    path.write_bytes(b"a.png 1\n\xff\xfe")
    assert f"{path}: not text in UTF-8 (byte 8)" in error(path)
    monkeypatch.setattr("graphmsda.data.readers.lists.LARGEST", 3)
    assert "hardly a list" in error(path)
    monkeypatch.undo()
    monkeypatch.setattr(Path, "read_bytes", lambda self: (_ for _ in ()).throw(PermissionError(13, "denied")))
    assert "cannot be read (denied)" in error(path)


def test_repeated_lines_are_used_once_and_counted(tmp_path):
    pictures(tmp_path, "a/1.png", "b/2.png")
    path = write(tmp_path / "x.txt", "a/1.png 0\nb/2.png 1\na/1.png 0\na/1.png 0\n")
    listing = open_listing(path, labelled=True)
    assert len(listing) == 2
    assert f"{path}: 2 lines name an image again, which is used once" in listing.notes


def test_missing_images_are_counted_and_five_are_named(tmp_path):
    pictures(tmp_path, *(f"a/{number}.png" for number in range(5)))
    path = write(tmp_path / "x.txt", "".join(f"a/{number}.png 0\n" for number in range(2000)))
    named = ", ".join(f"a/{number}.png" for number in range(5, 10))
    expected = f"{path}: 1,995 of the 2,000 images it names are not below {tmp_path} (first: {named}); put them there"
    assert expected in error(path)
    assert "2,000 of the 2,000" in error(path, root=tmp_path / "absent", labelled=False)


@pytest.mark.parametrize("place", ["", "lists", "lists/deep", "beside"])
@pytest.mark.parametrize("images", ["", "images", "some where"])
def test_the_root_is_found(tmp_path, place, images):
    top = tmp_path / "top"
    pictures(top / images, "cat/1.png", "dog/2.png")
    path = write(top / place / "x.txt", "cat/1.png 0\n./dog/2.png 1\n")
    if place == "lists/deep" and images:
        assert "2 of the 2" in error(path)
        assert len(open_listing(path, labelled=True, root=top / images)) == 2
    else:
        listing = open_listing(path, labelled=True)
        assert listing.read([0, 1], 4).x[:, 0, 0, 0].tolist() == [0, 1]
        assert listing.labels == ("cat", "dog")


def test_absolute_paths_and_paths_from_windows(tmp_path):
    pictures(tmp_path, "cat/1.png", "dog/2.png")
    path = write(tmp_path / "x.txt", f"{tmp_path}/cat/1.png 0\ndog\\2.png 1\n")
    assert len(open_listing(path, labelled=False)) == 2


def test_accented_letters_are_found_however_they_are_spelt(tmp_path):
    composed, apart = (unicodedata.normalize(form, "señor") for form in ("NFC", "NFD"))
    pictures(tmp_path, f"{apart}/ñ.png", "b/1.png")
    os.rename(tmp_path / apart / "ñ.png", tmp_path / apart / unicodedata.normalize("NFD", "ñ.png"))
    listing = open_listing(write(tmp_path / "x.txt", f"{composed}/ñ.png 0\nb/1.png 1\n"), labelled=True)
    assert listing.labels == (composed, "b")
    assert listing.read([0], 4).kept == [0]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train.txt", "train"), ("clipart_test.txt", "test"), ("photo_crossval_kfold.txt", "validation"),
        ("photo-Val.lst", "validation"), ("photo.txt", None), ("train_test.txt", None), ("latest.txt", None),
    ],
)  # fmt: skip
def test_parts_in_names(name, part):
    assert part_named(Path(name)) == part


@pytest.mark.parametrize(
    ("train", "validation", "test", "domain"),
    [
        ("clipart_train.txt", None, "clipart_test.txt", "clipart"),
        ("train.txt", "val.txt", "test.txt", "place"),
        ("photo_train_kfold.txt", "photo_crossval_kfold.txt", "photo_test_kfold.txt", "photo"),
        ("Train-List.txt", None, "Test-List.txt", "place"),
    ],
)
def test_lists_of_other_parts_are_found(tmp_path, train, validation, test, domain):
    place = tmp_path / "place"
    pictures(place, *(f"{name}/{number}.png" for name in ("cat", "dog") for number in range(4)))
    lists = {
        train: "cat/0.png 0\ndog/0.png 1\ncat/1.png 0\n",
        validation: "cat/2.png 0\n",
        test: "dog/2.png 1\ndog/3.png 1\n",
    }
    for name, text in lists.items():
        if name:
            write(place / name, text)
    write(place / "other_test.txt", "cat/9.png 0\n")
    for name in filter(None, lists):
        counts = {part: len(open_listing(place / name, labelled=True, part=part)) for part in ("train", "test")}
        assert counts == {"train": 3, "test": 2}
        named = open_listing(place / name, labelled=False)
        assert len(named) == lists[name].count("\n")  # the one that was named
        assert not any("using its" in note for note in named.notes)  # which needs no telling
        alone = open_listing(place / name, labelled=False, part="test", alone=True)
        assert (alone.item_names, alone.parts) == (named.item_names, None)
    whole = open_list(place / test, labelled=True)
    assert whole.name == domain
    assert whole.parts == ("train",) * 3 + ("validation",) * bool(validation) + ("test",) * 2
    assert set(whole.labels) == {"cat", "dog"}


def test_a_folder_of_lists(tmp_path):
    pictures(tmp_path, "cat/1.png", "dog/1.png")
    write(tmp_path / "train.txt", "cat/1.png 0\n")
    write(tmp_path / "test.txt", "dog/1.png 1\n")
    listing = open_listing(tmp_path, labelled=True, format="list")
    assert listing.parts == ("train", "test")
    assert listing.name == tmp_path.name
    assert len(open_listing(tmp_path, labelled=True, format="list", part="test")) == 1
    (tmp_path / "empty").mkdir()
    assert "holds no train.txt or test.txt" in error(tmp_path / "empty", format="list")


def test_a_part_that_was_never_fetched_is_left_out(tmp_path):
    pictures(tmp_path, "cat/1.png", "dog/1.png")
    path = write(tmp_path / "x_train.txt", "cat/1.png 0\ndog/1.png 1\n")
    other = write(tmp_path / "x_test.txt", "cat/7.png 0\n")
    listing = open_listing(path, labelled=True)
    assert listing.labels == ("cat", "dog")
    assert f"{other}: left out, for none of its 1 images is below {tmp_path}" in listing.notes
    assert "1 of the 3 images it names are not below" in error(other)


def test_an_image_in_two_parts_is_told(tmp_path):
    pictures(tmp_path, "cat/1.png", "dog/1.png")
    path = write(tmp_path / "photo_train_kfold.txt", "cat/1.png 1\ndog/1.png 2\n")
    write(tmp_path / "photo_test_kfold.txt", "cat/1.png 1\n")
    listing = open_list(path, labelled=True)
    assert listing.parts == ("train", "train", "test")
    assert any("1 images are named in the lists of more than one part" in note for note in listing.notes)


def test_the_real_lists(tmp_path):
    place = os.environ.get("GRAPHMSDA_DATA")
    archive = Path(place or "absent") / "lists/domainnet-and-office31-lists.zip"
    if not archive.exists():
        pytest.skip("GRAPHMSDA_DATA does not lead to lists/domainnet-and-office31-lists.zip")
    with zipfile.ZipFile(archive) as file:
        for name in ("full_345_cdtrans/clipart_test.txt", "office31_lists/dslr_list.txt"):
            file.extract(name, tmp_path)
    clipart = read_list(tmp_path / "full_345_cdtrans/clipart_test.txt", labelled=True)
    assert (len(clipart), len({line.label for line in clipart})) == (14604, 345)
    dslr = tmp_path / "office31_lists/dslr_list.txt"
    for line in read_list(dslr, labelled=False):
        path = tmp_path / line.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    listing = open_listing(dslr, labelled=True)
    assert (listing.name, len(listing), len(set(listing.labels))) == ("dslr", 498, 31)
    assert "calculator" in listing.labels
