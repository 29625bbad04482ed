"""The embedding figure: the same samples in each panel, told apart without colours."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection

from graphmsda import UserError
from graphmsda.figures import embedding, style
from graphmsda.figures.runs import Shown, embed_samples
from tests.figures.helpers import clashes, untrained, words
from tests.figures.test_style import lightness


def samples(name: str, number: int, count: int = 16, classes: int = 4, guessed: bool = False) -> Shown:
    generator = torch.Generator().manual_seed(number)
    return Shown(name, number, torch.randn(count, 6, generator=generator), torch.arange(count) % classes, guessed)


def test_points_tell_class_and_domain_in_grey() -> None:
    shown = [samples("a", 0), samples("t", 2)]
    with style.styled():
        figure = embedding.draw([untrained("source-only"), untrained("crf")], shown)
        assert clashes(figure) == []
        for axes in figure.axes:
            (points,) = (one for one in axes.collections if isinstance(one, PathCollection))
            assert len(points.get_paths()) == len(points.get_offsets()) == 2 * 32  # a shape and a sign each
            fills = points.get_facecolor()[::2]
            levels = sorted(round(lightness(tuple(fill))) for fill in fills)
            assert levels == [32] * 16 + [85] * 16
            np.testing.assert_array_equal(points.get_offsets()[::2], points.get_offsets()[1::2])
            low, high = axes.get_xlim()
            assert low < points.get_offsets()[:, 0].min()
            assert points.get_offsets()[:, 0].max() < high
        said = words(figure)
    assert "(a) Source-only" in said
    assert "(b) CRF-MSDA" in said
    assert "a (source)" in said
    assert "t (target)" in said


def test_long_names_get_letters_and_a_key() -> None:
    names = ("aircraft carrier", "mug", "a very long name indeed", "chair")
    shown = [samples("a", 0), samples("b", 1), samples("t", 2, guessed=True)]
    with style.styled():
        figure = embedding.draw([untrained("mrf", classes=names)], shown)
        assert clashes(figure) == []
        said = words(figure)
    assert "aircraft carrier" in said
    assert "a very long nam…" in said
    assert "t (target, classes as predicted)" in said


def test_domains_have_shapes_and_lightness_of_their_own() -> None:
    looks = [embedding.looks(domain, 6) for domain in range(6)]
    assert len({shape for shape, _ in looks}) == 6
    levels = sorted(level for _, level in looks)
    assert min(b - a for a, b in itertools.pairwise(levels)) > 9


def test_a_source_is_read_with_its_own_statistics() -> None:
    run = untrained("crf")
    part = samples("b", 1)
    with torch.inference_mode():
        assert torch.equal(embed_samples(run, part.x, 1), run.method.embed(part.x, 1))
    assert embedding.statistics_of(run, part) == 1
    assert embedding.statistics_of(untrained("crf", domains=("a + b", "t")), part) == 0
    assert embedding.statistics_of(untrained("crf", domains=("b", "t")), samples("t", 2)) == 1


def test_neighbours_stay_neighbours_and_seeds_repeat() -> None:
    chance = torch.Generator().manual_seed(0)
    points = torch.cat([10 * centre + torch.randn(15, 5, generator=chance) for centre in range(3)])
    placed = embedding.plane(points)
    assert np.array_equal(placed, embedding.plane(points))
    distance = np.linalg.norm(placed[:, None] - placed, axis=2) + 1e9 * np.eye(45)
    assert (distance.argmin(1) // 15 == np.arange(45) // 15).all()


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="there are 3 samples"):
        embedding.plane(torch.randn(3, 2))
    with pytest.raises(UserError, match="the same point"):
        embedding.plane(torch.ones(9, 2))
    with pytest.raises(UserError, match="8 were given; give up to 7"):
        embedding.draw([untrained("crf")], [samples(str(number), 0) for number in range(8)])
