"""A run in the formats of others: ONNX, TorchScript and plain weights, each one file that says what it is."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmsda import __version__
from graphmsda.backbones import Backbone
from graphmsda.engine.folder import CONFIG, METRICS, MODEL, MODEL_ABOUT
from graphmsda.errors import UserError
from graphmsda.export.graph import Graph, Reading, domain_names, random_samples, traceable
from graphmsda.export.script import scripted
from graphmsda.files import replacing, write_tensors
from graphmsda.run import Run

INPUT, OUTPUTS = "samples", ("class_probabilities", "domain_probabilities")
ABOUT = "graphmsda"  # under which a file keeps its description, as JSON
TOLERANCE = 1e-4  # of probabilities: an exported model that differs by more is not written
LARGEST = 2**31 - 1  # samples in a batch: PyTorch 2.6 refuses to promise that it works for every whole number
WRITES_ONNX = "2.7"  # PyTorch 2.6 and today's onnxscript do not understand each other's batch normalisation
CHECKED = (1, 7)  # samples of the batches on which that is tried: two sizes that no exporter has seen


def describe(run: Run) -> dict[str, Any]:
    """Return what every exported file says of itself: JSON-able.

    ``shape`` is that of one sample, ``classes`` and ``domains`` name the columns of the two results.
    """
    images = len(run.about["shape"]) == 3
    about = {
        "format": 1,
        "graphmsda": __version__,
        "method": run.about["method"],
        "backbone": run.about["backbone"],
        "classes": list(run.classes),
        "domains": list(domain_names(run)),
        "target": run.domains[-1],
        "shape": list(run.about["shape"]),
        "input": "uint8, RGB, (N, 3, H, W)" if images else "float32, (N, F)",
    }
    names = run.about.get("feature_names")
    return about | ({} if names is None else {"feature_names": list(names)})


def write_onnx(run: Run, file: Path) -> float:
    """Write a run as ONNX for any batch size; return how far its probabilities are from the run's at most."""
    need("onnx", "onnxscript", "onnxruntime")
    _check(run, file)
    if torch.__version__ < WRITES_ONNX:
        raise UserError(
            f"--format onnx: PyTorch {torch.__version__} is installed, {WRITES_ONNX} or later is needed to write ONNX; "
            "update torch or use --format torchscript"
        )
    import onnx

    with _explained(run, "onnx"):
        program = torch.onnx.export(
            _program(run), dynamo=True, optimize=True, verbose=False, input_names=[INPUT], output_names=list(OUTPUTS)
        )
        model = _cleaned(program.model_proto)  # type: ignore[union-attr]
    onnx.helper.set_model_props(model, {ABOUT: json.dumps(describe(run))})
    with replacing(file) as beside:
        try:
            beside.write_bytes(model.SerializeToString())
        except ValueError as error:
            raise UserError(
                f"{run.path}: its weights take more than the 2 GB that one ONNX file can hold; use --format torchscript"
            ) from error
        return _verified(run, read_onnx(beside))


def write_torchscript(run: Run, file: Path) -> float:
    """Write a run as TorchScript for any batch size; return how far its probabilities are from the run's at most."""
    _check(run, file)
    with _explained(run, "torchscript"), replacing(file) as beside:
        module = scripted(_program(run))
        module.save(str(beside), _extra_files={f"{ABOUT}.json": json.dumps(describe(run))})
        return _verified(run, read_torchscript(beside))


def write_safetensors(run: Run, file: Path) -> None:
    """Write the weights alone: the network's as ordinary layers with the target's batch statistics, and the method's.

    ``body.*`` are the network's, of a ResNet under torchvision's names, ``method.*`` what the method adds to it.
    """
    _check(run, file)
    backbones = [f"{name}." for name, part in run.method.named_modules() if isinstance(part, Backbone)]
    own = {
        f"method.{name}": tensor
        for name, tensor in run.method.state_dict().items()
        if not name.startswith(tuple(backbones))
    }
    write_tensors(file, Graph(run).state_dict() | own, describe(run))


def read_onnx(file: Path) -> Reading:
    """Return what runs an exported ONNX file by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def read(x: Tensor) -> tuple[Tensor, Tensor]:
        classes, domains = session.run(list(OUTPUTS), {INPUT: x.numpy()})
        return torch.from_numpy(classes), torch.from_numpy(domains)

    return read


def read_torchscript(file: Path) -> Reading:
    """Return what runs an exported TorchScript file."""
    module = torch.jit.load(str(file))  # type: ignore[no-untyped-call]
    return lambda x: module(x)


def need(*packages: str) -> None:
    """Refuse to go on without packages that only an extra brings."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UserError(
            f"--format onnx: the package {missing[0]} is not installed; run `pip install 'graphmsda[export]'` first"
        )


def _check(run: Run, file: Path) -> None:
    """Refuse to write over what the run itself needs, and runs that are not where an exporter wants them."""
    own = {(run.path / name).resolve() for name in (CONFIG, METRICS, MODEL, MODEL_ABOUT)}
    if file.resolve() in own:
        raise UserError(f"--out {file}: a file of the run itself is there; choose another file")
    if run.device.type != "cpu":
        raise UserError(f"{run.path}: is loaded on {run.device}; load it with device='cpu' to export it")


def _program(run: Run) -> torch.export.ExportedProgram:
    # Strict: otherwise `len` of a batch would be a constant, as Python wants a whole number from it.
    sample = random_samples(run, 3)
    with traceable(), torch.no_grad():
        batch = {0: torch.export.Dim("batch", max=LARGEST)}
        return torch.export.export(Graph(run), (sample,), dynamic_shapes=(batch,), strict=True)


def _verified(run: Run, read: Reading) -> float:
    """Compare with `Run.predict` on noise and return the largest difference, refusing one that is too large."""
    largest = 0.0
    for count in CHECKED:
        x = random_samples(run, count, seed=count)
        classes, _ = read(x)
        images = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
        largest = max(largest, float((classes - run.predict(images.numpy()).probabilities).abs().max()))
    if not largest <= TOLERANCE:
        raise UserError(
            f"{run.path}: the exported model's probabilities differ from the run's by {largest:.1g}, more than "
            f"{TOLERANCE:g}; nothing was written; use another --format"
        )
    return largest


def _cleaned(model: Any) -> Any:
    """Take out of an ONNX model what is of no use to others: paths of this machine, traces, names of closures."""
    graph = model.graph
    del graph.value_info[:], graph.metadata_props[:]
    names = {tensor.name: f"constant_{number}" for number, tensor in enumerate(graph.initializer)}
    names = {old: new for old, new in names.items() if old.startswith("L__self__")}
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


@contextmanager
def _explained(run: Run, format: str) -> Iterator[None]:
    """Keep exporters quiet, and turn what they raise into one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (UserError, OSError):
        raise
    except Exception as error:  # exporters raise nearly anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        others = "torchscript or safetensors" if format == "onnx" else "safetensors"
        raise UserError(
            f"{run.path}: {run.about['method']} on {run.about['backbone']} could not be exported to {format} "
            f"({reason}); use --format {others}"
        ) from error
    finally:
        logging.disable(before)
