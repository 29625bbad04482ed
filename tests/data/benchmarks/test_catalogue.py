import json
import os

import pytest
from tests.data.benchmarks.test_digits_five import digit_names
from tests.data.benchmarks.test_pacs import names as pacs_names
from tests.data.benchmarks.trees import folder_of, real_data

from graphmsda.data.benchmarks.benchmark import item_key
from graphmsda.data.benchmarks.catalogue import (
    BENCHMARKS,
    find_benchmark,
    list_page,
    list_rows,
    open_task_listings,
    task_names,
)
from graphmsda.errors import UserError


@pytest.fixture
def root(tmp_path):
    """Digits-five and PACS as folders; nothing of the others."""
    for name in ("mnist", "mnistm", "usps", "svhn", "syn"):
        folder_of(tmp_path / "digits-five" / name, digit_names())
    for name in ("photo", "art_painting", "cartoon", "sketch"):
        folder_of(tmp_path / "pacs" / name, pacs_names())
    return tmp_path


def test_the_papers_four_benchmarks_with_the_settings_of_its_table_1():
    rows = [(b.name, len(b.domains), b.classes, b.image_size, b.backbone) for b in BENCHMARKS.values()]
    assert rows == [
        ("digits-five", 5, 10, 32, "3conv-2fc"),
        ("office-31", 3, 31, 252, "alexnet"),
        ("pacs", 4, 7, 224, "resnet18"),
        ("domainnet", 6, 345, 224, "resnet101"),
    ]
    assert [next(iter(b.variants)) for b in BENCHMARKS.values()] == ["paper"] * 4


def test_a_task_has_sources_with_labels_and_a_target_without(root):
    found = open_task_listings("digits-five:mm", root)
    assert found.source_names == ("mt", "up", "sv", "syn")
    assert found.target_name == found.test.name == "mm"
    assert [len(listing) for listing in found.sources] == [30] * 4
    assert [len(listing) for listing in found.validation] == [20] * 4
    assert all(listing.labels for listing in (*found.sources, *found.validation, found.test))
    assert found.target.labels is None
    assert (len(found.target), len(found.test)) == (30, 20)
    assert found.variant == "paper"


def test_where_there_is_no_test_part_the_whole_target_is_trained_on_and_tested(root):
    found = open_task_listings("PACS:S", root)
    assert found.record["counts"]["photo"] == {"train": 126, "validation": 14, "validation from": "training data"}
    assert found.target_name == "sketch"
    assert len(found.target) == len(found.test) == 140
    for source, held in zip(found.sources, found.validation, strict=True):
        assert (len(source), len(held)) == (126, 14)
        assert {item_key(name) for name in source.item_names}.isdisjoint(item_key(name) for name in held.item_names)


def test_the_record_says_all_of_it_in_json(root):
    record = json.loads(json.dumps(open_task_listings("digits-five:mm", root, "usps-3x").record))
    assert (record["benchmark"], record["variant"], record["seed"]) == ("digits-five", "usps-3x", 0)
    assert (record["sources"], record["target"]) == (["mt", "up", "sv", "syn"], "mm")
    assert record["counts"]["up"] == {"train": 90, "validation": 20, "validation from": "test part"}
    assert record["counts"]["mm"] == {"target": 30, "test": 20}
    assert record["domains"]["syn"] == {
        "kind": "folder", "files": ["syn/train", "syn/test"], "re-synthesised": True
    }  # fmt: skip
    assert str(root) not in json.dumps(record)


def message(*arguments):
    with pytest.raises(UserError) as caught:
        open_task_listings(*arguments)
    return str(caught.value)


def test_mistakes_in_a_tasks_name_are_told_in_one_sentence(root):
    known = "choose one of digits-five, office-31, pacs, domainnet"
    assert message("digit-five:mm", root) == f"there is no benchmark 'digit-five'; did you mean digits-five? {known}"
    assert message("xyz:x", root) == f"there is no benchmark 'xyz'; {known}"
    assert message("pacs", root) == "task 'pacs' names no target; give one of its domains, such as pacs:photo"
    assert message("pacs:skech", root).startswith(
        "pacs has no domain 'skech'; did you mean sketch? choose one of photo,"
    )
    assert "did you mean usps-3x? choose one of paper, " in message("digits-five:mm", root, "usps3x")


def test_data_that_is_not_there_names_the_file_the_folder_and_the_command(root):
    assert message("office-31:dslr", root) == (
        f"office-31:amazon (Amazon) cannot be read: neither amazon.zip nor a folder amazon is in {root}/office-31; "
        "run graphmsda data prepare office-31, or say with --data-root where the data lies"
    )


def test_names_of_benchmarks_and_tasks():
    assert find_benchmark("Digits_Five").name == "digits-five"
    assert find_benchmark("office31").name == "office-31"
    assert len(task_names()) == 18
    assert "domainnet:quickdraw" in task_names()


def test_the_table_says_what_is_on_disk(root):
    rows = {row["name"]: row for row in list_rows(root)}
    assert [rows[name]["on_disk"] for name in ("digits-five", "office-31", "pacs", "domainnet")] == [
        True,
        False,
        True,
        False,
    ]
    assert rows["office-31"]["missing"]["dslr"] == f"neither dslr.zip nor a folder dslr is in {root}/office-31"
    assert rows["pacs"]["images"] == 9_991
    json.dumps(list(rows.values()))
    page = list_page(root)
    lines = page.splitlines()
    assert lines[0] == f"Benchmarks below {root}"
    assert lines[3].split() == ["digits-five", "5", "10", "169,298", "1.2", "GB", "yes"]
    assert lines[4].split() == ["office-31", "3", "31", "4,110", "not", "stated", "no"]
    assert "run graphmsda data prepare domainnet" in page
    assert all(line == line.rstrip() for line in lines)


def test_a_domain_that_is_missing_beside_others_has_a_line_of_its_own(root):
    os.rename(root / "pacs/photo", root / "pacs/photos")
    page = list_page(root)
    assert "3 of 4" in page
    assert f"  missing photo: neither photo.zip nor a folder photo is in {root}/pacs" in page


def test_tasks_of_the_real_data():
    root = real_data("digits-five")
    found = open_task_listings("digits-five:mm", root)
    assert [len(listing) for listing in found.sources] == [25_000, 7_291, 25_000, 25_000]
    assert (len(found.target), len(found.test)) == (25_000, 9_000)
    assert found.record["domains"]["syn"]["re-synthesised"] is True
    real_data("pacs")
    found = open_task_listings("pacs:sketch", root)
    assert len(found.target) == len(found.test) == 3_929
