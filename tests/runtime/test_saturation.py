"""The probe for kernels that saturate: its exact answer, and what it says of one that does not give it."""

import numpy as np
import pytest

from linger.runtime import saturation

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
    monkeypatch.setattr(saturation.ort, "InferenceSession", runtime_with(saturating))
    assert saturation.has_saturating_products.__wrapped__() is verdict


def test_this_cpu_gives_one_of_the_two_answers():
    """A third answer would mean that the probe's model is wrong."""
    import onnx_ir as ir
    import onnxruntime as ort

    for text in (saturation._MATMUL, saturation._CONV):
        session = ort.InferenceSession(ir.to_proto(ir.from_onnx_text(text)).SerializeToString())
        found = session.run(None, {"x": np.full(session.get_inputs()[0].shape, 255, np.uint8)})[0]
        assert set(np.unique(found)) <= {EXACT, SATURATED}
    assert saturation.has_saturating_products() is saturation.has_saturating_products.__wrapped__()
