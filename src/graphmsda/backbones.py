"""From an image or a feature vector to an embedding.

Every backbone is an ordinary PyTorch network written with ordinary batch norms, converted so that each domain of a
batch keeps statistics of its own (`graphmsda.norm`). Normalisation of the input belongs to the backbone and is saved
with it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphmsda.errors import UserError
from graphmsda.norm import Layout, convert_norms
from graphmsda.patch_conv import PatchConv2d
from graphmsda.pooled_norm import pool_norms
from graphmsda.weights import fetch, load_trunk, published, read_state

SMALLEST = 8  # pixels a side: below that nothing is left after pooling
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """A network ``f`` that reads samples of several domains at once; ``features`` is the embedding's size ``d``."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, body: nn.Module, features: int, domains: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.features = features
        self.layout = Layout()
        # Convolutions and pooling run faster with the channels last, on CPUs and GPUs alike.
        self.body = pool_norms(convert_norms(body, domains, self.layout)).to(memory_format=torch.channels_last)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))
        self.mixed: torch.dtype | None = None  # what the network computes in, where that is not what it is kept in
        self.notes: list[str] = []  # what its user should know about where its weights came from

    def mixed_precision(self) -> AbstractContextManager[Any]:
        """Return a context in which matrix products are taken in the network's lower precision, if it has one."""
        return torch.autocast(self.mean.device.type, self.mixed) if self.mixed is not None else nullcontext()

    def forward(
        self,
        x: Tensor,
        sizes: Sequence[int],
        domains: Sequence[int],
        totals: Sequence[int] | None = None,
        *,
        certain: bool = False,
    ) -> Tensor:
        """Embed samples that lie chunk by chunk, one domain a chunk: ``(N, ...) -> (N, d)``.

        Args:
            x: uint8 images, images in [0, 1], or feature vectors.
            sizes: Rows of each chunk.
            domains: Domain of each chunk.
            totals: Rows of each chunk over all processes, where there are several.
            certain: Whether dropout leaves everything in, in training too.
        """
        self.layout.certain = certain
        self.layout.sizes, self.layout.domains = tuple(sizes), tuple(domains)
        self.layout.totals = tuple(sizes if totals is None else totals)
        wide = self.mean.dtype
        if x.ndim == 4:
            x = x.to(wide) / 255 if x.dtype == torch.uint8 else x.to(wide)
            x = ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        with self.mixed_precision():
            embedding: Tensor = self.body(x.to(wide))
        # Distances, energies and losses are taken in full precision whatever the network ran in.
        return embedding.to(wide)


