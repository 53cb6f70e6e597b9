"""Wide values in float32: which form is written, that it is exact at its bounds, and how few passes it takes."""

import itertools
import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from linger.graph import load
from tests.support.arithmetic import blocks, fixed
from tests.support.comparison import assert_same
from tests.support.kernels import optimized
from tests.support.onnx_body import assert_kernels_give, interpret_onnx, onnx_model
from tests.support.ops import find_op
from tests.support.samples import (
    attach_functions,
    expand_dialect,
    run_expanded,
    run_function,
    run_model,
    run_numpy,
    single_node_model,
)

pytestmark = pytest.mark.needs_torch

LEVELS = [getattr(ort.GraphOptimizationLevel, f"ORT_{name}") for name in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_ALL")]
GEOMETRY = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}


def shifted(sums, shift, bits):
    """⌊sum/2^shift + ½⌋, saturated, in Python's integers."""
    low, high = fixed.limits(bits)
    rounded = [s << -shift if shift <= 0 else (s + (1 << (shift - 1))) >> shift for s in sums]
    return [min(max(r, low), high) for r in rounded]


def sums_around_ties(shift, largest):
    """Sums at, below and above ties, near zero, near saturation and near the largest one."""
    step = 1 << max(shift, 0)
    centers = [n * step + step // 2 for n in (-129, -128, -127, -2, -1, 0, 1, 126, 127)] + [largest, -largest]
    return [c + d for c in centers for d in (-1, 0, 1) if abs(c + d) <= largest]


def layer(kind, shift, bits):
    def body(k, x, w, b):
        if kind == "linear":
            total = k.linear(x, w, b, x_bits=8, w_bits=8)
        else:
            total = k.conv2d(x, w, b, x_bits=8, w_bits=8, **GEOMETRY)
        return blocks.requantize(k, total, source=k.scalar(2.0**shift), target=k.scalar(1.0), bits=bits)

    return body


def layer_inputs(kind, sums, weight_sum):
    """Products that cancel: partial sums are large, the sums are those of the bias."""
    taps = [127] * (weight_sum // 127) + [weight_sum % 127]
    half = len(taps) // 2
    x = np.asarray([[127] * half + [-127] * half + [0] * (len(taps) - 2 * half)], np.int8)
    x[0, -1] = 0
    b = np.asarray(sums) - int(x[0].astype(int) @ taps)
    w = np.tile(np.asarray(taps, np.int8), (len(sums), 1))
    if kind == "conv2d":
        x, w = x[..., None, None], w[..., None, None]
    return [x, w, b.astype(np.int32)]


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
@pytest.mark.parametrize("shift", [-2, 0, 1, 2, 7, 14, 20])
@pytest.mark.thin
def test_sums_around_ties_are_rounded_up(kind, shift):
    sums = sums_around_ties(shift, 2**22)
    inputs = layer_inputs(kind, sums, 100)
    for bits in (8, 4):
        expected = np.asarray(shifted(sums, shift, bits), np.int8).reshape(
            (1, -1) if kind == "linear" else (1, -1, 1, 1)
        )
        for constants, opset in itertools.product((frozenset({1, 2}), frozenset()), (11, 18)):
            model = onnx_model(layer(kind, shift, bits), inputs, opset=opset, constants=constants)
            for level in LEVELS:
                assert_same(run_model(model, inputs, level=level), expected)


@pytest.mark.parametrize(
    ("shift", "weight_sum", "form"),
    [
        # 128·weight_sum + 2^20 + 1, the bias, with the half of a shift by 7 twice, and with one bit more: below 2^24
        (7, 57342, "QuantizeLinear"),
        (7, 57344, "Floor"),
        (7, 122878, "Floor"),
        (14, 122850, "float64"),  # the half is too much
        (7, 122880, "ConvInteger"),
    ],
)
def test_form_at_its_bounds(shift, weight_sum, form):
    sums = sums_around_ties(shift, 2**20 - 127 * 127)
    inputs = layer_inputs("conv2d", [*sums, 2**20], weight_sum)
    inputs[2][-1] = 2**20
    body = layer("conv2d", shift, 8)
    expected = np.asarray(shifted(sums, shift, 8), np.int8)
    models = [onnx_model(body, inputs, opset=13, constants=c) for c in (frozenset({1, 2}), frozenset())]
    found = {n.op_type for n in models[0].graph}
    made_by = {n.inputs[0].producer() for n in models[0].graph if n.op_type == "Floor"}
    is_wide = any(n is not None and n.op_type == "Add" for n in made_by)  # the half is added behind the product
    assert ("QuantizeLinear" in found, "ConvInteger" in found, is_wide) == {
        "QuantizeLinear": (True, False, False),
        "Floor": (False, False, False),
        "float64": (False, False, True),
        "ConvInteger": (False, True, True),
    }[form]
    for model in models:
        assert_same(run_model(model, inputs).reshape(-1)[:-1], expected)


def channel_layer(kind, exponents, *, unsigned=0):
    """At 2^7, of channel c at 2^(7 + e)."""

    def body(k, x, w, b):
        if kind == "linear":
            total = k.linear(x, w, b, x_bits=8, w_bits=8)
        else:
            total = k.conv2d(x, w, b, x_bits=8, w_bits=8, **GEOMETRY)
        is_last = kind == "linear"
        return blocks.requantize_product(
            k, total, (2.0**7, 1.0), 1.0, 8, exponents=exponents, has_last_channels=is_last, unsigned=unsigned
        )

    return body


@pytest.mark.parametrize(
    ("weight_sum", "form"),
    [
        # 128·weight_sum + 2^20, the bias, + 1; of channel 1, at 2^-10, the half twice is 2^10: with one bit more below 2^24
        (57335, "QuantizeLinear"),
        (57336, "Floor"),
        (122875, "Floor"),  # the half once is 2^9
        (122876, "float64"),
        (122880, "ConvInteger"),
    ],
)
def test_form_at_its_bounds_of_the_finest_channel(weight_sum, form):
    exponents = (0, 3)
    sums = [
        s for pair in zip(*(sums_around_ties(7 + e, 2**20 - 127 * 127) for e in exponents), strict=False) for s in pair
    ]
    inputs = layer_inputs("conv2d", [*sums, 2**20], weight_sum)
    inputs[2][-1] = 2**20
    body = channel_layer("conv2d", tuple(exponents[i % 2] for i in range(len(sums) + 1)))
    expected = [shifted([s], 7 + exponents[i % 2], 8)[0] for i, s in enumerate(sums)]
    models = [onnx_model(body, inputs, opset=13, constants=c) for c in (frozenset({1, 2}), frozenset())]
    found = [n.op_type for n in models[0].graph]
    made_by = {n.inputs[0].producer() for n in models[0].graph if n.op_type == "Floor"}
    is_wide = any(n is not None and n.op_type == "Add" for n in made_by)
    assert ("QuantizeLinear" in found, "ConvInteger" in found, is_wide) == {
        "QuantizeLinear": (True, False, False),
        "Floor": (False, False, False),
        "float64": (False, False, True),
        "ConvInteger": (False, True, True),
    }[form]
    for model in models:
        for level in LEVELS:
            assert_same(run_model(model, inputs, level=level).reshape(-1)[:-1], np.asarray(expected, np.int8))


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_unsigned_data_count_twice_in_the_bound(kind):
    """Σ|w| = 2^15: 255 times it is below 2^23, and 128 times it is half of that."""
    sums = sums_around_ties(7, 2**15)
    signed = layer_inputs(kind, sums, 2**15)
    for x, has_room in ((signed[0], True), (np.abs(signed[0]).astype(np.uint8), False)):
        model = onnx_model(
            channel_layer(kind, (0,) * len(sums), unsigned=1), [x, *signed[1:]], opset=13, constants={1, 2}
        )
        total = (x.reshape(1, -1).astype(int) @ signed[1].reshape(len(sums), -1).T.astype(int) + signed[2])[0]
        expected = [min(max((int(t) + 64) >> 7, 0), 255) for t in total]
        assert_same(run_model(model, [x, *signed[1:]]).reshape(-1), np.asarray(expected, np.uint8))
        assert ("QuantizeLinear" in {n.op_type for n in model.graph}) is has_room


def test_factor_without_weights_does_not_overflow():
    """2^200 is no float32 number, and zero times infinity none at all."""
    inputs = [np.ones((1, 3), np.int8), np.zeros((2, 3), np.int8), np.zeros(2, np.int32)]
    for constants in (frozenset({1, 2}), frozenset()):
        found = interpret_onnx(layer("linear", -200, 8), inputs, opset=12, constants=constants)
        assert_same(found, np.zeros((1, 2), np.int8))


ALL_BYTES = np.arange(-128, 128, dtype=np.int8)


@pytest.mark.parametrize("factor", [4.0, 1.0, 0.25])
def test_floor_without_a_half_and_a_clip_of_its_own(factor):
    def body(k, x):
        return k.store(k.clip(k.floor(k.mul(k.wide(x), k.scalar(factor))), k.scalar(-20.0), k.scalar(90.0)), 8)

    expected = [min(max(math.floor(v * factor), -20), 90) for v in ALL_BYTES.tolist()]
    assert_kernels_give(body, [ALL_BYTES], np.asarray(expected, np.int8))


def test_arithmetic_behind_a_clip_starts_from_what_was_clipped():
    def body(k, x):
        limited = k.clip(k.add(k.wide(x), k.scalar(0.5)), k.scalar(-20.25), k.scalar(90.25))
        return k.store(k.mul(limited, k.scalar(4.0)), 16)

    expected = [4 * min(max(v + 0.5, -20.25), 90.25) for v in ALL_BYTES.tolist()]  # whole numbers
    assert_kernels_give(body, [ALL_BYTES], np.asarray(expected, np.int16))


def test_value_used_twice_is_computed_once():
    def body(k, x):
        wide = k.wide(x)
        return k.store(k.where_less(wide, k.scalar(0.0), k.sub(k.scalar(0.0), wide), wide), 16)

    assert_kernels_give(body, [ALL_BYTES], np.abs(ALL_BYTES.astype(np.int16)))
    made = [n.op_type for n in onnx_model(body, [ALL_BYTES], opset=13).graph]
    assert made.count("Cast") == 2  # to float64, and back


PAIRS = [np.repeat(ALL_BYTES, 256), np.tile(ALL_BYTES, 256)]
EVERY = [np.repeat(np.arange(-(2**15), 2**15, 7, dtype=np.int16), 2)] * 2


@pytest.mark.parametrize("name", ["iqAdd", "iqSub", "iqMul"])
@pytest.mark.parametrize("inputs", [PAIRS, EVERY], ids=["8 bits", "16 bits"])
@pytest.mark.parametrize(
    "scales",
    [
        *((16.0, 16.0, 16.0), (16.0, 64.0, 8.0), (256.0, 2.0, 16.0), (2.0**20, 2.0**-3, 2.0**-4)),
        *((16.0, float(np.nextafter(np.float32(16), np.float32(17))), 8.0), (3.0, 5.0, 7.0), (2.0**30, 2.0**30, 1.0)),
    ],
    ids=str,
)
def test_every_pair_of_bytes(name, inputs, scales):
    """Scales that are no powers of two, or too far apart for float32, are computed in float64."""
    op = find_op(name)
    bits = 8 * inputs[0].itemsize
    attributes = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True)) | {"o_bits": bits}
    expected = run_numpy(op, inputs, attributes)
    assert_same(run_function(op, inputs, attributes, opset=12), expected)
    assert_same(run_expanded(op, inputs, attributes, opset=12), expected)


