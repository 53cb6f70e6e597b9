"""Whole graphs in QDQ form: structure, report, networks in every mode of ONNX Runtime."""

import io

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger
from linger.dialect import find_op
from linger.graph import load
from linger.graph.lowering.to_qdq import to_qdq
from linger.runtime.reference import Reference
from tests.graph.lowering.test_attach_functions import TEXT
from tests.support.kernels import kernels
from tests.support.lowering import expand_dialect
from tests.support.qdq import LEVELS, LITERAL, MODES, STYLES, finished, session, written
from tests.support.samples import single_node_model

LAYERS = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]>
g (float[2,3] x) => (float[2,2] y)
<int8[2,3] w = {100, -100, 1, -64, 2, 127}, int32[2] b = {7, -9}> {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  f = Flatten(q)
  r = Relu(f)
  c = thinker.LinearInt<data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=8.0>(r, w, b)
  z = Relu(c)
  y = thinker.Dequant<scale_o=8.0>(z)
}"""


def parsed(text):
    return ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))


def constant(proto, name):
    return next(onnx.numpy_helper.to_array(i) for i in proto.graph.initializer if i.name == name)


def node_making(proto, name):
    return next(n for n in proto.graph.node if name in n.output)


def inputs_of(proto, name):
    """The constants behind a Q or DQ node: step and zero point."""
    return [constant(proto, i).item() for i in node_making(proto, name).input[1:]]


@pytest.mark.parametrize("style", STYLES)
def test_a_layer_is_written_as_worked_out_by_hand(style):
    model = parsed(LAYERS)
    next(n for n in model.graph if n.op_type == "Relu").outputs[0].shape = ir.Shape([2, 3])
    proto, report = written(model, is_symmetric=STYLES[style])
    gemm = next(n for n in proto.graph.node if n.op_type == "Gemm")
    data, weight, bias = gemm.input
    assert node_making(proto, data).input[0] == "r"
    assert node_making(proto, weight).input[0] == "w"
    assert inputs_of(proto, weight) == [1 / 64, 0]
    assert node_making(proto, "c").input[0] == gemm.output[0]
    # the shift is log2(16·64/8) = 7: 128 LSB are 128·2^7 = 16384 in the bias
    if STYLES[style]:
        np.testing.assert_array_equal(constant(proto, bias), np.array([7.5, -8.5], np.float32) / 1024)
        assert inputs_of(proto, "c") == [1 / 8, 0]
    else:
        assert constant(proto, node_making(proto, bias).input[0]).tolist() == [16391, 16375]
        assert inputs_of(proto, bias) == [1 / 1024, 0]
        assert inputs_of(proto, "c") == [(1 - 2**-23) / 8, -128]
    # ops without a scale of their own have that of their data
    assert inputs_of(proto, "r") == [1 / 16, 0]
    assert inputs_of(proto, "z") == [1 / 8, 0]
    assert "b" not in {i.name for i in proto.graph.initializer}
    assert {name for name, *_ in report.rows()} == {"q (Quant)", "r (Relu)", "c (LinearInt)", "z (Relu)", "y (Dequant)"}


def test_no_two_nodes_share_a_step_or_a_zero_point():
    proto, _ = written(parsed(TEXT))
    numbers = [i for n in proto.graph.node if n.op_type.endswith("Linear") for i in n.input[1:]]
    assert len(numbers) == 2 * sum(n.op_type.endswith("Linear") for n in proto.graph.node)
    assert len(set(numbers)) == len(numbers)


def test_what_has_no_form_is_left_for_expansion_and_listed():
    model = parsed(TEXT)
    report = to_qdq(model)
    assert {n.op_type for n in model.graph if n.domain} == {"Requant", "Relu"}
    assert [n.name for n in report.explicit] == ["w (Requant)", "r (Relu)", "b (Requant)"]
    assert "8-bit" in report.summary()
    assert len(report.changes) >= 4
    expand_dialect(model)
    names = {o.name for n in model.graph for o in n.outputs}
    assert {"q", "w", "r", "s", "b", "c", "y"} <= names
    assert {n.domain for n in model.graph} == {""}
    assert set(model.graph.opset_imports) == {""}


def test_a_second_run_changes_nothing():
    model = parsed(TEXT)
    before, _ = written(model)
    report = to_qdq(model)
    assert len(report.changes) == len(report.nodes) == 0
    assert report.summary() == ""
    assert finished(model).SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)


def single(op_name, inputs, **options):
    attributes = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": 8.0, "data_bits": 8, "parameter_bits": 8, "o_bits": 8}
    return single_node_model(
        find_op(op_name),
        inputs,
        {} if op_name == "Clip" else attributes | options.pop("with_", {}),
        opset=13,
        **options,
    )


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: single("LinearInt", [np.ones((2, 3), np.int8), np.ones((4, 3), np.int8), np.ones(4, np.int32)], constants=frozenset()), "not constant"),
        (lambda: single("LinearInt", [np.ones((2, 3), np.int8), np.ones((4, 3), np.int8)], with_={"scale_w": 60.0}), "60.0 is no power of two"),
        (lambda: single("LinearInt", [np.ones((2, 3), np.int16), np.ones((4, 3), np.int8)], with_={"data_bits": 16}), "opset 21"),
        (lambda: single("LinearInt", [np.ones((2, 3), np.int8), np.ones((4, 3), np.int8)], with_={"o_bits": 16}), "opset 21"),
        (lambda: single("Clip", [np.ones(3, np.int8), np.int8(0), np.int8(9)], constants=frozenset()), "thresholds"),
    ],
    ids=["weights are fed", "odd scale", "wide data", "wide output", "thresholds are fed"],
)  # fmt: skip
def test_the_report_says_why_a_node_is_explicit(model, reason):
    proto, report = written(model())
    assert [reason in n.reason for n in report.explicit] == [True]
    assert not report.inexact
    assert "DequantizeLinear" not in {n.op_type for n in proto.graph.node}
    session(proto)


def test_the_summary_names_nodes_sizes_and_options():
    report = to_qdq(parsed(LAYERS), is_symmetric=True)
    (node,) = report.inexact
    assert (node.name, node.error, node.error_fused) == ("c (LinearInt)", 0, 1)
    assert report.saturating == (node,)
    for part in ("c (LinearInt) (0 LSB as written, 1 fused", "VNNI", "session.qdqisint8allowed", "disable_quant_qdq"):
        assert part in report.summary()


def test_weights_are_unsigned_where_no_zero_point_keeps_their_data_signed():
    """Without a shift nothing is lifted: ONNX Runtime makes uint8 of the data, and u8×s8 saturates on x64 without VNNI."""
    model = parsed(LAYERS.replace("scale_o=8.0>(r", "scale_o=1024.0>(r"))
    next(n for n in model.graph if n.op_type == "Relu").outputs[0].shape = ir.Shape([2, 3])
    proto, report = written(model)
    gemm = next(n for n in proto.graph.node if n.op_type == "Gemm")
    weight = node_making(proto, gemm.input[1])
    assert constant(proto, weight.input[0]).tolist() == [[228, 28, 129], [64, 130, 255]]  # 100, −100, 1 … and 128 more
    assert inputs_of(proto, gemm.input[1]) == [1 / 64, 128]
    assert report.summary() == ""
    (label,) = [label for label in kernels(ir.from_proto(proto), "ENABLE_ALL") if label.startswith("QGemm")]
    assert label == "QGemm u8×u8"


def test_nodes_inside_a_branch_are_written_too():
    text = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]>
    g (bool c, float[3] x) => (float[3] y) {
      q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
      r = If(c) <
        then_branch = t () => (int8[3] a) { a = Relu(q) },
        else_branch = e () => (int8[3] b) { b = thinker.iqMul<scale_x=16.0, scale_y=16.0, scale_o=16.0>(q, q) }
      >
      y = thinker.Dequant<scale_o=16.0>(r)
    }"""
    expected = Reference(onnx.parser.parse_model(text))
    proto, report = written(ir.from_proto(onnx.parser.parse_model(text)))
    assert len(report.nodes) == 4
    assert not report.explicit
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": np.array([-1.0, 0.28125, 2.0], np.float32)}
        np.testing.assert_array_equal(session(proto).run(None, feeds)[0], expected.run(feeds)["y"])


