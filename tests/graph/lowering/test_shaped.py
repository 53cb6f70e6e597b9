"""Shapes of every tensor, also behind bodies that reshape by computed sizes."""

import onnx_ir as ir
import pytest

from tests.support.lowering import known_tensors
from tests.support.onnx_text import parse
from tests.support.samples import arrays, every_op, run_numpy, single_node_model, title


def result_shape(op, sample):
    """The shape of the first result; numpy's of a recurrent op holds all of them."""
    inputs = arrays(sample)
    if op.is_recurrent:
        return (*inputs[0].shape[:2], sample.attributes["hidden_size"])
    return run_numpy(op, inputs, sample.attributes).shape


@pytest.mark.parametrize("op", every_op(), ids=title)
def test_shape_of_every_op_is_that_of_its_result(op):
    sample = op.samples[0]
    model = single_node_model(op, arrays(sample), sample.attributes, opset=12)
    for value in model.graph.outputs:
        value.shape = None
    assert known_tensors(model).shapes[model.graph.outputs[0].name] == result_shape(op, sample)


def test_the_model_is_not_changed():
    (op,) = (op for op in every_op() if op.name == "LayerNormInt")
    model = single_node_model(op, arrays(op.samples[0]), op.samples[0].attributes, opset=12)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    known_tensors(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_sizes_that_a_node_only_states_take_no_memory():
    (op,) = (op for op in every_op() if op.name == "LSTMInt")
    settings = {**op.samples[0].attributes, "input_size": 10**8, "hidden_size": 10**8}
    model = single_node_model(op, arrays(op.samples[0]), settings, opset=12)
    assert known_tensors(model).shapes[model.graph.outputs[0].name][-1] == 10**8


def test_absurd_sizes_of_inputs_take_no_memory():
    model = parse("y = Shape(x)", inputs="float[2147483648] x", outputs="y")
    assert known_tensors(model).shapes["x"] == (2147483648,)
