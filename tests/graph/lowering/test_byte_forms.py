"""Integer kernels give the dialect's integers: at every tie, for every pair of bytes, and where pairs of products saturate."""

import math
from fractions import Fraction

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from linger.dialect import ops
from linger.graph.lowering import byte_layers as byte_forms
from linger.graph.lowering.byte_layers import write_byte_layers
from linger.numeric.fixed import window_reciprocal
from linger.runtime.reference import Reference
from linger.runtime.session import LEVELS, has_saturating_products
from tests.support.comparison import assert_same
from tests.support.lowering import expand_dialect
from tests.support.samples import arrays, run_numpy, single_node_model
from tests.support.saturating import pair_sums

DATA = np.arange(-128, 128).astype(np.int8)
SHIFTS = (-2, 0, 1, 2, 7, 13, 14)


def written(model, *, is_saturating=True):
    """A model with integer kernels and standard nodes only, as bytes."""
    made = model if isinstance(model, ir.Model) else ir.from_proto(onnx.parser.parse_model(model))
    count = len(write_byte_layers(made, is_saturating=is_saturating))
    expand_dialect(made)
    return ir.to_proto(made).SerializeToString(), count


def run(content, feeds, level="all"):
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def biases(shift):
    """Numbers that bring a sum to, just below and just above each tie, and far beyond both ends."""
    step, half = 2.0**shift, 2.0 ** (shift - 1)
    ties = np.arange(-130, 131) * step + half
    near = np.concatenate([np.floor(ties + d) for d in (-1, 0, 1)])
    return np.unique(np.clip([*near, -(2**30), -(2**24) - 1, 2**24 + 1, 2**30], -(2**30), 2**30).astype(np.int32))


def product_text(op, shift, count, *, relu, more="", data="int8", result="int8"):
    """One input, weight 1, so the bias alone says where the sum lies; then a ReLU, or nothing."""
    dims = "x 1x1" if op == "Conv2dInt" else ""
    geometry = ", dilations: ints = [1, 1], group: int = 1, kernel_shape: ints = [1, 1], pads: ints = [0, 0, 0, 0], strides: ints = [1, 1]"
    shape, weight = ("256,1,1,1", f"{count},1,1,1") if dims else ("256,1", f"{count},1")
    scale = f"scale_x: float = 1.0, scale_w: float = 1.0, scale_o: float = {2.0**-shift!r}"
    bits = "data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8"
    reader = "r = thinker.Relu(c)" if relu else "r = Identity(c)"
    out = "256,n,1,1" if dims else "256,n"
    text = f"""<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g ({data}[{shape}] x) => ({result}[{out}] r) <int8[{weight}] w, int32[{count}] b> {{
      c = thinker.{op}<{bits}, {scale}{geometry if dims else ""}{more}>(x, w, b)
      {reader}
    }}"""
    return text, [int(n) for n in shape.split(",")], [int(n) for n in weight.split(",")]


def with_numbers(text, weight, b):
    """The text with a weight of 1 everywhere, and these biases."""
    text = text.replace(
        f"int8[{','.join(map(str, weight))}] w",
        f"int8[{','.join(map(str, weight))}] w = {{{', '.join('1' for _ in b)}}}",
    )
    return text.replace(f"int32[{len(b)}] b", f"int32[{len(b)}] b = {{{', '.join(map(str, b))}}}")


def product_model(op, shift, *, relu):
    b = biases(shift)
    text, shape, weight = product_text(op, shift, len(b), relu=relu)
    text = with_numbers(text, weight, b)
    total = DATA.astype(np.int64)[:, None] + b.astype(np.int64)
    rounded = (total << -shift) if shift <= 0 else ((total + (1 << (shift - 1))) >> shift)
    expected = np.clip(rounded, 0 if relu else -128, 127)
    return text, DATA.reshape(shape), expected


