"""Steps captured and compiled on a GPU: the same training, with no wait for the device and no new memory."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphmsda import METHODS, Task, fit
from graphmsda.domains import Batch
from graphmsda.engine import course, folder
from graphmsda.engine.accelerate import WARM_UP, replays
from graphmsda.engine.fit import Tally, take_step
from graphmsda.engine.optim import EVERY
from graphmsda.engine.saving import Saver
from graphmsda.engine.settings import Settings
from graphmsda.engine.training import Training
from graphmsda.methods import Phase, SourceOnly
from tests.conftest import QUICK, feature_task, image_task
from tests.engine.test_accelerate import TwoSteps, told
from tests.engine.test_kept import PROCESS, needs_saving

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
METHODS_HERE = ["source-only", "adabn", "crf", "mrf", "mrf-plus", "two-steps"]
# With Adam, rounding in a gradient that is zero but for it would become a step of the learning rate's size.
GIVEN: dict[str, Any] = {
    **QUICK,
    "epochs": 1,
    "steps_per_epoch": 40,
    "device": "cuda",
    "backbone": "small",
    "precision": "32",
    "optimiser": "sgd",
    "lr": 0.003,
    "dropout": 0.5,
}
# So few steps would leave the graph without messages and the target without labels.
PARAMETERS = {"crf": {"sigma": 0.7, "pseudo_labels": "confidence", "threshold": 0.34}}


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same kernels in every run, and none that rounds to ten bits."""
    monkeypatch.setitem(METHODS, "two-steps", TwoSteps)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def start(task: Task | None = None, **given: Any) -> Training:
    task = task or image_task(size=24)
    given = GIVEN | {"parameters": PARAMETERS.get(given["method"], {})} | given
    return Training(task, Settings(**given).resolved(task), torch.device("cuda"))


def way(training: Training, tally: Tally, kind: str) -> Callable[[], None]:
    """What takes a step: as it is, captured, or compiled and captured."""
    training.method.train()

    def step() -> None:
        take_step(training, tally)

    if kind == "eager":
        return step
    steps = replays(training, step, compiled=kind == "compiled")
    return lambda: next(steps)


def advance(training: Training, step: Callable[[], None], until: int) -> None:
    while training.step < until:
        training.prepare()
        step()
        training.step += 1


def state(training: Training) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in training.tensors().items()}


def assert_close(one: dict[str, Tensor], two: dict[str, Tensor], tolerance: float) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make every operation for which the host waits for the device an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- the same training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS_HERE)
@pytest.mark.parametrize("kind", ["captured", "compiled"])
@pytest.mark.parametrize("augment", ["none", "weak"])
def test_accelerated_is_eager(
    method: str, kind: str, augment: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve steps with dropout, over borders of the tables and a move of the average."""
    if kind == "compiled" and (augment != "none" or method == "mrf-plus"):
        pytest.skip("compiled views may round a pixel to its neighbour")
    monkeypatch.setattr(course, "WINDOW", 5)
    results, rows = [], []
    for one in ("eager", kind):
        training, tally = start(method=method, augment=augment), Tally()
        begun = state(training)
        advance(training, way(training, tally, one), 12)
        results.append(state(training))
        rows.append(tally.read())
    assert not told(caplog)
    assert_close(results[1], results[0], 1e-4)
    assert rows[1] == pytest.approx(rows[0], rel=1e-3, abs=1e-4)
    moved = max(float((results[0][n] - begun[n]).abs().max()) for n in begun if n.endswith("body.0.weight"))
    assert moved > 1e-3  # ten times what is tolerated


@pytest.mark.parametrize("method", METHODS_HERE)
def test_captured_is_eager_with_adam_in_float64(method: str, caplog: pytest.LogCaptureFixture) -> None:
    results = []
    for kind in ("eager", "captured"):
        training = start(method=method, precision="64", optimiser="adam", clip=1.0)
        advance(training, way(training, Tally(), kind), 12)
        results.append(state(training))
    assert not told(caplog)
    assert_close(results[1], results[0], 1e-7)


@pytest.mark.parametrize("method", ["crf", "mrf"])
@pytest.mark.parametrize("kind", ["captured", "compiled"])
def test_mixed_precision_is_near_eager(method: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    rows = []
    for one in ("eager", kind):
        training, tally = start(method=method, precision="bf16"), Tally()
        advance(training, way(training, tally, one), 12)
        assert all(torch.isfinite(tensor.double()).all() for tensor in training.tensors().values())
        rows.append(tally.read())
    assert not told(caplog)
    assert rows[1] == pytest.approx(rows[0], rel=0.1, abs=0.05)


@pytest.mark.parametrize("kind", ["eager", "captured"])
@pytest.mark.parametrize("method", ["crf", "mrf"])
def test_fetched_data_give_what_resident_ones_give(method: str, kind: str) -> None:
    results = []
    for resident in ("yes", "no"):
        training = start(method=method, resident=resident)
        assert training.feed.ready == (resident == "yes")
        advance(training, way(training, Tally(), kind), 12)
        results.append(state(training))
        training.feed.close()
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


@pytest.mark.parametrize(
    ("method", "kind"), [("crf", "captured"), ("mrf", "captured"), ("source-only", "compiled"), ("mrf", "compiled")]
)
def test_a_resumed_run_ends_with_the_same_bits(method: str, kind: str, tmp_path: Path) -> None:
    # Two compiled runs of MRF from the start differ in their last bits on a GPU, so no more can be asked of resumed
    # ones. Likely the gradient of looking up wrong edges, which is compiled to atomic additions in any order.
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if (method, kind) == ("mrf", "compiled") else {"rtol": 0, "atol": 0}
    whole = start(method=method, optimiser="adam")
    step = way(whole, Tally(), kind)
    for stop in (EVERY + 1, 2 * EVERY):
        advance(whole, step, stop)
        with Saver(tmp_path / str(stop) / folder.CHECKPOINT) as saver:
            saver.save(*whole.snapshot())
    advance(whole, step, 2 * EVERY + 6)
    for stop in (EVERY + 1, 2 * EVERY):
        resumed = start(method=method, optimiser="adam")
        resumed.resume(tmp_path / str(stop))
        advance(resumed, way(resumed, Tally(), kind), whole.step)
        for name, tensor in whole.tensors().items():
            torch.testing.assert_close(
                resumed.tensors()[name], tensor, **tolerance, msg=lambda text, at=(stop, name): f"{at}: {text}"
            )


# --- no wait, no new memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS_HERE)
@pytest.mark.parametrize("kind", ["captured", "compiled"])
def test_the_host_does_not_wait_and_no_memory_is_asked_for(
    method: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten steps and more, with tables filled anew every three and the average moved twice."""
    monkeypatch.setattr(course, "WINDOW", 3)
    training, tally = start(method=method, augment="weak" if kind == "captured" else "none"), Tally()
    step = way(training, tally, kind)
    advance(training, step, 2 * EVERY + 1)  # past capture, and past a move of the average
    assert WARM_UP + 1 < 2 * EVERY
    torch.cuda.synchronize()

    def count(what: str) -> int:
        return int(torch.cuda.memory_stats()[f"{what}.all.allocated"])

    with no_waiting():
        before = count("allocation")
        advance(training, step, 3 * EVERY)  # no average moves here
        assert count("allocation") == before
        before = count("segment")
        advance(training, step, 5 * EVERY + 1)  # here it does, in memory that is there already
        assert count("segment") == before
    assert tally.read()["finite"] == 1


def test_the_host_does_not_wait_for_fetched_data() -> None:
    training, tally = start(method="mrf", resident="no"), Tally()
    step = way(training, tally, "captured")
    advance(training, step, EVERY + 1)
    with no_waiting():
        advance(training, step, 2 * EVERY + 3)
    training.feed.close()
    assert tally.read()["finite"] == 1


def test_waiting_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="synchroniz"), no_waiting():
        torch.ones(3, device="cuda").sum().item()


