"""One step's arithmetic: numpy and torch give the same numbers, and each is chosen where it is cheaper."""

import numpy as np
import pytest
import torch

from tests.support.torch_arithmetic import timeline

pytestmark = pytest.mark.needs_torch

KINDS = (timeline._NumpySteps, timeline._TorchSteps)


def made(kind, weight, state):
    return timeline._NumpySteps(weight, state) if kind is timeline._NumpySteps else timeline._TorchSteps(weight)


def whole(*shape):
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(3)).float()


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("limit", [1 << 18, 50, 1], ids=["one block", "several blocks", "by torch"])
def test_products(directions, limit, monkeypatch):
    monkeypatch.setattr(timeline, "LARGEST_PRODUCT", limit)
    state, weight = whole(directions, 3, 7), whole(directions, 7, 8)
    expected = torch.bmm(state, weight)
    for kind in KINDS:
        steps, out, total = made(kind, weight, state), torch.empty(directions, 3, 8), torch.ones(directions, 3, 8)
        steps.product(steps.view(state), steps.view(out))
        steps.add_product(steps.view(total), steps.view(state))
        assert torch.equal(out, expected)
        assert torch.equal(total, expected + 1)


def test_weights_of_another_type():
    """On a device the weights are float32 beside sums of float64."""
    state, weight, out = whole(1, 2, 3), whole(1, 3, 4), torch.empty(1, 2, 4, dtype=torch.float64)
    timeline._TorchSteps(weight).product(state.double(), out)
    assert torch.equal(out, torch.bmm(state, weight).double())


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_up_floors_and_takes_the_ends(kind):
    values = torch.tensor([[-7.5, -0.5, 0.0], [1.99, 2.0, 40.0]])
    places, out = torch.empty(3, 2, dtype=torch.int32), torch.empty(3, 2)
    steps = made(kind, whole(1, 1, 1), whole(1, 1, 1))
    steps.look_up(*map(steps.view, (torch.tensor([10.0, 11.0, 12.0]), values.T, places, out)))
    assert out.tolist() == [[10, 11], [10, 12], [10, 12]]
    assert places.clamp(0, 2).tolist() == [[0, 1], [0, 2], [0, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_limits(kind):
    steps = made(kind, whole(1, 1, 1), whole(1, 1, 1))
    half, low, high = steps.numbers(torch.zeros(()), 0.5, -2.0, 3.0)
    x, out = torch.tensor([-4.0, 1.0, 8.0]), torch.empty(3)
    steps.multiply_add(half, steps.view(x), steps.view(x), steps.view(out))
    assert out.tolist() == [16.5, 1.5, 64.5]
    steps.limit(steps.view(x), low, high)
    assert x.tolist() == [-2.0, 1.0, 3.0]


def test_constants_of_a_device_become_nan_together():
    assert all(
        number.isnan() for number in timeline._TorchSteps(whole(1, 1, 1)).numbers(torch.tensor(np.nan), 0.0, 1.0)
    )


def test_numpy_is_for_small_steps_on_the_cpu():
    weight = whole(1, 64, 256)
    assert isinstance(timeline.steps_for(whole(1, 8, 64), weight), timeline._NumpySteps)
    assert isinstance(timeline.steps_for(whole(1, 129, 64), weight), timeline._TorchSteps)
    assert isinstance(timeline.steps_for(whole(1, 8, 64), weight, is_on_device=True), timeline._TorchSteps)


def test_steps_share_one_buffer_or_have_their_own():
    buffer = torch.zeros(3, 2)
    assert [view.data_ptr() for view in timeline.per_step(buffer, 3)] == [row.data_ptr() for row in buffer]
    assert {view.data_ptr() for view in timeline.per_step(buffer[:1], 3)} == {buffer.data_ptr()}
