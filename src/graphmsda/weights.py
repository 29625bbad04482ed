"""Where pretrained weights come from: torchvision, a file, or a file found beside the benchmarks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphmsda.errors import UserError

SUFFIXES = (".safetensors", ".pth", ".pt")
# What people call the layer that tells classes, and the auxiliary ones of GoogLeNet and Inception: none is needed.
HEADS = ("fc", "classifier", "head", "heads", "last_linear", "linear", "logits", "aux1", "aux2", "AuxLogits")
WRAPPERS = ("module.", "_orig_mod.", "model.", "backbone.")  # put before every name by what a network was wrapped in
NESTS = ("state_dict", "model", "model_state_dict")  # where a training checkpoint keeps its weights


def find_weights(backbone: str, root: str | Path | None = None) -> Path | None:
    """Return ``weights/BACKBONE-imagenet*`` below the data root, the shortest name of several, or None."""
    from graphmsda.data.benchmarks.benchmark import data_root

    folder = data_root(root).absolute() / "weights"
    try:
        files = [file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file()]
    except OSError:
        return None
    # `alexnet-imagenet.pth` goes before `alexnet-imagenet-features.pth`, which says that it is a part.
    fitting = [file for file in files if file.name.startswith(f"{backbone}-imagenet")]
    return min(fitting, key=lambda file: (len(file.stem), file.name), default=None)


def default_weights(backbone: str, root: str | Path | None = None) -> str:
    """Return what ``--weights auto`` means for a pretrained backbone: a file at hand, else ``imagenet``."""
    found = find_weights(backbone, root)
    return "imagenet" if found is None else str(found)


def published(backbone: str, weights: str) -> Any:
    """Return torchvision's entry for ``imagenet`` or for one of its own names, else None.

    ``imagenet`` is the first version where there are several: what the papers of this field start from.
    """
    from torchvision.models import get_model_weights

    entries = get_model_weights(backbone).__members__
    if weights == "imagenet":
        return entries.get("IMAGENET1K_V1") or entries.get("DEFAULT")
    return entries.get(weights.upper())


def fetch(backbone: str, entry: Any) -> dict[str, Tensor]:
    """Return the weights of one of torchvision's entries, from its cache or through its API."""
    try:
        state: dict[str, Tensor] = entry.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError, HTTPException) as error:
        raise UserError(
            f"--weights imagenet: the weights of {backbone} could not be fetched ({error}); "
            "give a file you have with --weights FILE, or train from scratch with --weights none"
        ) from error
    return state


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a table of tensors from a file without executing anything in it."""
    if not path.is_file():
        found = f"{path} is a folder" if path.is_dir() else f"no file {path}"
        raise UserError(f"--weights: {found}; give a .safetensors or .pth file, imagenet or none")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__).split(". ")[0]
        raise UserError(
            f"--weights: {path} could not be read as weights ({reason}); give a .safetensors file or a state_dict"
        ) from error
    nested = [content[name] for name in NESTS if name in content] if isinstance(content, Mapping) else []
    for state in (content, *nested):
        if isinstance(state, Mapping) and state and all(isinstance(v, Tensor) for v in state.values()):
            return dict(state)
    raise UserError(f"--weights: {path} does not hold a plain table of tensors; save a state_dict")


def load_trunk(body: nn.Module, head: str, state: Mapping[str, Tensor], origin: str) -> list[str]:
    """Copy weights into a network whose classifying layer, once called `head`, was cut off; return notes on it.

    The head's own weights are not needed, whatever they are called. A file may lack the fully connected part before
    the head, which then keeps its random start; anything else missing, unknown or ill-shaped is refused.
    """
    own = body.state_dict()
    state = {k: v for k, v in _plain_names(state, own).items() if k in own or k.split(".")[0] not in HEADS}
    missing = [k for k in own if k not in state and not k.endswith("num_batches_tracked")]
    extra = [k for k in state if k not in own]
    wrong = [
        f"{k} {tuple(v.shape)} for {tuple(own[k].shape)}"
        for k, v in state.items()
        if k in own and v.shape != own[k].shape
    ]
    connected = head.rpartition(".")[0]
    left = [k for k in own if connected and k.startswith(f"{connected}.")]
    partial = bool(left) and missing == left
    for what, keys in (("lacks", [] if partial else missing), ("has unknown", extra), ("has ill-shaped", wrong)):
        if keys:
            raise UserError(
                f"--weights {origin}: the file {what} {', '.join(keys[:3])}"
                f"{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}; it does not fit this backbone"
            )
    table = {k: v.to(own[k].dtype) for k, v in state.items()}
    loaded = type(own)(table)
    loaded._metadata = getattr(own, "_metadata", None)  # type: ignore[attr-defined]  # some networks ask their version
    body.load_state_dict(loaded, strict=False)
    names = sorted({k.rpartition(".")[0] for k in left})
    return [f"--weights {origin}: without {' and '.join(names)}, which start at random"] if partial else []


def _plain_names(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names that torchvision's networks have today."""
    state = {_present_name(k): v for k, v in state.items()}
    for prefix in WRAPPERS:
        if not any(k in own for k in state):
            state = {k.removeprefix(prefix): v for k, v in state.items()}
    if state and all(f"features.{k}" in own for k in state):
        state = {f"features.{k}": v for k, v in state.items()}
    return state


def _present_name(name: str) -> str:
    """Return today's name of a tensor that torchvision published under an older one (DenseNets and ViTs)."""
    name = re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2.", name)
    return re.sub(r"\.mlp\.linear_([12])\.", lambda found: f".mlp.{3 * (int(found[1]) - 1)}.", name)
