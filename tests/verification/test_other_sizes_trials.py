"""Sizes at which a file with open axes is proven: those that were named, or so many that were possible."""

import onnx_ir as ir
import pytest

from linger.errors import LingerError, UsageError
from linger.verification.feeds import OpenAxis, SizeTrials, open_axes_of

EXAMPLE = {"x": (2, 3, 9), "w": (1,)}


def file():
    x = ir.Value(name="x", shape=ir.Shape(["n", 3, None]), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="w", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT))
    stored = ir.Value(name="k", shape=ir.Shape(["k"]), const_value=ir.tensor([0.0], name="k"))
    graph = ir.Graph([x, w, stored], [], nodes=[], initializers=[stored], opset_imports={"": 18})
    return ir.Model(graph, ir_version=8)


def test_open_axes_of_a_file():
    found = open_axes_of(file(), EXAMPLE | {"k": (1,)})
    assert found == [OpenAxis("x", 0, "n", 2), OpenAxis("x", 2, "x[2]", 9)]


def test_linger_chooses_until_enough_were_possible():
    trials = SizeTrials(2)
    for number, shapes in enumerate(trials.shapes(file(), EXAMPLE)):
        trials.note(shapes, is_possible=number != 0)
    assert trials.skipped == ["x 3×3×21, w 1"]
    assert trials.tried == ["x 4×3×7, w 1", "x 4×3×11, w 1"]
    assert not trials.are_named


def test_named_sizes():
    trials = SizeTrials({"x": [(1, 3, 4), (5, 3, 8)]})
    assert list(trials.shapes(file(), EXAMPLE)) == [{"x": (1, 3, 4), "w": (1,)}, {"x": (5, 3, 8), "w": (1,)}]
    assert trials.are_named


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"y": [(1,)]}, "names y, which is no input of the file. Its inputs: x, w"),
        ({"x": [(1, 4, 5)]}, r"x of shape \(1, 4, 5\).* only 0, 2 of them open"),
        ({"w": [(2,)]}, "only none of them open"),
        ({"x": [(1, 3)]}, "the file has 3 axes there"),
    ],
)
def test_sizes_that_the_file_does_not_leave_open(sizes, message):
    with pytest.raises(UsageError, match=message):
        list(SizeTrials(sizes).shapes(file(), EXAMPLE))


def refuse_small(number, shapes):
    if shapes["x"][2] < 8:
        raise LingerError("too small")
    return number, shapes["x"]


def test_a_size_that_is_impossible_is_skipped_and_the_next_one_tried():
    trials = SizeTrials(2)
    assert list(trials.results(refuse_small, file(), EXAMPLE)) == [(0, (3, 3, 21)), (2, (4, 3, 11))]
    assert (trials.tried, trials.skipped) == (["x 3×3×21, w 1", "x 4×3×11, w 1"], ["x 4×3×7, w 1"])


def test_a_size_that_was_named_must_be_possible():
    trials = SizeTrials({"x": [(1, 3, 9), (1, 3, 4)]})
    with pytest.raises(LingerError, match="too small"):
        list(trials.results(refuse_small, file(), EXAMPLE))
    assert trials.tried == ["x 1×3×9, w 1"]
