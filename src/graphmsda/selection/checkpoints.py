"""Runs that have not finished, as they stand at their checkpoint: they too can be ranked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmsda.backbones import build_backbone
from graphmsda.engine import folder
from graphmsda.engine.optim import AveragedState, averaging_weight
from graphmsda.errors import UserError
from graphmsda.files import read_tensors
from graphmsda.methods import build_method
from graphmsda.run import Run, find_device
from graphmsda.selection.data import data_of
from graphmsda.streaming import chunk_size, embed


def load_any(path: Path, device: str = "auto", **reading: Any) -> Run:
    """Load a finished run, or one that has not finished as it would be if it had ended at its checkpoint.

    Copies of a run's folder that were made while it trained are such runs, each with a checkpoint of its own.

    Args:
        path: Its folder.
        device: Where to compute.
        **reading: As of `gather`; the shape of its samples is in no file before it finishes.
    """
    if (path / folder.MODEL_ABOUT).is_file() or not (path / folder.CHECKPOINT).is_file():
        return Run.load(path, device=device)
    config, place = folder.read_config(path), find_device(device)
    settings, about = config["settings"], config["data"]
    data = data_of(about, path, **reading)
    shape, domains = list(data.target.shape[1:]), about["domains"]
    tensors, state_of = read_tensors(path / folder.CHECKPOINT)
    with torch.device("meta"):
        backbone = build_backbone(settings["backbone"], shape, len(domains), dropout=settings["dropout"])
        method = build_method(settings["method"], backbone, len(about["classes"]), len(domains), settings["parameters"])
    try:
        method.load_state_dict(_part(tensors, "method/"), assign=True)
    except RuntimeError as error:
        raise UserError(
            f"{path / folder.CHECKPOINT} does not hold the weights that {folder.CONFIG} describes; copy the whole run"
        ) from error
    before = _part(tensors, "average/")
    if before:
        average = AveragedState(method)
        for name, tensor in before.items():
            average.state[name].copy_(tensor)
        if not method.stages:  # the average is a few steps behind, and how many is known where there is one stage
            average.update(method, averaging_weight(settings["average"], int(state_of["step"])))
        method.load_state_dict(average.state)
    method.to(place).eval()
    with torch.inference_mode():
        for part in data.sources:  # as at the end of training, of these samples
            number = domains.index(part.name) if part.name in domains else 0
            size = chunk_size(shape, place)
            chunks = [slice(begin, begin + size) for begin in range(0, len(part.x), size)]
            read = ((embed(method, part.x[rows].to(place), number), part.y[rows].to(place)) for rows in chunks)
            method.remember_source(number, read)
    known = {name: settings[name] for name in ("method", "parameters", "backbone", "dropout")}
    known |= {"shape": shape, "classes": about["classes"], "domains": domains, "steps": state_of.get("step")}
    return Run(path, method, known | {"data": about, "settings": settings}, place)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    found = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in found.items()}
