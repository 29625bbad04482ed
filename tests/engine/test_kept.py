"""Compiled functions on disk: found again by another process, never taken for another's, forgotten where they fail."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphmsda import METHODS
from graphmsda.engine import accelerate, kept
from graphmsda.engine.accelerate import OPTIONS, take_compiled
from graphmsda.engine.descent import move
from graphmsda.engine.fit import Tally, take_step
from graphmsda.engine.training import Training
from graphmsda.methods import MRF
from tests.conftest import feature_task
from tests.engine.test_accelerate import TwoSteps, advance, assert_same_state, start

needs_saving = pytest.mark.skipif(not kept.is_known(), reason="this PyTorch cannot save compiled functions")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    yield tmp_path / "graphmsda"
    kept.forget()


def groups() -> list[Any]:
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    gradient, memory = torch.tensor([0.5, 0.0, -0.5]), {"momentum_buffer": torch.zeros(3)}
    return [([weight], [gradient], [memory], [None], 0.1, torch.tensor(0.1))]


def moved(function: Any, count: int = 2) -> Tensor:
    given = groups()
    for _ in range(count):
        function(given, 0.0, "sgd")
    return torch.stack([given[0][0][0].detach(), given[0][2][0]["momentum_buffer"]])


def never() -> Any:
    raise AssertionError("compiled anew")


@needs_saving
def test_a_function_is_loaded_where_it_was_compiled_before(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = moved(move)
    assert not kept.has_kept()
    torch.testing.assert_close(moved(kept.kept(move, never, None, OPTIONS)), expected)
    (path,) = place.iterdir()
    assert kept.has_kept()
    assert kept.forget() is False  # compiled here, not loaded

    with monkeypatch.context() as patch:
        patch.setattr(kept, "_compile", lambda *given: never())
        torch.testing.assert_close(moved(kept.kept(move, never, None, OPTIONS)), expected)
        # Arguments, options or what it is about: with any other it is another function.
        for about, options in (("other", OPTIONS), (None, OPTIONS | {"combo_kernels": False})):
            with pytest.raises(AssertionError, match="compiled anew"):
                moved(kept.kept(move, never, about, options))
    assert kept.forget() is True
    assert not path.exists()
    assert kept.forget() is False


@needs_saving
def test_what_is_damaged_is_compiled_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    asked: list[Path] = []

    def compile_anew(function: Any, given: Any, options: Any, path: Path) -> Any:
        asked.append(path)
        return function

    monkeypatch.setattr(kept, "_compile", compile_anew)
    moved(kept.kept(move, never, None, OPTIONS))
    asked[0].write_bytes(b"no function")
    torch.testing.assert_close(moved(kept.kept(move, never, None, OPTIONS)), moved(move))
    assert asked == [asked[0]] * 2


@needs_saving
def test_what_cannot_be_compiled_for_keeping_is_compiled_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *given, **named: 1 / 0)
    torch.testing.assert_close(moved(kept.kept(move, lambda: move, None, OPTIONS)), moved(move))


def double(x: Tensor) -> Tensor:
    return 2 * x


def test_functions_of_others_are_not_kept(place: Path) -> None:
    """Their sources are not a part of the name."""
    assert torch.equal(kept.kept(double, lambda: double, None, OPTIONS)(torch.ones(2)), torch.full((2,), 2.0))
    assert not place.exists()


def test_old_versions_of_pytorch_keep_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.compiler, "load_compiled_function", raising=False)
    torch.testing.assert_close(moved(kept.kept(move, lambda: move, None, OPTIONS)), moved(move))
    assert not kept.has_kept()
    assert not place.exists()


# --- descriptions -----------------------------------------------------------------------------------------------------


def mrf(**given: Any) -> MRF:
    return start(feature_task(), "mrf", parameters=given).method  # type: ignore[return-value]


def test_descriptions_tell_apart_what_traces_differ_by() -> None:
    first = repr(kept.describe(mrf()))
    assert repr(kept.describe(mrf())) == first
    others = [mrf(tau=0.3), mrf(balance_weight=0.0), mrf(likelihood="logistic"), mrf().double(), mrf().eval()]
    frozen = mrf()
    frozen.prototypes.requires_grad_(False)
    texts = [repr(kept.describe(method)) for method in (*others, frozen)]
    assert len({first, *texts}) == 7
    with torch.no_grad():
        trained = mrf()
        trained.prototypes.add_(1)
    assert repr(kept.describe(trained)) == first


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_description(name: str) -> None:
    method = start(feature_task(), name).method
    assert repr(kept.describe(method)) == repr(kept.describe(start(feature_task(), name).method))
    assert " at 0x" not in repr(kept.describe(method))


def test_what_has_no_description_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "two-steps", TwoSteps)
    hooked = mrf()
    hooked.register_forward_hook(lambda *given: None)
    replaced = mrf()
    replaced.losses = lambda batch: None  # type: ignore[method-assign, assignment, return-value]
    for value in (start(feature_task(), "two-steps").method, hooked, replaced, torch.Generator(), double):
        with pytest.raises(kept.Unkept):
            kept.describe(value)


def test_what_lies_in_itself_is_described() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert kept.describe(ring) == ("list", (1, ("again", 0)))


def test_examples() -> None:
    found = doctest.testmod(kept)
    assert found.attempted > 0
    assert found.failed == 0


# --- whole steps ------------------------------------------------------------------------------------------------------


def test_a_step_that_fails_by_what_was_kept_is_compiled_anew(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    never_compiled, tried = (start(feature_task(), "mrf") for _ in range(2))
    tallies = [Tally(), Tally()]
    place.mkdir()
    wrong = place / "tensors-0.bin"

    def parts(training: Training) -> list[tuple[Any, str, Any]]:
        def broken(batch: Any) -> Any:
            raise RuntimeError("a kernel that is not there")

        if not calls:
            wrong.touch()
            kept._loaded.append(wrong)
        calls.append(training)
        return [(training.method, "losses", broken)] if len(calls) == 1 else []

    calls: list[Training] = []
    monkeypatch.setattr(accelerate, "compiled_parts", parts)
    said: list[str | None] = []
    advance(tried, lambda: said.append(take_compiled(tried, lambda: take_step(tried, tallies[1]))), 1)
    advance(never_compiled, lambda: take_step(never_compiled, tallies[0]), 1)
    assert said == [None]
    assert (len(calls), wrong.exists()) == (2, False)
    assert_same_state(never_compiled, tried)


PROCESS = """
import sys, torch
from torch._dynamo.utils import compilation_time_metrics
from graphmsda.engine import accelerate, kept
from graphmsda.engine.fit import Tally, take_step
from tests.conftest import feature_task
from tests.engine.test_accelerate import advance, start

accelerate.KEEP = True
training = start(feature_task(), sys.argv[1])
tally, said = Tally(), []
advance(training, lambda: said.append(accelerate.take_compiled(training, lambda: take_step(training, tally))), 1)
advance(training, lambda: take_step(training, tally), 3)
assert said == [None], said
torch.save([tensor.detach().clone() for tensor in training.tensors().values()], sys.argv[2])
print(len(compilation_time_metrics.get("bytecode_tracing", ())), len(kept._loaded))  # traced, loaded
"""


@pytest.mark.slow
@needs_saving
@pytest.mark.parametrize("method", ["crf", "mrf", "mrf-plus"])
def test_another_process_traces_nothing_and_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    ends, told = [tmp_path / "one.pt", tmp_path / "two.pt"], []
    for end in ends:
        command = [sys.executable, "-c", PROCESS, method, str(end)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.split()[-2:])
    assert told == [["2", "0"], ["0", "2"]]
    for one, two in zip(*(torch.load(end) for end in ends), strict=True):
        assert torch.equal(one, two)
