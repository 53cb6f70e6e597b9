"""Kernels, groups and pools in the forms that chips take: every tensor keeps its integers."""

from functools import partial

import numpy as np
import onnx_ir as ir
import pytest

from linger.graph.core.tensor_types import infer_element_types
from linger.graph.core.window_chains import Windows, equal_chain
from linger.graph.passes.chip_windows import (
    drop_ceil_mode,
    join_groups,
    split_max_pools,
    step_global_pools_by_one,
    widen_kernels,
)
from linger.numeric.fixed import MOST_TRANSPOSED_TAPS
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

venus = partial(join_groups, reaches_kernel=True, most_groups=8)
others = partial(join_groups, reaches_kernel=False, most_groups=8)
split = partial(split_max_pools, largest=5)


def convolution(op, result, operands, window, **steps):
    """A convolution with `window` taps, plain unless steps are given."""
    axes = len(window)
    plain = {
        "kernel_shape": list(window),
        "strides": [1] * axes,
        "pads": [0] * 2 * axes,
        "dilations": [1] * axes,
        "group": 1,
    }
    return node(f"thinker.{op}", result, operands, **{**EXACT, **plain, **steps})


def shortcut(draw, shape, *, op="Conv2dInt", window=(1, 1), channels=2, outputs=3, bias=True, **steps):
    """One convolution of x by w; the shape may have open sizes."""
    operands = "x, w, b" if bias else "x, w"
    given = {"w": numbers(draw, (outputs, channels, *window))}
    if bias:
        given["b"] = draw.integers(-9000, 9000, outputs).astype(np.int32)
    body = convolution(op, "y", operands, window, **steps)
    return graph_of(body, inputs=f"int8[{shape}] x", **given)


# kernels smaller than their stride


@pytest.mark.parametrize(
    ("shape", "kernel", "pads"),
    [
        pytest.param("1,2,6,8", [2, 2], [0, 0, 0, 0], id="even"),
        pytest.param("1,2,7,5", [3, 3], [1, 1, 1, 1], id="odd"),
        pytest.param("1,2,6,7", [2, 3], [0, 1, 0, 1], id="even rows, odd columns"),
        pytest.param("n,2,h,w", [3, 3], [1, 1, 1, 1], id="open"),
        pytest.param("1,2,1,1", [3, 3], [1, 1, 1, 1], id="one pixel"),
    ],
)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_shortcut_gets_the_kernel_of_its_stride(draw, shape, kernel, pads, bias):
    model = shortcut(draw, shape, bias=bias, strides=[2, 2])
    weight = constant(model, "w")
    text = f"its kernel of 1×1 became {kernel[0]}×{kernel[1]} with zeros, because a kernel must not be smaller than its stride"
    assert kept(widen_kernels, model, draw) == [("y (Conv2dInt)", text)]
    assert attributes(model, "kernel_shape") == [kernel]
    assert attributes(model, "pads") == [pads]
    wider = constant(model, "w")
    assert wider.dtype == np.int8
    assert list(model.graph.initializers["w"].shape) == list(wider.shape) == [3, 2, *kernel]
    np.testing.assert_array_equal(wider[:, :, pads[0], pads[1]], weight[:, :, 0, 0])
    assert np.count_nonzero(wider) == np.count_nonzero(weight)


@pytest.mark.parametrize("place", [(0, 1), (1, 0), (2, 2)], ids=str)
def test_a_tap_at_a_wrong_place_would_be_noticed(draw, place):
    model = shortcut(draw, "1,2,7,7", strides=[2, 2])
    feeds = feeds_of(model, draw)
    before = everything(model, feeds)
    widen_kernels(model)
    assert differing(before, everything(model, feeds)) == []
    value = model.graph.initializers["w"]
    value.const_value = ir.tensor(np.roll(constant(model, "w"), np.subtract(place, 1), (2, 3)), name="w")
    assert differing(before, everything(model, feeds)) == ["y"]


