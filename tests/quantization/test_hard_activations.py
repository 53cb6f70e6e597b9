"""Hardswish, hardsigmoid and hardtanh of quantized tensors, from calibration to the file."""

import pytest
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.curves import assert_learns_like, assert_runs_as, seen_and_result
from tests.support.wired import after, image

SPELLINGS = {
    "iqHardswish": (F.hardswish, lambda h: F.hardswish(h, inplace=True), nn.Hardswish(), nn.Hardswish(inplace=True)),
    "iqHardsigmoid": (F.hardsigmoid, lambda h: F.hardsigmoid(h, True), nn.Hardsigmoid(), nn.Hardsigmoid(inplace=True)),
}
EACH = [(op, function) for op, functions in SPELLINGS.items() for function in functions]


@pytest.mark.parametrize(("op", "function"), EACH)
@pytest.mark.thin(every=2)
def test_every_spelling_runs_as_integers(op, function, tmp_path):
    h, y = assert_runs_as(op, function, tmp_path)
    # one rounding: half a step
    assert (y.dequantize() - SPELLINGS[op][0](h.dequantize())).abs().max() <= 0.5 / y.scale * (1 + 1e-5)


@pytest.mark.parametrize("op", SPELLINGS)
@pytest.mark.parametrize("options", [{"form": "bare"}, {"dynamo": True}, {"opset_version": 11}], ids=str)
def test_sixteen_bits_in_every_kind_of_file(op, options, tmp_path):
    assert_runs_as(op, SPELLINGS[op][0], tmp_path, out_bits=16, **options)


@pytest.mark.parametrize("op", SPELLINGS)
def test_gradient_is_the_real_functions(op):
    assert_learns_like(SPELLINGS[op][0])


@pytest.mark.parametrize("op", SPELLINGS)
def test_thirty_two_bits_stay_float_and_say_why(op):
    model = seen_and_result(SPELLINGS[op][0], out_bits=32)
    (record,) = linger.coverage(model).float_ops
    assert "16 bits" in record.reason


def test_hardtanh_is_a_clip(tmp_path):
    model = after(nn.Hardtanh(-0.5, 0.5))
    assert [o.op for o in linger.coverage(model).ops][-1] == "Clip"
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok
