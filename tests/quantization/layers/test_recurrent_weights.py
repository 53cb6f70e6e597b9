"""Parameters of recurrent layers as integers."""

import pytest
import torch

from linger.errors import UsageError
from tests.support.quantization import Limits
from tests.support.quantized_layers import ROLES, Weights, round_parameters, within


def direction(largest=1.0, bias=0.5):
    w = torch.tensor([[0.3, -largest], [0.25, 0.1]])
    b = None if bias is None else torch.tensor([bias, -0.01])
    return Weights(w, w * 2, b, b)


def test_integers_by_hand():
    # 127/1.0 → 64; 127/2.0 → 32. Biases at 16·64 = 2^10 and 128·32 = 2^12: 0.5 → 512 and 2048, −0.01 → −10 and −41
    found = round_parameters([direction()], 16.0, 128.0, 8, "rnn")
    assert (found.scale_iw, found.scale_hw) == ((64.0,), (32.0,))
    integers = found.integers(0, 16.0, 128.0, 8)
    assert tuple(integers) == ROLES
    assert integers["w_ih"].tolist() == [[19, -64], [16, 6]]  # 19.2, −64, 16, 6.4
    assert integers["w_hh"].tolist() == [[19, -64], [16, 6]]
    assert (integers["b_ih"].tolist(), integers["b_hh"].tolist()) == ([512, -10], [2048, -41])
    assert [integers[role].dtype for role in ROLES] == [torch.int8, torch.int8, torch.int32, torch.int32]


def test_missing_biases_are_zeros_in_the_file():
    found = round_parameters([direction(bias=None)], 16.0, 128.0, 8, "rnn")
    assert found.weights.b_ih is None
    assert found.integers(0, 16.0, 128.0, 8)["b_hh"].tolist() == [0, 0]


def test_scale_is_lowered_for_a_bias_that_would_not_fit():
    # 2^31/(2^20·4096) = ½: a bias of 4096 at input scale 2^20 leaves no room for a finer weight scale
    found = round_parameters([direction(bias=4096.0)], 2.0**20, 1.0, 8, "rnn")
    assert found.scale_iw[0] * 2.0**20 * 4096 <= 2.0**31
    assert found.integers(0, 2.0**20, 1.0, 8)["b_ih"].tolist()[0] == int(4096 * 2.0**20 * found.scale_iw[0])


def test_limits_hold_before_rounding():
    kept = within(Limits(weight=0.5, bias=0.25), 8, *direction(largest=3.0))
    assert kept.w_ih.abs().max() < 0.5
    assert kept.b_ih.tolist() == [0.25, pytest.approx(-0.01)]


def test_not_a_number_is_named():
    with pytest.raises(UsageError, match="rnn: the weights hold NaN"):
        round_parameters([direction(largest=float("nan"))], 16.0, 128.0, 8, "rnn")