@pytest.mark.parametrize("relu", [False, True], ids=["signed", "relu"])
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("op", ["Conv2dInt", "LinearInt"])
def test_every_tie_of_a_product_rounds_up(op, shift, relu):
    text, x, expected = product_model(op, shift, relu=relu)
    content, count = written(text)
    assert count == 1 + relu
    for level in LEVELS:
        found = run(content, {"x": x}, level).reshape(expected.shape)
        assert (found == expected).all(), (level, np.argwhere(found != expected)[:5])


def rounded(total, shift):
    """⌊total/2^shift + ½⌋ of Python's integers."""
    return total << -shift if shift <= 0 else (total + (1 << (shift - 1))) >> shift


@pytest.mark.parametrize("kind", ["signed", "relu", "unsigned"])
@pytest.mark.parametrize("data", ["int8", "uint8"])
@pytest.mark.parametrize("shift", [-7, -2, 0, 5])
@pytest.mark.parametrize("op", ["Conv2dInt", "LinearInt"])
@pytest.mark.thin(every=3)
def test_every_tie_of_every_channel_rounds_up(op, shift, data, kind):
    """Channel after channel at a shift of its own, up to 9 bits apart, each with the biases that bring it to its ties."""
    numbers = np.arange(256).astype(np.uint8) if data == "uint8" else DATA
    pairs = [(e, int(b)) for e in (0, 2, 7, 9, 1) for b in biases(shift + e)]
    exponents, b = zip(*pairs, strict=True)
    result, low, high = ("uint8", 0, 255) if kind == "unsigned" else ("int8", 0 if kind == "relu" else -128, 127)
    more = f", exponents_w: ints = [{', '.join(map(str, exponents))}]" + ", o_unsigned: int = 1" * (kind == "unsigned")
    text, shape, weight = product_text(op, shift, len(b), relu=kind == "relu", more=more, data=data, result=result)
    content, count = written(with_numbers(text, weight, b))
    assert count == 1 + (kind == "relu")
    expected = [[min(max(rounded(int(x) + t, shift + e), low), high) for e, t in pairs] for x in numbers]
    for level in LEVELS:
        found = run(content, {"x": numbers.reshape(shape)}, level)
        assert_same(found.reshape(256, -1), np.asarray(expected, result))


@pytest.mark.parametrize(("shift", "exponents"), [(-8, (0, 9)), (8, (0, 7))], ids=["no whole offset", "beyond 14 bits"])
def test_channels_that_the_argument_does_not_cover_are_left_to_the_body(shift, exponents):
    b = [0, 100]
    text, shape, weight = product_text(
        "Conv2dInt", shift, 2, relu=False, more=f", exponents_w: ints = {list(exponents)}"
    )
    content, count = written(with_numbers(text, weight, b))
    assert count == 0
    pairs = list(zip(exponents, b, strict=True))
    expected = [[min(max(rounded(int(x) + t, shift + e), -128), 127) for e, t in pairs] for x in DATA]
    assert_same(run(content, {"x": DATA.reshape(shape)}).reshape(256, 2), np.asarray(expected, np.int8))


def test_a_sum_that_may_leave_32_bits_is_left_to_the_body():
    text, x, expected = product_model("LinearInt", 7, relu=False)
    model = ir.from_proto(onnx.parser.parse_model(text))
    bias = np.full(expected.shape[1], 2**31 - 100, np.int32)
    model.graph.initializers["b"].const_value = ir.tensor(bias)
    content, count = written(model)
    assert count == 0
    assert (run(content, {"x": x}) == 127).all()


@pytest.mark.parametrize("shift", [15, -33])
def test_a_longer_shift_is_left_to_the_body(shift):
    text, x, expected = product_model("Conv2dInt", 15, relu=False)
    if shift < 0:
        text, expected = text.replace(repr(2.0**-15), repr(2.0**33)), None
    content, count = written(text)
    assert count == 0
    found = run(content, {"x": x})
    assert (
        set(np.unique(found)) <= {-128, 0, 127}
        if expected is None
        else (found.reshape(expected.shape) == expected).all()
    )


