"""The fast GRU: bit for bit the integers, gradients of the slow loop."""

import numpy as np
import pytest
import torch

from tests.support.fast_paths import recurrent_fast_path
from tests.support.ops import find_op
from tests.support.recurrent import Formats, assert_exact, gru_step, random_case, random_layer, tensors, there
from tests.support.recurrent_gradients import assert_gradients_agree, gru_cell

gru_torch = recurrent_fast_path(find_op("GRUInt"))

USUAL = Formats(32.0, 128.0, (256.0, 128.0), (256.0, 512.0))


def usual_layer(*, directions=1, sizes=(5, 3, 4, 5), formats=USUAL, **settings):
    formats = Formats(
        formats.scale_i,
        formats.scale_h,
        formats.scale_iw[:directions],
        formats.scale_hw[:directions],
        formats.data_bits,
        formats.parameter_bits,
        formats.o_bits,
    )
    settings = {"gain": 0.5, "bias": 0.5, **settings}
    draw = np.random.default_rng(11)
    return random_layer(draw, gates=3, sizes=(*sizes, directions), formats=formats, **settings)


@pytest.mark.parametrize("seed", range(40))
def test_integers_of_any_layer(seed):
    assert_exact(gru_torch.run, random_case(np.random.default_rng(seed), gates=3), gru_step)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"has_lengths": True, "has_state": True}, {"has_bias": False}], ids=str)
def test_integers_of_a_usual_layer(directions, settings):
    layer = usual_layer(directions=directions, sizes=(9, 4, 7, 8), **settings)
    assert_exact(gru_torch.run, layer, gru_step)


@pytest.mark.parametrize("bias", [8.0, 15.9, 16.1, 100.0])
def test_gates_saturate_as_sixteen_bits(bias):
    assert_exact(gru_torch.run, usual_layer(bias=bias, gain=1.0), gru_step)


@pytest.mark.parametrize("scale_h", [0.5, 1.0, 32.0, 64.0, 256.0, 512.0, 2.0**14, 2.0**15, 2.0**18])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_every_scale_of_the_state(scale_h, bits):
    formats = Formats(32.0, scale_h, (128.0,), (128.0,), 8, 8, bits)
    layer = usual_layer(formats=formats, has_state=True)
    assert_exact(gru_torch.run, layer, gru_step)


@pytest.mark.parametrize("hidden_bias", [2**24 - 2**12, 2**24 - 1, 2**24 + 1, 2**26 + 3, 2**31 - 1])
@pytest.mark.parametrize("q_hw", [3, 4, 9, 13])
def test_sums_about_the_limit_of_float32(hidden_bias, q_hw):
    """The biases are so large that a float32 sum would lose the last bit, and the input's take them away again."""
    layer = usual_layer(formats=Formats(128.0, 128.0, (2.0**q_hw,), (2.0**q_hw,)), sizes=(3, 2, 3, 4))
    signs = [1 if row % 2 else -1 for row in range(3 * 4)]
    layer.b_hh = [[hidden_bias * sign for sign in signs]]
    layer.b_ih = [[-sign * (hidden_bias - 77 * row) for row, sign in enumerate(signs)]]
    assert_exact(gru_torch.run, layer, gru_step)


@pytest.mark.parametrize("inputs", [1023, 1025])
def test_products_about_the_limit_of_float32(inputs):
    """128·128·1023 is below 2^24, 128·128·1025 above: every term has the same sign, and the last one an odd remainder."""
    layer = usual_layer(formats=Formats(128.0, 128.0, (2.0**15,), (128.0,)), sizes=(2, 1, inputs, 2))
    layer.x = [[[-128] * (inputs - 1) + [-127]]] * 2
    layer.w_ih = [[[-128] * (inputs - 1) + [-127 + row] for row in range(3 * 2)]]
    layer.b_ih = [[-128 * 128 * (inputs - 1) + 1000 * row + 1 for row in range(3 * 2)]]
    assert_exact(gru_torch.run, layer, gru_step)


@pytest.mark.parametrize("scale_h", [1.0, 4.0, 64.0])
def test_large_states_of_sixteen_bits_stay_exact(scale_h):
    """Weights of zero let the gates fit float32, but z·(h − n) needs 15 + 7 + 7 bits."""
    layer = usual_layer(formats=Formats(32.0, scale_h, (128.0,), (128.0,), 8, 8, 16), has_state=True, bias=2.0)
    layer.w_hh = [[[0] * 5] * 15]
    layer.h0 = [[[32767, -32767, 32765, 12345, -32768]] * 3]
    assert_exact(gru_torch.run, layer, gru_step)


