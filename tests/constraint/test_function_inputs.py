"""advise names inputs that a device reads in a format too small for them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linger import advise


class Net(nn.Module):
    def __init__(self, gain, function):
        super().__init__()
        self.head, self.gain = nn.Sequential(nn.Linear(4, 3)), gain
        self.function = function
        with torch.no_grad():
            self.head[0].weight.fill_(1.0)
            self.head[0].bias.zero_()

    def forward(self, x):
        return self.function(self.gain * self.head(x))


def beyond(model, x):
    return [item for item in advise(model, x).items if item.role == "input"]


@pytest.mark.parametrize(
    ("function", "end"),
    [
        (lambda h: torch.softmax(h, -1), 64),
        (lambda h: h.log_softmax(dim=-1), 64),
        (nn.Softmax(-1), 64),
        (F.gelu, 16),
        (nn.SiLU(), 16),
    ],
    ids=["softmax", "log_softmax", "Softmax", "gelu", "SiLU"],
)
def test_what_leaves_the_format_is_the_first_item(function, end):
    x = torch.ones(2, 4)
    assert beyond(Net(end / 4, function), x) == []
    model = Net(end / 2, function)
    advice = advise(model, [x, x / 2])
    item = advice.items[0]
    assert (item.role, item.max) == ("input", 2 * end)
    assert item.name.rpartition(".")[0] == ("function" if isinstance(function, nn.Module) else "")
    assert f"its input reaches {2 * end}, and the device reads it in a format that ends at ±{end}" in item.advice
    assert item.advice in str(advice)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_a_softmax_far_below_the_format_is_named_a_masked_score_is_not():
    low = Net(-100.0, lambda h: torch.softmax(h, -1))
    assert [item.name for item in beyond(low, torch.ones(1, 4))] == ["softmax"]
    masked = Net(1.0, lambda h: torch.softmax(h.masked_fill(torch.tensor([True, False, False]), -1e4), -1))
    assert beyond(masked, torch.ones(1, 4)) == []


def test_a_model_that_writes_into_its_input_leaves_the_callers():
    x = torch.ones(2, 4)
    model = Net(20.0, lambda h: torch.softmax(h, -1))
    model.register_forward_pre_hook(lambda _, args: (args[0].mul_(2),))
    first = [item.max for item in beyond(model, x)]
    assert first == [160.0] == [item.max for item in beyond(model, x)]
    assert torch.equal(x, torch.ones(2, 4))
