"""A finished run predicts in order, skips what cannot be read, and says which source is nearest."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from graphmsda import Domain, EvalSet, Run, Task, Unlabelled, UserError, fit
from graphmsda.data.listing import Decoded
from graphmsda.data.readers.arrays import ArrayListing
from graphmsda.data.readers.folder import FolderListing
from graphmsda.graphs import prototypes as proto
from graphmsda.graphs import relation
from graphmsda.tables import evaluation_json, evaluation_table, write_predictions
from tests.conftest import QUICK, feature_task, image_task

CLASSES = ("class-0", "class-1", "class-2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    place = tmp_path_factory.mktemp("runs")
    exact = {**QUICK, "precision": "32"}  # class means of a few samples in bfloat16 decide ties the other way
    return {
        "mrf": fit(image_task(), "mrf", out=place / "mrf", **exact),
        "crf": fit(image_task(), "crf", out=place / "crf", **exact),
        "source-only": fit(image_task(), "source-only", out=place / "source-only", **exact),
        "features": fit(feature_task(), "mrf", out=place / "features", **QUICK),
    }


@pytest.fixture
def run(runs: dict[str, Run]) -> Run:
    return runs["mrf"]


def save_images(folder: Path, x: Tensor, suffix: str = "png") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03}.{suffix}" for number in range(len(x))]
    for path, image in zip(paths, x, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return paths


def chunks_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("run", "streaming"):
        monkeypatch.setattr(f"graphmsda.{module}.chunk_size", lambda shape, device: size)


def test_files_arrays_and_tensors_give_the_same(run: Run, tmp_path: Path) -> None:
    x = image_task(seed=5).target.x
    paths = save_images(tmp_path / "new", x)
    expected = run.method.predict(run.embed(x)).exp()
    np.savez(tmp_path / "new.npz", x=x.permute(0, 2, 3, 1).numpy())
    ways = [tmp_path / "new", str(tmp_path / "new"), paths, x, x.permute(0, 2, 3, 1).numpy(), tmp_path / "new.npz"]
    for data in ways:
        found = run.predict(data)
        assert len(found) == len(x)
        torch.testing.assert_close(found.probabilities, expected)
        assert found.labels == [CLASSES[k] for k in expected.argmax(1)]
        torch.testing.assert_close(found.confidence, expected.amax(1))
        assert found.errors == [None] * len(x)
    assert run.predict(tmp_path / "new").items == [str(path) for path in paths]
    assert run.predict(tmp_path / "new.npz").items[-1] == "new.npz[11]"


def test_the_layout_of_an_array_makes_no_difference(run: Run, tmp_path: Path) -> None:
    x = image_task(seed=5).target.x
    last = x.permute(0, 2, 3, 1).contiguous().numpy()
    before = last.copy()
    expected = run.evaluate(EvalSet("as trained on", x, torch.zeros(len(x), dtype=torch.int64)))
    np.save(tmp_path / "x.npy", last)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    first = run.predict(x)
    for data in (last, np.asfortranarray(last), last[:, :, ::-1][:, :, ::-1], mapped, torch.from_numpy(last)):
        found = run.predict(data)
        torch.testing.assert_close(found.probabilities, first.probabilities, rtol=1e-6, atol=1e-7)
        assert (found.labels, found.nearest_source) == (first.labels, first.nearest_source)
        assert found.items == [f"array[{row}]" for row in range(len(x))]
    assert [first.labels.count(name) for name in CLASSES] == expected.confusion[0]
    np.testing.assert_array_equal(last, before)
    grey = last[..., 0]
    colour = np.repeat(grey[..., None], 3, axis=3)
    torch.testing.assert_close(run.predict(grey).probabilities, run.predict(colour).probabilities)


def test_the_order_is_that_of_the_request(run: Run, tmp_path: Path) -> None:
    x = image_task(seed=5).target.x[:4]
    a, b = save_images(tmp_path / "a", x[:2]), save_images(tmp_path / "b", x[2:])
    found = run.predict([b[1], tmp_path / "a", b[0]])
    assert found.items == [str(path) for path in (b[1], *a, b[0])]
    torch.testing.assert_close(found.probabilities, run.predict(x[[3, 0, 1, 2]]).probabilities)


def test_unreadable_files_are_told_and_do_not_stop_the_rest(run: Run, tmp_path: Path) -> None:
    x = image_task(seed=5).target.x[:6]
    paths = save_images(tmp_path / "new", x)
    paths[1].write_bytes(b"")
    paths[2].write_text("no picture")
    paths[5].write_bytes(paths[5].read_bytes()[:200])
    found = run.predict(tmp_path / "new")
    assert found.items == [str(path) for path in paths]
    assert [error is None for error in found.errors] == [True, False, False, True, True, False]
    assert found.errors[1] == "empty file"
    assert found.errors[2] == "not a picture or damaged"
    assert [label is None for label in found.labels] == [False, True, True, False, False, True]
    assert [source is None for source in found.nearest_source] == [False, True, True, False, False, True]
    assert found.probabilities.isnan().all(1).tolist() == [False, True, True, False, False, True]
    torch.testing.assert_close(found.probabilities[[0, 3, 4]], run.predict(x[[0, 3, 4]]).probabilities)
    assert found.top(2)[1] == []
    only = run.predict(paths[1])
    assert only.labels == [None]
    assert only.errors == ["empty file"]


def test_a_missing_file_stops_with_one_sentence(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.png: not found"):
        run.predict(tmp_path / "nowhere.png")


def test_nothing_asked_nothing_answered(run: Run) -> None:
    found = run.predict([])
    assert len(found) == 0
    assert found.probabilities.shape == (0, 3)


@pytest.mark.parametrize("chunk", [1, 5, 12, 100])
def test_chunks_make_no_difference(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    paths = save_images(tmp_path / "new", image_task(seed=5).target.x)
    paths[6].write_bytes(b"")
    expected = run.predict(tmp_path / "new")
    chunks_of(chunk, monkeypatch)
    found = run.predict(tmp_path / "new")
    assert found.items == expected.items
    assert found.labels == expected.labels
    assert found.errors == expected.errors
    assert found.nearest_source == expected.nearest_source
    torch.testing.assert_close(found.probabilities, expected.probabilities, equal_nan=True)


def test_a_stream_reads_one_chunk_ahead(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_images(tmp_path / "new", image_task(seed=5).target.x)
    asked: list[list[int]] = []
    read = FolderListing.read

    def counted(self: FolderListing, indices: Sequence[int], image_size: int | None) -> Decoded:
        asked.append(list(indices))
        return read(self, indices, image_size)

    monkeypatch.setattr(FolderListing, "read", counted)
    chunks_of(5, monkeypatch)
    stream = run.stream(tmp_path / "new")
    assert asked == []
    first = next(stream)
    assert asked == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert len(first) == 5
    assert len(next(stream)) == 5
    assert asked[2:] == [[10, 11]]
    assert [len(part) for part in stream] == [2]
    assert len(asked) == 3


def test_what_goes_wrong_in_a_chunk_is_told_in_its_turn(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read = ArrayListing.read_in_place

    def failing(self: ArrayListing, rows: range, image_size: int | None) -> Decoded:
        if 10 in rows:
            raise UserError("the disk is gone")
        return read(self, rows, image_size)

    monkeypatch.setattr(ArrayListing, "read_in_place", failing)
    chunks_of(5, monkeypatch)
    stream = run.stream(image_task(seed=5).target.x)
    assert [len(next(stream)), len(next(stream))] == [5, 5]
    with pytest.raises(UserError, match="the disk is gone"):
        next(stream)


def test_a_stream_left_early_leaves_no_thread(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks_of(5, monkeypatch)
    before = threading.active_count()
    stream = run.stream(image_task(seed=5).target.x)
    next(stream)
    stream.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("name", ["mrf", "crf", "source-only", "features"])
def test_a_run_answers_as_its_method_does(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    x = (feature_task(seed=5) if name == "features" else image_task(seed=5, size=30)).target.x
    with torch.no_grad():
        embedding = run.method.embed(x)
        log_probabilities, scores = run.method.predict(embedding), run.method.source_scores(embedding)
    found = run.predict(x)
    torch.testing.assert_close(found.probabilities, log_probabilities.exp(), rtol=1e-5, atol=1e-6)
    assert found.labels == [CLASSES[k] for k in log_probabilities.argmax(1)]
    assert found.nearest_source == [run.domains[m] for m in scores.argmax(1)]


def test_what_does_not_depend_on_samples_is_computed_once(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    scale, prepare = proto.distance_scale, relation.prepare
    for module in ("crf", "mrf"):
        monkeypatch.setattr(
            f"graphmsda.methods.{module}.distance_scale", lambda *a, **b: (calls.append("scale"), scale(*a, **b))[1]
        )
    monkeypatch.setattr(relation, "prepare", lambda *a, **b: (calls.append("prepare"), prepare(*a, **b))[1])
    chunks_of(4, monkeypatch)
    for name, expected in (("crf", ["scale", "prepare"]), ("mrf", ["scale"])):
        run = Run.load(runs[name].path, device="cpu")
        before = {key: tensor.clone() for key, tensor in run.method.state_dict().items()}
        calls.clear()
        for _ in range(2):
            run.predict(image_task(seed=5).target.x)
        assert calls == expected
        assert all(torch.equal(tensor, before[key]) for key, tensor in run.method.state_dict().items())


def test_evaluation_reads_one_chunk_at_a_time(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    longest = [0]

    class Counted:
        """Samples that note how many are asked for at a time, as pictures in a file would be."""

        def __init__(self, x: torch.Tensor) -> None:
            self.x, self.shape, self.dtype = x, x.shape, x.dtype

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, rows: slice) -> torch.Tensor:
            longest[0] = max(longest[0], rows.stop - rows.start)
            return self.x[rows]

    chunks_of(4, monkeypatch)
    source = feature_task().sources[0]
    whole = runs["features"].evaluate(EvalSet("test", source.x, source.y))
    assert runs["features"].evaluate(EvalSet("test", Counted(source.x), source.y)) == whole
    assert longest == [4]


def test_top(run: Run) -> None:
    found = run.predict(image_task(seed=5).target.x)
    for row, best in zip(found.probabilities.tolist(), found.top(3), strict=True):
        order = sorted(range(3), key=lambda k: -row[k])
        assert best == [(CLASSES[k], pytest.approx(row[k])) for k in order]
    assert all(len(best) == 2 for best in found.top(2))
    assert all(len(best) == 3 for best in found.top(10))  # no more than there are


def test_nearest_source_of_mrf_is_the_likeliest_by_eq_18(run: Run) -> None:
    x = image_task(seed=5, size=30).target.x
    method = run.method
    z, c, seen = run.embed(x).double(), method.prototypes.detach().double(), method.seen
    pairs = [(m, k) for m in range(3) for k in range(3) if seen[m, k]]
    distances = [(c[p] - c[q]).square().sum() for p in pairs for q in pairs if p != q]
    temperature = method.tau * torch.stack(distances).mean()
    expected, margins = [], []
    for row in z:
        weight = {(m, k): torch.exp(-(row - c[m, k]).square().sum() / temperature) for m, k in pairs}
        total = sum(weight.values())
        of_sources = [sum(w for (m, _), w in weight.items() if m == source) / total for source in range(2)]
        expected.append(f"source-{int(of_sources[1] > of_sources[0])}")
        margins.append(abs(of_sources[0] - of_sources[1]) / total)
        score = method.source_scores(row[None].float())[0]
        torch.testing.assert_close(score.exp().double(), torch.stack(of_sources), rtol=1e-3, atol=1e-6)
    assert min(margins) > 1e-6
    assert run.predict(x).nearest_source == expected


@pytest.mark.parametrize("name", ["crf", "source-only"])
def test_nearest_source_of_others_has_the_nearest_class_mean(runs: dict[str, Run], name: str) -> None:
    run, task = runs[name], image_task()
    means = []
    with torch.no_grad():
        for number, source in enumerate(task.sources):
            z = run.method.embed(source.x, number)
            means.append([z[source.y == k].mean(0) for k in range(3)])
    x = image_task(seed=5, size=30).target.x
    expected = []
    for row in run.embed(x):
        nearest = [min(float((row - mean).square().sum()) for mean in of_source) for of_source in means]
        expected.append(f"source-{nearest.index(min(nearest))}")
    assert run.predict(x).nearest_source == expected
    assert set(expected) <= {"source-0", "source-1"}


def test_a_source_without_a_class_is_measured_by_its_other_classes(runs: dict[str, Run]) -> None:
    method = Run.load(runs["crf"].path, device="cpu").method
    z = method.source_means[0, 1][None]
    assert method.source_scores(z).argmax(1).tolist() == [0]
    method.source_means_seen[0, 1] = False
    distances = [float((z[0] - method.source_means[0, k]).square().sum()) for k in (0, 2)]
    assert float(method.source_scores(z)[0, 0]) == pytest.approx(-min(distances), rel=1e-4)


def labelled_folder(root: Path, size: int = 4) -> Path:
    task = image_task(seed=9, size=3 * size)
    for k, name in enumerate(CLASSES):
        save_images(root / name, task.sources[0].x[task.sources[0].y == k])
    return root


def test_evaluation_of_a_folder_with_a_corrupt_file(run: Run, tmp_path: Path) -> None:
    root = labelled_folder(tmp_path / "test")
    (root / "class-1" / "002.png").write_bytes(b"gone")
    result = run.evaluate(root)
    assert result.counts == {"class-0": 4, "class-1": 3, "class-2": 4}
    assert list(result.unreadable) == [str(root / "class-1" / "002.png")]
    assert result.unreadable[str(root / "class-1" / "002.png")] == "not a picture or damaged"
    confusion = [[0] * 3 for _ in range(3)]
    for k, name in enumerate(CLASSES):
        for label in run.predict(root / name).labels:
            if label is not None:
                confusion[k][CLASSES.index(label)] += 1
    assert result.confusion == confusion
    right = [confusion[k][k] for k in range(3)]
    assert result.accuracy == pytest.approx(sum(right) / 11)
    shares = zip(CLASSES, right, confusion, strict=True)
    assert result.per_class == pytest.approx({name: r / sum(row) for name, r, row in shares})


def test_evaluation_of_arrays(runs: dict[str, Run], tmp_path: Path) -> None:
    run, source = runs["features"], feature_task().sources[0]
    np.savez(tmp_path / "test.npz", x=source.x.numpy(), y=np.array([CLASSES[k] for k in source.y]))
    from_file = run.evaluate(tmp_path / "test.npz")
    assert from_file == run.evaluate(EvalSet("test", source.x, source.y))
    labels = run.predict(source.x).labels
    assert from_file.accuracy == pytest.approx(
        np.mean([a == CLASSES[k] for a, k in zip(labels, source.y, strict=True)])
    )


def test_classes_without_samples_have_no_accuracy(run: Run, tmp_path: Path) -> None:
    root = labelled_folder(tmp_path / "test")
    shutil.rmtree(root / "class-1")
    result = run.evaluate(root)
    assert result.per_class.keys() == {"class-0", "class-2"}
    assert result.counts["class-1"] == 0


def test_unknown_classes_are_named(run: Run, tmp_path: Path) -> None:
    root = labelled_folder(tmp_path / "test")
    (root / "class-1").rename(root / "klasse-1")
    with pytest.raises(UserError, match=r"classes klasse-1 are unknown to this model; it knows class-0, class-1"):
        run.evaluate(root)


def test_what_was_assumed_of_labels_is_told(runs: dict[str, Run], tmp_path: Path) -> None:
    x = feature_task().target.x[:9].numpy()
    sources = tuple(Domain(s.name, s.x, s.y) for s in feature_task().sources)
    numbered = Task(sources, feature_task().target, ("0", "1", "2"))
    run = fit(numbered, "source-only", out=tmp_path / "run", **QUICK)
    np.savez(tmp_path / "from-one.npz", x=x, y=np.arange(9) % 3 + 1)
    result = run.evaluate(tmp_path / "from-one.npz")
    assert result.counts == {"0": 3, "1": 3, "2": 3}
    assert result.notes == [f"{tmp_path}/from-one.npz: its classes 1 to 3 were read as 0 to 2, as elsewhere"]
    assert f"note: {result.notes[0]}" in evaluation_table(result).splitlines()
    assert json.loads(evaluation_json(result))["notes"] == result.notes


def test_a_list_that_is_named_is_the_one_that_is_read(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asks for `x_train.txt` is not to be answered with what `x_test.txt` beside it names."""
    lines = []
    for number, name in enumerate(CLASSES):
        paths = save_images(tmp_path / "pictures" / name, image_task(seed=number).target.x[:3])
        lines += [f"{name}/{path.name} {number}\n" for path in paths]
    (tmp_path / "x_train.txt").write_text("".join(lines[:-2]) + lines[0])
    (tmp_path / "x_test.txt").write_text(lines[0] + lines[-1])
    for name, count in (("x_train.txt", 7), ("x_test.txt", 2)):
        file = tmp_path / name
        assert sum(run.evaluate(file, root=tmp_path / "pictures").counts.values()) == count
        found = run.predict(file, root=tmp_path / "pictures")
        assert len(found) == count
        assert any("name an image again" in note for note in found.notes) == (name == "x_train.txt")
        (tmp_path / name).rename(tmp_path / "as-list")
        assert len(run.predict(tmp_path / "as-list", format="list", root=tmp_path / "pictures")) == count
        (tmp_path / "as-list").rename(tmp_path / name)
    assert write_predictions(run, [tmp_path / "x_train.txt"], None, root=tmp_path / "pictures") == (7, 0)
    assert capsys.readouterr().err.count("name an image again") == 1


