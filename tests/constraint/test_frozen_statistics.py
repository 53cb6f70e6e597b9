"""SetBnMomentumUpdate: fused, limited and quantized batch norms keep their statistics; plain ones, and other models, learn."""

import contextvars

import pytest
import torch
from torch import nn

import linger
from linger import Switches, init


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=0.25)
        self.alone = nn.BatchNorm2d(3, momentum=None)

    def forward(self, x):
        return self.alone(torch.sigmoid(self.bn(self.conv(x))))


def image():
    return 1.0 + torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def apart(function):
    """Run in a context of its own, as a test must not choose for the next."""
    return contextvars.copy_context().run(function)


def means(model):
    return {key: value.clone() for key, value in model.state_dict().items() if "running_mean" in key}


def learned(model):
    """Which means one training pass changes; the output is by the batch's own statistics all the same."""
    before = means(model)
    y = model.train()(image())
    assert float(y.detach().mean(dim=(0, 2, 3)).abs().max()) < 0.1
    return {key for key, value in means(model).items() if not torch.equal(value, before[key])}


def trace():
    return linger.trace_layers(Net(), image())


def trace_frozen():
    linger.SetBnMomentumUpdate()
    return trace()


def test_tracing_freezes_the_pair_and_not_the_plain_layer():
    model = apart(trace_frozen)
    assert learned(model) == {"alone.running_mean"}
    assert learned(trace()) == {"conv.bn.running_mean", "alone.running_mean"}


def test_limits_freeze_what_gets_them_and_pairs_that_are_there():
    def frozen():
        model = trace()
        linger.SetBnMomentumUpdate(True)
        return linger.normalize_layers(model)

    assert learned(apart(frozen)) == set()


@pytest.mark.parametrize("order", ["before trace", "before init", "keyword"])
def test_a_quantized_model_is_frozen_as_a_whole(order):
    def frozen():
        if order == "before trace":
            linger.SetBnMomentumUpdate()
        model = trace()
        if order == "before init":
            linger.SetBnMomentumUpdate()
        return init(model, switches=Switches(freezes_batch_norm=True) if order == "keyword" else None)

    assert learned(apart(frozen)) == set()
    assert learned(init(trace())) == {"conv.bn.running_mean", "alone.running_mean"}


def test_what_was_frozen_learns_again_with_its_own_momentum():
    def thawed():
        model = linger.normalize_layers(trace_frozen())
        assert (model.conv.bn.momentum, model.alone.momentum) == (0.0, 0.0)
        linger.SetBnMomentumUpdate(disable=False)
        return init(model)

    model = apart(thawed)
    assert (model.conv.bn.momentum, model.alone.momentum) == (0.25, None)
    assert learned(model) == {"conv.bn.running_mean", "alone.running_mean"}


def test_a_later_choice_does_not_change_the_model():
    def later():
        model = init(trace())
        linger.SetBnMomentumUpdate()
        return learned(model)

    assert apart(later) == {"conv.bn.running_mean", "alone.running_mean"}


def test_a_frozen_model_still_trains_its_weights():
    model = init(trace(), switches=Switches(freezes_batch_norm=True)).train()
    model(image()).square().sum().backward()
    assert model.conv.weight.grad.abs().max() > 0
