"""The rules on a file of ONNX Runtime's own quantizer."""

import logging
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger.checks import repair_rules
from linger.graph import fill_float_islands
from tests.support.kernels import LEVELS, kernels
from tests.support.onnx_text import checked
from tests.support.other_tools import RandomFile
from tests.support.passes import applied, computed, sort_nodes

RULES, choose_rules = repair_rules.RULES, repair_rules.choose_rules

SHAPE = (1, 3, 16, 16)
NET = """c = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)  r = Relu(c)  p = MaxPool<kernel_shape = [4, 4], strides = [4, 4]>(r)
         t = Transpose<perm = [0, 2, 3, 1]>(p)  f = Flatten(t)  y = Gemm<transB = 1>(f, w2, b2)"""


@pytest.fixture(scope="module", params=["QInt8", "QUInt8"])
def quantized(request, tmp_path_factory):
    """A convolution, a pool and a linear layer, quantized statically: one scale from the pool to the linear layer."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    draw = np.random.default_rng(5)
    sizes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (10, 128), "b2": (10,)}
    weights = [
        f"float[{','.join(map(str, s))}] {n} = {{{', '.join(f'{v:.4f}' for v in draw.normal(0, 0.2, s).ravel())}}}"
        for n, s in sizes.items()
    ]
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[1,3,16,16] x) => (float[1,10] y) <{", ".join(weights)}> {{ {NET} }}'
    feeds = iter([{"x": draw.normal(0, 1, SHAPE).astype(np.float32)} for _ in range(3)])

    class Reader(quantization.CalibrationDataReader):
        def get_next(self):
            return next(feeds, None)

    path = tmp_path_factory.mktemp("static") / "net.onnx"
    logging.disable(logging.WARNING)
    try:
        quantization.quantize_static(
            onnx.parser.parse_model(text),
            path,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType[request.param],
            weight_type=quantization.QuantType.QInt8,
        )
    finally:
        logging.disable(logging.NOTSET)
    return path.read_bytes()


def opened(content):
    return ir.from_proto(onnx.load_from_string(content))


def kinds(model):
    return [node.op_type for node in model.graph if "uantizeLinear" not in node.op_type]


def test_the_islands_between_conv_and_gemm_run_on_integers(quantized, draw):
    model = opened(quantized)
    count = sum("uantizeLinear" in node.op_type for node in model.graph)
    is_signed = any(n.op_type == "QuantizeLinear" and n.inputs[2].dtype == ir.DataType.INT8 for n in model.graph)
    rows = applied(fill_float_islands, model, x=draw.normal(0, 2, SHAPE).astype(np.float32))
    # with int8 going through the islands, ONNX Runtime would not make unsigned bytes of it, and run Conv and Gemm in float
    filled = set() if is_signed else {"MaxPool)", "Transpose)", "Flatten)"}
    assert {where.rpartition("(")[2] for where, _ in rows} == filled
    assert kinds(model) == ["Conv", "MaxPool", "Transpose", "Flatten", "Gemm"]
    assert count - sum("uantizeLinear" in node.op_type for node in model.graph) == 2 * len(filled)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.thin(every=3)
def test_no_rule_changes_a_kernel_at_any_level(quantized, name):
    model = opened(quantized)
    before = [kernels(model, level) for level in LEVELS]
    assert "QLinearConv u8×s8" in before[-1]  # what saturates on x64 without VNNI, as the file came
    RULES[name].apply(model)
    assert [kernels(model, level) for level in LEVELS] == before


@pytest.mark.parametrize(
    "rules", [pytest.param(choose_rules(), id="default"), pytest.param(tuple(RULES.values()), id="all")]
)
def test_all_rules_keep_every_number(quantized, draw, rules):
    model = opened(quantized)
    inputs = [draw.normal(0, 2, SHAPE).astype(np.float32) for _ in range(3)]
    before = [[computed(model, {"x": x}, level)[0] for level in LEVELS] for x in inputs]
    for rule in rules:
        rule.apply(model)
    checked(model)
    for x, expected in zip(inputs, before, strict=True):
        for level, numbers in zip(LEVELS, expected, strict=True):
            np.testing.assert_array_equal(computed(model, {"x": x}, level)[0], numbers)
        np.testing.assert_array_equal(linger.Session(model).run(None, {"x": x})[0], expected[-1])
    assert [row for rule in rules for row in rule.apply(model).rows()] == []


def mended(number):
    """A random file after all rules, and how often each of them did something."""
    model = RandomFile(number, 4 + number % 16).model()
    sort_nodes(model)
    x = np.random.default_rng(number).normal(0, 8, (1, 4, 4, 4)).astype(np.float32)
    before = computed(model, {"x": x})
    counts = Counter({name: len(rule.apply(model)) for name, rule in RULES.items()})
    checked(model)
    for old, new in zip(before, computed(model, {"x": x}), strict=True):
        assert old.tobytes() == new.tobytes(), number
    assert [row for rule in RULES.values() for row in rule.apply(model).rows()] == [], number
    return counts


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(range(20), id="20"),
        pytest.param((223, 473), id="nodes that lead nowhere beside others that do"),
        pytest.param(range(20, 620), id="600", marks=pytest.mark.slow),
    ],
)
def test_random_files_keep_every_number(numbers):
    total = sum(map(mended, numbers), Counter())
    least = len(numbers) // 20  # else the files would not try the rules
    assert min(total[rule] for rule in ("cancel_dq_q", "fill_float_islands", "split_shared_zero_points")) >= least
