"""Networks whose layers run in integer kernels: what becomes of names, forks, outputs and the nodes between the layers."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger.graph.lowering.byte_layers import write_byte_layers
from tests.support.kernels import optimized
from tests.support.lowering import expand_dialect

BITS = "data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8"
GEOMETRY = "dilations: ints = [1, 1], group: int = 1, kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1], strides: ints = [1, 1]"
CONV = f"thinker.Conv2dInt<{BITS}, scale_x: float = 16.0, scale_w: float = 64.0, scale_o: float = 16.0, {GEOMETRY}>"
LINEAR = f"thinker.LinearInt<{BITS}, scale_x: float = 16.0, scale_w: float = 64.0, scale_o: float = 16.0>"
ADD = "thinker.iqAdd<scale_x: float = 16.0, scale_y: float = 16.0, scale_o: float = 16.0>"


def numbers(*shape, seed=0):
    return ", ".join(map(str, np.random.default_rng(seed).integers(-128, 128, np.prod(shape))))


def network(lines, outputs="float[n,4,6,6] y", opset=12):
    """A Quant, the lines, and weights: w [4, 4, 3, 3], b, m [3, 144], c."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}, "thinker": 1]>
    g (float[n,4,6,6] x) => ({outputs})
    <int8[4,4,3,3] w = {{{numbers(4, 4, 3, 3)}}}, int32[4] b = {{500, -70, 3, 900}}, int8[3,144] m = {{{numbers(3, 144, seed=1)}}}, int32[3] c = {{5, 6, -7}}, int8 zero = {{0}}, int8 six = {{96}}> {{
      q = thinker.Quant<data_bits: int = 8, scale_x: float = 16.0>(x)
      {lines}
    }}""")


NETWORKS = {
    "relu": f"a = {CONV}(q, w, b)  r = thinker.Relu(a)  d = {CONV}(r, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "two readers of a sum": f"a = {CONV}(q, w, b)  r = thinker.Relu(a)  d = {ADD}(a, r)  e = {CONV}(d, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(e)",
    "relu6": f"a = {CONV}(q, w, b)  r = thinker.Clip(a, zero, six)  d = {CONV}(r, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "a signed limit": f"a = {CONV}(q, w, b)  n = Constant<value = int8 {{-20}}>()  r = thinker.Clip(a, n, six)  d = {CONV}(r, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "residual": f"a = {CONV}(q, w, b)  r = thinker.Relu(a)  d = {CONV}(r, w, b)  s = {ADD}(d, r)  t = thinker.Relu(s)  e = {CONV}(t, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(e)",
    "a curve": f"a = {CONV}(q, w, b)  r = thinker.iqHardswish<scale_x: float = 16.0, scale_o: float = 16.0>(a)  d = {CONV}(r, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "a curve that is not negative": f"a = {CONV}(q, w, b)  r = thinker.iqAbs<data_bits: int = 8, o_bits: int = 8, scale_x: float = 16.0, scale_o: float = 16.0>(a)  "
    f"d = {CONV}(r, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "a curve of 16 bits": f"a = {CONV}(q, w, b)  u = thinker.Requant<data_bits: int = 8, o_bits: int = 16, scale_x: float = 16.0, scale_o: float = 2048.0>(a)  "
    f"r = thinker.iqSigmoid<scale_x: float = 2048.0, scale_o: float = 128.0>(u)  d = {CONV}(r, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "pools": f"a = {CONV}(q, w, b)  r = thinker.Relu(a)  p = thinker.MaxPool<kernel_shape: ints = [3, 3], strides: ints = [1, 1], pads: ints = [1, 1, 1, 1]>(r)  "
    f"v = thinker.AvgPool2dInt<data_bits: int = 8, o_bits: int = 8, scale_x: float = 16.0, scale_o: float = 16.0, kernel_shape: ints = [3, 3], strides: ints = [1, 1], pads: ints = [1, 1, 1, 1]>(p)  "
    f"d = {CONV}(v, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "moves": f"a = {CONV}(q, w, b)  t = Transpose<perm: ints = [0, 1, 3, 2]>(a)  i = Identity(t)  d = {CONV}(i, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "parts": f"a = {CONV}(q, w, b)  r = thinker.Relu(a)  h, e = Split<axis: int = 2>(r)  f = Concat<axis: int = 2>(e, h)  "
    f"d = {CONV}(f, w, b) y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "a product of two": f"a = {CONV}(q, w, b)  r = thinker.Relu(a)  p = thinker.iqMul<scale_x: float = 16.0, scale_y: float = 16.0, scale_o: float = 16.0>(a, r)  "
    f"d = {CONV}(p, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
    "sixteen bits between": f"a = {CONV}(q, w, b)  u = {CONV.replace('o_bits: int = 8', 'o_bits: int = 16')}(a, w, b)  "
    "v = thinker.Requant<data_bits: int = 16, o_bits: int = 8, scale_x: float = 16.0, scale_o: float = 4.0>(u)  "
    f"d = {CONV}(v, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)",
}


@pytest.mark.parametrize("form", ["dialect", "standard"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.thin
def test_every_integer_is_equal(tmp_path, name, form):
    path = tmp_path / "net.onnx"
    proto = network(NETWORKS[name])
    if form == "standard":
        model = ir.from_proto(proto)
        assert len(write_byte_layers(model)) >= 3
        expand_dialect(model)
        proto = ir.to_proto(model)
    onnx.save(proto, path)
    result = linger.verify(None, path, batches=2, levels=["disable", "all"])
    assert result.ok, result.summary()
    if form == "dialect":
        assert "integer kernels" in linger.Session(path).kernels


def test_names_say_how_a_tensor_is_carried():
    model = ir.from_proto(network(NETWORKS["residual"]))
    write_byte_layers(model)
    expand_dialect(model)
    names = {value.name for node in model.graph for value in node.outputs}
    assert {"q/u8", "a/positive", "r/u7", "d/u8", "s/positive", "t/u7", "e/u8"} <= names
    assert not {"a", "r", "d", "s", "t", "e"} & names


def test_an_output_of_integers_keeps_its_name_and_type():
    lines = f"a = {CONV}(q, w, b)  r = thinker.Relu(a)  f = Flatten<axis: int = 1>(r)  z = {LINEAR}(f, m, c)"
    model = network(lines, outputs="int8[n,4,6,6] a, int8[n,3] z")
    result = linger.verify(None, model, batches=2)
    assert result.ok, result.summary()
    session = linger.Session(model)
    assert [o.type for o in session.get_outputs()] == ["tensor(int8)"] * 2
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)
    shown, (a, z) = session.intermediates({"x": x}), session.run(None, {"x": x})
    assert (shown["a"] == a).all()
    assert (shown["z"] == z).all()
    fast = session.fastest_intermediates({"x": x})
    assert {"q", "a", "r", "f", "z"} <= fast.keys()
    assert all((fast[name] == shown[name]).all() for name in ("q", "a", "r", "f", "z"))


def test_a_name_that_is_taken_leaves_the_node_as_it_is():
    proto = network(NETWORKS["relu"])
    proto.graph.node.add(op_type="Identity", input=["d"], output=["d/u8"])
    model = ir.from_proto(proto)
    assert [name.partition(" ")[0] for name in write_byte_layers(model)] == ["q", "a", "r"]
    result = linger.verify(None, proto)
    assert result.ok, result.summary()


def test_old_opsets_are_left_alone():
    model = ir.from_proto(network(NETWORKS["relu"], opset=11))
    assert write_byte_layers(model) == []
    assert linger.Session(network(NETWORKS["relu"], opset=11)).kernels == "the file as it is written"


def test_a_fault_in_the_form_is_found_by_the_proof(monkeypatch):
    from linger.graph.lowering import byte_layers as byte_forms

    monkeypatch.setattr(byte_forms, "LARGEST", 100)
    result = linger.verify(None, network(NETWORKS["residual"]), batches=2)
    assert not result.ok
    assert "linger.Session" in result.summary()


def test_on_another_provider_the_file_runs_as_it_is_written():
    session = linger.Session(network(NETWORKS["relu"]), providers=["AzureExecutionProvider", "CPUExecutionProvider"])
    assert session.kernels == "the file as it is written"


def test_passes_over_the_tensors_of_a_network():
    """What ONNX Runtime runs, node by node: a layer is one kernel and the Clip of its ReLU, a sum is one kernel."""
    model = ir.from_proto(network(NETWORKS["residual"]))
    write_byte_layers(model)
    expand_dialect(model)
    found = [node.op_type for node in optimized(model, "ENABLE_EXTENDED").graph.all_nodes()]
    assert [kind for kind in found if kind != "Constant"] == [
        *("Mul", "Add", "Floor", "QuantizeLinear"),  # the input, unsigned at once
        *("QLinearConv", "Clip"),
        "QLinearConv",
        *("QLinearAdd", "Clip"),
        "QLinearConv",
        "DequantizeLinear",
    ]


LINES = f"h = {CONV}(q, w, b)  r = CLIP  d = {CONV}(r, w, b)  y = thinker.Dequant<scale_o: float = 16.0>(d)"


def require_equal(proto, *, batches=2):
    """The proof, which runs the file as it is written and as a session runs it."""
    result = linger.verify(None, proto, batches=batches)
    assert result.ok, result.summary()
    return result


@pytest.mark.parametrize(
    "clip",
    [
        "thinker.Clip(h, zero, hi)",
        "thinker.Clip(h, zero, minus)",
        "thinker.Clip(h, row, six)",
        "thinker.Clip(h, row, minus)",
    ],
    ids=[
        "an upper end that is computed",
        "an upper end below the lower one",
        "ends of one axis",
        "ends of one axis, reversed",
    ],
)
def test_a_clip_that_keeps_its_form_gets_signed_bytes(clip):
    """What stands before it is not limited to 127 yet if the Clip does that, so the Clip must be written too."""
    more = "minus = Constant<value = int8 {-5}>()  row = Constant<value = int8[1] {0}>()  hi = Identity(big)  "
    proto = network(more + LINES.replace("CLIP", clip))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("big", onnx.TensorProto.INT8, []))
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32) * 4
    feeds = {"x": x, "big": np.array(100, np.int8)}
    found, expected = (linger.Session(proto, as_written=w).run(None, feeds)[0] for w in (False, True))
    assert (found == expected).all()
    assert len(np.unique(expected)) > 1


NAMES = [
    "r/u8",
    "r/u7",
    "r/positive",
    "h/u8",
    "q/u8",
    "q/real",
    "q/real/scale_0",
    "d/weight_0",
    "d/QLinearConv_0",
    "h/scale_1",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thin(every=8)
def test_names_of_the_file_stay_its_own(name):
    proto = network(LINES.replace("CLIP", "thinker.Relu(h)"))
    proto.graph.node.insert(0, onnx.helper.make_node("Neg", ["x"], [name]))
    require_equal(proto)


def test_a_limit_below_zero_behind_a_relu():
    lines = f"h = {CONV}(q, w, b)  r = thinker.Relu(h)  low = Constant<value = int8 {{-20}}>()  high = Constant<value = int8 {{-5}}>()  "
    lines += "k = thinker.Clip(r, low, high)  y = thinker.Dequant<scale_o: float = 16.0>(k)"
    proto = network(lines)
    x = np.zeros((1, 4, 6, 6), np.float32)
    assert (linger.Session(proto).run(None, {"x": x})[0] == -5 / 16).all()


def test_a_window_that_lies_in_the_padding_has_the_lowest_number():
    pool = "thinker.MaxPool<kernel_shape: ints = [2, 2], strides: ints = [1, 1], pads: ints = [1, 1, 1, 1], dilations: ints = [7, 7]>(r)"
    lines = f"h = {CONV}(q, w, b)  r = thinker.Relu(h)  p = {pool}  y = thinker.Dequant<scale_o: float = 16.0>(p)"
    proto = network(lines, outputs="float[n,4,1,1] y")
    require_equal(proto)
    assert linger.Session(proto).run(None, {"x": np.zeros((1, 4, 6, 6), np.float32)})[0].shape == (1, 4, 1, 1)


def test_a_curve_behind_a_pool_whose_last_window_begins_in_the_padding():
    pool = "thinker.MaxPool<kernel_shape: ints = [2, 2], strides: ints = [2, 2], pads: ints = [1, 1, 1, 1], ceil_mode: int = 1>(q)"
    curve = "thinker.iqHardswish<scale_x: float = 16.0, scale_o: float = 16.0>(p)"
    text = f"""<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (float[1,1,5,5] x) => (float[1,1,h,w] y) {{
      q = thinker.Quant<data_bits: int = 8, scale_x: float = 16.0>(x)
      p = {pool}  c = {curve}  y = thinker.Dequant<scale_o: float = 16.0>(c)
    }}"""
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5) / 8
    found, expected = (
        linger.Session(onnx.parser.parse_model(text), as_written=w).run(None, {"x": x})[0] for w in (0, 1)
    )
    assert found.shape == expected.shape
    assert (found == expected).all()


@pytest.mark.parametrize("opset", [12, 15])
def test_a_curve_of_nothing(opset):
    text = f"""<ir_version: 8, opset_import: ["": {opset}, "thinker": 1]> g (float[a,b,4] x) => (float[a,b,4] y) {{
      q = thinker.Quant<data_bits: int = 8, scale_x: float = 16.0>(x)
      c = thinker.iqSwish<scale_x: float = 16.0, scale_o: float = 16.0>(q)
      y = thinker.Dequant<scale_o: float = 16.0>(c)
    }}"""
    session = linger.Session(onnx.parser.parse_model(text))
    assert session.run(None, {"x": np.zeros((2, 0, 4), np.float32)})[0].shape == (2, 0, 4)
    assert session.run(None, {"x": np.zeros((2, 3, 4), np.float32)})[0].shape == (2, 3, 4)


def test_multiplications_are_those_of_the_dialect(tmp_path):
    proto = network(NETWORKS["residual"].replace("float[n,4,6,6]", "float[1,4,6,6]"))
    model = ir.from_proto(proto)
    write_byte_layers(model)
    expand_dialect(model)
    counts = []
    for name, content in (("dialect", proto), ("standard", ir.to_proto(model))):
        for value in (*content.graph.input, *content.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1
        onnx.save(content, tmp_path / f"{name}.onnx")
        counts.append(linger.memory(tmp_path / f"{name}.onnx").macs)
    assert counts == [3 * 4 * 36 * 36] * 2


def test_a_tensor_and_its_carrier_count_once():
    result = require_equal(network(NETWORKS["relu"]), batches=1)
    model = ir.from_proto(network(NETWORKS["relu"]))
    write_byte_layers(model)
    expand_dialect(model)
    again = require_equal(ir.to_proto(model), batches=1)
    names = {row.name for row in again.rows}
    assert {"q", "r", "d", "a/positive"} <= names
    assert not {"q/u8", "r/u7", "d/u8"} & names
    assert {row.name for row in result.rows} == {"q", "a", "r", "d"}


@pytest.mark.parametrize(
    ("options", "kind"), [({}, "UINT8"), ({"is_saturating": False}, "INT8")], ids=["default", "sure"]
)
def test_weights_are_unsigned_unless_the_file_may_saturate_elsewhere(options, kind):
    # products of unsigned data and signed weights saturate in pairs on some CPUs; a file runs on any of them
    model = ir.from_proto(network(NETWORKS["relu"]))
    write_byte_layers(model, **options)
    (first, *_) = [node for node in model.graph if node.op_type == "QLinearConv"]
    assert first.inputs[3].const_value.dtype.name == kind
