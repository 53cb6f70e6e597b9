"""Softmax, layer normalization, matrix products and scaling of bytes in few nodes: every tie, every pair, every reciprocal."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger.dialect import ops
from linger.graph.lowering import row_forms
from linger.graph.lowering.byte_layers import write_byte_layers
from linger.numeric import curves
from linger.numeric.numpy_kernel import NumpyKernel
from linger.runtime.session import LEVELS, Session
from tests.graph.lowering.test_byte_forms import run
from tests.support.comparison import assert_same
from tests.support.lowering import expand_dialect

BYTES = np.arange(-128, 128).astype(np.int8)
PAIRS = np.stack(np.meshgrid(BYTES, BYTES, indexing="ij"), -1).reshape(-1, 2)


def model_of(op, attributes, inputs, *, opset=12, shape=None, more=()):
    """One node whose first input is the model's; the others are constants."""
    kinds = {"float32": "float", "int8": "int8", "uint8": "uint8", "int16": "int16", "int32": "int32"}
    given = ",".join(map(str, shape or inputs[0].shape))
    names = ["x", *(f"c{i}" for i in range(1, len(inputs)))]
    made = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}, "thinker": 1]>
        g ({kinds[str(inputs[0].dtype)]}[{given}] x) => (int8[] y) {{ y = thinker.{op}({", ".join(names)}) }}"""
    )
    made.graph.output[0].type.tensor_type.ClearField("shape")
    for name, value in attributes.items():
        made.graph.node[0].attribute.append(onnx.helper.make_attribute(name, value))
    for name, content in zip(names[1:], inputs[1:], strict=True):
        made.graph.initializer.append(onnx.numpy_helper.from_array(content, name))
    made.graph.value_info.extend(more)
    return made


def written(proto, *, is_saturating=True):
    """The model with the forms of this file, as bytes, and how many nodes it has besides constants; the form must be there."""
    model = ir.from_proto(proto)
    assert len(write_byte_layers(model, is_saturating=is_saturating)) == 1
    count = sum(node.op_type not in ("Constant", "Identity") for node in model.graph)
    expand_dialect(model)
    return ir.to_proto(model).SerializeToString(), count


def require_equal(op, attributes, *inputs, levels=("disable", "all"), opset=12, shape=None):
    content, _ = written(model_of(op, attributes, inputs, opset=opset, shape=shape))
    expected = ops()[op].body(NumpyKernel(), *inputs, **ops()[op].complete(attributes))
    for level in levels:
        found = run(content, {"x": inputs[0]}, level)
        assert_same(found, expected)


def softmax_of(scale_x, scale_o, dim=-1):
    return {"dim": dim, "data_bits": 8, "o_bits": 8, "scale_x": float(scale_x), "scale_o": float(scale_o)}


@pytest.mark.parametrize("level", [0, 6, 7, 8, 11, 14, 15])
@pytest.mark.parametrize("scale_x", [2, 64, 2.0**25], ids=["2", "64", "2^25"])
def test_softmax_of_every_pair_of_bytes(scale_x, level):
    require_equal("SoftmaxInt", softmax_of(scale_x, 2.0**level), PAIRS)


@pytest.mark.parametrize("length", [1, 3, 64, 255, 256, 300, 1000])
def test_softmax_of_rows(length):
    draw = np.random.default_rng(length)
    rows = np.concatenate(
        [draw.integers(-128, 128, (40, length)), draw.integers(-4, 4, (40, length)), np.full((1, length), 127)]
    )
    for scale_x in (4, 64):
        require_equal("SoftmaxInt", softmax_of(scale_x, 2.0**11), rows.astype(np.int8), levels=LEVELS)
        require_equal("SoftmaxInt", softmax_of(scale_x, 128), rows.astype(np.int8).reshape(3, 27, length))


@pytest.mark.parametrize("opset", [12, 13, 14, 18, 20, 21])
def test_every_opset_and_empty_batches(opset):
    for rows in (3, 0):
        x = np.random.default_rng(0).integers(-128, 128, (rows, 4, 16)).astype(np.int8)
        require_equal("SoftmaxInt", softmax_of(16, 128, 2), x, opset=opset, shape=("n", 4, 16))
        require_equal("LayerNormInt", *norm_of(16), x, *columns(16), opset=opset, shape=("n", 4, 16))
        y = np.random.default_rng(1).integers(-128, 128, (16, 3)).astype(np.int8)
        scales = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 8.0}
        require_equal("BmmInt", scales, x, y, opset=opset, shape=("n", 4, 16))


@pytest.mark.parametrize(
    "attributes",
    [softmax_of(1, 128), softmax_of(2.0**26, 128), softmax_of(16, 2.0**-1), softmax_of(16, 128, 1)],
    ids=["saturates in Q25", "rounds in Q25", "no bit of the result", "another axis"],
)
def test_other_softmaxes_are_left_to_the_body(attributes):
    model = ir.from_proto(model_of("SoftmaxInt", attributes, [PAIRS.reshape(2, -1, 2)]))
    assert write_byte_layers(model) == []


def reciprocals(monkeypatch=None, **faults):
    """Sums to which the form gives another reciprocal than the device's: every x, and every number of doublings."""
    for name, value in faults.items():
        monkeypatch.setattr(row_forms, name, value)
    first = np.arange(2**22, 2**23, dtype=np.float64)
    ends = np.concatenate([2.0**n + np.arange(-3, 4) for n in range(24, 31)])
    totals = np.concatenate([first * 2 + 1, ends, np.linspace(2**24, 2**31 - 1, 50_000).round()]).reshape(-1, 1)
    writer = _Alone()
    writer.emit("Identity", [row_forms._reciprocal(writer, writer.x)])
    found = run(writer.content(), {"x": totals})
    return np.count_nonzero(found != curves._reciprocal(NumpyKernel(), totals))


