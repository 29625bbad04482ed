"""Methods trained in stages: each a training of its own, from the average of the last, wherever a run was stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from graphmsda import METHODS, Task, UserError, fit
from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.engine import accelerate, folder
from graphmsda.engine.accelerate import take_compiled
from graphmsda.engine.fit import Tally, finish, take_step
from graphmsda.engine.optim import EVERY, learning_rate
from graphmsda.engine.saving import Saver
from graphmsda.engine.settings import Settings
from graphmsda.engine.stages import lay_out, stage_at
from graphmsda.engine.training import Training
from graphmsda.methods import Method, Phase, SourceOnly
from graphmsda.methods.base import LinearHead
from tests.conftest import QUICK, feature_task
from tests.engine.test_fit import run_command, write_task

CPU = torch.device("cpu")
MODEL, STATE = "model.safetensors", "checkpoint/state.safetensors"
BORDER, STEPS = EVERY + 3, 2 * EVERY + 6  # the average moves within both stages and at the end of each


class Staged(SourceOnly):
    """A head is learnt, then a copy of it, with another name for its loss."""

    def __init__(self, backbone: Backbone, classes: int, domains: int) -> None:
        super().__init__(backbone, classes, domains)
        self.stages = (("first", BORDER), ("second", STEPS - BORDER, 0.5))
        self.copy = LinearHead(backbone.features, classes)
        self.seen: list[str] = []
        self.begun: list[str] = []

    def begin_stage(self, name: str) -> None:
        assert name == self.stage
        self.begun.append(name)
        if name == "second":
            self.copy.load_state_dict(self.head.state_dict())
            self.copy.bias += 1

    def losses(self, batch: Batch) -> Phase:
        self.seen.append(self.stage)
        if self.stage == "first":
            return Phase(super().losses(batch).terms, updates=("backbone", "head"))
        embedded = self.embed_batch(batch)
        risk = -torch.stack([self.copy(part.x).gather(1, part.y[:, None]).mean() for part in embedded.sources]).mean()
        return Phase({"copied": risk}, updates=("copy",))


@pytest.fixture(autouse=True)
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "staged", Staged)


def start(task: Task, **options: Any) -> Training:
    given = {"method": "staged", **QUICK, "epochs": 1, "steps_per_epoch": STEPS}
    return Training(task, Settings(**(given | options)).resolved(task), CPU)


def advance(training: Training, until: int) -> None:
    while training.step < until:
        training.prepare()
        take_step(training, Tally())
        training.step += 1


def copy_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


# --- which steps ------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=5), st.integers(0, 500))
def test_stages_divide_the_steps(shares: list[float], extra: int) -> None:
    steps = len(shares) + extra
    spans = lay_out([(str(n), share) for n, share in enumerate(shares)], steps)
    assert [span.name for span in spans] == [str(n) for n in range(len(shares))]
    assert [span.first for span in spans] == [0, *(span.end for span in spans[:-1])]
    assert spans[-1].end == steps
    assert all(span.end > span.first for span in spans)
    for number, span in enumerate(spans):
        assert stage_at(spans, span.first) == stage_at(spans, span.end - 1) == number
        if min(shares) / sum(shares) * steps > 2:  # shorter ones are lengthened
            expected = shares[number] / sum(shares) * steps
            assert abs(span.end - span.first - expected) <= 1


def test_each_stage_runs_through_rate_and_progress(features: Task) -> None:
    training = start(features, lr=0.1)
    numbers = [training.course.numbers(step) for step in range(STEPS)]
    for first, end, factor in ((0, BORDER, 1.0), (BORDER, STEPS, 0.5)):
        shares = [(step - first) / (end - first) for step in range(first, end)]
        for (rate, progress), share in zip(numbers[first:end], shares, strict=True):
            assert progress == share
            assert rate == pytest.approx(factor * learning_rate(training.settings, share))
    for step in range(STEPS):  # and those are what a step reads
        training.step = step
        training.course.prepare(step)
        now = training.course.read()
        assert (float(now.rate), float(now.progress)) == pytest.approx(numbers[step])


# --- from one to the next ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", [0.9, 0.0])
def test_a_stage_starts_from_what_the_last_one_has_learnt(average: float, features: Task) -> None:
    training = start(features, average=average)
    method = training.method
    assert isinstance(method, Staged)
    assert (method.stage, method.begun) == ("first", ["first"])
    places = {name: tensor.data_ptr() for name, tensor in training.tensors().items()}
    advance(training, BORDER)
    assert (method.stage, method.seen) == ("first", ["first"] * BORDER)
    assert any(moment.any() for name, moment in training.tensors().items() if name.startswith("optimiser/"))
    last = copy_of(method.state_dict())
    kept = {} if training.average is None else copy_of(training.average.state)

    assert training.enter_stage()
    assert not training.enter_stage()
    assert (method.stage, method.begun) == ("second", ["first", "second"])
    if average:  # what had not been taken into the average yet has been now, as at the end of a run
        assert not torch.equal(method.head.weight, last["head.weight"])
        assert not torch.equal(method.head.weight, kept["head.weight"])
    else:
        assert torch.equal(method.head.weight, last["head.weight"])
    assert torch.equal(method.copy.weight, method.head.weight)
    torch.testing.assert_close(method.copy.bias, method.head.bias + 1)
    tensors = training.tensors()
    assert not any(moment.any() for name, moment in tensors.items() if name.startswith("optimiser/"))
    if average:
        assert_same(dict(method.state_dict()), training.average.state)  # type: ignore[union-attr]
    assert {name: tensor.data_ptr() for name, tensor in tensors.items()} == places

    head = method.head.weight.clone()
    advance(training, STEPS)
    assert method.seen == ["first"] * BORDER + ["second"] * (STEPS - BORDER)
    assert method.begun == ["first", "second"]
    assert torch.equal(method.head.weight, head)
    assert not torch.equal(method.copy.weight, head)


def test_the_second_average_forgets_the_first_stage(features: Task) -> None:
    """After few steps an average is mostly made of the newest states: its weights count from the stage's start."""
    training = start(features, average=0.999)
    advance(training, BORDER + EVERY)
    training.take_average()
    assert training.average is not None
    mean, state = training.average.state["copy.weight"], training.method.state_dict()
    begun, newest = state["head.weight"], state["copy.weight"]  # where the copy started and where it is
    assert float((mean - newest).norm()) < 0.2 * float((begun - newest).norm())


