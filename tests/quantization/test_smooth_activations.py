"""GELU and SiLU of quantized tensors, from calibration to the file."""

import pytest
import torch.nn.functional as F
from torch import nn

from tests.support.curves import assert_learns_like, assert_runs_as

SPELLINGS = {
    "iqGelu": (F.gelu, lambda h: F.gelu(h, approximate="tanh"), nn.GELU(), nn.GELU(approximate="tanh")),
    "iqSwish": (F.silu, lambda h: F.silu(h, inplace=True), nn.SiLU(), nn.SiLU(inplace=True)),
}
EACH = [(op, function) for op, functions in SPELLINGS.items() for function in functions]


@pytest.mark.parametrize(("op", "function"), EACH)
@pytest.mark.thin(every=2)
def test_every_spelling_runs_as_integers(op, function, tmp_path):
    h, y = assert_runs_as(op, function, tmp_path)
    # half a step and the error of the pieces
    assert (y.dequantize() - function(h.dequantize().clone())).abs().max() <= 0.5 / y.scale + 1.25e-3


@pytest.mark.parametrize("op", SPELLINGS)
@pytest.mark.parametrize("options", [{"form": "bare"}, {"dynamo": True}, {"opset_version": 11}], ids=str)
def test_sixteen_bits_in_every_kind_of_file(op, options, tmp_path):
    assert_runs_as(op, SPELLINGS[op][0], tmp_path, out_bits=16, **options)


@pytest.mark.parametrize("op", SPELLINGS)
def test_thirty_two_bits(op, tmp_path):
    assert_runs_as(op, SPELLINGS[op][0], tmp_path, out_bits=32)


@pytest.mark.parametrize("op", SPELLINGS)
def test_gradient_is_the_real_functions(op):
    assert_learns_like(SPELLINGS[op][0])
