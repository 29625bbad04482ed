import io
import json
import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from graphmsda.data.formats import open_listing
from graphmsda.data.readers import row_groups
from graphmsda.errors import UserError


def png(grey, size=(8, 6)):
    file = io.BytesIO()
    Image.new("L", size, grey).save(file, "PNG")
    return file.getvalue()


def structs(greys):
    return [{"bytes": png(grey), "path": f"{grey}.png"} for grey in greys]


def write(path, columns, names=None, group=None):
    """Write a table, with the names of classes as dataset hubs store them."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if names:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)
    return path


def greys(listing, indices=None):
    decoded = listing.read(range(len(listing)) if indices is None else indices, 4)
    assert decoded.failures == []
    return decoded.x[:, 0, 0, 0].tolist()


def error(path, labelled=True, **options):
    with pytest.raises(UserError) as caught:
        open_listing(path, labelled=labelled, format="parquet", **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}")
    return str(caught.value)


def test_images_and_names_of_classes(tmp_path):
    path = write(tmp_path / "a.parquet", {"image": structs([10, 20, 30]), "label": [1, 0, 1]}, ["cat", "dog"])
    listing = open_listing(path, labelled=True)
    assert listing.labels == ("dog", "cat", "dog")
    assert (listing.name, len(listing), listing.parts, listing.notes) == ("a", 3, None, ())
    assert listing.item_names == ["a.parquet[0]", "a.parquet[1]", "a.parquet[2]"]
    assert (listing.feature_count, listing.own_shape, listing.sides(2)) == (None, None, [6, 6])
    assert greys(listing, [2, 0]) == [30, 10]
    assert listing.picture(1).size == (8, 6)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bytes_without_a_struct(tmp_path, kind):
    images = pa.array([png(5), png(6)], kind)
    listing = open_listing(write(tmp_path / "a.parquet", {"img": images, "class": ["x", "y"]}), labelled=True)
    assert (greys(listing), listing.labels) == ([5, 6], ("x", "y"))


def test_many_groups_of_rows_and_files(tmp_path):
    write(tmp_path / "a.parquet", {"image": structs(range(50)), "label": [0] * 50}, group=7)
    write(tmp_path / "b.parquet", {"image": structs(range(50, 80)), "label": [1] * 30}, group=4)
    listing = open_listing(tmp_path, labelled=True)
    assert listing.labels == ("0",) * 50 + ("1",) * 30
    assert greys(listing) == list(range(80))
    order = np.random.default_rng(0).permutation(80).tolist()
    assert greys(listing, order) == order
    assert listing.item_names[49:51] == ["a.parquet[49]", "b.parquet[0]"]
    assert len(listing.item_names) == 80
    assert listing.sides(10) == [6] * 10


@pytest.mark.parametrize("order", [range(40), [*range(39, -1, -1)], [0, 39, 1, 38, 5, 5, 6, 20]])
def test_large_groups_are_read_in_blocks(tmp_path, monkeypatch, order):
    path = write(tmp_path / "a.parquet", {"image": structs(range(40)), "label": [0] * 40})
    monkeypatch.setattr(row_groups, "WHOLE", 100)
    monkeypatch.setattr(row_groups, "BLOCK", 600)
    monkeypatch.setattr(row_groups, "KEPT", 2000)
    monkeypatch.setattr(row_groups, "_states", {})
    listing = open_listing(path, labelled=False)
    assert greys(listing, order) == list(order)
    state = row_groups._states[os.getpid()]
    assert 1 < len(state.blocks) < 10
    assert state.size == sum(block.nbytes for block in state.blocks.values()) <= 2000


def test_what_is_kept_in_memory_is_bounded(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).bytes
    path = write(tmp_path / "a.parquet", {"image": [noise(10_000) for _ in range(100)], "label": [0] * 100}, group=10)
    monkeypatch.setattr(row_groups, "KEPT", 250_000)
    monkeypatch.setattr(row_groups, "_states", {})
    listing = open_listing(path, labelled=False)
    for index in range(100):
        listing.open_item(index)
    assert row_groups._states[os.getpid()].size < 250_000


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"),
        ("train/0000.parquet", "train/0001.parquet", "test/0000.parquet"),
        ("default/train/0.parquet", "default/train/1.parquet", "default/test/0.parquet"),
        ("train-0.parquet", "train-1.parquet", "validation-0.parquet"),
    ],
)
def test_parts(tmp_path, names):
    for number, name in enumerate(names):
        write(tmp_path / name, {"image": structs([3 * number, 3 * number + 1]), "label": [0, 1]})
    listing = open_listing(tmp_path, labelled=True, format="parquet")
    other = "validation" if "validation" in names[2] else "test"
    train = open_listing(tmp_path, labelled=True, format="parquet", part="train")
    assert sorted(listing.parts) == sorted(["train"] * 4 + [other] * 2)
    assert greys(train) == [0, 1, 3, 4]
    assert greys(open_listing(tmp_path, labelled=False, format="parquet", part=other)) == [6, 7]


def test_files_of_no_part_are_left_out(tmp_path):
    for name in ("train-0.parquet", "unsupervised-0.parquet"):
        write(tmp_path / name, {"image": structs([1, 2]), "label": [0, 1]})
    listing = open_listing(tmp_path, labelled=True)
    assert listing.parts == ("train", "train")
    assert "'unsupervised-0.parquet'" in listing.notes[0]


def test_a_column_with_parts(tmp_path):
    columns = {"image": structs([1, 2]), "label": [0, 1], "split": ["train", "val"]}
    assert open_listing(write(tmp_path / "a.parquet", columns), labelled=False).parts == ("train", "validation")


def test_paths_of_images(tmp_path):
    (tmp_path / "pictures").mkdir()
    for grey in (7, 8):
        (tmp_path / "pictures" / f"{grey}.png").write_bytes(png(grey))
    path = write(tmp_path / "a.parquet", {"file_name": ["7.png", "8.png"], "label": ["x", "y"]})
    assert greys(open_listing(path, labelled=True, root=tmp_path / "pictures")) == [7, 8]
    assert "2 of 2 images it names are not below" in error(path)
    columns = {"image": structs([1, 2]), "file_name": ["a.png", "b.png"], "label": ["x", "y"]}
    assert greys(open_listing(write(tmp_path / "b.parquet", columns), labelled=True)) == [1, 2]


def test_several_columns_with_images_or_labels(tmp_path):
    columns = {"mask": structs([1, 2]), "image": structs([3, 4]), "coarse_label": [0, 0], "fine_label": [0, 1]}
    path = write(tmp_path / "a.parquet", columns)
    listing = open_listing(path, labelled=True)
    assert (greys(listing), listing.labels) == ([3, 4], ("0", "1"))
    assert listing.notes == (
        f"{path}: labels were taken from the column 'fine_label' (also there: 'coarse_label')",
        f"{path}: images were taken from the column 'image' (also there: 'mask')",
    )


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pa.array(["b", "a"]).dictionary_encode(), ("b", "a")),
        (pa.array([1.0, 2.0]), ("1", "2")),
        (pa.array([True, False]), ("True", "False")),
        (pa.array(["cafe\u0301", "tea"]), ("caf\u00e9", "tea")),
    ],
)
def test_kinds_of_labels(tmp_path, labels, expected):
    path = write(tmp_path / "a.parquet", {"image": structs([1, 2]), "label": labels})
    assert open_listing(path, labelled=True).labels == expected


def test_rows_without_a_label_are_left_out(tmp_path):
    path = write(tmp_path / "a.parquet", {"image": structs([1, 2, 3]), "label": [0, -1, None]}, ["cat", "dog"])
    listing = open_listing(path, labelled=True)
    assert (listing.labels, greys(listing)) == (("cat",), [1])
    assert listing.notes == (f"{path}: 2 of 3 rows have no label and are left out",)
    assert len(open_listing(path, labelled=False)) == 3
    none = write(tmp_path / "b.parquet", {"image": structs([1]), "label": [-1]}, ["cat", "dog"])
    assert "none of its 1 rows has a label" in error(none)


def test_labels_of_the_target_are_not_read(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", {"image": structs([1, 2]), "label": [0, 99]}, ["cat", "dog"])
    monkeypatch.setattr("graphmsda.data.readers.parquet.read_column", None)
    monkeypatch.setattr("graphmsda.data.readers.parquet_columns.read_column", None)
    listing = open_listing(path, labelled=False)
    assert (listing.labels, greys(listing)) == (None, [1, 2])
    monkeypatch.undo()
    assert "column 'label' holds 99 where 2 classes are named" in error(path)


def test_features(tmp_path):
    x = np.arange(6, dtype=np.float64).reshape(3, 2)
    columns = {"id": [7, 8, 9], "a": x[:, 0], "b": x[:, 1].astype(int), "word": ["p", "q", "r"], "y": [0, 1, 0]}
    listing = open_listing(write(tmp_path / "a.parquet", columns), labelled=True)
    assert (listing.feature_count, listing.labels) == (2, ("0", "1", "0"))
    assert listing.read([2, 0], None).x.tolist() == [[4, 5], [0, 1]]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), 2), pa.list_(pa.float64()), pa.large_list(pa.int32())])
def test_features_in_one_column_of_lists(tmp_path, kind):
    columns = {"embedding": pa.array([[1, 2], [3, 4], [5, 6]], kind), "label": ["a", "b", "a"], "weight": [1, 2, 3]}
    for part in ("train", "test"):
        write(tmp_path / f"{part}.parquet", columns)
    listing = open_listing(tmp_path, labelled=True)
    assert listing.read([1, 3], None).x.tolist() == [[3, 4], [1, 2]]
    assert listing.parts == ("test",) * 3 + ("train",) * 3
    assert (open_listing(tmp_path / "test.parquet", labelled=False).labels, listing.feature_count) == (None, 2)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"image": structs([1])}, ["no column with labels (found: 'image')"]),
        ({"label": [0]}, ["no column of images", "label (int64)"]),
        ({"a": [1.0, None], "label": [0, 1]}, ["1 values are missing"]),
        ({"a": [1.0, float("nan")], "label": [0, 1]}, ["1 of 2 rows of its features", "not finite"]),
        ({"a": [[1.0], [1.0, 2.0]], "label": [0, 1]}, ["lists of features are of lengths 1 to 2"]),
        ({"image": structs([1]), "label": [[0]]}, ["column 'label' holds list"]),
        ({"image": structs([1]), "label": [0.5]}, ["column 'label' holds double"]),
        ({"image": structs([]), "label": pa.array([], pa.int64())}, ["has no rows"]),
    ],
)
def test_errors_name_the_file_and_what_was_found(tmp_path, columns, words):
    sentence = error(write(tmp_path / "a.parquet", columns))
    for word in words:
        assert word in sentence


def test_files_of_different_tables(tmp_path):
    write(tmp_path / "a.parquet", {"image": structs([1]), "label": [0]})
    write(tmp_path / "b.parquet", {"picture": structs([1]), "label": [0]})
    assert "its columns ('picture', 'label') are not those of a.parquet" in error(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "no .parquet file in it" in error(tmp_path / "empty")


def test_rows_without_an_image_are_unreadable(tmp_path):
    images = [{"bytes": png(1), "path": None}, {"bytes": None, "path": "x.png"}, None, {"bytes": b"", "path": None}]
    path = write(tmp_path / "a.parquet", {"image": images, "label": [0, 1, 0, 1]})
    decoded = open_listing(path, labelled=True).read(range(4), 4)
    assert decoded.kept == [0]
    assert decoded.failures == [(1, "no image in this row"), (2, "no image in this row"), (3, "empty file")]


def test_identity(tmp_path):
    path = write(tmp_path / "a.parquet", {"image": structs([1, 2]), "label": [0, 1]})
    first = open_listing(path, labelled=True)
    assert greys(first) == [1, 2]
    before = first.identity()
    assert before == open_listing(path, labelled=False).identity()
    write(path, {"image": structs([3, 4]), "label": [0, 1]})
    os.utime(path, ns=(1, 1))
    second = open_listing(path, labelled=True)
    assert second.identity() != before
    assert greys(second) == [3, 4]


def test_from_threads_and_processes(tmp_path):
    path = write(tmp_path / "a.parquet", {"image": structs(range(60)), "label": [0] * 60}, group=7)
    listing = open_listing(path, labelled=False)
    chunks = [[(7 * n + m) % 60 for n in range(60)] for m in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda chunk: greys(listing, chunk), chunks)) == chunks
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            assert pool.apply(greys, (listing, chunks[1])) == chunks[1]


def test_damaged_files_are_refused_or_read(tmp_path):
    columns = {"image": structs(range(20)), "label": [n % 2 for n in range(20)]}
    whole = write(tmp_path / "whole.parquet", columns, ["cat", "dog"], group=5).read_bytes()
    path = tmp_path / "a.parquet"
    for content in (b"", b"PAR1", b"nothing of the kind", whole[:-100], whole[: len(whole) // 2]):
        path.write_bytes(content)
        assert "cannot be read as Parquet" in error(path)
    random = np.random.default_rng(0)
    refused = unreadable = 0
    for _ in range(200):
        content = bytearray(whole)
        for place in random.integers(0, len(content), random.integers(1, 10)):
            content[place] = random.integers(256)
        path.write_bytes(content)
        try:
            listing = open_listing(path, labelled=True)
        except UserError as caught:
            refused += "\n" not in str(caught)
            continue
        unreadable += len(listing.read(range(len(listing)), 4).failures)
    assert refused > 10
    assert unreadable > 10


def test_declared_numbers_of_rows_are_not_believed(tmp_path):
    ones = pa.array(np.zeros(3_000_000, np.int8))
    path = write(tmp_path / "a.parquet", {"a": ones, "label": ones})
    assert path.stat().st_size < 100_000
    assert "declares 3,000,000 rows, far more than it can hold" in error(path)


def test_pyarrow_is_asked_for_where_it_is_missing(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", {"image": structs([1]), "label": [0]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "pip install 'graphmsda[formats]'" in error(path)