def test_nothing_readable_to_evaluate(run: Run, tmp_path: Path) -> None:
    for name in CLASSES:
        (tmp_path / "test" / name).mkdir(parents=True)
        (tmp_path / "test" / name / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match="none of 3 samples could be read"):
        run.evaluate(tmp_path / "test")


@pytest.mark.parametrize("y", [[0, 1, 2, 3], [0, 1, 2, -1], [0, 1, 2], [0, 1, 2, 0, 1]])
def test_labels_that_cannot_be(runs: dict[str, Run], y: list[int]) -> None:
    with pytest.raises(UserError, match="test"):
        runs["features"].evaluate(EvalSet("test", feature_task().target.x[:4], torch.tensor(y)))


def test_samples_of_another_kind(runs: dict[str, Run], tmp_path: Path) -> None:
    features = "holds feature vectors of length 5, but this model reads images of 16 x 16 pixels; give data like those"
    with pytest.raises(UserError, match=features):
        runs["mrf"].predict(feature_task().target.x)
    save_images(tmp_path / "new" / "class-0", image_task().target.x[:1])
    images = "new: holds images, but this model reads feature vectors of length 5"
    with pytest.raises(UserError, match=images):
        runs["features"].predict(tmp_path / "new")
    with pytest.raises(UserError, match=images):
        runs["features"].evaluate(tmp_path / "new")
    with pytest.raises(UserError, match="holds feature vectors of length 6, but this model reads feature vectors of"):
        runs["features"].predict(np.zeros((2, 6), np.float32))


