"""A difference that only a plain run shows is followed to its layer."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import Recording, verify
from linger.verification.proof import comparison
from tests.support.saturating import ImitatedSession


def chain(saturating, layers=6):
    """Layers of two by two in a row, one of them with weights that saturate; the others double or halve."""
    body = "q0 = QuantizeLinear(x, s, z) d0 = DequantizeLinear(q0, s, z) "
    extra = ["float s = {1.0}", "int8 z = {0}", "float sw = {0.015625}"]
    for i in range(layers):
        weights = "127, 127, 127, 127" if i == saturating else "64, 0, 0, 64"
        extra.append(f"int8[2,2] w{i} = {{{weights}}}")
        body += f"v{i} = DequantizeLinear(w{i}, sw, z) m{i} = MatMul(d{i}, v{i}) "
        body += f"q{i + 1} = QuantizeLinear(m{i}, s, z) d{i + 1} = DequantizeLinear(q{i + 1}, s, z) "
    text = f'<ir_version: 8, opset_import: ["": 13]> g (float[n,2] x) => (float[n,2] d{layers}) <{", ".join(extra)}> {{ {body} }}'
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("saturating", [0, 3, 5])
def test_the_layer_is_found_wherever_it_is(monkeypatch, saturating):
    monkeypatch.setattr(comparison, "Session", ImitatedSession)
    result = verify([Recording(inputs=[np.array([[10.0, 20.0]], np.float32)])], chain(saturating))
    assert [row.name for row in result.outputs if row.differing] == ["d6"]
    first = result.first
    assert (first.tensor, first.node) == (f"d{saturating + 1}", f"m{saturating} (MatMul)")
    # 127·(10 + 20)/64 = 59.53; saturated: 138 + 148 unsigned make 36322, cut to 32767, less 128·254: 255/64 = 3.98
    assert (first.expected, first.found) == (60.0, 4.0)
    assert first.inputs == {f"d{saturating}": True}


def test_other_differences_are_left_alone():
    same = Recording(inputs=[np.ones((1, 2), np.float32)])
    assert verify([same], chain(0)).first is None
    wrong = Recording(
        inputs=[np.ones((1, 2), np.float32)], integers={"q1": np.zeros((1, 2), np.int8)}, is_complete=False
    )
    first = verify([same, wrong], chain(0)).first
    assert (first.tensor, first.batch, first.found_by) == ("q1", 1, "numpy")
