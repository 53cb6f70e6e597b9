"""iqLeakyRelu by hand: positive integers stay, others are multiplied by the slope and rounded half up."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import Refusal, find_op, run_in_training
from tests.support.samples import run_numpy

iq_leaky_relu = find_op("iqLeakyRelu")
from_leaky_relu = iq_leaky_relu.functions["torch.nn.functional.leaky_relu"]


def rounded_slope(slope):
    """The slope as files store it."""
    return from_leaky_relu(None, slope)["alpha"]


def attributes(alpha, bits=8, scale_o=16.0):
    return {"alpha": alpha, "data_bits": bits, "o_bits": bits, "scale_x": 16.0, "scale_o": scale_o}


@pytest.mark.parametrize(
    ("x", "settings", "expected"),
    [
        # −1/4 → 0; −2/4 = −½, a tie, goes up to 0; −3/4 → −1; −6/4 = −1½ → −1; −128/4 = −32
        pytest.param(
            int8(-1, -2, -3, -6, -128, 0, 1, 127), attributes(0.25), int8(0, 0, -1, -1, -32, 0, 1, 127), id="¼"
        ),
        # 0.1 is 26214/2^18 = 0.09999847: −5·0.1 = −0.49999 → 0; −15 → −1.49998 → −1; −25 → −2.49996 → −2; −128 → −12.8 → −13
        pytest.param(int8(-5, -15, -25, -128), attributes(rounded_slope(0.1)), int8(0, -1, -2, -13), id="0.1"),
        # −(−128) = 128 does not fit
        pytest.param(int8(-128, -127, 5), attributes(-1.0), int8(127, 127, 5), id="−1 is the magnitude"),
        # ½ as fine: 127·2 = 254 → 127, 5·2 = 10, −6·¼·2 = −3
        pytest.param(int8(127, 5, -6), attributes(0.25, scale_o=32.0), int8(127, 10, -3), id="finer output"),
        # half as coarse: 3/2 = 1½ → 2; −6·¼/2 = −0.75 → −1; −4·¼/2 = −½ → 0
        pytest.param(int8(3, -6, -4), attributes(0.25, scale_o=8.0), int8(2, -1, 0), id="coarser output"),
        # −32768·26214/2^18 = −3276.75 → −3277
        pytest.param(int16(-32768, 32767), attributes(rounded_slope(0.1), 16), int16(-3277, 32767), id="16 bits"),
    ],
)
def test_value(x, settings, expected):
    assert_gives(iq_leaky_relu, [x], settings, expected)


@pytest.mark.parametrize("slope", [0.01, 0.1, 0.2, 1 / 3, -0.7, 1.0])
def test_every_int16_is_within_half_a_step_and_the_slopes_error(slope):
    x = np.arange(-32768, 32768).astype(np.int16)
    found = run_numpy(iq_leaky_relu, [x], attributes(rounded_slope(slope), 16)).astype(np.float64)
    real = np.clip(np.where(x > 0, x, x * slope), -32768, 32767)
    # the mantissa has at least 15 bits, so the slope is off by at most 2^-15 of itself: |slope| of 2^15 steps; half a step more
    assert np.abs(found - real).max() <= abs(slope) + 0.5


def test_slope_of_sixteen_bits():
    assert [rounded_slope(s) for s in (0.0, 0.25, 1.0, -1.0, -0.5)] == [0.0, 0.25, 1.0, -1.0, -0.5]
    assert rounded_slope(0.1) == 26214 / 2**18  # 0.1·2^18 = 26214.4
    assert rounded_slope(0.01) == 20972 / 2**21  # 20971.52
    assert rounded_slope(1 / 3) == 21845 / 2**16  # 21845.33: odd, so all sixteen bits count
    assert all(np.float32(rounded_slope(s)) == rounded_slope(s) for s in (0.1, 0.01, 0.2, 1 / 3))


def test_gradient_is_that_of_torch_also_at_zero():
    x = torch.arange(-20.0, 21.0).requires_grad_()
    run_in_training(iq_leaky_relu, [x], attributes(0.25)).sum().backward()
    real = torch.arange(-20.0, 21.0).requires_grad_()
    torch.nn.functional.leaky_relu(real, 0.25).sum().backward()
    assert torch.equal(x.grad, real.grad)


def test_binding_has_the_defaults_of_torch():
    x = torch.tensor([-1.0])
    for name in iq_leaky_relu.functions:
        assert torch_object(name)(x.clone()).item() == pytest.approx(-0.01)
        assert iq_leaky_relu.functions[name](x) == {"alpha": rounded_slope(0.01)}


@pytest.mark.parametrize("slope", [1.5, -2.0, float("nan"), float("inf")])
def test_a_slope_that_widens_the_range_is_refused(slope):
    assert isinstance(from_leaky_relu(torch.ones(1), slope), Refusal)