@pytest.mark.parametrize("op", ["Conv2dInt", "LinearInt"])
def test_without_the_lift_ties_go_wrong(monkeypatch, op):
    monkeypatch.setattr(byte_forms, "_LIFT", 0.0)
    monkeypatch.setattr(byte_forms, "_QUARTER", 0.0)
    text, x, expected = product_model(op, 7, relu=False)
    assert (run(written(text)[0], {"x": x}).reshape(expected.shape) != expected).any()


SUM = """<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (int8[256,1,1,1] x, int8[1,256,1,1] y) => (int8[256,256,1,1] r)
<int8[1,1,1,1] w = {1}, int32[1] b = {0}> {
  p = thinker.Conv2dInt<data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8, scale_x: float = 1.0, scale_w: float = 1.0,
    scale_o: float = 1.0, dilations: ints = [1, 1], group: int = 1, kernel_shape: ints = [1, 1], pads: ints = [0, 0, 0, 0], strides: ints = [1, 1]>(x, w, b)
  P
  s = thinker.iqAdd<scale_x: float = SX, scale_y: float = SY, scale_o: float = 1.0>(ORDER)
  R
}"""


CONV_OF_ONE = """thinker.Conv2dInt<data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8, scale_x: float = 1.0, scale_w: float = 1.0,
    scale_o: float = 1.0, dilations: ints = [1, 1], group: int = 1, kernel_shape: ints = [1, 1], pads: ints = [0, 0, 0, 0], strides: ints = [1, 1]"""


def sum_model(ratios, order, *, relu, first_relu):
    scales = {"SX": 1 / ratios[0], "SY": 1 / ratios[1]}
    text = SUM.replace("  P\n", "  u = thinker.Relu(p)\n" if first_relu else "  u = Identity(p)\n")
    text = text.replace("  R\n", "  r = thinker.Relu(s)\n" if relu else "  r = Identity(s)\n").replace("ORDER", order)
    for name, scale in scales.items():
        text = text.replace(f"float = {name}", f"float = {scale!r}")
    return text


def sum_expected(ratios, order, *, relu, first_relu):
    left = np.maximum(DATA, 0) if first_relu else DATA
    operands = {"u": left.astype(np.float64).reshape(256, 1), "y": DATA.astype(np.float64).reshape(1, 256)}
    parts = [np.floor(operands[n.strip()] * r + 0.5) for n, r in zip(order.split(","), ratios, strict=True)]
    return np.clip(parts[0] + parts[1], 0 if relu else -128, 127)


RATIOS = [(1.0, 1.0), (4.0, 1.0), (256.0, 2.0), *((2.0**-n, 1.0) for n in range(1, 5))]
ROUNDED_ALONE = [(0.5, 0.5), (0.25, 0.5), (2.0**-6, 2.0**-5), (2.0**-7, 1.0), (0.5, 2.0), (0.0625, 128.0), (0.5, 256.0)]


@pytest.mark.parametrize("relu", [False, True], ids=["signed", "relu"])
@pytest.mark.parametrize("first_relu", [False, True], ids=["from signed", "from relu"])
@pytest.mark.parametrize("ratios", RATIOS + ROUNDED_ALONE, ids=str)
@pytest.mark.thin(every=2)
def test_every_sum_of_two_bytes_is_exact(ratios, relu, first_relu):
    feeds = {"x": DATA.reshape(256, 1, 1, 1), "y": DATA.reshape(1, 256, 1, 1)}
    for order in ("u, y", "y, u"):
        content, _ = written(sum_model(ratios, order, relu=relu, first_relu=first_relu))
        names = {node.op_type for node in onnx.load_from_string(content).graph.node}
        assert "Floor" not in names  # the sum has the form that is tried here
        expected = sum_expected(ratios, order, relu=relu, first_relu=first_relu)
        for level in ("disable", "all"):
            found = run(content, feeds, level).reshape(256, 256)
            assert (found == expected).all(), (order, level, np.argwhere(found != expected)[:5])