def test_a_mistake_in_any_input_is_told_before_anything_is_written(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_images(tmp_path / "new", image_task().target.x[:1])
    np.savez(tmp_path / "features.npz", x=np.zeros((2, 5), np.float32))
    with pytest.raises(UserError, match=r"features\.npz: holds feature vectors"):
        write_predictions(run, [tmp_path / "new", tmp_path / "features.npz"], None)
    assert capsys.readouterr().out == ""


def test_images_that_are_not_square(tmp_path: Path) -> None:
    """Arrays keep their own shape in training, so a run must read that shape again."""
    square = image_task(side=24)

    def cut(x: Tensor) -> Tensor:
        return x[..., :20, :].contiguous()

    sources = tuple(Domain(s.name, cut(s.x), s.y) for s in square.sources)
    task = Task(sources, Unlabelled("target", cut(square.target.x)), square.classes)
    run = fit(task, "source-only", out=tmp_path / "run", **QUICK)
    assert run.predict(task.target.x).errors == [None] * 12
    assert run.evaluate(EvalSet("test", sources[0].x, sources[0].y)).accuracy >= 0


def test_embeddings_do_not_depend_on_chunks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    x = image_task(seed=5).target.x
    expected = run.embed(x)
    chunks_of(5, monkeypatch)
    torch.testing.assert_close(run.embed(x), expected)
    assert expected.shape == (12, 128)


def test_history_and_what_is_known(run: Run) -> None:
    rows = run.history()
    assert [row["step"] for row in rows] == [3, 6]
    assert run.classes == CLASSES
    assert run.domains == ("source-0", "source-1", "target")
    assert run.about["steps"] == 6
    assert run.about["settings"]["batch_size"] == 6
    assert not run.method.training


def test_convolutions_of_a_loaded_run_have_their_channels_last(run: Run) -> None:
    weights = [weight for weight in Run.load(run.path, device="cpu").method.parameters() if weight.ndim == 4]
    assert weights
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        Run.load(tmp_path / "nowhere")


@pytest.fixture
def copy(run: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run.path, tmp_path / "copy"))


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_an_unfinished_run(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(UserError, match="has not finished training; run the same `graphmsda fit` again"):
        Run.load(copy)


def test_a_newer_format(copy: Path) -> None:
    about = json.loads((copy / "model.json").read_text())
    (copy / "model.json").write_text(json.dumps(about | {"format": 2, "backbone": "from-the-future"}))
    with pytest.raises(UserError, match=r"model\.json has format 2; this version reads 1; upgrade graphmsda"):
        Run.load(copy)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_a_damaged_description(copy: Path, text: str) -> None:
    (copy / "model.json").write_text(text)
    with pytest.raises(UserError, match=r"model\.json"):
        Run.load(copy)


def test_damaged_weights(copy: Path, runs: dict[str, Run]) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"model\.safetensors could not be read"):
        Run.load(copy)
    shutil.copy(runs["features"].path / "model.safetensors", copy / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors"):  # another run's
        Run.load(copy)


def test_a_gpu_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="--device cuda: PyTorch finds no CUDA device"):
        Run.load(run.path, device="cuda")


def test_hyperparameters_of_another_version_are_told(run: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    about = json.loads((copy / "model.json").read_text())
    about["parameters"]["forgotten"] = 1
    (copy / "model.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="has no hyper-parameter forgotten any more"):
        Run.load(copy)


def test_a_model_whose_tensors_meant_something_else_is_refused(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    about = json.loads((copy / "model.json").read_text())
    about["method_version"] = 99
    (copy / "model.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="have changed since this one was made; train it again"):
        Run.load(copy)