def products_in_bytes(proto, folder):
    """Whether ONNX Runtime's default makes any product of uint8 data."""
    path = folder / "optimized.onnx"
    session(proto, ("ENABLE_EXTENDED", "default"), optimized_model_filepath=str(path))
    graph = onnx.load(path).graph
    types = {i.name: i.data_type for i in graph.initializer}
    products = [n for n in graph.node if n.op_type in ("QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat")]
    return any(types.get(i) == onnx.TensorProto.UINT8 for n in products for i in n.input)


def test_no_layer_that_is_reported_safe_is_computed_from_unsigned_bytes(tmp_path):
    model = parsed(LAYERS)
    next(n for n in model.graph if n.op_type == "Relu").outputs[0].shape = ir.Shape([2, 3])
    proto, report = written(model)
    assert not report.saturating
    assert not products_in_bytes(proto, tmp_path)


@pytest.fixture(scope="module")
def network():
    """(bare file, input, every tensor of the reference)"""
    from tests.support.models import small_net

    model, x = small_net()
    buffer = io.BytesIO()
    linger.onnx.export(model, (x,), buffer, form="bare", input_names=["in0"])
    feeds = {"in0": x.numpy()}
    return buffer.getvalue(), feeds, Reference(buffer.getvalue()).intermediates(feeds)


