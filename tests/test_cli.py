"""The commands as a user types them, with good input and bad; a mistake is one sentence and exit code 2."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from graphmsda import METHODS, Task, fit
from graphmsda.cli import main

CLASSES = ("bird", "cat", "dog")
SUFFIXES = (".jpg", ".png", ".webp", ".bmp", ".tif")
QUICK = ["--epochs", "2", "--steps-per-epoch", "3", "--batch-size", "6", "--device", "cpu"]


def make_domain(folder: Path, shade: int, *, count: int = 8, classes: tuple[str, ...] = CLASSES, seed: int = 0) -> Path:
    """A class/image folder: the position of a bright bar tells the class, the shade the domain."""
    chance = np.random.default_rng(seed)
    for number, name in enumerate(classes):
        (folder / name / "deeper").mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = np.full((20, 24, 3), shade, dtype=np.int64) + chance.integers(0, 30, (20, 24, 3))
            pixels[:, 8 * number : 8 * number + 8] += 90
            place = folder / name / ("deeper" if i % 2 else ".") / f"{i}{SUFFIXES[i % 5]}"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Domains a, b, c and the labelled d."""
    path = tmp_path_factory.mktemp("data")
    for number, name in enumerate("abcd"):
        make_domain(path / name, 20 + 40 * number, seed=number)
    return path


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    """A finished run."""
    out = data.parent / "runs" / "d"
    sources = [str(data / name) for name in "abc"]
    assert main(["fit", "--sources", *sources, "--target", str(data / "d"), "--out", str(out), *QUICK]) == 0
    return out


def fit_flags(data: Path, out: Path) -> list[str]:
    return [
        "fit",
        "--sources",
        str(data / "a"),
        str(data / "b"),
        "--target",
        str(data / "d"),
        "--out",
        str(out),
        *QUICK,
    ]


def told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Run a command that must fail as a user's mistake; return its one sentence."""
    capsys.readouterr()
    code = main(arguments)
    output = capsys.readouterr()
    assert code == 2, output
    assert output.out == ""
    lines = [line for line in output.err.splitlines() if line.startswith("graphmsda: ")]
    assert len(lines) == 1, output.err
    assert "Traceback" not in output.err
    return lines[0]


# --- good input -------------------------------------------------------------------------------------------------------