# --- what cannot be captured ------------------------------------------------------------------------------------------


class Reading(SourceOnly):
    """Source-only that looks at a value of its loss."""

    def losses(self, batch: Batch) -> Phase:
        (risk,) = super().losses(batch).terms.values()
        return Phase({"source": risk * (2.0 if risk.item() > 1e6 else 1.0)})


class Refusing(TwoSteps):
    """A method whose second step fails under capture alone, when the first has been noted."""

    def phases(self, batch: Batch) -> Iterator[Phase]:
        for phase in super().phases(batch):
            if phase.updates == ("backbone",) and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("not here")
            yield phase


@pytest.mark.parametrize("kind", ["captured", "compiled"])
@pytest.mark.parametrize("method", [Reading, Refusing])
def test_what_cannot_be_captured_trains_all_the_same(
    method: type, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(METHODS, "stubborn", method)
    results, rows = [], []
    for one in ("eager", kind):
        training, tally = start(feature_task(), method="stubborn", backbone="mlp"), Tally()
        advance(training, way(training, tally, one), 12)
        results.append(state(training))
        rows.append(tally.read())
    assert told(caplog) == [
        (
            logging.WARNING,
            "--accelerate: a step of stubborn reads values back from the device or does something else that cannot be "
            "captured, so steps are taken operation by operation",
        )
    ]
    assert_close(results[1], results[0], 5e-4)
    assert rows[1] == pytest.approx(rows[0], rel=1e-2, abs=1e-3)


def test_fit_tells_it_once_and_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(METHODS, "reading", Reading)
    given = {**GIVEN, "backbone": "mlp", "steps_per_epoch": 10}
    states = [
        fit(feature_task(), "reading", out=tmp_path / flag, accelerate=flag, **given).method.state_dict()
        for flag in ("off", "auto")
    ]
    assert len(told(caplog)) == 1
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize("method", ["source-only", "adabn", "crf", "mrf"])
def test_fit_with_the_flag_is_fit_without(method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {**GIVEN, "steps_per_epoch": 10}
    runs = [fit(image_task(), method, out=tmp_path / flag, accelerate=flag, **given) for flag in ("off", "auto")]
    assert not told(caplog)
    one, two = (run.method.state_dict() for run in runs)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=2e-3, atol=2e-3, msg=lambda m, n=name: f"{n}: {m}")
    for one_row, two_row in zip(*(run.history() for run in runs), strict=True):
        assert one_row | {"seconds": 0} == pytest.approx(two_row | {"seconds": 0}, rel=2e-2, abs=2e-3)


@needs_saving
@pytest.mark.parametrize("method", ["source-only", "crf", "mrf", "mrf-plus"])
def test_another_process_traces_nothing(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    script = PROCESS.replace("test_accelerate import", "test_accelerate_gpu import")
    script = script.replace("start(feature_task(), sys.argv[1])", "start(method=sys.argv[1])")
    ends, told = [tmp_path / "one.pt", tmp_path / "two.pt"], []
    for end in ends:
        done = subprocess.run([sys.executable, "-c", script, method, str(end)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.split()[-2:])
    assert told == [["2", "0"], ["0", "2"]]
    for one, two in zip(*(torch.load(end) for end in ends), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)  # MRF adds in any order
