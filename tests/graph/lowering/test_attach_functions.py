"""Functions on a bare file."""

import numpy as np
import onnx
import onnx_ir as ir

from tests.support.lowering import attach_functions
from tests.support.samples import check

TEXT = """<ir_version: 6, opset_import: ["": 11, "thinker": 1]>
g (float[2,3] x) => (float[2,9] y) {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  w = thinker.Requant<data_bits=8, o_bits=16, scale_x=16.0, scale_o=4096.0>(q)
  r = Relu(w)
  s = Relu(q)
  b = thinker.Requant<data_bits=16, o_bits=8, scale_x=4096.0, scale_o=16.0>(r)
  c = thinker.iqCat<scale_x_0=16.0, scale_x_1=16.0, scale_x_2=16.0, scale_o=8.0, dim=1>(q, s, b)
  y = thinker.Dequant<scale_o=8.0>(c)
}"""


def attached():
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    changes = attach_functions(model)
    return model, changes


def test_every_node_has_a_function_of_its_signature():
    model, changes = attached()
    names = {(f.domain, f.name) for f in model.functions.values()}
    assert names == {
        ("thinker", "Quant"), ("thinker", "Requant"), ("thinker", "Dequant"),
        ("thinker", "Relu"), ("thinker.i16", "Relu"), ("thinker.n3", "iqCat"),
    }  # fmt: skip
    assert model.ir_version == 8
    assert set(model.graph.opset_imports) == {"", "thinker", "thinker.i16", "thinker.n3"}
    assert ("b (Requant)", "runs as thinker::Requant") in changes.rows() or len(changes) >= 7


def test_result_passes_the_checker_and_is_idempotent():
    model, _ = attached()
    before = check(model).SerializeToString(deterministic=True)
    assert len(attach_functions(model)) == 0
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_values_are_those_of_the_formulas():
    import onnxruntime as ort

    model, _ = attached()
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.array([[1.0, -2.0, 0.0625], [7.9375, -8.0, 100.0]], np.float32)
    q = np.array([[16, -32, 1], [127, -128, 127]])
    relu = np.maximum(q, 0)
    # 16 → 8: shift right by one, ties up; 127/2 = 63.5 → 64, 1/2 → 1
    half = {16: 8, -32: -16, 1: 1, 127: 64, -128: -64, 0: 0}
    expected = np.vectorize(half.get)(np.concatenate([q, relu, relu], axis=1)) / 8
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


CHIPS = """<ir_version: 6, opset_import: ["": 11, "thinker": 1]>
g (int16[65536] x) => (int8[65536] y, int8[65536] z, int8[65536] v) {
  y = thinker.iqSigmoid<scale_x=2048.0, scale_o=128.0, platform="arcs", quant_mode="floor_add">(x)
  z = thinker.iqSigmoid<scale_x=2048.0, scale_o=128.0>(x)
  v = thinker.iqSigmoid<scale_x=2048.0, scale_o=128.0, platform="venus">(x)
}"""


def test_the_arithmetic_of_another_chip_is_a_function_of_its_own():
    import onnxruntime as ort

    model = ir.from_proto(onnx.parser.parse_model(CHIPS))
    attach_functions(model)
    assert {(f.domain, f.name) for f in model.functions.values()} == {
        ("thinker", "iqSigmoid"), ("thinker.arcs", "iqSigmoid")
    }  # fmt: skip
    assert [node.domain for node in model.graph] == ["thinker.arcs", "thinker", "thinker"]
    content = check(model).SerializeToString()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    x = np.arange(-32768, 32768).astype(np.int16)
    arcs, plain, venus = session.run(None, {"x": x})
    np.testing.assert_array_equal(plain, venus)
    assert (arcs != plain).sum() == 58  # at steps of the output that the short table misses


def test_a_file_without_such_nodes_keeps_its_version():
    text = '<ir_version: 6, opset_import: ["": 11]> g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }'
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert len(attach_functions(model)) == 0
    assert (model.ir_version, list(model.graph.opset_imports)) == (6, [""])
