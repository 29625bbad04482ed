"""The adjacency figure: its numbers, its labels, its legibility from 3 x 4 to 6 x 345."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from graphmsda import UserError
from graphmsda.figures import adjacency, style
from tests.figures.helpers import cells, clashes, untrained, words

DIGITS = tuple("0123456789")
FIVE = ("mnist", "usps", "svhn", "syn", "mnistm")
SIX = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def slow(run) -> np.ndarray:
    """Eq. 4 in loops."""
    points = run.method.prototypes.flatten(0, 1).double()
    n = len(points)
    squared = [[float(((points[u] - points[v]) ** 2).sum()) for v in range(n)] for u in range(n)]
    mean = sum(squared[u][v] for u in range(n) for v in range(n) if u != v) / (n * (n - 1))
    sigma = run.method.sigma
    return np.array([[math.exp(-squared[u][v] / (2 * sigma**2 * mean)) for v in range(n)] for u in range(n)])


def test_the_picture_shows_equation_4() -> None:
    run = untrained("crf", sigma=0.5)
    with style.styled():
        figure = adjacency.draw([run])
        image = cells(figure)
        np.testing.assert_allclose(image.get_array(), slow(run), atol=1e-5)
        assert image.get_clim() == (0, 1)
        assert words(figure).count("a") == 2  # on both sides
        assert "CRF-MSDA" in "".join(words(figure))


def test_a_prototype_never_met_is_missing() -> None:
    run = untrained("crf")
    run.method.seen[2, 1] = False
    graph, misfit = adjacency.adjacency_matrix(run)
    assert graph[9].isnan().all()
    assert graph[:, 9].isnan().all()
    assert graph.isnan().sum() == 23
    assert math.isfinite(misfit)


def test_pooling_keeps_the_largest() -> None:
    graph = torch.rand(3 * 7, 3 * 7)
    found, size = adjacency.pooled(graph, 3, most=9)
    assert size == 3
    for u in range(9):
        for v in range(9):
            rows = [7 * (u // 3) + k for k in range(3 * (u % 3), min(7, 3 * (u % 3) + 3))]
            columns = [7 * (v // 3) + k for k in range(3 * (v % 3), min(7, 3 * (v % 3) + 3))]
            assert found[u, v] == max(graph[r, c] for r in rows for c in columns)
    same, size = adjacency.pooled(graph, 3)
    assert size == 1
    assert torch.equal(same, graph)


def test_two_runs_side_by_side_say_what_differs() -> None:
    runs = [
        untrained("crf", domains=FIVE, classes=DIGITS, lambda_1=0.0),
        untrained("crf", domains=FIVE, classes=DIGITS, lambda_1=20.0),
    ]
    with style.styled():
        figure = adjacency.draw(runs)
        said = words(figure)
        assert any(r"(a) CRF-MSDA, $\lambda_1$ = 0" in text for text in said)
        assert any(r"(b) CRF-MSDA, $\lambda_1$ = 20" in text for text in said)
        assert said.count("9") == 4 * 5  # each class of each domain, on both sides of both
        assert clashes(figure) == []
        assert cells(figure, 0).get_clim() == cells(figure, 1).get_clim() == (0, 1)


def test_hundreds_of_classes_stay_legible() -> None:
    run = untrained("crf", domains=SIX, classes=tuple(f"class {k}" for k in range(345)), sigma=0.3)
    with style.styled():
        figure = adjacency.draw([run, untrained("crf", domains=SIX, classes=run.classes, sigma=0.2)])
        shown = cells(figure).get_array()
        inches = figure.axes[0].get_window_extent().width / figure.dpi
        assert 72 * inches / len(shown) > 0.7  # points: nothing vanishes in print
        assert (np.diag(shown[: len(shown) // 6, len(shown) // 6 :]) > 0.2).all()  # the same class in two domains
        assert any("largest of 9 × 9 classes" in text for text in words(figure))
        assert {text for text in words(figure) if text in SIX} == set(SIX)
        assert clashes(figure) == []


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="is a run of mrf, which has no adjacency"):
        adjacency.draw([untrained("mrf")])
    with pytest.raises(UserError, match="give runs of one task"):
        adjacency.draw([untrained("crf"), untrained("crf", classes=("x", "y"))])
    with pytest.raises(UserError, match="1 were given for 2 runs"):
        adjacency.draw([untrained("crf"), untrained("crf", seed=1)], labels=["one"])