@pytest.mark.parametrize("types", ["u u u", "u u s", "u s u", "s u u", "u s s", "s u s", "s s u"])
@pytest.mark.parametrize("ratios", RATIOS + ROUNDED_ALONE[:4:2], ids=str)
@pytest.mark.thin(every=2)
def test_every_sum_with_unsigned_bytes_is_exact(ratios, types):
    """Each of the operands and of the result signed or unsigned: all pairs of bytes, in the kernel's own form."""
    kinds = [{"u": "uint8", "s": "int8"}[each] for each in types.split()]
    x, y = (np.arange(256).astype(np.uint8) if kind == "uint8" else DATA for kind in kinds[:2])
    low, high = (0, 255) if kinds[2] == "uint8" else (-128, 127)
    more = ", o_unsigned: int = 1" * (kinds[2] == "uint8")
    keep = CONV_OF_ONE + ", o_unsigned: int = 1" * (kinds[0] == "uint8")
    text = f"""<ir_version: 8, opset_import: ["": 12, "thinker": 1]>
    g ({kinds[0]}[256,1,1,1] x, {kinds[1]}[1,256,1,1] y) => ({kinds[2]}[256,256,1,1] r) <int8[1,1,1,1] w = {{1}}, int32[1] b = {{0}}> {{
      p = {keep}>(x, w, b)
      s = thinker.iqAdd<scale_x: float = {1 / ratios[0]!r}, scale_y: float = {1 / ratios[1]!r}, scale_o: float = 1.0{more}>(p, y)
      r = Identity(s)
    }}"""
    content, count = written(text)
    assert count == 2
    left, right = (
        [rounded(int(n), -int(np.log2(ratio))) for n in numbers] for numbers, ratio in zip((x, y), ratios, strict=True)
    )
    expected = np.clip(np.asarray(left)[:, None] + np.asarray(right), low, high).astype(kinds[2])
    for level in LEVELS:
        found = run(content, {"x": x.reshape(256, 1, 1, 1), "y": y.reshape(1, 256, 1, 1)}, level)
        assert_same(found.reshape(256, 256), expected)


@pytest.mark.parametrize("ratios", [(2.0**-8, 1.0), (512.0, 1.0)], ids=["ratio too small", "ratio too large"])
def test_other_sums_are_left_to_the_body(ratios):
    feeds = {"x": DATA.reshape(256, 1, 1, 1), "y": DATA.reshape(1, 256, 1, 1)}
    content, count = written(sum_model(ratios, "u, y", relu=True, first_relu=False))
    assert count == 1
    expected = sum_expected(ratios, "u, y", relu=True, first_relu=False)
    assert (run(content, feeds).reshape(256, 256) == expected).all()


def test_without_the_lift_sums_go_wrong(monkeypatch):
    monkeypatch.setattr(byte_forms, "_SUM_LIFT", 0.0)
    feeds = {"x": DATA.reshape(256, 1, 1, 1), "y": DATA.reshape(1, 256, 1, 1)}
    content, _ = written(sum_model((0.25, 1.0), "u, y", relu=False, first_relu=False))
    expected = sum_expected((0.25, 1.0), "u, y", relu=False, first_relu=False)
    assert (run(content, feeds).reshape(256, 256) != expected).any()


def windows(kernel, low, high):
    """Rows of numbers, a window each, one for every sum that a window of them can have."""
    sums = np.arange(low * math.prod(kernel), high * math.prod(kernel) + 1)
    least, rest = np.divmod(sums, math.prod(kernel))
    return least[:, None] + (np.arange(math.prod(kernel)) < rest[:, None])


