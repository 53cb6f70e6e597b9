"""Files of the newer dialect as ONNX text, and what they compute in every way that linger has."""

import numpy as np
import onnx
import onnx_ir as ir

from linger import Session
from linger.dialect import ops
from linger.graph import load
from linger.graph.core.dialects import NEWER_OPS
from linger.graph.lowering.bodies import expand_dialect
from linger.runtime.reference import Reference

OLDER_NAMES, NEWER_NAMES = tuple(ops()), tuple(NEWER_OPS)
"""Every op of the older and of the newer dialect."""

VENUS = 'platform="venus", quant_mode="floor_add"'


def parse(body, inputs, outputs, *, extra="", opset=17):
    """A ModelProto from nodes; the IR version is that of files of its opset."""
    version = 6 if opset < 13 else 8
    used = "".join(f', "{domain}": 1' for domain in ("linger", "thinker") if f"{domain}." in body)
    head = f'<ir_version: {version}, opset_import: ["": {opset}{used}]>'
    return onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {extra} {{ {body} }}")


def computed(model, **feeds):
    """The outputs by name as lists; ONNX Runtime with bodies, expanded, and the numpy reference must agree."""
    feeds = {name: np.asarray(x) for name, x in feeds.items()}
    reference = Reference(model).run(feeds)
    expanded = load(ir.to_proto(load(model)))
    expand_dialect(expanded)
    for session in (Session(model), Session(expanded)):
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
        assert {n: (a.dtype, a.tolist()) for n, a in found.items()} == {
            n: (a.dtype, a.tolist()) for n, a in reference.items()
        }
    return {name: array.tolist() for name, array in reference.items()}


def by_numpy(model, **feeds):
    """The outputs by name as lists, by the numpy reference alone."""
    found = Reference(model).run({name: np.asarray(x) for name, x in feeds.items()})
    return {name: array.tolist() for name, array in found.items()}


def types(model):
    """(domain, op type) of the nodes of the main graph."""
    return [(node.domain, node.op_type) for node in load(model).graph]


def described(model):
    """Everything that a graph says, attributes by name: for comparing two models."""
    proto = ir.to_proto(load(model))
    nodes = [
        (
            n.domain,
            n.op_type,
            n.name,
            list(n.input),
            list(n.output),
            {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute},
        )
        for n in proto.graph.node
    ]
    interface = [
        (v.name, v.type.SerializeToString(deterministic=True)) for v in (*proto.graph.input, *proto.graph.output)
    ]
    weights = {
        t.name: (onnx.numpy_helper.to_array(t).dtype, onnx.numpy_helper.to_array(t).tobytes())
        for t in proto.graph.initializer
    }
    return nodes, interface, weights, {o.domain: o.version for o in proto.opset_import}
