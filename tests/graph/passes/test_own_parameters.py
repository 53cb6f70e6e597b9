"""Every node of a file for a chip has a weight and a bias of its own, side by side."""

import numpy as np
import pytest

from tests.support.chip_forms import EXACT, graph_of, kept, left_alone, node, numbers
from tests.support.passes import own_parameters

LINEAR = {"inputs": "int8[2,4] x", "outputs": "y, z"}


def linear(result, operands):
    return node("thinker.LinearInt", result, operands, **EXACT)


def biases(draw, *names):
    return {name: draw.integers(-9000, 9000, 3).astype(np.int32) for name in names}


def order(model):
    return list(model.graph.initializers)


def test_a_shared_weight_is_copied_for_the_second_node(draw):
    body = f"{linear('y', 'x, w, a')} {linear('z', 'x, w, b')}"
    model = graph_of(body, **LINEAR, w=numbers(draw, (3, 4)), **biases(draw, "a", "b"))
    assert kept(own_parameters, model, draw) == [
        ("z (LinearInt)", "got a copy of w, because nodes must not share parameters"),
        ("the graph", "lists the parameters of every node one behind the other"),
    ]
    assert order(model) == ["w", "a", "w_1", "b"]


def test_a_shared_bias_is_copied_for_the_second_node(draw):
    body = f"{linear('y', 'x, v, b')} {linear('z', 'x, w, b')}"
    model = graph_of(body, **LINEAR, v=numbers(draw, (3, 4)), w=numbers(draw, (3, 4)), **biases(draw, "b"))
    kept(own_parameters, model, draw)
    assert order(model) == ["v", "b", "w", "b_1"]


def test_nodes_that_share_everything_get_everything(draw):
    body = f"{linear('y', 'x, w, b')} {linear('z', 'x, w, b')}"
    model = graph_of(body, **LINEAR, w=numbers(draw, (3, 4)), **biases(draw, "b"))
    kept(own_parameters, model, draw)
    assert order(model) == ["w", "b", "w_1", "b_1"]


def test_parameters_that_lie_apart_are_put_side_by_side(draw):
    body = f"{linear('y', 'x, v, a')} {linear('z', 'x, w, b')}"
    given = {"v": numbers(draw, (3, 4)), "w": numbers(draw, (3, 4)), **biases(draw, "a", "b")}
    model = graph_of(body, **LINEAR, **given)
    assert order(model) == ["v", "w", "a", "b"]
    kept(own_parameters, model, draw)
    assert order(model) == ["v", "a", "w", "b"]


def test_a_weight_that_something_else_reads_is_copied(draw):
    body = f"{linear('y', 'x, w, b')} z = Flatten(w)"
    model = graph_of(body, **LINEAR, w=numbers(draw, (3, 4)), **biases(draw, "b"))
    kept(own_parameters, model, draw)
    assert [value.name for value in model.graph[0].inputs] == ["x", "w_1", "b"]


@pytest.mark.parametrize(
    "body",
    [
        f"{linear('y', 'x, w, b')} z = Relu(y)",
        f"{linear('y', 'x, w')} {linear('z', 'x, w')}",
        "y = thinker.iqAdd<scale_x=1.0, scale_y=1.0, scale_o=1.0>(x, p) z = thinker.iqAdd<scale_x=1.0, scale_y=1.0, scale_o=1.0>(x, p)",
    ],
    ids=["nothing is shared", "weights without a bias", "no parameters"],
)
def test_other_nodes_are_left_alone(draw, body):
    given = {"w": numbers(draw, (3, 4)), "p": numbers(draw, (2, 4)), **biases(draw, "b")}
    read = {name: array for name, array in given.items() if f", {name})" in body or f", {name}, " in body}
    model = graph_of(body, **LINEAR, **read)
    assert left_alone(own_parameters, model)