class _Alone:
    """Writes nodes behind one column of float64."""

    opset = 12

    def __init__(self):
        self.x = ir.Value(name="x", type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape(["n", 1]))
        self.nodes, self.constants = [], []

    def emit(self, op_type, inputs, **attributes):
        attrs = [ir.AttrInt64(name, value) for name, value in attributes.items()]
        out = ir.Value(name=f"v{len(self.nodes)}")
        self.nodes.append(ir.Node("", op_type, inputs, attributes=attrs, outputs=[out]))
        return out

    def initializer(self, content, dtype, role):
        tensor = ir.tensor(np.asarray(content, dtype), name=f"c{len(self.constants)}")
        self.constants.append(ir.Value(name=tensor.name, const_value=tensor))
        return self.constants[-1]

    def content(self):
        last = self.nodes[-1].outputs[0]
        last.type, last.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape(["n", 1])
        graph = ir.Graph(
            [self.x], [last], nodes=self.nodes, initializers=self.constants, opset_imports={"": 12}, name="g"
        )
        return ir.to_proto(ir.Model(graph, ir_version=8)).SerializeToString()


def test_every_reciprocal_is_the_devices():
    assert reciprocals() == 0


@pytest.mark.parametrize("name", ["_LIFT_OF_X", "_LIFT_OF_REST"])
@pytest.mark.parametrize("value", [0.0, 2.0**-20], ids=["no lift", "too high"])
def test_with_another_lift_reciprocals_go_wrong(monkeypatch, name, value):
    assert reciprocals(monkeypatch, **{name: value}) > 0


def norm_of(length, scale_x=16.0, scale_w=2.0**14, scale_o=32.0, **more):
    scales = {"scale_x": float(scale_x), "scale_w": float(scale_w), "scale_o": float(scale_o)}
    return ({"data_bits": 8, "parameter_bits": 16, "o_bits": 8, **scales, **more},)


def columns(length, seed=0):
    """A weight and a bias: the ends of both types among others."""
    draw = np.random.default_rng(seed)
    w = draw.integers(-(2**15), 2**15, length).astype(np.int16)
    b = draw.integers(-(2**26), 2**26, length).astype(np.int32)
    w[: length // 4], b[-1:] = 2**15 - 1, -(2**31)
    return w, b


@pytest.mark.parametrize("scale_o", [2.0, 32.0, 2.0**10, 2.0**24], ids=["2", "32", "2^10", "2^24"])
def test_normalization_of_every_pair_of_bytes(scale_o):
    require_equal("LayerNormInt", *norm_of(2, scale_o=scale_o), PAIRS, *columns(2))


def test_a_coarse_result_of_small_weights():
    """The sum of 32 bits does not saturate, whatever the result's scale."""
    x = np.random.default_rng(0).integers(-128, 128, (50, 16)).astype(np.int8)
    w, b = np.full(16, 2**14, np.int16), np.arange(-8, 8).astype(np.int32) * 2**23
    require_equal("LayerNormInt", *norm_of(16, scale_o=2.0**-2), x, w, b)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.125])
