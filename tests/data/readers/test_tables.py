import numpy as np
import pytest
from PIL import Image

from graphmsda.data.formats import open_listing
from graphmsda.errors import UserError


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding, newline="")
    return path


def values(listing):
    return listing.read(range(len(listing)), None).x.tolist()


def error(path, labelled=True, **options):
    with pytest.raises(UserError) as caught:
        open_listing(path, labelled=labelled, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_features(tmp_path, mark, end):
    rows = ["a,label,b", "1,cat,2.5", "-3e2,dog,4", ""]
    path = write(tmp_path / "x.y.csv", end.join(rows).replace(",", mark))
    listing = open_listing(path, labelled=True)
    assert (listing.name, listing.labels, listing.feature_count) == ("x.y", ("cat", "dog"), 2)
    assert values(listing) == [[1, 2.5], [-300, 4]]
    assert listing.notes == ()
    assert listing.item_names == ["x.y.csv[0]", "x.y.csv[1]"]


def test_one_row_and_one_feature(tmp_path):
    listing = open_listing(write(tmp_path / "x.csv", "a,y\n5,0"), labelled=True)
    assert (values(listing), listing.labels) == ([[5]], ("0",))


def test_quotes_a_byte_order_mark_and_blank_lines(tmp_path):
    path = write(tmp_path / "x.csv", '\n"a, or ""b""",Label\n"1","café, black"\n\n2,tea#4\n\n', "utf-8-sig")
    listing = open_listing(path, labelled=True)
    assert listing.labels == ("café, black", "tea#4")
    assert values(listing) == [[1], [2]]


def test_the_last_column_with_words_holds_labels(tmp_path):
    path = write(tmp_path / "x.csv", "note,a,species,b\nx,1,cat,2\ny,3,dog,4\n")
    listing = open_listing(path, labelled=True)
    assert listing.labels == ("cat", "dog")
    assert values(listing) == [[1, 2], [3, 4]]
    assert listing.notes == (
        f"{path}: labels were taken from the column 'species', the last one with words",
        f"{path}: columns that hold words are left out: 'note'",
    )
    assert values(open_listing(path, labelled=False)) == [[1, 2], [3, 4]]


def test_several_columns_that_may_hold_labels(tmp_path):
    path = write(tmp_path / "x.csv", "target,a,label\n0,1,cat\n1,3,dog\n")
    listing = open_listing(path, labelled=True)
    assert (listing.labels, values(listing)) == (("cat", "dog"), [[1], [3]])
    assert listing.notes == (f"{path}: labels were taken from the column 'label' (also there: 'target')",)


@pytest.mark.parametrize("cells", [("cat", "dog"), ("0", "1"), ("", ""), ("nan", "\u2603"), ("?", "1e999")])
def test_labels_of_the_target_are_not_looked_at(tmp_path, cells):
    text = "a,Label,b\n1,{},2\n3,{},4\n".format(*cells)
    listing = open_listing(write(tmp_path / "x.csv", text), labelled=False)
    assert listing.labels is None
    assert values(listing) == [[1, 2], [3, 4]]
    assert listing.notes == ()
    plain = open_listing(write(tmp_path / "y.csv", "a,b\n1,2\n3,4\n"), labelled=False)
    assert listing.identity() == plain.identity()


def test_labels_are_words_of_any_kind(tmp_path):
    path = write(tmp_path / "x.csv", "a,label\n1,none\n2,NA\n3,cafe\u0301\n4, 03 \n")
    assert open_listing(path, labelled=True).labels == ("none", "NA", "caf\u00e9", "03")


def test_numbers_of_rows_are_passed_over(tmp_path):
    path = write(tmp_path / "x.csv", ",id,a,label\n0,100,1,x\n1,101,2,y\n")
    assert values(open_listing(path, labelled=True)) == [[1], [2]]


def test_parts(tmp_path):
    path = write(tmp_path / "x.csv", "split,a,label\ntrain,1,x\nTest,2,y\nval,3,y\n")
    listing = open_listing(path, labelled=True)
    assert listing.parts == ("train", "test", "validation")
    assert values(open_listing(path, labelled=False, part="test")) == [[2]]
    assert "column 'split' names unknown parts ('fold1')" in error(
        write(tmp_path / "y.csv", "split,a,label\nfold1,1,x\n")
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is empty"]),
        ("\n\n", ["is empty"]),
        ("a,label\n", ["no rows"]),
        ("1,2,3\n4,5,6\n", ["first line holds numbers", "label"]),
        ("a,b\n1,2\n", ["no column with labels (found: 'a', 'b')", "call it label"]),
        ("label,name\nx,y\n", ["no column of numbers (found: 'label', 'name')"]),
        ("a,b,label\n1,2,x\n3,oops,y\n", ["line 3, column 'b'", "'oops' is not a finite number"]),
        ('a,b,label\n1,2,"x\ny"\n3,"1,5",y\n', ["line 4, column 'b'", "'1,5'"]),
        ("a,b,label\n1,2,x\n,5,y\n,NA,y\n", ["3 values are missing in 2 of 3 rows (first: line 3, column 'a')"]),
        ("a,b,label\n1,nan,x\n", ["1 values are missing in 1 of 1 rows"]),
        ("a,b,label\n1,inf,x\n", ["'inf' is not a finite number"]),
        ("a,b,label\n1,1e300,x\n", ["'1e300' is not a finite number in 32 bits"]),
        ("a,b,label\n1,2,x\n1,2\n", ["line 3 has 2 cells where the header names 3"]),
        ("a,b,label\n" + "1,2,x\n" * 30 + "1,2\n", ["line 32 has 2 cells where the header names 3"]),
        ("a,b,label\n1,2, \n1,2,x\n", ["1 of 2 rows have no label"]),
        ("cats/1.jpg,cat\ncats/2.jpg,cat\n", ["names an image", "path,label", "--format list"]),
        ("a\0b", ["not a text file"]),
        ("a,b,label\n1," + "2" * 200_000 + ",x\n", ["cannot be read as CSV"]),
    ],
)
def test_errors_name_the_place(tmp_path, text, words):
    sentence = error(write(tmp_path / "x.csv", text))
    for word in words:
        assert word in sentence


