import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from graphmsda.data.checks.check import check, check_listings, report_json, report_page
from graphmsda.data.readers.arrays import listing_of_arrays
from graphmsda.errors import UserError


def photograph(seed, side=96):
    rng = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for cells, weight in ((3, 120), (8, 80), (24, 40)):
        noise = Image.fromarray((255 * rng.random((cells, cells, 1)) * np.ones(3)).astype(np.uint8))
        total += weight / 255 * np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC), dtype=np.float64)
    return Image.fromarray(total.clip(0, 255).astype(np.uint8))


def put(path, picture, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)


@pytest.fixture
def places(tmp_path):
    """Two domains, each with classes cat and dog, of four different pictures a class."""
    for number, domain in enumerate(("amazon", "webcam")):
        for kind, name in enumerate(("cat", "dog")):
            for each in range(4):
                put(tmp_path / domain / name / f"{each}.png", photograph(100 * number + 10 * kind + each))
    return [tmp_path / "amazon", tmp_path / "webcam"]


def with_parts(path, parts):
    """A zip of ``part/class/name`` with the given pictures."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, (picture, options) in parts.items():
            with archive.open(name, "w") as file:
                picture.save(file, **options)
    return path


def members(group):
    return [(member.domain, member.part, member.label, Path(member.name).name) for member in group.members]


def test_clean_domains(places):
    report = check(places)
    assert [domain.name for domain in report.domains] == ["amazon", "webcam"]
    assert report.classes == ("cat", "dog")
    assert report.domains[0].classes == {"all": {"cat": 4, "dog": 4}}
    assert report.domains[0].imbalance == 1
    assert report.domains[0].sizes.width == (96, 96, 96)
    assert report.domains[0].sizes.distinct == 1
    assert report.groups == ()
    assert report.leaks() == ()
    assert "nothing amiss" in report_page(report)


def test_copies_inside_and_across_domains_with_their_labels(places):
    amazon, webcam = places
    put(webcam / "cat" / "copy.bmp", photograph(0))  # amazon/cat/0, the same pixels
    put(webcam / "cat" / "wrong.jpg", photograph(111), quality=60)  # webcam/dog/1, re-encoded
    put(amazon / "dog" / "again.png", photograph(12))
    report = check(places)
    first, second, third = report.groups
    assert members(first) == [("amazon", None, "cat", "0.png"), ("webcam", None, "cat", "copy.bmp")]
    assert (first.exact, first.across_domains, first.across_parts, first.conflicting_labels) == (
        True,
        True,
        False,
        False,
    )
    assert members(second) == [("webcam", None, "cat", "wrong.jpg"), ("webcam", None, "dog", "1.png")]
    assert (second.exact, second.across_domains, second.conflicting_labels) == (False, False, True)
    assert members(third) == [("amazon", None, "dog", "2.png"), ("amazon", None, "dog", "again.png")]
    page = report_page(report)
    assert "1 image lies in more than one domain (exact)" in page
    assert "1 group of copies with different labels (near)" in page
    assert "2 spare copies inside one domain and part (1 exact, 1 near): webcam 1, amazon 1" in page


def test_near_copies_can_be_left_aside(places):
    put(places[0] / "cat" / "near.jpg", photograph(0), quality=60)
    assert len(check(places).groups) == 1
    assert check(places, near=None).groups == ()
    with pytest.raises(UserError, match="from 0 to 12"):
        check(places, near=40)


def test_leakage_of_test_images_comes_first(tmp_path):
    plain = {f"{part}/cat/{n}.png": (photograph(n + 50 * (part == "test")), {"format": "PNG"})
             for part in ("train", "test") for n in range(3)}  # fmt: skip
    plain["train/dog/same.png"] = (photograph(30), {"format": "PNG"})
    plain["train/dog/twin.png"] = (photograph(30), {"format": "PNG"})
    plain["test/dog/leaked.png"] = (photograph(1), {"format": "PNG"})
    plain["test/cat/nearly.jpg"] = (photograph(2), {"format": "JPEG", "quality": 70})
    here = with_parts(tmp_path / "here.zip", plain)
    report = check([here])
    assert report.domains[0].parts == {"train": 5, "test": 5}
    assert report.domains[0].classes["test"] == {"cat": 4, "dog": 1}
    assert [group.across_parts for group in report.groups] == [True, True, False]
    assert report.groups[0].conflicting_labels
    assert [(leak.part, leak.also_in, leak.exact, leak.count) for leak in report.leaks()] == [
        ("test", "train", True, 1),
        ("test", "train", False, 1),
    ]
    lines = report_page(report).splitlines()
    findings = lines[lines.index("Findings") + 1 :]
    assert findings[0] == "  ! leakage: 1 test image of here is also in train data"
    assert findings[1].startswith("  ! perhaps leakage: 1 test image of here is nearly the same as train images")
    assert "Leakage: copies in different parts (2 groups)" in lines


def test_a_test_image_in_another_domains_training_data_is_leakage_too(tmp_path):
    def parts(seed):
        return {f"{part}/{name}/1.png": (photograph(seed + n), {"format": "PNG"})
                for n, (part, name) in enumerate((p, c) for p in ("train", "test") for c in "ab")}  # fmt: skip

    one, two = parts(0), parts(100)
    two["test/a/2.png"] = one["train/a/1.png"]
    report = check([with_parts(tmp_path / "one.zip", one), with_parts(tmp_path / "two.zip", two)])
    (leak,) = report.leaks()
    assert (leak.domain, leak.part, leak.also_in, leak.count) == ("two", "test", "train", 1)
    assert report.groups[0].across_domains


def test_damage_and_blank_images_are_told_and_nothing_stops(places):
    (places[0] / "cat" / "empty.png").write_bytes(b"")
    (places[0] / "dog" / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 not much of a picture")
    for number in range(30):
        put(places[1] / "dog" / f"white{number}.png", Image.new("RGB", (20 + number, 30), "white"))
    report = check(places)
    amazon, webcam = report.domains
    assert amazon.unreadable == 2
    assert [Path(name).name for name in amazon.unreadable_examples] == ["empty.png", "torn.jpg"]
    assert amazon.classes["all"] == {"cat": 5, "dog": 5}
    assert webcam.nearly_constant == 30
    assert report.groups == (), "blank images are no copies of each other"
    assert webcam.sizes.height == (30, 30, 96)
    assert webcam.sizes.distinct == 31
    assert webcam.imbalance == 34 / 4
    page = report_page(report)
    assert "amazon: 2 unreadable, such as" in page
    assert "webcam: 30 images of one colour" in page
    assert "8.5 : 1" in page


def test_a_domain_of_nothing_but_damage(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "x" / name).mkdir(parents=True)
        (tmp_path / "x" / name / "1.png").write_bytes(b"")
    report = check([tmp_path / "x"], sheets=tmp_path / "sheets")
    assert report.domains[0].unreadable == 2
    assert report.domains[0].sizes is None
    assert report.domains[0].sheet is None
    assert report_page(report)


def test_classes_are_matched_by_name_and_missing_ones_told(places):
    (places[1] / "dog").rename(places[1] / "Dog")
    put(places[1] / "fish" / "1.png", photograph(900))
    report = check(places)
    assert len(report.classes) == 3
    assert report.domains[0].missing == ("fish",)
    assert report.domains[1].missing == ()
    assert any("spelling" in note for note in report.notes)
    assert "amazon lacks 1 of 3 classes: fish" in report_page(report)


def test_numbers_here_and_words_there_are_shown_as_they_are(places):
    (places[1] / "cat").rename(places[1] / "0")
    (places[1] / "dog").rename(places[1] / "1")
    report = check(places)
    assert report.domains[0].missing == ("0", "1")
    assert any("by numbers" in note for note in report.notes)


def test_a_place_without_labels_is_looked_at_without(places, tmp_path):
    flat = tmp_path / "flat"
    for number in range(3):
        put(flat / f"{number}.png", photograph(700 + number))
    put(flat / "copy.png", photograph(0))
    report = check([*places, flat], sheets=tmp_path / "sheets")
    domain = report.domains[2]
    assert (domain.count, domain.classes, domain.missing, domain.imbalance) == (4, {}, (), None)
    assert "looked at without labels" in domain.notes[0]
    assert members(report.groups[0])[1] == ("flat", None, None, "copy.png")
    assert not report.groups[0].conflicting_labels
    assert "looked at without labels" in " ".join(report_page(report).split())
    assert Path(domain.sheet).exists()


def test_contact_sheets_of_domains_and_copies(places, tmp_path):
    put(places[0] / "cat" / "near.jpg", photograph(0), quality=60)
    report = check(places, sheets=tmp_path / "sheets")
    assert sorted(os.listdir(tmp_path / "sheets")) == ["amazon.png", "copies.png", "webcam.png"]
    assert report.domains[0].sheet == str(tmp_path / "sheets" / "amazon.png")
    assert report.copies_sheet == str(tmp_path / "sheets" / "copies.png")
    assert report.copies_sheet in report_page(report)
    for name in os.listdir(tmp_path / "sheets"):
        with Image.open(tmp_path / "sheets" / name) as sheet:
            assert sheet.width > 300


def test_feature_vectors(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 7)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x[:30], y=np.arange(30) % 3)
    np.savez(tmp_path / "b.npz", x=np.concatenate([x[30:], x[:2], x[:1]]), y=np.arange(23) % 3)
    report = check([tmp_path / "a.npz", tmp_path / "b.npz"], sheets=tmp_path / "sheets")
    assert report.domains[0].features == 7
    assert report.domains[0].range == (pytest.approx(float(x[:30].min())), pytest.approx(float(x[:30].max())))
    assert [len(group.members) for group in report.groups] == [3, 2]
    assert all(group.exact and group.across_domains for group in report.groups)
    assert not (tmp_path / "sheets").exists()
    page = report_page(report)
    assert "2 samples lie in more than one domain (exact)" in page
    assert "features" in page


def test_images_and_feature_vectors_are_not_mixed(places, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2), dtype=np.float32), y=np.arange(3))
    with pytest.raises(UserError, match=r"holds images and .* feature vectors"):
        check([places[0], tmp_path / "a.npz"])


def test_listings_of_one_name_are_one_domain():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    train = listing_of_arrays(x[:4], list("abab"), name="mt")
    test = listing_of_arrays(x[3:], list("bab"), name="mt")
    report = check_listings([train, test], names=["mt", "mt"])
    assert [(domain.name, domain.count) for domain in report.domains] == [("mt", 7)]
    assert [domain.name for domain in check_listings([train, test]).domains] != ["mt", "mt"]
    assert len(report.groups) == 1


@pytest.mark.parametrize(
    ("choose", "words"),
    [
        (lambda places: [], "no place was given"),
        (lambda places: [places[0], places[0]], "given twice"),
        (lambda places: [places[0], places[0] / "cat"], "lies inside"),
        (lambda places: [places[0] / "nowhere"], "not found"),
    ],
)
def test_mistakes_are_told_in_one_sentence(places, choose, words):
    with pytest.raises(UserError, match=words):
        check(choose(places))


def test_json_holds_everything(places, tmp_path):
    put(places[1] / "dog" / "copy.png", photograph(0))
    content = json.loads(report_json(check(places)))
    assert content["domains"][0]["classes"]["all"] == {"cat": 4, "dog": 4}
    assert content["domains"][1]["imbalance"] == 1.25
    (group,) = content["groups"]
    assert group["exact"]
    assert group["across_domains"]
    assert group["conflicting_labels"]
    assert [member["label"] for member in group["members"]] == ["cat", "dog"]
    assert content["leaks"] == []
    assert content["complete"]


def test_progress_goes_to_stderr(places, capsys):
    check(places, progress=True)
    assert capsys.readouterr().out == ""


def test_known_copies_in_pacs():
    root = os.environ.get("GRAPHMSDA_DATA")
    place = Path(root or "") / "pacs" / "art_painting.zip"
    if not root or not place.exists():
        pytest.skip("GRAPHMSDA_DATA names no folder with pacs/art_painting.zip")
    report = check([place])
    pairs = [{Path(member.name).stem for member in group.members} for group in report.groups]
    assert {"pic_066", "pic_089"} in pairs
    assert len(pairs) < 20
