"""Transposes of many axes as Transposes of few: every number stays where it was."""

from itertools import permutations

import numpy as np
import pytest

from linger.graph.passes.chip_axes import merge_axes, turn_fewer_axes
from linger.runtime.reference import Reference
from tests.support.onnx_text import parse


def transpose(shape, perm):
    text = f"y = Transpose<perm = {list(perm)}>(x)"
    return parse(text, inputs=f"int8{list(shape)} x", outputs="y", opset=12)


def turned(model, shape):
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    return Reference(model).run({"x": x})["y"]


SHAPES = [(2, 3, 4), (12, 1, 4, 8), (1, 4, 12, 8), (2, 3, 4, 5), (1, 3, 1, 4, 2), (2, 1, 3, 1, 1), (1, 1, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.thin
def test_every_order_moves_the_same_numbers(shape):
    for perm in permutations(range(len(shape))):
        model = transpose(shape, perm)
        before = turned(model, shape)
        turn_fewer_axes(model)
        assert np.array_equal(turned(model, shape), before)
        assert turned(model, shape).shape == before.shape
        assert len(turn_fewer_axes(model)) == 0


def test_heads_of_attention_exchange_three_axes():
    model = transpose((12, 1, 4, 8), (1, 2, 0, 3))
    (change,) = turn_fewer_axes(model)
    assert "exchanges 3 axes of [12, 4, 8] instead of 4" in str(change)
    assert [n.op_type for n in model.graph if n.op_type != "Constant"] == ["Reshape", "Transpose", "Reshape"]
    (turn,) = (n for n in model.graph if n.op_type == "Transpose")
    assert turn.attributes["perm"].as_ints() == (1, 0, 2)


def test_axes_that_only_change_their_number_need_no_transpose():
    model = transpose((1, 4, 1, 8), (1, 0, 3, 2))
    turn_fewer_axes(model)
    assert "Transpose" not in [n.op_type for n in model.graph]


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((1, 4, 6, 8), (0, 2, 3, 1)),
        ((2, 3, 4, 5), (3, 2, 1, 0)),
        ((2, 3, 4), (2, 1, 0)),
        (("n", 1, 4, 8), (1, 2, 0, 3)),
    ],
    ids=["first axis in place", "four axes exchanged", "three axes", "open size"],
)
def test_others_are_left_alone(shape, perm):
    model = parse(
        f"y = Transpose<perm = {list(perm)}>(x)", inputs=f"int8[{','.join(map(str, shape))}] x", outputs="y", opset=12
    )
    assert len(turn_fewer_axes(model)) == 0


def test_axes_are_merged_by_hand():
    # (2·3) stays together and is exchanged with 4: [6, 4] → [4, 6]
    assert merge_axes([2, 3, 4], (2, 0, 1)) == ([6, 4], [1, 0])
    # the axis of size 1 between 2 and 3 does not keep them apart
    assert merge_axes([2, 1, 3, 4], (3, 0, 2, 1)) == ([6, 4], [1, 0])
