"""Exported files say what the run says."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.torch_version import TorchVersion

from graphmsda import METHODS, Domain, Run, Task
from graphmsda.cli import main
from graphmsda.engine.fit import fit
from graphmsda.errors import UserError
from graphmsda.export import formats
from graphmsda.export.graph import Graph, domain_names, plain_network, random_samples
from graphmsda.export.quantise import cost, quantise
from graphmsda.files import read_tensors
from tests.conftest import QUICK, feature_task, image_task
from tests.test_cli import make_domain
from tests.test_docs import typed
from tests.test_readme import ROOT, blocks

QUICKEST = QUICK | {"epochs": 1, "steps_per_epoch": 4}
TOO_OLD = f"PyTorch before {formats.WRITES_ONNX} cannot write ONNX"
writes_onnx = pytest.mark.skipif(torch.__version__ < formats.WRITES_ONNX, reason=TOO_OLD)


def without_a_class(task: Task) -> Task:
    """Take the first class out of the first source, whose prototype is then never seen."""
    first = task.sources[0]
    kept = first.y != 0
    return Task((Domain(first.name, first.x[kept], first.y[kept]), *task.sources[1:]), task.target, task.classes)


def train(task: Task, out: Path, method: str, **settings: object) -> Run:
    fit(task, out=out, method=method, **(QUICKEST | settings))
    return Run.load(out, device="cpu")


def agreement(run: Run, read: formats.Reading, count: int) -> tuple[float, float]:
    """Return the largest differences in class and domain probabilities on noise, and check the nearest source."""
    x = random_samples(run, count, seed=3)
    predictions = run.predict((x.permute(0, 2, 3, 1) if x.ndim == 4 else x).numpy())
    graph = Graph(run)
    with torch.no_grad():
        parts = [read(part) for part in torch.split(x, 100)]
        wanted = torch.cat([graph(part)[1] for part in torch.split(x, 100)])
    classes, domains = (torch.cat(column) for column in zip(*parts, strict=True))
    sources = wanted[:, : len(run.domains) - 1]
    sure = (sources > sources.amax(1, keepdim=True) - 1e-4).sum(1) == 1  # the others are ties but for rounding
    nearest = [run.domains[place] for place in domains[:, : len(run.domains) - 1].argmax(1).tolist()]
    assert all(a == b for a, b, ok in zip(nearest, predictions.nearest_source, sure.tolist(), strict=True) if ok)
    assert torch.allclose(domains.sum(1), torch.ones(count), atol=1e-5)
    return (
        float((classes - predictions.probabilities).abs().max()),
        float((domains - wanted).abs().max()),
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(without_a_class(image_task()), tmp_path_factory.mktemp("export") / "run", "crf", backbone="small")


@pytest.fixture(scope="module")
def onnx_file(run: Run) -> Path:
    if torch.__version__ < formats.WRITES_ONNX:
        pytest.skip(TOO_OLD)
    file = run.path / "export.onnx"
    assert formats.write_onnx(run, file) < formats.TOLERANCE
    return file


@pytest.mark.parametrize("name", METHODS)
def test_plain_network_says_what_predict_says(name: str, tmp_path: Path) -> None:
    run = train(without_a_class(feature_task()), tmp_path, name)
    assert max(agreement(run, Graph(run), 9)) < 1e-5


def test_one_source_and_images_of_odd_size(tmp_path: Path) -> None:
    task = image_task(sources=1, side=9)
    run = train(task, tmp_path, "mrf", backbone="3conv-2fc")
    assert max(agreement(run, Graph(run), 3)) < 1e-5
    assert domain_names(run) == ("source-0", "target")


@pytest.mark.parametrize("side", [1, 3, 4, 7, 8, 10])
def test_pooling_to_a_size_is_written_out(side: int) -> None:
    x = torch.randn(2, 3, side, side + 1)
    pool = torch.nn.AdaptiveMaxPool2d(4)
    assert torch.equal(plain_network(torch.nn.Sequential(pool), 0)(x), pool(x))


@pytest.mark.parametrize("count", [1, 5, 64])
def test_onnx_equals_predict_for_any_batch_size(run: Run, onnx_file: Path, count: int) -> None:
    assert max(agreement(run, formats.read_onnx(onnx_file), count)) < 1e-4


def test_onnx_describes_itself_and_nothing_of_this_machine(run: Run, onnx_file: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(onnx_file), providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["graphmsda"])
    assert about == formats.describe(run)
    assert (about["classes"], about["domains"]) == (list(run.classes), ["source-0", "source-1"])
    assert about["shape"] == [3, 16, 16]
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape) == ("samples", "tensor(uint8)", ["batch", 3, 16, 16])
    shapes = {output.name: output.shape for output in session.get_outputs()}
    assert shapes == {"class_probabilities": ["batch", 3], "domain_probabilities": ["batch", 2]}
    content = onnx_file.read_bytes()
    assert str(ROOT).encode() not in content
    assert b"site-packages" not in content
    assert b"stack_trace" not in content


def test_example_needs_neither_torch_nor_graphmsda(run: Run, onnx_file: Path, tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    files = []
    for number, size in enumerate([(16, 16), (40, 30)]):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(chance.integers(0, 256, (*size, 3), dtype=np.uint8)).save(files[-1])
    script = ROOT / "examples" / "onnx_predict.py"
    assert len(script.read_text().splitlines()) <= 25
    watched = (
        f"import runpy, sys; runpy.run_path({str(script)!r}); assert not {{'torch', 'graphmsda'}} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watched, onnx_file, *files], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    predictions = run.predict(files)
    for file, line, label, sure, nearest in zip(
        files,
        done.stdout.splitlines(),
        predictions.labels,
        predictions.confidence.tolist(),
        predictions.nearest_source,
        strict=True,
    ):
        assert line == f"{file}: {label} ({100 * sure:.1f} %), most like {nearest}"


def test_quantised_file_is_smaller_and_keeps_its_description(run: Run, onnx_file: Path, tmp_path: Path) -> None:
    import onnx

    small = Path(shutil.copy(onnx_file, tmp_path / "small.onnx"))
    quantise(small)
    assert small.stat().st_size < onnx_file.stat().st_size * 0.6
    kept = {entry.key for entry in onnx.load(str(small)).metadata_props}
    assert "graphmsda" in kept
    exact, quantised = formats.read_onnx(onnx_file), formats.read_onnx(small)
    x = random_samples(run, 70)
    y = exact(x)[0].argmax(1)
    found = cost(exact, quantised, x, y)
    assert (found.count, found.before) == (70, 1.0)
    assert found.after == pytest.approx(1 - found.changed)
    assert cost(exact, exact, x).sentence().startswith("0.0 % of predictions changed on 70 samples without labels")


def test_torchscript(tmp_path: Path) -> None:
    run = train(without_a_class(feature_task()), tmp_path / "run", "mrf")
    file = tmp_path / "model.pt"
    assert formats.write_torchscript(run, file) < formats.TOLERANCE
    for count in (1, 50):
        assert max(agreement(run, formats.read_torchscript(file), count)) < 1e-5
    extra = {"graphmsda.json": ""}
    torch.jit.load(str(file), _extra_files=extra)
    assert json.loads(extra["graphmsda.json"]) == formats.describe(run)
    assert json.loads(extra["graphmsda.json"])["domains"] == list(run.domains)


def test_safetensors_of_a_resnet_load_into_torchvisions(tmp_path: Path) -> None:
    import torchvision

    run = train(image_task(side=32), tmp_path / "run", "mrf", backbone="resnet18", weights="none")
    file = tmp_path / "weights.safetensors"
    formats.write_safetensors(run, file)
    weights, about = read_tensors(file)
    assert about == formats.describe(run)
    assert torch.equal(weights["method.prototypes"], run.method.prototypes)
    network = torchvision.models.resnet18()
    network.fc = torch.nn.Identity()
    network.load_state_dict({name[5:]: tensor for name, tensor in weights.items() if name.startswith("body.")})
    x = random_samples(run, 4)
    with torch.no_grad():
        embedding = network.eval()((x / 255 - weights["pixel_mean"]) / weights["pixel_std"])
    wanted = run.embed(x)
    assert float((embedding - wanted).abs().max() / wanted.abs().max()) < 1e-4


def test_command(
    run: Run, onnx_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(formats, "write_onnx", lambda _, file: float(bool(shutil.copy(onnx_file, file))) * 1e-7)
    assert main(["export", str(run.path), "--quantise", "--out", str(tmp_path / "a.onnx")]) == 0
    told = capsys.readouterr().out
    assert "crf on small, uint8, RGB, (N, 3, H, W) of 3 x 16 x 16 -> 3 classes, 2 domains" in told
    assert "within 1e-07" in told
    assert "what that costs is not known" in told  # the run was trained on arrays
    task = image_task()
    data = str(tmp_path / "labelled.npz")
    labels = np.array(run.classes)[np.arange(12) % 3]
    np.savez(data, x=task.target.x[:].permute(0, 2, 3, 1).numpy(), y=labels)
    assert main(["export", str(run.path), "--quantise", "--data", data, "--out", str(tmp_path / "b.onnx")]) == 0
    assert " % of 12 samples; " in capsys.readouterr().out
    assert main(["export", str(run.path), "--format", "safetensors"]) == 0
    assert (run.path / "export.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--format", "torchscript", "--quantise"], "--quantise: only ONNX files can be quantised"),
        (["--data", "somewhere"], "--data was given without --quantise"),
        (["--format", "safetensors", "--out", "{run}/model.safetensors"], "a file of the run itself is there"),
        (["--out", "{run}/model.json"], "a file of the run itself is there"),
        (["--out", "{run}"], "a folder is there"),
        (["--format", "tflite"], "invalid choice"),
    ],
)
def test_mistakes(run: Run, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run.path / "model.safetensors").read_bytes()
    assert main(["export", str(run.path), *(part.format(run=run.path) for part in arguments)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert (run.path / "model.safetensors").read_bytes() == before


def test_what_differs_is_not_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((len(x), 3), 1 / 3), torch.full((len(x), 2), 1 / 2)

    monkeypatch.setattr(formats, "read_torchscript", lambda _: wrong)
    monkeypatch.setattr(formats, "_program", lambda _: None)
    monkeypatch.setattr(formats, "scripted", lambda _: torch.jit.script(torch.nn.Identity()))
    with pytest.raises(UserError, match="differ from the run's by 0"):
        formats.write_torchscript(run, tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())


@writes_onnx
def test_what_exporters_raise_is_told_in_one_sentence(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("this operator\nis not known")

    monkeypatch.setattr(formats, "_program", fail)
    told = r"crf on small could not be exported to onnx \(this operator\); use --format torchscript or safetensors"
    with pytest.raises(UserError, match=told):
        formats.write_onnx(run, tmp_path / "model.onnx")


def test_an_old_pytorch_is_told_in_one_sentence(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.6.0+cu124"))
    with pytest.raises(UserError, match=r"^--format onnx: PyTorch 2.6.0\+cu124 is installed, 2.7 or later is needed"):
        formats.write_onnx(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_without_the_extra(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(UserError, match=r"onnxscript is not installed; run `pip install 'graphmsda\[export\]'`"):
        formats.write_onnx(run, tmp_path / "model.onnx")


@pytest.mark.slow
@writes_onnx
@pytest.mark.parametrize("backbone", ["3conv-2fc", "resnet18"])
@pytest.mark.parametrize("name", ["crf", "mrf", "source-only", "mcd"])
def test_a_thousand_images(name: str, backbone: str, tmp_path: Path) -> None:
    task = image_task(sources=3, classes=10, size=40, side=32)
    settings = {"weights": "none", "epochs": 2, "steps_per_epoch": 10, "batch_size": 20}
    run = train(task, tmp_path / "run", name, backbone=backbone, **settings)
    for write, read, suffix in (
        (formats.write_onnx, formats.read_onnx, "onnx"),
        (formats.write_torchscript, formats.read_torchscript, "pt"),
    ):
        file = tmp_path / f"model.{suffix}"
        write(run, file)
        classes, domains = agreement(run, read(file), 1000)
        print(f"{name} on {backbone}, {suffix}: classes {classes:.1e}, domains {domains:.1e}")
        assert max(classes, domains) < 1e-4


@pytest.mark.slow
@writes_onnx
def test_the_page_does_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("shop", "studio", "phone", "phone-labelled")):
        make_domain(tmp_path / name, 20 + 40 * number, seed=number)
    (tmp_path / "new-pictures").mkdir()
    shutil.copy(next((tmp_path / "phone").rglob("*.jpg")), tmp_path / "new-pictures" / "IMG_0001.jpg")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    data = "--sources shop studio --target phone --backbone small --epochs 1 --device cpu --out runs/mine"
    assert main(["fit", *data.split()]) == 0
    for line in typed("docs/export.md"):
        program, *arguments = shlex.split(line)
        if program == "python":
            subprocess.run([sys.executable, *arguments], check=True)
            assert "most like" in capfd.readouterr().out
        else:
            assert main(arguments) == 0, line
            assert "MB" in capfd.readouterr().out
    assert all((tmp_path / "runs" / "mine" / f"export.{suffix}").is_file() for suffix in ("onnx", "pt", "safetensors"))
    exec(compile(blocks("docs/export.md", "python")[0], "docs/export.md", "exec"), {})
    assert main(["export", "runs/mine", "--quantise"]) == 0
    assert "without labels, so accuracy changed by at most that" in capfd.readouterr().out
