"""What it means that a model was restored: the same interface, and the same bits from ONNX Runtime."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from linger import Session
from linger.checks.repair_rules import choose_rules

SPARING = tuple(rule.name for rule in choose_rules() if rule.name != "complete_types")
"""All rules but the one that declares every type, which takes most of the time."""

Outputs = list[list[np.ndarray]]


def interface(model: onnx.ModelProto) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Names and types of inputs and outputs."""
    ends = (model.graph.input, model.graph.output)
    return tuple([(t.name, t.type.tensor_type.elem_type) for t in end] for end in ends)


def outputs_of(model: onnx.ModelProto | ir.Model, feeds: list[dict[str, np.ndarray]]) -> Outputs:
    """What a model computes, node by node as it is written: fusions could round floats in another way."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = Session(model, sess_options=options)
    return [session.run(None, feed) for feed in feeds]


def as_reals(outputs: Outputs, scales: dict[int, float]) -> Outputs:
    """The same, with the real numbers of some integers: divided by their scale, rounded once."""
    return [
        [(a / np.float64(scales[i])).astype(np.float32) if i in scales else a for i, a in enumerate(one)]
        for one in outputs
    ]


def first_difference(found: Outputs, expected: Outputs) -> str | None:
    """Where two computations differ in any bit; None where they do not."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            if (a.dtype, a.shape) != (b.dtype, b.shape):
                return f"output {index}: {a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
            if a.tobytes() != b.tobytes():
                return f"output {index} of feed {number}: {a.ravel()[:8]} instead of {b.ravel()[:8]}"
    return None