def pool_model(kernel, scale_o, kind):
    """An average pool behind a convolution that changes nothing, behind a ReLU, or of unsigned bytes."""
    area, unsigned = ", ".join(map(str, kernel)), ", o_unsigned: int = 1" * (kind == "unsigned")
    bits = "data_bits: int = 8, o_bits: int = 8"
    window = f"kernel_shape: ints = [{area}], strides: ints = [{area}], pads: ints = [0, 0, 0, 0]"
    geometry = "dilations: ints = [1, 1], group: int = 1, kernel_shape: ints = [1, 1], pads: ints = [0, 0, 0, 0], strides: ints = [1, 1]"
    scales = f"scale_x: float = 16.0, scale_o: float = {scale_o!r}{unsigned}"
    before = {
        "signed": f"r = thinker.Conv2dInt<{bits}, parameter_bits: int = 8, scale_x: float = 16.0, scale_w: float = 64.0, scale_o: float = 16.0, {geometry}>(x, w, b)",
        "relu": f"c = thinker.Conv2dInt<{bits}, parameter_bits: int = 8, scale_x: float = 16.0, scale_w: float = 64.0, scale_o: float = 16.0, {geometry}>(x, w, b)  r = thinker.Relu(c)",
        "unsigned": "r = Identity(x)",
    }
    data, shape = ("uint8" if unsigned else "int8"), f"n,1,{area}"
    return f"""<ir_version: 8, opset_import: ["": 13, "thinker": 1]> g ({data}[{shape}] x) => ({data}[n,1,1,1] y)
    <int8[1,1,1,1] w = {{64}}, int32[1] b = {{0}}, {data}[{shape}] r> {{
      {before[kind]}
      y = thinker.AvgPool2dInt<{bits}, {scales}, {window}>(r)
    }}"""


@pytest.mark.parametrize("kind", ["signed", "relu", "unsigned"])
@pytest.mark.parametrize("scale_o", [16.0, 8.0, 32.0])
@pytest.mark.parametrize("kernel", [(2, 2), (1, 3), (2, 3), (7, 7), (8, 8)], ids=str)
@pytest.mark.thin(every=3)
def test_every_sum_of_a_window_is_averaged_exactly(kernel, scale_o, kind):
    text, kinds = pool_model(kernel, scale_o, kind), np.uint8 if kind == "unsigned" else np.int8
    model = ir.from_proto(onnx.parser.parse_model(text))
    content, _ = written(model)
    nodes = [node.op_type for node in onnx.load_from_string(content).graph.node]
    assert "AveragePool" not in nodes
    low, high = (0, 255) if kind == "unsigned" else (-128, 127)
    x = windows(kernel, low, high).reshape(-1, 1, *kernel).astype(kinds)
    sums = (
        x.astype(object).sum(axis=(1, 2, 3)) if kind != "relu" else np.maximum(x, 0).astype(object).sum(axis=(1, 2, 3))
    )
    factor = Fraction(window_reciprocal(kernel)) * Fraction(scale_o) / 16
    expected = [min(max(math.floor(total * factor + Fraction(1, 2)), low), high) for total in sums]
    for level in LEVELS:
        assert_same(run(content, {"x": x}, level).ravel(), np.asarray(expected, kinds))


@pytest.mark.parametrize("kind", ["signed", "relu"])
def test_a_mean_that_no_factor_gives_is_left_to_the_body(monkeypatch, kind):
    monkeypatch.setattr(byte_forms, "exact_mean", lambda *given, **choice: None)
    content, _ = written(pool_model((2, 2), 16.0, kind))
    assert "AveragePool" in [node.op_type for node in onnx.load_from_string(content).graph.node]
    x = windows((2, 2), -128, 127).reshape(-1, 1, 2, 2).astype(np.int8)
    data = np.maximum(x, 0) if kind == "relu" else x
    expected = (data.astype(np.int64).sum(axis=(1, 2, 3)) + 2) >> 2
    assert_same(run(content, {"x": x}).ravel(), expected.astype(np.int8))


def test_windows_of_unknown_channels_or_too_many_sums_are_left_to_the_body():
    for old, new in (("n,1,2, 2", "n,c,2, 2"), ("2, 2", "65, 65")):
        content, _ = written(pool_model((2, 2), 16.0, "signed").replace(old, new))
        assert "AveragePool" in [node.op_type for node in onnx.load_from_string(content).graph.node]