def three_conv_two_fc(shape: Sequence[int], dropout: float) -> tuple[nn.Module, int]:
    """Return the paper's digits network, 3conv-2fc: 5x5 convolutions 64-64-128, fully connected 8192-3072-2048.

    Layers before a batch norm have no bias, which the norm would take out again.
    """
    height, width = ((side + 3) // 4 for side in shape[1:])

    def conv(inputs: int, outputs: int) -> list[nn.Module]:
        kind = PatchConv2d if inputs == 3 else nn.Conv2d
        return [kind(inputs, outputs, 5, padding=2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    def linear(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]

    return nn.Sequential(
        *conv(3, 64),
        nn.MaxPool2d(3, 2, padding=1),
        *conv(64, 64),
        nn.MaxPool2d(3, 2, padding=1),
        *conv(64, 128),
        nn.Flatten(),
        *linear(128 * height * width, 3072),
        nn.Dropout(dropout),
        *linear(3072, 2048),
    ), 2048


def small(shape: Sequence[int], dropout: float) -> tuple[nn.Module, int]:
    """Return a narrow cousin of 3conv-2fc that trains in seconds on two cores."""

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *conv(3, 16, 5, stride=2),
        *conv(16, 32, 3),
        nn.MaxPool2d(2),
        *conv(32, 64, 3),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Dropout(dropout),
        *(nn.Linear(1024, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU()),
    ), 128


def mlp(shape: Sequence[int], dropout: float) -> tuple[nn.Module, int]:
    """Return a two-layer perceptron for feature vectors, which it standardises per domain first."""
    return nn.Sequential(
        nn.BatchNorm1d(shape[0]),
        *(nn.Linear(shape[0], 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(256, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU()),
    ), 128


def identity(shape: Sequence[int], dropout: float) -> tuple[nn.Module, int]:
    """Return nothing but a standardisation per domain, for feature vectors that are embeddings already."""
    return nn.Sequential(nn.BatchNorm1d(shape[0])), shape[0]


BACKBONES: dict[str, Callable[[Sequence[int], float], tuple[nn.Module, int]]] = {
    "small": small,
    "3conv-2fc": three_conv_two_fc,
    "mlp": mlp,
    "identity": identity,
}
OF_FEATURES = ("mlp", "identity")  # those that read feature vectors; all others read images
# The paper's other networks come from torchvision, as does any other of its classification models by its name there.
PRETRAINED = ("alexnet", "resnet18", "resnet50", "resnet101")
LARGEST_SOUGHT = 512  # pixels a side: up to there a size that fits is looked for when the one given does not
LEAST_MOMENTUM = 0.01  # of batch norms: with MNASNet's 3e-4 a domain's statistics would lag behind a whole run


def build_backbone(
    name: str, shape: Sequence[int], domains: int, *, dropout: float = 0.5, weights: str = "none"
) -> Backbone:
    """Build a backbone by name for samples of `shape`, ``(3, H, W)`` or ``(F,)``, of `domains` domains.

    Args:
        name: One of `BACKBONES` or the name of a classification model of torchvision.
        shape: Shape of one sample.
        domains: Number of domains, the target included.
        dropout: Dropout probability inside the network, where it has dropout.
        weights: For torchvision's models: ``none``, ``imagenet``, a name such as ``IMAGENET1K_V1`` that torchvision
            gives one of its sets of weights, or a ``.safetensors`` / ``.pth`` file.
    """
    if name not in BACKBONES and name not in torchvision_names():
        raise UserError(f"--backbone: unknown backbone {name!r}; choose one of {_choices(name)}")
    if (len(shape) == 3) == (name in OF_FEATURES):
        kind = "images" if len(shape) == 3 else "feature vectors"
        raise UserError(f"--backbone: {name!r} does not read {kind}; leave --backbone at auto")
    if len(shape) == 3 and min(shape[1:]) < SMALLEST:
        raise UserError(f"images of {shape[1]} x {shape[2]} pixels are too small; give --image-size {SMALLEST} or more")
    if name not in BACKBONES:
        return _from_torchvision(name, shape, domains, dropout, weights)
    if weights != "none":
        raise UserError(f"--weights: there are no pretrained weights for the backbone {name!r}; use --weights none")
    body, features = BACKBONES[name](shape, dropout)
    return Backbone(body, features, domains, (0.5,) * 3, (0.5,) * 3)


def torchvision_names() -> list[str]:
    """Return the names of torchvision's classification models."""
    from torchvision import models

    return [str(name) for name in models.list_models(module=models)]


def _choices(name: str) -> str:
    close = difflib.get_close_matches(name, torchvision_names(), n=3)
    like = f" such as {', '.join(close)}" if close else ""
    return f"auto, {', '.join((*BACKBONES, *PRETRAINED))} or any classification model of torchvision{like}"


def _from_torchvision(name: str, shape: Sequence[int], domains: int, dropout: float, weights: str) -> Backbone:
    features = _embedding_size(name, shape)
    body = _create(name, shape)
    head = _cut_head(body)
    for module in body.modules():
        if isinstance(module, nn.Dropout) and module.p > 0:  # transformers hold many that are off and stay so
            module.p = dropout
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = max(module.momentum or 0.1, LEAST_MOMENTUM)
    entry = published(name, weights)
    notes = []
    if weights != "none":
        state = read_state(Path(weights)) if entry is None else fetch(name, entry)
        _check_image_size(name, shape, state, weights)
        notes = [f"{name} starts from {weights if entry is None else f'torchvision {entry}'}"]
        notes += load_trunk(body, head, state, weights)
    backbone = Backbone(body, features, domains, *_normalisation(name, entry or published(name, "imagenet")))
    backbone.notes = notes
    return backbone


def _create(name: str, shape: Sequence[int]) -> nn.Module:
    """Return torchvision's model with random weights, without auxiliary outputs, for images of this shape."""
    from torchvision.models import get_model

    options: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True}
    elif name.startswith("vit_"):
        options = {"image_size": shape[1]}
    elif name.startswith("maxvit_"):
        options = {"input_size": tuple(shape[1:])}
    try:
        body: nn.Module = get_model(name, weights=None, **options)
    except NotImplementedError:  # a RegNet computes its plan with tensors, of which the meta device holds none
        with torch.device("cpu"):
            body = get_model(name, weights=None, **options)
    return body


def _cut_head(body: nn.Module) -> str:
    """Replace the layer that tells classes, and dropout right before it, by nothing; return that layer's name.

    What is left ends in the embedding, on which methods take distances: it is never dropped out itself.
    """
    classes = 1000  # of ImageNet: what torchvision's models tell apart unless asked otherwise
    layers = {name: module for name, module in body.named_modules() if not list(module.children())}
    telling = [k for k, m in layers.items() if isinstance(m, nn.Linear | nn.Conv2d) and m.weight.shape[0] == classes]
    head: str = telling[-1]
    before = list(layers)[list(layers).index(head) - 1]
    for name in (head, before) if isinstance(layers[before], nn.Dropout) else (head,):
        parent, _, child = name.rpartition(".")
        setattr(body.get_submodule(parent), child, nn.Identity())
    return head


def _embedding_size(name: str, shape: Sequence[int]) -> int:
    """Return the size of the embedding of images of this shape, found by sending shapes alone through the network."""
    size = _try_size(name, *shape[1:])
    if size is not None:
        return size
    least = max(*shape[1:], *published(name, "imagenet").meta["min_size"])  # as torchvision states it
    larger = (side for side in range(least, LARGEST_SOUGHT + 1) if _try_size(name, side, side) is not None)
    fitting = next(larger, None)
    advice = "choose another --backbone" if fitting is None else f"give --image-size {fitting}"
    raise UserError(f"--backbone: images of {shape[1]} x {shape[2]} pixels do not fit {name}; {advice}")


def _try_size(name: str, height: int, width: int) -> int | None:
    with suppress(RuntimeError, ValueError, AssertionError), torch.device("meta"), torch.no_grad():
        body = _create(name, (3, height, width))
        _cut_head(body)
        return int(body.to("meta").eval()(torch.zeros(1, 3, height, width)).shape[1])
    return None


def _check_image_size(name: str, shape: Sequence[int], state: Mapping[str, Tensor], weights: str) -> None:
    """Refuse weights of a vision transformer for images of another size: it learns a vector for each place."""
    places = state.get("encoder.pos_embedding")
    patch = state.get("conv_proj.weight")
    if places is None or patch is None or places.ndim != 3 or not name.startswith("vit_"):
        return
    side = round((places.shape[1] - 1) ** 0.5) * patch.shape[-1]
    if side != shape[1]:
        raise UserError(
            f"--weights {weights}: these weights of {name} are for images of {side} x {side} pixels, not {shape[1]} x "
            f"{shape[2]}; give --image-size {side}"
        )


def _normalisation(name: str, entry: Any) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and standard deviation of the input that a model's published weights were trained with."""
    if name in ("googlenet", "inception_v3"):  # torchvision turns its usual normalisation into this one inside them
        return (0.5,) * 3, (0.5,) * 3
    transforms = entry.transforms()
    return getattr(transforms, "mean", IMAGENET_MEAN), getattr(transforms, "std", IMAGENET_STD)
