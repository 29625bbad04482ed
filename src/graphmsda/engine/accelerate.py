"""A training step as one replay: captured into a CUDA graph after a few steps, and compiled where the run is long.

What is captured is the very function that otherwise runs step by step (`graphmsda.engine.fit.take_step`), so there is
one definition of a step. Capture takes away what the host costs; compilation fuses what lies between the large matrix
products and convolutions, and takes up to a minute, once for a machine.
"""

from __future__ import annotations

import logging
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from graphmsda import parallel
from graphmsda.backbones import Backbone
from graphmsda.data import augment
from graphmsda.domains import Batch, Labelled
from graphmsda.engine.kept import forget, kept
from graphmsda.engine.settings import Settings
from graphmsda.engine.training import Training
from graphmsda.engine.trials import trials_beside
from graphmsda.methods import Method, Phase

WARM_UP = 3  # steps before capture: libraries choose kernels, the optimiser makes its memory
WORTH_COMPILING = 2000  # steps: a compiled step saves milliseconds, compiling it costs tens of seconds
DEEPER = 10  # times as many for networks with tens of layers, which take minutes to compile
# Dropout draws its masks as it does uncompiled, so that a compiled step is the same step. What is done to each of many
# small tensors is done in one kernel for all.
OPTIONS: dict[str, Any] = {"fallback_random": True, "combo_kernels": True}
if torch.__version__ < "2.15":  # which keeps the order of draws; seen to change it: 2.6, 2.7 and 2.11
    OPTIONS["reorder_for_peak_memory"] = False
# Whether compiled functions are kept whole, so that later processes trace nothing. Not timed on a GPU yet.
KEEP = False

log = logging.getLogger("graphmsda")
Step = Callable[[], None]


def is_compiled(settings: Settings) -> bool:
    """Whether a run's step is compiled before it is captured."""
    alone = settings.devices * settings.nodes == 1
    worth = WORTH_COMPILING * (DEEPER if settings.backbone.startswith("resnet") else 1)
    return settings.accelerate != "off" and settings.device == "cuda" and alone and settings.steps >= worth


def stepper(training: Training, step: Step) -> Step:
    """Return what to call for each step, once it is prepared: `step` itself, or something faster that equals it."""
    if training.settings.accelerate == "off" or training.device.type != "cuda":
        return step
    if parallel.world_size() > 1:
        if parallel.rank() == 0:
            log.warning("--accelerate: several processes train together, so steps are taken operation by operation")
        return step
    steps = replays(training, step, compiled=is_compiled(training.settings))
    return lambda: next(steps)


def replays(training: Training, step: Step, *, compiled: bool) -> Iterator[None]:
    """Take the first steps as they are, capture one and replay it from then on; each ``next`` takes one."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit
    # Shapes never change, so trying its kernels once pays: the ten likeliest, or in a long run all (0).
    cudnn.benchmark, cudnn.benchmark_limit = True, 0 if compiled else before[1]
    refusal = None
    if compiled:
        refusal = take_compiled(training, step)
    else:
        step()
    yield
    for _ in range(WARM_UP - 2):
        step()
        yield
    waits = waits_for_device(step)
    yield
    graphs = None if waits else capture(training, step)
    if graphs is not None and refusal is not None:
        log.warning(refusal)
    if graphs is None:
        log.warning(
            f"--accelerate: a step of {training.settings.method} reads values back from the device or does something "
            "else that cannot be captured, so steps are taken operation by operation"
        )
    else:
        # What reads a finished model has many shapes, each for a moment.
        cudnn.benchmark, cudnn.benchmark_limit = before
    while True:
        if graphs is None:
            step()
        else:
            graphs[training.measured].replay()
        yield


def waits_for_device(step: Step) -> bool:
    """Take a step and return whether the host waited for the device in it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return any("called a synchronizing" in str(warning.message) for warning in caught)


def capture(training: Training, step: Step) -> dict[bool, torch.cuda.CUDAGraph] | None:
    """Capture a step, and one that measures its gradients, without taking either; None where that is impossible."""
    graphs = {measured: torch.cuda.CUDAGraph() for measured in (False, True)}
    now = training.measured
    # By default all graphs of a process are captured on one stream. Two runs captured so and replayed at the same time
    # hung, for what cuBLAS keeps for a stream, it seems.
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    try:
        for training.measured, graph in graphs.items():
            graph.register_generator_state(training.view_generator)
            # They are never replayed at the same time, so they may use the same memory.
            pool = None if graph is graphs[False] else graphs[False].pool()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                step()
    except RuntimeError as error:
        log.info(f"capture failed: {error}")
        return None
    finally:
        training.measured = now
    return graphs


