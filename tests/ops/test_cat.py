"""iqCat by hand: each input becomes sat(⌊xᵢ·so/sᵢ + ½⌋), then they are joined."""

import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import find_op

iq_cat = find_op("iqCat")
from_cat = iq_cat.functions["torch.cat"]


@pytest.mark.parametrize(
    ("xs", "scales", "scale_o", "expected"),
    [
        pytest.param((int8(1, -128), int8(127)), (16.0, 16.0), 16.0, int8(1, -128, 127), id="equal scales"),
        # x/4: 2 → ½ → 1, −2 → −½ → 0, 6 → 1½ → 2, −6 → −1½ → −1; y stays
        pytest.param((int8(2, -2, 6, -6), int8(127)), (64.0, 16.0), 16.0, int8(1, 0, 2, -1, 127), id="one shifted"),
        # ·4: 31 → 124, 32 → 127, −33 → −128; y stays
        pytest.param((int8(31, 32, -33), int8(-7)), (16.0, 64.0), 64.0, int8(124, 127, -128, -7), id="left shift"),
        # /2: 3 → 2, −3 → −1; /4: 5 → 1.25 → 1; ·1: 9
        pytest.param((int8(3, -3), int8(5), int8(9)), (16.0, 32.0, 8.0), 8.0, int8(2, -1, 1, 9), id="three inputs"),
        pytest.param((int8(5, -5),), (16.0,), 8.0, int8(3, -2), id="one input"),  # 2½ → 3, −2½ → −2
    ],
)
def test_joined(xs, scales, scale_o, expected):
    attributes = {f"scale_x_{i}": s for i, s in enumerate(scales)} | {"scale_o": scale_o, "dim": 0}
    assert_gives(iq_cat, list(xs), attributes, expected)


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (0, [[1, 2], [3, 4], [5, 6], [7, 8]]),
        (1, [[1, 2, 5, 6], [3, 4, 7, 8]]),
        (-1, [[1, 2, 5, 6], [3, 4, 7, 8]]),
        (-2, [[1, 2], [3, 4], [5, 6], [7, 8]]),
    ],
)
def test_axis(dim, expected):
    attributes = {"scale_x_0": 8.0, "scale_x_1": 8.0, "scale_o": 8.0, "dim": dim}
    assert_gives(iq_cat, [int8([[1, 2], [3, 4]]), int8([[5, 6], [7, 8]])], attributes, int8(expected))


def test_sixteen_bits():
    # /2: 32767 → 16383.5 → 16384, −32767 → −16383.5 → −16383; y stays
    attributes = {"scale_x_0": 1024.0, "scale_x_1": 512.0, "scale_o": 512.0, "dim": 0, "o_bits": 16}
    assert_gives(iq_cat, [int16(32767, -32767), int16(-32768)], attributes, int16(16384, -16383, -32768))


@pytest.mark.parametrize("name", iq_cat.functions)
@pytest.mark.parametrize("dim", [0, 1])
def test_bound_name_joins_in_torch(name, dim):
    xs = [torch.zeros(2, 3), torch.ones(2, 3)]
    assert torch_object(name)(xs, dim=dim).shape[dim] == 2 * xs[0].shape[dim]
    assert iq_cat.functions[name](xs, dim=dim) == {"dim": dim}


def test_axis_defaults_to_the_first():
    assert from_cat([torch.zeros(1)]) == {"dim": 0}
