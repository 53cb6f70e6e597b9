"""Axes, biases and products in the forms that chips take: every tensor keeps its integers."""

import math
from functools import partial

import numpy as np
import onnx_ir as ir
import pytest

from linger.graph.passes.chip_axes import (
    count_axes_from_the_front,
    flatten_products,
    give_transposed_biases,
    pad_more_axes,
    reserve_scratch,
    slice_parts,
)
from linger.runtime.reference import Reference
from tests.support.chip_forms import (
    EXACT,
    attributes,
    constant,
    differing,
    everything,
    feeds_of,
    graph_of,
    kept,
    left_alone,
    node,
    numbers,
)
from tests.support.onnx_text import parse, printed

# axes that are counted from the back


@pytest.mark.parametrize(
    ("op", "shape", "axes", "forward"),
    [
        pytest.param("Squeeze", "2,3,1", [-1], [2], id="squeeze the last"),
        pytest.param("Squeeze", "1,3,1,4", [-2, 0], [0, 2], id="squeeze two, one from the front"),
        pytest.param("Unsqueeze", "2,3", [-1], [2], id="unsqueeze behind"),
        pytest.param("Unsqueeze", "2,3", [-3], [0], id="unsqueeze before"),
        pytest.param("Unsqueeze", "2,3", [-1, -4], [0, 3], id="unsqueeze two"),
        pytest.param("Unsqueeze", "2,n", [-2], [1], id="open size"),
    ],
)
@pytest.mark.parametrize("opset", [12, 13])
def test_axes_are_counted_from_the_front(draw, op, shape, axes, forward, opset):
    if opset < 13:
        model = graph_of(f"a = {op}<axes={axes}>(x) y = thinker.Relu(a)", inputs=f"int8[{shape}] x")
    else:
        given = {"axes": np.array(axes, np.int64)}
        model = graph_of(f"a = {op}(x, axes) y = thinker.Relu(a)", inputs=f"int8[{shape}] x", opset=13, **given)
    text = f"its axes {axes} became {forward}, because axes are counted from the front"
    assert kept(count_axes_from_the_front, model, draw) == [(f"a ({op})", text)]
    first = next(iter(model.graph))
    if opset < 13:
        assert attributes(model, "axes") == [forward]
    else:
        assert list(model.graph.initializers) == [first.inputs[1].name]
        assert constant(model, first.inputs[1].name).tolist() == forward


def test_axes_in_a_constant_node_that_two_nodes_read(draw):
    body = "k = Constant<value = int64[1] {-1}>() a = Unsqueeze(x, k) c = Unsqueeze(a, k) y = thinker.Relu(c)"
    model = graph_of(body, inputs="int8[2,3] x", opset=13)
    assert len(kept(count_axes_from_the_front, model, draw)) == 2
    assert [n.op_type for n in model.graph] == ["Unsqueeze", "Unsqueeze", "Relu"]
    assert sorted(v.const_value.numpy().tolist() for v in model.graph.initializers.values()) == [[2], [3]]


def test_an_axis_of_the_input_instead_of_the_output_would_be_noticed(draw):
    model = graph_of("a = Unsqueeze<axes=[-1]>(x) y = thinker.Relu(a)", inputs="int8[2,3] x")
    feeds = feeds_of(model, draw)
    before = everything(model, feeds)
    next(iter(model.graph)).attributes["axes"] = ir.AttrInt64s("axes", [1])
    assert differing(before, everything(model, feeds)) == ["a", "y"]


@pytest.mark.parametrize(
    ("body", "inputs", "opset"),
    [
        pytest.param("y = Squeeze<axes=[0]>(x)", "int8[1,3] x", 12, id="from the front"),
        pytest.param("y = Squeeze(x)", "int8[1,3] x", 12, id="no axes"),
        pytest.param("y = Squeeze<axes=[-1]>(x)", "int8[] x", 12, id="rank not known"),
        pytest.param("y = Squeeze(x, k)", "int8[1,3] x, int64[1] k", 13, id="computed"),
        pytest.param("y = Squeeze<axes=[-3]>(x)", "int8[1,3] x", 12, id="no such axis"),
        pytest.param("y = Concat<axis=-1>(x, x)", "int8[1,3] x", 12, id="another op"),
    ],
)
def test_other_axes_are_left_alone(body, inputs, opset):
    assert left_alone(count_axes_from_the_front, graph_of(body, inputs=inputs, opset=opset))


