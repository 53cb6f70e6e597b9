"""Standard ops of the numpy reference: numbers worked out by hand, and ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from linger.runtime.reference import Reference

X = np.array([[0.5, 1.5, -0.5, 1e30], [-1e30, 63.2, -64.5, 3e9]], np.float32)


def round_trip(opset, kind, *, scale="float s = {1.0}", zero="0", axis=""):
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[2,4] x) => ({kind}[2,4] q, float[2,4] y)
    <{scale}, {kind}{"" if "[" not in scale else "[2]"} z = {{{zero}}}> {{
      q = QuantizeLinear{axis}(x, s, z)
      y = DequantizeLinear{axis}(q, s, z)
    }}"""
    return onnx.parser.parse_model(text)


def both(model, x=X):
    found = Reference(model).run({"x": x})
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, array in zip(("q", "y"), session.run(["q", "y"], {"x": x}), strict=True):
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    return found


@pytest.mark.parametrize("opset", [10, 11, 12, 13, 17, 19, 21, 23])
def test_quantizing_rounds_half_to_even_and_saturates_in_every_opset(opset):
    found = both(round_trip(opset, "int8"))
    # 0.5 → 0, 1.5 → 2, −0.5 → 0, −64.5 → −64; 10^30 and 3·10^9 do not fit an int32 and saturate all the same
    assert found["q"].tolist() == [[0, 2, 0, 127], [-128, 63, -64, 127]]
    assert found["y"].tolist() == [[0, 2, 0, 127], [-128, 63, -64, 127]]


@pytest.mark.parametrize("opset", [10, 13, 21])
def test_zero_point_shifts_before_it_saturates(opset):
    found = both(round_trip(opset, "uint8", scale="float s = {0.5}", zero="10"))
    # 2·0.5 + 10, 2·1.5 + 10, 2·−0.5 + 10; 2·63.2 = 126.4 → 126, + 10; −129 + 10 is below zero
    assert found["q"].tolist() == [[11, 13, 9, 255], [0, 136, 0, 255]]
    assert found["y"][0].tolist() == [0.5, 1.5, -0.5, 122.5]


@pytest.mark.parametrize("opset", [13, 19, 21])
def test_one_scale_per_row(opset):
    model = round_trip(opset, "int8", scale="float[2] s = {0.5, 2.0}", zero="0, 1", axis="<axis = 0>")
    # the first row doubles; the second halves and adds 1: 31.6 → 32, −32.25 → −32
    assert both(model)["q"].tolist() == [[1, 3, -1, 127], [-128, 33, -31, 127]]


def test_words_of_opset_21():
    # int16 arrived with opset 21
    assert both(round_trip(21, "int16"))["q"].tolist() == [[0, 2, 0, 32767], [-32768, 63, -64, 32767]]


def test_zero_point_may_be_left_out():
    text = """<ir_version: 8, opset_import: ["": 12]> g (float[2,4] x) => (uint8[2,4] q, float[2,4] y)
    <float s = {1.0}> { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }"""
    assert both(onnx.parser.parse_model(text))["q"].tolist() == [[0, 2, 0, 255], [0, 63, 0, 255]]


def test_output_type_may_be_named_instead_of_a_zero_point():
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (int8[2,4] q, float[2,4] y)
    <float s = {1.0}> { q = QuantizeLinear<output_dtype = 3>(x, s) y = DequantizeLinear(q, s) }"""
    assert both(onnx.parser.parse_model(text))["q"].tolist() == [[0, 2, 0, 127], [-128, 63, -64, 127]]


def test_wide_bias_is_dequantized():
    text = """<ir_version: 8, opset_import: ["": 12]> g (int32[3] x) => (float[3] y)
    <float s = {0.5}> { y = DequantizeLinear(x, s) }"""
    x = np.array([16777215, -3, 2**31 - 1], np.int32)
    # 2^31 − 1 becomes the float 2^31, and half of it is exact
    assert Reference(onnx.parser.parse_model(text)).run({"x": x})["y"].tolist() == [8388607.5, -1.5, 2.0**30]


def test_blocks_are_left_to_onnx():
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (int8[2,4] q, float[2,4] y)
    <float[2,2] s = {1.0, 2.0, 4.0, 1.0}, int8[2,2] z = {0, 0, 0, 0}> {
      q = QuantizeLinear<axis = 1, block_size = 2>(x, s, z)
      y = DequantizeLinear<axis = 1, block_size = 2>(q, s, z)
    }"""
    x = np.array([[1, 2, 3, 5], [8, 12, -1, 1]], np.float32)
    assert both(onnx.parser.parse_model(text), x)["q"].tolist() == [[1, 2, 2, 2], [2, 3, -1, 1]]


def test_gather_elements_takes_many_entries(draw):
    text = """<ir_version: 8, opset_import: ["": 12]> g (float[2,90] x, int64[2,90] i) => (float[2,90] y)
    { y = GatherElements<axis = 1>(x, i) }"""
    x, i = draw.normal(size=(2, 90)).astype(np.float32), draw.integers(-90, 90, (2, 90))
    found = Reference(onnx.parser.parse_model(text)).run({"x": x, "i": i})["y"]
    assert found.tolist() == [[float(row[at]) for at in places] for row, places in zip(x, i, strict=True)]


@pytest.mark.parametrize(
    ("shape", "kernel"), [((1, 2, 5, 5), (3, 3)), ((1, 2, 4, 5, 5), (2, 3, 3))], ids=["same padding", "three axes"]
)
def test_other_integer_convolutions_are_those_of_onnx(shape, kernel):
    draw = np.random.default_rng(0)
    x, w = (
        draw.integers(0, 256, shape).astype(np.uint8),
        draw.integers(-128, 128, (3, shape[1], *kernel)).astype(np.int8),
    )
    auto = ', auto_pad: string = "SAME_UPPER"' if len(shape) == 4 else ""
    text = f"""<ir_version: 8, opset_import: ["": 12]> g (uint8[{",".join(map(str, shape))}] x, int8[{",".join(map(str, w.shape))}] w) => (uint8 y)
    <float s = {{1.0}}, uint8 zx = {{128}}, float sw = {{0.0078125}}, int8 zw = {{0}}, uint8 zy = {{128}}> {{
      y = QLinearConv<kernel_shape: ints = {list(kernel)}{auto}>(x, s, zx, w, sw, zw, s, zy)
    }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    found = Reference(proto).run({"x": x, "w": w})["y"]
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert (found == session.run(None, {"x": x, "w": w})[0]).all()
