"""Equal keys, equal content."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.graph.core.tensor_types import attributes_key, tensor_key


@pytest.mark.parametrize("size", [3, 1000])
def test_type_shape_and_every_number_count(size):
    content = np.arange(size, dtype=np.int16)
    other = content.copy()
    other[-1] += 1
    keys = [
        tensor_key(ir.tensor(a))
        for a in (content, other, content.reshape(1, -1), content.astype(np.int32), content.view(np.uint16))
    ]
    assert len(set(keys)) == 5
    assert tensor_key(ir.tensor(content.copy())) == keys[0]


def test_bits_count_not_values():
    assert tensor_key(ir.tensor(np.float32([0.0]))) != tensor_key(ir.tensor(np.float32([-0.0])))


def node(**attributes):
    return ir.Node("", "Op", [], [ir.Attr(name, *content) for name, content in attributes.items()])


def test_attributes_in_any_order():
    kind = ir.AttributeType
    one = node(a=(kind.INT, 1), b=(kind.FLOATS, [1.0, 2.0]))
    other = node(b=(kind.FLOATS, (1.0, 2.0)), a=(kind.INT, 1))
    assert attributes_key(one) == attributes_key(other) is not None
    assert attributes_key(one) != attributes_key(node(a=(kind.INT, 2), b=(kind.FLOATS, [1.0, 2.0])))
    assert attributes_key(node(a=(kind.INT, 1))) != attributes_key(node(a=(kind.FLOAT, 1)))


def test_graphs_and_weights_elsewhere_cannot_be_compared():
    kind = ir.AttributeType
    far = ir.ExternalTensor("gone", 0, 4, ir.DataType.FLOAT, shape=ir.Shape([1]), name="w")
    assert attributes_key(node(body=(kind.GRAPH, ir.Graph([], [], nodes=[])))) is None
    assert attributes_key(node(value=(kind.TENSOR, far))) is None


def test_references_are_known_by_what_they_refer_to():
    refs = [ir.Node("", "Op", [], [ir.RefAttr("a", name, ir.AttributeType.INT)]) for name in ("k", "k", "l")]
    keys = [attributes_key(n) for n in refs]
    assert keys[0] == keys[1] != keys[2]
