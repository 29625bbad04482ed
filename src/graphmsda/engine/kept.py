"""Compiled functions kept on disk whole: a later process loads them and goes through no code again.

PyTorch keeps what its compiler makes of a graph, yet every process has to trace its Python code anew to come to the
graph, which takes seconds. A function compiled for given arguments can be saved, too
(`torch.compiler.load_compiled_function`, which PyTorch calls experimental).

Such a function checks nothing, so its file is named after all that it was traced through: the sources of this
package, the versions of what compiles, the device, and the arguments, modules down to their plain attributes. Where
anything cannot be described in this way, a user's own method say, it is not kept.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import logging
import platform
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import graphmsda
from graphmsda.data.listing import digest_of
from graphmsda.files import replacing

PLAIN = (bool, int, float, str, bytes, types.NoneType, torch.dtype, torch.device, torch.memory_format)

log = logging.getLogger("graphmsda")
_loaded: list[Path] = []  # files that functions of this process came from


class Unkept(Exception):  # noqa: N818 - nothing is wrong
    """Something that a compiled function may depend on and that has no description."""


def is_known() -> bool:
    """Whether this PyTorch can save compiled functions."""
    import torch._dynamo

    return hasattr(torch.compiler, "load_compiled_function") and hasattr(torch._dynamo.config, "enable_aot_compile")


def folder() -> Path:
    """Return where functions are kept: among what PyTorch keeps of its compiler's work."""
    from torch._inductor.runtime.runtime_utils import cache_dir  # type: ignore[attr-defined]

    return Path(cache_dir()) / "graphmsda"


def kept(
    function: Callable[..., Any],
    otherwise: Callable[[], Callable[..., Any]],
    about: object,
    options: Mapping[str, Any],
) -> Callable[..., Any]:
    """Return `function`, compiled for the arguments of its first call, or loaded where that has been done before.

    Args:
        function: One that a module defines, called with the same shapes and the same attributes of modules each time.
        otherwise: Makes what to call where it cannot be kept.
        about: What else decides what it does, such as the modules among its arguments before anything was put in place
            of their methods.
        options: Of the compiler.
    """
    fast: Callable[..., Any] | None = None
    described = _description([function, about])

    def call(*given: Any) -> Any:
        nonlocal fast
        if fast is None:
            fast = _find(function, given, described, options) or otherwise()
        return fast(*given)

    return call


def has_kept() -> bool:
    """Whether any function lies where they are kept."""
    return is_known() and folder().is_dir() and any(folder().glob("*.bin"))


def forget() -> bool:
    """Remove the files of all functions that this process has loaded; say whether there were any."""
    paths, _loaded[:] = list(_loaded), []
    for path in paths:
        path.unlink(missing_ok=True)
    return bool(paths)


def _description(value: object) -> object | None:
    try:
        return describe(value)
    except Unkept as error:
        log.info(f"not kept: {error}")
        return None


def _find(
    function: Callable[..., Any], given: tuple[Any, ...], about: object | None, options: Mapping[str, Any]
) -> Callable[..., Any] | None:
    arguments = _description([value for value in given if not isinstance(value, nn.Module)])
    if about is None or arguments is None or not is_known():
        return None
    parts = (_surroundings(), _switches(), sorted(options.items()), about, arguments)
    path = folder() / f"{function.__name__}-{digest_of(*parts)}.bin"
    found = _load(path)
    return found if found is not None else _compile(function, given, options, path)


def _load(path: Path) -> Callable[..., Any] | None:
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            found = torch.compiler.load_compiled_function(file)
    except Exception as error:  # damaged, or made by something that differs in what we have not thought of
        log.info(f"{path}: cannot be loaded ({error}); compiled anew")
        return None
    _loaded.append(path)
    return found


def _compile(
    function: Callable[..., Any], given: tuple[Any, ...], options: Mapping[str, Any], path: Path
) -> Callable[..., Any] | None:
    # The conditions on which it holds cannot all be saved; the name of the file stands for them.
    unchecked = {**options, "guard_filter_fn": lambda guards: [False for _ in guards]}
    try:
        with torch._dynamo.config.patch(enable_aot_compile=True):
            fast = torch.compile(function, fullgraph=True, dynamic=False, options=unchecked)
            made = fast.aot_compile((given, {}))  # type: ignore[attr-defined]
    except Exception as error:  # what compiles it otherwise tells what a user should know
        log.info(f"{function.__qualname__} cannot be compiled for keeping ({error})")
        return None
    with suppress(Exception):  # it has been compiled, whether there is room for it or not
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            made.save_compiled_function(str(beside))
    found: Callable[..., Any] = made
    return found


@cache
def _surroundings() -> tuple[object, ...]:
    """Return what all compiled functions of a process depend on: sources, versions and the machine."""
    root = Path(graphmsda.__file__).parent
    sources = digest_of(*((path.relative_to(root), path.read_bytes()) for path in sorted(root.rglob("*.py"))))
    triton = None
    with suppress(importlib.metadata.PackageNotFoundError):
        triton = importlib.metadata.version("triton")
    gpu = [torch.cuda.get_device_name(), torch.cuda.get_device_capability()] if torch.cuda.is_available() else []
    machine = platform.machine(), platform.python_version(), str(torch.__version__), torch.version.cuda, triton
    return sources, *machine, *gpu


def _switches() -> tuple[object, ...]:
    """Return what PyTorch is set to and a trace may have met."""
    return (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
    )


def describe(value: object, seen: dict[int, int] | None = None) -> object:
    """Return all that a trace through `value` may depend on, of tensors everything but their numbers.

    Raises:
        Unkept: Where there is something of which that is not known.

    >>> describe([torch.zeros(2, 3), {"tau": 0.2}])
    ('list', (('Tensor', (2, 3), (3, 1), torch.float32, 'cpu', False), ('dict', (('tau', 0.2),))))
    """
    seen = {} if seen is None else seen
    if isinstance(value, PLAIN):
        return value
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, Tensor):
        kind = type(value).__name__
        return (kind, tuple(value.shape), value.stride(), value.dtype, value.device.type, value.requires_grad)
    if isinstance(value, enum.Enum | types.FunctionType | types.BuiltinFunctionType | type):
        return _named(value)
    if isinstance(value, Mapping):
        return ("dict", tuple((key, describe(item, seen)) for key, item in value.items()))
    if isinstance(value, list | tuple | torch.Size):
        return (type(value).__name__, tuple(describe(item, seen) for item in value))
    if isinstance(value, set | frozenset):
        return ("set", tuple(sorted(map(repr, value))))
    if isinstance(value, nn.Module):
        inside = vars(value)
        hooked = [name for name, held in inside.items() if name.endswith("_hooks") and held]
        if hooked:
            raise Unkept(f"{type(value).__name__} has {hooked[0]}")
        return (_named(type(value)), describe(inside, seen))
    if dataclasses.is_dataclass(value):
        return (_named(type(value)), describe(vars(value), seen))
    raise Unkept(f"{type(value).__name__} has no description")


def _named(value: Any) -> str:
    """Return the name of something whose source is this package's or PyTorch's."""
    if isinstance(value, enum.Enum):
        return f"{_named(type(value))}.{value.name}"
    module, name = str(getattr(value, "__module__", None)), str(getattr(value, "__qualname__", None))
    if module.partition(".")[0] not in ("graphmsda", "torch", "builtins", "collections") or "<" in name:
        raise Unkept(f"{module}.{name} is not this package's")
    return f"{module}.{name}"
