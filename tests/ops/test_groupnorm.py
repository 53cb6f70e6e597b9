"""GroupNormInt by hand and against Python's integers."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object
from tests.support.integer_norm import group_norm
from tests.support.ops import Refusal, find_op
from tests.support.samples import arrays, run_numpy

groupnorm_int = find_op("GroupNormInt")


def attributes(groups, scale_o=8.0, **more):
    widths = {"data_bits": 8, "parameter_bits": 16, "o_bits": 8}
    return {"groups": groups} | widths | {"scale_x": 1.0, "scale_w": 4.0, "scale_o": scale_o} | more


# pairs (1, 3) and (5, 3) are −1024, 1024 and 1024, −1024 in Q10 (tests/numeric/test_curves_normalization.py: only the distances
# from the mean count); scale_o/(2^10·4) = 2^-9
def test_every_channel_a_group():
    x = int8([[[1, 3], [5, 3]]])
    # channel 0: ∓1024·4 → ∓8; channel 1: ±1024·6 + 256 → 12½ → 13 and −11½ → −11
    expected = int8([[[-8, 8], [13, -11]]])
    assert_gives(groupnorm_int, [x, int16(4, 6), int32(0, 256)], attributes(2), expected)


def test_a_group_of_two_channels():
    # (1, 3, 1, 3): N = 4, S1 = 8, S2 = 20, D = 16, the distances ∓4 → ∓1023.97 → ∓1024, over both channels;
    # the second image is the same with other signs
    x = int8([[[1, 3], [1, 3]], [[-1, -3], [-1, -3]]])
    expected = int8([[[-8, 8], [-12, 12]], [[8, -8], [12, -12]]])
    assert_gives(groupnorm_int, [x, int16(4, 6), int32(0, 0)], attributes(1), expected)


def test_both_ends_saturate():
    x = int8([[[1, 3], [5, 3]]])
    expected = int8([[[-128, 127], [127, -128]]])
    assert_gives(groupnorm_int, [x, int16(400, 400), int32(0, 0)], attributes(2), expected)


def test_accumulator_has_thirty_two_bits():
    # ±1024·32767 + 2^31 − 1: what does not fit stays 2^31 − 1, 2^19 at 2^-12; the other is 2113930239/2^12 = 516096.2
    inputs = [int8([[[1, 3]]]), int16([32767]), int32([2**31 - 1])]
    expected = int32([[[516096, 524288]]])
    assert_gives(groupnorm_int, inputs, attributes(1, 1.0, o_bits=32), expected)


@pytest.mark.parametrize("sample", groupnorm_int.samples, ids=lambda sample: sample.name)
def test_samples_in_pythons_integers(sample):
    inputs = arrays(sample)
    expected = group_norm(*inputs, **sample.attributes)
    np.testing.assert_array_equal(run_numpy(groupnorm_int, inputs, sample.attributes), expected)


LAYERS = {
    "torch.nn.GroupNorm": (nn.GroupNorm(2, 6, eps=0.5), {"groups": 2, "eps": 0.5}),
    "torch.nn.InstanceNorm1d": (nn.InstanceNorm1d(6), {"groups": 6}),
    "torch.nn.InstanceNorm2d": (nn.InstanceNorm2d(6, affine=True), {"groups": 6}),
    "torch.nn.InstanceNorm3d": (nn.InstanceNorm3d(6, eps=1e-3), {"groups": 6, "eps": 1e-3}),
}


def test_layers():
    assert set(groupnorm_int.layers) == set(LAYERS)
    for name, (layer, expected) in LAYERS.items():
        assert torch_object(name) is type(layer)
        assert groupnorm_int.layers[name](layer) == expected


@pytest.mark.parametrize("kind", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
def test_running_statistics_are_refused(kind):
    found = groupnorm_int.layers[f"torch.nn.{kind.__name__}"](kind(3, track_running_stats=True))
    assert isinstance(found, Refusal)
    assert "track_running_stats" in found.reason


def test_functions():
    x = torch.randn(2, 6, 5)
    group, instance = (groupnorm_int.functions[f"torch.nn.functional.{n}_norm"] for n in ("group", "instance"))
    assert group(x, 3) == {"groups": 3}
    assert group(x, 3, None, None, 0.5) == {"groups": 3, "eps": 0.5}
    assert instance(x) == {"groups": 6}
    for settings in ({"use_input_stats": False}, {"running_mean": x[0, 0], "running_var": x[0, 0]}):
        assert isinstance(instance(x, **settings), Refusal)
