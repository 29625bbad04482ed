"""The paper's numbers as data."""

from __future__ import annotations

import statistics

import pytest

from graphmsda.data.benchmarks.catalogue import BENCHMARKS
from graphmsda.study import paper
from graphmsda.study.protocol import STANDARDS

# Averages that do not follow from the printed columns; they are kept as printed.
MISPRINTED = {
    ("digits-five", "single-best", "adda"),
    ("digits-five", "multi-source", "m3sda"),
    ("digits-five", "multi-source", "mrf"),
    ("domainnet", "source-combine", "dann"),
    ("domainnet", "source-combine", "mcd"),
}


def test_tables_are_whole() -> None:
    tables = paper.numbers()["accuracy"]
    assert {name: len(table["rows"]) for name, table in tables.items()} == {
        "digits-five": 18,
        "office-31": 17,
        "pacs": 9,
        "domainnet": 20,
    }
    for name, table in tables.items():
        for row in table["rows"]:
            assert set(row["targets"]) == set(BENCHMARKS[name].domains)
            assert row["standard"] in STANDARDS
        keys = [(row["standard"], row["method"]) for row in table["rows"]]
        assert len(set(keys)) == len(keys)


def test_averages_follow_from_the_columns() -> None:
    off = set()
    for name, table in paper.numbers()["accuracy"].items():
        for row in table["rows"]:
            mean = statistics.fmean(values[0] for values in row["targets"].values())
            if abs(mean - row["average"]) > 0.0501:
                off.add((name, row["standard"], row["method"]))
    assert off == MISPRINTED
    for table in paper.numbers()["ablation"].values():
        for row in table["rows"]:
            mean = statistics.fmean(values[0] for values in row["targets"].values())
            assert mean == pytest.approx(row["average"], abs=0.006)


def test_some_entries() -> None:
    assert paper.accuracy("digits-five", "multi-source", "cmss", "sv") == (0.884, 0.005)
    assert paper.accuracy("office-31", "single-best", "dann", "amazon") == (0.534,)
    assert paper.accuracy("pacs", "multi-source", "mrf", None) == (0.926,)
    assert paper.accuracy("domainnet", "source-combine", "mcd", "quickdraw") == (0.076, 0.005)
    assert paper.accuracy("demo", "multi-source", "mrf", "neon") is None
    assert paper.accuracy("pacs", "single-best", "mrf", None) is None
    both, none = frozenset({"global", "local"}), frozenset[str]()
    assert paper.ablation("digits-five", "crf", both, both, "mm") == (0.8556,)
    assert paper.ablation("digits-five", "crf", none, both, None) == (0.869,)
    assert paper.ablation("digits-five", "crf", none, frozenset({"global"}), "mm") is None
    assert paper.ablation("pacs", "crf", both, both, None) is None
    assert paper.timing("mrf", "training") == (16.54, 0.1)
    assert paper.timing("adabn", "training") is None
    assert "Table 5" in (paper.reference("table", "domainnet") or "")
