"""iqClamp by hand: rescaled, then limited to the rounded bounds."""

import pytest

from tests.support.hand_worked import assert_gives, int8, int16
from tests.support.ops import find_op

iq_clamp = find_op("iqClamp")


def attributes(low, high, scale_x, scale_o, **more):
    return {"min": low, "max": high, "scale_x": scale_x, "scale_o": scale_o, **more}


@pytest.mark.parametrize(
    ("x", "settings", "expected"),
    [
        # 127/7.9375 = 16: x/2, ties up (3 → 1½ → 2, −3 → −1½ → −1), −8·16 = −128, 7.9375·16 = 127
        pytest.param(
            int8(3, -3, 127, -128), attributes(-8.0, 7.9375, 32.0, 16.0), int8(2, -1, 64, -64), id="as older files"
        ),
        # twice as fine: 100 → 200 → 127; −100 → −200 → −128
        pytest.param(int8(100, -100, 5), attributes(-8.0, 7.9375, 8.0, 16.0), int8(127, -128, 10), id="left shift"),
        # from 0: negative ones become 0
        pytest.param(int8(-5, 0, 5, 127), attributes(0.0, 7.9375, 16.0, 16.0), int8(0, 0, 5, 127), id="from zero"),
        # −0.71875·16 = −11½ → −11; 0.65625·16 = 10½ → 11
        pytest.param(
            int8(-20, -11, 10, 20),
            attributes(-0.71875, 0.65625, 16.0, 16.0),
            int8(-11, -11, 10, 11),
            id="ties of the bounds",
        ),
        # the bounds are beyond 8 bits: saturation remains
        pytest.param(int16(1000, -1000), attributes(-100.0, 100.0, 16.0, 16.0), int8(127, -128), id="saturates"),
        pytest.param(
            int16(1000, -1000), attributes(-50.0, 50.0, 16.0, 16.0, o_bits=16), int16(800, -800), id="16 bits"
        ),
    ],
)
def test_value(x, settings, expected):
    assert_gives(iq_clamp, [x], settings, expected)


def test_torch_does_not_make_it():
    assert not iq_clamp.functions
    assert not iq_clamp.layers
