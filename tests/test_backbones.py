"""Shapes of the networks and where their weights may come from."""

from __future__ import annotations

import os
import pickle
import urllib.error
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import resnet18

from graphmsda.backbones import BACKBONES, build_backbone
from graphmsda.errors import UserError
from graphmsda.norm import DomainBatchNorm


def embed(name: str, shape: tuple[int, ...], **options: object) -> Tensor:
    torch.manual_seed(0)
    backbone = build_backbone(name, shape, 3, **options)
    x = torch.randint(0, 256, (5, *shape), dtype=torch.uint8) if len(shape) == 3 else torch.randn(5, *shape)
    embedding = backbone(x, (2, 3), (0, 2))
    assert embedding.shape == (5, backbone.features)
    assert torch.isfinite(embedding).all()
    assert not any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in backbone.modules())
    return embedding


@pytest.mark.parametrize(
    ("name", "shape", "features"),
    [
        ("3conv-2fc", (3, 28, 28), 2048),
        ("3conv-2fc", (3, 17, 17), 2048),
        ("small", (3, 32, 32), 128),
        ("small", (3, 20, 22), 128),
        ("mlp", (7,), 128),
        ("resnet18", (3, 64, 64), 512),
    ],
)
def test_embeddings(name: str, shape: tuple[int, ...], features: int) -> None:
    assert embed(name, shape).shape == (5, features)


def test_images_need_not_be_square() -> None:
    """Arrays keep their own shape, whatever the network."""
    assert embed("3conv-2fc", (3, 20, 26)).shape == (5, 2048)


def test_the_digits_network_is_the_printed_one() -> None:
    backbone = build_backbone("3conv-2fc", (3, 32, 32), 5)
    convolutions = [m for m in backbone.modules() if isinstance(m, nn.Conv2d)]
    assert [(m.in_channels, m.out_channels, m.kernel_size) for m in convolutions] == [
        (3, 64, (5, 5)),
        (64, 64, (5, 5)),
        (64, 128, (5, 5)),
    ]
    linear = [m for m in backbone.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(8192, 3072), (3072, 2048)]
    norms = [m for m in backbone.modules() if isinstance(m, DomainBatchNorm)]
    assert [m.running_mean.shape[0] for m in norms] == [5] * 5
    assert backbone.features == 2048


def test_bytes_and_fractions_mean_the_same() -> None:
    backbone = build_backbone("small", (3, 16, 16), 2).eval()
    x = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(backbone(x, (3,), (0,)), backbone(x / 255, (3,), (0,)))


def test_dropout_is_the_one_given() -> None:
    for name in BACKBONES:
        backbone = build_backbone(name, (6,) if name == "mlp" else (3, 8, 8), 2, dropout=0.25)
        assert [m.p for m in backbone.modules() if isinstance(m, nn.Dropout)] == [0.25]


def test_double_precision_stays() -> None:
    backbone = build_backbone("small", (3, 16, 16), 2).double()
    assert backbone(torch.zeros(4, 3, 16, 16, dtype=torch.uint8), (4,), (0,)).dtype == torch.float64


def sentence(*arguments: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        build_backbone(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names_that_do_not_fit() -> None:
    assert "--backbone: unknown backbone 'vgg'" in sentence("vgg", (3, 32, 32), 2)
    assert "resnet50" in sentence("vgg", (3, 32, 32), 2)
    for name in ("small", "3conv-2fc", "resnet18"):
        assert f"{name!r} does not read feature vectors" in sentence(name, (5,), 2)
    assert "'mlp' does not read images" in sentence("mlp", (3, 32, 32), 2)
    assert "no pretrained weights for the backbone 'small'" in sentence("small", (3, 32, 32), 2, weights="imagenet")


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
    torch.save({"state_dict": {"conv1.weight": torch.zeros(1)}}, tmp_path / "a.pth")
    torch.save([torch.zeros(1)], tmp_path / "b.pth")
    for name in ("a.pth", "b.pth"):
        text = sentence("resnet18", (3, 64, 64), 3, weights=str(tmp_path / name))
        assert "plain table of tensors" in text
        assert name in text
    assert "no file nowhere.pth" in sentence("resnet18", (3, 64, 64), 3, weights="nowhere.pth")


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


def test_real_trunk_at_hand() -> None:
    """Weights in half precision as they lie in a data folder."""
    trunk = Path(os.environ.get("GRAPHMSDA_DATA", "")) / "weights" / "resnet18-imagenet-trunk.safetensors"
    if not trunk.is_file():
        pytest.skip("GRAPHMSDA_DATA names no folder with weights/resnet18-imagenet-trunk.safetensors")
    assert embed("resnet18", (3, 64, 64), weights=str(trunk)).dtype == torch.float32