def outputs_of(proto, expected, mode, feeds, *, names=None):
    """Compare outputs, or the named integer tensors made outputs, with the reference."""
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    for name in names or ():
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, None))
    made = session(proto, mode)
    for output, found in zip(made.get_outputs(), made.run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, expected[output.name], err_msg=f"{output.name} {mode}")


@pytest.mark.needs_torch
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("mode", LITERAL, ids="/".join)
def test_every_integer_of_a_network_is_exact_as_written(network, mode, style):
    content, feeds, expected = network
    proto, report = written(load(content), is_symmetric=STYLES[style])
    assert not report.explicit
    assert all(n.error == 0 for n in report.nodes)
    made = {name for n in proto.graph.node for name in n.output}
    integers = sorted(name for name, value in expected.items() if value.dtype == np.int8 and name in made)
    assert len(integers) == 21
    outputs_of(proto, expected, mode, feeds, names=integers)


@pytest.mark.needs_torch
@pytest.mark.parametrize("mode", MODES, ids="/".join)
def test_a_network_with_nothing_listed_is_exact_in_every_mode(network, mode):
    content, feeds, expected = network
    proto, report = written(load(content))
    assert not report.inexact
    assert not report.saturating
    outputs_of(proto, expected, mode, feeds)


@pytest.mark.needs_torch
@pytest.mark.parametrize("mode", [m for m in MODES if m not in LITERAL], ids="/".join)
def test_a_network_with_nodes_listed_still_runs_in_every_mode(network, mode):
    content, feeds, expected = network
    proto, report = written(load(content), is_symmetric=True)
    assert {n.name.split()[0] for n in report.inexact} == {
        "stem.Conv2dInt", "block.conv1.Conv2dInt", "block.conv2.Conv2dInt", "fc.LinearInt",
    }  # fmt: skip
    made = session(proto, mode)
    (found,) = made.run(None, feeds)
    assert found.shape == expected[made.get_outputs()[0].name].shape


@pytest.mark.needs_torch
def test_a_file_with_functions_and_an_open_batch_is_written_as_well():
    from tests.support.models import small_net

    model, x = small_net()
    buffer = io.BytesIO()
    axes = {"dynamic_axes": {"in0": {0: "n"}, "out": {0: "n"}}}
    linger.onnx.export(model, (x,), buffer, input_names=["in0"], output_names=["out"], **axes)
    loaded = load(buffer.getvalue())
    assert loaded.functions
    proto, report = written(loaded)
    assert not proto.functions
    assert not report.explicit
    feeds = {"in0": x.numpy()[:2]}
    outputs_of(proto, Reference(buffer.getvalue()).run(feeds), ("ENABLE_ALL", "default"), feeds)
    assert "Gemm" in {n.op_type for n in proto.graph.node}


@pytest.mark.needs_torch
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("option", ["default", "literal", "int8"])
@pytest.mark.thin(every=2)
def test_the_standard_form_of_a_network_is_exact_at_every_level(network, level, option):
    content, feeds, expected = network
    model = load(content)
    expand_dialect(model)
    outputs_of(finished(model), expected, (level, option), feeds)
