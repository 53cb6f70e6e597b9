"""torch.utils.checkpoint in training: the gradients, ranges and running statistics of a model without it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import linger

both_kinds = pytest.mark.parametrize("is_reentrant", [True, False], ids=["reentrant", "non-reentrant"])


class Block(nn.Module):
    """A layer, a batch norm of its own, a sum that needs a range, random numbers."""

    def __init__(self):
        super().__init__()
        self.linear, self.bn, self.drop = nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(F.relu(self.bn(self.linear(x)) + x))


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run = run
        self.first, self.block, self.last = nn.Linear(4, 5), Block(), nn.Linear(5, 3)
        self.fused = nn.Sequential(nn.Conv1d(1, 5, 1), nn.BatchNorm1d(5))

    def forward(self, x):
        x = self.run(self.block, self.first(x))
        x = self.run(self.block, x * 3.0)  # the same ranges, seen twice in a pass
        return self.last(self.run(self.fused, x[:, None]).mean(-1))


def plainly(block, x):
    return block(x)


def trained(run):
    """A net after three steps: gradients of the last one, and the state."""
    torch.manual_seed(0)
    net = Net(plainly)
    linger.trace_layers(net, net.fused, torch.randn(6, 1, 5))
    net = linger.init(net).train()
    net.run = run
    for step in range(3):
        net.zero_grad()
        net(torch.randn(6, 4) * 2.0**step).pow(2).sum().backward()
    gradients = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    return net, gradients, net.state_dict()


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    differing = [n for n in wanted if not torch.equal(found[n], wanted[n])]
    assert not differing


@both_kinds
def test_checkpoint_changes_neither_gradients_nor_statistics(is_reentrant):
    _, gradients, state = trained(plainly)
    _, again, state_again = trained(lambda block, x: checkpoint(block, x, use_reentrant=is_reentrant))
    assert_equal(again, gradients)
    assert_equal(state_again, state)
    assert all(g.any() for g in gradients.values())


@both_kinds
def test_functions_that_are_repeated_outside_their_module_keep_their_ranges(is_reentrant):
    def wide(block, x):
        if isinstance(block, nn.Sequential):
            return block(x)
        return F.relu(torch.cat([block(x), x]) + 8.0)[:6] * torch.sigmoid(x) + torch.sin(x)

    _, gradients, state = trained(wide)
    _, again, state_again = trained(lambda block, x: checkpoint(wide, block, x, use_reentrant=is_reentrant))
    assert_equal(again, gradients)
    assert_equal(state_again, state)


def test_another_input_in_the_second_run_is_refused():
    torch.manual_seed(0)
    net = Net(lambda block, x: checkpoint(block, x, use_reentrant=True, preserve_rng_state=False))
    net.block.linear = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 5))
    net = linger.init(net).train()
    loss = net(torch.randn(6, 4)).sum()
    with pytest.raises(linger.LingerError, match=r"block\.linear\.1.*preserve_rng_state=True"):
        loss.backward()
    again = {"use_reentrant": True, "preserve_rng_state": False}
    net.run = lambda block, x: (
        block(x) if block is net.fused else checkpoint(lambda t: F.relu(F.dropout(t) + 1), x, **again)
    )
    loss = net(torch.randn(6, 4)).sum()
    with pytest.raises(linger.LingerError, match=r"add, outside any module.*preserve_rng_state=True"):
        loss.backward()


def test_pass_inside_a_backward_pass_that_repeats_nothing_is_an_ordinary_one():
    torch.manual_seed(0)
    net = linger.init(Net(plainly)).train()
    x = torch.randn(6, 4)
    net(x)
    before = net.first.running_o.clone()
    probe = torch.ones(1, requires_grad=True)
    probe.register_hook(lambda g: net(x * 8).sum().detach() * 0 + g)
    probe.sum().backward()
    assert net.first.running_o > before


def test_copy_of_a_model_remembers_no_call():
    net, *_ = trained(lambda block, x: checkpoint(block, x, use_reentrant=True))
    assert net._linger_runtime.recomputation.is_awaited
    assert not copy.deepcopy(net)._linger_runtime.recomputation.is_awaited
