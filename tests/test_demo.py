"""The demonstration's claims, measured: minutes of training, so marked slow."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from graphmsda.data.demo import DOMAINS
from graphmsda.demo import CEILING, mean_table, run_demo


@pytest.mark.slow
def test_adaptation_wins_back_much_of_what_the_shift_costs(tmp_path: Path) -> None:
    """Over three seeds and all five targets, at the demonstration's own settings."""
    rows = run_demo(tmp_path, targets=DOMAINS, seeds=(0, 1, 2))
    of = {
        (method, target): mean(r["accuracy"] for r in rows if (r["method"], r["target"]) == (method, target))
        for method in ("source-only", "crf", "mrf", CEILING)
        for target in DOMAINS
    }
    gaps = [of[CEILING, target] - of["source-only", target] for target in DOMAINS]
    assert sum(gap >= 0.15 for gap in gaps) >= 3, gaps
    source_only = mean(of["source-only", target] for target in DOMAINS)
    for method in ("crf", "mrf"):
        won = mean(of[method, target] for target in DOMAINS) - source_only
        assert won >= 0.05, (method, won)
        assert won >= 0.5 * mean(gaps), (method, won)


def test_table_averages_over_seeds() -> None:
    rows = [{"method": "a", "target": "t", "seed": seed, "accuracy": share} for seed, share in enumerate((0.5, 0.7))]
    assert mean_table(rows) == [["method", "-> t", "mean"], ["a", "60.0", "60.0"]]
