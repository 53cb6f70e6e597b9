"""The probe for kernels that saturate: its exact answer, and what it says of one that does not give it."""

import os

import numpy as np
import pytest

from linger.runtime import session
from tests.support.kernels import mixed_products
from tests.support.passes import computed, parsed
from tests.support.saturating import pair_sums

EXACT = 255 * 127 * 64
SATURATED = 32 * 32767


def runtime_with(saturating):
    """A runtime that answers the probe of one kind of op with a saturated sum."""

    class FakeSession:
        def __init__(self, content, providers):
            self.answer = SATURATED if any(op in content for op in saturating) else EXACT

        def get_inputs(self):
            return [type("Input", (), {"shape": [8, 64]})]

        def run(self, names, feeds):
            assert (feeds["x"] == 255).all()
            return [np.full((8, 32), self.answer, np.int32)]

    return FakeSession


@pytest.mark.parametrize(
    ("saturating", "verdict"),
    [([], False), ([b"MatMulInteger"], True), ([b"ConvInteger"], True)],
    ids=["exact", "matrix products saturate", "convolutions saturate"],
)
def test_one_wrong_kernel_is_enough(monkeypatch, saturating, verdict):
    monkeypatch.setattr(session.ort, "InferenceSession", runtime_with(saturating))
    assert session.has_saturating_products.__wrapped__() is verdict


def test_this_cpu_gives_one_of_the_two_answers():
    """A third answer would mean that the probe's model is wrong."""
    import onnx_ir as ir
    import onnxruntime as ort

    for text in (session._MATMUL, session._CONV):
        run = ort.InferenceSession(ir.to_proto(ir.from_onnx_text(text)).SerializeToString())
        found = run.run(None, {"x": np.full(run.get_inputs()[0].shape, 255, np.uint8)})[0]
        assert set(np.unique(found)) <= {EXACT, SATURATED}
    assert session.has_saturating_products() is session.has_saturating_products.__wrapped__()


def test_pair_sums_by_hand():
    # 255·127 + 255·127 = 64770 → 32767; 255·(−128) + 255·(−128) = −65280 → −32768; 255·127 − 255·128 = −255 stays; a single
    # product has no neighbor: 32385 stays
    data, weight = (
        np.full((1, 7), 255, np.uint8),
        np.array([[127], [127], [-128], [-128], [127], [-128], [127]], np.int8),
    )
    assert pair_sums(data, weight).tolist() == [[32767 - 32768 - 255 + 32385]]


@pytest.mark.parametrize(
    ("kind", "low", "high", "is_lost"),
    [
        pytest.param("int8", -128, 127, True, id="signed"),
        pytest.param("int8", -64, 64, False, id="signed, within 64"),
        pytest.param("uint8", 0, 255, False, id="unsigned"),
    ],
)
def test_which_files_differ_on_a_cpu_without_vnni(draw, kind, low, high, is_lost):
    data = draw.choice([0, 255], (4, 16)).astype(np.uint8)
    weight = draw.choice([low, high], (16, 8)).astype(kind)
    numbers = ", ".join(map(str, weight.ravel()))
    model = parsed(f"""<ir_version: 8, opset_import: ["": 13]> g (uint8[4,16] x) => (uint8[4,8] y)
    <{kind}[16,8] w = {{{numbers}}}, {kind} zw = {{0}}, float s = {{1.0}}, uint8 z = {{0}}, float so = {{4096.0}}, uint8 zo = {{128}}> {{
      d = DequantizeLinear(x, s, z)  v = DequantizeLinear(w, s, zw)  p = MatMul(d, v)  y = QuantizeLinear(p, so, zo)
    }}""")
    exact = data.astype(np.int64) @ weight.astype(np.int64)
    modeled = pair_sums(data, weight) if kind == "int8" else exact
    assert (modeled != exact).any() == is_lost
    assert bool(mixed_products(model, "ENABLE_ALL")) == is_lost
    sums = modeled if session.has_saturating_products() else exact
    np.testing.assert_array_equal(
        computed(model, {"x": data}, "ENABLE_ALL")[0], np.clip(np.rint(sums / 4096) + 128, 0, 255)
    )


@pytest.mark.skipif(
    os.environ.get("LINGER_REQUIRE_SATURATION") != "1", reason="any CPU will do, except in make test-cpus"
)
def test_the_emulated_cpu_saturates():
    assert session.has_saturating_products()
