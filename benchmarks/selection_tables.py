"""What the rows of benchmarks/selection.py say together: correlation, regret, error, coverage, a verdict."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphmsda.selection import SCORES

Row = Mapping[str, Any]
ESTIMATE = "estimate"
KINDS = ("one run", "by other benchmarks", "two seeds", "other targets")
GOOD, POOR = 0.5, 0.2  # mean rank correlation from which a score is of use, and below which it is of none
CHEAP, DEAR = 0.02, 0.05  # mean regret up to which a score is of use, and from which it is of none


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of each benchmark."""
    found = {}
    for name in dict.fromkeys(row["benchmark"] for row in rows):
        own = [row for row in rows if row["benchmark"] == name]
        targets = {target: [row for row in own if row["target"] == target] for target in _names(own, "target")}
        found[name] = {
            "runs": len(own),
            "targets": list(targets),
            "methods": _names(own, "method"),
            "commits": _names(own, "commit"),
            "hardware": _names(own, "hardware"),
            "scores": {score: score_figures(score, targets) for score in (*SCORES, ESTIMATE)},
            "chance": statistics.mean(
                max(_truth(group)) - statistics.mean(_truth(group)) for group in targets.values()
            ),
            "estimates": {kind: estimate_figures(kind, own) for kind in KINDS},
            "estimators": estimator_figures(own),
            "calibration": calibration_figures(own),
        }
    return found


