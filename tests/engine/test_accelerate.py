"""A compiled step is the same step, no step reads a value, and what cannot be made faster is told in one sentence.

What needs a GPU, capture first of all, is in `test_accelerate_gpu.py`.
"""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from graphmsda import METHODS, Task, parallel
from graphmsda.backbones import Backbone, build_backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.engine import accelerate
from graphmsda.engine.accelerate import compiled_losses, is_compiled, stepper, take_compiled
from graphmsda.engine.descent import Descent
from graphmsda.engine.fit import Tally, take_step
from graphmsda.engine.settings import Settings
from graphmsda.engine.training import Training
from graphmsda.graphs.constraints import source_risk
from graphmsda.methods import Method, Phase, SourceOnly, build_method, complete_parameters
from graphmsda.methods.base import LinearHead
from tests.conftest import QUICK, feature_task, image_task

CLASSES, SOURCES, SIZE = 3, 2, 6
CPU = torch.device("cpu")


class TwoSteps(Method):
    """A method of two optimiser steps a batch, which moves its head, then its backbone."""

    def __init__(self, backbone: Backbone, classes: int, domains: int) -> None:
        super().__init__(backbone, classes, domains)
        self.head = LinearHead(backbone.features, classes)

    def phases(self, batch: Batch) -> Iterator[Phase]:
        for updates in (("head",), ("backbone",)):
            embedded = self.embed_batch(batch)
            risk = source_risk([self.predict(s.x) for s in embedded.sources], [s.y for s in embedded.sources])
            yield Phase({"source": risk}, updates=updates)

    def predict(self, embedding: Tensor) -> Tensor:
        log_probabilities: Tensor = self.head(embedding)
        return log_probabilities


def start(task: Task, method: str, **given: Any) -> Training:
    return Training(task, Settings(method=method, **(QUICK | given)).resolved(task), CPU)


def advance(training: Training, step: Callable[[], None], count: int) -> None:
    for _ in range(count):
        training.prepare()
        step()
        training.step += 1


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """What the package said; the compiler's own talk is left out."""
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "graphmsda"]


def assert_same_state(one: Training, two: Training, tolerance: float = 0.0) -> None:
    a, b = one.tensors(), two.tensors()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


# --- compiled losses --------------------------------------------------------------------------------------------------


def cases() -> Iterator[Any]:
    """Every method on images with dropout; every reading and preset of the graphical models on feature vectors."""

    def case(name: str, backbone: str, preset: str | None = None, dropout: float = 0.0, **given: Any) -> Any:
        told = [f"{key}={value}" for key, value in given.items()]
        return pytest.param(name, backbone, preset, dropout, given, id=" ".join([name, preset or backbone, *told]))

    one_step = {name: method for name, method in METHODS.items() if method.losses is not Method.losses}
    yield from (case(name, "small", dropout=0.5) for name in one_step)
    for name, method in one_step.items():
        yield from (case(name, "mlp", preset) for preset in method.presets)
    yield case("crf", "mlp", normalise="row", scale="mean", pseudo_labels="confidence")
    yield case("crf", "mlp", two_way=False)
    yield case("mrf", "mlp", likelihood="mean-clique", scale="mean", pseudo_labels="confidence")
    yield case("mrf", "mlp", likelihood="logistic", wrong_edges=0)
    yield case("mrf-plus", "mlp", balance=True, ramp=0.0, confidence=0.2)
    yield case("mrf-plus", "mlp", average_teaches=False, strong_views=False)


