"""The training loop end to end: killed and resumed, interrupted, refused, guarded, and spread over processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from graphmsda import METHODS, Run, Task, UserError, fit
from graphmsda.domains import Batch
from graphmsda.engine import folder
from graphmsda.engine.fit import Tally, finish, take_step, updated_parameters
from graphmsda.engine.optim import EVERY, averaging_weight
from graphmsda.engine.saving import Saver
from graphmsda.engine.settings import Settings
from graphmsda.engine.training import Training
from graphmsda.methods import Phase, SourceOnly
from tests.conftest import QUICK, feature_task, image_task

MODEL, STATE = "model.safetensors", "checkpoint/state.safetensors"


def write_task(task: Task, path: Path) -> list[str]:
    """Write a task as .npz files and return the flags that name them."""
    for domain in (*task.sources, task.target):
        x = domain.x.permute(0, 2, 3, 1) if task.is_images else domain.x
        arrays = {"x": x.numpy()} | ({"y": domain.y.numpy()} if hasattr(domain, "y") else {})
        np.savez(path / f"{domain.name}.npz", **arrays)
    sources = [str(path / f"{source.name}.npz") for source in task.sources]
    return ["--sources", *sources, "--target", str(path / "target.npz")]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "graphmsda", *map(str, arguments)]


def run_command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, **options)


def rows_of(path: Path) -> int:
    return len(folder.read_metrics(path / "metrics.jsonl"))


# --- killed at any moment ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["crf", "mrf"])
def test_killed_and_resumed_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    """SIGKILL after the first rows, in the middle, near the end and at random moments; then one undisturbed run."""
    flags = write_task(image_task(size=24), tmp_path)
    settings = ["--method", method, "--epochs", 24, "--steps-per-epoch", 5, "--batch-size", 6]
    settings += ["--checkpoint-seconds", 0, "--device", "cpu"]
    assert run_command("fit", *flags, *settings, "--out", tmp_path / "whole").returncode == 0

    killed, chance = tmp_path / "killed", random.Random(0)
    kills = 0
    for rows in (1, 4, 9, 14, 19, 23):
        child = subprocess.Popen(
            command("fit", *flags, *settings, "--out", killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while child.poll() is None and rows_of(killed) < rows:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.02)  # anywhere in a step, a checkpoint or a row
        kills += child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert kills >= 3, "the run was too fast to be killed in its course"
    assert run_command("fit", *flags, *settings, "--out", killed).returncode == 0

    assert (killed / MODEL).read_bytes() == (tmp_path / "whole" / MODEL).read_bytes()
    assert (killed / STATE).read_bytes() == (tmp_path / "whole" / STATE).read_bytes()
    one, two = (folder.read_metrics(p / "metrics.jsonl") for p in (killed, tmp_path / "whole"))
    assert [{**row, "seconds": 0} for row in one] == [{**row, "seconds": 0} for row in two]
    assert not list(killed.rglob("*.part"))


@pytest.mark.parametrize("processes", [1, 2])
def test_interrupted_run_keeps_its_place(processes: int, tmp_path: Path) -> None:
    flags = write_task(feature_task(size=60), tmp_path)
    settings = [
        "--epochs",
        4000,
        "--steps-per-epoch",
        5,
        "--batch-size",
        6,
        "--device",
        "cpu",
        "--out",
        tmp_path / "run",
    ]
    settings += ["--devices", processes]
    child = subprocess.Popen(command("fit", *flags, *settings), stderr=subprocess.PIPE, text=True)
    while child.poll() is None and rows_of(tmp_path / "run") < 2:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "the same command goes on from there" in told
    assert "Traceback" not in told
    assert (tmp_path / "run" / STATE).is_file()
    with pytest.raises(UserError, match="has not finished training"):
        Run.load(tmp_path / "run")


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "precision", "tolerance"), [
    ("mrf", "64", 1e-9),
    ("crf", "64", 1e-9),
    ("adabn", "64", 1e-9),
    ("mrf", "32", 2e-3),
])  # fmt: skip
def test_two_processes_equal_one(method: str, precision: str, tolerance: float, tmp_path: Path) -> None:
    """Weights, optimiser, averages, prototypes and batch statistics on the same global batch of odd size.

    In float32 a convolution's bias before a batch norm has no gradient but rounding, which Adam scales up to the
    learning rate (0.003 a step): that, not the batch, sets the tolerance.
    """
    flags = write_task(image_task(size=24), tmp_path)
    settings = ["--method", method, "--precision", precision, "--dropout", 0, "--batch-size", 7]
    settings += ["--epochs", 2, "--steps-per-epoch", 4 if precision == "64" else 2, "--device", "cpu"]
    settings += ["--set", "dropout=0"] if method == "crf" else []
    settings += ["--set", "tau=0.3"] if precision == "32" else []  # a softer posterior: rounding stays small
    for processes in (1, 2):
        result = run_command("fit", *flags, *settings, "--devices", processes, "--out", tmp_path / str(processes))
        assert result.returncode == 0, result.stderr
    one, two = (load_file(tmp_path / str(processes) / STATE) for processes in (1, 2))
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=0, atol=tolerance, msg=lambda m, key=key: f"{key}: {m}")


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    flags = [*write_task(image_task(size=24), tmp_path), "--precision", "64", "--dropout", "0", "--batch-size", "7"]
    flags += ["--device", "cpu", "--steps-per-epoch", "3"]
    for processes in (1, 2):
        out = ["--out", tmp_path / str(processes)]
        assert run_command("fit", *flags, *out, "--epochs", 1).returncode == 0
        result = run_command("fit", *flags, *out, "--epochs", 2, "--extend", "--devices", processes)
        assert result.returncode == 0, result.stderr
    one, two = (load_file(tmp_path / str(processes) / STATE) for processes in (1, 2))
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=0, atol=1e-9)


# --- the run directory ------------------------------------------------------------------------------------------------


def test_finished_run_is_returned_and_not_trained_again(features: Task, tmp_path: Path) -> None:
    fit(features, "mrf", out=tmp_path / "run", **QUICK)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != ".lock"}
    fit(features, "mrf", out=tmp_path / "run", **QUICK)
    after = {p: p.stat().st_mtime_ns for p in before}
    assert before == after


def test_other_settings_are_refused_and_named(features: Task, tmp_path: Path) -> None:
    fit(features, "mrf", out=tmp_path / "run", **QUICK)
    kept = (tmp_path / "run" / MODEL).read_bytes()
    with pytest.raises(UserError, match=r"lr was 0\.003 and is now 0\.1"):
        fit(features, "mrf", out=tmp_path / "run", lr=0.1, **QUICK)
    with pytest.raises(UserError, match=r"tau was .* and is now 7"):
        fit(features, "mrf", out=tmp_path / "run", parameters={"tau": 7.0}, **QUICK)
    with pytest.raises(UserError, match="method was 'mrf' and is now 'crf'"):
        fit(features, "crf", out=tmp_path / "run", **QUICK)
    with pytest.raises(UserError, match="other data"):
        fit(feature_task(seed=1), "mrf", out=tmp_path / "run", **QUICK)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty and holds no run"):
        fit(features, "mrf", out=tmp_path / "full", **QUICK)
    assert os.listdir(tmp_path / "full") == ["thesis.txt"]
    assert (tmp_path / "run" / MODEL).read_bytes() == kept


def test_more_epochs_need_extend(features: Task, tmp_path: Path) -> None:
    fit(features, "mrf", out=tmp_path / "run", **QUICK)
    longer = QUICK | {"epochs": 4}
    with pytest.raises(UserError, match="--extend"):
        fit(features, "mrf", out=tmp_path / "run", **longer)
    run = fit(features, "mrf", out=tmp_path / "run", extend=True, **longer)
    assert run.about["steps"] == 12
    assert [row["step"] for row in run.history()] == [3, 6, 9, 12]
    with pytest.raises(UserError, match="must be raised"):
        fit(features, "mrf", out=tmp_path / "run", extend=True, **QUICK)


def test_two_processes_may_not_train_in_one_folder(features: Task, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with folder.locked(tmp_path / "run"), pytest.raises(UserError, match="another process"):
        fit(features, "mrf", out=tmp_path / "run", **QUICK)


# --- the loop itself --------------------------------------------------------------------------------------------------


class Exploding(SourceOnly):
    """A method whose loss turns into not-a-number half-way."""

    def phases(self, batch: Batch) -> Any:
        for phase in super().phases(batch):
            broken = torch.where(batch.progress >= 0.5, torch.nan, 0.0)
            yield Phase({**phase.terms, "bomb": broken * phase.terms["source"]})


def test_nan_stops_with_one_sentence_and_keeps_the_last_good_state(
    features: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "exploding", Exploding)
    with pytest.raises(
        UserError, match=r"bomb and gradient became .* between steps 3 and 6; the last good state \(step 3"
    ):
        fit(features, "exploding", out=tmp_path / "run", **QUICK)
    state = load_file(tmp_path / "run" / STATE)
    assert all(torch.isfinite(tensor.double()).all() for tensor in state.values())
    assert [row["step"] for row in folder.read_metrics(tmp_path / "run" / "metrics.jsonl")] == [3]


class TwoPhases(SourceOnly):
    """A method that moves its head, then its backbone."""

    def phases(self, batch: Batch) -> Any:
        for updates in (("head",), ("backbone",)):
            before = {name: p.detach().clone() for name, p in self.named_parameters()}
            phase = next(iter(super().phases(batch)))
            yield Phase(phase.terms, updates=updates)
            moved = {name.split(".")[0] for name, p in self.named_parameters() if not torch.equal(p, before[name])}
            assert moved == set(updates)


def test_a_phase_moves_only_what_it_names(features: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "two-phases", TwoPhases)
    run = fit(features, "two-phases", out=tmp_path / "run", **QUICK)
    assert run.about["steps"] == 6


def test_updated_parameters_takes_modules_and_parameters(features: Task) -> None:
    settings = Settings(method="mrf", **QUICK).resolved(features)
    method = Training(features, settings, torch.device("cpu")).method
    assert updated_parameters(method, ("prototypes",)) == [method.prototypes]
    assert len(updated_parameters(method, ())) == len(updated_parameters(method, ("prototypes", "backbone")))


@pytest.mark.parametrize(
    "settings",
    [{"optimiser": "adamw"}, {"optimiser": "sgd", "clip": 1.0}, {"schedule": "constant", "average": 0.0}],
)
def test_settings_change_what_is_learnt(settings: dict[str, Any], features: Task, tmp_path: Path) -> None:
    plain = fit(features, "source-only", out=tmp_path / "plain", **QUICK).method.state_dict()
    other = fit(features, "source-only", out=tmp_path / "other", **QUICK, **settings).method.state_dict()
    assert all(torch.isfinite(tensor.double()).all() for tensor in other.values())
    assert not torch.equal(plain["head.weight"], other["head.weight"])


@pytest.mark.parametrize("steps", [6, EVERY, EVERY + 3])
def test_averaged_weights_are_what_predicts(steps: int, features: Task, tmp_path: Path) -> None:
    """The checkpoint holds the average as it last moved; what predicts has taken in the steps since."""
    run = fit(features, "source-only", out=tmp_path / "run", **(QUICK | {"steps_per_epoch": steps, "epochs": 1}))
    state = load_file(tmp_path / "run" / STATE)
    weight, mean, newest = (
        run.method.state_dict()["head.weight"],
        state["average/head.weight"],
        state["method/head.weight"],
    )
    assert torch.equal(weight, torch.lerp(mean, newest, averaging_weight(0.99, steps)))
    assert not torch.equal(weight, newest)
    assert not torch.equal(weight, mean)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("method", list(METHODS))
def test_resumed_after_any_step_ends_with_the_same_bits(method: str, optimiser: str, tmp_path: Path) -> None:
    task, count = image_task(), 2 * EVERY + 3
    given = {"method": method, "optimiser": optimiser, "augment": "weak", **QUICK}
    settings = Settings(**(given | {"epochs": 1, "steps_per_epoch": count})).resolved(task)
    whole, tally = Training(task, settings, torch.device("cpu")), Tally()
    for step in range(count):
        with Saver(tmp_path / str(step) / folder.CHECKPOINT) as saver:
            saver.save(*whole.snapshot())
        whole.prepare()
        take_step(whole, tally)
        whole.step += 1
    finish(whole, tmp_path / "whole")
    for first in (1, 5, EVERY - 1, EVERY, EVERY + 1, 2 * EVERY):
        resumed = Training(task, settings, torch.device("cpu"))
        resumed.resume(tmp_path / str(first))
        assert resumed.step == first
        while resumed.step < count:
            resumed.prepare()
            take_step(resumed, tally)
            resumed.step += 1
        finish(resumed, tmp_path / f"resumed-{first}")
        assert (tmp_path / f"resumed-{first}" / MODEL).read_bytes() == (tmp_path / "whole" / MODEL).read_bytes(), first
        for name, tensor in whole.tensors().items():
            assert torch.equal(tensor, resumed.tensors()[name]), (first, name)


def test_a_snapshot_does_not_share_memory_with_what_trains(features: Task) -> None:
    settings = Settings(method="mrf", **QUICK).resolved(features)
    training, tally = Training(features, settings, torch.device("cpu")), Tally()
    for _ in range(2):
        kept, step = training.snapshot()
        copy = {name: tensor.clone() for name, tensor in kept.items()}
        training.prepare()
        take_step(training, tally)
        training.step += 1
        assert all(torch.equal(kept[name], tensor) for name, tensor in copy.items())
        assert any(not torch.equal(kept[name], tensor) for name, tensor in training.tensors().items())
        assert step == training.step - 1
        training.restore()
        assert all(torch.equal(copy[name], tensor) for name, tensor in training.tensors().items())


# --- what is told of the steps ----------------------------------------------------------------------------------------


def phase(**terms: float) -> Phase:
    return Phase({name: torch.tensor(value, requires_grad=True) for name, value in terms.items()})


def test_tally_gives_means_since_the_last_reading() -> None:
    tally = Tally()
    assert tally.read() == {"finite": 1.0}
    for value in (1.0, 2.0, 6.0):
        shown = {"share": torch.tensor(0.5)}
        tally.add(Phase(phase(source=value, entropy=2 * value).terms, shown=shown), None)
        tally.end_step()
    assert tally.read() == {"share": 0.5, "source": 3.0, "entropy": 6.0, "finite": 1.0}  # no gradient was measured
    tally.add(Phase(phase(source=4.0, entropy=0.0).terms, shown={"share": torch.tensor(1.0)}), torch.tensor(9.0))
    tally.end_step()
    assert tally.read() == {"share": 1.0, "source": 4.0, "entropy": 0.0, "gradient": 9.0, "finite": 1.0}


def test_tally_takes_the_mean_over_the_phases_that_give_a_term() -> None:
    tally = Tally()
    for shift in (0.0, 10.0):
        tally.add(phase(source=1.0 + shift), torch.tensor(1.0))
        tally.add(phase(source=3.0 + shift, discrepancy=5.0 + shift), torch.tensor(2.0))
        tally.end_step()
    assert tally.read() == {"source": 7.0, "gradient": 1.5, "discrepancy": 10.0, "finite": 1.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_tally_notices_what_is_not_finite(value: float) -> None:
    tally = Tally()
    for found in (1.0, value, 1.0):
        tally.add(phase(source=found, other=2.0), torch.tensor(1.0))
        tally.end_step()
    row = tally.read()
    assert row["finite"] == 0
    assert row["other"] == 2
    tally.add(phase(source=1.0, other=2.0), torch.tensor(1.0))
    tally.end_step()
    assert tally.read()["finite"] == 1
    tally.add(phase(source=1.0, other=2.0), torch.tensor(value))
    tally.end_step()
    assert tally.read()["finite"] == 0


def test_tally_holds_no_graph_and_sums_where_it_began() -> None:
    """A captured step adds to the sums at the place where they lay."""
    tally = Tally()
    places = set()
    for _ in range(3):
        tally.add(phase(source=1.0), torch.tensor(1.0))
        tally.end_step()
        assert tally._sums is not None
        assert not tally._sums.requires_grad
        places.add(tally._sums.data_ptr())
        tally.read()
    assert len(places) == 1


def test_training_leaves_the_callers_random_numbers_alone(features: Task, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(features, "mrf", out=tmp_path / "run", **QUICK)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("method", ["source-only", "crf", "mrf"])
def test_learns_separable_classes(method: str, tmp_path: Path) -> None:
    task = feature_task(size=60)
    run = fit(task, method, out=tmp_path / "run", epochs=10, steps_per_epoch=20, batch_size=12, device="cpu")
    truth = [task.classes[i % 3] for i in range(60)]
    share = sum(a == b for a, b in zip(run.predict(task.target.x).labels, truth, strict=True)) / 60
    assert share > 0.8
    first, last = run.history()[0], run.history()[-1]
    assert last["source"] < first["source"]
    assert 0 < last["lr"] < first["lr"]


def test_one_source_and_a_domain_smaller_than_the_batch(tmp_path: Path) -> None:
    task = feature_task(sources=1, size=5)
    run = fit(task, "mrf", out=tmp_path / "run", **(QUICK | {"batch_size": 16}))
    assert set(run.predict(task.target.x).nearest_source) == {"source-0"}


def test_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """A real limit on file size: the model does not fit, the exit code is 2, no half-written file stays."""
    flags = write_task(feature_task(), tmp_path)
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000));"
        "from graphmsda.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["fit", *flags, "--epochs", "1", "--device", "cpu", "--out", str(tmp_path / "run")]
    result = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=300)
    assert result.returncode == 2, result.stderr
    assert "no room left to write" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(p.name for p in (tmp_path / "run").rglob("*") if p.is_file()) == [
        ".lock",
        "config.yaml",
        "metrics.jsonl",
    ]


@pytest.mark.parametrize(("began", "goes_on"), [(False, True), (True, False)])
def test_a_run_goes_on_in_its_precision_on_another_kind_of_processor(
    began: bool, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, given = image_task(), {**QUICK, "steps_per_epoch": 2}
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: began, raising=False)
    first = fit(task, "mrf", out=tmp_path / "run", **{**given, "epochs": 1})
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: goes_on, raising=False)
    again = fit(task, "mrf", out=tmp_path / "run", **{**given, "epochs": 2}, extend=True)
    assert first.about["settings"]["precision"] == again.about["settings"]["precision"] == ("bf16" if began else "32")
    assert again.history()[-1]["step"] == 4
    with pytest.raises(UserError, match="precision was"):
        fit(task, "mrf", out=tmp_path / "run", **{**given, "epochs": 2}, precision="32" if began else "bf16")
