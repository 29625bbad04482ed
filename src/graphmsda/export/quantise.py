"""Eight bits a weight instead of 32: a quarter of the size, and what that costs in accuracy."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from graphmsda.domains import Samples
from graphmsda.export.formats import ABOUT
from graphmsda.export.graph import Reading
from graphmsda.files import replacing

LAYERS = ("Conv", "Gemm", "MatMul")
CHUNK = 64


def quantise(file: Path) -> None:
    """Replace an exported ONNX file by one whose network keeps its weights in 8 bits (dynamic quantisation).

    Distances to prototypes, the graph over them and the classifiers stay in full precision: they take little room, and
    a hundredth of a distance would turn predictions.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(file))
    nodes = [
        node.name
        for node in model.graph.node
        if node.op_type in LAYERS and any(name.startswith("body.") for name in node.input)
    ]
    nodes += [f"{name}_MatMul" for name in nodes]  # what a Gemm is called once it has become a product and a sum
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with replacing(file) as beside:
            quantize_dynamic(
                model,
                str(beside),
                op_types_to_quantize=list(LAYERS),
                nodes_to_quantize=nodes,
                per_channel=True,
                weight_type=QuantType.QUInt8,  # for convolutions with signed ones, onnxruntime is several times slower
            )
            written = onnx.load(str(beside))
            about = {entry.key: entry.value for entry in model.metadata_props if entry.key == ABOUT}
            onnx.helper.set_model_props(written, about)
            onnx.save(written, str(beside))
    finally:
        logging.disable(before)


@dataclass(frozen=True)
class Cost:
    """How a quantised model compares with the exact one.

    Attributes:
        count: Samples compared.
        changed: Share of samples of which they say different classes.
        before: Accuracy of the exact model, a fraction; None without labels.
        after: Accuracy of the quantised model.
    """

    count: int
    changed: float
    before: float | None = None
    after: float | None = None

    def sentence(self) -> str:
        """Return it in one sentence.

        >>> Cost(200, 0.015, 0.9, 0.895).sentence()
        'accuracy 89.5 % instead of 90.0 % of 200 samples; 1.5 % of predictions changed'
        >>> Cost(200, 0.015).sentence()
        '1.5 % of predictions changed on 200 samples without labels, so accuracy changed by at most that'
        """
        if self.before is None or self.after is None:
            return (
                f"{100 * self.changed:.1f} % of predictions changed on {self.count:,} samples without labels, so "
                "accuracy changed by at most that"
            )
        return (
            f"accuracy {100 * self.after:.1f} % instead of {100 * self.before:.1f} % of {self.count:,} samples; "
            f"{100 * self.changed:.1f} % of predictions changed"
        )


def cost(exact: Reading, quantised: Reading, x: Samples, y: Tensor | None = None) -> Cost:
    """Compare two models on samples, with labels where there are some."""
    one, two = (
        torch.cat([read(x[start : start + CHUNK])[0].argmax(1) for start in range(0, len(x), CHUNK)])
        for read in (exact, quantised)
    )
    changed = float((one != two).float().mean())
    if y is None:
        return Cost(len(x), changed)
    return Cost(len(x), changed, float((one == y).float().mean()), float((two == y).float().mean()))
