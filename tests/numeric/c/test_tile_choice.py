"""Sums by tiles: every op that adds up many elements, with tensors in the file's order and with channels innermost."""

import re
from importlib.resources import files

import numpy as np
import pytest

from tests.support.arithmetic import NumpyKernel
from tests.support.c_compiler import call, load_with, require_compiler
from tests.support.c_units import Input, Unit
from tests.support.integer_functions import require_variant
from tests.support.ops import find_op
from tests.support.samples import arrays

SUMMING = (
    "AvgPool2dInt",
    "BmmInt",
    "Conv1dInt",
    "Conv2dInt",
    "ConvTranspose2dInt",
    "GRUInt",
    "LSTMInt",
    "LinearInt",
    "MaxPool",
)
INCLUDE = str(files("linger.c") / "include")
CALL = re.compile(r"linger_(?:dots|columns|depthwise|window)_\w+\(")


def channels_last(shape):
    return (0, *range(2, len(shape)), 1) if len(shape) > 2 else None


def weight_order(shape, *, is_transposed=False):
    if is_transposed:
        return (1, *range(2, len(shape)), 0)
    is_depthwise = shape[1] == 1 and shape[0] > 1
    return (*range(2, len(shape)), 0, 1) if is_depthwise else channels_last(shape)


def in_memory(array, order):
    return array if array is None or order is None else np.ascontiguousarray(array.transpose(order))


def written(op, sample, name, unit, *, is_last):
    """The function of a sample, its inputs and expected outputs as they lie in memory."""
    given, attributes = arrays(sample), op.complete(sample.attributes)
    turned = is_last and op.window_axes
    orders = [
        None
        if x is None or not turned or x.ndim < 3
        else weight_order(x.shape, is_transposed=op.is_transposed)
        if i
        else channels_last(x.shape)
        for i, x in enumerate(given)
    ]
    declared = [
        None if x is None else Input(x.shape, str(x.dtype), x if i else None, orders[i]) for i, x in enumerate(given)
    ]
    expected = op.body(NumpyKernel(), *op.arrange(given), **attributes)
    expected = expected if isinstance(expected, tuple) else (expected,)
    wanted = [channels_last(e.shape) if turned else None for e in expected]
    function = unit.add(name, op.body, op.arrange(declared), attributes, title=sample.name, orders=wanted)
    memory = op.arrange([in_memory(x, order) for x, order in zip(given, orders, strict=True)])
    return function, memory, [in_memory(e, order) for e, order in zip(expected, wanted, strict=True)]


def wrong(cases, library):
    """Samples whose compiled function gives other numbers."""
    return [
        function.name
        for function, given, expected in cases
        if not all(
            np.array_equal(made.reshape(-1), e.reshape(-1))
            for made, e in zip(call(library, function, given), expected, strict=True)
        )
    ]


def build(op, *, is_last):
    unit = Unit(is_tiled=True)
    cases = [written(op, s, f"sample_{i}", unit, is_last=is_last) for i, s in enumerate(op.samples)]
    return unit.source(), cases


@pytest.mark.parametrize("is_last", [False, True], ids=["as in the file", "channels innermost"])
@pytest.mark.parametrize("name", SUMMING)
@pytest.mark.thin
def test_tiles_give_the_numbers_of_numpy(name, is_last, tmp_path):
    require_compiler()
    source, cases = build(find_op(name), is_last=is_last)
    assert wrong(cases, load_with(source, tmp_path, f"-I{INCLUDE}")) == []


PANELS = ("Conv1dInt", "Conv2dInt")


@pytest.mark.parametrize("variant", ["avx2", "avx512"])
@pytest.mark.parametrize("name", PANELS)
@pytest.mark.thin(every=2)
def test_panels_give_the_numbers_of_numpy(name, variant, tmp_path):
    options = require_variant(variant).options
    source, cases = build(find_op(name), is_last=True)
    assert "linger_pack(" in source
    assert wrong(cases, load_with(source, tmp_path, f"-I{INCLUDE}", *options)) == []


def convolution(shape, w_shape, **more):
    """A convolution in the layout of images, with random numbers: source and case."""
    rng, op, unit = np.random.default_rng(2), find_op("Conv2dInt"), Unit(is_tiled=True)
    x, w = (rng.integers(-128, 128, size).astype(np.int8) for size in (shape, w_shape))
    b = rng.integers(-9999, 9999, w_shape[0]).astype(np.int32)
    window = {"kernel_shape": w_shape[2:], "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    scales = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": 4.0}
    attributes = op.complete({**window, **scales, "data_bits": 8, "parameter_bits": 8, "o_bits": 8, **more})
    expected = op.body(NumpyKernel(), x, w, b, **attributes)
    orders = (channels_last(x.shape), channels_last(w.shape), None)
    given = [Input(a.shape, str(a.dtype), a if i else None, orders[i]) for i, a in enumerate((x, w, b))]
    last = [channels_last(expected.shape)]
    function = unit.add("run", op.body, given, attributes, title="conv", orders=last)
    memory = [in_memory(a, order) for a, order in zip((x, w, b), orders, strict=True)]
    return unit.source(), [(function, memory, [in_memory(expected, last[0])])]