def test_third_input_of_32_bits_counts():
    """The widest of all inputs of iqCat decides, not that of the first two."""
    op = find_op("iqCat")
    inputs = [np.array([[1]], np.int8), np.array([[2]], np.int8), np.array([[2**24 + 1]], np.int32)]
    scales = {f"scale_x_{i}": 2.0 for i in range(3)}
    attributes = {"scale_o": 1.0, "dim": 1, "o_bits": 16} | scales
    wide = {"scale_o": 2.0**-11, "dim": 1, "o_bits": 16} | scales
    for each in (attributes, wide):
        assert_same(run_function(op, inputs, each, opset=12), run_numpy(op, inputs, each))


WINDOW = {"dilations": (1, 1), "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1)}
WIDTHS = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}


def small_network():
    """Every kind of layer that is made of few passes, at 8 bits; scales go from 16 to 8 and stay there."""
    dice = np.random.default_rng(0)
    shapes = {"w": (4, 4, 3, 3), "depthwise": (4, 1, 3, 3), "matrix": (3, 120)}
    weights = [numpy_helper.from_array(dice.integers(-9, 10, s).astype(np.int8), n) for n, s in shapes.items()]
    biases = [numpy_helper.from_array(dice.integers(-999, 999, n).astype(np.int32), f"b{n}") for n in (3, 4)]
    layer = WIDTHS | {"scale_w": 64.0, "scale_o": 8.0}
    nodes = [
        ("Quant", ["x"], "q", {"data_bits": 8, "scale_x": 16.0}),
        ("Conv2dInt", ["q", "w", "b4"], "c", layer | WINDOW | {"scale_x": 16.0, "group": 1}),
        ("Relu", ["c"], "r", {}),
        ("Conv2dInt", ["r", "depthwise", "b4"], "d", layer | WINDOW | {"scale_x": 8.0, "group": 4, "scale_o": 64.0}),
        ("iqAdd", ["d", "r"], "s", {"scale_x": 64.0, "scale_y": 8.0, "scale_o": 8.0, "o_bits": 8}),
        ("iqMul", ["s", "d"], "m", {"scale_x": 8.0, "scale_y": 64.0, "scale_o": 8.0, "o_bits": 8}),
        ("Flatten", ["m"], "f", {}),
        ("LinearInt", ["f", "matrix", "b3"], "l", layer | {"scale_x": 8.0}),
        ("Dequant", ["l"], "y", {"scale_o": 8.0}),
    ]
    made = [
        helper.make_node(name, inputs, [output], domain="" if name == "Flatten" else "thinker", **attributes)
        for name, inputs, output, attributes in nodes
    ]
    ends = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in {"x": (1, 4, 6, 5), "y": (1, 3)}.items()
    ]
    graph = helper.make_graph(made, "net", ends[:1], ends[1:], [*weights, *biases])
    imports = [helper.make_opsetid(domain, version) for domain, version in (("", 13), ("thinker", 1))]
    return load(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())


