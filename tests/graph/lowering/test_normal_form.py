"""The form in which bodies can be applied."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import Session
from linger.errors import GraphError, UnsupportedError
from linger.graph.lowering.bodies import bring_to_normal_form, element_bits_of, expand_dialect
from linger.runtime.reference import Reference

QUANT = "q = thinker.Quant<data_bits=8, scale_x=16.0>(x)"
END = "y = thinker.Dequant<scale_o=16.0>(r)"


def model(middle, shape="1,1,4,4", extra=""):
    text = f"""<ir_version: 8, opset_import: ["": 12, "thinker": 1]>
    g (float[{shape}] x) => (float[a,b,c,d] y) {extra} {{ {QUANT} {middle} {END} }}"""
    return ir.from_proto(onnx.parser.parse_model(text))


def test_integer_standard_ops_are_adopted_and_float_ones_are_not():
    text = """<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (float[2] x) => (float[2] y) {
      f = Relu(x)  q = thinker.Quant<data_bits=8, scale_x=16.0>(f)  r = Relu(q)  y = thinker.Dequant<scale_o=16.0>(r) }"""
    made = ir.from_proto(onnx.parser.parse_model(text))
    bring_to_normal_form(made)
    assert [n.domain for n in made.graph if n.op_type == "Relu"] == ["", "thinker"]
    assert len(bring_to_normal_form(made)) == 0  # idempotent


def test_all_unknown_ops_are_named():
    with pytest.raises(
        UnsupportedError, match=r"no op for iqBar, iqFoo \(nodes p \(iqFoo\), q \(iqBar\)\).*Update linger"
    ):
        bring_to_normal_form(model("[p] a = thinker.iqFoo(q) [q] r = thinker.iqBar(a)"))


def test_file_without_dialect_nodes_is_left_alone():
    text = """<ir_version: 8, opset_import: ["": 12]> g (int8[2] x) => (int8[2] y) { y = Relu(x) }"""
    made = ir.from_proto(onnx.parser.parse_model(text))
    bring_to_normal_form(made)
    assert made.graph[0].domain == ""


def test_unsorted_nodes_are_sorted():
    made = model("r = Relu(q)")
    made.graph.append(made.graph[0])  # moves Quant behind its consumers
    bring_to_normal_form(made)
    assert [n.op_type for n in made.graph] == ["Quant", "Relu", "Dequant"]


@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        ("low = Constant<value = int8 {-3}>() r = Clip(q, low)", [-3, 5, 20]),
        ('high = Constant<value = int8 {7}>() r = Clip(q, "", high)', [-20, 5, 7]),
        ("r = Clip(q)", [-20, 5, 20]),
    ],
    ids=["low only", "high only", "neither"],
)
def test_one_sided_clip_runs_everywhere(middle, expected):
    made = model(middle, shape="1,1,1,3")
    feeds = {"x": np.array([-20, 5, 20], np.float32).reshape(1, 1, 1, 3) / 16}
    assert (Session(made).run(None, feeds)[0].reshape(-1) * 16).tolist() == expected
    assert (Reference(made).run(feeds)["y"].reshape(-1) * 16).tolist() == expected
    expand_dialect(made)
    assert (Session(made).run(None, feeds)[0].reshape(-1) * 16).tolist() == expected


AVERAGE = "r = thinker.AvgPool2dInt<kernel_shape=[2,2], strides=[2,2], pads=[0,0,0,0], data_bits=8, o_bits=8, "

TANH = (
    "w = thinker.Requant<data_bits=8, o_bits=16, scale_x=16.0, scale_o=2048.0>(q) "
    "r = thinker.iqTanh<scale_x=2048.0, scale_o=128.0"
)


@pytest.mark.parametrize(
    ("middle", "message"),
    [
        (AVERAGE + "scale_x=16.0, scale_o=16.0, ceil_mode=1>(q)", "ceil_mode=1 has no agreed divisor"),
        ("r = MaxPool<kernel_shape=[2]>(q)", "a window of 1 axes"),
        ('r = MaxPool<kernel_shape=[2,2], auto_pad="SAME_UPPER">(q)', "auto_pad"),
        ("r, i = MaxPool<kernel_shape=[2,2]>(q)", "a second output"),
        (
            "w = thinker.Requant<data_bits=8, o_bits=32, scale_x=16.0, scale_o=16.0>(q) "
            + AVERAGE.replace("data_bits=8", "data_bits=32")
            + "scale_x=16.0, scale_o=16.0>(w)",
            "at most 16 are supported",
        ),
        (
            f'{TANH}, platform="pluto">(w)',
            r"r \(iqTanh\): .* with platform='pluto' is not known, only with venus, arcs",
        ),
        (
            f'{TANH}, quant_mode="ceil", platform_quant="qmax_quant">(w)',
            "platform_quant='qmax_quant' is not known, .* quant_mode='ceil' is not known, only with floor_add",
        ),
        ("r = thinker.Relu<platform=7>(q)", "platform is of kind int, not string"),
    ],
    ids=[
        "ceil mode",
        "one axis",
        "auto_pad",
        "indices",
        "32-bit window",
        "unknown chip",
        "unknown arithmetic",
        "no chip",
    ],
)
@pytest.mark.parametrize("use", [Session, Reference, expand_dialect], ids=["session", "reference", "expand"])
def test_what_has_no_meaning_is_refused_by_everyone(use, middle, message):
    with pytest.raises(UnsupportedError, match=message):
        use(model(middle))


def test_arithmetic_that_is_known_runs():
    for settings in ('platform="venus", quant_mode="floor_add"', 'platform_quant="LUNA_QUANT"'):
        Session(model(f"{TANH}, {settings}>(w)"))
    Session(model('r = thinker.Relu<platform="jupiter">(q)'))  # which computes the same on every chip


def test_a_window_of_two_axes_is_no_signals():
    conv = (
        "r = thinker.Conv1dInt<data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=1.0, scale_o=16.0, "
        "dilations=[1,1], group=1, kernel_shape=[1,1], pads=[0,0,0,0], strides=[1,1]>(q, w)"
    )
    with pytest.raises(UnsupportedError, match="a window of 2 axes; this op has 1"):
        bring_to_normal_form(model(conv, extra="<int8[2,1,1,1] w = {1, 2}>"))


TRANSPOSED = (
    "r = thinker.ConvTranspose2dInt<data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=1.0, scale_o=16.0, "
    "dilations=[1,1], group=2, kernel_shape=[1,1], output_padding=[0,0], pads=[0,0,0,0], strides=[1,1]>(q, w)"
)


def test_zero_bias_of_a_transposed_convolution_has_all_output_channels():
    # two groups of three outputs: w is [in = 2, out/group = 3, 1, 1]
    made = model(TRANSPOSED, shape="1,2,4,4", extra="<int8[2,3,1,1] w = {1, 2, 3, 4, 5, 6}>")
    bring_to_normal_form(made)
    assert list(made.graph.initializers) == ["w", "linger.zero_bias_6"]
    x = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4) / 16
    found = Session(model(TRANSPOSED, shape="1,2,4,4", extra="<int8[2,3,1,1] w = {1, 2, 3, 4, 5, 6}>")).run(
        None, {"x": x}
    )
    expected = np.concatenate([x[:, :1] * k for k in (1, 2, 3)] + [x[:, 1:] * k for k in (4, 5, 6)], axis=1)
    np.testing.assert_array_equal(found[0], np.minimum(expected, 127 / 16))


def test_a_transposed_convolution_of_too_many_products_is_refused():
    # 74 566 products of two 4-bit digits may reach 74 566·15·15 > 2^24; here 18 642·2·2 = 74 568
    text = TRANSPOSED.replace("group=2", "group=1").replace("kernel_shape=[1,1]", "kernel_shape=[2,2]")
    made = model(text, shape="1,18642,4,4")
    weight = ir.tensor(np.zeros((18642, 1, 2, 2), np.int8), name="w")
    value = ir.Value(name="w", type=ir.TensorType(weight.dtype), shape=ir.Shape(weight.shape), const_value=weight)
    made.graph.register_initializer(value)
    made.graph[1].replace_input_with(1, value)
    with pytest.raises(UnsupportedError, match="74568 products per output; at most 74565 are supported"):
        bring_to_normal_form(made)


@pytest.mark.parametrize(
    "settings",
    [
        "scale_w=16.0, scale_o=8.0, parameter_bits=8, o_bits=8",
        "scale_w=16.0, scale_o=16.0, parameter_bits=8, o_bits=16",
    ],
    ids=["scale", "width"],
)
def test_rows_of_another_scale_or_width_than_the_tables_are_refused(settings):
    text = f"""<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (int64[n] i) => (float[n,2] y)
    <int8[2,2] w = {{1, 2, 3, 4}}> {{ r = thinker.Gather<{settings}>(w, i) y = thinker.Dequant<scale_o=16.0>(r) }}"""
    with pytest.raises(UnsupportedError, match=r"rows have the table's scale and width .* Add a Requant behind it"):
        bring_to_normal_form(ir.from_proto(onnx.parser.parse_model(text)))


def test_zero_bias_is_shared():
    extra = "<int8[2,1,1,1] w = {1, 2}>"
    conv = (
        "{} = thinker.Conv2dInt<data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=1.0, scale_o=16.0, "
        "dilations=[1,1], group=1, kernel_shape=[1,1], pads=[0,0,0,0], strides=[1,1]>(q, w)"
    )
    made = model(conv.format("p") + conv.format("r"), extra=extra)
    bring_to_normal_form(made)
    assert list(made.graph.initializers) == ["w", "linger.zero_bias_2"]
    assert element_bits_of(made.graph[1]) == 8


def test_a_border_of_copies_has_no_op():
    text = """<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (int8[2] x) => (float[4] y)
    <int64[2] p = {1, 1}, int8 v = {0}>
    { r = thinker.iqPad<mode="reflect">(x, p, v) y = thinker.Dequant<scale_o=16.0>(r) }"""
    with pytest.raises(UnsupportedError, match=r"iqPad.*mode='reflect'; only a constant border has an op"):
        bring_to_normal_form(ir.from_proto(onnx.parser.parse_model(text)))


@pytest.mark.parametrize(("count", "is_refused"), [(2896, False), (2897, True)])
def test_norms_whose_sums_are_not_exact_are_refused(count, is_refused):
    text = f"""<ir_version: 8, opset_import: ["": 12, "thinker": 1]>
    g (int16[1,{count}] x, int16[{count}] w, int32[{count}] b) => (int16[a,n] y) {{
      y = thinker.LayerNormInt<data_bits=16, parameter_bits=16, o_bits=16, scale_x=1.0, scale_w=1.0, scale_o=1.0>(x, w, b)
    }}"""
    made = ir.from_proto(onnx.parser.parse_model(text))
    if is_refused:
        with pytest.raises(UnsupportedError, match="sums over 2897 numbers of 16 bits would not be exact"):
            bring_to_normal_form(made)
    else:
        bring_to_normal_form(made)


@pytest.mark.parametrize("spare", ['""', "q"])
def test_more_inputs_than_the_op_has_are_refused(spare):
    made = model(f"[n] r = thinker.iqSigmoid<data_bits=8, o_bits=8, scale_x=16.0, scale_o=128.0>(q, {spare})")
    with pytest.raises(GraphError, match=r"n \(iqSigmoid\): it has 2 inputs; the op takes at most 1. Remove"):
        bring_to_normal_form(made)


def test_the_open_end_of_a_clip_of_texts_is_refused():
    made = model("[n] r = thinker.Clip(t)")
    made.graph.inputs.append(ir.Value(name="t", type=ir.TensorType(ir.DataType.STRING)))
    made.graph[1].replace_input_with(0, made.graph.inputs[1])
    with pytest.raises(UnsupportedError, match=r"n \(Clip\): input 'low' is missing"):
        bring_to_normal_form(made)
