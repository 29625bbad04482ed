"""The posterior figure: means over the queries of a class, in percent, beside each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graphmsda import UserError
from graphmsda.domains import EvalSet
from graphmsda.figures import posterior, style
from tests.figures.helpers import cells, clashes, untrained, words


def queries(classes: int, count: int = 24, features: int = 6) -> EvalSet:
    generator = torch.Generator().manual_seed(3)
    return EvalSet("t", torch.randn(count, features, generator=generator), torch.arange(count) % classes)


def test_the_picture_shows_the_mean_joint_posterior() -> None:
    run, samples = untrained("mrf", tau=1.0), queries(4)
    expected = torch.zeros(3, 4, dtype=torch.float64)
    rows = [row for row in range(24) if samples.y[row] == 2]
    with torch.inference_mode():
        for row in rows:
            expected += run.method.log_joint(run.method.embed(samples.x[row : row + 1]))[0].double().exp() / len(rows)
    with style.styled():
        figure = posterior.draw([run], samples, classes=["2"])
        image = cells(figure)
        np.testing.assert_allclose(image.get_array(), 100 * expected, atol=1e-3)
        assert float(image.get_array().sum()) == pytest.approx(100, abs=1e-3)
        numbers = sorted(int(text) for text in (t.get_text() for t in figure.axes[0].texts))
        assert numbers == sorted(round(100 * float(p)) for p in expected.flatten() if p >= 0.005)
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b", "t"]
        assert any("queries of class 2 (6)" in text for text in words(figure))
        (frame,) = figure.axes[0].patches
        assert frame.get_x() == 1.5  # around class 2
        assert clashes(figure) == []


def test_by_default_the_first_classes_that_there_are() -> None:
    samples = queries(4)
    some = EvalSet("t", samples.x[samples.y > 0], samples.y[samples.y > 0])
    with style.styled():
        said = words(posterior.draw([untrained("mrf")], some))
    assert [text[4:22] for text in said if "queries" in text] == ["queries of class 1", "queries of class 2"]


def test_many_classes_are_gathered_into_others() -> None:
    names = tuple(f"a long name {k}" for k in range(40))
    run = untrained("mrf", classes=names, tau=1.0)
    samples = queries(40, count=80)
    matrix, count = posterior.class_posterior(run, samples, 7)
    assert count == 2
    shown, columns = posterior.shown_part(matrix, 7)
    assert 7 in columns
    assert len(columns) == posterior.MOST_COLUMNS - 1
    assert columns == sorted(columns)
    torch.testing.assert_close(shown.sum(1), matrix.sum(1))
    least = min(float(matrix[:, k].sum()) for k in columns if k != 7)
    assert all(float(matrix[:, k].sum()) <= least for k in range(40) if k not in columns)
    with style.styled():
        figure = posterior.draw([run, untrained("mrf-plus", classes=names)], samples, classes=[names[7], names[9]])
        assert words(figure).count("29 others") == 4
        assert clashes(figure) == []


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="is a run of crf, which has no joint posterior"):
        posterior.draw([untrained("crf")], queries(4))
    with pytest.raises(UserError, match=r"--classes 9: the run .* has no such class; it has 0, 1, 2, 3"):
        posterior.draw([untrained("mrf")], queries(4), classes=["9"])
    with pytest.raises(UserError, match="has no sample of class 3"):
        posterior.draw([untrained("mrf")], queries(2), classes=["3"])