def test_fit_says_what_it_made_and_what_to_type_next(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(fit_flags(data, tmp_path / "run")) == 0
    output = capsys.readouterr().out
    assert "mrf on small: a + b -> d, 3 classes, 6 steps" in output
    assert f"graphmsda predict {tmp_path / 'run'}" in output
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {
        "config.yaml",
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
    }


def test_class_folders_of_the_target_are_ignored_in_training(data: Path, tmp_path: Path) -> None:
    """The target's class names replaced by garbage, its images flat: the same weights to the bit."""
    flat = tmp_path / "flat" / "d"
    for name in CLASSES:
        for file in sorted((data / "d" / name).rglob("*")):
            if file.is_file():
                place = flat / "zzz" / f"{name}-{file.relative_to(data / 'd' / name).as_posix().replace('/', '-')}"
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place)
    ordered = tmp_path / "ordered" / "d"
    for number, file in enumerate(sorted(flat.rglob("*.*"))):
        for folder in (ordered / CLASSES[number % 3], tmp_path / "bare" / "d"):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / "bare" / "d" / f"{number:03d}{file.suffix}")
    garbage = tmp_path / "garbage" / "d" / "not-a-class"
    garbage.mkdir(parents=True)
    for file in (tmp_path / "bare" / "d").iterdir():
        shutil.copy(file, garbage / file.name)
    models = []
    for name in ("bare", "garbage"):
        flags = fit_flags(data, tmp_path / "runs" / name)
        flags[flags.index("--target") + 1] = str(tmp_path / name / "d")
        assert main(flags) == 0
        models.append((tmp_path / "runs" / name / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_evaluate(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--data", str(data / "d"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 <= result["accuracy"] <= 1
    assert sum(map(sum, result["confusion"])) == 24
    assert result["counts"] == dict.fromkeys(CLASSES, 8)
    assert main(["evaluate", str(run), "--data", str(data / "d")]) == 0
    table = capsys.readouterr().out
    assert f"accuracy {100 * result['accuracy']:.1f} % of 24 samples" in table


def test_predict_keeps_order_and_lists_unreadable_files(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new, images"
    new.mkdir()
    for number in range(5):
        shutil.copy(data / "d" / "cat" / "0.jpg", new / f"{number}.jpg")
    (new / "2.jpg").write_bytes((new / "2.jpg").read_bytes()[:100])
    (new / "3.jpg").write_bytes(b"")
    single = data / "d" / "dog" / "0.jpg"
    assert main(["predict", str(run), str(new), str(single), "--out", str(tmp_path / "p.csv")]) == 0
    assert "6 rows" in (output := capsys.readouterr().out)
    assert "2 could not be read" in output
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [row["path"] for row in rows] == [str(new / f"{i}.jpg") for i in range(5)] + [str(single)]
    assert [bool(row["error"]) for row in rows] == [False, False, True, True, False, False]
    for row in rows:
        if not row["error"]:
            assert row["label"] in CLASSES
            assert row["nearest_source"] in "abc"
            shares = [float(row[name]) for name in ("confidence", "confidence_2", "confidence_3")]
            assert sum(shares) == pytest.approx(1, abs=1e-4)
            assert shares == sorted(shares, reverse=True)
    assert main(["predict", str(run), str(single)]) == 0
    assert len(list(csv.reader(io.StringIO(capsys.readouterr().out)))) == 2


def test_a_run_from_python_is_the_same_and_knows_its_data(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*fit_flags(data, tmp_path / "typed"), "--image-size", "16"]) == 0
    task = Task.load([data / "a", data / "b"], data / "d", image_size=16, progress=False)
    fit(task, out=tmp_path / "called", epochs=2, steps_per_epoch=3, batch_size=6, device="cpu")
    for file in ("model.safetensors", "config.yaml"):
        assert (tmp_path / "called" / file).read_bytes() == (tmp_path / "typed" / file).read_bytes()
    capsys.readouterr()
    assert main(["select", str(tmp_path / "called"), "--json"]) == 0
    assert str(tmp_path / "called") in json.dumps(json.loads(capsys.readouterr().out))


def test_arrays_of_images_and_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = np.random.default_rng(0)
    for name in "abt":
        y = np.arange(30) % 3
        np.savez(tmp_path / f"{name}.npz", x=(chance.normal(size=(30, 6)) + 4 * y[:, None]).astype("f4"), y=y)
    sources = ["--sources", str(tmp_path / "a.npz"), str(tmp_path / "b.npz"), "--target", str(tmp_path / "t.npz")]
    assert main(["fit", *sources, "--method", "crf", "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert "crf on mlp" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "t.npz")]) == 0
    assert "of 30 samples" in capsys.readouterr().out


def test_hyperparameters_and_presets_reach_the_run(data: Path, tmp_path: Path) -> None:
    flags = [
        *fit_flags(data, tmp_path / "run"),
        "--method",
        "crf",
        "--set",
        "lambda_1=3",
        "two_way=false",
        "sigma=4e-1",
    ]
    assert main(flags) == 0
    about = json.loads((tmp_path / "run" / "model.json").read_text())
    assert about["parameters"]["lambda_1"] == 3.0
    assert about["parameters"]["two_way"] is False
    assert about["parameters"]["sigma"] == 0.4
    assert main([*fit_flags(data, tmp_path / "paper"), "--preset", "paper", "--set", "wrong_edges=2"]) == 0
    about = json.loads((tmp_path / "paper" / "model.json").read_text())
    assert about["parameters"]["likelihood"] == "verbatim"
    assert about["parameters"]["wrong_edges"] == 2


def test_a_runs_config_is_a_recipe(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(run / "config.yaml")
    assert main(["fit", "--config", config, "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert main(["fit", "--config", config, "--method", "crf", "--epochs", "1", "--out", str(tmp_path / "crf")]) == 0
    about = json.loads((tmp_path / "crf" / "model.json").read_text())
    assert (about["method"], about["steps"]) == ("crf", 3)
    (tmp_path / "odd.yaml").write_text("settings: {epoch: 3}")
    (tmp_path / "broken.yaml").write_text("settings: [")
    for name, words in (
        ("odd.yaml", "did you mean epochs"),
        ("broken.yaml", "not YAML"),
        ("none.yaml", "No such file"),
    ):
        flags = ["fit", "--task", "demo:neon", "--config", str(tmp_path / name), "--out", str(tmp_path / "x")]
        assert words in told(capsys, flags)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_memory_of_predict_does_not_grow_with_the_number_of_images(run: Path, data: Path, tmp_path: Path) -> None:
    peaks = []
    for count in (1_000, 20_000):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            os.link(data / "d" / "cat" / "0.jpg", folder / f"{number:06d}.jpg")
        script = (
            "import resource, sys; from graphmsda.cli import main; code = main(sys.argv[1:]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
        )
        arguments = ["predict", str(run), str(folder), "--out", str(tmp_path / f"{count}.csv")]
        result = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=900)
        assert result.returncode == 0, result.stderr
        assert len((tmp_path / f"{count}.csv").read_text().splitlines()) == count + 1
        peaks.append(int(result.stdout.splitlines()[-1]))
    assert peaks[1] < 1.1 * peaks[0], peaks


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in METHODS)
    assert main(["methods", "mrf"]) == 0
    page = capsys.readouterr().out
    assert "TPAMI 2022" in page
    assert "tau" in page
    assert "--preset paper" in page


def test_demo_prints_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["demo", "--targets", "neon", "--methods", "mrf", "--epochs", "1", "--out", str(tmp_path / "demo")]
    assert main(flags) == 0
    output = capsys.readouterr().out
    assert "-> neon" in output
    assert "target labels" in output
    assert f"graphmsda evaluate {tmp_path / 'demo' / 'neon' / 'mrf-seed0'}" in output
    assert main(["evaluate", str(tmp_path / "demo" / "neon" / "mrf-seed0")]) == 0


def test_a_closed_pipe_is_no_error(run: Path, data: Path) -> None:
    """As in `graphmsda predict ... | head -1`."""
    command = f"'{sys.executable}' -m graphmsda predict '{run}' '{data / 'd'}' | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


# --- bad input --------------------------------------------------------------------------------------------------------


def test_missing_and_empty_folders(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for flag in ("--sources", "--target"):
        for place, words in ((tmp_path / "nowhere", "not found"), (tmp_path / "empty", "no image")):
            flags = fit_flags(data, tmp_path / "run")
            flags[flags.index(flag) + 1] = str(place)
            sentence = told(capsys, flags)
            assert str(place) in sentence
            assert words in sentence
    assert not (tmp_path / "run").exists()


def test_class_sets(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_domain(tmp_path / "single", 30, classes=("cat",))
    make_domain(tmp_path / "other", 30, classes=("bird", "cat", "horse"))
    for folder, words in (("single", "one class"), ("other", "horse")):
        flags = fit_flags(data, tmp_path / "run")
        flags[flags.index("--sources") + 1] = str(tmp_path / folder)
        assert words in told(capsys, flags)
    assert not (tmp_path / "run").exists()


def test_unreadable_images(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(data / "a", tmp_path / "few")
    (tmp_path / "few" / "cat" / "0.jpg").write_bytes(b"not an image")
    flags = fit_flags(data, tmp_path / "run")
    flags[flags.index("--sources") + 1] = str(tmp_path / "few")
    assert main(flags) == 0  # one of 24 is below 5 %: skipped, counted, told
    assert "1 of 24" in capsys.readouterr().err
    (tmp_path / "few" / "dog" / "0.jpg").write_bytes((data / "a" / "dog" / "0.jpg").read_bytes()[:200])
    flags[flags.index("--out") + 1] = str(tmp_path / "second")
    sentence = told(capsys, flags)
    assert "2 of 24" in sentence
    assert "5%" in sentence
    for file in (tmp_path / "few").rglob("*.*"):
        file.write_bytes(b"")
    flags = fit_flags(data, tmp_path / "second")
    flags[flags.index("--target") + 1] = str(tmp_path / "few")
    assert str(tmp_path / "few") in told(capsys, flags)
    assert not (tmp_path / "second").exists()


def test_out_that_holds_another_run(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "model.safetensors").read_bytes()
    sources = [str(data / name) for name in "abc"]
    flags = ["fit", "--sources", *sources, "--target", str(data / "d"), "--out", str(run), *QUICK]
    assert "lr was 0.003 and is now 0.5" in told(capsys, [*flags, "--lr", "0.5"])
    assert "other data" in told(capsys, fit_flags(data, run))
    assert (run / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--method", "mfr"], "did you mean mrf"),
        (["--set", "tua=1"], "did you mean tau"),
        (["--set", "tau=-1"], "tau=-1"),
        (["--set", "tau=much"], "a number"),
        (["--set", "scale=big"], "one of relative, mean, sum"),
        (["--set", "tau"], "NAME=VALUE"),
        (["--preset", "mine"], "no preset 'mine'"),
        (["--epochs", "0"], "--epochs 0"),
        (["--epochs", "many"], "invalid int value"),
        (["--lr", "-1"], "--lr -1"),
        (["--batch-size", "-1"], "--batch-size -1"),
        (["--average", "1"], "--average 1"),
        (["--optimiser", "lion"], "invalid choice"),
        (["--backbone", "vgg"], "unknown backbone 'vgg'"),
        (["--weights", "nowhere.pth", "--backbone", "resnet18"], "no file nowhere.pth"),
        (["--device", "cuda"], "no CUDA device"),
        (["--task", "demo:neon"], "either a task or your own folders"),
        (["--flag-that-is-not"], "--flag-that-is-not"),
    ],
)
def test_bad_arguments(
    extra: list[str], words: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert words in told(capsys, [*fit_flags(data, tmp_path / "run"), *extra])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "--out", "x"], "--sources"),
        (["fit", "--task", "demo:noen", "--out", "x"], "neon"),
        (["fit", "--task", "nothing", "--out", "x"], "demo"),
        (["methods", "crff"], "did you mean crf"),
        (["demo", "--targets", "moon"], "moon"),
        (["demo", "--methods", "mfr"], "did you mean mrf"),
        (["evaluate", "nowhere"], "not a run directory"),
        (["predict", "nowhere", "x.jpg"], "not a run directory"),
        ([], "COMMAND"),
    ],
)
def test_bad_commands(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in told(capsys, arguments)
    assert os.listdir(tmp_path) == []


def test_bad_input_to_a_model(run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not found" in told(
        capsys, ["predict", str(run), str(tmp_path / "nowhere"), "--out", str(tmp_path / "p.csv")]
    )
    assert "is not a run directory" in told(capsys, ["evaluate", str(data), "--data", str(data / "d")])
    assert main(["evaluate", str(run)]) == 0  # without labels there is an estimate
    assert "give --data" in capsys.readouterr().out
    make_domain(tmp_path / "foreign", 30, classes=("bird", "yak"))
    assert "yak" in told(capsys, ["evaluate", str(run), "--data", str(tmp_path / "foreign")])
    shutil.copytree(run, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"\0" * 100)
    assert "damaged" in told(capsys, ["evaluate", str(tmp_path / "broken"), "--data", str(data / "d")])
    (tmp_path / "broken" / "model.json").unlink()
    assert "not finished" in told(capsys, ["evaluate", str(tmp_path / "broken"), "--data", str(data / "d")])
    assert not (tmp_path / "p.csv").exists()


def test_predictions_on_a_full_disk(run: Path, data: Path, tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50));"
        "from graphmsda.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["predict", str(run), str(data / "d"), "--out", str(tmp_path / "p.csv")]
    result = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120)
    assert result.returncode == 2, result.stderr
    assert "no room left to write" in result.stderr
    assert os.listdir(tmp_path) == []