@pytest.mark.parametrize(("size", "kernel"), [(6, 2), (7, 3)], ids=["even", "odd"])
def test_padding_counts_among_the_pixels(draw, size, kernel):
    model = shortcut(draw, f"1,2,{size},{size}", strides=[2, 2], pads=[1, 1, 1, 1])
    kept(widen_kernels, model, draw)
    assert attributes(model, "kernel_shape") == [[kernel, kernel]]
    assert attributes(model, "pads") == [[kernel - 1] * 4]


def test_kernels_of_random_convolutions_over_two_axes(draw):
    model, count = random_convolutions(draw, "Conv2dInt", 2)
    assert len(kept(widen_kernels, model, draw, in_onnx_runtime=False)) == count
    window = zip(attributes(model, "kernel_shape"), attributes(model, "strides"), strict=True)
    assert all(k >= s for kernel, strides in window for k, s in zip(kernel, strides, strict=True))


def test_kernels_of_random_convolutions_over_one_axis(draw):
    model, count = random_convolutions(draw, "Conv1dInt", 1)
    assert len(kept(widen_kernels, model, draw, in_onnx_runtime=False)) == count
    assert all(
        k >= s for (k,), (s,) in zip(attributes(model, "kernel_shape"), attributes(model, "strides"), strict=True)
    )


def random_convolutions(draw, op, axes, count=150):
    """Many convolutions side by side, and how many of them have a kernel smaller than the stride along an axis."""
    lines, inputs, constants, small = [], [], {}, 0
    for i in range(count):
        group, each = draw.integers(1, 4), draw.integers(1, 3)
        window, strides = draw.integers(1, 4, axes).tolist(), draw.integers(1, 6, axes).tolist()
        pads = draw.integers(0, 3, 2 * axes).tolist()
        sizes = [max(n, w) for n, w in zip(draw.integers(1, 12, axes).tolist(), window, strict=True)]
        constants[f"w{i}"] = numbers(draw, (group * draw.integers(1, 3), each, *window))
        inputs.append(f"int8[1,{group * each},{','.join(map(str, sizes))}] x{i}")
        steps = {"strides": strides, "pads": pads, "group": group}
        lines.append(convolution(op, f"y{i}", f"x{i}, w{i}", window, **steps))
        small += any(w < s for w, s in zip(window, strides, strict=True))
    outputs = ", ".join(f"y{i}" for i in range(count))
    return graph_of("\n".join(lines), inputs=", ".join(inputs), outputs=outputs, **constants), small


def test_a_weight_that_others_read_stays_beside_the_wider_one(draw):
    lines = [
        convolution("Conv2dInt", "a", "x, w", (1, 1), strides=[2, 2]),
        convolution("Conv2dInt", "c", "x, w", (1, 1), strides=[2, 2]),
        convolution("Conv2dInt", "d", "x, w", (1, 1)),
        convolution("Conv2dInt", "e", "z, w", (1, 1), strides=[2, 2]),
    ]
    model = graph_of(
        "\n".join(lines),
        inputs="int8[1,2,6,6] x, int8[1,2,7,7] z",
        outputs="a, c, d, e",
        w=numbers(draw, (3, 2, 1, 1)),
    )
    assert len(kept(widen_kernels, model, draw)) == 3
    assert {name: list(value.shape) for name, value in model.graph.initializers.items()} == {
        "w": [3, 2, 1, 1],
        "w_1": [3, 2, 2, 2],
        "w_2": [3, 2, 3, 3],
    }
    assert [n.inputs[1].name for n in model.graph] == ["w_1", "w_1", "w", "w_2"]


def test_weights_that_are_widened_alike_stay_one(draw):
    lines = [convolution("Conv2dInt", name, "x, w", (1, 1), strides=[2, 2]) for name in "ac"]
    model = graph_of("\n".join(lines), inputs="int8[1,2,6,6] x", outputs="a, c", w=numbers(draw, (3, 2, 1, 1)))
    assert len(kept(widen_kernels, model, draw)) == 2
    assert list(model.graph.initializers) == ["w"]


