"""Who feeds whom: one recorded pass, after which the model is as it was."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linger.errors import UsageError
from tests.support.analysis import computes_like, evaluating, wiring_of
from tests.support.wired import Wired

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def watched(forward, x=X):
    model = Wired(forward)
    wiring = wiring_of(model, (x,))
    return model, wiring, wiring.results[model.conv][0]


def test_the_only_use_is_found():
    model, wiring, result = watched(lambda m, x: m.bn(m.conv(x)))
    assert wiring.sole_consumer(result).module is model.bn
    assert wiring.feeds_only_batch_norm(result) is model.bn


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda m, x: (lambda h: m.bn(h) + h)(m.conv(x)), id="two functions"),
        pytest.param(lambda m, x: (lambda h: h + h)(m.conv(x)), id="one function, twice"),
        pytest.param(lambda m, x: (lambda h: (m.bn(h), h))(m.conv(x)), id="returned in a tuple"),
        pytest.param(lambda m, x: (lambda h: {"y": m.bn(h), "h": [h]})(m.conv(x)), id="returned in a dict"),
        pytest.param(lambda m, x: (lambda h: torch.cat([m.bn(h), h]))(m.conv(x)), id="inside a list"),
        pytest.param(lambda m, x: (lambda h: torch.add(input=m.bn(h), other=h))(m.conv(x)), id="by keyword"),
        pytest.param(lambda m, x: (lambda h: m.bn(h) if h.sum() == 0 else m.bn2(h))(m.conv(x)), id="a condition"),
        pytest.param(lambda m, x: (m.conv(x), x)[1], id="no use at all"),
    ],
)
def test_a_tensor_used_elsewhere_has_no_only_use(forward):
    _, wiring, result = watched(forward)
    assert wiring.sole_consumer(result) is None
    assert wiring.feeds_only_batch_norm(result) is None


class Limited(nn.Conv2d):
    """Its parameters and its sum are temporary tensors: they die when the layer returns, and their ids come back."""

    def forward(self, x):
        return F.conv2d(x, self.weight.clamp(-1, 1), self.bias.clamp(-1, 1)).clamp(-1, 1)


def test_a_temporary_tensor_is_not_taken_for_a_later_one_at_its_address():
    pairs = nn.Sequential(*(layer for _ in range(6) for layer in (Limited(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU())))
    wiring = wiring_of(pairs, (X,))
    for conv, bn in zip(pairs[::3], pairs[1::3], strict=True):
        assert wiring.feeds_only_batch_norm(wiring.results[conv][0]) is bn


def test_looking_at_a_tensor_is_no_use():
    def forward(m, x):
        h = m.conv(x)
        assert h.shape[0] == h.size(0)
        assert h.dim() == 4
        assert h.dtype == torch.float32
        return m.bn(h)

    model, wiring, result = watched(forward)
    assert wiring.feeds_only_batch_norm(result) is model.bn


def relu_in_place_then_elsewhere(m, x):
    h = m.conv(x)
    F.relu_(h)
    return m.bn(h) + h


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        pytest.param(lambda m, x: F.relu(m.conv(x)), True, id="relu alone"),
        pytest.param(lambda m, x: (lambda h: F.relu(h) + h)(m.conv(x)), False, id="relu and another"),
        pytest.param(lambda m, x: (lambda h: (F.relu(h), h))(m.conv(x)), False, id="relu, and returned"),
        pytest.param(relu_in_place_then_elsewhere, True, id="in place: all others see its result"),
        pytest.param(lambda m, x: F.relu(m.conv(x).add_(1)), False, id="another in-place function first"),
        pytest.param(lambda m, x: F.relu6(m.conv(x)), False, id="relu6"),
        pytest.param(lambda m, x: F.leaky_relu(m.conv(x)), False, id="leaky relu"),
        pytest.param(lambda m, x: m.bn(m.conv(x)), False, id="batch norm"),
    ],
)
def test_whether_relu_is_all_that_sees_a_tensor(forward, expected):
    _, wiring, result = watched(forward)
    assert wiring.feeds_only_relu(result) is expected


def test_every_call_of_a_shared_layer_is_seen():
    _, wiring, _ = watched(lambda m, x: m.bn(m.conv(x)) + m.bn2(m.conv(x)))
    results = next(iter(r for m, r in wiring.results.items() if isinstance(m, nn.Conv2d)))
    assert len({id(r) for r in results}) == 2


def test_watching_leaves_no_trace():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.BatchNorm2d(4))
    model.train()
    model[1].eval()
    modes = [m.training for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    random_state = torch.get_rng_state()
    wiring_of(model, (X,))
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.is_grad_enabled()


def test_a_module_without_parts_returns_its_output():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential())  # whose truth value is False
    wiring = wiring_of(model, (X,))
    assert wiring.results[model[1]][0] is wiring.results[model[0]][0]


class Catching(nn.Module):
    """Goes on after a part of it has failed."""

    def __init__(self):
        super().__init__()
        self.bad = Wired(lambda m, x: refuse("no"))

    def forward(self, x):
        try:
            return self.bad(x)
        except AssertionError:
            return F.relu(x)


def test_a_function_after_a_caught_failure_belongs_to_the_module_that_caught_it():
    model = nn.Sequential(nn.Identity(), Catching())
    wiring = wiring_of(model, (X,))
    use = wiring.sole_consumer(wiring.inputs[model[1]][0])
    assert use.function is F.relu
    assert use.module is model[1]


def test_a_pass_leaves_the_callers_tensor():
    x = X.clone()
    wiring_of(Wired(lambda m, x: m.conv(x.mul_(2))), (x,))
    assert torch.equal(x, X)


def refuse(message):
    raise AssertionError(message)


def test_a_model_that_draws_random_numbers_leaves_the_random_state():
    model = Wired(lambda m, x: m.conv(x + torch.rand(1)))
    before = torch.get_rng_state()
    wiring_of(model, (X,))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("forward", "arguments", "match"),
    [
        pytest.param(None, (torch.zeros(1, 5, 6, 6),), r"\[\(1, 5, 6, 6\)\]", id="wrong channels"),
        pytest.param(None, (torch.zeros(1, 3, 6, 6), 3), "positional argument", id="too many arguments"),
        pytest.param(None, ("text",), r"\['str'\]", id="no tensor"),
        pytest.param(lambda m, x: m.nothing(x), (X,), "no attribute 'nothing'", id="AttributeError"),
        pytest.param(lambda m, x: {}["key"], (X,), "key", id="KeyError"),
        pytest.param(lambda m, x: list(x)[9], (X,), "out of range", id="IndexError"),
        pytest.param(lambda m, x: int("x"), (X,), "invalid literal", id="ValueError"),
        pytest.param(lambda m, x: refuse("3 channels"), (X,), "3 channels", id="AssertionError"),
    ],
)
def test_failing_input_is_a_usage_error_and_leaves_no_trace(forward, arguments, match):
    model = Wired(forward or (lambda m, x: m.bn(m.conv(x)))).train()
    with pytest.raises(UsageError, match=match) as caught:
        wiring_of(model, arguments)
    assert "Give an input that the model accepts." in str(caught.value)
    assert caught.value.__cause__ is not None
    assert all(m.training for m in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Renamed(nn.Conv2d):
    """A subclass that computes what its ancestor does."""


class Scaled(nn.Conv2d):
    """A subclass that does not."""

    def forward(self, x):
        return 2 * super().forward(x)


class Standardized(nn.Conv2d):
    """A subclass that changes its weights on the way."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


def patched():
    layer = nn.Conv2d(3, 4, 3)
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        pytest.param(nn.Conv2d(3, 4, 3), True, id="itself"),
        pytest.param(Renamed(3, 4, 3), True, id="plain subclass"),
        pytest.param(Scaled(3, 4, 3), False, id="own forward"),
        pytest.param(Standardized(3, 4, 3), False, id="own convolution"),
        pytest.param(patched(), False, id="forward of one instance"),
    ],
)
def test_a_subclass_may_compute_something_else(layer, expected):
    assert computes_like(layer, nn.Conv2d) is expected


def test_each_module_gets_its_own_mode_back_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    model[1].eval()
    seen = []

    def stop():
        seen.extend(m.training for m in model.modules())
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), evaluating(model):
        stop()
    assert seen == [False, False, False]
    assert [m.training for m in model.modules()] == [True, True, False]
