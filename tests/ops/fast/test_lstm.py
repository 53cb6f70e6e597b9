"""The fast LSTM: bit for bit the integers, gradients of the slow loop."""

import numpy as np
import pytest
import torch

from linger.graph import load
from tests.support.fast_paths import recurrent_fast_path
from tests.support.golden import GOLDEN
from tests.support.ops import find_op
from tests.support.recurrent import Formats, assert_exact, lstm_step, random_case, random_layer, tensors, there
from tests.support.recurrent_gradients import assert_gradients_agree, lstm_cell

lstm_torch = recurrent_fast_path(find_op("LSTMInt"))

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
    return random_layer(draw, gates=4, sizes=(*sizes, directions), formats=formats, **settings)


@pytest.mark.parametrize("seed", range(40))
def test_integers_of_any_layer(seed):
    assert_exact(lstm_torch.run, random_case(np.random.default_rng(seed), gates=4), lstm_step)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"has_lengths": True, "has_state": True}, {"has_bias": False}], ids=str)
def test_integers_of_a_usual_layer(directions, settings):
    layer = usual_layer(directions=directions, sizes=(9, 4, 7, 8), **settings)
    assert_exact(lstm_torch.run, layer, lstm_step)


@pytest.mark.parametrize("bias", [8.0, 15.9, 16.1, 100.0])
def test_gates_saturate_as_sixteen_bits(bias):
    assert_exact(lstm_torch.run, usual_layer(bias=bias, gain=1.0), lstm_step)


@pytest.mark.parametrize("scale_h", [0.5, 1.0, 32.0, 64.0, 256.0, 512.0, 2.0**14, 2.0**15, 2.0**18])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_every_scale_of_the_state(scale_h, bits):
    formats = Formats(32.0, scale_h, (128.0,), (128.0,), 8, 8, bits)
    layer = usual_layer(formats=formats, has_state=True)
    assert_exact(lstm_torch.run, layer, lstm_step)


@pytest.mark.parametrize("hidden_bias", [2**24 - 2**12, 2**24 - 1, 2**24 + 1, 2**26 + 3, 2**31 - 1])
@pytest.mark.parametrize("q_hw", [3, 4, 9, 13])
def test_sums_about_the_limit_of_float32(hidden_bias, q_hw):
    """The biases are so large that a float32 sum would lose the last bit, and the input's take them away again."""
    layer = usual_layer(formats=Formats(128.0, 128.0, (2.0**q_hw,), (2.0**q_hw,)), sizes=(3, 2, 3, 4))
    signs = [1 if row % 2 else -1 for row in range(4 * 4)]
    layer.b_hh = [[hidden_bias * sign for sign in signs]]
    layer.b_ih = [[-sign * (hidden_bias - 77 * row) for row, sign in enumerate(signs)]]
    assert_exact(lstm_torch.run, layer, lstm_step)


@pytest.mark.parametrize("inputs", [1023, 1025])
def test_products_about_the_limit_of_float32(inputs):
    """128·128·1023 is below 2^24, 128·128·1025 above: every term has the same sign, and the last one an odd remainder."""
    layer = usual_layer(formats=Formats(128.0, 128.0, (2.0**15,), (128.0,)), sizes=(2, 1, inputs, 2))
    layer.x = [[[-128] * (inputs - 1) + [-127]]] * 2
    layer.w_ih = [[[-128] * (inputs - 1) + [-127 + row] for row in range(4 * 2)]]
    layer.b_ih = [[-128 * 128 * (inputs - 1) + 1000 * row + 1 for row in range(4 * 2)]]
    assert_exact(lstm_torch.run, layer, lstm_step)


def test_states_of_a_long_layer_stay_exact():
    layer = usual_layer(directions=2, sizes=(40, 2, 3, 16), has_lengths=True)
    assert_exact(lstm_torch.run, layer, lstm_step)


