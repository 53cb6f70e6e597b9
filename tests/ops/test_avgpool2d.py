"""AvgPool2dInt by hand: y = sat(⌊Σ·r·so/sx + ½⌋) with the device's reciprocal r, and torch's pools."""

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, image, torch_object
from tests.support.ops import Refusal, find_op, reference_kernel

avgpool2d_int = find_op("AvgPool2dInt")
from_adaptive_avg_pool2d = avgpool2d_int.functions["torch.nn.functional.adaptive_avg_pool2d"]
from_adaptive_layer = avgpool2d_int.layers["torch.nn.AdaptiveAvgPool2d"]
from_avg_pool2d = avgpool2d_int.functions["torch.nn.functional.avg_pool2d"]
from_avgpool_layer = avgpool2d_int.layers["torch.nn.AvgPool2d"]


def attributes(kernel, *, o_shift=0, bits=8, **geometry):
    return {
        "kernel_shape": kernel,
        "strides": kernel,
        "pads": (0, 0, 0, 0),
        "data_bits": bits,
        "o_bits": bits,
        "scale_x": 16.0,
        "scale_o": 16.0 / 2**o_shift,
    } | geometry


def windows_of(sums, area):
    """One row of windows of 1×area, the i-th adding up to sums[i]: the whole sum is its first element."""
    rows = np.zeros((1, 1, 1, area * len(sums)), np.int8)
    rows[0, 0, 0, ::area] = sums
    return rows


def test_area_four_rounds_ties_up():
    # (1 + 2 + 3 + 4)/4 = 2.5 → 3; −10/4 = −2.5 → −2; 4·127/4 = 127; −512/4 = −128
    x = image([1, 2, -1, -2, 127, 127, -128, -128], [3, 4, -3, -4, 127, 127, -128, -128])
    assert_gives(avgpool2d_int, [x], attributes((2, 2)), image([3, -2, 127, -128]))


@pytest.mark.parametrize(
    ("area", "sums", "expected"),
    [
        # r = 715827883/2^32 is a little more than 1/6: 3·r = 0.5000000002 → 1, −3·r = −0.5000000002 → ⌊−2e-10⌋ = −1
        pytest.param(6, [3, 9, 15, 21], [1, 2, 3, 4], id="6, positive ties go up"),
        pytest.param(6, [-3, -9, -15, -21], [-1, -2, -3, -4], id="6, negative ties go down"),
        # 2/6, 4/6, −2/6, −4/6, 6/6, −6/6, 0
        pytest.param(6, [2, 4, -2, -4, 6, -6, 0], [0, 1, 0, -1, 1, -1, 0], id="6, no ties"),
        # r = 858993459/2^33 is a little less than 1/10: 5·r = 0.4999999999 → 0, −5·r = −0.4999999999 → 0
        pytest.param(10, [5, 15, 25, 35], [0, 1, 2, 3], id="10, positive ties go down"),
        pytest.param(10, [-5, -15, -25, -35], [0, -1, -2, -3], id="10, negative ties go up"),
        pytest.param(10, [4, 6, -4, -6, 10, -10, 127], [0, 1, 0, -1, 1, -1, 13], id="10, no ties"),
        # 1/8 is exact: ½ → 1, −½ → 0
        pytest.param(8, [4, -4, 12, -12, 3, -5], [1, 0, 2, -1, 0, -1], id="8 is exact"),
        # odd areas have no ties: 4/9 → 0, 5/9 → 1, −4/9 → 0, −5/9 → −1
        pytest.param(9, [4, 5, -4, -5], [0, 1, 0, -1], id="9 has no ties"),
    ],
)
def test_areas(area, sums, expected):
    assert_gives(avgpool2d_int, [windows_of(sums, area)], attributes((1, area)), image(expected))


def test_the_shape_of_the_window_does_not_matter():
    # −1·3 over 2×3 and over 3×2: −3·r → −1 as above
    x = image([-1, -1, -1], [0, 0, 0])
    assert_gives(avgpool2d_int, [x], attributes((2, 3)), image([-1]))
    assert_gives(avgpool2d_int, [x.swapaxes(2, 3).copy()], attributes((3, 2)), image([-1]))


def test_padding_counts_in_the_area():
    # one row above and one column left: the corner window holds 8 alone, 8/4 = 2; beside it 8 + 6 = 14, /4 = 3.5 → 4;
    # below 8 − 2 = 6 → 1.5 → 2; 8 + 6 − 2 − 2 = 10 → 2.5 → 3
    x = image([8, 6], [-2, -2])
    expected = image([2, 4], [2, 3])
    assert_gives(avgpool2d_int, [x], attributes((2, 2), strides=(1, 1), pads=(1, 1, 0, 0)), expected)