def test_a_weight_that_the_model_returns_stays_beside_the_wider_one(draw):
    model = shortcut(draw, "1,2,6,6", strides=[2, 2])
    model.graph.outputs.append(model.graph.initializers["w"])
    assert len(widen_kernels(model)) == 1
    assert {name: list(value.shape)[2:] for name, value in model.graph.initializers.items() if name != "b"} == {
        "w": [1, 1],
        "w_1": [2, 2],
    }


def test_a_weight_that_the_caller_may_exchange_stays(draw):
    model = shortcut(draw, "1,2,6,6", strides=[2, 2])
    model.graph.inputs.append(model.graph.initializers["w"])
    assert left_alone(widen_kernels, model)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param({"strides": [1, 1]}, id="stride of 1"),
        pytest.param({"window": (2, 2), "strides": [2, 2]}, id="kernel as large as the stride"),
        pytest.param({"window": (2, 2), "strides": [3, 3], "dilations": [2, 2]}, id="spread taps"),
    ],
)
def test_other_kernels_are_left_alone(draw, steps):
    assert left_alone(widen_kernels, shortcut(draw, "1,2,6,6", **steps))


def test_16_bits_stay_16_bits(draw):
    body = convolution("Conv2dInt", "y", "x, w", (1, 1), strides=[2, 2], parameter_bits=16)
    model = graph_of(body, inputs="int8[1,2,6,6] x", w=numbers(draw, (3, 2, 1, 1), np.int16))
    kept(widen_kernels, model, draw)
    assert constant(model, "w").dtype == np.int16


def test_a_wider_kernel_keeps_the_shifts_of_its_channels(draw):
    own = [0, 3, 1]
    model = shortcut(draw, "1,2,6,8", strides=[2, 2], o_bits=16, exponents_w=own)
    assert len(kept(widen_kernels, model, draw)) == 1
    assert attributes(model, "exponents_w") == [own]


# groups


def grouped(draw, group, inputs, outputs, *, op="Conv2dInt", window=(3, 3), padding=1, bias=True):
    """One grouped convolution of x by w."""
    axes = len(window)
    sizes = ",".join(["6", "5"][:axes])
    is_transposed = op == "ConvTranspose2dInt"
    shape = (inputs, outputs // group) if is_transposed else (outputs, inputs // group)
    given = {"w": numbers(draw, (*shape, *window))}
    if bias:
        given["b"] = draw.integers(-9000, 9000, outputs).astype(np.int32)
    more = {"output_padding": [0] * axes} if is_transposed else {}
    body = convolution(op, "y", ", ".join(["x", *given]), window, group=group, pads=[padding] * 2 * axes, **more)
    return graph_of(body, inputs=f"int8[2,{inputs},{sizes}] x", **given)


FEW = "with rows of padding a group must have 3 inputs, one for each kernel row"
MANY = "there must not be more than 8"


@pytest.mark.parametrize(
    ("case", "fewer", "reason"),
    [
        pytest.param((4, 8, 8), 2, FEW, id="2 inputs"),
        pytest.param((4, 4, 8), 1, FEW, id="1 input, 2 outputs"),
        pytest.param((16, 64, 64), 8, MANY, id="16 groups"),
        pytest.param((9, 27, 27), 3, MANY, id="9 groups"),
        pytest.param((11, 33, 22), 1, MANY, id="11 groups"),
        pytest.param((16, 32, 16), 8, MANY, id="16 groups of 1 output"),
        pytest.param((4, 12, 4), 2, "a group of several inputs must have several outputs", id="1 output"),
        pytest.param((2, 6, 2), 1, "a group of several inputs must have several outputs", id="2 groups of 1 output"),
    ],
)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_groups_are_joined_as_far_as_needed(draw, case, fewer, reason, bias):
    model = grouped(draw, *case, bias=bias)
    text = f"its {case[0]} groups became {fewer} with zeros, because {reason}"
    assert kept(venus, model, draw) == [("y (Conv2dInt)", text)]
    assert attributes(model, "group") == [fewer]
    assert list(model.graph.initializers["w"].shape) == [case[2], case[1] // fewer, 3, 3]
    assert constant(model, "w").dtype == np.int8


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        pytest.param((8, 8, 8), {}, id="depthwise"),
        pytest.param((64, 64, 64), {}, id="depthwise of many channels"),
        pytest.param((2, 6, 4), {}, id="3 inputs"),
        pytest.param((2, 6, 4), {"window": (3, 5)}, id="3 inputs, 3 rows of 5"),
        pytest.param((4, 8, 8), {"window": (1, 3)}, id="2 inputs, 1 row"),
        pytest.param((2, 10, 4), {"window": (5, 5), "padding": 2}, id="5 inputs, 5 rows"),
        pytest.param((4, 8, 8), {"padding": 0}, id="no padding"),
        pytest.param((4, 8, 8), {"window": (1, 1)}, id="kernel of 1"),
        pytest.param((1, 2, 3), {}, id="one group"),
        pytest.param((2, 6, 4), {"op": "Conv1dInt", "window": (3,)}, id="one axis"),
    ],
)
def test_groups_that_the_chip_has_stay(draw, case, steps):
    assert left_alone(venus, grouped(draw, *case, **steps))


