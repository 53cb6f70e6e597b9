"""Values and nodes of standard ops, made by their schemas."""

import onnx_ir as ir

from linger.graph.core.tensor_types import find_schema, make_attributes, parse_types


def value(name, text):
    kind, shape = parse_types({name: text})[name]
    return ir.Value(name=name, type=kind, shape=shape)


def node(op_type, *inputs, opset=17, **attributes):
    schema = find_schema(op_type, "", opset)
    attrs = make_attributes(op_type, attributes, schema)
    made = ir.Node("", op_type, inputs, attributes=attrs)
    made.outputs[0].name = "y"
    return made, schema
