"""Ops whose meaning changed between opsets: numbers worked out by hand, and ONNX Runtime."""

import numpy as np
import onnx
import pytest

from linger.errors import GraphError
from linger.runtime.reference import Reference
from tests.support.standard_op import by_reference

COLUMN = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)


def floats(*numbers):
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("opset", [7, 8, 9, 12, 13, 14, 15, 22])
def test_batch_normalization_uses_the_running_statistics(opset):
    x = floats(1, 3, 5, 7).reshape(1, 2, 2)
    found = by_reference(
        "BatchNormalization", [x, floats(1, 2), floats(0, 1), floats(1, 6), floats(4, 0.25)],
        opset=opset, epsilon=0.0, momentum=0.5,
    )  # fmt: skip
    # (1 − 1)/2, (3 − 1)/2; (5 − 6)/½·2 + 1 = −3, (7 − 6)/½·2 + 1 = 5; the statistics of the batch play no part
    assert found.tolist() == [[[0, 1], [-3, 5]]]


def of_the_batch(opset, mode, outputs):
    declared = ", ".join(f"float{shape} {name}" for name, shape in outputs.items())
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[2,1] x) => ({declared})
    <float[1] s = {{2}}, float[1] b = {{1}}, float[1] m = {{10}}, float[1] v = {{16}}> {{
      {", ".join(outputs)} = BatchNormalization<epsilon = 0.0, momentum = 0.5, {mode}>(x, s, b, m, v)
    }}"""
    found = Reference(onnx.parser.parse_model(text)).run({"x": floats(1, 5).reshape(2, 1)})
    return {name: array.reshape(-1).tolist() for name, array in found.items()}


def test_batch_normalization_of_the_batch_where_a_file_asks_for_it():
    found = of_the_batch(15, "training_mode = 1", {"y": "[a,b]", "mean": "[c]", "var": "[c]"})
    # mean 3, variance 4: (1 − 3)/2·2 + 1 = −1 and 3; the running ones move half the way: (10 + 3)/2, (16 + 4)/2
    assert found == {"y": [-1, 3], "mean": [6.5], "var": [10]}


@pytest.mark.parametrize(("is_test", "expected"), [(1, [-3.5, -1.5]), (0, [-1, 3])], ids=["running", "batch"])
def test_batch_normalization_of_opset_6_says_which_statistics(is_test, expected):
    # running: (1 − 10)/4·2 + 1, (5 − 10)/4·2 + 1
    assert of_the_batch(6, f"is_test = {is_test}", {"y": "[a,b]"}) == {"y": expected}


def test_batch_normalization_per_element():
    text = """<ir_version: 3, opset_import: ["": 7]> g (float[1,1,2] x) => (float[1,1,2] y)
    <float[1,2] s = {1, 2}, float[1,2] b = {0, 1}, float[1,2] m = {1, 3}, float[1,2] v = {1, 4}> {
      y = BatchNormalization<epsilon = 0.0, spatial = 0>(x, s, b, m, v)
    }"""
    found = Reference(onnx.parser.parse_model(text)).run({"x": floats(3, 5).reshape(1, 1, 2)})["y"]
    # (3 − 1)/1, (5 − 3)/2·2 + 1
    assert found.tolist() == [[[2, 3]]]


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [7, 11, 12, 13, 22])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_softmax_and_its_kin(op_type, opset, axis, draw):
    x = draw.normal(size=(2, 3, 4)).astype(np.float32)
    found = by_reference(op_type, [x], opset=opset, **({} if axis is None else {"axis": axis}))
    if op_type == "Softmax":
        # before opset 13 everything from the axis on shares one sum of 1
        first = 1 if axis is None else axis % 3
        over = tuple(range(first, 3)) if opset < 13 else -1 if axis is None else axis
        np.testing.assert_allclose(found.sum(axis=over), 1, rtol=1e-5)


@pytest.mark.parametrize("opset", [7, 10, 12, 22])
def test_dropout_drops_nothing_and_its_mask_is_the_runtimes(opset, draw):
    x = draw.normal(size=(2, 3)).astype(np.float32)
    assert by_reference("Dropout", [x], opset=opset, outputs=2)[0].tolist() == x.tolist()


def test_dropout_in_training_mode_is_refused_with_its_node():
    text = """<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y)
    <float r = {0.5}, bool t = {1}> { [drop] y = Dropout(x, r, t) }"""
    with pytest.raises(GraphError, match=r"cannot run .*drop.*evaluation mode"):
        Reference(onnx.parser.parse_model(text)).run({"x": floats(1, 2)})


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_and_the_first_resize(opset, mode):
    scales = floats(1, 1, 1.5, 1)
    op_type = "Resize" if opset == 10 else "Upsample"
    if opset < 9:
        found = by_reference(op_type, [COLUMN], opset=opset, mode=mode, scales=scales.tolist())
    else:
        found = by_reference(op_type, [COLUMN, scales], opset=opset, mode=mode)
    # 0, ⅔, 1⅓, 2, 2⅔, 3⅓: rounded down, or 3 at most
    expected = [0, 0, 1, 2, 2, 3] if mode == "nearest" else [0, 2 / 3, 4 / 3, 2, 8 / 3, 3]
    np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-6)


@pytest.mark.parametrize("rule", ["round_prefer_floor", "floor", "ceil", "round_prefer_ceil"])
@pytest.mark.parametrize("way", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
def test_nearest_positions_are_those_of_float32(way, rule, draw):
    x = draw.normal(size=(1, 1, 10, 7)).astype(np.float32)
    settings = {"mode": "nearest", "coordinate_transformation_mode": way, "nearest_mode": rule}
    for scales in ((1, 1, 0.6, 1.4), (1, 1, 1.5, 0.5)):
        by_reference("Resize", [x, floats(), floats(*scales)], opset=11, **settings)
    by_reference("Resize", [x, None, None, np.array([1, 1, 7, 13])], opset=13, **settings)


def test_nearest_position_that_is_whole_in_float32_alone():
    x = np.arange(10, dtype=np.float32).reshape(1, 1, 10)
    found = by_reference(
        "Resize", [x, floats(), floats(1, 1, 0.6)], opset=13,
        mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip
    # 3/0.6 is 5; with the float32 next to 0.6 and more digits it is 4.9999998
    assert found.reshape(-1).tolist() == [0, 1, 3, 5, 6, 8]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_corners_are_aligned_over_whole_lengths(mode, draw):
    x = draw.normal(size=(1, 2, 5, 6)).astype(np.float32)
    way = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    found = by_reference("Resize", [x, floats(), floats(1, 1, 0.6, 0.7)], opset=13, **way)
    # 6 · 0.7 = 4.2 gives four columns, and the last is the last of six
    np.testing.assert_allclose(found[..., -1, -1], x[..., -1, -1], rtol=1e-5)


def test_scatter_of_opset_9():
    table, places, new = np.zeros((2, 3), np.float32), np.array([[2], [0]]), floats(1, 2).reshape(2, 1)
    assert by_reference("Scatter", [table, places, new], opset=9, axis=1).tolist() == [[0, 0, 1], [2, 0, 0]]