@pytest.mark.parametrize(
    ("case", "window", "fewer"),
    [
        pytest.param((4, 12, 8), (4, 4), 2, id="3 inputs, 4 rows"),
        pytest.param((4, 12, 8), (5, 1), 2, id="3 inputs, 5 rows of 1"),
        pytest.param((8, 32, 16), (5, 5), 4, id="4 inputs, 5 rows"),
        pytest.param((16, 16, 32), (5, 5), 2, id="16 groups, which would become 8 of 2 inputs or 4 of 4"),
    ],
)
def test_groups_reach_the_height_of_the_kernel(draw, case, window, fewer):
    model = grouped(draw, *case, window=window, padding=2)
    kept(venus, model, draw)
    assert attributes(model, "group") == [fewer]


def test_few_inputs_stay_where_the_chip_has_them(draw):
    assert left_alone(others, grouped(draw, 4, 8, 8))


@pytest.mark.parametrize("outputs", [6, 12], ids=["one output", "two outputs"])
def test_a_depthwise_convolution_over_one_axis_is_joined(draw, outputs):
    model = grouped(draw, 6, 6, outputs, op="Conv1dInt", window=(3,))
    reason = "because a convolution over one axis must not be depthwise"
    assert kept(others, model, draw) == [("y (Conv1dInt)", f"its 6 groups became 3 with zeros, {reason}")]


@pytest.mark.parametrize("case", [(2, 4, 6), (3, 3, 3), (2, 2, 8)], ids=str)
def test_a_transposed_convolution_has_one_group(draw, case):
    model = grouped(draw, *case, op="ConvTranspose2dInt")
    reason = "because a transposed convolution must not have groups"
    assert kept(venus, model, draw) == [
        ("y (ConvTranspose2dInt)", f"its {case[0]} groups became 1 with zeros, {reason}")
    ]
    assert list(model.graph.initializers["w"].shape) == [case[1], case[2], 3, 3]


def test_transposed_sums_that_would_be_too_long_stay(draw):
    inputs = MOST_TRANSPOSED_TAPS // 9 + 1
    assert left_alone(venus, grouped(draw, 2, inputs + inputs % 2, 2, op="ConvTranspose2dInt", bias=False))


def test_groups_in_another_order_would_be_noticed(draw):
    model = grouped(draw, 4, 8, 8)
    feeds = feeds_of(model, draw)
    before = everything(model, feeds)
    venus(model)
    value = model.graph.initializers["w"]
    value.const_value = ir.tensor(np.roll(constant(model, "w"), 2, 1), name="w")
    assert differing(before, everything(model, feeds)) == ["y"]


