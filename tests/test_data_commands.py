"""The commands below `graphmsda data`, as a user types them."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from graphmsda.cli import main
from tests.test_cli import QUICK, make_domain, told


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    for number, name in enumerate("abd"):
        make_domain(path / name, 20 + 40 * number, seed=number)
    return path


def test_list(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMSDA_DATA", str(tmp_path))
    assert main(["data", "list"]) == 0
    page = capsys.readouterr().out
    for name in ("digits-five", "office-31", "pacs", "domainnet", "licence"):
        assert name in page
    assert main(["data", "list", "--json", "--data-root", str(tmp_path / "other")]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["classes"] for row in rows] == [10, 31, 7, 345]
    assert not any(row["on_disk"] for row in rows)


def test_check(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(data / "a", tmp_path / "a")
    shutil.copy(data / "b" / "cat" / "0.jpg", tmp_path / "a" / "cat" / "borrowed.jpg")
    flags = ["data", "check", str(tmp_path / "a"), str(data / "b"), "--sheets", str(tmp_path / "sheets")]
    assert main(flags) == 0
    page = capsys.readouterr().out
    assert "lies in more than one domain" in page
    assert "borrowed.jpg" in page
    assert {"a.png", "b.png"} <= {file.name for file in (tmp_path / "sheets").iterdir()}
    assert main([*flags, "--json", "--no-sheets"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_check_a_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A picture of the test part that lies in the training part too is the first thing said."""
    (tmp_path / "digits-five").mkdir()
    chance = np.random.default_rng(0)
    for name in ("mnist", "mnistm", "usps", "svhn", "syn"):
        with zipfile.ZipFile(tmp_path / "digits-five" / f"{name}.zip", "w") as archive:
            for number in range(20):
                path = tmp_path / "one.png"
                Image.fromarray(chance.integers(0, 256, (28, 28, 3), dtype=np.uint8)).save(path)
                archive.write(path, f"train/{number % 10}/{number}.png")
                if number >= 10:
                    leaks = name == "svhn" and number == 13
                    if not leaks:
                        Image.fromarray(chance.integers(0, 256, (28, 28, 3), dtype=np.uint8)).save(path)
                    archive.write(path, f"test/{number % 10}/{number}.png")
    flags = ["data", "check", "digits-five", "--data-root", str(tmp_path), "--no-sheets"]
    assert main(flags) == 0
    page = capsys.readouterr().out
    assert "1 test image of sv" in page
    assert "13.png" in page
    assert "check them one by one" in told(capsys, [*flags[:3], str(tmp_path), *flags[3:]])


def test_check_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not found" in told(capsys, ["data", "check", str(tmp_path / "nowhere")])