@pytest.mark.parametrize("form", [attach_functions, expand_dialect])
def test_passes_over_the_tensors_of_a_network(form):
    """What ONNX Runtime runs of layers of 8 bits: every node is a pass over memory, and none of them has float64."""
    model = small_network()
    form(model)
    found = optimized(model, "ENABLE_EXTENDED")
    assert [n.op_type for n in found.graph.all_nodes() if n.op_type != "Constant"] == [
        *("Mul", "Add", "Floor", "Clip", "Cast"),
        *("Cast", "Conv", "QuantizeLinear"),
        "Clip",
        *("Cast", "Conv", "QuantizeLinear"),
        *("Cast", "Mul", "Add", "Floor", "Add", "QuantizeLinear"),  # the second operand was cast for the convolution
        *("Cast", "Mul", "Mul", "Add", "QuantizeLinear"),  # the second factor was cast for the sum
        "Flatten",
        *("Cast", "Gemm", "QuantizeLinear"),
        *("Cast", "Mul"),
    ]
    assert ir.DataType.DOUBLE not in {v.dtype for n in found.graph.all_nodes() for v in n.outputs}


@pytest.mark.parametrize("form", [attach_functions, expand_dialect])
def test_network_gives_the_same_numbers_at_every_level_and_in_the_reference(form):
    model = small_network()
    form(model)
    x = (np.arange(120).reshape(1, 4, 6, 5) % 37 / 16 - 1).astype(np.float32)
    proto = ir.to_proto(model)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})[0]
    assert len(np.unique(expected)) == expected.size
    for level in LEVELS:
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        assert_same(session.run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("form", [attach_functions, expand_dialect])
@pytest.mark.parametrize("bits", [8, 16])
def test_infinities_saturate_and_what_is_no_number_is_zero(form, bits):
    x = np.array([np.nan, np.inf, -np.inf, 1e37, -1e37, 0.03125, *[np.nan] * 40], np.float32)
    op, attributes = find_op("Quant"), {"data_bits": bits, "scale_x": 16.0}
    with np.errstate(all="ignore"):
        model = single_node_model(op, [x], attributes, opset=12)
    form(model)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x})[0]
    end = 2 ** (bits - 1)
    assert found[:6].tolist() == [0, end - 1, -end, end - 1, -end, 1]
    assert not found[6:].any()