@pytest.mark.parametrize("op", ["Conv2dInt", "Conv1dInt", "ConvTranspose2dInt"])
def test_groups_of_random_convolutions(draw, op):
    axes, is_transposed = (1 if op == "Conv1dInt" else 2), op == "ConvTranspose2dInt"
    lines, inputs, constants, shapes = [], [], {}, []
    for i in range(150):
        group, each, made = int(draw.integers(2, 13)), int(draw.integers(1, 5)), int(draw.integers(1, 4))
        window = draw.integers(1, 4, axes).tolist()
        pads = draw.integers(0, 2, 2 * axes).tolist()
        strides = draw.integers(1, 3, axes).tolist()
        shape = (group * each, made) if is_transposed else (group * made, each)
        constants[f"w{i}"] = numbers(draw, (*shape, *window))
        sizes = draw.integers(3, 6, axes).tolist()
        inputs.append(f"int8[1,{group * each},{','.join(map(str, sizes))}] x{i}")
        steps = {
            "strides": strides,
            "pads": pads,
            "group": group,
            **({"output_padding": [0, 0]} if is_transposed else {}),
        }
        lines.append(convolution(op, f"y{i}", f"x{i}, w{i}", window, **steps))
        shapes.append((group, group * each, group * made, window, pads))
    outputs = ", ".join(f"y{i}" for i in range(150))
    model = graph_of("\n".join(lines), inputs=", ".join(inputs), outputs=outputs, **constants)
    kept(venus, model, draw, in_onnx_runtime=False)
    for (before, *channels, window, pads), after in zip(shapes, attributes(model, "group"), strict=True):
        possible = [n for n in range(before, 0, -1) if before % n == 0 and is_taken(op, n, *channels, window, pads)]
        assert after == possible[0]


def is_taken(op, group, inputs, outputs, window, pads):
    """Whether venus takes the groups, as its packer and engine were seen to."""
    if group == 1 or (op == "Conv2dInt" and inputs == outputs == group):
        return True
    is_few = op == "Conv2dInt" and inputs // group < window[0] and (pads[0] > 0 or pads[2] > 0)
    is_refused = op == "ConvTranspose2dInt" or (op == "Conv1dInt" and inputs == group)
    return not (is_few or is_refused or group > 8 or outputs == group < inputs)


# global average pools


def average(size, window, **steps):
    """One average pool of x."""
    given = {"strides": list(window), "pads": [0, 0, 0, 0], "data_bits": 8, "o_bits": 8, "scale_x": 1.0, "scale_o": 1.0}
    body = node("thinker.AvgPool2dInt", "y", "x", kernel_shape=list(window), **given | steps)
    return graph_of(body, inputs=f"int8[1,9,{size}] x")


def test_a_global_average_pool_steps_by_one(draw):
    model = average("16,12", (16, 12))
    rows = [("y (AvgPool2dInt)", "its stride of 16×12 became 1: it has one window")]
    assert kept(step_global_pools_by_one, model, draw) == rows
    assert attributes(model, "strides") == [[1, 1]]


@pytest.mark.parametrize(
    "model",
    [
        average("16,16", (8, 8)),
        average("16,w", (16, 16)),
        average("16,16", (16, 16), strides=[1, 1]),
        average("16,16", (16, 16), pads=[1, 0, 0, 0]),
    ],
    ids=["several windows", "an open size", "a stride of 1", "padding"],
)
def test_other_average_pools_are_left_alone(model):
    assert left_alone(step_global_pools_by_one, model)


# large pools


def pool(shape, window, *, domain="thinker.", opset=12, **steps):
    """One max pool of x."""
    model = graph_of(
        node(f"{domain}MaxPool", "y", "x", kernel_shape=list(window), **steps), inputs=f"int8[{shape}] x", opset=opset
    )
    infer_element_types(model.graph)
    return model


