"""The settings that tuning compares: the default, and every combination of the values given."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphmsda.backbones import build_backbone
from graphmsda.domains import Task
from graphmsda.engine.settings import FREE_TO_CHANGE, Settings
from graphmsda.errors import UserError
from graphmsda.methods import build_method, find_method, hyperparameters

DEFAULT = "default"
# Neither which method nor where it runs is chosen among; seeds are averaged over.
FIXED = ("method", "parameters", "seed", *(name for name in FREE_TO_CHANGE if name != "preset"))


@dataclass(frozen=True)
class Setting:
    """One setting to compare.

    Attributes:
        name: ``default``, or what the grid says: ``alpha=0.1,tau=0.3``.
        values: The value of each parameter of the grid.
        settings: What `graphmsda.engine.fit.fit` is given, hyper-parameters as ``parameters``.
        resolved: The same with everything decided.
    """

    name: str
    values: Mapping[str, Any]
    settings: Mapping[str, Any]
    resolved: Settings


def build_grid(
    method: str,
    parameters: Mapping[str, Sequence[Any]],
    base: Mapping[str, Any],
    task: Task,
    data_root: str | Path | None = None,
) -> list[Setting]:
    """Return the default and all combinations, each checked as far as that goes without training; no two are the same.

    Args:
        method: Name of the method.
        parameters: Values of each parameter: a hyper-parameter of the method or a field of `Settings`. A name that is
            both is told apart as ``method.dropout`` and ``training.dropout``.
        base: Settings that all have in common; the default is these and nothing else.
        task: A task like those that will be trained on.
        data_root: Folder below which ``weights/`` may hold pretrained ones.
    """
    places = {name: place_of(method, name) for name in parameters}
    if len(set(places.values())) < len(places):
        raise UserError(f"--param: {' and '.join(places)} name the same parameter; give it once with all its values")
    for name, values in parameters.items():
        if isinstance(values, str) or not len(values):
            raise UserError(f"--param {name}: no values; give those to compare, for example --param {name} 0.1 0.3")
    resolved = _checked(Settings(**{**base, "method": method}), task, data_root)
    found = [Setting(DEFAULT, {name: _value(resolved, *place) for name, place in places.items()}, base, resolved)]
    for values in itertools.product(*parameters.values()) if parameters else ():
        chosen = dict(zip(parameters, values, strict=True))
        settings = {**base, "parameters": dict(base.get("parameters", {}))}
        for name, value in chosen.items():
            home, field = places[name]
            (settings["parameters"] if home == "method" else settings)[field] = value
        try:
            resolved = _checked(Settings(**{**settings, "method": method}), task, data_root)
        except UserError as error:  # it names the flags of a single run
            raise UserError(re.sub(r"^--(set )?", "--param ", str(error))) from error
        # Two spellings of one setting, 0.1 and 0.10 say, are one setting, and so is the default spelt out.
        if all(_essence(resolved) != _essence(other.resolved) for other in found):
            name = ",".join(f"{name}={told(chosen[name])}" for name in sorted(chosen))
            found.append(Setting(name, chosen, settings, resolved))
    return found


def read_parameters(
    method: str, typed: Sequence[Sequence[str]], read_value: Callable[[str], Any]
) -> dict[str, list[Any]]:
    """Return the values of each parameter as they were typed: ``[["tau", "0.1", "1"], ["precision", "32"]]``."""
    kinds = {field.name: str(field.type) for field in dataclasses.fields(Settings)}
    found: dict[str, list[Any]] = {}
    for name, *texts in typed:
        if name in found:
            raise UserError(f"--param {name}: given twice; give it once with all its values")
        home, field = place_of(method, name)
        is_text = home == "training" and kinds[field].startswith("str")  # precision 32, weights 1e-3.pth
        found[name] = list(texts) if is_text else [read_value(text) for text in texts]
    return found


def place_of(method: str, name: str) -> tuple[str, str]:
    """Say what a parameter is: of the ``method`` or of the ``training``, and the name it has there.

    >>> place_of("mrf", "tau"), place_of("mrf", "weight-decay")
    (('method', 'tau'), ('training', 'weight_decay'))
    """
    home, dot, plain = name.replace("-", "_").rpartition(".")
    settings = [field.name for field in dataclasses.fields(Settings)]
    homes = {
        "method": list(hyperparameters(find_method(method))),
        "training": [field for field in settings if field not in FIXED],
    }
    found = [known for known in ([home] if dot else homes) if plain in homes.get(known, ())]
    if len(found) == 1:
        return found[0], plain
    if found:
        raise UserError(
            f"--param {name}: both a hyper-parameter of {method} and a setting of the training; write method.{plain} "
            f"or training.{plain}"
        )
    if plain == "seed":
        raise UserError("--param seed: a seed is not chosen but averaged over; give --seeds 0 1 2")
    if plain in settings:
        raise UserError(f"--param {name}: cannot be compared; give --{plain.replace('_', '-')} with one value")
    known = [*homes["method"], *homes["training"]]
    close = difflib.get_close_matches(plain, known, n=2, cutoff=0.5)
    meant = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    raise UserError(f"--param {name}: neither a hyper-parameter of {method} nor a setting of the training; {meant}")


def told(value: object) -> str:
    """Return a value as one types it.

    >>> told(True), told(0.1), told(None)
    ('true', '0.1', 'none')
    """
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _value(resolved: Settings, home: str, field: str) -> Any:
    return resolved.parameters[field] if home == "method" else getattr(resolved, field)


def _checked(settings: Settings, task: Task, data_root: str | Path | None) -> Settings:
    """Resolve settings and build the method without memory: a value out of range is told before any training."""
    resolved = settings.resolved(task, data_root)
    domains = len(task.domains)
    with torch.device("meta"):
        backbone = build_backbone(resolved.backbone, task.target.x.shape[1:], domains, dropout=resolved.dropout)
        build_method(resolved.method, backbone, len(task.classes), domains, resolved.parameters)
    return resolved


def _essence(resolved: Settings) -> Settings:
    return dataclasses.replace(resolved, preset=None)  # it has done its work: the hyper-parameters are complete
