"""iqVar by hand and by fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, torch_object
from tests.support.ops import Refusal, find_op, limits, round_half_up
from tests.support.samples import arrays, run_numpy

iq_var = find_op("iqVar")


def attributes(scale_o, *, dim=1, unbiased=1, **more):
    return {"dim": dim, "unbiased": unbiased, "scale_x": 4.0, "scale_o": scale_o} | more


def test_by_hand():
    x = int8([[1, 2, 3], [0, 0, 1], [5, 5, 5], [127, -128, 0]])
    # N·S2 − S1² = 42 − 36 = 6, 3 − 1 = 2, 0, 3·32513 − 1 = 97538; N·(N − 1) = 6
    # at scale_o = scale_x² = 16: 1, ⅓ → 0, 0, 16256⅓ → 127
    assert_gives(iq_var, [x], attributes(16.0), int8([[1], [0], [0], [127]]))
    # a half: ½ → 1, ⅙ → 0, 0
    assert_gives(iq_var, [x], attributes(8.0), int8([[1], [0], [0], [127]]))
    # 2^-8: 97538/6/256 = 63.501 → 64
    assert_gives(iq_var, [x], attributes(2.0**-4), int8([[0], [0], [0], [64]]))


def test_without_the_correction():
    # 6/9 → 1, 2/9 → 0; first axis of (1, 3): N·S2 − S1² = 4, /4 = 1
    assert_gives(iq_var, [int8([[1, 2, 3], [0, 0, 1]])], attributes(16.0, unbiased=0), int8([[1], [0]]))
    assert_gives(iq_var, [int8([[1], [3]])], attributes(16.0, dim=0, unbiased=0), int8([[1]]))
    assert_gives(iq_var, [int8([[1], [3]])], attributes(16.0, dim=0), int8([[2]]))


@pytest.mark.parametrize("sample", iq_var.samples, ids=lambda sample: sample.name)
def test_samples_by_fractions(sample):
    (x,) = arrays(sample)
    full = iq_var.complete(sample.attributes)
    low, high = limits(full["o_bits"])
    axis, count = full["dim"], x.shape[full["dim"]]
    ratio = Fraction(full["scale_o"]) / Fraction(full["scale_x"]) ** 2 / (count * (count - full["unbiased"]))
    wide = x.astype(object)
    spread = count * (wide**2).sum(axis=axis, keepdims=True) - wide.sum(axis=axis, keepdims=True) ** 2
    expected = [max(low, min(high, round_half_up(int(s) * ratio))) for s in spread.ravel()]
    np.testing.assert_array_equal(run_numpy(iq_var, [x], sample.attributes), np.array(expected).reshape(spread.shape))


def test_bindings():
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert set(iq_var.functions) == {f"{place}.{n}" for place in ("torch", "torch.Tensor") for n in ("var", "std")}
    for name, bind in iq_var.functions.items():
        assert torch_object(name)(x, 1, keepdim=True).tolist() == [[1.0]]
        if name.endswith("std"):
            assert "square root" in bind(x, 1).reason
            continue
        assert bind(x, 1, True, True) == {"dim": 1, "unbiased": 1}
        assert bind(x, 1, False, True) == {"dim": 1, "unbiased": 0}
        for settings in ((x, 1), (x, (0, 1), True, True), (x, 2, True, True), (x, 0, True, True)):
            assert isinstance(bind(*settings), Refusal)
        assert "correction of 2" in bind(x, 1, True, True, correction=2).reason


def test_sums_that_would_not_be_exact_are_refused():
    class Wide:
        bits, shape = 16, (1, 1449)

    assert "1449 numbers of 16 bits" in iq_var.functions["torch.var"](Wide(), 1, True, True).reason
