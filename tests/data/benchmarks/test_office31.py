from collections import Counter

import pytest
from tests.data.benchmarks.trees import folder_of, zip_of

from graphmsda.data.benchmarks.benchmark import item_key
from graphmsda.data.benchmarks.office31 import OFFICE_31
from graphmsda.errors import UserError

COUNTS = {"amazon": 20, "webcam": 9, "dslr": 7}
CLASSES = [f"class_{number:02}" for number in range(31)]


def names(domain, level=""):
    return [f"{level}{label}/frame_{n:04}.jpg" for label in CLASSES for n in range(COUNTS[domain])]


@pytest.fixture(scope="module", params=["images", "plain", "wrapped", "zip", "zip-images", "office31"])
def place(request, tmp_path_factory):
    """Office-31 in one of the layouts in which it lies around."""
    root = tmp_path_factory.mktemp(request.param)
    for domain in COUNTS:
        if request.param == "zip":
            zip_of(root / f"{domain}.zip", names(domain))
        elif request.param == "zip-images":
            zip_of(root / f"{domain}.zip", names(domain, f"{domain}/images/"))
        else:
            wrapper = {"wrapped": "domain_adaptation_images", "office31": "office31"}.get(request.param, "")
            level = "" if request.param == "plain" else "images/"
            folder_of(root / wrapper / domain, names(domain, level))
    return root


def keys(listing):
    return {item_key(name) for name in listing.item_names}


def test_every_layout_gives_the_same_parts(place):
    assert OFFICE_31.missing(place) == {}
    for domain, count in COUNTS.items():
        whole, train, validation = (
            OFFICE_31.open(place, domain, part, labelled=True) for part in ("all", "train", "validation")
        )
        assert Counter(whole.labels) == dict.fromkeys(CLASSES, count)
        held = 2 if count == 20 else 1
        assert Counter(validation.labels) == dict.fromkeys(CLASSES, held)
        assert Counter(train.labels) == dict.fromkeys(CLASSES, count - held)
        assert keys(train) | keys(validation) == keys(whole)
        assert not keys(train) & keys(validation)
    drawn = sorted(keys(OFFICE_31.open(place, "amazon", "validation", labelled=True)))
    assert drawn[:4] == ["class_00/frame_0006", "class_00/frame_0009", "class_01/frame_0002", "class_01/frame_0005"]


def test_a_target_is_trained_on_and_tested_as_a_whole(place):
    assert OFFICE_31.transductive
    target = OFFICE_31.open(place, "webcam", "all", labelled=False)
    test = OFFICE_31.open(place, "webcam", "test", labelled=True)
    assert target.labels is None
    assert keys(target) == keys(test)
    assert len(test.labels) == 9 * 31


def test_a_part_drawn_by_class_cannot_be_had_without_labels(place):
    with pytest.raises(UserError, match="office-31:dslr: its train part is drawn class by class"):
        OFFICE_31.open(place, "dslr", "train", labelled=False)


def test_a_download_that_was_not_unpacked_is_noticed(tmp_path):
    (tmp_path / "domain_adaptation_images.tar.gz").touch()
    assert OFFICE_31.missing(tmp_path)["dslr"] == (
        f"{tmp_path}/domain_adaptation_images.tar.gz holds several domains and has to be unpacked there"
    )


def test_a_missing_domain_is_named(tmp_path):
    folder_of(tmp_path / "amazon", names("amazon"))
    assert OFFICE_31.missing(tmp_path) == {
        domain: f"neither {domain}.zip nor a folder {domain} is in {tmp_path}" for domain in ("webcam", "dslr")
    }