def test_cache(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = str(tmp_path / "cache")
    fit = ["fit", "--sources", str(data / "a"), str(data / "b"), "--target", str(data / "d"), "--cache", cache]
    assert main([*fit, "--out", str(tmp_path / "run"), *QUICK]) == 0
    capsys.readouterr()
    assert main(["data", "cache", "--cache", cache]) == 0
    assert str(data / "a") in capsys.readouterr().out
    assert main(["data", "cache", "--cache", cache, "--clear", str(data / "a")]) == 0
    assert "removed 1 entries" in capsys.readouterr().out
    assert main(["data", "cache", "--cache", cache, "--clear"]) == 0
    assert "removed 2 entries" in capsys.readouterr().out
    assert main(["data", "cache", "--cache", cache]) == 0
    assert "nothing is kept" in capsys.readouterr().out


def test_a_recipe_keeps_how_data_were_read(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(data / "a", tmp_path / "a")
    (tmp_path / "a" / "cat").rename(tmp_path / "a" / "lynx")
    fit = ["fit", "--sources", str(tmp_path / "a"), str(data / "b"), "--target", str(data / "d"), "--image-size", "16"]
    out = ["--out", str(tmp_path / "run"), *QUICK]
    assert "--classes common" in told(capsys, [*fit, *out])
    assert main([*fit, "--classes", "common", *out]) == 0
    again = ["fit", "--config", str(tmp_path / "run" / "config.yaml"), "--out", str(tmp_path / "again"), *QUICK]
    assert main(again) == 0
    first, second = (tmp_path / name / "model.safetensors" for name in ("run", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_flags_without_effect_are_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = ["fit", "--sources", str(data / "a"), str(data / "b"), "--target", str(data / "d"), *QUICK]
    out = ["--out", str(tmp_path / "run")]
    assert "--variant was given without --task" in told(capsys, [*fit, *out, "--variant", "full"])
    assert main([*fit, *out]) == 0
    evaluate = ["evaluate", str(tmp_path / "run"), "--data", str(data / "d")]
    for flag in ("--variant", "--data-root", "--cache"):
        assert f"{flag} was given with --data" in told(capsys, [*evaluate, flag, "x"])
    assert main([*evaluate, "--format", "folder"]) == 0
    assert main(["predict", str(tmp_path / "run"), str(data / "d"), "--format", "folder"]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: {reading: [x]}", "data.reading is ['x']; give names and values"),
        ("data: {reading: {cahe: none}}", "unknown name 'cahe' in data.reading; did you mean cache?"),
    ],
)
def test_recipes_with_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    assert words in told(capsys, ["fit", "--config", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run")])


def test_a_recipe_with_one_source(data: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(f"data: {{sources: '{data / 'a'}', target: '{data / 'd'}'}}")
    assert main(["fit", "--config", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert f"- {data / 'a'}\n" in (tmp_path / "run" / "config.yaml").read_text()


def test_columns_in_another_order_are_refused_later_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = np.random.default_rng(0)
    rows = [(*chance.normal(size=2), k) for k in (0, 1) for _ in range(10)]
    for name in ("a", "t"):
        lines = ["height,width,label", *(f"{x},{y},{k}" for x, y, k in rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    (tmp_path / "new.csv").write_text("width,height\n1.0,2.0")
    paths = {name: str(tmp_path / f"{name}.csv") for name in ("a", "t", "new")}
    out = str(tmp_path / "run")
    assert main(["fit", "--sources", paths["a"], "--target", paths["t"], "--out", out, *QUICK]) == 0
    assert "are those of this model in another order" in told(capsys, ["predict", out, paths["new"]])
    assert main(["predict", out, paths["t"]]) == 0


def test_prepare_says_what_to_put_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Office-31 cannot be fetched: the page names file and folder, and the command fails in one sentence."""
    assert main(["data", "prepare", "office-31", "--root", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert str(tmp_path / "office-31") in output.out
    assert "amazon" in output.out
    assert output.err.count("\n") == 1
    assert "did you mean" in told(capsys, ["data", "prepare", "office", "--root", str(tmp_path)])


def test_render_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "syn.zip"
    flags = ["data", "render-digits", "--out", str(out), "--train", "20", "--test", "10"]
    if main(flags) != 0:
        pytest.skip(f"no fonts on this machine: {capsys.readouterr().err}")
    assert "20 training and 10 test images" in capsys.readouterr().out
    names = zipfile.ZipFile(out).namelist()
    assert sum(name.startswith("train/") for name in names) == 20
    assert "re-synthesised.json" in names


def test_build_mnist_m(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = np.random.default_rng(0)
    for part, count in (("train", 2), ("test", 1)):
        for digit in range(10):
            for number in range(count):
                path = tmp_path / "mnist" / part / str(digit) / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(255 * (chance.random((28, 28)) > 0.8).astype(np.uint8)).save(path)
    (tmp_path / "photographs").mkdir()
    for number in range(4):
        noise = chance.integers(0, 256, (64, 80, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "photographs" / f"{number}.png")
    flags = ["data", "build-mnist-m", "--mnist", str(tmp_path / "mnist"), "--out", str(tmp_path / "mnistm.zip")]
    assert main([*flags, "--photographs", str(tmp_path / "photographs")]) == 0
    assert "20 training and 10 test images" in capsys.readouterr().out
    assert "nowhere" in told(capsys, [*flags, "--photographs", str(tmp_path / "nowhere")])


def test_augmented_training(data: Path, tmp_path: Path) -> None:
    """Other weights than without, the same ones again, and the same when it goes on after a stop."""
    fit = ["fit", "--sources", str(data / "a"), str(data / "b"), "--target", str(data / "d"), *QUICK]

    def weights(name: str, *flags: str) -> bytes:
        assert main([*fit, "--out", str(tmp_path / name), *flags]) == 0
        return (tmp_path / name / "model.safetensors").read_bytes()

    plain, weak = weights("plain"), weights("weak", "--augment", "weak")
    assert plain != weak
    assert weights("again", "--augment", "weak") == weak
    assert weights("strong", "--augment", "strong") not in (plain, weak)