def layer_samples():
    """Samples of the ops that have such a form."""
    found = [
        (op, s)
        for op in ops().values()
        if op.is_pointwise or (op.float_op or op.name) in byte_forms.FORMS
        for s in op.samples
    ]
    return {"argvalues": found, "ids": [f"{op.name}: {s.name}" for op, s in found]}


@pytest.mark.parametrize("is_saturating", [True, False], ids=["any CPU", "this CPU"])
@pytest.mark.parametrize(("op", "sample"), **layer_samples())
@pytest.mark.thin(every=2)
def test_samples_are_equal(op, sample, is_saturating):
    given = arrays(sample)
    model = single_node_model(op, given, sample.attributes, opset=12)
    content, _ = written(model, is_saturating=is_saturating or has_saturating_products())
    names = [i.name for i in onnx.load_from_string(content).graph.input]
    feeds = dict(zip(names, [a for a in given if a is not None], strict=False))
    assert_same(run(content, feeds), run_numpy(op, given, sample.attributes))


def extreme_network(sign):
    """A ReLU whose result is 127 everywhere, then 64 inputs with the largest weights: pairs of 127·128, or of 255·128 with signed data."""
    weights = ", ".join(str(127 if sign > 0 else -128) for _ in range(8 * 64))
    conv = """thinker.Conv2dInt<data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8, scale_x: float = 1.0, scale_w: float = 1.0,
    scale_o: float = 0.00006103515625, dilations: ints = [1, 1], group: int = 1, kernel_shape: ints = [1, 1], pads: ints = [0, 0, 0, 0], strides: ints = [1, 1]>"""
    linear = "thinker.LinearInt<data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8, scale_x: float = 1.0, scale_w: float = 1.0, scale_o: float = 0.00006103515625>"
    ones = ", ".join("1" if i % 65 == 0 else "0" for i in range(64 * 64))
    zeros = ", ".join("0" for _ in range(64))
    keep = conv.replace("0.00006103515625", "1.0")
    return f"""<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (int8[2,64,3,3] x) => (int8[2,8,3,3] c, int8[2,8,3,3] d, int8[2,3,3,8] f)
    <int8[64,64,1,1] i = {{{ones}}}, int32[64] bi = {{{zeros}}}, int8[8,64,1,1] w = {{{weights}}}, int8[8,64] m = {{{weights}}}, int32[8] b = {{0,0,0,0,0,0,0,0}}> {{
      p = {keep}(x, i, bi)
      a = thinker.Relu(p)
      c = {conv}(a, w, b)
      d = {conv}(x, w, b)
      t = Transpose<perm: ints = [0, 2, 3, 1]>(a)
      f = {linear}(t, m, b)
    }}"""


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_do_not_saturate_on_any_cpu(sign):
    content, _ = written(extreme_network(sign))
    x = np.full((2, 64, 3, 3), 127, np.int8)
    options = ort.SessionOptions()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    c, d, f = session.run(None, {"x": x})
    expected = np.floor(64 * 127 * (127 if sign > 0 else -128) / 2**14 + 0.5)
    for found in (c, d, f):
        assert (found == expected).all()


def test_signed_weights_meet_only_data_that_cannot_saturate():
    """What the kernels of CPUs without VNNI compute for the products that a file for every CPU has, pair by pair."""
    graph = onnx.load_from_string(written(extreme_network(-1))[0]).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    products = [node for node in graph.node if node.op_type in ("QLinearConv", "MatMulInteger")]
    kinds = set()
    for node in products:
        weight, zero = (
            (node.input[3], node.input[2]) if node.op_type == "QLinearConv" else (node.input[1], node.input[2])
        )
        w = constants[weight]
        largest = 127 if constants[zero] == 0 else 255
        kinds.add((w.dtype.name, largest))
        if w.dtype == np.int8:
            rows = w.reshape(len(w), -1).T if node.op_type == "QLinearConv" else w
            data = np.full((1, len(rows)), largest, np.uint8)
            assert (pair_sums(data, rows) == data.astype(np.int64) @ rows.astype(np.int64)).all()
    assert kinds == {("int8", 255), ("int8", 127), ("uint8", 255)}