@pytest.mark.parametrize("length", [1, 3, 8, 100, 128, 1000, 1100, 5000])
def test_normalization_of_rows(length, eps):
    draw = np.random.default_rng(length)
    ends = np.where(np.arange(length) == 0, 127, -128)
    rows = [
        draw.integers(-128, 128, (30, length)),
        draw.integers(0, 2, (30, length)),
        [np.full(length, 7), ends, -1 - ends],
    ]
    x = np.concatenate([np.asarray(part).reshape(-1, length) for part in rows]).astype(np.int8)
    for scale_x in (0.5, 32.0, 2.0**12):
        require_equal("LayerNormInt", *norm_of(length, scale_x=scale_x, eps=eps), x, *columns(length, 3))


def test_normalization_over_several_axes_and_of_unsigned_bytes():
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 6)).astype(np.uint8)
    require_equal("LayerNormInt", *norm_of(30), x, *columns(30), levels=LEVELS)
    require_equal("SoftmaxInt", softmax_of(4, 128), x, levels=LEVELS)


@pytest.mark.parametrize(
    ("attributes", "weight"),
    [
        (norm_of(8, scale_x=2.0**30, eps=0.125)[0], 8),
        (norm_of(8, scale_o=2.0**0, scale_w=2.0**15)[0], 8),
        (norm_of(6)[0], 6),
    ],
    ids=["eps beyond float64", "sums of 32 bits may saturate", "no whole axes"],
)
def test_other_normalizations_are_left_to_the_body(attributes, weight):
    x = np.zeros((2, 3, 4) if weight == 6 else (2, 8), np.int8)
    proto = model_of("LayerNormInt", attributes, [x, *columns(weight)])
    assert write_byte_layers(ir.from_proto(proto)) == []


@pytest.mark.parametrize("unsigned", [0, 1], ids=["signed", "unsigned"])
@pytest.mark.parametrize("shift", [-2, 0, 1, 2, 7, 13, 14])
def test_every_product_of_two_bytes(shift, unsigned):
    scales = {"scale_x": 2.0**shift, "scale_y": 1.0, "scale_o": 1.0, "data_bits": 8, "o_bits": 8}
    scales |= {"o_unsigned": 1} if unsigned else {}
    require_equal("BmmInt", scales, BYTES.reshape(256, 1), BYTES.reshape(1, 256), levels=LEVELS)


@pytest.mark.parametrize("shift", [1, 9, 14])
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, -1)], ids=str)
def test_long_sums_of_the_largest_products(shift, signs):
    """Beyond 2^24, and beside 2^22: what has no quarter saturates."""
    x = np.full((3, 2000), 127 * signs[0], np.int8)
    y = np.full((2000, 64), 127 * signs[1], np.int8)
    x[1, 260:], x[2, 261:] = 0, 0
    y[259, :] = np.arange(64)
    scales = {"scale_x": 2.0**shift, "scale_y": 1.0, "scale_o": 1.0}
    require_equal("BmmInt", scales, x, y, levels=LEVELS)


@pytest.mark.parametrize("number", [-128, -3, 0, 1, 32])
@pytest.mark.parametrize("shift", [0, 1, 5])
def test_a_product_with_a_number_is_a_table(number, shift):
    scales = {"scale_x": 2.0**shift, "scale_y": 1.0, "scale_o": 1.0}
    require_equal("iqMul", scales, BYTES.reshape(2, 128), np.asarray(number, np.int8))
    content, _ = written(model_of("iqMul", scales, [BYTES.reshape(2, 128), np.asarray([[number]], np.int8)]))
    expected = ops()["iqMul"].body(NumpyKernel(), BYTES.reshape(2, 128), np.int8(number), **scales)
    assert_same(run(content, {"x": BYTES.reshape(2, 128)}), expected)


def test_a_number_with_more_axes_is_left_to_the_body():
    scales = {"scale_x": 1.0, "scale_y": 1.0, "scale_o": 1.0}
    assert write_byte_layers(ir.from_proto(model_of("iqMul", scales, [BYTES, np.ones((1, 1), np.int8)]))) == []


X = np.random.default_rng(0).integers(-128, 128, (3, 64)).astype(np.int8)
MOST = {  # nodes, with what makes signed bytes of the result
    "SoftmaxInt": ((softmax_of(16, 128), X), 40),
    "LayerNormInt": ((*norm_of(64), X, *columns(64)), 28),
    "BmmInt": (({"scale_x": 16.0, "scale_y": 16.0, "scale_o": 8.0}, X, X.T.copy()), 8),
    "iqMul": (({"scale_x": 16.0, "scale_y": 16.0, "scale_o": 8.0}, X, np.int8(3)), 6),
}


