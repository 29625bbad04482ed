"""An estimator as files: a run directory, beside whose own files ``estimator.json`` tells what those do not."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmsda.engine import folder
from graphmsda.errors import UserError
from graphmsda.estimator_arrays import InputError
from graphmsda.files import write_tensors, write_text
from graphmsda.run import Run

if TYPE_CHECKING:
    from torch import Tensor

    from graphmsda.estimator import GraphMSDAClassifier

ABOUT = "estimator.json"
TEXTS = (folder.CONFIG, folder.MODEL_ABOUT, folder.METRICS)
KINDS = "biufUO"  # of labels: truth values, numbers, strings and Python's strings


def texts_of(run: Run) -> dict[str, str]:
    """Return the text files of a run by name, so that its folder may go."""
    return {name: (run.path / name).read_text(encoding="utf-8") for name in TEXTS if (run.path / name).is_file()}


def weights_of(run: Run) -> dict[str, Tensor]:
    """Return a run's weights as its file holds them."""
    state = run.method.state_dict()
    return {k: (v.float() if v.is_floating_point() else v).cpu().contiguous() for k, v in state.items()}


def pack(run: Run) -> bytes:
    """Return a run's weights as the content of a safetensors file."""
    from safetensors.torch import save

    return save(weights_of(run))


def unpack(texts: dict[str, str], weights: bytes, device: str) -> Run:
    """Return the run of which `texts_of` and `pack` told."""
    with TemporaryDirectory(prefix="graphmsda-") as out:
        for name, content in texts.items():
            (Path(out) / name).write_text(content, encoding="utf-8")
        (Path(out) / folder.MODEL).write_bytes(weights)
        return in_full(Run.load(out, device=device))


def in_full(run: Run) -> Run:
    """Let feature vectors be read in double precision, so that a row's answer depends on no other to the last digit."""
    if len(run.about["shape"]) == 1:
        run.method.double()
    return run


def write(estimator: GraphMSDAClassifier, texts: dict[str, str], path: Path) -> None:
    """Write a fitted estimator to a folder."""
    arguments = estimator.get_params(deep=False)
    seed = arguments["random_state"]
    arguments["random_state"] = int(seed) if isinstance(seed, int | np.integer) else None
    labels = estimator.classes_
    names = getattr(estimator, "feature_names_in_", None)
    about = {
        "format": 1,
        "arguments": arguments,
        "classes": {"dtype": "O" if labels.dtype.kind == "O" else labels.dtype.str, "values": labels.tolist()},
        "source_domains": estimator.source_domains_.tolist(),
        "feature_names": None if names is None else names.tolist(),
    }
    try:
        text = json.dumps(about, indent=2, ensure_ascii=False, default=_plain)
    except TypeError as error:
        raise InputError(f"save: an argument or label is not plain data ({error}); give numbers or strings") from error
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / ABOUT).is_file())):
        raise UserError(f"{path}: something is there that is no saved estimator; choose another folder")
    remedy = "choose another folder"
    for name, content in texts.items():
        write_text(path / name, content, remedy)
    write_tensors(path / folder.MODEL, weights_of(estimator.run_))
    write_text(path / ABOUT, text + "\n", remedy)


def read(path: Path, run: Run) -> dict[str, Any]:
    """Return what ``estimator.json`` tells, or for a run of ``graphmsda fit`` the same from its own files."""
    file = path / ABOUT
    if not file.is_file():
        known = run.about["settings"]
        own = {name: known[name] for name in ("method", "backbone", "epochs")}
        return {
            "arguments": own | {"params": dict(known["parameters"]), "random_state": known["seed"]},
            "classes": np.array(run.classes, dtype=object),
            "source_domains": np.arange(len(run.domains) - 1),
            "feature_names": run.about.get("feature_names"),
        }
    try:
        about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        labels, sources = about["classes"], np.array(about["source_domains"], dtype=np.int64)
        if about["format"] != 1 or np.dtype(labels["dtype"]).kind not in KINDS:
            raise ValueError("it is of another version")
        classes = np.array(labels["values"], dtype=labels["dtype"])
        if classes.shape != (len(run.classes),) or sources.shape != (len(run.domains) - 1,):
            raise ValueError("it tells of another model")
        names = about["feature_names"]
        arguments = dict(about["arguments"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{file} is damaged ({error}); save the estimator anew") from error
    return {"arguments": arguments, "classes": classes, "source_domains": sources, "feature_names": names}


def _plain(value: Any) -> Any:
    """Return a NumPy number as Python's, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