def unsigned_network(weight):
    """64 inputs of 0 … 255 at one weight, in a convolution and a linear layer; channel c of 8 shifted by 7 + c bits."""
    weights, zeros = ", ".join([str(weight)] * 8 * 64), ", ".join(["0"] * 8)
    more = ", o_unsigned: int = 1, exponents_w: ints = [0, 1, 2, 3, 4, 5, 6, 7]"
    bits = f"data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8, scale_x: float = 1.0, scale_w: float = 1.0, scale_o: float = {2.0**-7}"
    geometry = "dilations: ints = [1, 1], group: int = 1, kernel_shape: ints = [1, 1], pads: ints = [0, 0, 0, 0], strides: ints = [1, 1]"
    return f"""<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (uint8[2,64,3,3] x) => (uint8[2,8,3,3] c, uint8[2,3,3,8] f)
    <int8[8,64,1,1] w = {{{weights}}}, int8[8,64] m = {{{weights}}}, int32[8] b = {{{zeros}}}> {{
      c = thinker.Conv2dInt<{bits}{more}, {geometry}>(x, w, b)
      t = Transpose<perm: ints = [0, 2, 3, 1]>(x)
      f = thinker.LinearInt<{bits}{more}>(t, m, b)
    }}"""


@pytest.mark.parametrize("is_saturating", [True, False], ids=["any CPU", "this CPU"])
@pytest.mark.parametrize("weight", [127, 65, 64, -64, -128])
def test_products_of_unsigned_data_do_not_saturate(weight, is_saturating):
    """Weights beyond ±64 are unsigned themselves where pairs of products may saturate."""
    if not is_saturating and has_saturating_products():
        pytest.skip("on this CPU only a file for every CPU is exact")
    content, count = written(unsigned_network(weight), is_saturating=is_saturating)
    assert count == 2
    kinds = {t.data_type for t in onnx.load_from_string(content).graph.initializer if np.prod(t.dims) == 8 * 64}
    is_signed = not is_saturating or abs(weight) <= 64
    assert kinds == {onnx.TensorProto.INT8 if is_signed else onnx.TensorProto.UINT8}
    expected = np.asarray([min(max(rounded(64 * 255 * weight, 7 + e), 0), 255) for e in range(8)], np.uint8)
    assert len(np.unique(expected)) > 1 or weight < 0
    for level in LEVELS:
        options = ort.SessionOptions()
        options.graph_optimization_level = LEVELS[level]
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        c, f = session.run(None, {"x": np.full((2, 64, 3, 3), 255, np.uint8)})
        assert_same(c, np.broadcast_to(expected.reshape(8, 1, 1), c.shape))
        assert_same(f, np.broadcast_to(expected, f.shape))


def test_the_reference_computes_the_standard_op_itself():
    """(2·3 + 1)·0.5 = 3.5 rounds to 4, 5·0.5 = 2.5 to 2; zero points and saturation at both ends."""
    x = np.array([[[[12, 11, 255, 0]]]], np.uint8)
    text = """<ir_version: 8, opset_import: ["": 12]> g (uint8[1,1,1,4] x) => (uint8[1,1,1,4] y)
    <float s = {1.0}, uint8 zx = {10}, uint8[1,1,1,1] w = {131}, float sw = {0.5}, uint8 zw = {128}, uint8 zy = {3}, int32[1] b = {1}> {
      y = QLinearConv(x, s, zx, w, sw, zw, s, zy, b)
    }"""
    found = Reference(onnx.parser.parse_model(text)).run({"x": x})["y"]
    assert found.reshape(-1).tolist() == [4 + 3, 2 + 3, 255, 0]
    assert (run(onnx.parser.parse_model(text).SerializeToString(), {"x": x}) == found).all()