@pytest.mark.parametrize("has_lengths", [False, True], ids=["one length", "lengths"])
@pytest.mark.parametrize("has_state", [False, True], ids=["from zero", "initial state"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("directions", [1, 2])
# float64: 5 steps of sums of at most 4·5 terms, each rounded at 2^-53, and cancellation: far below 1e-12.
# float32: 5·(4·5 + 10) roundings at 2^-24 make 1e-5 of the terms' magnitude.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["64", "32"])
def test_gradients_are_those_of_the_slow_loop(directions, has_bias, has_state, has_lengths, dtype, tolerance):
    layer = usual_layer(directions=directions, has_bias=has_bias, has_state=has_state, has_lengths=has_lengths)
    assert_gradients_agree(lstm_torch.run, lstm_cell, layer, has_cell=True, tolerance=tolerance, dtype=dtype)


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
    assert_gradients_agree(lstm_torch.run, lstm_cell, layer, has_cell=True, tolerance=1e-12, dtype=torch.float64)


@pytest.mark.parametrize("used", ["out", "h", "c"])
def test_gradient_of_each_result_alone_is_part_of_the_whole(used):
    layer = usual_layer(directions=2, has_lengths=True)
    weight = {}
    for names in ((used,), tuple(n for n in ("out", "h", "c") if n != used), ("out", "h", "c")):
        arguments = tensors(layer, has_cell=True, dtype=torch.float64)
        arguments[0].requires_grad_()
        result = lstm_torch.run(*arguments, wants_reach=False)
        sum((getattr(result, name) ** 2).sum() for name in names).backward()
        weight[names] = arguments[0].grad
    alone, others, whole = weight.values()
    torch.testing.assert_close(alone + others, whole, rtol=1e-12, atol=1e-14)
    assert alone.abs().max() > 0


def test_weights_alone_have_gradients():
    arguments = tensors(usual_layer(), has_cell=True)
    weights = arguments[-5:-1]
    for weight in weights:
        weight.requires_grad_()
    lstm_torch.run(*arguments, wants_reach=True).out.sum().backward()
    assert arguments[0].grad is None
    assert all(weight.grad.dtype == weight.dtype and weight.grad.abs().max() > 0 for weight in weights)


def test_backward_runs_twice():
    arguments = tensors(usual_layer(), has_cell=True)
    arguments[0].requires_grad_()
    loss = lstm_torch.run(*arguments, wants_reach=False).out.square().sum()
    first, second = (torch.autograd.grad(loss, arguments[0], retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("wants_reach", [False, True])
def test_nothing_is_kept_without_gradients(mode, wants_reach):
    arguments = tensors(usual_layer(directions=2, has_lengths=True), has_cell=True)
    arguments[0].requires_grad_()
    expected = lstm_torch.run(*arguments, wants_reach=True)
    with mode():
        found = lstm_torch.run(*arguments, wants_reach=wants_reach)
    assert not found.out.requires_grad
    assert torch.equal(found.out, expected.out)
    assert torch.equal(found.h, expected.h)
    assert found.reach == (expected.reach if wants_reach else None)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_empty_batch(steps, needs_gradient):
    x, w_ih, w_hh = torch.zeros(steps, 0, 3), torch.zeros(2, 4 * 5, 3), torch.zeros(2, 4 * 5, 5)
    w_ih.requires_grad_(needs_gradient)
    result = lstm_torch.run(x, None, None, None, w_ih, w_hh, None, None, USUAL, wants_reach=True)
    assert result.out.shape == (steps, 0, 10)
    assert result.h.shape == (2, 0, 5)
    assert result.reach == 0.0
    if needs_gradient:
        result.out.sum().backward()
        assert torch.equal(w_ih.grad, torch.zeros_like(w_ih))


def test_one_step():
    assert_exact(lstm_torch.run, usual_layer(directions=2, sizes=(1, 2, 3, 4), has_state=True), lstm_step)


def test_padding_changes_nothing():
    layer = usual_layer(directions=2, has_lengths=True)
    x, lengths, *rest = tensors(layer, has_cell=True)
    expected = lstm_torch.run(x, lengths, *rest, wants_reach=True)
    other = x.clone()
    for b, length in enumerate(lengths.tolist()):
        other[length:, b] = 3.75
    found = lstm_torch.run(other, lengths, *rest, wants_reach=True)
    assert int(lengths.min()) < len(x)
    assert torch.equal(found.out, expected.out)
    assert torch.equal(found.h, expected.h)
    assert found.reach == expected.reach


def test_reach_goes_beyond_the_saturated_state():
    """At scale 512 eight bits end at 127/512, the state itself does not."""
    layer = usual_layer(formats=Formats(32.0, 512.0, (32.0,), (64.0,)), gain=1.0)
    result = lstm_torch.run(*tensors(layer, has_cell=True), wants_reach=True)
    assert float(result.out.abs().max()) <= 128 / 512
    assert result.reach > 0.5


@pytest.mark.parametrize("case", ["lstm_fwd", "lstm_h24", "lstm_rev"])
def test_recorded_vectors_of_the_engine(case, shared):
    folder = GOLDEN if (GOLDEN / f"{case}.onnx").is_file() else shared / "golden" / "ops"
    model = load(folder / f"{case}.onnx")
    node = next(node for node in model.graph if node.op_type == "LSTMInt")
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    scale_i, scale_h, scale_iw, scale_hw = (settings[f"scale_{name}"] for name in ("i", "h", "iw", "hw"))
    with np.load(folder / f"{case}.npz") as content:
        x, expected = torch.from_numpy(content["input"]), torch.from_numpy(content["output"])
    whole = torch.floor(x * scale_i + 0.5).clamp(-128, 127)
    scales = (scale_iw, scale_hw, scale_i * scale_iw, scale_h * scale_hw)
    parameters = [
        torch.from_numpy(value.const_value.numpy().astype(np.float64)).unsqueeze(0) / scale
        for value, scale in zip(node.inputs[1:], scales, strict=True)
    ]
    w_ih, w_hh, b_ih, b_hh = parameters
    formats = Formats(scale_i, scale_h, (scale_iw,), (scale_hw,))
    x = whole.transpose(0, 1) / scale_i  # batch_first
    x = x if settings["go_forward"] else x.flip(0)
    out = lstm_torch.run(x, None, None, None, w_ih.float(), w_hh.float(), b_ih, b_hh, formats, wants_reach=False).out
    out = out if settings["go_forward"] else out.flip(0)
    assert torch.equal(out.transpose(0, 1), expected)


@pytest.mark.parametrize("seed", range(12))
def test_scales_on_a_device_give_the_same_integers(seed):
    assert_exact(there(lstm_torch.run), random_case(np.random.default_rng(seed), gates=4), lstm_step)


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
    layer.b_hh = [[(2**31 - 1) * (1 if row % 2 else -1) for row in range(4 * 4)]]
    layer.b_ih = [[-value for value in layer.b_hh[0]]]
    assert_exact(there(lstm_torch.run), layer, lstm_step)


def test_gradients_with_scales_on_a_device():
    layer = usual_layer(directions=2, has_lengths=True, has_state=True)
    run = there(lstm_torch.run)
    # float64, as above
    assert_gradients_agree(run, lstm_cell, layer, has_cell=True, tolerance=1e-12, dtype=torch.float64)


@pytest.mark.parametrize("place", [0, 2], ids=["input", "state"])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_no_integer_is_made_of_nan_on_a_device(place, needs_gradient):
    """Nobody looks at a number there, so nothing is raised; everything that follows is NaN."""
    arguments = tensors(usual_layer(has_state=True), has_cell=True)
    arguments[place].view(-1)[1] = torch.nan
    arguments[0].requires_grad_(needs_gradient)
    result = there(lstm_torch.run)(*arguments, wants_reach=True)
    assert result.out.isnan().all()
    assert result.h.isnan().all()