def test_extra_cells_far_down_are_noticed(tmp_path):
    path = write(tmp_path / "x.csv", "a,b,label\n" + "1,2,x\n" * 30 + "1,5,2,5,x\n")
    assert "line 32 has 5 cells" in error(path)
    assert "line 32 has 5 cells" in error(path, labelled=False)


def test_other_encodings_and_binary_files(tmp_path):
    assert "UTF-8" in error(write(tmp_path / "x.csv", "é,label\n1,x\n", "latin-1"))
    late = "a,label\n" + "1,x\n" * 500_000 + "2,é\n"
    assert "UTF-8" in error(write(tmp_path / "y.csv", late, "latin-1"))
    assert "UTF-8" in error(write(tmp_path / "y.csv", late, "latin-1"), labelled=False)
    (tmp_path / "z.csv").write_bytes(b"x" * 3_000_000)
    assert "not a text file with a row on each line" in error(tmp_path / "z.csv")


def test_many_rows(tmp_path):
    x = np.random.default_rng(0).normal(size=(60_000, 4)).astype(np.float32)
    lines = [f"{','.join(map(repr, row))},{number % 7}" for number, row in enumerate(x.tolist())]
    path = write(tmp_path / "x.csv", "a,b,c,d,label\n" + "\n".join(lines))
    listing = open_listing(path, labelled=True)
    assert np.array_equal(listing.read(range(len(x)), None).x.numpy(), x)
    assert listing.labels == tuple(str(number % 7) for number in range(len(x)))


@pytest.fixture
def pictures(tmp_path):
    for number, name in enumerate(("cat 1.png", "sub/dog.png", "é.png")):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 50 * number).save(tmp_path / "images" / name)
    return tmp_path / "images"


@pytest.mark.parametrize("column", ["path", "File", "image"])
def test_lists_of_images(tmp_path, pictures, column):
    text = f"{column},label,width,split\ncat 1.png,cat,8,train\nsub/dog.png,dog,8,test\né.png,cat,8,train\n"
    path = write(tmp_path / "list.csv", text)
    listing = open_listing(path, labelled=True, root=pictures)
    assert listing.labels == ("cat", "dog", "cat")
    assert listing.parts == ("train", "test", "train")
    assert listing.read([2, 1], 4).x[:, 0, 0, 0].tolist() == [100, 50]
    beside = write(pictures / "list.csv", text)
    assert open_listing(beside, labelled=False).labels is None
    assert open_listing(beside, labelled=False).identity() == listing.identity()


def test_lists_of_images_that_are_not_there(tmp_path, pictures):
    rows = [f"{number}.png,x" for number in range(7)] + ["é.png,y"]
    path = write(tmp_path / "list.csv", "path,label\n" + "\n".join(rows))
    sentence = error(path, root=pictures)
    assert f"7 of 8 images it names are not below {pictures} (first: {pictures / '0.png'}, " in sentence
    assert "4.png)" in sentence
    unlabelled = write(tmp_path / "other.csv", "path,label\né.png,\n")
    assert "1 of 1 images have no label" in error(unlabelled, root=pictures)
    assert len(open_listing(unlabelled, labelled=False, root=pictures)) == 1
    assert "no column with labels" in error(write(tmp_path / "third.csv", "path,width\né.png,3\n"), root=pictures)
