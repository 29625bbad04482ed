"""Views keep range and type, are drawn for each image by itself, and follow their distributions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from graphmsda.data import augment
from graphmsda.data.augment import OPERATIONS, change, corrupt, flips_make_sense, plan, strong, views, weak

MANY = 20_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 6, height: int = 24, width: int = 20) -> Tensor:
    return torch.randint(0, 256, (n, 3, height, width), dtype=torch.uint8, generator=generator(9))


@pytest.mark.parametrize("view", [weak, strong])
@pytest.mark.parametrize("flip", [True, False])
def test_range_type_and_input_are_kept(view: Callable[..., Tensor], flip: bool) -> None:
    x = images()
    before = x.clone()
    out = view(x, generator(), flip=flip)
    assert out.dtype == torch.uint8
    assert out.shape == x.shape
    assert torch.equal(x, before)
    assert not torch.equal(out, x)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        fractions = x.to(dtype) / 255
        out = view(fractions, generator(), flip=flip)
        assert out.dtype == dtype
        assert 0 <= out.min() <= out.max() <= 1
        assert torch.equal(fractions, x.to(dtype) / 255)


@pytest.mark.parametrize("view", [weak, strong])
def test_bytes_and_fractions_are_treated_alike(view: Callable[..., Tensor]) -> None:
    x = images()
    as_bytes = view(x, generator(), flip=True).float()
    fractions = view(x / 255, generator(), flip=True) * 255
    assert (as_bytes - fractions).abs().max() <= 0.51


@pytest.mark.parametrize("view", [weak, strong, lambda *a, **k: torch.cat(views(*a, **k))])
def test_the_same_seed_gives_the_same_views(view: Callable[..., Tensor]) -> None:
    x = images()
    torch.manual_seed(1)
    first = view(x, generator(3), flip=True)
    torch.manual_seed(2)  # the global generator has no part in it
    assert torch.equal(first, view(x, generator(3), flip=True))
    assert not torch.equal(first, view(x, generator(4), flip=True))


@pytest.mark.parametrize("view", [weak, strong])
def test_each_image_draws_its_own(view: Callable[..., Tensor]) -> None:
    x = images(1).expand(16, -1, -1, -1)
    out = view(x, generator(), flip=True).flatten(1)
    assert len(out.unique(dim=0)) == 16


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(7)
    whole = strong(x, generator(), flip=True)
    monkeypatch.setattr(augment, "BLOCK", 2 * x[0].numel())
    assert torch.equal(whole, strong(x, generator(), flip=True))


def test_nothing_happens_at_magnitude_zero() -> None:
    x = images(50)
    assert torch.equal(weak(x, generator(), flip=False, magnitude=0), x)
    assert torch.equal(strong(x, generator(), flip=False, magnitude=0), x)
    assert len(weak(x[:0], generator(), flip=True)) == 0


def test_flips_happen_to_half_the_images_or_to_none() -> None:
    x = images(400, 8, 8)
    out = weak(x, generator(), flip=True, magnitude=0)
    mirrored = (out == x.flip(3)).flatten(1).all(1)
    assert ((out == x).flatten(1).all(1) ^ mirrored).all()
    assert 150 < mirrored.sum() < 250
    assert not augment._weak_parameters(100, generator(), False, 1.0)["mirror"].any()
    assert not augment._strong_parameters(100, generator(), False, 3, 1.0, 0.5)["mirror"].any()


def uniform(values: Tensor, low: float, high: float) -> None:
    """Compare with a uniform distribution: the largest distance of the two cumulative distributions."""
    places = (values.sort().values - low) / (high - low)
    expected = (torch.arange(len(values)) + 0.5) / len(values)
    assert (places - expected).abs().max() < 1.95 / len(values) ** 0.5, "less than one chance in a thousand"


def test_weak_parameters_are_uniform() -> None:
    plan = augment._weak_parameters(MANY, generator(), True, 1.0)
    uniform(plan["right"], -0.125, 0.125)
    uniform(plan["down"], -0.125, 0.125)
    uniform(plan["angle"], -5, 5)
    uniform(plan["scale"].log(), -0.1, 0.1)
    assert abs(float(plan["mirror"].float().mean()) - 0.5) < 0.02


def changed(plan: dict[str, Tensor]) -> dict[str, Tensor]:
    """Which images drew which of the operations that can be told from the parameters alone."""
    return {
        "shear": (plan["shear_x"] != 0) | (plan["shear_y"] != 0),
        "brightness": plan["brightness"] != 1,
        "contrast": plan["contrast"] != 1,
        "hue": plan["hue"] != 0,
        "grayscale": plan["saturation"] == 0,
        "invert": plan["threshold"] == 0,
        "posterise": plan["bits"] < 8,
        "autocontrast": plan["stretch"],
        "sharpness": plan["sharpness"] != 1,
        "blur": plan["blur"] != 0,
    }


@pytest.mark.parametrize("count", [0, 1, 3, len(OPERATIONS)])
def test_each_operation_is_drawn_equally_often(count: int) -> None:
    plan = augment._strong_parameters(MANY, generator(), True, count, 1.0, 0.5)
    share = count / len(OPERATIONS)
    for name, which in changed(plan).items():
        assert abs(float(which.float().mean()) - share) < 0.02, name
    together = torch.stack(list(changed(plan).values())).sum(0)
    assert together.max() <= count


def test_strong_parameters_follow_their_ranges() -> None:
    plan = augment._strong_parameters(MANY, generator(), True, len(OPERATIONS) - 2, 1.0, 0.5)
    drew = changed(plan)
    uniform(plan["brightness"][drew["brightness"]], 0.2, 1.8)
    uniform(plan["contrast"][drew["contrast"]], 0.2, 1.8)
    uniform(plan["hue"][drew["hue"]], -0.25, 0.25)
    uniform(plan["sharpness"][drew["sharpness"]], 0.1, 1.9)
    uniform(plan["blur"][drew["blur"]], 0, 1)
    uniform(plan["covered"], 0, 0.5)
    solarised = (plan["threshold"] > 0) & (plan["threshold"] < 2)
    uniform(plan["threshold"][solarised], 0.2, 1)
    assert sorted(plan["bits"].unique().tolist()) == [4, 5, 6, 7, 8]
    assert plan["angle"].abs().max() <= 35
    assert abs(float(plan["brightness"].mean()) - 1) < 0.01
    assert abs(float(plan["angle"].mean())) < 0.5
    for first, second in (("brightness", "contrast"), ("angle", "hue"), ("right", "down")):
        assert abs(float(torch.corrcoef(torch.stack([plan[first], plan[second]]))[0, 1])) < 0.05
    half = augment._strong_parameters(MANY, generator(), True, len(OPERATIONS), 0.5, 0.5)
    assert 0.59 < half["brightness"].min() < half["brightness"].max() < 1.41


def test_a_pair_of_views_shares_only_the_image() -> None:
    x = images(30)
    first, second = views(x, generator(), flip=True)
    assert torch.equal(first, weak(x, generator(), flip=True))
    assert first.shape == second.shape == x.shape
    assert (first != second).flatten(1).any(1).all()


def test_inverted_images_are_among_the_strong_ones() -> None:
    x = torch.full((500, 3, 8, 8), 250, dtype=torch.uint8)
    out = strong(x, generator(), flip=False, count=1, cutout=0.0)
    dark = (out == 5).flatten(1).all(1)
    assert 10 < dark.sum() < 90  # inverted, one in 15, or solarised


def test_nothing_waits_for_the_device_or_for_gradients() -> None:
    """Shapes alone are enough on a device without numbers: no value is ever looked at."""
    plan = augment._strong_parameters(4, generator(), True, 3, 1.0, 0.5)
    plan = {name: value.to("meta") for name, value in plan.items()}
    out = augment.change(torch.empty(4, 3, 32, 32, dtype=torch.uint8, device="meta"), plan, True)
    assert (out.shape, out.dtype) == ((4, 3, 32, 32), torch.uint8)
    assert not strong(torch.rand(2, 3, 8, 8), generator(), flip=True).requires_grad


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([str(digit) for digit in range(10)], False),
        (["zero", "one", "two"], False),
        (["digit_0", "digit_1"], False),
        (["A", "B", "C"], False),
        (["letter q", "letter p"], False),
        (["あ", "い"], False),
        (["١", "٢"], False),
        (["10", "11"], False),
        (["turn left", "turn-right"], False),
        (["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"], True),
        (["back_pack", "bike", "letter_tray", "mobile_phone"], True),
        (["t-shirt", "x-ray", "The Eiffel Tower", "copyright"], True),
        (["", "dog"], False),
    ],
)
def test_where_flips_make_sense(classes: list[str], expected: bool) -> None:
    assert flips_make_sense(classes) is expected


def test_each_image_is_strong_with_its_own_probability() -> None:
    count = 4000
    share = torch.cat([torch.zeros(count), torch.full((count,), 0.5), torch.ones(count)])
    drawn = plan(share, 3 * count, torch.Generator().manual_seed(0), flip=False)
    changed = (drawn["covered"] > 0).float().view(3, count).mean(1)
    assert changed[0] == 0
    assert changed[1] == pytest.approx(0.5, abs=0.03)
    assert changed[2] == pytest.approx(1.0, abs=0.01)
    weak_ones = {name: value[:count] for name, value in drawn.items()}
    assert (weak_ones["brightness"] == 1).all()
    assert (weak_ones["threshold"] == 2).all()
    assert (weak_ones["bits"] == 8).all()
    assert (weak_ones["angle"].abs() <= 5).all()


def test_without_probabilities_all_views_are_weak() -> None:
    one, two = (torch.Generator().manual_seed(3) for _ in range(2))
    x = images(8)
    assert torch.equal(change(x, plan(None, 8, one, flip=True), True), weak(x, two, flip=True))


def test_corrupted_features_come_from_the_same_column() -> None:
    x = torch.arange(200.0)[:, None] + 1000 * torch.arange(5)
    y = corrupt(x, torch.Generator().manual_seed(0), 0.3)
    assert (y // 1000 == torch.arange(5)).all()
    assert float((y != x).float().mean()) == pytest.approx(0.3, abs=0.05)
    assert torch.equal(corrupt(x, torch.Generator().manual_seed(0), 0.0), x)
