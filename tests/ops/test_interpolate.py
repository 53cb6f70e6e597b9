"""iqInterpolate by hand: weighted means of neighbors, rounded half up once; and how near real interpolation is."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.hand_worked import assert_gives, image
from tests.support.ops import Refusal, find_op
from tests.support.samples import run_numpy

iq_interpolate = find_op("iqInterpolate")
from_interpolate = iq_interpolate.functions["torch.nn.functional.interpolate"]
matrices = iq_interpolate.make_constants


def bound(x, **settings):
    found = from_interpolate(torch.from_numpy(x.astype(np.float32)), mode="bilinear", **settings)
    return [np.array(m, np.int16) for m in matrices(scale=16.0, bits=8, **found)]


def attributes(bits=8, scale_o=16.0):
    return {"data_bits": bits, "o_bits": bits, "scale_x": 16.0, "scale_o": scale_o}


@pytest.mark.parametrize(
    ("x", "settings", "expected"),
    [
        # twice as wide: ¾ and ¼ of neighbors. 0, 2½ → 3, 7½ → 8, 10
        pytest.param(image([0, 10]), {"size": (1, 4)}, image([0, 3, 8, 10]), id="twice as wide"),
        # −2½ → −2, −7½ → −7
        pytest.param(image([0, -10]), {"size": (1, 4)}, image([0, -2, -7, -10]), id="negative ties go up"),
        # rows too: with ¾ and ¼ of each, (9·0 + 3·1 + 3·2 + 7)/16 = 1 in the middle; one rounding, not two
        pytest.param(
            image([0, 1], [2, 7]),
            {"scale_factor": 2},
            # rows ¾·(0 1) + ¼·(2 7) = (½ 2½), then ¾·½ + ¼·2½ = 1; ¼·½ + ¾·2½ = 2; below (1½ 5½): 2½ → 3, 4½ → 5
            # edges: (0 1): ¼ → 0, ¾ → 1; (2 7): 3¼ → 3, 5¾ → 6; columns ½ → 1, 1½ → 2 and 2½ → 3, 5½ → 6
            image([0, 0, 1, 1], [1, 1, 2, 3], [2, 3, 5, 6], [2, 3, 6, 7]),
            id="an image, one rounding",
        ),
        # corners aligned, 2 → 3: the middle is the mean, ½ up
        pytest.param(image([1, 2], [4, 127]), {"size": (3, 3), "align_corners": True}, image([1, 2, 2], [3, 34, 65], [4, 66, 127]), id="corners"),
        # smaller: 4 → 2 takes the mean of the two in the middle of each half
        pytest.param(image([-128, 127, 3, 4]), {"size": (1, 2)}, image([0, 4]), id="smaller"),
        pytest.param(image([-128, 127]), {"size": (1, 2)}, image([-128, 127]), id="as it is"),
    ],
)  # fmt: skip
def test_value(x, settings, expected):
    assert_gives(iq_interpolate, [x, *bound(x, **settings)], attributes(), expected)


def test_scale_of_the_output():
    x = image([0, 10])
    # (0, 2½, 7½, 10)/2: 1¼ → 1, 3¾ → 4, 5
    assert_gives(iq_interpolate, [x, *bound(x, size=(1, 4))], attributes(scale_o=8.0), image([0, 1, 4, 5]))
    # twice as fine: 100·2 does not fit
    x = image([0, 100])
    assert_gives(iq_interpolate, [x, *bound(x, size=(1, 4))], attributes(scale_o=32.0), image([0, 50, 127, 127]))


SETTINGS = {
    "twice": {"scale_factor": 2},
    "1.5": {"scale_factor": 1.5},
    "uneven": {"scale_factor": (2.3, 0.7)},
    "smaller": {"scale_factor": 0.6},
    "to a size": {"size": (11, 3)},
    "corners": {"size": (11, 17), "align_corners": True},
    "recomputed": {"scale_factor": 1.7, "recompute_scale_factor": True},
    "not recomputed": {"scale_factor": 1.7, "recompute_scale_factor": False},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("bits", [8, 16])
def test_it_is_within_the_stated_error(settings, bits, draw):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    # extremes beside each other: the largest differences
    x = np.where(draw.random((2, 3, 9, 8)) < 0.5, low, high).astype(f"int{bits}")
    real = F.interpolate(torch.from_numpy(x.astype(np.float64)), mode="bilinear", **settings).numpy()
    found = run_numpy(iq_interpolate, [x, *bound(x, **settings)], attributes(bits))
    assert found.shape == real.shape
    # ½ + 2^-14·D, D = 2^bits − 1, and 2^-40·D for torch's float64
    assert np.abs(found - real).max() <= 0.5 + (2**bits - 1) * (2.0**-14 + 2.0**-40)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mode": "bicubic"}, "mode='bicubic'"),
        ({"mode": "area"}, "mode='area'"),
        ({"mode": "bilinear", "antialias": True}, "antialias"),
        ({"mode": "bilinear", "scale_factor": None}, "either a size or a factor"),
        ({"mode": "bilinear", "scale_factor": 0.1}, "not empty"),
    ],
)
def test_what_has_no_integer_form_is_refused(settings, reason):
    found = from_interpolate(torch.zeros(1, 2, 4, 4), **{"scale_factor": 2.0, **settings})
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_signals_are_refused():
    assert isinstance(from_interpolate(torch.zeros(1, 2, 4), scale_factor=2.0, mode="bilinear"), Refusal)
