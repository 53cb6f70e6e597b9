"""The table of both curves, and projections that stay exact."""

import numpy as np
import pytest
import torch

from tests.support.paper_bodies import rounded, sigmoid_q7, tanh_q7
from tests.support.torch_arithmetic import gates, timeline

pytestmark = pytest.mark.needs_torch

CPU = torch.device("cpu")


@pytest.mark.parametrize("scale", [1.0, 128.0, 64.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_table_holds_both_curves(scale, dtype):
    table = gates.curves(scale, dtype, CPU)
    assert table.dtype == dtype
    # beyond 16 bits, where the curves meet, each goes on with its last value
    beyond = gates.FAR_REACH - gates.REACH
    of_tanh = [*map(tanh_q7, range(-gates.REACH, gates.REACH)), *[tanh_q7(gates.REACH - 1)] * beyond]
    of_sigmoid = [*[sigmoid_q7(-gates.REACH)] * beyond, *map(sigmoid_q7, range(-gates.REACH, gates.REACH))]
    assert (table[: gates.SIGMOID_START] * (128 / scale)).tolist() == of_tanh
    assert (table[gates.SIGMOID_START :] * 128).tolist() == of_sigmoid


def test_slopes_are_those_of_the_real_functions():
    x = (torch.arange(-gates.REACH, gates.REACH, dtype=torch.float64) / 2048).requires_grad_()
    table = gates.slopes(torch.float64, CPU)
    for function, part in ((torch.tanh, table[: 2 * gates.REACH]), (torch.sigmoid, table[-2 * gates.REACH :])):
        (wanted,) = torch.autograd.grad(function(x).sum(), x)
        # both round 1 - y², once or twice, at 2^-53
        torch.testing.assert_close(part, wanted, rtol=0, atol=1e-15)


def test_tables_are_made_once_also_in_inference_mode():
    with torch.inference_mode():
        table = gates.curves(2.0**-7, torch.float32, CPU)
    assert not table.is_inference()
    assert gates.curves(2.0**-7, torch.float32, CPU) is table


def test_rows_of_gates_point_to_their_curve():
    rows = gates.gate_rows("ts", 2, torch.float32, CPU)
    of_tanh, of_sigmoid = gates.REACH, gates.SIGMOID_START + gates.FAR_REACH
    assert rows.offset.tolist() == [of_tanh, of_tanh, of_sigmoid, of_sigmoid]
    assert rows.ends[0].tolist() == [0, 0, gates.SIGMOID_START, gates.SIGMOID_START]
    assert rows.ends[1].tolist() == [gates.SIGMOID_START - 1] * 2 + [gates.LARGEST_INDEX - 1] * 2


def project(x, w, b, q_x, q_w, bits):
    """One row of integers through a projection; what it gives, and its precision."""
    plan = gates.plan_projection(
        torch.tensor([[w]], dtype=torch.float64) / 2.0**q_w,
        None if b is None else torch.tensor([[b]], dtype=torch.float64) / 2.0 ** (q_x + q_w),
        scale=2.0**q_x,
        scales_w=(2.0**q_w,),
        bits=bits,
    )
    items = (torch.tensor([[x]], dtype=torch.float64) / 2.0**q_x).to(plan.weight.dtype)
    return plan, torch.baddbmm(plan.addend, items, plan.weight).floor().item()


@pytest.mark.parametrize(
    ("bias", "dtype"),
    [(2**24 - 16384 - 64 - 1, torch.float32), (2**24 - 16384 - 64, torch.float64), (2**31 - 1, torch.float64)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_precision_follows_the_bound(bias, dtype, sign):
    """128·128 + |b| + half, which is 2^6 at 18 - 11 = 7 bits of shift."""
    plan, found = project([-128], [-128 * sign], sign * bias, 9, 9, 8)
    assert plan.weight.dtype == dtype
    assert found == rounded(sign * (128 * 128 + bias), 7)
    assert plan.largest >= abs(found)


def test_rows_are_turned():
    weights, biases = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[0.25, 0.5, 0.75]])
    plan = gates.plan_projection(weights, biases, scale=1.0, scales_w=(4.0,), bits=8, turned=1)
    assert (plan.weight / 2048).tolist() == [[[3.0, 1.0, 2.0]]]
    assert (plan.addend / 2048).tolist() == [[[0.75, 0.25, 0.5]]]


def test_row_sums_save_float32_where_the_largest_weight_would_not():
    """1025·128·128 is above 2^24, but only one weight is that large."""
    weights = [-128] + [1, -1] * 512
    plan, found = project([-128] + [127, -128] * 512, weights, None, 7, 7, 8)
    assert plan.weight.dtype == torch.float32
    assert found == rounded(128 * 128 + 512 * 255, 3)


@pytest.mark.parametrize("q_w", [0, 3, 4, 5, 20])
@pytest.mark.parametrize("x", [-128, -5, -1, 0, 1, 3, 127])
def test_shifts_to_both_sides(x, q_w):
    """7 + 4 = 11 fractional bits need no shift, fewer a left shift."""
    _, found = project([x, 1], [7, 1], 9, 7, q_w, 8)
    assert found == rounded(7 * x + 1 + 9, 7 + q_w - 11)


def planned(*, b_hh=0.0, b_ih=0.0, q_hw=7, **settings):
    w = torch.full((1, 4, 1), 0.5)
    formats = gates.Formats(32.0, 128.0, (128.0,), (2.0**q_hw,))
    biases = (torch.full((1, 4), value, dtype=torch.float64) for value in (b_ih, b_hh))
    return gates.plan_gates(gates.Weights(w, w, *biases), formats, "ssts", **settings)


@pytest.mark.parametrize(
    ("settings", "dtype", "is_one_floor"),
    [
        ({}, torch.float32, True),
        ({"b_ih": 2000.0}, torch.float32, False),  # 2000·2^11 fits, but not with 3 more bits
        ({"b_hh": 1000.0}, torch.float32, False),
        ({"b_ih": 2.0**13 - 100}, torch.float32, False),
        ({"b_ih": 2.0**13 - 80}, torch.float64, False),  # with 180 224 for the table it reaches 2^24
        ({"b_hh": 2.0**10 + 1}, torch.float64, False),  # 2^10·2^14 steps
        ({"q_hw": 12}, torch.float32, False),
        ({"is_state_exact": False}, torch.float64, True),
        ({"is_hidden_multiplied": True, "b_hh": 61.0}, torch.float32, True),
        ({"is_hidden_multiplied": True, "b_ih": 17.0}, torch.float32, True),  # ((17 + 4/2)·2^11 + 90 112)·2^7 < 2^24
        ({"is_hidden_multiplied": True, "b_ih": 18.0}, torch.float32, False),
        ({"is_hidden_multiplied": True, "b_hh": 64.0}, torch.float64, True),  # 2^6·2^11 = 2^17
    ],
    ids=str,
)
def test_precision_of_the_loop(settings, dtype, is_one_floor):
    plan = planned(**settings)
    tensors = (plan.offset, plan.states.weight, plan.states.addend, *plan.rows.ends)
    assert {t.dtype for t in tensors} == {plan.dtype} == {dtype}
    assert plan.is_one_floor == is_one_floor


@pytest.mark.parametrize(
    ("items", "data_bits", "dtype"),
    [
        pytest.param(1023, 8, torch.float32, id="1023 products up to 2^14"),
        pytest.param(1024, 8, torch.float64, id="1024 products up to 2^14"),
        pytest.param(3, 16, torch.float32, id="3 products up to 2^22"),
        pytest.param(4, 16, torch.float64, id="4 products up to 2^22"),
    ],
)
def test_with_scales_on_a_device_precision_follows_from_sizes_and_widths(items, data_bits, dtype):
    scale = torch.tensor(128.0)
    weights = gates.Weights(torch.zeros(1, 4, items), torch.zeros(1, 4, 1), None, None)
    plan = gates.plan_gates(weights, gates.Formats(scale, scale, (scale,), (scale,), data_bits=data_bits), "ssts")
    assert plan.inputs.weight.dtype == dtype


@pytest.mark.parametrize(("bias", "is_limited"), [(25.0, False), (26.0, True)])
def test_gates_are_limited_where_they_can_leave_the_table(bias, is_limited):
    """|x| ≤ 4 and |h| ≤ 1 times ½ make 2.5 beside the bias; the curves meet at 28."""
    assert planned(b_ih=bias).is_limited == is_limited


def test_parts_hold_the_offset_into_the_table_and_the_half():
    x = torch.ones(1, 1, 1)
    sigmoid, tanh = 1024 + gates.SIGMOID_START + gates.FAR_REACH + 0.5, 1024 + gates.REACH + 0.5
    assert planned().parts(x, timeline.Timeline.of(x, None)).tolist() == [[[[sigmoid, sigmoid, tanh, sigmoid]]]]


def test_initial_state_is_written_as_whole_numbers():
    state = torch.full((2, 3), np.nan, dtype=torch.float64)
    gates.start_state(state, torch.full((2, 3), 0.25), 128.0)
    assert state.tolist() == [[32.0] * 3] * 2
    gates.start_state(state, None, 128.0)
    assert state.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("largest", "scale", "bits", "expected"),
    [(127 / 128, 128.0, 8, False), (127 / 128, 256.0, 8, True), (127 / 128, 8.0, 4, True), (0.9, 8.0, 4, False)],
)
def test_limit_is_needed_where_rounding_leaves_the_range(largest, scale, bits, expected):
    """0.9·8 = 7.2 rounds to 7, but 127/128·8 = 7.9 to 8."""
    assert gates.is_limit_needed(largest, scale, bits) == expected