@pytest.mark.parametrize("seed", range(4))
def test_reset_state_is_rounded_half_up(seed):
    """One step of Q11 seldom shows in Q7, so many states look at it; h_n = r·h_n/2^7 has ties of both signs."""
    formats = Formats(128.0, 128.0, (128.0,), (128.0,))
    draw = np.random.default_rng(seed)
    sizes = (2, 3, 1, 40, 1)
    layer = random_layer(draw, gates=3, sizes=sizes, formats=formats, gain=0.05, bias=0.3, has_state=True)
    assert_exact(gru_torch.run, layer, gru_step)


def test_state_that_rounding_to_q7_lifts_beyond_its_range_is_limited():
    """2047 at scale 2048 is 127.9 in Q7, so 128; z = n = 127 make 127·128 + 127·(128 − 127) in Q14: 2047.9, so 2048."""
    layer = usual_layer(formats=Formats(32.0, 2048.0, (128.0,), (128.0,), 8, 8, 12), sizes=(1, 1, 1, 1), has_bias=False)
    layer.w_ih, layer.w_hh, layer.h0 = [[[0]] * 3], [[[0]] * 3], [[[2047]]]
    layer.b_ih = [[40 * 32 * 128] * 3]
    assert_exact(gru_torch.run, layer, gru_step)
    assert float(gru_torch.run(*tensors(layer, has_cell=False), wants_reach=False).out) == 2047 / 2048


def test_states_of_a_long_layer_stay_exact():
    layer = usual_layer(directions=2, sizes=(40, 2, 3, 16), has_lengths=True)
    assert_exact(gru_torch.run, layer, gru_step)


