"""Dialect models written as QDQ, and the ways in which ONNX Runtime may run them."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from linger.graph.lowering.bodies import expand_dialect
from linger.graph.lowering.to_qdq import to_qdq
from tests.support.samples import joined, run_numpy, single_node_model

LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
OPTIONS = {
    "default": {},
    "int8": {"session.qdqisint8allowed": "1"},
    "literal": {"session.disable_quant_qdq": "1"},
}
MODES = tuple((level, option) for level in LEVELS for option in OPTIONS)
LITERAL = tuple(mode for mode in MODES if mode[0] == "DISABLE_ALL" or mode[1] == "literal")
BRIEF = (("DISABLE_ALL", "default"), ("ENABLE_ALL", "literal"), ("ENABLE_ALL", "int8"), ("ENABLE_ALL", "default"))
STYLES = {"zero points": False, "symmetric": True}


def written(model: ir.Model, *, is_symmetric=False):
    """The model after both passes, fully checked, and the report."""
    report = to_qdq(model, is_symmetric=is_symmetric)
    expand_dialect(model)
    return finished(model), report


def finished(model: ir.Model) -> onnx.ModelProto:
    """As the exporter does: what the passes knew of types without shapes is inferred anew."""
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    onnx.checker.check_model(proto, full_check=True)
    return proto


def session(proto: onnx.ModelProto, mode=("ENABLE_ALL", "default"), **settings):
    level, option = mode
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    for key, value in OPTIONS[option].items():
        options.add_session_config_entry(key, value)
    for key, value in settings.items():
        setattr(options, key, value)
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(proto, inputs, mode):
    """The outputs as one array; inputs are named in0, in1 …"""
    made = session(proto, mode)
    return joined(made.run(None, {i.name: inputs[int(i.name[2:])] for i in made.get_inputs()}))


def assert_as_reported(op, inputs, attributes, *, is_symmetric=False, opset=13, modes=MODES):
    """One node in QDQ form: as exact as its report says, in every mode."""
    with np.errstate(invalid="ignore"):
        expected = run_numpy(op, inputs, attributes)
    proto, report = written(single_node_model(op, inputs, attributes, opset=opset), is_symmetric=is_symmetric)
    (node,) = report.nodes
    for mode in modes:
        found = run(proto, inputs, mode)
        assert found.dtype == expected.dtype
        # literally executed, only the first error counts; else the runtime chooses what it fuses
        largest = node.error if mode in LITERAL else max(node.error, node.error_fused, node.error_saturated)
        distance = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
        assert distance <= largest, (mode, node)
    return node