def test_coarser_output_rounds_once():
    # 13/4 = 3.25; at a quarter of the scale 13/16 = 0.8125 → 1; 7/16 → 0; 8/16 = ½ → 1; −8/16 = −½ → 0
    # rounding twice would give 3.25 → 3 → 0.75 → 1, but 1.75 → 2 → ½ → 1 for the second
    sums = [13, 7, 8, -8]
    assert_gives(avgpool2d_int, [windows_of(sums, 4)], attributes((1, 4), o_shift=2), image([1, 0, 1, 0]))


def test_finer_output_saturates():
    # 127·4/4 at four times the scale is 508 → 127; −512 → −128; 20/4·4 = 20
    x = image([127, 127, -128, -128, 5, 5], [127, 127, -128, -128, 5, 5])
    assert_gives(avgpool2d_int, [x], attributes((2, 2), o_shift=-2), image([127, -128, 20]))


def test_sixteen_bits():
    # 6·32767/6: r is 1.0000000005/6, 32767.00002 → 32767; 6·−32768 → −32768.00002 → −32768
    x = image([32767] * 6 + [-32768] * 6, dtype=np.int16)
    assert_gives(avgpool2d_int, [x], attributes((1, 6), bits=16), image([32767, -32768], dtype=np.int16))


def assert_same_windows(bound, x, expected):
    """The bound window's sums over its area are torch's averages; x holds small whole numbers, so both are exact."""
    geometry = {name: bound[name] for name in ("kernel_shape", "strides", "pads")}
    sums = reference_kernel().window_sum(x.numpy(), **geometry)
    area = np.prod(bound["kernel_shape"])
    np.testing.assert_array_equal(sums, np.rint(expected.numpy() * area))
    assert bound["ceil_mode"] == 0


IMAGE = torch.arange(-40, 44, dtype=torch.float64).reshape(1, 2, 6, 7).roll(5)

POOLS = {
    "2×2": {"kernel_size": 2},
    "by axis": {"kernel_size": (2, 3), "stride": (1, 2)},
    "padded": {"kernel_size": 3, "stride": 2, "padding": 1},
    "padded by axis": {"kernel_size": (2, 3), "padding": (1, 0)},
    "ceil mode without overhang": {"kernel_size": (2, 3), "stride": (2, 2), "ceil_mode": True},
    "padding does not count, but there is none": {"kernel_size": 2, "count_include_pad": False},
    "divisor is the area": {"kernel_size": (2, 3), "divisor_override": 6},
}


@pytest.mark.parametrize("settings", POOLS.values(), ids=POOLS.keys())
def test_layer_is_bound_as_a_call_with_its_own_windows(settings):
    layer = torch.nn.AvgPool2d(**settings)
    call = from_avgpool_layer(layer)
    assert torch.equal(torch_object(call["call"])(IMAGE, *call["arguments"]), layer(IMAGE))
    assert_same_windows(avgpool2d_int.functions[call["call"]](IMAGE, *call["arguments"]), IMAGE, layer(IMAGE))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        pytest.param(
            {"kernel_size": 3, "padding": 1, "count_include_pad": False}, "count_include_pad", id="pad excluded"
        ),
        pytest.param({"kernel_size": 2, "divisor_override": 3}, "divisor_override", id="another divisor"),
        pytest.param({"kernel_size": 2, "stride": 2, "ceil_mode": True}, "ceil_mode", id="overhang of 7 columns"),
    ],
)
def test_windows_without_a_fixed_divisor_are_refused(settings, reason):
    found = from_avg_pool2d(IMAGE, **settings)
    assert isinstance(found, Refusal)
    assert reason in found.reason


@pytest.mark.parametrize("stride", [None, [], 2, (2, 2)], ids=str)
def test_stride_defaults_to_the_kernel(stride):
    assert from_avg_pool2d(IMAGE, 2, stride)["strides"] == (2, 2)


@pytest.mark.parametrize("size", [1, (1, 1), (6, 7), 2, (6, 1), (3, 3), (None, 2), (2, None)], ids=str)
def test_adaptive_pool_to_a_size_with_windows_that_are_alike(size):
    layer = torch.nn.AdaptiveAvgPool2d(size)
    call = from_adaptive_layer(layer)
    bound = avgpool2d_int.functions[call["call"]](IMAGE, *call["arguments"])
    assert_same_windows(bound, IMAGE, layer(IMAGE))


@pytest.mark.parametrize("size", [4, (6, 5), (4, 3)], ids=str)
def test_adaptive_pool_to_another_size_is_refused(size):
    assert isinstance(from_adaptive_avg_pool2d(IMAGE, size), Refusal)


@pytest.mark.parametrize("name", [*avgpool2d_int.functions, *avgpool2d_int.layers])
def test_bound_name_exists_in_torch(name):
    assert callable(torch_object(name))
