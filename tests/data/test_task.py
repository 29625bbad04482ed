import numpy as np
import pytest
import torch
from PIL import Image

from graphmsda.data.task import choose_image_size, load_task, load_task_report
from graphmsda.domains import Task
from graphmsda.errors import UserError


def folder(root, classes=("cat", "dog"), count=3, size=(12, 10)):
    """One flat picture per item, whose grey level tells its class and number apart."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("L", size, 100 * label + number).save(root / name / f"{number:03}.png")
    return root


def features(path, x=None, y=(0, 1, 0, 1)):
    np.savez(path, x=np.arange(12.0).reshape(4, 3) if x is None else x, y=y)
    return path


def sentence(*arguments, **options):
    with pytest.raises(UserError) as caught:
        load_task(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_task_from_folders(tmp_path):
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b", count=4)
    target = folder(tmp_path / "t", ("zebra", "ape", "unknown"), 2)
    task = load_task([a, str(b)], target)
    assert task.domains == ("a", "b", "t")
    assert task.classes == ("cat", "dog")
    assert task.sources[0].x.shape == (6, 3, 32, 32)
    assert task.sources[0].y.tolist() == [0, 0, 0, 1, 1, 1]
    assert task.sources[1].x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    assert task.target.x[:, 0, 0, 0].tolist() == [0 + 100, 1 + 100, 200, 201, 0, 1]  # ape, unknown, zebra
    assert not hasattr(task.target, "y")
    assert Task.load([a, b], target).fingerprint() == task.fingerprint()


def test_one_path_is_one_source(tmp_path):
    a, target = folder(tmp_path / "a"), folder(tmp_path / "t")
    assert load_task(str(a), target).domains == ("a", "t")
    assert load_task(a, target).domains == ("a", "t")


def test_the_target_may_be_flat(tmp_path):
    a = folder(tmp_path / "a")
    assert len(load_task([a], folder(tmp_path / "t") / "cat").target.x) == 3


def test_image_size(tmp_path):
    a, target = folder(tmp_path / "a"), folder(tmp_path / "t", size=(100, 90))
    assert load_task([a], target, image_size=8).target.x.shape[1:] == (3, 8, 8)
    large = folder(tmp_path / "large", size=(100, 90))
    assert load_task([large], target).sources[0].x.shape[1:] == (3, 224, 224)
    assert "image_size is 0" in sentence([a], target, image_size=0)
    assert callable(choose_image_size)


def test_arrays_keep_their_shape_unless_they_differ(tmp_path):
    def arrays(name, side):
        return features(tmp_path / name, np.full((4, side, side + 2), 7, np.uint8))

    a, b, c = arrays("a.npz", 20), arrays("b.npz", 20), arrays("c.npz", 30)
    assert load_task([a], b).target.x.shape == (4, 3, 20, 22)
    assert load_task([a], c).target.x.shape == (4, 3, 32, 32)
    task = load_task([folder(tmp_path / "f", ("0", "1"))], a)
    assert task.target.x.shape == (4, 3, 32, 32)


def test_features(tmp_path):
    a, target = features(tmp_path / "a.npz"), tmp_path / "t.npz"
    np.savez(target, x=np.ones((2, 3), np.float32))
    task = load_task([a], target, image_size=32)
    assert not task.is_images
    assert task.sources[0].x.dtype == torch.float32


def test_numeric_classes_are_in_numeric_order(tmp_path):
    a = features(tmp_path / "a.npz", np.zeros((4, 3)), [10, 9, -1, 2])
    assert load_task([a], features(tmp_path / "t.npz")).classes == ("-1", "2", "9", "10")
    mixed = folder(tmp_path / "m", ("b", "10", "9", "a"))
    assert load_task([mixed], folder(tmp_path / "t")).classes == ("9", "10", "a", "b")


def test_more_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("graphmsda.data.task.CHUNK", 4)
    task = load_task([folder(tmp_path / "a", count=5)], folder(tmp_path / "t", count=5))
    assert task.sources[0].x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]


def test_missing_and_empty_places(tmp_path):
    a, target = folder(tmp_path / "a"), folder(tmp_path / "t")
    assert "absent: not found" in sentence([a, tmp_path / "absent"], target)
    assert "absent: not found" in sentence([a], tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "empty: no images in it" in sentence([tmp_path / "empty"], target)
    assert "empty: no images in it" in sentence([a], tmp_path / "empty")
    assert "no source domain was given" in sentence([], target)


def test_classes_must_agree(tmp_path):
    target = folder(tmp_path / "t")
    a = folder(tmp_path / "a", ("cat", "dog", "eel"))
    b = folder(tmp_path / "b", ("cat", "dog", "fox"))
    found = sentence([a, b], target)
    assert f"{a} lacks 'fox'" in found
    assert f"{b} lacks 'eel'" in found
    one = folder(tmp_path / "one", ("cat",))
    assert f"{one}: only one class (cat)" in sentence([one], target)
    many = folder(tmp_path / "many", [str(number) for number in range(20)], 1)
    few = folder(tmp_path / "few", ("0", "1"))
    assert f"{few} lacks '2', '3', '4', '5', '6' and 13 more" in sentence([many, few], target)


def test_kinds_must_agree(tmp_path):
    pictures, vectors = folder(tmp_path / "p", ("0", "1")), features(tmp_path / "v.npz")
    for sources, target in (([pictures], vectors), ([vectors], pictures)):
        found = sentence(sources, target)
        assert f"{pictures} holds images and {vectors} feature vectors" in found
    longer = features(tmp_path / "l.npz", np.zeros((4, 5)))
    other = features(tmp_path / "o.npz")
    assert f"{vectors} has 3 features and {longer} 5" in sentence([vectors, longer], other)


def test_each_place_is_given_once(tmp_path):
    a, target = folder(tmp_path / "a"), folder(tmp_path / "t")
    assert "given as two sources" in sentence([a, tmp_path / "t" / ".." / "a"], target)
    (tmp_path / "link").symlink_to(a)
    assert "both a source and the target" in sentence([a], tmp_path / "link")
    assert f"{a}: lies inside {tmp_path}" in sentence([a], tmp_path)
    assert f"{a / 'cat'}: lies inside {a}" in sentence([a], a / "cat")


def test_domains_of_the_same_name_are_told_apart(tmp_path):
    places = [folder(tmp_path / where / "images") for where in ("x", "y", "z/x", "t")]
    assert load_task(places[:3], places[3]).domains == ("images (x)", "images (y)", "images (x) 2", "images (t)")


def spoil(root, count):
    paths = sorted(root.rglob("*.png"))
    for path in paths[1 : count + 1]:
        path.write_bytes(b"")
    return paths[1]


def test_a_few_unreadable_images_are_skipped_and_told(tmp_path):
    a, target = folder(tmp_path / "a", count=20), folder(tmp_path / "t", count=20)
    first = spoil(a, 2)
    task, notes = load_task_report([a], target)
    assert notes == [f"{a}: 2 of 40 images could not be read and were skipped (first: {first}, empty file)"]
    assert len(task.sources[0].x) == 38
    assert task.sources[0].y.tolist() == [0] * 18 + [1] * 20
    assert task.sources[0].x[:3, 0, 0, 0].tolist() == [0, 3, 4]
    assert load_task_report([target], folder(tmp_path / "u"))[1] == []


def test_too_many_unreadable_images_are_an_error(tmp_path):
    a, target = folder(tmp_path / "a", count=20), folder(tmp_path / "t", count=20)
    first = spoil(target, 3)
    found = sentence([a], target)
    assert f"{target}: 3 of 40 images could not be read (first: {first}, empty file)" in found
    assert "5%" in found


def test_a_target_without_any_readable_image(tmp_path):
    a, target = folder(tmp_path / "a"), tmp_path / "t"
    target.mkdir()
    for number in range(3):
        (target / f"{number}.jpg").write_bytes(b"nothing")
    assert "3 of 3 images could not be read" in sentence([a], target)
    assert "0.jpg, not a picture or damaged); give a folder with readable images" in sentence([a], target)


def test_progress_is_shown_on_stderr_alone(tmp_path, capsys):
    a, target = folder(tmp_path / "a"), folder(tmp_path / "t")
    quiet = load_task([a], target)
    assert capsys.readouterr() == ("", "")
    shown = load_task([a], target, progress=True)
    assert capsys.readouterr().out == ""
    assert shown.fingerprint() == quiet.fingerprint()


def test_a_list_named_for_a_part_is_taken_as_it_is(tmp_path):
    """`--target x_test.txt` must not train on the images of `x_train.txt` beside it, which the source has too."""
    folder(tmp_path / "x")
    (tmp_path / "x_train.txt").write_text("x/cat/000.png 0\nx/dog/000.png 1\n")
    (tmp_path / "x_test.txt").write_text("x/cat/001.png 0\nx/dog/001.png 1\nx/dog/002.png 1\n")
    task, notes = load_task_report([tmp_path / "x_train.txt"], tmp_path / "x_test.txt")
    assert task.domains == ("x_train.txt", "x_test.txt")
    assert task.sources[0].x[:, 0, 0, 0].tolist() == [0, 100]
    assert task.target.x[:, 0, 0, 0].tolist() == [1, 101, 102]
    assert not any("using its" in note for note in notes)


def test_what_a_recipe_says_as_text_or_wrongly(tmp_path):
    folder(tmp_path / "pictures")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "a.txt").write_text("cat/000.png cat\ndog/000.png dog\n")
    (tmp_path / "lists" / "b.txt").write_text("cat/001.png\ndog/001.png\n")
    lists = [tmp_path / "lists" / "a.txt"], tmp_path / "lists" / "b.txt"
    assert len(load_task(*lists, root=str(tmp_path / "pictures")).target.x) == 2
    for size in (0, -1, 100_000, "32", 1.5):
        told = f"image_size is {size}; give a side of at least 1 pixel and at most 4096, such as 32 or 224"
        assert sentence(*lists, root=tmp_path / "pictures", image_size=size) == told
    for odd in (5, None, ["a"]):
        assert f"{odd!r}: not a path; give a folder of images" in sentence([tmp_path / "pictures", odd], lists[1])
        assert f"{odd!r}: not a path" in sentence([tmp_path / "pictures"], odd)
    for name in ("root", "cache"):
        assert sentence(*lists, **{name: 5}) == f"{name} is 5; give the path of a folder"


def test_columns_in_another_order_are_refused(tmp_path):
    rows = "0,1,{}\n1,0,{}\n"
    for name, header in (("a", "p,q,label"), ("b", "q,p,label"), ("c", "u,v,label"), ("d", "P, Q,label")):
        (tmp_path / f"{name}.csv").write_text(header + "\n" + rows.format("cat", "dog"))
    a, b, c, d = (tmp_path / f"{name}.csv" for name in "abcd")
    for sources, target in (([a], b), ([a, b], c), ([b], a)):
        assert "in another order (feature 1 is " in sentence(sources, target)
    told = f"{b}: its columns are those of {a} in another order (feature 1 is 'q', not 'p'); write them in one order"
    assert sentence([a], b) == told
    assert load_task_report([a], d)[1] == []
    (note,) = load_task_report([a], c)[1]
    assert note.startswith(f"{c}: its columns have other names than those of {a} and were taken in their order")
    table = pytest.importorskip("pyarrow").table({"q": [0.5, 1], "p": [1.0, 0], "label": ["cat", "dog"]})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "e.parquet")
    assert "in another order" in sentence([a], tmp_path / "e.parquet")
    features(tmp_path / "f.npz", x=np.eye(2), y=("cat", "dog"))
    assert load_task_report([a], tmp_path / "f.npz")[1] == []
