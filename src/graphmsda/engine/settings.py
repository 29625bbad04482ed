"""How a run is trained: one dataclass, from which flags, YAML keys and help are derived."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from graphmsda.backbones import BACKBONES, PRETRAINED
from graphmsda.domains import Task
from graphmsda.errors import UserError
from graphmsda.methods import complete_parameters, find_method
from graphmsda.weights import default_weights

INTERVAL = 50  # steps between two readings of the device: metrics, the guard against NaN, checkpoints
LONG, RARER = 10_000, 4  # steps of a run from which on it is read so many times as rarely: each reading waits


def option(default: Any, text: str, *choices: str) -> Any:
    """Declare a setting with its help text and, where there are few, its choices."""
    return dataclasses.field(default=default, metadata={"text": text, "choices": choices})


@dataclass(frozen=True)
class Settings:
    """Everything but the data that decides what a run becomes."""

    method: str = option("mrf", "what to train; `graphmsda methods` lists them")
    preset: str | None = option(None, "a method's named hyper-parameters, e.g. paper")
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    backbone: str = option(
        "auto", f"auto, {', '.join((*BACKBONES, *PRETRAINED))} or any classification model of torchvision by its name"
    )
    weights: str = option(
        "auto",
        "imagenet, none or a .safetensors / .pth file; auto: none for "
        f"{', '.join(BACKBONES)}, else weights/BACKBONE-imagenet* in the data root, else imagenet",
    )
    augment: str = option(
        "auto",
        "views of training images: none, weak, strong, or mixed, which is every second source image strong, others "
        "weak; auto: mixed for methods that learn from views of the target, else none",
        "auto",
        "none",
        "weak",
        "mixed",
        "strong",
    )
    dropout: float = option(0.5, "dropout inside the backbone, where it has any")
    epochs: int = option(30, "passes over the largest source")
    steps_per_epoch: int = option(0, "steps of an epoch (0: one pass over the largest source)")
    batch_size: int = option(
        0, "samples of each domain in a step (0: 128 for 3conv-2fc, 32 for small, mlp and identity, else 16)"
    )
    optimiser: str = option(
        "adam", "optimiser; adam's weight decay is coupled, as in the paper", "adam", "adamw", "sgd"
    )
    lr: float = option(0.0, "learning rate (0: 2e-4 for 3conv-2fc, 3e-3 for small, mlp and identity, else 5e-5)")
    head_lr: float = option(
        0.0, "learning rate of all that is not the backbone (0: lr, with pretrained weights ten times that)"
    )
    weight_decay: float = option(5e-4, "weight decay (never on prototypes)")
    schedule: str = option("cosine", "learning rate over the run", "cosine", "constant")
    clip: float = option(0.0, "largest gradient norm (0: no clipping)")
    average: float = option(0.99, "decay of the averaged weights used for prediction (0: none kept)")
    precision: str = option(
        "auto",
        "auto is bf16 on a GPU, and for images on CPUs that multiply in it (AVX512-BF16), else 32",
        "auto",
        "32",
        "bf16",
        "64",
    )
    seed: int = option(0, "seed of everything random")
    device: str = option("auto", "where to train", "auto", "cpu", "cuda")
    resident: str = option("auto", "keep the data on the GPU; auto: if a quarter of it holds them", "auto", "yes", "no")
    accelerate: str = option(
        "auto",
        "auto: on a GPU, capture the step and replay it, compiled where the run is long; off: step by step",
        "auto",
        "off",
    )
    devices: int = option(1, "processes per machine, one per GPU")
    nodes: int = option(1, "machines")
    checkpoint_seconds: float = option(30.0, "least seconds between checkpoints")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), field.metadata.get("choices")
            kind = {"int": int, "float": int | float, "str": str}.get(str(field.type))
            if kind is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                _require(False, field.name, value, f"a value of type {field.type}")
            _require(not choices or value in choices, field.name, value, f"one of {', '.join(choices or ())}")
        for name in ("epochs", "devices", "nodes"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number from 1")
        rates = ("lr", "head_lr", "weight_decay", "clip")
        for name in ("steps_per_epoch", "batch_size", *rates, "checkpoint_seconds"):
            _require(0 <= getattr(self, name) < float("inf"), name, getattr(self, name), "a number not below 0")
        for name in ("dropout", "average"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "a number from 0 to below 1")

    def resolved(self, task: Task, data_root: str | Path | None = None) -> Settings:
        """Return the same settings with every ``auto`` and every default decided for this task, place and machine."""
        complete_parameters(self.method, self.parameters, self.preset)  # a mistake in them is told first
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        elif device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: PyTorch finds no CUDA device on this machine; use --device cpu or auto")
        backbone = self.backbone
        if backbone == "auto":
            if not task.is_images:
                backbone = "mlp"
            elif task.target.x.shape[-1] > 64:
                backbone = "resnet18"
            else:
                backbone = "3conv-2fc" if device == "cuda" else "small"
        weights = self.weights
        if weights == "auto":
            weights = "none" if backbone in BACKBONES else default_weights(backbone, data_root)
        # Table 1 of the paper for its own backbones; what trains well within minutes for the small ones.
        batch_size = self.batch_size or {"3conv-2fc": 128, "small": 32, "mlp": 32, "identity": 32}.get(backbone, 16)
        largest = max(len(source.y) for source in task.sources)
        lr = self.lr or {"3conv-2fc": 2e-4, "small": 3e-3, "mlp": 3e-3, "identity": 3e-3}.get(backbone, 5e-5)
        return dataclasses.replace(
            self,
            parameters=complete_parameters(self.method, self.parameters, self.preset, pretrained=weights != "none"),
            device=device,
            backbone=backbone,
            weights=weights,
            augment=self.augment if self.augment != "auto" else "mixed" if find_method(self.method).views else "none",
            precision=usual_precision(device, images=task.is_images) if self.precision == "auto" else self.precision,
            lr=lr,
            head_lr=self.head_lr or (lr if weights == "none" else 10 * lr),
            batch_size=batch_size,
            steps_per_epoch=self.steps_per_epoch or max(1, largest // batch_size),
        )

    @property
    def steps(self) -> int:
        """Steps of the whole run, once resolved."""
        return self.epochs * self.steps_per_epoch

    @property
    def interval(self) -> int:
        """Steps between two readings of the device, an epoch at most."""
        return min(INTERVAL if self.steps < LONG else RARER * INTERVAL, self.steps_per_epoch)

    def is_read(self, step: int) -> bool:
        """Whether the device is read after so many steps."""
        return step % self.interval == 0 or step == self.steps


def usual_precision(device: str, *, images: bool) -> str:
    """Return what ``auto`` means: bfloat16 where the hardware multiplies in it and there is much to multiply.

    A CPU without instructions for it would convert back and forth; small networks on feature vectors gain nothing.
    """
    # Processors with AMX have AVX512-BF16, too. PyTorch keeps the question to itself.
    fast = images and getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return "bf16" if device == "cuda" or fast else "32"


# What may differ between a run and its resumption without changing what it becomes.
FREE_TO_CHANGE = ("preset", "device", "resident", "accelerate", "devices", "nodes", "checkpoint_seconds")


def read_recipe(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a YAML file with ``data`` and ``settings``, such as a run's ``config.yaml``; both may be left out."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        data, settings = dict(content.get("data") or {}), dict(content.get("settings") or {})
    except OSError as error:
        raise UserError(f"--config {path}: cannot be read ({error.strerror}); give a YAML file") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"--config {path}: not YAML with data and settings; see a run's config.yaml") from error
    known = [field.name for field in dataclasses.fields(Settings)]
    for key in settings:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise UserError(f"--config {path}: unknown setting {key!r}; {meant}")
    return data, settings


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise UserError(f"--{name.replace('_', '-')} {value}: out of range; give {expected}")