@pytest.mark.parametrize("has_lengths", [False, True], ids=["one length", "lengths"])
@pytest.mark.parametrize("has_state", [False, True], ids=["from zero", "initial state"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("directions", [1, 2])
# float64: 5 steps of sums of at most 3·5 terms, each rounded at 2^-53, and cancellation: far below 1e-12.
# float32: 5·(3·5 + 10) roundings at 2^-24 make 1e-5 of the terms' magnitude.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["64", "32"])
def test_gradients_are_those_of_the_slow_loop(directions, has_bias, has_state, has_lengths, dtype, tolerance):
    layer = usual_layer(directions=directions, has_bias=has_bias, has_state=has_state, has_lengths=has_lengths)
    assert_gradients_agree(gru_torch.run, gru_cell, layer, has_cell=False, tolerance=tolerance, dtype=dtype)


@pytest.mark.parametrize(
    "formats",
    [
        Formats(32.0, 64.0, (256.0,), (256.0,)),
        Formats(32.0, 256.0, (256.0,), (256.0,)),
        Formats(2.0**12, 2.0**15, (2.0**14,), (2.0**14,), 16, 16, 16),
        Formats(4.0, 8.0, (8.0,), (8.0,), 4, 4, 4),
        Formats(8.0, 128.0, (64.0,), (8.0,)),
    ],
    ids=["coarse", "saturating", "16 bits", "4 bits", "left shifts"],
)
def test_gradients_at_other_scales(formats):
    layer = usual_layer(formats=formats, has_lengths=True, has_state=formats.scale_h <= 128)
    assert_gradients_agree(gru_torch.run, gru_cell, layer, has_cell=False, tolerance=1e-12, dtype=torch.float64)


@pytest.mark.parametrize("used", ["out", "h"])
def test_gradient_of_each_result_alone_is_part_of_the_whole(used):
    layer = usual_layer(directions=2, has_lengths=True)
    weight = {}
    for names in ((used,), tuple(n for n in ("out", "h") if n != used), ("out", "h")):
        arguments = tensors(layer, has_cell=False, dtype=torch.float64)
        arguments[0].requires_grad_()
        result = gru_torch.run(*arguments, wants_reach=False)
        sum((getattr(result, name) ** 2).sum() for name in names).backward()
        weight[names] = arguments[0].grad
    alone, others, whole = weight.values()
    torch.testing.assert_close(alone + others, whole, rtol=1e-12, atol=1e-14)
    assert alone.abs().max() > 0


def test_weights_alone_have_gradients():
    arguments = tensors(usual_layer(), has_cell=False)
    weights = arguments[-5:-1]
    for weight in weights:
        weight.requires_grad_()
    gru_torch.run(*arguments, wants_reach=True).out.sum().backward()
    assert arguments[0].grad is None
    assert all(weight.grad.dtype == weight.dtype and weight.grad.abs().max() > 0 for weight in weights)


def test_backward_runs_twice():
    arguments = tensors(usual_layer(), has_cell=False)
    arguments[0].requires_grad_()
    loss = gru_torch.run(*arguments, wants_reach=False).out.square().sum()
    first, second = (torch.autograd.grad(loss, arguments[0], retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("wants_reach", [False, True])
def test_nothing_is_kept_without_gradients(mode, wants_reach):
    arguments = tensors(usual_layer(directions=2, has_lengths=True), has_cell=False)
    arguments[0].requires_grad_()
    expected = gru_torch.run(*arguments, wants_reach=True)
    with mode():
        found = gru_torch.run(*arguments, wants_reach=wants_reach)
    assert not found.out.requires_grad
    assert torch.equal(found.out, expected.out)
    assert torch.equal(found.h, expected.h)
    assert found.reach == (expected.reach if wants_reach else None)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_empty_batch(steps, needs_gradient):
    x, w_ih, w_hh = torch.zeros(steps, 0, 3), torch.zeros(2, 3 * 5, 3), torch.zeros(2, 3 * 5, 5)
    w_ih.requires_grad_(needs_gradient)
    result = gru_torch.run(x, None, None, w_ih, w_hh, None, None, USUAL, wants_reach=True)
    assert result.out.shape == (steps, 0, 10)
    assert result.h.shape == (2, 0, 5)
    assert result.reach == 0.0
    if needs_gradient:
        result.out.sum().backward()
        assert torch.equal(w_ih.grad, torch.zeros_like(w_ih))


def test_one_step():
    assert_exact(gru_torch.run, usual_layer(directions=2, sizes=(1, 2, 3, 4), has_state=True), gru_step)


def test_padding_changes_nothing():
    layer = usual_layer(directions=2, has_lengths=True)
    x, lengths, *rest = tensors(layer, has_cell=False)
    expected = gru_torch.run(x, lengths, *rest, wants_reach=True)
    other = x.clone()
    for b, length in enumerate(lengths.tolist()):
        other[length:, b] = 3.75
    found = gru_torch.run(other, lengths, *rest, wants_reach=True)
    assert int(lengths.min()) < len(x)
    assert torch.equal(found.out, expected.out)
    assert torch.equal(found.h, expected.h)
    assert found.reach == expected.reach


def test_reach_goes_beyond_the_saturated_state():
    """At scale 512 eight bits end at 127/512, the state itself does not."""
    layer = usual_layer(formats=Formats(32.0, 512.0, (32.0,), (64.0,)), gain=1.0)
    result = gru_torch.run(*tensors(layer, has_cell=False), wants_reach=True)
    assert float(result.out.abs().max()) <= 128 / 512
    assert result.reach > 0.5


@pytest.mark.parametrize("seed", range(12))
def test_scales_on_a_device_give_the_same_integers(seed):
    assert_exact(there(gru_torch.run), random_case(np.random.default_rng(seed), gates=3), gru_step)


@pytest.mark.parametrize(
    "formats",
    [
        Formats(128.0, 128.0, (2.0**13,), (2.0**13,)),
        Formats(32.0, 2.0**15, (128.0,), (128.0,), 8, 8, 16),
        Formats(2.0**12, 0.5, (2.0**14,), (8.0,), 16, 16, 8),
    ],
    ids=["large biases", "a fine state", "a coarse state"],
)
def test_what_float32_does_not_hold_is_exact_on_a_device(formats):
    layer = usual_layer(formats=formats, has_state=True, sizes=(3, 2, 1025, 4))
    layer.b_hh = [[(2**31 - 1) * (1 if row % 2 else -1) for row in range(3 * 4)]]
    layer.b_ih = [[-value for value in layer.b_hh[0]]]
    assert_exact(there(gru_torch.run), layer, gru_step)


def test_gradients_with_scales_on_a_device():
    layer = usual_layer(directions=2, has_lengths=True, has_state=True)
    run = there(gru_torch.run)
    # float64, as above
    assert_gradients_agree(run, gru_cell, layer, has_cell=False, tolerance=1e-12, dtype=torch.float64)


@pytest.mark.parametrize("place", [0, 2], ids=["input", "state"])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_no_integer_is_made_of_nan_on_a_device(place, needs_gradient):
    """Nobody looks at a number there, so nothing is raised; everything that follows is NaN."""
    arguments = tensors(usual_layer(has_state=True), has_cell=False)
    arguments[place].view(-1)[1] = torch.nan
    arguments[0].requires_grad_(needs_gradient)
    result = there(gru_torch.run)(*arguments, wants_reach=True)
    assert result.out.isnan().all()
    assert result.h.isnan().all()