def take_compiled(training: Training, step: Step) -> str | None:
    """Compile what a step consists of and take one; if it cannot be compiled, go back, take it as it was and say so."""
    training.snapshot()
    for owner, name, fast in compiled_parts(training):
        setattr(owner, name, fast)
        training.replaced.append((owner, name))
    task = training.task
    shape = (len(task.domains) * training.settings.batch_size, *task.target.x.shape[1:])
    try:
        with derivatives_kept(), trials_beside(training.method.backbone, shape):
            step()
    except Exception as error:  # compilers raise what they like; a mistake of the method is raised again below
        training.put_back()
        reason = str(error).strip().splitlines()[:1]
        training.restore()
        training.prepare()
        if forget():  # what was kept from an earlier process may be what is wrong
            return take_compiled(training, step)
        step()
        return (
            f"--accelerate: the step of {training.settings.method} cannot be compiled "
            f"({type(error).__name__}{': ' if reason else ''}{''.join(reason)}), so it is replayed as it is"
        )
    return None


def derivatives_kept() -> AbstractContextManager[None]:
    """Have compilers keep, for later processes, also what functions with derivatives of their own are compiled to.

    They are part of what is looked up by, forward and backward; yet PyTorch compiles them anew unless told otherwise.
    """
    from torch._functorch import config

    name = "autograd_cache_allow_custom_autograd_functions"
    known = hasattr(config, name)  # since 2.8
    return config.patch(name, True) if known else nullcontext()


def compiled_parts(training: Training) -> list[tuple[Any, str, Any]]:
    """Return what to put in place of what: owner, name of the attribute, and its compiled form."""
    method, descent = training.method, training.descent
    bodies = nn.ModuleList(module.body for module in method.modules() if isinstance(module, Backbone))
    if type(method).losses is not Method.losses:
        descent.keep_copies(bodies, method.backbone.mixed)
        parts: list[tuple[Any, str, Any]] = [(method, "losses", compiled_losses(method, descent.copies))]
    else:
        parts = [(body, "forward", compiled(body.forward, whole=False)) for body in bodies]
    parts.append((descent, "step", descent.in_one_pass(lambda function: once_for_all(function, None))))
    if training.changed and training.task.is_images:
        parts.append((training, "change", compiled(augment.change)))
    return parts


def compiled_losses(
    method: Method, copies: Mapping[str, Tensor], backend: str = "inductor"
) -> Callable[[Batch], Phase]:
    """Return `Method.losses`, compiled whole, with copies in place of the parameters they are of."""
    # Whether a parameter has several names, so that its copy has to be put in several places. Where none has, compilers
    # need not follow how such names are looked for: a quarter of the lines that they go through.
    tied = len(list(method.named_parameters(remove_duplicate=False))) > len(list(method.parameters()))

    fast = once_for_all(tensors, (method, tied), backend)

    def losses(batch: Batch) -> Phase:
        sources = [(part.x, part.y) for part in batch.sources]
        given = sources, batch.target, batch.progress, batch.seed, batch.strong
        return Phase(*fast(method, tied, dict(copies), *given))

    return losses


def tensors(
    method: Method,
    tied: bool,
    copies: dict[str, Tensor],
    sources: Sequence[tuple[Tensor, Tensor]],
    target: Tensor,
    progress: Tensor,
    seed: Tensor,
    strong: Tensor | None,
) -> tuple[dict[str, Tensor], tuple[str, ...], dict[str, Tensor], dict[str, Tensor]]:
    """Return what `Method.losses` returns, of tensors in place of a batch."""
    batch = Batch(tuple(Labelled(x, y) for x, y in sources), target, progress, seed, strong)
    phase = torch.func.functional_call(method, copies, (batch,), tie_weights=tied)
    return dict(phase.terms), phase.updates, dict(phase.shown or {}), dict(phase.state or {})


def once_for_all(function: Callable[..., Any], about: object, backend: str = "inductor") -> Callable[..., Any]:
    """Return a function compiled, for later processes too where that is possible.

    Args:
        function: One that a module defines.
        about: What decides what it does beside the tensors it is called with: modules, as they are now.
        backend: PyTorch's compiler.
    """
    if KEEP and backend == "inductor":
        return kept(function, lambda: compiled(function), about, OPTIONS)
    return compiled(function, backend)


def compiled(function: Callable[..., Any], backend: str = "inductor", *, whole: bool = True) -> Callable[..., Any]:
    """Return a function compiled for fixed shapes, independently of other runs in this process.

    Args:
        function: What to compile.
        backend: PyTorch's compiler.
        whole: Refuse what can only be compiled in pieces, which would be slower than anybody notices.
    """

    def call(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    # The compiler counts how often the same code was compiled anew and gives up after a few times: a copy starts at 0.
    # What is called from it may be PyTorch's own, which all compiled functions would share.
    own = types.FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)
    options = OPTIONS if backend == "inductor" else None
    return torch.compile(own, backend=backend, dynamic=False, fullgraph=whole, options=options)