# --- resumption -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", [0.99, 0.0])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_resumed_after_any_step_ends_with_the_same_bits(optimiser: str, average: float, tmp_path: Path) -> None:
    options, task = {"optimiser": optimiser, "average": average}, feature_task()
    whole = start(task, **options)
    kept: dict[str, int] = {}

    def keep(name: str) -> None:
        with Saver(tmp_path / name / folder.CHECKPOINT) as saver:
            saver.save(*whole.snapshot())
        kept[name] = whole.step

    for step in range(STEPS):
        keep(f"before-{step}")  # after the last step of a stage, before the next has begun
        whole.enter_stage()
        keep(f"after-{step}")
        advance(whole, step + 1)
    finish(whole, tmp_path / "whole")
    for name, step in kept.items():
        if not BORDER - 2 <= step <= BORDER + 2 and step not in (1, EVERY, STEPS - 1):
            continue
        resumed = start(task, **options)
        resumed.resume(tmp_path / name)
        second = step > BORDER or name == f"after-{BORDER}"
        assert (resumed.step, resumed.method.stage) == (step, "second" if second else "first")
        resumed.method.begun = []  # type: ignore[assignment]
        advance(resumed, STEPS)
        assert resumed.method.begun == ([] if second else ["second"]), name  # type: ignore[comparison-overlap]
        finish(resumed, tmp_path / f"{name}-finished")
        assert_same(whole.tensors(), resumed.tensors())
        assert (tmp_path / f"{name}-finished" / MODEL).read_bytes() == (tmp_path / "whole" / MODEL).read_bytes()


class Interrupted(Staged):
    """Stops the training once, in the step whose number is given."""

    at: int | None = None

    def losses(self, batch: Batch) -> Phase:
        if len(self.seen) == type(self).at:
            type(self).at = None
            raise KeyboardInterrupt
        return super().losses(batch)


