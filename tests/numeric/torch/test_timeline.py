"""Sequences of unequal length in both directions, against torch's own packing."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.support.torch_arithmetic import timeline as over_time

pytestmark = pytest.mark.needs_torch

LENGTHS = (3, 5, 1, 4)


@pytest.fixture
def x():
    return torch.arange(5.0 * 4 * 2).reshape(5, 4, 2) + 1


@pytest.fixture(params=[None, LENGTHS], ids=["one length", "lengths"])
def timeline(request, x):
    return over_time.Timeline.of(x, None if request.param is None else torch.tensor(request.param))


def test_each_sequence_is_reversed_inside_its_length(x):
    mirrored = over_time.Timeline.of(x, torch.tensor(LENGTHS)).mirror(x)
    for b, length in enumerate(LENGTHS):
        assert torch.equal(mirrored[:length, b], x[:length, b].flip(0))
        assert torch.equal(mirrored[length:, b], x[length:, b])


def test_reversed_twice_is_the_batch_itself(x, timeline):
    assert torch.equal(timeline.mirror(timeline.mirror(x)), x)


def test_padding_is_masked_in_every_layout(x):
    timeline = over_time.Timeline.of(x, torch.tensor(LENGTHS))
    expected = pad_packed_sequence(pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False))[0]
    assert torch.equal(timeline.mask(x), expected)
    assert torch.equal(timeline.mask(torch.stack([x, -x], 1)), torch.stack([expected, -expected], 1))


def test_without_lengths_nothing_is_copied(x):
    assert over_time.Timeline.of(x, None).mask(x) is x


def test_states_become_outputs_as_torch_lays_them_out(x, timeline):
    """A layer whose states are its inputs: both directions give the input back."""
    states = timeline.by_direction(x, 2).transpose(0, 1)
    assert torch.equal(timeline.outputs(states), timeline.mask(torch.cat([x, x], 2)))


def test_final_state_is_the_one_after_the_last_valid_step(x):
    timeline = over_time.Timeline.of(x, torch.tensor(LENGTHS))
    final = timeline.final(timeline.by_direction(x, 2).transpose(0, 1))
    for b, length in enumerate(LENGTHS):
        assert torch.equal(final[0, b], x[length - 1, b])
        assert torch.equal(final[1, b], x[0, b])
    assert torch.equal(over_time.Timeline.of(x, None).final(x.unsqueeze(1))[0], x[-1])


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("used", ["both", "outputs", "final"])
def test_gradients_are_autograds(x, timeline, directions, used):
    states = torch.randn(5, directions, 4, 2, dtype=torch.float64, requires_grad=True)
    results = timeline.outputs(states), timeline.final(states)
    weights = [
        torch.randn_like(r) if used in ("both", n) else None for n, r in zip(("outputs", "final"), results, strict=True)
    ]
    sum((r * w).sum() for r, w in zip(results, weights, strict=True) if w is not None).backward()
    assert torch.equal(timeline.output_gradients(*weights, states.detach()), states.grad)


@pytest.mark.parametrize("directions", [1, 2])
def test_gradient_of_the_input_is_autograds(x, timeline, directions):
    x = x.double().requires_grad_()
    seen = timeline.by_direction(x, directions)
    weight = torch.randn_like(seen)
    (seen * weight).sum().backward()
    assert torch.equal(timeline.sum_directions(weight), x.grad)


def test_largest_magnitude_is_that_of_the_valid_steps(x):
    timeline = over_time.Timeline.of(x, torch.tensor([1, 1, 1, 2]))
    assert timeline.max_abs(-x.unsqueeze(1)) == 16.0
    assert over_time.Timeline.of(x, None).max_abs(-x.unsqueeze(1)) == 40.0


def test_items_of_a_direction_are_in_the_order_of_time():
    x = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    assert torch.equal(over_time.by_items(x)[1], torch.cat([x[0, 1], x[1, 1]]))
