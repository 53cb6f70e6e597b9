"""Sums by tiles: every op that adds up many elements, with tensors in the file's order and with channels innermost."""

import re
from importlib.resources import files

import numpy as np
import pytest

from tests.support.arithmetic import NumpyKernel
from tests.support.c_compiler import call, load_with, require_compiler
from tests.support.c_units import Input, Unit
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
