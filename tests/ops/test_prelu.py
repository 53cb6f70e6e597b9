"""iqPRelu by hand: positive integers are rescaled, others multiplied by their channel's slope, rounded once."""

import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import find_op, run_in_training

iq_prelu = find_op("iqPRelu")

EQUAL = {"scale_x": 16.0, "scale_w": 256.0, "scale_o": 16.0}


@pytest.mark.parametrize(
    ("x", "w", "settings", "expected"),
    [
        # slopes ¼, −½, 2 (64, −128, 512 at 256): −2·¼ = −½ → 0, −6·¼ = −1½ → −1; −3·−½ = 1½ → 2; −65·2 = −130 → −128
        pytest.param(
            int8([[-2, -3, -65], [-6, 3, 65]]),
            int16(64, -128, 512),
            EQUAL,
            int8([[0, 2, -128], [-1, 3, 65]]),
            id="each channel",
        ),
        # slope ¼ everywhere; 127 stays
        pytest.param(int8([[-128, 127, 0]]), int16([64]), EQUAL, int8([[-32, 127, 0]]), id="one slope"),
        # scale_o is half of scale_x: 5/2 = 2½ → 3; −5·2/2 = −5; −3·½/2 = −¾ → −1; one rounding, not two: −3·¼/2 = −⅜ → 0
        pytest.param(
            int8([[5, -5, -3, -3]]),
            int16(0, 512, 128, 64),
            EQUAL | {"scale_o": 8.0},
            int8([[3, -5, -1, 0]]),
            id="coarser output",
        ),
        # negative beyond −1: −100·−2 = 200 → 127
        pytest.param(int8([[-100]]), int16([-512]), EQUAL, int8([[127]]), id="saturates upwards"),
        # slope 40 000 = 20 000 at scale ½: −1·40000/2^15 (scale_o = scale_x·2^-15) = −1.22 → −1
        pytest.param(
            int8([[-1]]),
            int16([20000]),
            {"scale_x": 16.0, "scale_w": 0.5, "scale_o": 16 * 2.0**-15},
            int8([[-1]]),
            id="very steep",
        ),
        # −32768·−32768/2^15 = 32768 → 32767; −10·26214/2^15 = −7.9999 → −8
        pytest.param(
            int16([[-32768, -10]]),
            int16(-32768, 26214),
            {"scale_x": 16.0, "scale_w": 2.0**15, "scale_o": 16.0, "o_bits": 16},
            int16([[32767, -8]]),
            id="16 bits",
        ),
    ],
)
def test_value(x, w, settings, expected):
    assert_gives(iq_prelu, [x, w], settings, expected)


def test_channels_are_axis_one_of_any_rank():
    x, w = int8([[[-8, -8], [-8, 8]]]), int16(64, 128)
    assert_gives(iq_prelu, [x, w], EQUAL, int8([[[-2, -2], [-4, 8]]]))
    assert_gives(iq_prelu, [x[..., None], w], EQUAL, int8([[[-2, -2], [-4, 8]]])[..., None])
    assert_gives(iq_prelu, [x[..., None, None], w], EQUAL, int8([[[-2, -2], [-4, 8]]])[..., None, None])
    assert_gives(iq_prelu, [x.reshape(-1), w[:1]], EQUAL, int8(-2, -2, -2, 8))


def test_scale_is_never_finer_than_either_side_allows():
    assert iq_prelu.limit((16.0, 2.0**15)) == 16.0
    assert iq_prelu.limit((16.0, 0.5)) == 8.0


def test_gradients_of_the_body_are_those_of_torch():
    x, w = (
        torch.randint(-20, 20, (2, 3, 5)).float().requires_grad_(),
        torch.tensor([64.0, -32.0, 512.0]).requires_grad_(),
    )
    run_in_training(iq_prelu, [x, w], EQUAL).sum().backward()
    real_x, real_w = x.detach().clone().requires_grad_(), (w.detach() / 256).requires_grad_()
    torch.prelu(real_x, real_w).sum().backward()
    assert torch.equal(x.grad, real_x.grad)
    assert torch.allclose(w.grad * 256, real_w.grad)  # scaled by 2^8: exact sums of small integers


@pytest.mark.parametrize("name", iq_prelu.functions)
def test_bound_name_is_torchs(name):
    assert torch_object(name)(torch.tensor([-2.0]), torch.tensor([0.5])).item() == -1.0