def make_batch(shape: tuple[int, ...], seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    kind = torch.uint8 if len(shape) == 3 else torch.float64

    def samples() -> Tensor:
        return (256 * torch.rand((SIZE, *shape), generator=generator)).to(kind)

    sources = tuple(Labelled(samples(), torch.arange(SIZE) % CLASSES) for _ in range(SOURCES))
    return Batch(sources, samples(), torch.tensor(0.5), torch.tensor(seed), samples())


def outcome(method: Method, losses: Callable[[Batch], Phase], batch: Batch, seed: int) -> dict[str, Tensor]:
    """All that a call leaves: terms, what is shown, gradients, buffers and the place in the random numbers."""
    torch.manual_seed(seed)
    phase = losses(batch)
    parameters = dict(method.named_parameters())
    gradients = torch.autograd.grad(
        torch.stack(list(phase.terms.values())).sum(), list(parameters.values()), allow_unused=True
    )
    found = {f"term {name}": value.detach() for name, value in phase.terms.items()}
    found |= {f"shown {name}": value for name, value in (phase.shown or {}).items()}
    found |= {f"gradient {k}": g for k, g in zip(parameters, gradients, strict=True) if g is not None}
    found |= {f"state {name}": tensor.detach().clone() for name, tensor in method.state_dict().items()}
    return found | {"random numbers": torch.random.get_rng_state()}


@pytest.mark.parametrize(("name", "backbone", "preset", "dropout", "given"), list(cases()))
def test_compiled_losses_are_the_losses(
    name: str, backbone: str, preset: str | None, dropout: float, given: dict[str, Any]
) -> None:
    shape = (5,) if backbone == "mlp" else (3, 16, 16)
    torch.manual_seed(0)
    network = build_backbone(backbone, shape, SOURCES + 1, dropout=dropout)
    if name == "crf" and preset is None:
        given = {"dropout": dropout, "sigma": 1.0} | given  # wide enough for messages
    parameters = complete_parameters(name, given, preset)
    plain = build_method(name, network, CLASSES, SOURCES + 1, parameters).double()
    other = copy.deepcopy(plain)
    average = {name: 0.9 * tensor for name, tensor in plain.named_parameters()}
    plain.teacher = other.teacher = {name: tensor.detach() for name, tensor in average.items()}
    counters.clear()
    fast = compiled_losses(other, {}, "aot_eager")
    for seed in range(2):  # in the first no prototype has been met, later all have
        batch = make_batch(shape, seed)
        one, two = outcome(plain, plain.losses, batch, seed), outcome(other, fast, batch, seed)
        assert one.keys() == two.keys()
        for key in one:
            torch.testing.assert_close(two[key], one[key], rtol=1e-8, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")
    assert not counters["graph_break"], dict(counters["graph_break"])
    assert counters["stats"]["unique_graphs"] == 1, "compiled anew for another batch of the same shapes"


# --- no value is read -------------------------------------------------------------------------------------------------

READING = ("_local_scalar_dense", "nonzero", "item", "equal", "is_nonzero", "masked_select", "_unique2", "bincount")


class NoReading(TorchDispatchMode):
    """Fails on every operation for which the host would wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in READING, f"{func} reads a value"
        if name.startswith(("index", "_index_put", "_unsafe_index")) and len(args) > 1 and isinstance(args[1], list):
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            assert not masks, f"{func} with a mask counts values"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", [*METHODS, "two-steps"])
@pytest.mark.parametrize("augment", ["none", "weak", "strong"])
def test_a_step_reads_no_value(method: str, augment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "two-steps", TwoSteps)
    training = start(image_task(), method, augment=augment, clip=1.0)
    tally = Tally()
    for _ in range(3):
        training.prepare()
        with NoReading():
            take_step(training, tally)
        training.step += 1
    assert tally.read()["finite"] == 1


@pytest.mark.parametrize("preset", [("crf", "paper"), ("mrf", "paper")])
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_neither_does_one_of_a_preset(preset: tuple[str, str], optimiser: str) -> None:
    training = start(feature_task(), preset[0], preset=preset[1], optimiser=optimiser)
    tally = Tally()
    for _ in range(2):
        training.prepare()
        with NoReading():
            take_step(training, tally)
        training.step += 1
    assert tally.read()["finite"] == 1


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x),
        lambda x: x.masked_select(x > 0),
        lambda x: bool(x.sum() > 0),
        lambda x: x.__setitem__((x > 0).nonzero()[:, 0], 0.0),
    ],
)
def test_reading_is_noticed(read: Callable[[Tensor], object]) -> None:
    with pytest.raises(AssertionError, match=r"reads a value|counts values"), NoReading():
        read(torch.arange(3.0))


# --- whether and how steps are accelerated ----------------------------------------------------------------------------


def step() -> None:
    raise AssertionError("nothing is to be taken yet")


def test_a_cpu_takes_plain_steps(features: Task, caplog: pytest.LogCaptureFixture) -> None:
    training = start(features, "mrf", epochs=1000, steps_per_epoch=100)
    assert stepper(training, step) is step
    assert not told(caplog)


def on_gpu(**given: Any) -> Any:
    settings = SimpleNamespace(accelerate="auto", devices=1, nodes=1, steps=10, method="mrf", device="cuda")
    settings.backbone = "3conv-2fc"
    settings.__dict__.update(given)
    return SimpleNamespace(settings=settings, device=torch.device("cuda"))


def test_off_takes_plain_steps(caplog: pytest.LogCaptureFixture) -> None:
    assert stepper(on_gpu(accelerate="off"), step) is step
    assert not told(caplog)


def test_several_processes_take_plain_steps_and_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parallel, "world_size", lambda: 2)
    assert stepper(on_gpu(), step) is step
    assert told(caplog) == [
        (logging.WARNING, "--accelerate: several processes train together, so steps are taken operation by operation")
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, True),
        ({"accelerate": "off"}, False),
        ({"device": "cpu"}, False),
        ({"devices": 2}, False),
        ({"nodes": 2}, False),
        ({"steps": accelerate.WORTH_COMPILING - 1}, False),
        ({"steps": accelerate.DEEPER * accelerate.WORTH_COMPILING, "backbone": "resnet18"}, True),
        ({"steps": accelerate.DEEPER * accelerate.WORTH_COMPILING - 1, "backbone": "resnet50"}, False),
    ],
)
def test_long_runs_on_one_gpu_are_compiled(given: dict[str, Any], expected: bool) -> None:
    settings = on_gpu(**({"steps": accelerate.WORTH_COMPILING} | given)).settings
    assert is_compiled(settings) == expected


# --- compiling a whole step, and failing to ---------------------------------------------------------------------------


def use_quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace all that the real compiler would, and run it as it is."""
    compiled = accelerate.compiled
    monkeypatch.setattr(
        accelerate, "compiled", lambda function, backend="", **given: compiled(function, "aot_eager", **given)
    )


@pytest.mark.parametrize(("method", "optimiser"), [("mrf", "adam"), ("two-steps", "sgd"), ("two-steps", "adamw")])
def test_a_compiled_step_is_the_step(method: str, optimiser: str, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setitem(METHODS, "two-steps", TwoSteps)
    use_quick_compiler(monkeypatch)
    options = {"precision": "64", "optimiser": optimiser}
    plain, fast = (start(feature_task(), method, **options) for _ in range(2))
    tallies = [Tally(), Tally()]
    advance(plain, lambda: take_step(plain, tallies[0]), 4)
    refusals: list[str | None] = []
    advance(fast, lambda: refusals.append(take_compiled(fast, lambda: take_step(fast, tallies[1]))), 1)
    advance(fast, lambda: take_step(fast, tallies[1]), 3)
    assert refusals == [None]
    assert not told(caplog)
    # Compiled, Adam's corrections for its start are made in float32, as its count of steps is.
    assert_same_state(plain, fast, 1e-9 if optimiser == "sgd" else 3e-5)
    one, two = (tally.read() for tally in tallies)
    assert one == pytest.approx(two, rel=1e-4)


def broken_losses(method: Method) -> Callable[[Batch], Phase]:
    """Losses that fail when half of the work is done and the state has changed."""

    def losses(batch: Batch) -> Phase:
        type(method).losses(method, batch)
        torch.rand(5)
        with torch.no_grad():
            next(method.parameters()).add_(1.0)
        raise RuntimeError("the compiler gave up\nwith a long story")

    return losses


def broken_step(descent: Descent) -> Callable[..., Tensor | None]:
    """An optimiser step that fails once it has been taken; of a method with two, the second."""
    left = [isinstance(descent.method, TwoSteps)]

    def step(*given: Any, measured: bool) -> Tensor | None:
        norm = type(descent).step(descent, *given, measured=measured)
        if not left or not left.pop():
            raise NotImplementedError
        return norm

    return step


@pytest.mark.parametrize(
    ("method", "place"),
    [("crf", "losses"), ("mrf", "losses"), ("mrf", "step"), ("adabn", "losses"), ("two-steps", "step")],
)
@pytest.mark.parametrize("taken", [0, 2])
def test_what_cannot_be_compiled_is_taken_as_it_is(
    method: str, place: str, taken: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(METHODS, "two-steps", TwoSteps)
    never, tried = (start(image_task(), method, augment="weak") for _ in range(2))
    tallies = [Tally(), Tally()]
    for training, tally in zip((never, tried), tallies, strict=True):
        advance(training, lambda training=training, tally=tally: take_step(training, tally), taken)
    own = dict(vars(tried.method)), dict(vars(tried.descent))

    def parts(training: Training) -> list[tuple[Any, str, Any]]:
        if place == "losses":
            return [(training.method, "losses", broken_losses(training.method))]
        return [(training.descent, "step", broken_step(training.descent))]

    monkeypatch.setattr(accelerate, "compiled_parts", parts)
    said: list[str | None] = []
    advance(tried, lambda: said.append(take_compiled(tried, lambda: take_step(tried, tallies[1]))), 1)
    advance(never, lambda: take_step(never, tallies[0]), 1)
    reason = {"losses": "(RuntimeError: the compiler gave up)", "step": "(NotImplementedError)"}[place]
    assert said == [f"--accelerate: the step of {method} cannot be compiled {reason}, so it is replayed as it is"]
    assert not told(caplog)  # whoever captures it says this, or that it cannot be captured either
    assert (vars(tried.method).keys(), vars(tried.descent).keys()) == (own[0].keys(), own[1].keys())
    assert_same_state(never, tried)
    advance(tried, lambda: take_step(tried, tallies[1]), 2)
    advance(never, lambda: take_step(never, tallies[0]), 2)
    assert_same_state(never, tried)
    assert tallies[0].read() == tallies[1].read()


def test_a_mistake_of_the_method_is_raised(
    features: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Mistaken(SourceOnly):
        def losses(self, batch: Batch) -> Phase:
            raise ValueError("mine")

    monkeypatch.setitem(METHODS, "mistaken", Mistaken)
    use_quick_compiler(monkeypatch)
    training = start(features, "mistaken")
    training.prepare()
    with pytest.raises(ValueError, match="mine"):
        take_compiled(training, lambda: take_step(training, Tally()))
    assert not told(caplog)


def double(x: Tensor) -> Tensor:
    return 2 * x


@torch._dynamo.config.patch(cache_size_limit=2)  # the name in 2.6; later versions know it, too
def test_compiled_functions_are_independent() -> None:
    """The compiler gives up on code that was compiled anew too often; here each run has code of its own."""
    for size in range(2, 7):
        counters.clear()
        fast = accelerate.compiled(double, "aot_eager")
        assert torch.equal(fast(torch.ones(size)), torch.full((size,), 2.0))
        assert counters["stats"]["unique_graphs"] == 1


def test_a_parameter_of_two_names_is_replaced_under_both() -> None:
    class Tied(SourceOnly):
        def __init__(self, backbone: Backbone, classes: int, domains: int) -> None:
            super().__init__(backbone, classes, domains)
            self.again = self.backbone.body[1]

        def losses(self, batch: Batch) -> Phase:
            return Phase({"first": self.backbone.body[1].weight.sum(), "again": self.again.weight.sum()})

    method = Tied(build_backbone("mlp", (5,), 2), CLASSES, 2)
    copies = {"backbone.body.1.weight": torch.full_like(method.backbone.body[1].weight, 2.0)}
    batch = Batch((Labelled(torch.zeros(2, 5), torch.zeros(2).long()),), torch.zeros(2, 5), *torch.zeros(2))
    terms = compiled_losses(method, copies, "eager")(batch).terms
    total = copies["backbone.body.1.weight"].sum()
    assert (terms["first"], terms["again"]) == (total, total)


SLOPE = 1.0


class Scaled(torch.autograd.Function):
    """A function with a derivative of its own, in which a number stands that may be changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope * SLOPE


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ < "2.8", reason="before PyTorch 2.8 such derivatives are always compiled anew")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ to compile with")
def test_compiled_derivatives_are_kept_and_never_mistaken_for_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
    x = torch.ones(3, requires_grad=True)
    found = []
    for slope in (1.0, 1.0, 3.0, 1.0):
        monkeypatch.setitem(globals(), "SLOPE", slope)
        counters.clear()
        torch._dynamo.reset()  # as in a new process
        with accelerate.derivatives_kept():
            (gradient,) = torch.autograd.grad(accelerate.compiled(lambda x: Scaled.apply(x).sum())(x), x)
        assert torch.equal(gradient, torch.full((3,), slope))
        found.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert found == [0, 1, 0, 1]


def draw_thrice(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    first, last = (torch.ones(size, dtype=x.dtype) for size in ((9, 16), (8, 128)))
    return F.dropout(first), (F.dropout(x.relu()) @ weight).sum(), F.dropout(last, 0.3)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ to compile with")
def test_compiled_masks_are_drawn_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(accelerate.OPTIONS, "combo_kernels")  # in PyTorch 2.6 for GPUs alone
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator).double() for shape in ((8, 128), (128, 16)))
    found = []
    for function in (draw_thrice, accelerate.compiled(draw_thrice)):
        torch.manual_seed(0)
        found.append(function(x.requires_grad_(), weight.requires_grad_()))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(("captured", "compiled"), [(True, False), (True, True), (False, False)])
def test_kernels_are_tried_out_for_training_alone(
    features: Task, monkeypatch: pytest.MonkeyPatch, captured: bool, compiled: bool
) -> None:
    graph = SimpleNamespace(replay=lambda: None)
    monkeypatch.setattr(accelerate, "waits_for_device", lambda step: False)
    monkeypatch.setattr(accelerate, "capture", lambda training, step: {False: graph, True: graph} if captured else None)
    monkeypatch.setattr(accelerate, "take_compiled", lambda training, step: None)
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", False)
    monkeypatch.setattr(cudnn, "benchmark_limit", 10)
    steps = accelerate.replays(start(features, "source-only"), lambda: None, compiled=compiled)
    found = []
    for _ in range(5):
        next(steps)
        found.append((cudnn.benchmark, cudnn.benchmark_limit))
    trying = (True, 0 if compiled else 10)  # 0: all there are
    assert found == [trying] * 3 + [(False, 10) if captured else trying] * 2


def test_compiled_functions_count_by_themselves() -> None:
    """Many runs in one process: none finds that others have used up how often the same code may be compiled."""
    counters.clear()
    limit = torch._dynamo.config.cache_size_limit
    for size in range(2, limit + 5):
        network = torch.nn.Sequential(torch.nn.Linear(size, 2), torch.nn.ReLU())
        fast = accelerate.compiled(network.forward, "eager")
        torch.testing.assert_close(fast(torch.ones(3, size)), network(torch.ones(3, size)))
    assert counters["stats"]["unique_graphs"] == limit + 3