@pytest.mark.parametrize("variant", ["avx2", "avx512"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_panels_of_rows_give_the_numbers_of_numpy(dtype, variant, tmp_path):
    rng, op, unit = np.random.default_rng(4), find_op("LinearInt"), Unit(is_tiled=True)
    x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (3, 11, 21)).astype(dtype)
    w, b = rng.integers(-128, 128, (70, 21)).astype(np.int8), rng.integers(-9999, 9999, 70).astype(np.int32)
    scales = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": 4.0}
    attributes = op.complete({**scales, "data_bits": 8, "parameter_bits": 8, "o_bits": 8})
    given = [Input(a.shape, str(a.dtype), a if i else None) for i, a in enumerate((x, w, b))]
    function = unit.add("run", op.body, given, attributes, title="linear")
    cases = [(function, (x, w, b), [op.body(NumpyKernel(), x, w, b, **attributes)])]
    source = unit.source()
    assert f"linger_panel_{'u8' if dtype is np.uint8 else 8}_8_32(" in source
    assert wrong(cases, load_with(source, tmp_path, f"-I{INCLUDE}", *require_variant(variant).options)) == []


GEOMETRIES = {
    "several panels": ((1, 12, 5, 7), (150, 12, 3, 3), {}),
    "small panels": ((1, 12, 5, 7), (40, 12, 3, 3), {}),
    "runs of three": ((1, 3, 9, 8), (20, 3, 3, 3), {"strides": (2, 2)}),
    "groups": ((2, 24, 6, 5), (36, 8, 3, 3), {"group": 3, "dilations": (2, 1)}),
    "one pixel each": ((1, 20, 6, 7), (70, 20, 1, 1), {"pads": (0, 0, 0, 0)}),
    "one column": ((1, 8, 9, 1), (16, 8, 3, 3), {}),
    "dilated": ((1, 8, 9, 9), (16, 8, 3, 3), {"dilations": (1, 2), "pads": (0, 2, 1, 3)}),
}


@pytest.mark.parametrize("variant", ["avx2", "avx512"])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.thin(every=3)
def test_panels_of_any_geometry_give_the_numbers_of_numpy(name, variant, tmp_path):
    shape, w_shape, more = GEOMETRIES[name]
    source, cases = convolution(shape, w_shape, **more)
    small = ("-DLINGER_PANEL_BYTES=4000",) if name == "small panels" else ()
    options = (*require_variant(variant).options, *small, f"-I{INCLUDE}")
    assert "linger_pack(" in source
    assert wrong(cases, load_with(source, tmp_path, *options)) == []


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        (r"\(\((x\d+ \+ i\d+)\) % ", r"((\1 + 1) % "),
        (r"(linger_pack\([^;]*in_1 \+ )", r"\1 1 + "),
        (r"(linger_pack\([^;]*), in_2 \+ \w+", r"\1, in_2"),
        (r"(linger_panel_8_8_32\([^;]*), in_0, (\w+)\)", r"\1, in_0 + 1, \2)"),
    ],
)
def test_a_fault_in_a_panel_is_seen(pattern, fault, tmp_path):
    options = require_variant("avx2").options
    source, cases = convolution((1, 12, 5, 7), (150, 12, 3, 3))
    broken = re.sub(pattern, fault, source, count=1)
    assert broken != source
    assert wrong(cases, load_with(broken, tmp_path, f"-I{INCLUDE}", "-w", *options))


@pytest.mark.parametrize("name", SUMMING)
@pytest.mark.thin(every=3)
def test_most_samples_are_tiled(name):
    op = find_op(name)
    source, _ = build(op, is_last=True)
    assert len(CALL.findall(source)) >= len(op.samples) // 2


@pytest.mark.parametrize(
    ("name", "pattern", "fault"),
    [
        ("Conv2dInt", r"(linger_dots_8_8_32\(\w+, \w+, \w+, [^,]+, )(\d+)", r"\1 1 + \2"),
        ("Conv2dInt", r"(linger_depthwise_8_8_32\(\w+, \w+, \w+, [^,]+), ", r"\1 + 1, "),
        ("LinearInt", r", NULL\)|, in_2\);", ", NULL);"),
        ("MaxPool", r"(linger_window_max_8\(\w+, \w+, [^,]+, [^,]+, )(\d+)", r"\1 0 * \2"),
        ("BmmInt", r"(linger_columns_8_8_32\([^;]+), (\d+)\);", r"\1, 1);"),
    ],
)
def test_a_fault_in_a_call_is_seen(name, pattern, fault, tmp_path):
    require_compiler()
    source, cases = build(find_op(name), is_last=True)
    broken = re.sub(pattern, fault, source)
    assert broken != source
    assert wrong(cases, load_with(broken, tmp_path, f"-I{INCLUDE}", "-w"))
