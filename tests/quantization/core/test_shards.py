"""Statistics of calibration in files: saved, merged to what one pass over all data gives, and refused where they do not fit."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger

pytestmark = pytest.mark.needs_torch

METHODS = ["max", "percentile:99", "mse", "kl", "topk", "half"]


@pytest.fixture(autouse=True)
def _half():
    @linger.calibration_method("half")
    def half_of_the_largest(bins, bits):
        return bins.largest / 2


class Pictures(nn.Module):
    """Convolutions with a batch norm and limits, functions with ranges of their own, and a branch for few of the data."""

    def __init__(self):
        super().__init__()
        self.first, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.rare, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Linear(8, 5)
        self.mix = nn.Parameter(torch.randn(5, 5))

    def forward(self, x):
        h = F.relu(self.bn(self.first(x)))
        h = torch.sigmoid(self.second(h)) + F.gelu(h)
        if float(x.detach().abs().max()) > 5.0:
            h = h * F.leaky_relu(self.rare(h).clamp(-1.0, 3.0))
        return F.linear(self.head(h.mean((2, 3))), self.mix)


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(6, 8, num_layers=2, bidirectional=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.cell(x)[0])


class Attention(nn.Module):
    """A softmax whose input leaves the device's format for some of the data."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        return self.norm(torch.softmax(scores, -1) @ self.value(x) + x)


def batches(shape, factors=(0.5, 2.5, 0.7, 1.1, 0.3), seed=4):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * factor for factor in factors]


KINDS = {
    "pictures": (Pictures, batches((2, 3, 8, 8))),
    "sequences": (Sequences, batches((7, 2, 6))),
    "attention": (Attention, batches((2, 4, 6), (0.5, 9.0, 0.7, 12.0, 0.3))),
}


def quantised(kind):
    make, found = KINDS[kind]
    torch.manual_seed(2)
    model = linger.trace_layers(make(), found[0]) if make is Pictures else make()
    return linger.init(model).eval()


@pytest.fixture(scope="module")
def blank():
    """A model of each kind that nothing was seen in; tests copy it."""
    return {kind: quantised(kind) for kind in KINDS}


@pytest.mark.filterwarnings("ignore:.*device's format")
def calibrated(model, data, *method, **methods):
    made = copy.deepcopy(model)
    with linger.calibration(*method, **methods):
        for x in data:
            made(x)
    return made


def shards(model, folder, parts, *method):
    """A file for each part of the data."""
    paths = [folder / f"part{number}.stat" for number in range(len(parts))]
    for path, data in zip(paths, parts, strict=True):
        linger.save_statistics(calibrated(model, data, *method), path)
    return paths


def merged(model, paths, *method, **methods):
    made = copy.deepcopy(model)
    linger.merge_statistics(made, paths, *method, **methods)
    return made


def state_of(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}


def divided(data, dice):
    """The data in parts of any size, none of them empty, in any order."""
    data = list(data)
    dice.shuffle(data)
    ends = sorted(dice.sample(range(1, len(data)), dice.randint(1, len(data) - 1)))
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


pytestmark = [pytestmark, pytest.mark.filterwarnings("ignore:.*the device's format ends at")]


@pytest.mark.parametrize("kind", KINDS)
def test_shards_give_the_state_of_one_pass_for_every_method(blank, kind, tmp_path):
    data = KINDS[kind][1]
    paths = shards(blank[kind], tmp_path, [data[3:4], data[:3], data[4:]])
    for method in METHODS:
        whole = calibrated(blank[kind], data, method)
        found = merged(blank[kind], paths, method)
        assert state_of(found) == state_of(whole), method
        with torch.no_grad():
            assert torch.equal(found(data[1]).integers(), whole(data[1]).integers())
        assert state_of(found) == state_of(whole), method
