"""Exact products in torch: the plan at its bound, and the plan's result against int64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.arithmetic import fixed
from tests.support.big_int import convolved, convolved_transposed
from tests.support.comparison import assert_same
from tests.support.torch_arithmetic import kernel

pytestmark = pytest.mark.needs_torch

FULL_CHANNEL = 1024
"""Channels of weight 128 whose products with 8-bit inputs add up to 2^24: 1024·128·128."""


def row(channels, last=128.0):
    """One output, all weights 128 but the last."""
    weight = torch.full((1, channels), 128.0)
    weight[0, -1] = last
    return weight


@pytest.mark.parametrize(
    ("weight", "bias", "bits", "plan"),
    [
        # (1023·128 + 127)·128 = 2^24 − 128: the largest sum that float32 is proven for
        pytest.param(row(FULL_CHANNEL, 127), None, 8, kernel.SplitPlan(1), id="just below 2^24"),
        pytest.param(row(FULL_CHANNEL), None, 8, kernel.SplitPlan(2, is_bias_apart=True), id="exactly 2^24"),
        pytest.param(row(FULL_CHANNEL, 127), [127.0], 8, kernel.SplitPlan(1), id="bias fills up to 2^24 − 1"),
        pytest.param(row(FULL_CHANNEL, 127), [-127.0], 8, kernel.SplitPlan(1), id="negative bias, the same"),
        pytest.param(
            row(FULL_CHANNEL, 127), [128.0], 8, kernel.SplitPlan(1, is_bias_apart=True), id="bias reaches 2^24"
        ),
        pytest.param(
            row(FULL_CHANNEL, 127), [-128.0], 8, kernel.SplitPlan(1, is_bias_apart=True), id="negative bias reaches it"
        ),
        pytest.param(torch.ones(1, 1), [2.0**31 - 1], 8, kernel.SplitPlan(1, is_bias_apart=True), id="largest bias"),
        pytest.param(-row(FULL_CHANNEL), None, 8, kernel.SplitPlan(2, is_bias_apart=True), id="negative weights count"),
        # two parts would have 1024 full channels each, three have 683
        pytest.param(
            row(2 * FULL_CHANNEL), None, 8, kernel.SplitPlan(3, is_bias_apart=True), id="two parts are not enough"
        ),
        # 8·1023 channels: each of the eight parts stays 2^14 below
        pytest.param(
            row(8 * 1023), None, 8, kernel.SplitPlan(kernel.MAX_PARTS, is_bias_apart=True), id="the most parts"
        ),
        pytest.param(row(8 * FULL_CHANNEL), None, 8, kernel.SplitPlan(0), id="too many parts: float64"),
        # 16-bit inputs reach 2^15: Σ|w| must stay below 512
        pytest.param(
            torch.tensor([[127.0, 127, 127, 127, 3]]), None, 16, kernel.SplitPlan(1), id="16 bits, Σ|w| = 511"
        ),
        pytest.param(
            torch.tensor([[127.0, 127, 127, 127, 4]]),
            None,
            16,
            kernel.SplitPlan(2, is_bias_apart=True),
            id="16 bits, Σ|w| = 512",
        ),
        # one channel cannot be split: 33·32·128·128 > 2^24
        pytest.param(torch.full((1, 1, 33, 32), 128.0), None, 8, kernel.SplitPlan(0), id="one channel, many taps"),
        # the worst output decides
        pytest.param(
            torch.cat([torch.ones(1, FULL_CHANNEL), row(FULL_CHANNEL)]),
            None,
            8,
            kernel.SplitPlan(2, is_bias_apart=True),
            id="worst row",
        ),
        pytest.param(torch.zeros(0, 4), None, 8, kernel.SplitPlan(1), id="no outputs"),
    ],
)
def test_plan(weight, bias, bits, plan):
    assert kernel.plan_product(weight, None if bias is None else torch.tensor(bias, dtype=torch.float64), bits) == plan


def test_after_relu_only_one_sign_of_the_weights_counts():
    # 512 weights of 128 and 512 of −128: partial sums of inputs 0 … 127 stay within ±512·128·128 = ±2^23
    mixed = torch.cat([row(512), -row(512)], dim=1)
    assert kernel.plan_product(mixed, None, 8) == kernel.SplitPlan(2, is_bias_apart=True)
    assert kernel.plan_product(mixed, None, 8, is_nonnegative=True) == kernel.SplitPlan(1)
    assert kernel.plan_product(row(FULL_CHANNEL), None, 8, is_nonnegative=True) == kernel.SplitPlan(
        2, is_bias_apart=True
    )
    assert kernel.plan_product(-row(FULL_CHANNEL), None, 8, is_nonnegative=True) == kernel.SplitPlan(
        2, is_bias_apart=True
    )


@pytest.mark.parametrize(("headroom", "is_apart"), [(127.0, False), (128.0, True)])
def test_headroom_counts_like_a_bias(headroom, is_apart):
    # the products reach 2^24 − 128
    found = kernel.plan_product(row(FULL_CHANNEL, 127), None, 8, headroom=headroom)
    assert found == kernel.SplitPlan(1, is_bias_apart=is_apart)


def integers(draw, shape, low=-128, high=128):
    return torch.from_numpy(draw.integers(low, high, shape))


def test_naive_float32_is_wrong_where_the_plan_is_right():
    # 1041·127·127 = 16790289 is odd and above 2^24: no float32 is equal to it, whatever the order of the sum
    x = w = torch.full((1, 1041), 127.0)
    naive = F.linear(x, w)
    found = kernel.run_product(F.linear, x, w, None, kernel.plan_product(w, None, 8), group=1, axis=-1)
    assert 1041 * 127 * 127 == 16790289 > fixed.FLOAT32_EXACT
    assert naive.item() != 16790289
    assert found.item() == 16790289


def test_naive_float32_is_wrong_beside_a_large_bias():
    # 127·127 + 2^24 = 16793345 is odd
    x = w = torch.tensor([[127.0]])
    b = torch.tensor([2.0**24], dtype=torch.float64)
    assert F.linear(x, w, b.float()).item() != 16793345
    assert kernel.run_product(F.linear, x, w, b, kernel.plan_product(w, b, 8), group=1, axis=-1).item() == 16793345


PLANS = {
    "float32": kernel.SplitPlan(1),
    "bias apart": kernel.SplitPlan(1, is_bias_apart=True),
    "two parts": kernel.SplitPlan(2, is_bias_apart=True),
    "three uneven parts": kernel.SplitPlan(3, is_bias_apart=True),
    "float64": kernel.SplitPlan(0),
}


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_linear_equals_int64_under_every_plan(plan, has_bias, draw):
    x, w, b = integers(draw, (2, 3, 7)), integers(draw, (5, 7)), integers(draw, 5, -9000, 9000)
    expected = x @ w.T + (b if has_bias else 0)
    found = kernel.run_product(F.linear, x.float(), w.float(), b.double() if has_bias else None, plan, group=1, axis=-1)
    assert found.dtype == (torch.float32 if plan == kernel.SplitPlan(1) else torch.float64)
    assert torch.equal(found.long(), expected)


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_grouped_convolution_equals_int64_under_every_plan(plan, group, draw):
    x, w = integers(draw, (2, 4 * group, 4, 5)), integers(draw, (2 * group, 4, 3, 2))
    b = integers(draw, 2 * group, -9000, 9000)
    expected = convolved(x.numpy(), w.numpy(), b.numpy(), group=group)

    def product(x, w, b):
        return F.conv2d(x, w, b, groups=group)

    found = kernel.run_product(product, x.float(), w.float(), b.double(), plan, group=group, axis=1)
    assert_same(found.numpy(), expected)


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_grouped_transposed_convolution_equals_int64_under_every_plan(plan, group, draw):
    x, w = integers(draw, (2, 4 * group, 4, 3)), integers(draw, (4 * group, 2, 3, 2))
    b = integers(draw, 2 * group, -9000, 9000)
    expected = convolved_transposed(x.numpy(), w.numpy(), b.numpy(), strides=(2, 1), group=group)

    def product(x, w, b):
        return F.conv_transpose2d(x, w, b, (2, 1), groups=group)

    settings = {"group": group, "axis": 1, "is_transposed": True}
    found = kernel.run_product(product, x.float(), w.float(), b.double(), plan, **settings)
    assert_same(found.numpy(), expected)


def test_plan_of_a_transposed_convolution_adds_a_groups_inputs_and_taps():
    # [in, out/groups, taps]: 512 inputs, two outputs, two taps of which one is 128: 512·128·128 = 2^23 for output 0;
    # output 1 has both taps: 2·2^23 = 2^24
    weight = torch.zeros(512, 2, 1, 2)
    weight[:, 0, 0, 0] = 128
    assert kernel.plan_product(weight, None, 8, transposed_groups=1) == kernel.SplitPlan(1)
    weight[:, 1] = 128
    assert kernel.plan_product(weight, None, 8, transposed_groups=1) == kernel.SplitPlan(2, is_bias_apart=True)
    # in two groups each output adds the products of 256 inputs: 2^23 again
    assert kernel.plan_product(weight, None, 8, transposed_groups=2) == kernel.SplitPlan(1)
    # read as [out, in/group, …] it would be 4 products only, and float32 is not enough for the largest of them
    assert kernel.plan_product(weight, None, 8) == kernel.SplitPlan(1)


@pytest.mark.parametrize(
    ("channels", "parts"),
    [(1024, 2), (2048, 3), (8184, kernel.MAX_PARTS), (8192, 0)],
    ids=["two", "three", "eight", "float64"],
)
def test_extreme_weights_equal_int64_at_the_planned_split(channels, parts, draw):
    w = torch.full((2, channels), -128)
    x = torch.stack([torch.full((channels,), -128), integers(draw, channels)])
    plan = kernel.plan_product(w.float(), None, 8)
    assert plan.parts == parts
    found = kernel.run_product(F.linear, x.float(), w.float(), None, plan, group=1, axis=-1)
    assert torch.equal(found.long(), x @ w.T)


def test_every_part_of_a_plan_is_below_the_bound(draw):
    for _ in range(50):
        w = integers(draw, (3, int(draw.integers(1, 4000))))
        plan = kernel.plan_product(w.float(), None, 8)
        assert plan.parts >= 1  # 4000 channels need four parts at most
        reach = [128 * np.abs(part.numpy()).sum(axis=1).max() for part in w.chunk(plan.parts, dim=1)]
        assert max(reach) < fixed.FLOAT32_EXACT


@pytest.mark.parametrize("bias", [None, torch.tensor([5.0, 2.0**24, -7.0])], ids=["no bias", "large bias"])
@pytest.mark.parametrize("bits", [8, 16], ids=str)
def test_one_factor_per_channel_is_exact(bits, bias):
    weight = torch.tensor([2.0 ** (bits - 1) - 1, -3.0, 1.0])
    x = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (2, 3, 4, 5)).float()

    def product(x, w, b):
        y = x * w.reshape(-1, 1, 1)
        return y if b is None else y + b.reshape(-1, 1, 1)

    plan = kernel.plan_product(weight, bias, bits)
    # |x·w| + |b| below 2^24 is one float32 product; a large bias is added apart; 16·16 bits need float64
    assert plan == kernel.SplitPlan(0 if bits == 16 else 1, is_bias_apart=bits == 8 and bias is not None)
    found = kernel.run_product(product, x, weight, bias, plan, group=1, axis=-3)
    expected = x.double() * weight.double().reshape(-1, 1, 1)
    expected = expected if bias is None else expected + bias.double().reshape(-1, 1, 1)
    assert torch.equal(found.double(), expected)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("is_transposed", [False, True], ids=["convolution", "transposed"])
def test_parts_that_were_kept_give_the_same_sums_and_need_no_copy(is_transposed, group, draw):
    plan = PLANS["three uneven parts"]
    x = integers(draw, (2, 4 * group, 4, 5)).float()
    w = integers(draw, (4 * group, 2, 3, 2) if is_transposed else (2 * group, 4, 3, 2)).float()
    convolve = F.conv_transpose2d if is_transposed else F.conv2d
    met = []

    def product(x, w, b):
        met.append(w.data_ptr())
        return convolve(x, w, b, groups=group)

    settings = {"group": group, "axis": -3, "is_transposed": is_transposed}
    parts = kernel.split_weight(w, plan, group if is_transposed else None)
    expected = kernel.run_product(product, x, w, None, plan, **settings)
    met.clear()
    assert torch.equal(kernel.run_product(product, x, w, None, plan, **settings, parts=parts), expected)
    assert met == [part.data_ptr() for part in parts]
    assert all(part.is_contiguous() for part in parts)


def test_a_product_in_one_piece_has_no_parts():
    assert (
        kernel.split_weight(row(4), kernel.SplitPlan(1, is_bias_apart=True))
        == kernel.split_weight(row(4), kernel.SplitPlan(0))
        == ()
    )
