"""The writer: names, numbers of its own, the half unit."""

import numpy as np
import onnx_ir as ir

from linger.graph.lowering.to_qdq import _QdqWriter


def make_writer(**content):
    """A writer for a node without a name; inputs given as arrays are initializers."""
    inputs = [ir.Value(name=name, type=ir.TensorType(ir.DataType.INT8)) for name in ("x", *content)]
    for value, array in zip(inputs[1:], content.values(), strict=True):
        value.const_value = ir.tensor(array, name=value.name)
    node = ir.Node("thinker", "iqAdd", inputs, num_outputs=1)
    node.outputs[0].name = "y"
    ir.Graph(inputs[:1], node.outputs, nodes=[node], initializers=inputs[1:], opset_imports={"": 13})
    return _QdqWriter(node, {}, lambda _: 1.0)


def numbers(writer):
    return [float(value.const_value.numpy()) for value in writer.initializers]


def test_every_node_has_a_name_and_numbers_of_its_own():
    writer = make_writer()
    x = writer.input(0)
    real = writer.emit("Add", [writer.dequantize(x, 16.0), writer.dequantize(x, 16.0)])
    writer.quantize(real, 16.0)
    assert [n.op_type for n in writer.nodes] == ["DequantizeLinear", "DequantizeLinear", "Add", "QuantizeLinear"]
    names = [n.name for n in writer.nodes] + [v.name for v in writer.initializers]
    assert len(set(names)) == len(names)
    assert numbers(writer) == [1 / 16, 0, 1 / 16, 0, 1 / 16, 0]
    assert [v.dtype for v in writer.initializers[:2]] == [ir.DataType.FLOAT, ir.DataType.INT8]


def test_half_a_unit_is_added_only_where_it_rounds():
    writer = make_writer()
    writer.part(writer.input(0), source=16.0, target=16.0)
    assert [n.op_type for n in writer.nodes] == ["DequantizeLinear"]
    writer.part(writer.input(0), source=16.0, target=8.0)
    assert [n.op_type for n in writer.nodes[1:]] == ["DequantizeLinear", "Add"]
    assert numbers(writer)[-1] == 1 / 32


def test_narrow_integers_are_clipped_at_their_ends_seen_from_the_zero_point():
    writer = make_writer()
    writer.quantize(writer.input(0), 2.0, bits=4, zero_point=-128)
    assert [n.op_type for n in writer.nodes] == ["Clip", "QuantizeLinear"]
    assert numbers(writer) == [(-8 + 128) / 2, (7 + 128) / 2, 1 / 2, -128]


def test_a_32_bit_bias_has_a_32_bit_zero_point():
    writer = make_writer()
    writer.dequantize(writer.initializer([1, 2], np.int32, "bias"), 4.0)
    assert [v.dtype for v in writer.initializers] == [ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.INT32]


def test_only_what_cannot_change_is_known():
    writer = make_writer(y=np.array([3], np.int8))
    assert writer.known(1).tolist() == [3]
    assert writer.known(0) is None
    value = writer.input(1)
    writer.node.graph.inputs.append(value)  # an initializer that is an input too may be fed
    assert writer.known(1) is None
