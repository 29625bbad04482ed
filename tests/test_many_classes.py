"""The benchmark of many classes: that it draws what it says, and compares what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from graphmsda.data import demo
from graphmsda.graphs.many_classes import bandwidth
from graphmsda.methods import build_method, complete_parameters
from tests.test_readme import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import many_classes


@pytest.mark.parametrize(("classes", "digits"), [(10, 1), (30, 2), (100, 2), (300, 3)])
def test_an_image_shows_the_digits_of_its_label(classes: int, digits: int) -> None:
    domain = many_classes.draw("texture", classes)
    assert set(domain.y.tolist()) == set(range(classes))
    images, labels, _ = (torch.tensor(part) for part in demo.render("texture", "train"))
    halves = F.avg_pool2d(images.float(), (1, 2)).round().to(torch.uint8)
    for x, y in list(zip(domain.x[:5], domain.y[:5].tolist(), strict=True)):
        for place, part in enumerate(x.split(16, dim=2)):
            (found,) = (halves == part).flatten(1).all(1).nonzero(as_tuple=True)
            assert labels[found].unique().tolist() == [y // 10 ** (digits - 1 - place) % 10]


def test_what_is_compared_is_what_was_before() -> None:
    class Features(torch.nn.Module):
        features = 4

    for classes in (30, 100):
        _, fixed = many_classes.choices(classes)["crf, both"]
        built = build_method("crf", Features(), classes, 3, dict(fixed))  # type: ignore[arg-type]
        assert getattr(built, "sigma") == pytest.approx(complete_parameters("crf", {})["sigma"])  # noqa: B009
        assert getattr(built, "entropy_weight") == pytest.approx(1 / classes)  # noqa: B009
        assert bandwidth(0.3, classes) < 0.3


def test_cells_are_trained_once_and_make_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "rows.json", tmp_path / "page.md"
    asked = ["--classes", "10", "--players", "plain", "--only", "adabn", "--epochs", "1", "--jobs", "1"]
    asked += ["--out", str(out)]
    many_classes.main(asked)
    (row,) = json.loads(out.read_text())["runs"]
    assert row["setting"] == "adabn"
    assert 0 <= row["accuracy"] <= 1
    assert f"| adabn | {100 * row['accuracy']:.1f} (1) |" in capsys.readouterr().out
    many_classes.main(asked)
    assert len(json.loads(out.read_text())["runs"]) == 1
    page.write_text("before\n<!-- table:many-classes -->\nold\n<!-- /table:many-classes -->\nafter\n")
    many_classes.main([*asked, "--page", str(page)])
    assert page.read_text().startswith("before\n<!-- table:many-classes -->\n| | 10 classes |\n")
    assert "old" not in page.read_text()


def test_the_real_target_cannot_play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        many_classes.main(["--target", "plain", "--players", "plain", "--out", str(tmp_path / "rows.json")])
    assert stopped.value.code == 2
    assert "--players plain: that is the real target; name others" in capsys.readouterr().err
