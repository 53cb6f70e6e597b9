"""Models written as ONNX text: in, out, and run."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from linger.graph.core.tensor_types import type_of as type_of
from linger.graph.lowering.bodies import attach_functions as attach_functions
from linger.runtime.session import make_session_options


def parse(body, *, inputs="float[n] x", outputs="float[n] y", extra="", domains="", opset=17):
    """A model from the nodes of its main graph."""
    text = f'<ir_version: 8, opset_import: ["": {opset}{domains}]> g ({inputs}) => ({outputs}) {extra} {{ {body} }}'
    return ir.from_proto(onnx.parser.parse_model(text))


def printed(model):
    """The nodes of the main graph as text, one line each, without node names and spaces."""
    graph = ir.to_proto(model).graph
    for node in graph.node:
        node.ClearField("name")
    return ["".join(onnx.printer.to_text(node).replace('"', "").split()) for node in graph.node]


def content(model):
    """Everything a model is, for comparing before and after."""
    return ir.to_proto(model).SerializeToString(deterministic=True)


def checked(model):
    """The model, after onnx's own full check and a round trip through text."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def run(model, **feeds):
    """The outputs that stock ONNX Runtime computes."""
    session = ort.InferenceSession(
        checked(model).SerializeToString(), make_session_options(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {name: np.asarray(x) for name, x in feeds.items()})


BRANCH = """
  a = Exp(x)
  c = Constant<value = bool {1}>()
  y = If(c)<
    then_branch = t () => (float[n] p) { k = Neg(a) p = Abs(k) },
    else_branch = e () => (float[n] q) { q = Neg(a) }
  >
"""
"""A model whose branches capture the tensor `a`."""
