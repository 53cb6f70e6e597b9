"""The order of the steps is free where it makes sense, and a checkpoint of an earlier stage loads into a later one."""

import copy
import io

import pytest
import torch
from torch import nn

import linger
from linger import (
    disable_normalize,
    disable_quant,
    init,
    normalize_layers,
    normalize_module,
    quant_module,
    trace_layers,
)
from tests.support.models import SmallNet, settle
from tests.support.quantization import Widths, unwrap

X = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(5))
LIMITS = {"normalize_weight_value": 0.25, "normalize_bias_value": 0.5, "normalize_output_value": 1.5}


class Mixed(nn.Module):
    """Layers that have no integer form yet among others that have one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)
        self.bn_up = nn.BatchNorm2d(6)
        self.alone = nn.BatchNorm2d(6)
        self.gru = nn.GRU(6, 5, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(10, 3)

    def forward(self, x):
        x = torch.relu(self.bn(self.first(x)))
        x = torch.relu(self.alone(torch.relu(self.bn_up(self.up(x)))))
        return self.fc(self.gru(x.flatten(2).transpose(1, 2)[:, :7])[0])


def model(make, seed):
    torch.manual_seed(seed)
    return settle(make()).eval()


def trace(m):
    return trace_layers(m, X)


def normalize(m):
    return normalize_layers(m, **LIMITS)


PATHS = {
    "float": [],
    "normalized": [normalize],
    "traced": [trace],
    "traced, normalized": [trace, normalize],
    "normalized, traced": [normalize, trace],
    "quantized": [init],
    "normalized, quantized": [normalize, init],
    "traced, quantized": [trace, init],
    "traced, normalized, quantized": [trace, normalize, init],
    "normalized, traced, quantized": [normalize, trace, init],
}
FLOAT = [name for name in PATHS if "quantized" not in name]


def built(make, seed, path):
    result = model(make, seed)
    for step in PATHS[path]:
        result = step(result)
    return result.eval()


def is_earlier(source, target):
    """Whether every step that changes keys on the way to the source is also on the way to the target."""
    has_no_more_steps = set(PATHS[source]) <= set(PATHS[target])
    return has_no_more_steps and source in FLOAT and source != target


PAIRS = [(source, target) for source in PATHS for target in PATHS if is_earlier(source, target)]


def values(m):
    if "_linger_runtime" in m.__dict__:
        with linger.calibration():
            m(X)
    with torch.no_grad():
        return unwrap(m(X))


def saved(m):
    buffer = io.BytesIO()
    torch.save(m.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer)


def test_there_are_enough_pairs():
    # earlier stages of each later one: 1 of "normalized" and "traced", 4 of either order, then with init on top
    assert len(PAIRS) == 1 + 1 + 4 + 4 + 1 + 2 + 2 + 5 + 5


@pytest.mark.parametrize("make", [SmallNet, Mixed])
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda name: name.replace(", ", "+"))
@pytest.mark.thin(every=9)
def test_a_checkpoint_of_an_earlier_stage_loads_strictly_and_gives_the_same_function(make, source, target):
    found = built(make, 2, target)
    assert found.load_state_dict(saved(built(make, 1, source))) == ([], [])
    expected = built(make, 1, target)
    assert torch.equal(values(found), values(expected))
    if target in FLOAT:
        for m in (found, expected):
            torch.manual_seed(3)  # dropout
            m.train()
        torch.manual_seed(3)
        first = found(X)
        torch.manual_seed(3)
        assert torch.equal(first, expected(X))


@pytest.mark.parametrize("make", [SmallNet, Mixed])
@pytest.mark.parametrize("target", [name for name in PATHS if len(PATHS[name]) > 1])
@pytest.mark.thin
def test_loading_may_come_at_any_point(make, target):
    state = saved(model(make, 1))
    expected = values(built(make, 1, target))
    for position in range(len(PATHS[target]) + 1):
        m = model(make, 2)
        for index, step in enumerate([*PATHS[target], lambda m: m]):
            if index == position:
                m.load_state_dict(state)
            m = step(m)
        assert torch.equal(values(m.eval()), expected), position


@pytest.mark.parametrize("make", [SmallNet, Mixed])
def test_both_orders_quantize_to_the_same_integers(make):
    first, second = (built(make, 1, f"{order}, quantized") for order in ("traced, normalized", "normalized, traced"))
    assert torch.equal(values(first), values(second))
    assert set(first.state_dict()) == set(second.state_dict())


@pytest.mark.parametrize("path", [name for name in PATHS if name != "float"])
def test_every_stage_can_be_copied_and_its_copy_loads(path):
    m = built(SmallNet, 1, path)
    clone = copy.deepcopy(m)
    assert torch.equal(values(clone), values(m))
    assert clone.load_state_dict(model(SmallNet, 2).state_dict()) == ([], [])


def test_limits_are_not_in_a_checkpoint():
    assert list(built(Mixed, 1, "normalized").state_dict()) == list(model(Mixed, 1).state_dict())
    assert list(built(Mixed, 1, "traced, normalized").state_dict()) == list(built(Mixed, 1, "traced").state_dict())


@pytest.mark.parametrize("path", ["traced, normalized", "normalized, traced", "normalized"])
def test_marks_for_quantization_hold_after_both_steps(path):
    m = model(SmallNet, 1)
    disable_quant(m.fc)
    quant_module(m.stem, parameter_bits=4)
    for step in PATHS[path]:
        m = step(m)
    init(m)
    assert m.stem.widths == Widths(8, 4, 8)
    assert isinstance(m.fc, nn.Linear)
    assert m.fc.normalize_weight == 0.25


def test_limits_are_learned_with_in_both_stages():
    m = model(Mixed, 1)
    normalize_module(m.fc, None, 0.1, None, None)
    disable_normalize(m.alone)
    m = init(normalize(trace(m))).train()
    optimizer = torch.optim.SGD(m.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = (unwrap(m(X)) - 0.3).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(torch.isfinite(p).all() for p in m.parameters())
