"""Where weights may come from, and what is said when they do not fit."""

from __future__ import annotations

import os
import pickle
import re
import urllib.error
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import VisionTransformer, alexnet, densenet121, get_model, googlenet, resnet18

from graphmsda.backbones import build_backbone
from graphmsda.engine.fit import fit
from graphmsda.engine.settings import Settings
from graphmsda.errors import UserError
from graphmsda.weights import default_weights, find_weights, load_trunk
from tests.conftest import image_task


def sentence(*arguments: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        build_backbone(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def pretrained() -> dict[str, Tensor]:
    torch.manual_seed(1)
    state = resnet18(weights=None).state_dict()
    for key, tensor in state.items():
        if "running" in key:
            tensor.uniform_(0.5, 1.5)
        elif tensor.is_floating_point():
            tensor += 0.1
    return state


def load(path: Path) -> nn.Module:
    return build_backbone("resnet18", (3, 64, 64), 3, weights=str(path))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_from_a_file(pretrained: dict[str, Tensor], tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in pretrained.items()}
    path = tmp_path / f"trunk{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(state, path)
    backbone = load(path)
    assert all(p.dtype == torch.float32 for p in backbone.parameters())
    own = backbone.state_dict()
    for key, tensor in state.items():
        if key.startswith("fc.") or key.endswith("num_batches_tracked"):
            continue
        key = key.replace("running_", "initial_") if "running" in key else key
        assert torch.equal(own[f"body.{key}"], tensor.float()), key


def test_weights_without_head_and_counters(pretrained: dict[str, Tensor], tmp_path: Path) -> None:
    state = {k: v for k, v in pretrained.items() if not k.startswith("fc.") and "num_batches" not in k}
    torch.save(state, tmp_path / "a.pth")
    assert torch.equal(load(tmp_path / "a.pth").state_dict()["body.conv1.weight"], state["conv1.weight"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s.pop("layer1.0.conv1.weight"), "lacks layer1.0.conv1.weight;"),
        (lambda s: [s.pop(k) for k in list(s) if k.startswith("layer4")], "and 22 more"),
        (lambda s: s.update({"surplus.weight": torch.zeros(1)}), "has unknown surplus.weight"),
        (lambda s: s.update({"conv1.weight": torch.zeros(2, 3)}), "conv1.weight (2, 3) for (64, 3, 7, 7)"),
    ],
)
def test_weights_that_do_not_fit(
    pretrained: dict[str, Tensor], tmp_path: Path, change: Callable[[dict[str, Tensor]], object], told: str
) -> None:
    state = dict(pretrained)
    change(state)
    torch.save(state, tmp_path / "a.pth")
    text = sentence("resnet18", (3, 64, 64), 3, weights=str(tmp_path / "a.pth"))
    assert told in text
    assert str(tmp_path / "a.pth") in text


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_file_is_never_executed(tmp_path: Path) -> None:
    touched, path = tmp_path / "touched", tmp_path / "evil.pth"
    torch.save({"conv1.weight": Trap(touched)}, path)
    assert f"{path} could not be read as weights" in sentence("resnet18", (3, 64, 64), 3, weights=str(path))
    path.write_bytes(pickle.dumps(Trap(touched), protocol=2))
    assert f"{path} could not be read as weights" in sentence("resnet18", (3, 64, 64), 3, weights=str(path))
    assert not touched.exists()
    pickle.loads(path.read_bytes())
    assert touched.exists()  # the trap would have worked


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\x00" * 64])
def test_damaged_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert name in sentence("resnet18", (3, 64, 64), 3, weights=str(tmp_path / name))


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    torch.save({"state_dict": {"conv1.weight": 3}}, tmp_path / "a.pth")
    torch.save([torch.zeros(1)], tmp_path / "b.pth")
    torch.save({}, tmp_path / "c.pth")
    for name in ("a.pth", "b.pth", "c.pth"):
        text = sentence("resnet18", (3, 64, 64), 3, weights=str(tmp_path / name))
        assert "plain table of tensors" in text
        assert name in text
    assert "is a folder" in sentence("resnet18", (3, 64, 64), 3, weights=str(tmp_path))
    assert "--weights: no file nowhere.pth" in sentence("resnet18", (3, 64, 64), 3, weights="nowhere.pth")


@pytest.mark.parametrize(
    "error", [urllib.error.URLError("no route"), TimeoutError("slow"), RuntimeError("invalid hash value")]
)
def test_imagenet_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    text = sentence("resnet18", (3, 64, 64), 3, weights="imagenet")
    assert "weights of resnet18 could not be fetched" in text
    assert "--weights FILE" in text
    assert "--weights none" in text


def test_imagenet_when_it_can(monkeypatch: pytest.MonkeyPatch, pretrained: dict[str, Tensor]) -> None:
    asked: list[str] = []

    def give(url: str, *arguments: object, **options: object) -> dict[str, Tensor]:
        asked.append(url)
        return pretrained

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", give)
    backbone = build_backbone("resnet18", (3, 64, 64), 3, weights="imagenet")
    assert len(asked) == 1
    assert "resnet18" in asked[0]
    assert torch.equal(backbone.state_dict()["body.conv1.weight"], pretrained["conv1.weight"])
    torch.testing.assert_close(backbone.mean.flatten(), torch.tensor([0.485, 0.456, 0.406]))


def test_imagenet_is_the_first_version_and_others_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def give(url: str, *arguments: object, **options: object) -> dict[str, Tensor]:
        asked.append(url)
        raise urllib.error.URLError("no route")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", give)
    for weights in ("imagenet", "IMAGENET1K_V2", "imagenet1k_v1"):
        sentence("resnet50", (3, 64, 64), 3, weights=weights)
    assert asked[0] == asked[2] != asked[1]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model": {f"module.{k}": v for k, v in s.items()}, "lr": 0.1},
        lambda s: {f"module.backbone.{k}": v for k, v in s.items()},
        lambda s: {k.replace("fc.", "last_linear."): v for k, v in s.items()},
        lambda s: {k.replace("fc.", "head.2."): v for k, v in s.items()},
    ],
)
def test_wrapped_weights(
    pretrained: dict[str, Tensor], tmp_path: Path, wrap: Callable[[dict[str, Tensor]], object]
) -> None:
    torch.save(wrap(pretrained), tmp_path / "a.pth")
    assert torch.equal(load(tmp_path / "a.pth").state_dict()["body.conv1.weight"], pretrained["conv1.weight"])