def score_figures(name: str, targets: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Return rank correlation with the truth and regret of choosing by a score, for each target and on average."""
    correlations, regrets, adapted = {}, {}, []
    for target, group in targets.items():
        values, truth = [value_of(row, name) for row in group], _truth(group)
        correlations[target] = rank_correlation(values, truth)
        regrets[target] = max(truth) - truth[values.index(max(values))]
        rest = [row for row in group if row["method"] != "source-only"]
        adapted.append(rank_correlation([value_of(row, name) for row in rest], _truth(rest)))
    return {
        "correlation": _mean(correlations.values()),
        "correlation_adapted": _mean(adapted),  # of runs that adapt: to tell them from Source-only is easy
        "regret": statistics.mean(regrets.values()),
        "worst_regret": max(regrets.values()),
        "correlations": correlations,
    }


def value_of(row: Row, name: str) -> float:
    """Return a score so that more is better; one that a run cannot have is below all."""
    if name == ESTIMATE:
        return float(row["estimates"]["one run"]["accuracy"])
    value = row["scores"][name]
    if value is None or value != value:
        return float("-inf")
    return float(value if SCORES[name].higher else -value)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, None where it has no meaning.

    >>> rank_correlation([1, 2, 3, 4], [10, 20, 40, 30]), rank_correlation([1, 1, 1], [1, 2, 3])
    (0.8, None)
    """
    if len(one) < 3 or len(set(one)) < 2 or len(set(other)) < 2:
        return None
    ranks = _ranks(one), _ranks(other)
    return statistics.correlation(*ranks)


def estimate_figures(kind: str, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return error, bias, coverage and width of an estimate."""
    pairs = [(row["estimates"][kind], row["accuracy"]) for row in rows if kind in row["estimates"]]
    if not pairs:
        return None
    return {
        "runs": len(pairs),
        "error": statistics.mean(abs(found["accuracy"] - truth) for found, truth in pairs),
        "bias": statistics.mean(found["accuracy"] - truth for found, truth in pairs),
        "coverage": statistics.mean(found["low"] <= truth <= found["high"] for found, truth in pairs),
        "width": statistics.mean(found["high"] - found["low"] for found, _ in pairs),
    }


def estimator_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Return error and bias of each estimator by itself."""
    found: dict[str, list[float]] = {}
    for row in rows:
        kinds = row["estimates"]
        parts = (kinds.get("two seeds") or kinds["one run"])["parts"]
        for name, value in parts.items():
            found.setdefault(name, []).append(value - row["accuracy"])
    return {
        name: {"error": statistics.mean(map(abs, values)), "bias": statistics.mean(values)}
        for name, values in found.items()
    }


def calibration_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Return calibration errors of each method, before and after the sources' temperature."""
    found = {}
    for method in _names(rows, "method"):
        own = [row["calibration"] for row in rows if row["method"] == method]
        found[method] = {
            "temperature": statistics.mean(one["temperature"] for one in own),
            **{
                domain: [statistics.mean(one[domain][step] for one in own) for step in (0, 1)]
                for domain in ("sources", "target")
            },
        }
    return found


def verdict(name: str, benchmarks: Mapping[str, Any]) -> str:
    """Return what to do with a score, by its worst benchmark."""
    figures = [found["scores"][name] for found in benchmarks.values()]
    correlation = min(-1.0 if one["correlation"] is None else one["correlation"] for one in figures)
    regret = max(one["regret"] for one in figures)
    if correlation < POOR or regret > DEAR:
        return "do not use"
    return "use" if correlation >= GOOD and regret <= CHEAP else "with care"


def page(result: Mapping[str, Any]) -> str:
    """Return the tables of docs/selection.md."""
    benchmarks = result["benchmarks"]
    heads = [f"{name}: {what}" for name in benchmarks for what in ("correlation", "adapted only", "regret (worst)")]
    rows = []
    for score in (*SCORES, ESTIMATE):
        cells = []
        for found in benchmarks.values():
            one = found["scores"][score]
            cells += [_told(one["correlation"]), _told(one["correlation_adapted"])]
            cells.append(f"{100 * one['regret']:.1f} ({100 * one['worst_regret']:.1f})")
        rows.append((_order(score, benchmarks), [score, *cells, verdict(score, benchmarks)]))
    chance = [cell for found in benchmarks.values() for cell in ("0", "0", f"{100 * found['chance']:.1f}")]
    ordered = [cells for _, cells in sorted(rows, key=lambda row: row[0])]
    parts = [_table(["score", *heads, "verdict"], [*ordered, ["any run at random", *chance, ""]])]
    parts.append(_estimate_table(benchmarks))
    parts.append(_calibration_table(benchmarks))
    made = [
        f"{name}: {found['runs']} runs of {', '.join(found['methods'])} on {', '.join(found['targets'])}, "
        f"commit {', '.join(found['commits'])}, {', '.join(found['hardware'])}"
        for name, found in benchmarks.items()
    ]
    commands = ", ".join(f"`{command}`" for command in result["commands"])
    return "\n\n".join([*parts, f"{'; '.join(made)}. {commands}, {result['date']}."])


def _estimate_table(benchmarks: Mapping[str, Any]) -> str:
    lines = []
    for name, found in benchmarks.items():
        for kind, one in found["estimates"].items():
            if one is not None:
                cells = [f"{100 * one[figure]:.1f}" for figure in ("error", "bias")]
                lines.append(
                    [name, f"estimate, {kind}", *cells, f"{100 * one['coverage']:.0f}", f"{100 * one['width']:.0f}"]
                )
        for kind, one in found["estimators"].items():
            lines.append([name, kind, *(f"{100 * one[figure]:.1f}" for figure in ("error", "bias")), "", ""])
    return _table(["benchmark", "estimate", "error", "bias", "in the interval (%)", "its width"], lines)


def _calibration_table(benchmarks: Mapping[str, Any]) -> str:
    lines = []
    for name, found in benchmarks.items():
        for method, one in found["calibration"].items():
            pairs = [f"{100 * one[domain][0]:.1f} -> {100 * one[domain][1]:.1f}" for domain in ("sources", "target")]
            lines.append([name, method, f"{one['temperature']:.2f}", *pairs])
    return _table(["benchmark", "method", "temperature", "error on sources", "error on the target"], lines)


def fill(path: Path, text: str) -> None:
    """Put the tables into a page, between its marks."""
    before = path.read_text(encoding="utf-8")
    put: Callable[[re.Match[str]], str] = lambda _: f"<!-- table:selection -->\n{text}\n<!-- /table:selection -->"  # noqa: E731
    path.write_text(re.sub(r"<!-- table:selection -->.*?<!-- /table:selection -->", put, before, flags=re.DOTALL))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _order(score: str, benchmarks: Mapping[str, Any]) -> float:
    return -statistics.mean(found["scores"][score]["correlation"] or 0 for found in benchmarks.values())


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _truth(rows: Sequence[Row]) -> list[float]:
    return [float(row["accuracy"]) for row in rows]


def _names(rows: Sequence[Row], field: str) -> list[str]:
    return list(dict.fromkeys(row[field] for row in rows))


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]