def test_axes_that_the_caller_may_exchange_are_left_alone():
    model = graph_of("y = Squeeze(x, k)", inputs="int8[3,1] x", opset=13, k=np.array([-1], np.int64))
    model.graph.inputs.append(model.graph.initializers["k"])
    assert left_alone(count_axes_from_the_front, model)


# biases of transposed convolutions


UP = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1], "dilations": [1, 1]}


def transposed(draw, operands="x, w", group=1, **constants):
    """One transposed convolution of 4 channels to 6."""
    body = node("thinker.ConvTranspose2dInt", "y", operands, **EXACT, **UP, group=group)
    name = operands.split(", ")[1]
    given = {name: numbers(draw, (4, 6 // group, 3, 3)), **constants}
    return graph_of(body, inputs="int8[1,4,5,4] x", **given)


@pytest.mark.parametrize("group", [1, 2])
def test_a_transposed_convolution_gets_a_bias(draw, group):
    model = transposed(draw, group=group)
    text = "got a bias of zeros, because a transposed convolution must have one"
    assert kept(give_transposed_biases, model, draw) == [("y (ConvTranspose2dInt)", text)]
    assert list(model.graph.initializers) == ["w", "w.bias"]
    np.testing.assert_array_equal(constant(model, "w.bias"), np.zeros(6, np.int32))
    assert constant(model, "w.bias").dtype == np.int32


@pytest.mark.parametrize(
    ("weight", "bias"),
    [("up.weight", "up.bias"), ("weight", "bias"), ("taps", "taps.bias")],
    ids=["layer", "top", "other"],
)
def test_a_bias_is_named_after_its_weight(draw, weight, bias):
    model = transposed(draw)
    model.graph.initializers["w"].name = weight
    give_transposed_biases(model)
    assert list(model.graph.initializers) == [weight, bias]


def test_a_name_that_is_taken_gets_a_number(draw):
    model = transposed(draw)
    model.graph.inputs[0].name = "w.bias"
    kept(give_transposed_biases, model, draw)
    assert list(model.graph.initializers) == ["w", "w.bias_1"]


def test_a_bias_that_is_left_out_by_name_is_filled_in(draw):
    model = transposed(draw)
    (only,) = model.graph
    only.resize_inputs(3)
    kept(give_transposed_biases, model, draw)
    assert [value.name for value in only.inputs] == ["x", "w", "w.bias"]


def test_a_bias_stays(draw):
    assert left_alone(give_transposed_biases, transposed(draw, "x, w, b", b=np.arange(6, dtype=np.int32)))


def test_a_weight_of_unknown_shape_gets_no_bias():
    body = node("thinker.ConvTranspose2dInt", "y", "x, w", **EXACT, **UP, group=1)
    assert left_alone(give_transposed_biases, graph_of(body, inputs="int8[1,4,5,4] x, int8[4,n,3,3] w"))


# products of many axes


PRODUCT = {"scale_x": 1.0, "scale_y": 1.0, "scale_o": 1.0, "o_bits": 32}
LINEAR = node("thinker.LinearInt", "y", "x, w, b", **EXACT)
MATRICES = node("thinker.BmmInt", "y", "p, q", **PRODUCT)


def weights(draw):
    return {"w": numbers(draw, (5, 4)), "b": draw.integers(-9000, 9000, 5).astype(np.int32)}


@pytest.mark.parametrize("shape", ["2,3,6,4", "1,1,1,4", "2,1,3,2,4"])
def test_rows_of_a_linear_layer_are_put_below_each_other(draw, shape):
    model = graph_of(LINEAR, inputs=f"int8[{shape}] x", **weights(draw))
    sizes = [int(n) for n in shape.split(",")]
    text = f"its {len(sizes)} axes became 3, between Reshapes, because a factor must not have more than 3"
    assert kept(flatten_products, model, draw) == [("y (LinearInt)", text)]
    rows = int(np.prod(sizes[:-1]))
    assert [line.partition("<")[0].partition("(")[0] for line in printed(model)] == [
        "y.x_flat_shape=Constant",
        "y.x_flat=Reshape",
        "y.flat=thinker.LinearInt",
        "y.flat_shape=Constant",
        "y=Reshape",
    ]
    assert [n.attributes["value"].as_tensor().numpy().tolist() for n in model.graph if n.op_type == "Constant"] == [
        [1, rows, 4],
        [*sizes[:-1], 5],
    ]


def test_matrices_are_put_behind_each_other(draw):
    model = graph_of(MATRICES, inputs="int8[2,3,5,4] p, int8[2,3,4,6] q")
    text = "its 4 axes became 3, between Reshapes, because a factor must not have more than 3"
    assert kept(flatten_products, model, draw) == [("y (BmmInt)", text)]
    constants = [n.attributes["value"].as_tensor().numpy().tolist() for n in model.graph if n.op_type == "Constant"]
    assert constants == [[6, 5, 4], [6, 4, 6], [2, 3, 5, 6]]


def test_a_product_in_the_middle_keeps_its_name_and_its_readers(draw):
    body = f"p = thinker.Relu(x) {MATRICES.replace('y =', 'a =')} y = thinker.Relu(a) z = Transpose<perm=[0,1,3,2]>(a)"
    model = graph_of(body, inputs="int8[1,2,5,4] x, int8[1,2,4,6] q", outputs="y, z, a")
    (product,) = (n for n in model.graph if n.op_type == "BmmInt")
    product.name = "block.matmul.BmmInt"
    kept(flatten_products, model, draw)
    assert product.name == "block.matmul.BmmInt"
    assert [reader.op_type for reader, _ in product.outputs[0].uses()] == ["Reshape"]
    assert sorted(reader.op_type for output in model.graph.outputs[2:] for reader, _ in output.uses()) == [
        "Relu",
        "Transpose",
    ]


def test_another_number_of_axes(draw):
    model = graph_of(LINEAR, inputs="int8[2,3,4] x", **weights(draw))
    kept(partial(flatten_products, most_axes=2), model, draw)
    assert [line.split("{")[1] for line in printed(model) if "Constant" in line] == ["6,4}>()", "2,3,5}>()"]
    model = graph_of(MATRICES, inputs="int8[2,2,3,5,4] p, int8[2,2,3,4,6] q")
    kept(partial(flatten_products, most_axes=4), model, draw)
    shapes = [line.split("{")[1] for line in printed(model) if "Constant" in line]
    assert shapes == ["1,12,5,4}>()", "1,12,4,6}>()", "2,2,3,5,6}>()"]
    assert left_alone(partial(flatten_products, most_axes=2), graph_of(MATRICES, inputs="int8[2,5,4] p, int8[2,4,6] q"))


@pytest.mark.parametrize(
    ("p", "q"),
    [
        pytest.param("2,5,4", "2,4,6", id="three axes"),
        pytest.param("2,3,5,4", "1,3,4,6", id="repeated batch"),
        pytest.param("2,3,5,4", "3,4,6", id="fewer axes"),
        pytest.param("2,3,5,4", "4,6", id="one matrix"),
        pytest.param("n,3,5,4", "n,3,4,6", id="open size"),
        pytest.param("0,3,5,4", "0,3,4,6", id="nothing"),
    ],
)
def test_other_products_are_left_alone(p, q):
    assert left_alone(flatten_products, graph_of(MATRICES, inputs=f"int8[{p}] p, int8[{q}] q"))


def test_open_rows_of_a_linear_layer_are_left_alone(draw):
    assert left_alone(flatten_products, graph_of(LINEAR, inputs="int8[n,2,3,4] x", **weights(draw)))


def test_rows_in_another_order_would_be_noticed(draw):
    model = graph_of(LINEAR, inputs="int8[2,3,6,4] x", **weights(draw))
    feeds = feeds_of(model, draw)
    before = everything(model, feeds)
    flatten_products(model)
    last = [n for n in model.graph if n.op_type == "Constant"][-1]
    last.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.array([3, 2, 6, 5])))
    assert differing(before, everything(model, feeds)) == ["y"]


@pytest.mark.parametrize("axis", [1, -3])
def test_parts_of_a_split_are_slices(axis):
    body = f"a, y = Split<axis = {axis}, split = [3, 5]>(x) b = Relu(a)"
    model = parse(body, inputs="int8[1,8,2,3] x", outputs="int8[1,5,2,3] y, int8[1,3,2,3] b", opset=12)
    x = np.arange(48, dtype=np.int8).reshape(1, 8, 2, 3)
    before = Reference(model).run({"x": x})
    assert [change.what for change in slice_parts(model)] == ["its 2 parts became Slices"]
    assert [n.op_type for n in model.graph if n.op_type != "Constant"] == ["Slice", "Slice", "Relu"]
    after = Reference(model).run({"x": x})
    assert all(np.array_equal(after[name], before[name]) for name in ("y", "b"))
    assert len(slice_parts(model)) == 0


def test_parts_of_an_open_size_stay():
    model = parse("a, y = Split<axis = 1>(x) b = Relu(a)", inputs="int8[1,n] x", outputs="y, b", opset=12)
    assert len(slice_parts(model)) == 0


# borders


def border(draw, inputs, pads):
    """A border around x."""
    given = {"pads": np.array(pads, np.int64), "value": np.array(0, np.int8)}
    return graph_of("y = thinker.iqPad(x, pads, value)", inputs=f"int8[{inputs}] x", **given)


@pytest.mark.parametrize(
    ("inputs", "pads", "wider"),
    [("1,3,5", [0, 0, 2, 0, 0, 1], [0, 0, 0, 2, 0, 0, 0, 1]), ("2,5", [1, 0, 0, 3], [1, 0, 0, 0, 0, 0, 0, 3])],
    ids=["a signal", "rows"],
)
def test_borders_are_of_four_axes(draw, inputs, pads, wider):
    model = border(draw, inputs, pads)
    ((where, what),) = kept(pad_more_axes, model, draw)
    assert (where, "axes became 4, between Reshapes" in what) == ("y (iqPad)", True)
    (pad,) = (n for n in model.graph if n.op_type == "iqPad")
    assert pad.inputs[1].producer().attributes["value"].as_tensor().numpy().tolist() == wider
    assert "pads" not in model.graph.initializers


@pytest.mark.parametrize(
    ("inputs", "pads"), [("1,2,3,4", [0] * 8), ("1,n,5", [0, 0, 2, 0, 0, 1])], ids=["four axes", "open"]
)
def test_other_borders_are_left_alone(draw, inputs, pads):
    assert left_alone(pad_more_axes, border(draw, inputs, pads))


# scratch


def norm(draw, shape, dtype="int8"):
    """A layer norm over the last axis of x."""
    count = int(shape.rpartition(",")[2])
    given = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_w": 64.0, "scale_o": 16.0}
    constants = {"w": numbers(draw, (count,)), "b": draw.integers(-9000, 9000, count).astype(np.int32)}
    return graph_of(node("thinker.LayerNormInt", "y", "x, w, b", **given), inputs=f"{dtype}[{shape}] x", **constants)


@pytest.mark.parametrize(
    ("shape", "needed", "weight"),
    [("1,1,32", 256, (16, 8)), ("1,2,32", 256, (8, 8)), ("1,1,32", 257, (24, 8)), ("1,1,7", 56, (14, 7)), ("1,1,25", 200, (50, 25))],
    ids=["one row", "two rows", "one byte more", "a prime number", "no short rows"],
)  # fmt: skip
def test_a_product_with_the_identity_reserves_scratch(draw, shape, needed, weight):
    model = norm(draw, shape)
    pass_once = partial(reserve_scratch, missing={model.graph[0]: needed}, per_number=4)
    before = everything(model, feeds := feeds_of(model, draw))
    ((where, what),) = pass_once(model).rows()
    assert differing(before, everything(model, feeds)) == []
    assert constant(model, "y.scratch.weight").shape == weight
    (product,) = (n for n in model.graph if n.op_type == "LinearInt")
    rows = math.prod(map(int, shape.split(","))) // weight[1]
    assert 4 * rows * weight[0] >= needed > 4 * rows * (weight[0] - weight[1])
    assert where == "y (LayerNormInt)"
    assert f"reserves {4 * rows * weight[0]} bytes of scratch ({needed} are written)" in what
    assert [n.op_type for n in model.graph].count("Slice") == (weight[0] > weight[1])
    assert product.name == "y.scratch.LinearInt"


@pytest.mark.parametrize(("shape", "dtype"), [("1,n,32", "int8"), ("1,1,32", "int16")], ids=["open", "wide"])
def test_layers_of_open_sizes_or_wide_numbers_get_none(draw, shape, dtype):
    model = norm(draw, shape, dtype)
    assert left_alone(partial(reserve_scratch, missing={model.graph[0]: 256}, per_number=4), model)