@pytest.mark.parametrize(
    ("size", "window", "steps", "stages"),
    [
        pytest.param(12, (6, 6), {"strides": [6, 6]}, [([2, 2], [2, 2]), ([3, 3], [3, 3])], id="6×6 by 6"),
        pytest.param(16, (8, 8), {"strides": [8, 8]}, [([4, 4], [4, 4]), ([2, 2], [2, 2])], id="8×8 by 8"),
        pytest.param(7, (7, 7), {}, [([3, 3], [2, 2]), ([3, 3], [1, 1])], id="whole image"),
        pytest.param(
            20, (13, 13), {"pads": [6] * 4}, [([5, 5], [1, 1]), ([5, 5], [1, 1]), ([5, 5], [1, 1])], id="pyramid"
        ),
        pytest.param(
            15, (7, 7), {"strides": [2, 2], "pads": [3] * 4}, [([3, 3], [2, 2]), ([3, 3], [1, 1])], id="7×7 by 2"
        ),
        pytest.param(8, (2, 8), {"strides": [2, 8]}, [([2, 4], [2, 4]), ([1, 2], [1, 1])], id="2×8"),
    ],
)
@pytest.mark.parametrize("domain", ["thinker.", ""], ids=["dialect", "standard"])
def test_a_large_pool_becomes_a_chain(draw, size, window, steps, stages, domain):
    model = pool(f"n,2,{size},{size}", window, domain=domain, **steps)
    kernels = " and ".join(f"{kernel[0]}×{kernel[1]}" for kernel, _ in stages)
    reason = "because a kernel must not be larger than 5"
    text = f"its kernel of {window[0]}×{window[1]} became a chain of {kernels}, {reason}"
    assert kept(split, model, draw) == [("y (MaxPool)", text)]
    assert attributes(model, "kernel_shape") == [kernel for kernel, _ in stages]
    assert attributes(model, "strides") == [strides for _, strides in stages]
    assert {n.domain for n in model.graph} == {domain.rstrip(".")}


@pytest.mark.parametrize(
    ("shape", "window", "steps"),
    [
        pytest.param("1,2,h,w", (6, 6), {}, id="open sizes"),
        pytest.param("1,2,9,9", (5, 5), {}, id="small enough"),
        pytest.param("1,2,20,20", (6, 6), {"dilations": [2, 2]}, id="spread taps"),
        pytest.param("1,2,13,13", (6, 6), {"strides": [6, 6], "ceil_mode": 1}, id="ceil_mode"),
        pytest.param("1,2,22,22", (7, 7), {"strides": [7, 7]}, id="no factors"),
        pytest.param("1,2,30,30", (6, 6), {"strides": [7, 7]}, id="kernel smaller than the stride"),
        pytest.param("1,2,40,40", (20, 20), {}, id="too many stages"),
        pytest.param("1,2,12,9", (6, 2), {"strides": [6, 3]}, id="columns that are left out"),
    ],
)
def test_pools_without_an_equal_chain_stay(shape, window, steps):
    assert left_alone(split, pool(shape, window, **steps))


def test_pools_over_floats_one_axis_or_with_places_stay():
    floats = graph_of("y = MaxPool<kernel_shape=[6,6]>(x)", inputs="float[1,1,9,9] x")
    places = graph_of("y, i = MaxPool<kernel_shape=[6,6]>(x)", inputs="int8[1,1,9,9] x")
    signal = graph_of("y = MaxPool<kernel_shape=[6]>(x)", inputs="int8[1,1,9] x")
    same = graph_of('y = MaxPool<kernel_shape=[6,6], auto_pad="SAME_UPPER">(x)', inputs="int8[1,1,9,9] x")
    for model in (floats, places, signal, same):
        infer_element_types(model.graph)
        assert left_alone(split, model)


def test_names_and_settings_of_a_pool_stay(draw):
    model = pool("1,2,12,12", (6, 6), strides=[6, 6], ceil_mode=0)
    (only,) = model.graph
    only.name = "block.pool"
    only.attributes["platform"] = ir.AttrString("platform", "arcs")
    kept(split, model, draw)
    assert [(n.name, n.outputs[0].name) for n in model.graph] == [
        ("block.pool.stage1", "y.stage1"),
        ("block.pool", "y"),
    ]
    assert attributes(model, "platform") == ["arcs", "arcs"]
    assert attributes(model, "ceil_mode") == [0, 0]


