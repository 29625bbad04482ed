"""What the networks are and what they make of images."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import get_model, list_models

from graphmsda import backbones
from graphmsda.backbones import BACKBONES, PRETRAINED, build_backbone, torchvision_names
from graphmsda.engine.fit import fit
from graphmsda.errors import UserError
from graphmsda.norm import DomainBatchNorm
from graphmsda.run import Run
from tests.conftest import image_task


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
        ("alexnet", (3, 63, 63), 4096),
        ("mobilenet_v3_small", (3, 32, 40), 1024),
        ("squeezenet1_1", (3, 32, 32), 512),
        ("regnet_x_400mf", (3, 32, 32), 400),
        ("shufflenet_v2_x0_5", (3, 32, 32), 1024),
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
    for name in BACKBONES.keys() - {"identity"}:  # which has none
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
    assert "such as vgg" in sentence("vgg", (3, 32, 32), 2)
    assert "such as" not in sentence("!", (3, 32, 32), 2)
    for name in ("small", "3conv-2fc", "resnet18", "vit_b_16"):
        assert f"{name!r} does not read feature vectors" in sentence(name, (5,), 2)
    assert "'mlp' does not read images" in sentence("mlp", (3, 32, 32), 2)
    assert "no pretrained weights for the backbone 'small'" in sentence("small", (3, 32, 32), 2, weights="imagenet")


WIDTHS = {"alexnet": 4096, "resnet18": 512, "resnet50": 2048, "resnet101": 2048}  # Table 1 and its neighbours
OTHERS = {
    "convnext_tiny": 768,
    "densenet121": 1024,
    "efficientnet_b0": 1280,
    "efficientnet_v2_s": 1280,
    "googlenet": 1024,
    "inception_v3": 2048,
    "maxvit_t": 512,
    "mnasnet0_5": 1280,
    "mobilenet_v2": 1280,
    "mobilenet_v3_large": 1280,
    "regnet_y_400mf": 440,
    "resnext50_32x4d": 2048,
    "shufflenet_v2_x1_0": 1024,
    "squeezenet1_0": 512,
    "swin_t": 768,
    "swin_v2_t": 768,
    "vgg11_bn": 4096,
    "vit_b_16": 768,
    "wide_resnet50_2": 2048,
}


def check_shapes(name: str, features: int | None = None) -> None:
    """Build on the meta device, as a run is loaded, and send shapes through."""
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("error")
        backbone = build_backbone(name, (3, 224, 224), 3)
        embedding = backbone(torch.empty(4, 3, 224, 224, dtype=torch.uint8), (2, 2), (0, 2))
    assert embedding.shape == (4, backbone.features)
    assert features in (None, backbone.features)
    assert not any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in backbone.modules())
    assert all(m.momentum >= 0.01 for m in backbone.modules() if isinstance(m, DomainBatchNorm))


@pytest.mark.parametrize(("name", "features"), list((WIDTHS | OTHERS).items()))
def test_models_of_torchvision(name: str, features: int) -> None:
    check_shapes(name, features)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(torchvision_names()) - WIDTHS.keys() - OTHERS.keys()))
def test_all_other_models_of_torchvision(name: str) -> None:
    check_shapes(name)


def test_names_are_torchvisions() -> None:
    assert set(PRETRAINED) == WIDTHS.keys() <= set(torchvision_names())
    assert len(torchvision_names()) < len(list_models())  # no detectors, no quantised ones


CONVERTED = {
    "resnet18": "fc",
    "mobilenet_v3_small": "classifier.3",
    "efficientnet_b0": "classifier.1",
    "densenet121": "classifier",
    "googlenet": "fc",
}
HEAVY = {"vgg11_bn": "classifier.6", "swin_t": "head", "convnext_tiny": "classifier.2", "inception_v3": "fc"}


@pytest.mark.parametrize(
    ("name", "head"),
    [*CONVERTED.items(), *(pytest.param(*item, marks=pytest.mark.slow) for item in HEAVY.items())],
)
def test_the_embedding_is_what_the_head_would_read(name: str, head: str, tmp_path: Path) -> None:
    """With the pretrained statistics, before any domain was seen, nothing but the head is gone."""
    torch.manual_seed(0)
    options = {"init_weights": False, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    model = get_model(name, weights=None, **options).eval()
    for key, tensor in model.state_dict().items():
        if "running" in key:
            tensor.uniform_(0.5, 1.5)
    torch.save(model.state_dict(), tmp_path / "a.pth")
    read: list[Tensor] = []
    model.get_submodule(head).register_forward_hook(lambda module, inputs, output: read.append(inputs[0]))
    backbone = build_backbone(name, (3, 80, 80), 3, weights=str(tmp_path / "a.pth")).eval()
    x = torch.rand(2, 3, 80, 80)
    with torch.no_grad():
        model((x - backbone.mean) / backbone.std)
        embedding = backbone(x, (1, 1), (0, 2))
    torch.testing.assert_close(embedding, read[0], rtol=1e-3, atol=1e-4)


def test_alexnet_ends_in_the_second_fully_connected_layer() -> None:
    backbone = build_backbone("alexnet", (3, 64, 64), 2, dropout=0.25)
    linear = [(m.in_features, m.out_features) for m in backbone.modules() if isinstance(m, nn.Linear)]
    assert linear == [(9216, 4096), (4096, 4096)]
    assert [m.p for m in backbone.modules() if isinstance(m, nn.Dropout)] == [0.25, 0.25]
    assert (backbone(torch.rand(2, 3, 64, 64), (2,), (0,)) >= 0).all()  # the ReLU is in


@pytest.mark.parametrize(("name", "dropped"), [("vgg11", 1), ("mobilenet_v3_small", 0), ("swin_t", 0), ("vit_b_32", 0)])
def test_dropout_only_where_the_model_drops_and_never_on_the_embedding(name: str, dropped: int) -> None:
    with torch.device("meta"):
        backbone = build_backbone(name, (3, 224, 224), 2, dropout=0.25)
    assert [m.p for m in backbone.modules() if isinstance(m, nn.Dropout) and m.p] == [0.25] * dropped


@pytest.mark.parametrize(
    ("name", "side", "fits"),
    [("alexnet", 62, 63), ("vgg11", 20, 32), ("vit_b_16", 100, 224), ("vit_b_16", 250, 256), ("inception_v3", 70, 75)],
)
def test_images_that_do_not_fit(name: str, side: int, fits: int) -> None:
    text = sentence(name, (3, side, side), 2)
    assert f"images of {side} x {side} pixels do not fit {name}" in text
    assert text.endswith(f"--image-size {fits}")


def test_normalisation_is_the_models_own() -> None:
    for name, mean in (("resnet18", 0.485), ("googlenet", 0.5), ("small", 0.5)):
        assert round(float(build_backbone(name, (3, 32, 32), 2).mean[0, 0]), 3) == mean
    entry = backbones.published("efficientnet_v2_l", "imagenet")
    assert [list(part) for part in backbones._normalisation("efficientnet_v2_l", entry)] == [[0.5] * 3] * 2


@pytest.mark.parametrize("name", ["squeezenet1_1", "regnet_x_400mf", pytest.param("swin_v2_t", marks=pytest.mark.slow)])
def test_a_run_brings_its_normalisation_and_network_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not fewer: batch norms over two values each, one behind the other, can take the gradient past float32.
    task = image_task(side=32, size=16, classes=2, sources=1)
    with monkeypatch.context() as patch:
        patch.setattr(backbones, "_normalisation", lambda *_: ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
        fit(
            task, "source-only", out=tmp_path / "run", backbone=name, weights="none", epochs=1, steps_per_epoch=1,
            batch_size=8, device="cpu",
        )  # fmt: skip
    run = Run.load(tmp_path / "run", device="cpu")
    torch.testing.assert_close(run.method.backbone.mean.flatten(), torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(run.method.backbone.std.flatten(), torch.tensor([0.4, 0.5, 0.6]))
    assert all(tensor.device.type == "cpu" for tensor in run.method.state_dict().values())
    assert torch.isfinite(run.embed(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))).all()
