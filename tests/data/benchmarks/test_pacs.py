from collections import Counter

import pytest
from tests.data.benchmarks.trees import folder_of, real_data, zip_of

from graphmsda.data.benchmarks.benchmark import item_key, resolve_domain
from graphmsda.data.benchmarks.pacs import PACS
from graphmsda.errors import UserError

CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]


def names(suffix=".jpg", count=20):
    return [f"{label}/pic_{n:03}{suffix}" for label in CLASSES for n in range(count)]


def write_lists(folder, domain, per_class=20):
    """Write the official lists: every fifth image for validation, all for test, labels from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        (n, f"{domain}/{label}/pic_{n:03}.jpg {CLASSES.index(label) + 1}\n")
        for label in CLASSES
        for n in range(per_class)
    ]
    parts = {
        "train": [line for n, line in lines if n % 5],
        "crossval": [line for n, line in lines if not n % 5],
        "test": [line for _, line in lines],
    }
    for word, chosen in parts.items():
        (folder / f"{domain}_{word}_kfold.txt").write_text("".join(chosen))


def open_part(place, part, labelled=True, domain="photo"):
    return PACS.open(place, domain, part, labelled=labelled)


def keys(listing):
    return {item_key(name) for name in listing.item_names}


@pytest.mark.parametrize("layout", ["", "kfold", "PACS/kfold", "zip"])
def test_without_lists_a_tenth_of_each_class_is_for_validation(tmp_path, layout):
    if layout == "zip":
        zip_of(tmp_path / "photo.zip", names(".webp"))
    else:
        folder_of(tmp_path / layout / "photo", names())
    train, validation, test = (open_part(tmp_path, part) for part in ("train", "validation", "test"))
    assert Counter(train.labels) == dict.fromkeys(CLASSES, 18)
    assert Counter(validation.labels) == dict.fromkeys(CLASSES, 2)
    assert not keys(train) & keys(validation)
    assert len(test) == len(open_part(tmp_path, "all", labelled=False)) == 140
    assert sorted(keys(validation))[:3] == ["dog/pic_000", "dog/pic_004", "elephant/pic_001"]


@pytest.mark.parametrize("lists", ["", "kfold", "pacs_label", "splits"])
@pytest.mark.parametrize("images", ["folder", "zip"])
def test_official_lists_decide_where_they_are_present(tmp_path, lists, images):
    if images == "zip":
        zip_of(tmp_path / "photo.zip", names(".webp"))  # re-encoded, so the lists name other suffixes
    else:
        folder_of(tmp_path / "photo", names())
    write_lists(tmp_path / lists, "photo")
    train, validation, test = (open_part(tmp_path, part) for part in ("train", "validation", "test"))
    assert Counter(train.labels) == dict.fromkeys(CLASSES, 16)
    assert keys(validation) == {f"{label}/pic_{n:03}" for label in CLASSES for n in range(0, 20, 5)}
    assert keys(train) | keys(validation) == keys(test)
    assert len(open_part(tmp_path, "all", labelled=False)) == 140
    assert len(open_part(tmp_path, "train", labelled=False)) == len(train)
    assert "and official lists" in PACS.describe(tmp_path)["domains"]["photo"]["kind"]


def test_a_training_list_alone_does_not_count(tmp_path):
    folder_of(tmp_path / "photo", names())
    write_lists(tmp_path, "photo")
    (tmp_path / "photo_crossval_kfold.txt").unlink()
    assert PACS.describe(tmp_path)["domains"]["photo"]["kind"] == "folder"
    assert len(open_part(tmp_path, "train")) == 126


def test_without_the_test_list_the_whole_domain_is_tested(tmp_path):
    folder_of(tmp_path / "photo", names())
    write_lists(tmp_path, "photo")
    (tmp_path / "photo_test_kfold.txt").unlink()
    assert (len(open_part(tmp_path, "train")), len(open_part(tmp_path, "test"))) == (112, 140)


def test_lists_that_share_images_are_refused(tmp_path):
    folder_of(tmp_path / "photo", names())
    write_lists(tmp_path, "photo")
    (tmp_path / "photo_train_kfold.txt").write_text((tmp_path / "photo_test_kfold.txt").read_text())
    with pytest.raises(UserError, match=r"names images that photo_crossval_kfold.txt names too"):
        open_part(tmp_path, "train")


def test_a_list_that_names_missing_images_is_refused(tmp_path):
    folder_of(tmp_path / "photo", names(count=19))
    write_lists(tmp_path, "photo")
    with pytest.raises(UserError, match=r"7 of the 112 images it names are not in .*photo/dog/pic_019.jpg"):
        open_part(tmp_path, "train")


@pytest.mark.parametrize(
    ("text", "domain"), [("P", "photo"), ("a", "art_painting"), ("Art Painting", "art_painting"), ("Sketch", "sketch")]
)
def test_domains_have_the_letters_of_the_papers_tables(text, domain):
    assert resolve_domain(PACS, text) == domain


def test_the_real_zip_files_hold_all_9991_images():
    place = real_data("pacs") / "pacs"
    assert PACS.missing(place) == {}
    whole = {domain: open_part(place, "all", domain=domain) for domain in PACS.domains}
    assert {domain: len(listing) for domain, listing in whole.items()} == {
        "photo": 1_670, "art_painting": 2_048, "cartoon": 2_344, "sketch": 3_929,
    }  # fmt: skip
    assert sum(map(len, whole.values())) == PACS.images
    for domain, listing in whole.items():
        assert sorted(set(listing.labels)) == CLASSES
        train, validation = (open_part(place, part, domain=domain) for part in ("train", "validation"))
        assert len(train) + len(validation) == len(listing)
        assert set(train.labels) == set(validation.labels) == set(CLASSES)
    assert whole["sketch"].picture(0).size == (227, 227)
