"""The ranking: order, differences in pairs, what is within noise, and what failed."""

from __future__ import annotations

from typing import Any

import pytest

from graphmsda.tuning.ranking import rank, ranking_table, verdict


def rows(scores: dict[str, list[float | None]]) -> list[dict[str, Any]]:
    """A player for each score."""
    return [
        {"setting": name, "values": {"tau": 0.3 if name == "default" else float(name)}, "player": f"p{number}",
         "seed": 0, "accuracy": score, "error": "it broke" if score is None else None}
        for name, some in scores.items()
        for number, score in enumerate(some)
    ]  # fmt: skip


def test_the_best_mean_is_first_and_differences_are_taken_in_pairs() -> None:
    # Players differ by far more than settings do: only pairs show that the lead is the same on all of them.
    first, second = rank(rows({"default": [0.2, 0.5, 0.9], "0.1": [0.21, 0.52, 0.91]}))
    assert first.name == "0.1"
    assert first.mean == pytest.approx(1.64 / 3)
    assert second.behind == pytest.approx(0.04 / 3)
    # Leads 0.01, 0.02, 0.01: standard deviation 0.01 / sqrt(3), so the standard error is a third of 0.01.
    assert second.error == pytest.approx(0.01 / 3)
    assert not second.is_level
    text = verdict([first, second])
    assert (
        text == "Best on average: tau 0.1, 54.7 %. It leads every other setting by more than twice the standard error."
    )


def test_a_lead_within_noise_is_said_to_be_one_and_the_default_is_named() -> None:
    places = rank(rows({"default": [0.5, 0.6, 0.7], "0.1": [0.6, 0.52, 0.71], "1.0": [0.1, 0.1, 0.1]}))
    assert [place.name for place in places] == ["0.1", "default", "1.0"]
    assert places[1].is_level
    text = verdict(places)
    assert "not told apart from default (tau 0.3)." in text
    assert "The default is among them" in text
    assert "tau 1.0" not in text


def test_the_default_comes_first_among_equals() -> None:
    places = rank(rows({"default": [0.5, 0.6], "0.1": [0.5, 0.6]}))
    assert places[0].name == "default"
    assert places[1].is_level
    assert "there is no reason to change anything" in verdict(places)


def test_many_that_are_not_told_apart_are_counted() -> None:
    level = {str(number): [0.5, 0.6 + number / 100] for number in range(1, 6)}
    assert "from any of the other 5 settings" in verdict(rank(rows({"default": [0.6, 0.6], **level})))
    assert " and 2 more." in verdict(rank(rows({"default": [0.6, 0.6], **level, "9": [0.0, 0.0]})))


def test_one_run_tells_nothing_of_noise() -> None:
    places = rank(rows({"default": [0.5], "0.1": [0.9]}))
    assert places[1].error is None
    assert "One run of each cannot tell" in verdict(places)


def test_seeds_are_averaged_within_a_player() -> None:
    some = rows({"default": [0.4, 0.8]})
    for row in some:
        row |= {"player": "p", "seed": int(10 * row["accuracy"])}
    (place,) = rank(some)
    assert place.by_player == {"p": pytest.approx(0.6)}
    assert verdict([place]) == "Best on average: default (tau 0.3), 60.0 %."


def test_a_failure_counts_as_worst() -> None:
    found = rows({"default": [0.1, 0.2], "0.1": [0.9, None], "1.0": [None, None]})
    places = rank(found)
    assert [place.name for place in places] == ["default", "0.1", "1.0"]
    assert places[1].mean is None
    assert not places[1].is_level
    text = verdict(places, [row["error"] for row in found if row["error"]])
    assert "3 runs failed, and the settings concerned count as worst; the first said: it broke" in text
    table = ranking_table(places)
    assert table.count("failed") == 5
    assert table.splitlines()[0].split() == ["setting", "->", "p0", "->", "p1", "mean", "behind", "the", "best"]


def test_all_settings_with_a_failure() -> None:
    assert "No setting finished all its runs; tau 0.1 failed in fewest" in verdict(
        rank(rows({"default": [None, None], "0.1": [0.9, None]}))
    )
