"""A difference that comes from kernels that saturate is called so, after it was tried out."""

import numpy as np
import onnx
import pytest

from linger import Recording, verify
from linger.runtime import session
from linger.verification.proof import comparison
from linger.verification.proof.causes import SWITCHES
from tests.support.saturating import TEXTBOOK, ImitatedSession, IncurableSession

# q = 127, 127, 0, 0: as unsigned bytes 255, 255, 128, 128
X = np.array([[7.9375, 7.9375, 0, 0]], np.float32)


@pytest.fixture
def saturating_cpu(monkeypatch):
    monkeypatch.setattr(session, "has_saturating_products", lambda: True)
    monkeypatch.setattr(comparison, "Session", ImitatedSession)


def proved(**options):
    return verify([Recording(inputs=[X])], onnx.parser.parse_model(TEXTBOOK), **options)


def test_the_cause_is_named_with_the_switch_that_proves_it(saturating_cpu):
    result = proved()
    assert not result.ok
    assert result.cause.switch == "session.qdqisint8allowed"
    assert result.cause.nodes == ("h (MatMul)",)  # not v: its weights are within ±64
    assert "with session.qdqisint8allowed=1 the differences vanish, so that is the cause" in result.summary()


def test_the_layer_is_found_though_watching_hides_it(saturating_cpu):
    result = proved()
    assert result.differing == 0  # no watched tensor differs
    assert result.output_differences == 1
    first = result.first
    assert (first.tensor, first.node, first.index) == ("hd", "h (MatMul)", (0, 0))
    # 2·127·127/128 = 252.02, 63 steps of 4; saturated 32767 + 128·(3 + 4) − 128·261 = 255, 255/128 is less than half a step
    assert (first.expected, first.found) == (252.0, 0.0)
    assert first.found_by == "ONNX Runtime, run plainly"
    assert first.inputs == {"xd": True}
    assert "its inputs agree, so it is this node" in str(first)


def test_every_level_is_tried(saturating_cpu):
    result = proved(levels=("basic", "all"))
    assert result.first.found_by == "ONNX Runtime at basic, run plainly"
    assert result.cause.switch


def test_a_switch_that_is_set_already_leaves_nothing_to_explain(saturating_cpu):
    result = proved(session_options={"session.qdqisint8allowed": "1"})
    assert result.ok
    assert result.cause is None


def test_differences_that_stay_are_said_to_come_from_elsewhere(saturating_cpu, monkeypatch):
    monkeypatch.setattr(comparison, "Session", IncurableSession)
    result = proved()
    assert not result.ok
    assert result.cause.switch == ""
    assert "the differences stay with every session option that avoids those kernels" in result.summary()


def test_on_an_exact_cpu_nothing_is_blamed_on_it(saturating_cpu, monkeypatch):
    monkeypatch.setattr(session, "has_saturating_products", lambda: False)
    result = proved()
    assert not result.ok
    assert result.cause is None


def test_a_wrong_recording_is_not_blamed_on_the_cpu(saturating_cpu):
    wrong = Recording(inputs=[X], integers={"xq": np.zeros((1, 4), np.int8)}, is_complete=False)
    result = verify([wrong], onnx.parser.parse_model(TEXTBOOK))
    assert result.first.found_by == "numpy"
    assert result.cause is None


def test_weights_within_64_are_not_blamed(saturating_cpu, monkeypatch):
    monkeypatch.setattr(comparison, "Session", IncurableSession)
    text = TEXTBOOK.replace("127, 1, 127, 2", "64, 1, -64, 2").replace("{1, 0, 0, 1}", "{2, 0, 0, 2}")
    off = Recording(inputs=[X], outputs=[np.zeros((1, 2), np.float32)])
    result = verify([Recording(inputs=[X])], onnx.parser.parse_model(text))
    assert result.ok
    assert verify([off], onnx.parser.parse_model(text)).cause is None


@pytest.mark.skipif(
    not session.has_saturating_products(), reason="this CPU's u8×s8 kernels are exact, so nothing saturates here"
)
def test_textbook_file_on_a_cpu_that_saturates():
    draw = np.random.default_rng(0)
    w = ", ".join(map(str, draw.integers(100, 128, 32 * 32)))
    text = f"""<ir_version: 8, opset_import: ["": 13]> g (float[n,32] x) => (float[n,32] y)
    <int8[32,32] w = {{{w}}}, float s = {{0.0625}}, float sw = {{0.0078125}}, float so = {{8.0}}, int8 z = {{0}}> {{
      xq = QuantizeLinear(x, s, z)
      xd = DequantizeLinear(xq, s, z)
      wd = DequantizeLinear(w, sw, z)
      h = MatMul(xd, wd)
      hq = QuantizeLinear(h, so, z)
      y = DequantizeLinear(hq, so, z)
    }}"""
    x = (draw.integers(60, 128, (4, 32)) / 16).astype(np.float32)
    result = verify([Recording(inputs=[x])], onnx.parser.parse_model(text))
    assert not result.ok
    assert result.first.node == "h (MatMul)"
    assert result.cause.switch in SWITCHES[:2]
