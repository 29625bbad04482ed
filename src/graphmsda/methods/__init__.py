"""All methods by name, and what can be said of each from its signature alone.

`METHODS` is a plain dict. A package of your own adds to it through the entry point group ``graphmsda.methods``.
"""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from numbers import Integral, Real
from typing import Any, Literal

from graphmsda.backbones import Backbone
from graphmsda.errors import UserError
from graphmsda.methods.adda import ADDA
from graphmsda.methods.base import Method, Phase
from graphmsda.methods.cmss import CMSS
from graphmsda.methods.coral import DeepCORAL
from graphmsda.methods.crf import CRF
from graphmsda.methods.dan import DAN
from graphmsda.methods.dann import DANN
from graphmsda.methods.dctn import DCTN
from graphmsda.methods.jan import JAN
from graphmsda.methods.m3sda import M3SDA
from graphmsda.methods.m3sda_beta import M3SDABeta
from graphmsda.methods.mcd import MCD
from graphmsda.methods.mdan import MDAN
from graphmsda.methods.mdda import MDDA
from graphmsda.methods.meta_mcd import MetaMCD
from graphmsda.methods.mrf import MRF
from graphmsda.methods.mrf_plus import MRFPlus
from graphmsda.methods.rtn import RTN
from graphmsda.methods.source_only import AdaBN, SourceOnly

__all__ = ["METHODS", "Hyperparameter", "Method", "Phase", "build_method", "find_method", "hyperparameters"]

METHODS: dict[str, type[Method]] = {
    "source-only": SourceOnly,
    "adabn": AdaBN,
    "crf": CRF,
    "mrf": MRF,
    "mrf-plus": MRFPlus,
    "mdan": MDAN,
    "dctn": DCTN,
    "m3sda": M3SDA,
    "m3sda-beta": M3SDABeta,
    "dan": DAN,
    "coral": DeepCORAL,
    "jan": JAN,
    "rtn": RTN,
    "dann": DANN,
    "adda": ADDA,
    "mcd": MCD,
    "cmss": CMSS,
    "mdda": MDDA,
    "meta-mcd": MetaMCD,
}


@dataclass(frozen=True)
class Hyperparameter:
    """A keyword argument of a method: its default, type and what the docstring says of it."""

    name: str
    default: Any
    kind: Any
    text: str


def find_method(name: str) -> type[Method]:
    """Return the method of that name, our own or one that an installed package adds."""
    if name in METHODS:
        return METHODS[name]
    for entry in entry_points(group="graphmsda.methods"):
        if entry.name == name:
            found: type[Method] = entry.load()
            return found
    known = [*METHODS, *(entry.name for entry in entry_points(group="graphmsda.methods"))]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    meant = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    raise UserError(f"--method: unknown method {name!r}; {meant}")


def hyperparameters(method: type[Method]) -> dict[str, Hyperparameter]:
    """Read a method's hyper-parameters from its signature and the ``Args:`` section of its docstring.

    >>> hyperparameters(SourceOnly)
    {}
    >>> hyperparameters(MRF)["tau"].kind
    <class 'float'>
    """
    kinds = typing.get_type_hints(method.__init__)
    texts = _argument_texts(inspect.getdoc(method) or "")
    return {
        name: Hyperparameter(name, parameter.default, kinds[name], texts.get(name, ""))
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def complete_parameters(
    name: str, given: Mapping[str, Any], preset: str | None = None, *, pretrained: bool = False
) -> dict[str, Any]:
    """Return all hyper-parameters of a method: its defaults, then the preset's, then those given, checked by type.

    With ``pretrained`` the defaults are those for a backbone that starts from trained weights.
    """
    method = find_method(name)
    known = hyperparameters(method)
    values = {key: parameter.default for key, parameter in known.items()}
    values.update(method.pretrained if pretrained else {})
    if preset is not None:
        if preset not in method.presets:
            there = ", ".join(method.presets) or "none"
            raise UserError(f"--preset: method {name} has no preset {preset!r}; there is {there}")
        values.update(method.presets[preset])
    for key, value in given.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=2, cutoff=0.4)
            meant = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(known) or 'none'}"
            raise UserError(f"--set {key}: method {name} has no hyper-parameter {key!r}; {meant}")
        values[key] = _checked(known[key], value)
    return values


def build_method(name: str, backbone: Backbone, classes: int, domains: int, parameters: Mapping[str, Any]) -> Method:
    """Build a method by name with hyper-parameters as `complete_parameters` returns them."""
    return find_method(name)(backbone, classes, domains, **parameters)


def _checked(parameter: Hyperparameter, value: Any) -> Any:
    kind = parameter.kind
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value in choices:
            return value
        expected = f"one of {', '.join(map(str, choices))}"
    else:
        number = {float: Real, int: Integral}.get(kind)
        if number is not None and isinstance(value, number) and not isinstance(value, bool):
            return kind(value)
        if type(value) is kind:
            return value
        expected = {float: "a number", int: "a whole number", bool: "true or false"}.get(kind, f"a {kind}")
    raise UserError(f"--set {parameter.name}={value}: not understood; give {expected}")


def _argument_texts(docstring: str) -> dict[str, str]:
    """Return the texts of a google-style ``Args:`` section."""
    texts: dict[str, str] = {}
    name, inside = "", False
    for line in docstring.splitlines():
        if line.strip() == "Args:":
            inside = True
        elif inside and line and not line.startswith(" "):
            break
        elif inside and line.startswith("    ") and not line.startswith("     "):
            name, _, text = line.strip().partition(": ")
            texts[name] = text
        elif inside and line.strip():
            texts[name] += " " + line.strip()
    return texts