def test_random_pools(draw):
    lines, inputs, large = [], [], 0
    for i in range(150):
        window = draw.integers(1, 12, 2).tolist()
        strides = [int(draw.choice([1, 1, 2, 3, 4, n])) for n in window]
        even = [int(draw.integers(0, n // 2 + 1)) for n in window]
        pads = even * 2 if draw.random() < 0.7 else [int(draw.integers(0, n // 2 + 1)) for n in window * 2]
        least = [n - pads[axis] - pads[axis + 2] for axis, n in enumerate(window)]
        sizes = [max(n, fits) for n, fits in zip(draw.integers(1, 20, 2).tolist(), least, strict=True)]
        inputs.append(f"int8[1,1,{sizes[0]},{sizes[1]}] x{i}")
        steps = {"kernel_shape": window, "strides": strides, "pads": pads}
        lines.append(node("thinker.MaxPool", f"y{i}", f"x{i}", **steps))
        large += max(window) > 5
    outputs = ", ".join(f"y{i}" for i in range(150))
    model = graph_of("\n".join(lines), inputs=", ".join(inputs), outputs=outputs)
    done = len(kept(split, model, draw))
    assert done > large // 2
    made = {v.name: n for n in model.graph for v in n.outputs}
    chained = {name.partition(".")[0] for name in made if ".stage" in name}
    for name, each in made.items():
        if name.partition(".")[0] in chained:
            kernel, strides = (each.attributes[n].as_ints() for n in ("kernel_shape", "strides"))
            assert max(kernel) <= 5
            assert all(k >= s for k, s in zip(kernel, strides, strict=True))


def test_every_chain_of_one_axis_sees_the_pixels_of_the_whole():
    found = 0
    for kernel in range(1, 16):
        for stride in (1, 2, 3, 4, 6, 8):
            for pad in range(kernel // 2 + 1):
                for size in (kernel, kernel + 3, 24, 25):
                    whole = Windows(kernel, stride, (pad, pad))
                    chain = equal_chain(whole, size, 5)
                    if chain is not None:
                        found += 1
                        assert windows_of(chain, size) == windows_of((whole,), size)
                        assert all(s.kernel >= s.stride and max(s.pads) <= s.kernel // 2 for s in chain)
                        assert all(s.pads[0] == s.pads[1] for s in chain)
    assert found > 1500


def windows_of(chain, size):
    """The pixels that each result of a chain sees, followed one by one."""
    seen = [{pixel} for pixel in range(size)]
    for stage in chain:
        padded = [set()] * stage.pads[0] + seen + [set()] * stage.pads[1]
        starts = range(0, len(padded) - stage.kernel + 1, stage.stride)
        seen = [set().union(*padded[start : start + stage.kernel]) for start in starts]
    return seen


def test_a_chain_with_a_gap_would_be_noticed(draw):
    model = pool("1,2,12,12", (6, 6), strides=[6, 6])
    feeds = feeds_of(model, draw)
    before = everything(model, feeds)
    split(model)
    first = next(iter(model.graph))
    first.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", [1, 2])  # steps of 2 leave every other row out
    assert differing(before, everything(model, feeds)) == ["y"]


# ceil_mode


@pytest.mark.parametrize(
    ("size", "steps"),
    [
        pytest.param(8, {"strides": [2, 2]}, id="divides"),
        pytest.param(7, {"strides": [1, 1]}, id="stride of 1"),
        # 7 + 2 pixels in steps of 2: a fifth window would start in the padding at the end, and is not computed
        pytest.param(7, {"strides": [2, 2], "pads": [1] * 4}, id="a window of padding only"),
    ],
)
@pytest.mark.parametrize("domain", ["thinker.", ""], ids=["dialect", "standard"])
def test_ceil_mode_that_adds_nothing_goes(draw, size, steps, domain):
    model = pool(f"n,2,{size},{size}", (2, 2), ceil_mode=1, domain=domain, **steps)
    text = "its ceil_mode, which adds no output at this size, became 0"
    assert kept(drop_ceil_mode, model, draw) == [("y (MaxPool)", text)]
    assert attributes(model, "ceil_mode") == [0]


@pytest.mark.parametrize(
    ("shape", "ceil_mode"),
    [
        pytest.param("1,2,7,8", 1, id="rows hang over"),
        pytest.param("1,2,8,7", 1, id="columns hang over"),
        pytest.param("1,2,h,8", 1, id="open size"),
        pytest.param("1,2,8,8", 0, id="no ceil_mode"),
    ],
)
def test_ceil_mode_that_acts_stays(shape, ceil_mode):
    assert left_alone(drop_ceil_mode, pool(shape, (2, 2), strides=[2, 2], ceil_mode=ceil_mode))


def test_sizes_behind_a_pool_whose_size_onnx_infers_wrongly(draw):
    # of 7 pixels the first makes 4, for which onnx's inference has 5; of 4 the second makes 2, of 5 it would make 3
    padded = node("thinker.MaxPool", "a", "x", kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4, ceil_mode=1)
    second = node("thinker.MaxPool", "c", "a", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    model = graph_of(f"{padded} {second} y = thinker.Relu(c)", inputs="int8[1,1,7,7] x")
    assert [where for where, _ in kept(drop_ceil_mode, model, draw)] == ["a (MaxPool)", "c (MaxPool)"]


@pytest.mark.parametrize("drops", [True, False], ids=["ceil_mode dropped", "ceil_mode left"])
def test_a_convolution_behind_such_a_pool_keeps_its_outputs(draw, drops):
    padded = node("thinker.MaxPool", "a", "x", kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4, ceil_mode=1)
    behind = convolution("Conv2dInt", "y", "a, w", (1, 1), strides=[2, 2])
    model = graph_of(f"{padded} {behind}", inputs="int8[1,1,9,9] x", w=numbers(draw, (1, 1, 1, 1)))
    if drops:
        drop_ceil_mode(model)
    kept(widen_kernels, model, draw, in_onnx_runtime=False)
    assert attributes(model, "kernel_shape")[-1] == [3, 3]  # 5 rows; onnx's inference has 6


def test_four_stages_are_the_most():
    assert [(s.kernel, s.stride) for s in equal_chain(Windows(200, 200), 200, 5)] == [(5, 5), (5, 5), (4, 4), (2, 1)]
    assert equal_chain(Windows(641, 641), 641, 5) is None


def test_spread_taps_have_no_chain():
    assert equal_chain(Windows(6, 1), 6, 5) is not None
    assert equal_chain(Windows(6, 1, dilation=2), 11, 5) is None


@pytest.mark.parametrize(
    ("op", "window", "group", "inputs", "outputs"),
    [
        ("Conv2dInt", (3, 3), 2, 4, 6),
        ("Conv1dInt", (3,), 6, 6, 6),
        ("ConvTranspose2dInt", (2, 2), 2, 4, 6),
        ("ConvTranspose2dInt", (2, 2), 3, 3, 6),
    ],
)
def test_joined_groups_keep_the_shifts_of_their_channels(draw, op, window, group, inputs, outputs):
    own = [5, 0, 2, 7, 1, 3]
    model = grouped(draw, group, inputs, outputs, op=op, window=window)
    (layer,) = [n for n in model.graph if n.op_type == op]
    layer.attributes["exponents_w"] = ir.AttrInt64s("exponents_w", own)
    is_inferred = op != "ConvTranspose2dInt"  # a body with factors in groups of channels hides its shape from inference
    assert len(kept(venus, model, draw, in_onnx_runtime=is_inferred)) == 1
    assert attributes(model, "exponents_w") == [own]  # zeros stand between the channels, which keep their order
    feeds, right = feeds_of(model, draw), []
    for order in (range(6), np.arange(6).reshape(-1, 2).T.reshape(-1), range(5, -1, -1)):
        layer.attributes["exponents_w"] = ir.AttrInt64s("exponents_w", [own[place] for place in order])
        right.append(everything(model, feeds)["y"])
    assert [np.array_equal(right[0], each) for each in right] == [True, False, False]
