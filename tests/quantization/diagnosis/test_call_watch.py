"""Module calls of a forward pass."""

import torch
import torch.nn.functional as F
from torch import nn

from linger import QTensor, init, trace_layers
from tests.support.diagnosis import CallWatch
from tests.support.wired import Wired, image, quantize


def watched(model, *batches):
    """The calls of each batch as (key, source, has_inner), and all Call objects with their outputs."""
    calls = []
    watch = CallWatch(model, lambda call, output: calls.append((call, output)))
    with torch.no_grad():
        for batch in batches:
            watch.begin()
            model(batch)
    return watch, calls


def test_calls_are_numbered_per_pass_in_the_order_they_end():
    model = Wired(lambda m, x: m.conv2(m.conv2(m.conv(x)))).eval()
    _, calls = watched(model, image(), image())
    once = [("conv", 0), ("conv2", 0), ("conv2", 1), ("", 0)]
    assert [call.key for call, _ in calls] == once * 2
    assert [call.has_inner for call, _ in calls] == [False, False, False, True] * 2


def test_the_call_that_made_the_first_argument_is_known():
    model = Wired(lambda m, x: m.fc(m.relu(m.bn(m.conv(x))).clone().mean((2, 3)))).eval()
    _, calls = watched(model, image())
    assert {call.key[0]: call.source and call.source[0] for call, _ in calls} == {
        "conv": None,
        "bn": "conv",
        "relu": "bn",
        "fc": None,
        "": None,
    }


def test_a_tensor_that_is_handed_on_belongs_to_the_call_that_made_it():
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Sequential(nn.ReLU(inplace=True)), nn.Linear(3, 3))
    _, calls = watched(model.eval(), torch.ones(1, 3))
    assert {call.key[0]: call.source and call.source[0] for call, _ in calls}["3"] == "0"


def test_inputs_are_copied_before_they_change_and_quantized_ones_are_real():
    model = quantize(Wired(lambda m, x: m.fc(m.relu_in_place(m.conv(x)).flatten(1)[:, :4])), image())
    _, calls = watched(model, image())
    found = {call.key[0]: call for call, _ in calls}
    (given,) = found["relu_in_place"].args
    assert not isinstance(given, QTensor)
    assert given.min() < 0
    assert isinstance(next(output for call, output in calls if call.key[0] == "conv"), QTensor)


def test_keyword_arguments_are_seen():
    model = Wired(lambda m, x: m.conv(input=x)).eval()
    _, calls = watched(model, image())
    assert calls[0][0].args == ()
    assert torch.equal(calls[0][0].kwargs["input"], image())


def test_fused_and_quantized_layers_are_closed():
    model = Wired(lambda m, x: m.bn2(m.conv2(F.relu(m.bn(m.conv(x)))))).eval()
    trace_layers(model, image())
    assert set(CallWatch(model, print).modules) == {"", "conv", "bn", "conv2", "bn2", "fc", "relu", "relu_in_place"}
    assert set(CallWatch(init(model), print).modules) == {
        "", "conv", "bn", "conv2", "bn2", "fc", "relu", "relu_in_place"
    }  # fmt: skip


def test_a_module_with_two_names_has_one_path():
    shared = nn.Linear(3, 3)
    _, calls = watched(nn.Sequential(shared, nn.Sequential(shared)), torch.ones(1, 3))
    assert [call.key for call, _ in calls] == [("0", 0), ("0", 1), ("1", 0), ("", 0)]


def test_nothing_is_seen_in_a_pause():
    model = nn.Sequential(nn.Linear(3, 3))
    watch, calls = watched(model)
    with watch.paused():
        model(torch.ones(1, 3))
    assert calls == []
    model(torch.ones(1, 3))
    assert len(calls) == 2


def test_functions_of_a_model_that_calls_itself_are_handed_over_and_none_after_it():
    class Inward(nn.Module):
        def forward(self, x, depth=2):
            y = torch.relu(x) if depth == 0 else self(x, depth - 1)
            return torch.exp(y) if depth == 2 else torch.neg(y)

    found = []
    watch = CallWatch(model := Inward(), lambda *_: None, lambda _, run, __: found.append(run.func) or run())
    watch.begin()
    model(torch.ones(2))
    torch.abs(torch.ones(2))
    assert found == [torch.relu, torch.neg, torch.neg, torch.exp]
