"""From an image or a feature vector to an embedding.

Every backbone is an ordinary PyTorch network written with ordinary batch norms, converted so that each domain of a
batch keeps statistics of its own (`graphmsda.norm`). Normalisation of the input belongs to the backbone and is saved
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphmsda.errors import UserError
from graphmsda.norm import Layout, convert_norms

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
        self.body = convert_norms(body, domains, self.layout).to(memory_format=torch.channels_last)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    def forward(
        self, x: Tensor, sizes: Sequence[int], domains: Sequence[int], totals: Sequence[int] | None = None
    ) -> Tensor:
        """Embed samples that lie chunk by chunk, one domain a chunk: ``(N, ...) -> (N, d)``.

        Args:
            x: uint8 images, images in [0, 1], or feature vectors.
            sizes: Rows of each chunk.
            domains: Domain of each chunk.
            totals: Rows of each chunk over all processes, where there are several.
        """
        self.layout.sizes, self.layout.domains = tuple(sizes), tuple(domains)
        self.layout.totals = tuple(sizes if totals is None else totals)
        wide = self.mean.dtype
        if x.ndim == 4:
            x = x.to(wide) / 255 if x.dtype == torch.uint8 else x.to(wide)
            x = ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        with self.autocast():
            embedding: Tensor = self.body(x.to(wide))
        # Distances, energies and losses are taken in full precision whatever the network ran in.
        return embedding.to(wide)


def three_conv_two_fc(shape: Sequence[int], dropout: float) -> tuple[nn.Module, int]:
    """Return the paper's digits network, 3conv-2fc: 5x5 convolutions 64-64-128, fully connected 8192-3072-2048."""
    height, width = ((side + 3) // 4 for side in shape[1:])

    def conv(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *conv(3, 64),
        nn.MaxPool2d(3, 2, padding=1),
        *conv(64, 64),
        nn.MaxPool2d(3, 2, padding=1),
        *conv(64, 128),
        nn.Flatten(),
        *(nn.Linear(128 * height * width, 3072), nn.BatchNorm1d(3072), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(3072, 2048), nn.BatchNorm1d(2048), nn.ReLU()),
    ), 2048


def small(shape: Sequence[int], dropout: float) -> tuple[nn.Module, int]:
    """Return a narrow cousin of 3conv-2fc that trains in seconds on two cores."""

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *conv(3, 16, 5, stride=2),
        *conv(16, 32, 3),
        nn.MaxPool2d(2),
        *conv(32, 64, 3),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Dropout(dropout),
        *(nn.Linear(1024, 128), nn.BatchNorm1d(128), nn.ReLU()),
    ), 128


def mlp(shape: Sequence[int], dropout: float) -> tuple[nn.Module, int]:
    """Return a two-layer perceptron for feature vectors, which it standardises per domain first."""
    return nn.Sequential(
        nn.BatchNorm1d(shape[0]),
        *(nn.Linear(shape[0], 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(256, 128), nn.BatchNorm1d(128), nn.ReLU()),
    ), 128


BACKBONES: dict[str, Callable[[Sequence[int], float], tuple[nn.Module, int]]] = {
    "small": small,
    "3conv-2fc": three_conv_two_fc,
    "mlp": mlp,
}
RESNETS = ("resnet18", "resnet50", "resnet101")


def build_backbone(
    name: str, shape: Sequence[int], domains: int, *, dropout: float = 0.5, weights: str = "none"
) -> Backbone:
    """Build a backbone by name for samples of `shape`, ``(3, H, W)`` or ``(F,)``, of `domains` domains.

    Args:
        name: One of `BACKBONES` or `RESNETS`.
        shape: Shape of one sample.
        domains: Number of domains, the target included.
        dropout: Dropout probability inside the network (ResNets have none).
        weights: ``none``, ``imagenet`` or a ``.safetensors`` / ``.pth`` file, for ResNets.
    """
    if name not in (*BACKBONES, *RESNETS):
        raise UserError(
            f"--backbone: unknown backbone {name!r}; choose one of auto, {', '.join((*BACKBONES, *RESNETS))}"
        )
    if (len(shape) == 3) == (name == "mlp"):
        kind = "images" if len(shape) == 3 else "feature vectors"
        raise UserError(f"--backbone: {name!r} does not read {kind}; leave --backbone at auto")
    if len(shape) == 3 and min(shape[1:]) < SMALLEST:
        raise UserError(f"images of {shape[1]} x {shape[2]} pixels are too small; give --image-size {SMALLEST} or more")
    if name in RESNETS:
        body, features = _resnet(name, weights)
        return Backbone(body, features, domains, IMAGENET_MEAN, IMAGENET_STD)
    if weights != "none":
        raise UserError(f"--weights: there are no pretrained weights for the backbone {name!r}; use --weights none")
    body, features = BACKBONES[name](shape, dropout)
    return Backbone(body, features, domains, (0.5,) * 3, (0.5,) * 3)


def _resnet(name: str, weights: str) -> tuple[nn.Module, int]:
    from torchvision.models import get_model

    body = get_model(name, weights=None)
    features = int(body.fc.in_features)
    body.fc = nn.Identity()
    if weights != "none":
        _load_trunk(body, _imagenet(name) if weights == "imagenet" else _read_weights(Path(weights)), weights)
    return body, features


def _imagenet(name: str) -> dict[str, Tensor]:
    from torchvision.models import get_model_weights

    try:
        state: dict[str, Tensor] = get_model_weights(name)["IMAGENET1K_V1"].get_state_dict(
            progress=False, check_hash=True
        )
    except (OSError, RuntimeError, HTTPException) as error:
        raise UserError(
            f"--weights imagenet: the weights of {name} could not be fetched ({error}); "
            "give a file you have with --weights FILE, or train from scratch with --weights none"
        ) from error
    return state


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"--weights: no file {path}; give a .safetensors or .pth file, imagenet or none")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"--weights: {path} could not be read as weights ({reason})") from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(f"--weights: {path} does not hold a plain table of tensors; save a state_dict")
    return state


def _load_trunk(body: nn.Module, state: dict[str, Tensor], origin: str) -> None:
    """Load a trunk; the classifier head is not needed and counters of batches may be absent."""
    own = body.state_dict()
    state = {k: v for k, v in state.items() if not k.startswith("fc.")}
    missing = [k for k in own if k not in state and not k.endswith("num_batches_tracked")]
    extra = [k for k in state if k not in own]
    wrong = [
        f"{k} {tuple(v.shape)} for {tuple(own[k].shape)}"
        for k, v in state.items()
        if k in own and v.shape != own[k].shape
    ]
    for what, keys in (("lacks", missing), ("has unknown", extra), ("has ill-shaped", wrong)):
        if keys:
            raise UserError(
                f"--weights {origin}: the file {what} {', '.join(keys[:3])}"
                f"{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}; it does not fit this backbone"
            )
    body.load_state_dict({k: v.to(own[k].dtype) for k, v in state.items()}, strict=False)
