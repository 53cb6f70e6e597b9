"""Ops that move, choose or limit numbers, and which of their tensors hold the numbers."""

import pytest

from linger.graph.qdq.qdq_node import DATA_INPUTS, data_inputs, data_outputs, is_moving
from tests.support.onnx_text import parse


def test_which_inputs_are_data():
    model = parse("a = Where(c, x, x)  b = Concat<axis = 0>(a, x, x)  y = Clip(b, x, x)", inputs="float[n] x, bool c")
    assert [data_inputs(node) for node in model.graph] == [[1, 2], [0, 1, 2], [0]]
    assert all(map(is_moving, model.graph))


def test_indices_of_a_pool_are_no_numbers():
    model = parse("y, i = MaxPool<kernel_shape = [2, 2]>(x)  a, b = Split<axis = 0>(y)", inputs="float[1,1,4,4] x")
    assert [[output.name for output in data_outputs(node)] for node in model.graph] == [["y"], ["a", "b"]]


@pytest.mark.parametrize("body", ["y = Add(x, x)", "y = com.microsoft.Relu(x)", "y = Resize(x)"])
def test_what_computes_or_is_another_domain_s_does_not_count(body):
    assert not is_moving(parse(body).graph.node(0))
    assert "Add" not in DATA_INPUTS
