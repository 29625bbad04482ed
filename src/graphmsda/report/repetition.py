"""The last section of a run's report: how to do it again."""

from __future__ import annotations

import dataclasses
import platform
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graphmsda import __version__
from graphmsda.engine import folder
from graphmsda.engine.settings import FREE_TO_CHANGE, Settings, usual_precision
from graphmsda.environment import hardware
from graphmsda.errors import UserError
from graphmsda.figures.runs import told
from graphmsda.methods import complete_parameters
from graphmsda.report.material import Material
from graphmsda.report.page import Section
from graphmsda.report.parts import code, details, download, facts, paragraph, table

DECIDED = ("weights", "lr", "head_lr", "batch_size", "steps_per_epoch", "augment")  # by data, method and backbone


def repetition(material: Material, command: str) -> Section:
    """Return the section with commands, versions and hardware."""
    run = material.run
    config = (run.path / folder.CONFIG).read_text(encoding="utf-8") if (run.path / folder.CONFIG).is_file() else ""
    versions = f"graphmsda {__version__}, Python {platform.python_version()}, PyTorch {torch.__version__}"
    made = run.about.get("environment") or {}
    where = {name: told(value) for name, value in made.items()} if isinstance(made, Mapping) else {}
    settings = run.about["settings"]
    standard = run.about["data"].get("standard", "multi-source")
    if standard == "multi-source":
        body = paragraph("The run, as a command:") + code(fit_command(run.about, material.task))
    else:
        body = paragraph(
            f"The run belongs to a study and its standard {standard}, which `graphmsda fit` does not have: the study's "
            "command, which the study's own report shows, makes it again."
        )
    body += paragraph("This report:") + code(command)
    body += facts(
        {
            "graphmsda at training": str(run.about.get("graphmsda", "not recorded")),
            "Trained on": ", ".join(f"{name} {value}" for name, value in where.items())
            or f"{settings.get('device')}, precision {settings.get('precision')} (the run records no more)",
            "Report made with": versions,
            "Report made on": hardware(),
            "Data fingerprint": str(run.about["data"].get("fingerprint", "not recorded")),
            "Run folder": str(run.path),
        }
    )
    parameters = (
        {name: told(value) for name, value in run.about["parameters"].items()} if "parameters" in run.about else {}
    )
    rows = [[name, told(value)] for name, value in settings.items() if name != "parameters"]
    rows += [[f"{name} (of the method)", value] for name, value in parameters.items()]
    inner = table(["Setting", "Value"], rows, caption="All settings, every default decided")
    body += details("All settings", inner)
    if config:
        body += paragraph(download("config.yaml", config, "config.yaml of the run", "application/yaml"))
    return Section("How to do it again", body, "Commands, versions, hardware and settings.")


def fit_command(about: Mapping[str, Any], task: Any = None) -> str:
    """Return the command that trains such a run again: its data, and the settings that are not the defaults."""
    data, settings = about["data"], dict(about["settings"])
    words = ["graphmsda", "fit"]
    if "task" in data:
        words += ["--task", data["task"]]
    elif "sources" in data:
        words += ["--sources", *data["sources"], "--target", data["target"]]
    for name, value in (data.get("reading") or {}).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    parameters = settings.pop("parameters", {})
    usual = dataclasses.asdict(Settings())
    if task is not None:
        # Of what is decided by data, method and machine, no flag is needed where it was left to them.
        decided = Settings(method=settings["method"], backbone=settings["backbone"], device="cpu").resolved(task)
        usual |= {name: getattr(decided, name) for name in DECIDED}
        usual["precision"] = usual_precision(settings.get("device", "cpu"), images=task.is_images)
    for name, value in settings.items():
        asked = name in ("method", "backbone", "epochs", "seed") or (
            name not in FREE_TO_CHANGE and usual.get(name) != value
        )
        if asked and value is not None and name in usual:
            words += [f"--{name.replace('_', '-')}", told(value)]
    try:
        plain = complete_parameters(settings["method"], {}, pretrained=settings.get("weights", "none") != "none")
    except UserError:
        plain = {}
    changed = [f"{name}={told(value)}" for name, value in parameters.items() if plain.get(name) != value]
    words += ["--set", *changed] if changed else []
    return shlex.join([*words, "--out", "runs/again"])


def report_command(place: Path, out: Path, given: Mapping[str, Any]) -> str:
    """Return the command that makes this report again."""
    words = ["graphmsda", "report", str(place), "--out", str(out)]
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    return shlex.join(words)