def test_older_names_of_densenets_and_transformers(tmp_path: Path) -> None:
    """The names under which torchvision published them, which its own loading turns into today's."""
    state = densenet121(weights=None).state_dict()
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.", k): v for k, v in state.items()}
    assert old.keys() != state.keys()
    torch.save(old, tmp_path / "a.pth")
    own = build_backbone("densenet121", (3, 32, 32), 2, weights=str(tmp_path / "a.pth")).state_dict()
    key = "features.denseblock2.denselayer3.conv2.weight"
    assert torch.equal(own[f"body.{key}"], state[key])

    tiny = {"image_size": 64, "patch_size": 32, "num_layers": 2, "num_heads": 1, "hidden_dim": 8, "mlp_dim": 16}
    model, other = VisionTransformer(**tiny), VisionTransformer(**tiny)
    state = model.state_dict()
    old = {k.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): v for k, v in state.items()}
    assert old.keys() != state.keys()
    other.heads.head = nn.Identity()
    assert load_trunk(other, "heads.head", old, "old") == []
    assert all(torch.equal(tensor, state[key]) for key, tensor in other.state_dict().items())
    torch.save(state, tmp_path / "b.pth")
    text = sentence("vit_b_32", (3, 96, 96), 2, weights=str(tmp_path / "b.pth"))
    assert "for images of 64 x 64 pixels, not 96 x 96; give --image-size 64" in text


@pytest.mark.parametrize("name", ["mnasnet0_5", "shufflenet_v2_x0_5", "regnet_x_400mf", "squeezenet1_1"])
def test_weights_of_other_models(name: str, tmp_path: Path) -> None:
    state = get_model(name, weights=None).state_dict()
    save_file(state, tmp_path / "a.safetensors")
    own = build_backbone(name, (3, 32, 32), 2, weights=str(tmp_path / "a.safetensors")).state_dict()
    key = next(iter(state))
    assert torch.equal(own[f"body.{key}"], state[key])


