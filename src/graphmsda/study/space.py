"""What a search may choose: ranges and choices of hyper-parameters and settings, and the next one to try."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphmsda.engine.settings import Settings
from graphmsda.errors import UserError
from graphmsda.methods import find_method, hyperparameters
from graphmsda.tuning.grid import place_of, read_parameters

LOG = "log"  # typed after the ends of a range
RANDOM = 8  # trials drawn at random before the results of others count
REPEATS = 20  # draws of settings that were tried before after which nothing new is expected


@dataclass(frozen=True)
class Range:
    """All numbers from one to another; with `log`, orders of magnitude are equally likely."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """Its extreme values."""
        return self.low, self.high


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """All of them."""
        return self.values


Space = Mapping[str, Range | Choice]


@dataclass(frozen=True)
class Past:
    """What is known of a setting: its value, of which more is better, or None where it failed or still runs."""

    values: Mapping[str, Any]
    value: float | None = None
    running: bool = False


def read_space(
    method: str, typed: Sequence[Sequence[str]], read_value: Callable[[str], Any]
) -> dict[str, Range | Choice]:
    """Return what was typed: ``tau 0.05 0.4`` and ``alpha 0.01 1 log`` are ranges, anything else is a choice."""
    if not typed:
        raise UserError("--param was not given: name a hyper-parameter and its range, for example --param tau 0.05 0.4")
    logs = {name for name, *texts in typed if texts[-1:] == [LOG]}
    plain = [[name, *(texts[:-1] if name in logs else texts)] for name, *texts in typed]
    found: dict[str, Range | Choice] = {}
    places: dict[tuple[str, str], str] = {}
    for name, values in read_parameters(method, plain, read_value).items():
        other = places.setdefault(place_of(method, name), name)
        if other != name:
            raise UserError(f"--param {name}: the same parameter as {other}; give it once")
        is_range = len(values) == 2 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if is_range:
            found[name] = _range(method, name, values, name in logs)
        elif name in logs or len(set(map(repr, values))) < 2 or not all(map(_is_plain, values)):
            told = " ".join(map(str, values)) or "nothing"
            raise UserError(
                f"--param {name}: {told} was given; give the ends of a range, for example 0.01 1 or 0.01 1 log, or "
                "several values to choose from"
            )
        else:
            found[name] = Choice(tuple(dict.fromkeys(values)))
    return found


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _range(method: str, name: str, values: Sequence[float], log: bool) -> Range:
    home, field = place_of(method, name)
    if home == "method":
        whole = hyperparameters(find_method(method))[field].kind is int
    else:
        whole = str(next(each.type for each in dataclasses.fields(Settings) if each.name == field)) == "int"
    low, high = values
    if low >= high or (log and low <= 0) or (whole and not all(isinstance(value, int) for value in values)):
        numbers = "whole numbers" if whole else "numbers"
        above = ", above 0" if log else ""
        raise UserError(f"--param {name} {low} {high}: no range; give two {numbers}, the lower one first{above}")
    return Range(low, high, log, whole)


def check_optuna() -> None:
    """Refuse to begin a search where what proposes settings is missing."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UserError("study search: Optuna is not installed; run pip install 'graphmsda[search]'") from error


def propose(space: Space, past: Sequence[Past]) -> dict[str, Any] | None:
    """Return the next setting to try, other than those tried; None where nothing new is found.

    The sampler is Optuna's tree-structured Parzen estimator (Bergstra et al., NIPS 2011), made anew each time from what
    the study's folder holds: the same past gives the same proposal, on any machine.
    """
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: _distribution(optuna.distributions, part) for name, part in space.items()}
    for repeat in range(REPEATS):
        sampler = optuna.samplers.TPESampler(
            seed=REPEATS * len(past) + repeat, n_startup_trials=RANDOM, constant_liar=True
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for one in past:
            if all(_holds(space[name], value) for name, value in one.values.items()):  # a default may lie outside
                state = TrialState.RUNNING if one.running else TrialState.FAIL
                state = state if one.value is None else TrialState.COMPLETE
                params = dict(one.values)
                study.add_trial(create_trial(state=state, params=params, distributions=distributions, value=one.value))
        drawn = study.ask(distributions).params
        found = {name: _rounded(space[name], drawn[name]) for name in space}
        if all(found != dict(one.values) for one in past):
            return found
    return None


def _distribution(kinds: Any, part: Range | Choice) -> Any:
    if isinstance(part, Choice):
        return kinds.CategoricalDistribution(part.values)
    kind = kinds.IntDistribution if part.whole else kinds.FloatDistribution
    return kind(part.low, part.high, log=part.log)


def _holds(part: Range | Choice, value: Any) -> bool:
    if isinstance(part, Choice):
        return value in part.values
    return isinstance(value, int | float) and part.low <= value <= part.high


def _rounded(part: Range | Choice, value: Any) -> Any:
    """Return a number with four digits, which people can read and type."""
    if isinstance(part, Choice) or part.whole:
        return value
    return min(max(float(f"{value:.4g}"), part.low), part.high)
