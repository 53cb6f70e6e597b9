"""The numpy reference keeps every tensor."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from linger import Session
from linger.errors import GraphError
from linger.graph import save
from linger.numeric.numpy_kernel import NumpyKernel
from linger.runtime.reference import Reference
from tests.runtime.test_session import TEXT
from tests.support.big_int import convolved_transposed
from tests.support.lowering import expand_dialect


class Doubling(NumpyKernel):
    def relu(self, x):
        return super().relu(x) * 2


@pytest.mark.parametrize(
    ("kernel", "expected"), [(None, [1.0, 0.0]), (Doubling(), [2.0, 0.0])], ids=["reference", "other"]
)
def test_dialect_nodes_run_on_the_given_kernel(kernel, expected):
    reference = Reference(onnx.parser.parse_model(TEXT), kernel=kernel)
    feeds = {"x": np.array([[1.0, -1.0]], np.float32)}
    assert reference.run(feeds)["y"].tolist() == [expected]
    found = reference.intermediates(feeds)
    assert found["q"].dtype == np.int8
    assert set(found) >= {"q", "r", "y"}


def test_standard_nodes_and_branches_run_too():
    text = """<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (float[2] x, bool c) => (float[2] y) {
      q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
      r = If(c) <then_branch = t () => (a) { a = Identity(q) }, else_branch = e () => (b) { b = thinker.Relu(q) }>
      y = thinker.Dequant<scale_o=16.0>(r)
    }"""
    reference = Reference(onnx.parser.parse_model(text))
    x = np.array([1.0, -1.0], np.float32)
    assert reference.run({"x": x, "c": np.array(True)})["y"].tolist() == [1.0, -1.0]
    assert reference.run({"x": x, "c": np.array(False)})["y"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_standard_transposed_convolution_in_groups(group, has_bias, draw):
    x, w = draw.integers(-9, 10, (2, 4, 3, 4)), draw.integers(-9, 10, (4, 3, 3, 2))
    b = draw.integers(-9, 10, 3 * group) if has_bias else None
    geometry = {"strides": (2, 1), "pads": (0, 1, 1, 0), "output_padding": (1, 0), "dilations": (1, 2), "group": group}
    inputs = ["x", "w"] + (["b"] if has_bias else [])
    node = onnx.helper.make_node("ConvTranspose", inputs, ["y"], **geometry)
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in [*inputs, "y"]]
    graph = onnx.helper.make_graph([node], "g", values[:-1], values[-1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 12)], ir_version=8)
    feeds = {n: a.astype(np.float32) for n, a in zip(inputs, (x, w, b), strict=False)}
    # small whole numbers: float32 is exact
    np.testing.assert_array_equal(Reference(model).run(feeds)["y"], convolved_transposed(x, w, b, **geometry))


def test_a_node_computes_as_the_chip_that_it_names():
    text = """<ir_version: 6, opset_import: ["": 12, "thinker": 1]>
    g (int16[65536] x) => (int8[65536] y, int8[65536] z) {
      y = thinker.iqSigmoid<scale_x=2048.0, scale_o=128.0, platform="arcs">(x)
      z = thinker.iqSigmoid<scale_x=2048.0, scale_o=128.0>(x)
    }"""
    x = np.arange(-32768, 32768).astype(np.int16)
    model = onnx.parser.parse_model(text)
    found = Reference(model).run({"x": x})
    session = dict(zip(("y", "z"), Session(model).run(None, {"x": x}), strict=True))
    expanded = ir.from_proto(model)
    expand_dialect(expanded)
    plain = ort.InferenceSession(ir.to_proto(expanded).SerializeToString(), providers=["CPUExecutionProvider"])
    for name, third in zip(("y", "z"), plain.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(found[name], session[name])
        np.testing.assert_array_equal(found[name], third)
    assert (found["y"] != found["z"]).sum() == 58


def test_weights_in_a_data_file_are_read(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 12]> g (float[600] x) => (float[600] y) { y = Add(x, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(600, dtype=np.float32), "w"))
    save(ir.from_proto(model), tmp_path / "m.onnx", external_data=True)
    assert (tmp_path / "m.onnx.data").exists()
    found = Reference(tmp_path / "m.onnx").run({"x": np.ones(600, np.float32)})["y"]
    assert found.tolist() == list(range(1, 601))


def test_an_error_names_the_node():
    text = """<ir_version: 8, opset_import: ["": 12]> g (float[n, m] x) => (float[a] z)
    { y = Relu(x) [flat] z = ReduceSum<axes = [3]>(y) }"""
    with pytest.raises(GraphError, match=r"cannot run .*flat.*AxisError"):
        Reference(onnx.parser.parse_model(text)).run({"x": np.ones((2, 2), np.float32)})


def test_infinities_are_no_warning():
    text = """<ir_version: 8, opset_import: ["": 12]> g (float[3] x) => (float[3] y, int8[3] z)
    { y = Log(x) e = Exp(x) d = Div(e, e) z = Cast<to = 3>(d) }"""
    # warnings are errors here
    found = Reference(onnx.parser.parse_model(text)).run({"x": np.array([0, -1, 1e30], np.float32)})
    assert found["y"][0] == -np.inf