@pytest.mark.parametrize("is_saturating", [True, False], ids=["any CPU", "this CPU"])
@pytest.mark.parametrize("op", MOST)
def test_few_nodes_are_written(op, is_saturating):
    (attributes, *inputs), most = MOST[op]
    inputs = [np.asarray(each) for each in inputs]
    assert written(model_of(op, attributes, inputs), is_saturating=is_saturating)[1] <= most


def shifted(k, x, *, source, original=curves.power_below):
    return np.roll(original(k, x, source=source), 1)


FAULTS = {
    "a table shifted by one": ("curves.power_below", shifted, "SoftmaxInt", (softmax_of(16, 128), X)),
    "no saturated sum": ("_INT32_END", 2.0**60, "SoftmaxInt", (softmax_of(16, 2.0**15), np.zeros((1, 400), np.int8))),
    "Q25 without an end": (
        "_is_whole_in_q25",
        lambda x, scale: True,
        "SoftmaxInt",
        (softmax_of(0.5, 128), np.array([[127, 126, -3]], np.int8)),
    ),
    "no quarter": (
        "_QUARTER",
        0.0,
        "BmmInt",
        ({"scale_x": 2.0, "scale_y": 1.0, "scale_o": 1.0}, BYTES.reshape(256, 1), BYTES.reshape(1, 256)),
    ),
    "a shift beyond 14": (  # a tie of 64½ that float32 holds without its quarter
        "_LARGEST_SHIFT",
        16,
        "BmmInt",
        (
            {"scale_x": 2.0**16, "scale_y": 1.0, "scale_o": 1.0},
            np.array([[127] * 262 + [98]], np.int8),
            np.array([[127] * 262 + [13]], np.int8).T.copy(),
        ),
    ),
    "roots shifted by one": ("curves.ROOTS", (0, *curves.ROOTS[:-1]), "LayerNormInt", (*norm_of(64), X, *columns(64))),
    "n of more bits": (
        "curves.NORMAL_BITS",
        20,
        "LayerNormInt",
        (
            *norm_of(5000, scale_o=2.0),
            np.eye(1, 5000, dtype=np.int8) * 127,
            np.full(5000, 64, np.int16),
            np.zeros(5000, np.int32),
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_the_forms_are_found(monkeypatch, fault):
    name, value, op, (attributes, *inputs) = FAULTS[fault]
    place = "byte_layers" if name == "_QUARTER" else "row_forms"
    monkeypatch.setattr(f"linger.graph.lowering.{place}.{name}", value)
    content, _ = written(model_of(op, attributes, inputs))
    monkeypatch.undo()
    expected = ops()[op].body(NumpyKernel(), *inputs, **ops()[op].complete(attributes))
    assert (run(content, {"x": inputs[0]}) != expected).any()


NETWORK = """<ir_version: 8, opset_import: ["": 12, "thinker": 1]>
    g (float[n,6,8] x) => (float[n,6,6] y) <int16[8] w = {16384, 9, -3, 5000, 30000, -30000, 1, 2}, int32[8] b = {0, 1, 2, 3, 4, 5, 6, 7}> {
      q = thinker.Quant<data_bits: int = 8, scale_x: float = 16.0>(x)
      a = thinker.LayerNormInt<data_bits: int = 8, parameter_bits: int = 16, o_bits: int = 8, scale_x: float = 16.0, scale_w: float = 16384.0, scale_o: float = 32.0>(q, w, b)
      t = Transpose<perm: ints = [0, 2, 1]>(a)
      p = thinker.BmmInt<data_bits: int = 8, o_bits: int = 8, scale_x: float = 32.0, scale_y: float = 32.0, scale_o: float = 8.0>(a, t)
      s = thinker.SoftmaxInt<dim: int = -1, data_bits: int = 8, o_bits: int = 8, scale_x: float = 8.0, scale_o: float = 128.0>(p)
      y = thinker.Dequant<scale_o: float = 128.0>(s)
    }"""


def test_a_session_runs_them():
    """Shapes inside the model are not stated: a session infers them."""
    proto = onnx.parser.parse_model(NETWORK)
    session, plain = Session(proto), Session(proto, as_written=True)
    assert "integer kernels or tables: 5" in session.kernels
    for batch in (2, 1, 0):
        x = np.random.default_rng(batch).standard_normal((batch, 6, 8)).astype(np.float32) * 3
        assert_same(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0])


@pytest.mark.parametrize("form", ["dialect", "standard"])
def test_the_proof_holds(form):
    model = ir.from_proto(onnx.parser.parse_model(NETWORK))
    if form == "standard":
        write_byte_layers(model)
        expand_dialect(model)
    result = linger.verify(None, ir.to_proto(model), batches=2)
    assert result.ok, result.summary()