def test_auxiliary_heads_are_not_needed(tmp_path: Path) -> None:
    state = googlenet(weights=None, aux_logits=True, init_weights=False).state_dict()
    assert any(k.startswith("aux1.") for k in state)
    torch.save(state, tmp_path / "a.pth")
    assert build_backbone("googlenet", (3, 32, 32), 2, weights=str(tmp_path / "a.pth")).features == 1024


@pytest.mark.parametrize("prefix", ["features.", ""])
def test_convolutions_alone(tmp_path: Path, prefix: str) -> None:
    state = {k: v for k, v in alexnet(weights=None).state_dict().items() if k.startswith("features.")}
    path = tmp_path / "a.safetensors"
    save_file({k.replace("features.", prefix): v.half() for k, v in state.items()}, path)
    backbone = build_backbone("alexnet", (3, 64, 64), 2, weights=str(path))
    assert torch.equal(backbone.state_dict()["body.features.0.weight"], state["features.0.weight"].half().float())
    assert backbone.notes[0] == f"alexnet starts from {path}"
    assert backbone.notes[1] == f"--weights {path}: without classifier.1 and classifier.4, which start at random"
    del state["features.0.bias"]
    save_file(state, path)
    assert "lacks features.0.bias" in sentence("alexnet", (3, 64, 64), 2, weights=str(path))


def test_another_networks_weights(pretrained: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(pretrained, tmp_path / "a.pth")
    text = sentence("alexnet", (3, 64, 64), 2, weights=str(tmp_path / "a.pth"))
    assert "the file lacks features.0.weight" in text
    assert "does not fit this backbone" in text


def test_weights_found_in_the_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMSDA_DATA", str(tmp_path))
    assert find_weights("alexnet") is None
    assert default_weights("alexnet") == "imagenet"
    folder = tmp_path / "weights"
    folder.mkdir()
    for name in ("alexnet-imagenet-features.safetensors", "alexnet-imagenet.txt", "resnet18-imagenet.pth"):
        (folder / name).touch()
    assert find_weights("alexnet") == folder / "alexnet-imagenet-features.safetensors"
    (folder / "alexnet-imagenet.pth").touch()
    assert default_weights("alexnet") == str(folder / "alexnet-imagenet.pth")
    assert find_weights("resnet1") is None
    assert find_weights("alexnet", tmp_path / "elsewhere") is None
    chosen = Settings(device="cpu").resolved(image_task(side=65, size=3))
    assert (chosen.backbone, chosen.weights) == ("resnet18", str(folder / "resnet18-imagenet.pth"))
    assert (chosen.batch_size, chosen.lr) == (16, 5e-5)
    assert Settings(device="cpu", backbone="small").resolved(image_task()).weights == "none"


def test_a_run_records_and_tells_the_weights_it_found(
    pretrained: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAPHMSDA_DATA", str(tmp_path))
    file = tmp_path / "weights" / "resnet18-imagenet.safetensors"
    file.parent.mkdir()
    save_file(pretrained, file)
    task = image_task(side=32, size=4, classes=2, sources=1)
    options = {"backbone": "resnet18", "epochs": 1, "steps_per_epoch": 1, "batch_size": 2, "device": "cpu"}
    run = fit(task, "source-only", out=tmp_path / "run", progress=True, **options)
    assert run.about["settings"]["weights"] == str(file)
    assert f"graphmsda: resnet18 starts from {file}" in capsys.readouterr().err
    fit(task, "source-only", out=tmp_path / "run", progress=True, **options)
    assert "starts from" not in capsys.readouterr().err  # it is finished


@pytest.mark.parametrize(
    ("name", "file", "notes"),
    [("resnet18", "resnet18-imagenet-trunk", 1), ("alexnet", "alexnet-imagenet-features", 2)],
)
def test_real_weights_at_hand(name: str, file: str, notes: int) -> None:
    """Weights in half precision as they lie in a data folder."""
    if not (Path(os.environ.get("GRAPHMSDA_DATA", "")) / "weights" / f"{file}.safetensors").is_file():
        pytest.skip(f"GRAPHMSDA_DATA names no folder with weights/{file}.safetensors")
    weights = default_weights(name)
    backbone = build_backbone(name, (3, 64, 64), 2, weights=weights)
    assert len(backbone.notes) == notes
    assert backbone(torch.rand(2, 3, 64, 64), (2,), (0,)).dtype == torch.float32