@pytest.mark.parametrize("at", [BORDER - 1, BORDER, BORDER + 1])
def test_fit_goes_on_in_the_right_stage(at: int, features: Task, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(METHODS, "interrupted", Interrupted)
    options = {"epochs": STEPS, "steps_per_epoch": 1, "batch_size": 6, "device": "cpu", "checkpoint_seconds": 0.0}
    whole = fit(features, "interrupted", out=tmp_path / "whole", **options)
    Interrupted.at = at
    with pytest.raises(KeyboardInterrupt):
        fit(features, "interrupted", out=tmp_path / "run", **options)
    run = fit(features, "interrupted", out=tmp_path / "run", **options)
    for file in (MODEL, STATE):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    one, two = ([{**row, "seconds": 0} for row in r.history()] for r in (whole, run))
    assert one == two


def test_the_last_reading_of_a_stage_is_its_own(features: Task, tmp_path: Path) -> None:
    """Whatever the interval of readings is, no row mixes stages."""
    run = fit(features, "staged", out=tmp_path / "run", **(QUICK | {"epochs": 2, "steps_per_epoch": STEPS // 2 + 2}))
    rows = run.history()
    steps = 2 * (STEPS // 2 + 2)
    border = round(steps * BORDER / STEPS)
    assert border in [row["step"] for row in rows]
    assert all(("source" in row) == (row["step"] <= border) for row in rows)
    assert all(("copied" in row) == (row["step"] > border) for row in rows)


class Exploding(Staged):
    """Turns into not-a-number in the second stage."""

    def losses(self, batch: Batch) -> Phase:
        phase = super().losses(batch)
        bad = torch.nan if self.stage == "second" else 0.0
        return Phase({**phase.terms, "bomb": bad * next(iter(phase.terms.values()))}, updates=phase.updates)


def test_the_last_good_state_belongs_to_its_stage(features: Task, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(METHODS, "exploding", Exploding)
    with pytest.raises(UserError, match=rf"the last good state \(step {BORDER}\)"):
        fit(features, "exploding", out=tmp_path / "run", **(QUICK | {"epochs": 1, "steps_per_epoch": STEPS}))
    state = load_file(tmp_path / "run" / STATE)
    assert int(state["stage"]) == 1
    assert torch.equal(state["method/copy.weight"], state["method/head.weight"])


# --- compiled ---------------------------------------------------------------------------------------------------------


def test_what_is_compiled_lasts_for_a_stage(features: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stages compiled, the second refused by the compiler half-way: the same steps all the same."""

    def parts(training: Training) -> Iterator[tuple[Any, str, Any]]:
        method, calls = training.method, []

        def losses(batch: Batch) -> Phase:
            calls.append(method.stage)
            phase = type(method).losses(method, batch)
            if method.stage == "second":
                with torch.no_grad():
                    method.copy.weight.add_(1.0)  # type: ignore[union-attr,operator]
                raise RuntimeError("the compiler gave up")
            return phase

        yield method, "losses", losses

    monkeypatch.setattr(accelerate, "compiled_parts", parts)
    plain, fast = start(features), start(features)
    advance(plain, STEPS)
    refusals = []
    while fast.step < STEPS:
        anew = fast.enter_stage() or fast.step == 0
        assert ("losses" in vars(fast.method)) == (0 < fast.step < BORDER)
        fast.prepare()
        if anew:
            refusals.append(take_compiled(fast, lambda: take_step(fast, Tally())))
        else:
            take_step(fast, Tally())
        fast.step += 1
    assert refusals[0] is None
    assert "the compiler gave up" in str(refusals[1])
    assert_same(plain.tensors(), fast.tensors())
    assert isinstance(fast.method, Staged)
    assert fast.method.begun == ["first", "second"]


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_a_run_too_short_for_its_stages_is_refused(features: Task, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 stages \(first, second\), but the run has 1 step; give more --epochs"):
        fit(features, "staged", out=tmp_path / "run", **(QUICK | {"epochs": 1, "steps_per_epoch": 1}))
    assert not (tmp_path / "run").exists()


def test_stages_cannot_be_lengthened_afterwards(features: Task, tmp_path: Path) -> None:
    fit(features, "staged", out=tmp_path / "run", **QUICK)
    longer = QUICK | {"epochs": 4}
    with pytest.raises(UserError, match=r"--extend: staged is trained in stages.* from 2 to 4 epochs; choose another"):
        fit(features, "staged", out=tmp_path / "run", extend=True, **longer)
    assert fit(features, "staged", out=tmp_path / "run", extend=True, **QUICK).about["steps"] == 6


def test_other_methods_keep_their_checkpoints_as_they_were(features: Task) -> None:
    settings = Settings(method="source-only", **QUICK).resolved(features)
    training = Training(features, settings, CPU)
    assert {name.split("/")[0] for name in training.tensors()} == {"method", "optimiser", "average"}
    assert training.method.stage == ""
    assert Method.stages == ()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adda", "mcd", "dann"])
def test_two_processes_equal_one(method: str, tmp_path: Path) -> None:
    from tests.conftest import image_task

    flags = write_task(image_task(size=24), tmp_path)
    settings = ["--method", method, "--precision", "64", "--dropout", 0, "--batch-size", 7, "--device", "cpu"]
    settings += ["--epochs", 2, "--steps-per-epoch", 4]
    for processes in (1, 2):
        result = run_command("fit", *flags, *settings, "--devices", processes, "--out", tmp_path / str(processes))
        assert result.returncode == 0, result.stderr
    one, two = (load_file(tmp_path / str(processes) / STATE) for processes in (1, 2))
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=0, atol=1e-9, msg=lambda m, key=key: f"{key}: {m}")
