import pytest
from tests.data.benchmarks.trees import picture

from graphmsda.data.benchmarks.part_lists import find_list, rows_by_key, rows_in_list
from graphmsda.data.formats import open_listing
from graphmsda.errors import UserError


@pytest.fixture
def domain(tmp_path):
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/3 legs.png"):
        picture(tmp_path / "photo" / name)
    return open_listing(tmp_path / "photo", labelled=True)


def rows(listing, path, text, classes=2):
    path.write_text(text)
    return rows_in_list(listing, rows_by_key(listing), path, classes=classes)


def test_images_are_found_by_class_and_name_without_suffix(domain, tmp_path):
    text = "photo/dog/1.jpg 1\n\nphoto/cat/2.jpg 0\r\nphoto/dog/3 legs.png 1\nphoto/dog/1.jpg 1\n"
    assert rows(domain, tmp_path / "list.txt", text) == [2, 1, 3]


def test_labels_may_count_from_0_or_1(domain, tmp_path):
    for first, second in (("0", "1"), ("1", "2")):
        assert rows(domain, tmp_path / "list.txt", f"cat/1.png {first}\ndog/1.png {second}") == [0, 2]


def test_missing_images_are_counted_and_the_first_five_named(domain, tmp_path):
    text = "cat/1.png 0\n" + "".join(f"cat/x{n}.png 0\n" for n in range(7))
    with pytest.raises(UserError) as caught:
        rows(domain, tmp_path / "list.txt", text)
    assert str(caught.value) == (
        f"{tmp_path}/list.txt: 7 of the 8 images it names are not in {tmp_path}/photo (first: cat/x0.png, cat/x1.png, "
        "cat/x2.png, cat/x3.png, cat/x4.png); complete the images or take the list that belongs to them"
    )


@pytest.mark.parametrize("label", ["3", "two", "346"])
def test_labels_out_of_range_are_refused(domain, tmp_path, label):
    with pytest.raises(UserError, match=f"label '{label}' of class cat is not a number from 0 to 2"):
        rows(domain, tmp_path / "list.txt", f"cat/1.png {label}")


def test_a_label_that_stands_for_two_classes_is_refused(domain, tmp_path):
    with pytest.raises(UserError, match="label 1 stands for the class folders cat and dog"):
        rows(domain, tmp_path / "list.txt", "cat/1.png 1\ndog/1.png 1")


def test_without_labels_the_numbers_in_a_list_are_not_looked_at(domain, tmp_path):
    unlabelled = open_listing(tmp_path / "photo", labelled=False)
    assert rows(unlabelled, tmp_path / "list.txt", "cat/1.png nonsense\ndog/1.png 99") == [0, 2]


def test_an_empty_list_is_told(domain, tmp_path):
    with pytest.raises(UserError, match="names no images"):
        rows(domain, tmp_path / "list.txt", "\n \n")


def test_lists_are_looked_for_in_the_place_and_in_its_folders(tmp_path):
    assert find_list(tmp_path, "a.txt", ("lists",)) is None
    (tmp_path / "lists").mkdir()
    for path in ("lists/a.txt", "a.txt"):
        (tmp_path / path).touch()
        assert find_list(tmp_path, "a.txt", ("lists",)) == tmp_path / path
