"""State that a model keeps in plain attributes is as it was after a pass of linger's own."""

from collections import OrderedDict, deque, namedtuple

import pytest
import torch
from torch import nn

from tests.support.analysis import evaluating, kept_attributes

Pair = namedtuple("Pair", "h c")


class Keeper(nn.Module):
    """One attribute of every kind that a state may have."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))
        self.inner = nn.Linear(2, 2)
        self.tensor, self.count, self.nothing = torch.zeros(2), 0, None
        self.items, self.table = [torch.zeros(2), [1]], {"h": torch.zeros(2)}
        self.window, self.names = deque([torch.zeros(2)], maxlen=1), {"a"}
        self.pair, self.order = Pair(torch.zeros(2), 1), OrderedDict(x=1)
        self.items.append(self.items)  # leads back to itself

    def work(self):
        self.seen += 1
        self.tensor += 1
        self.count, self.nothing, self.made = 1, torch.ones(1), True
        self.items[0] += 1
        self.items[1].append(2)
        self.items.pop()
        self.table["h"] = torch.ones(2)
        self.table["new"] = 1
        self.window.append(torch.ones(2))
        self.names.add("b")
        self.pair.h.add_(1)
        self.pair = Pair(self.pair.h, 2)
        self.order.move_to_end("x")
        self.order["y"] = 2


def assert_untouched(keeper, before):
    now = vars(keeper)
    assert all(now[name] is before[name] for name in before)
    assert now.keys() == before.keys()
    for tensor in (keeper.seen, keeper.tensor, keeper.items[0], keeper.table["h"], keeper.window[0], keeper.pair.h):
        assert torch.equal(tensor, torch.zeros(2))
    assert (keeper.count, keeper.nothing, keeper.pair.c) == (0, None, 1)
    assert keeper.items[1] == [1]
    assert keeper.items[2] is keeper.items
    assert (list(keeper.table), keeper.names, dict(keeper.order)) == (["h"], {"a"}, {"x": 1})


@pytest.mark.parametrize("context", [kept_attributes, evaluating])
def test_every_attribute_is_as_it_was_also_after_an_error(context):
    keeper = Keeper()
    before = dict(vars(keeper))

    def pass_that_fails():
        with context(keeper):
            keeper.work()
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        pass_that_fails()
    assert_untouched(keeper, before)


def test_tensors_may_be_others_for_the_time_of_a_pass():
    keeper = Keeper()
    before = dict(vars(keeper))
    with kept_attributes(keeper, lambda tensor: tensor + 5):
        for tensor in (keeper.tensor, keeper.items[0], keeper.table["h"], keeper.window[0], keeper.pair.h, keeper.seen):
            assert torch.equal(tensor, torch.full((2,), 5.0))
        assert isinstance(keeper.pair, Pair)
        keeper.work()
    assert_untouched(keeper, before)


def test_weights_in_a_list_are_no_state():
    keeper, weight = Keeper(), nn.Parameter(torch.zeros(2))
    keeper.items.append(weight)
    with kept_attributes(keeper, lambda tensor: tensor + 5):
        assert keeper.items[-1] is weight
        weight.data += 1
    assert keeper.items[-1] is weight
    assert torch.equal(weight, torch.ones(2))


def test_tensor_of_an_inference_pass_is_restored_too():
    keeper = Keeper()
    with torch.inference_mode():
        keeper.tensor = torch.zeros(2)
    with kept_attributes(keeper), torch.inference_mode():
        keeper.tensor += 1
    assert torch.equal(keeper.tensor, torch.zeros(2))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_what_has_no_attributes_is_left_alone():
    with kept_attributes(len):
        pass
    scripted = torch.jit.script(nn.Linear(2, 2))
    with kept_attributes(scripted):
        scripted(torch.zeros(1, 2))


class Full(list):
    """A list of a user's own class that cannot be copied."""

    def append(self, item):
        raise TypeError("full")


def test_containers_of_a_users_class_are_restored():
    model = nn.Linear(2, 2)
    model.history = Full([1, 2])
    with kept_attributes(model):
        model.history[0] = 3
    assert model.history == [1, 2]
    assert type(model.history) is Full
