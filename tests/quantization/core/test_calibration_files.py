"""Statistics of calibration in files: saved, merged to what one pass over all data gives, and refused where they do not fit."""

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.quantization import Parts, calibrate, encode, ranges_of

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore:.*the device's format ends at")]

METHODS = ["max", "percentile:99", "mse", "kl", "topk", "half"]


@pytest.fixture(autouse=True)
def _half():
    @linger.calibration_method("half")
    def half_of_the_largest(bins, bits):
        return bins.largest / 2


class Images(nn.Module):
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
    "images": (Images, batches((2, 3, 8, 8))),
    "sequences": (Sequences, batches((7, 2, 6))),
    "attention": (Attention, batches((2, 4, 6), (0.5, 9.0, 0.7, 12.0, 0.3))),
}


def quantized(kind):
    make, found = KINDS[kind]
    torch.manual_seed(2)
    model = linger.trace_layers(make(), found[0]) if make is Images else make()
    return linger.init(model).eval()


@pytest.fixture(scope="module")
def blank():
    """A model of each kind that nothing was seen in; tests copy it."""
    return {kind: quantized(kind) for kind in KINDS}


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


@pytest.mark.parametrize("kind", KINDS)
def test_shards_give_the_state_of_one_pass_for_every_method(blank, kind, tmp_path):
    data = KINDS[kind][1]
    paths = shards(blank[kind], tmp_path, [data[3:4], data[:3], data[4:]])
    for method in METHODS:
        whole = calibrated(blank[kind], data, method)
        found = merged(blank[kind], paths, method)
        assert state_of(found) == state_of(whole), method
        assert not found.training
        with torch.no_grad():
            assert torch.equal(found(data[1]).integers(), whole(data[1]).integers())
        assert state_of(found) == state_of(whole), method


def test_shards_cover_what_calibration_decides(blank, tmp_path):
    # so that the tests around this one look at something
    images = merged(blank["images"], shards(blank["images"], tmp_path, [[x] for x in KINDS["images"][1]]))
    assert {"rare.running_o", "_linger_round_tensor_iqadd__default_index_2.running_o", "mix"} <= set(
        images.state_dict()
    )
    assert images.rare.ranges["o"].used_interval == (-1.0, 3.0)
    attention = merged(blank["attention"], shards(blank["attention"], tmp_path, [[x] for x in KINDS["attention"][1]]))
    assert [name for name in attention.state_dict() if name.endswith("below_max")]


@pytest.mark.parametrize("seed", [1, 28, 60, *(pytest.param(n, marks=pytest.mark.slow) for n in range(61, 161))])
def test_any_division_in_any_order_by_any_methods(blank, seed, tmp_path):
    dice = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    model, data = blank[kind], KINDS[kind][1]
    first = {"images": "first", "sequences": "cell", "attention": "query"}[kind]
    methods = {
        "inputs": dice.choice([None, *METHODS]),
        "weights": dice.choice([None, *METHODS]),
        "outputs": dice.choice([None, *METHODS]),
        "layers": dice.choice([None, {f"{first}.*": dice.choice(METHODS)}]),
    }
    paths = shards(model, tmp_path, divided(data, dice), dice.choice(METHODS))
    dice.shuffle(paths)
    method = dice.choice(METHODS)
    assert state_of(merged(model, paths, method, **methods)) == state_of(calibrated(model, data, method, **methods))


def test_ranges_are_those_of_numpy_on_all_data(tmp_path):
    model = linger.init(nn.Sequential(nn.Linear(4, 3))).eval()
    data = batches((50, 4))
    paths = shards(model, tmp_path, [data[:2], data[2:3], data[3:]])
    magnitudes = np.sort(np.abs(np.concatenate([x.numpy().ravel() for x in data])))
    assert merged(model, paths)[0].running_x.item() == magnitudes[-1]
    (held,) = magnitudes[[int(np.ceil(0.9 * len(magnitudes))) - 1]].view(np.uint32)
    # a bin ends where the upper 13 bits of a float32 change
    (end,) = np.array([((int(held) >> 19) + 1) << 19], np.uint32).view(np.float32)
    assert merged(model, paths, "percentile:90")[0].running_x.item() == end


def test_what_was_found_before_the_shards_counts_once(blank, tmp_path):
    data = KINDS["images"][1]
    started = quantized("images")
    started.load_state_dict(calibrated(blank["images"], [8 * data[0]]).state_dict())
    paths = shards(started, tmp_path, [data[:1], data[1:]])
    whole = calibrated(started, data)
    assert state_of(merged(started, paths)) == state_of(whole)
    assert whole.first.running_x.item() == float((8 * data[0]).abs().max())


def test_shards_replace_what_the_model_has_counted(blank, tmp_path):
    data = KINDS["images"][1]
    used = calibrated(blank["images"], [9 * x for x in data], inputs="kl", outputs="kl")
    paths = shards(blank["images"], tmp_path, [data[:2], data[2:]])
    assert state_of(merged(used, paths)) == state_of(calibrated(blank["images"], data))
    linger.save_statistics(used, tmp_path / "own.stat")
    everything = calibrated(blank["images"], [*data, *(9 * x for x in data)])
    assert state_of(merged(used, [*paths, tmp_path / "own.stat"])) == state_of(everything)


def test_calibration_goes_on_from_merged_shards(blank, tmp_path):
    data = KINDS["sequences"][1]
    model = merged(blank["sequences"], shards(blank["sequences"], tmp_path, [data[:1], data[1:3]]), "mse")
    assert state_of(calibrated(model, data[3:], "kl")) == state_of(calibrated(blank["sequences"], data, "kl"))
    linger.choose_ranges(model, "percentile")
    assert state_of(model) == state_of(calibrated(blank["sequences"], data[:3], "percentile"))


def test_one_file_is_a_shard(blank, tmp_path):
    data = KINDS["sequences"][1]
    (path,) = shards(blank["sequences"], tmp_path, [data])
    assert state_of(merged(blank["sequences"], str(path))) == state_of(calibrated(blank["sequences"], data))


class Row(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.scores.weight)

    def forward(self, x):
        return torch.softmax(self.scores(x), -1)


def test_a_softmax_decides_by_each_row_alone(tmp_path):
    # within the device's ±64; beyond it, and yet nothing that counts; the second one makes the scale of both coarser
    data = [torch.tensor([[-60.0, -54.0]]), torch.tensor([[-70.0, 0.0]])]
    model = linger.init(Row()).eval()
    paths = shards(model, tmp_path, [[x] for x in data])
    states = [state_of(each) for each in (merged(model, paths), calibrated(model, data), calibrated(model, data[::-1]))]
    assert states[0] == states[1] == states[2]
    assert not any(name.endswith("below_max") for name in states[0])
    lost = calibrated(model, [torch.tensor([[-70.0, -54.0]])])
    assert any(name.endswith("below_max") for name in lost.state_dict())


class Step(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), act

    def forward(self, x):
        return self.act(self.linear(x))


class Shared(nn.Module):
    """One function that two modules call in some passes, and integers that follow from a scale."""

    def __init__(self):
        super().__init__()
        act = nn.LeakyReLU(0.1)
        self.first, self.second, self.end = Step(act), Step(act), nn.ReLU6()

    def forward(self, x):
        h = self.first(x)
        return self.end(self.second(h) if x.shape[0] > 3 else h)


@pytest.mark.parametrize("method", ["max", "mse"])
def test_a_range_that_two_calls_share_is_not_used(method, tmp_path):
    torch.manual_seed(0)
    model = linger.init(Shared()).eval()
    data = [torch.randn(2, 4), torch.randn(5, 4), 3 * torch.randn(2, 4)]
    paths = shards(model, tmp_path, [[x] for x in data])
    whole, found = calibrated(model, data, method), merged(model, paths, method)
    with torch.no_grad():  # one shard has this range, so what follows from it is known in the next pass
        assert torch.equal(found(data[2]).integers(), whole(data[2]).integers())
    assert state_of(found) == state_of(whole)
    assert whole.first.act.get_submodule("_linger_round_tensor_iqleakyrelu_0").running_o.item() == 0.0


# what is refused
@pytest.fixture(scope="module")
def small():
    torch.manual_seed(5)
    return linger.init(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).eval()


def refused(model, paths, *method, **methods):
    """The message; nothing of the model has changed."""
    made = calibrated(model, [torch.full((2, 4), 0.5) + torch.arange(4)])
    before, counted = state_of(made), [r.histogram for r in ranges_of(made).values()]
    with pytest.raises(UsageError) as found:
        linger.merge_statistics(made, paths, *method, **methods)
    assert state_of(made) == before
    assert [r.histogram for r in ranges_of(made).values()] == counted
    return str(found.value)


def test_every_damaged_byte_is_found(small, tmp_path):
    (path,) = shards(small, tmp_path, [batches((3, 4))])
    content, dice = path.read_bytes(), random.Random(1)
    places = {*range(100), *dice.sample(range(len(content)), 60), len(content) - 1}
    bad = tmp_path / "bad.stat"
    for place in sorted(places):
        damaged = bytearray(content)
        damaged[place] ^= 1 << dice.randrange(8)
        bad.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"is damaged|is no file of linger|has format"):
            calibrate._read(str(bad))
    for length in (0, 1, 30, 100, len(content) // 2, len(content) - 1):
        bad.write_bytes(content[:length])
        with pytest.raises(UsageError, match=r"is damaged|is no file of linger"):
            calibrate._read(str(bad))
    bad.write_bytes(content + b"x")
    assert f"{bad} is damaged: its content is not what its SHA-256 says" in refused(small, [path, bad])


def test_all_files_that_do_not_fit_are_named_at_once(small, tmp_path):
    good, other = shards(small, tmp_path, [batches((3, 4)), batches((3, 4), seed=7)])
    copied, foreign, future, wide, weights, empty, strange = (
        tmp_path / name for name in ("copy", "f", "new", "wide", "w", "none", "strange")
    )
    copied.write_bytes(good.read_bytes())
    foreign.write_bytes(b"PK\x03\x04")
    future.write_bytes(good.read_bytes().replace(b"statistics 1 ", b"statistics 2 "))
    torch.manual_seed(5)
    deeper = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.Linear(2, 2))
    linger.save_statistics(calibrated(linger.init(deeper), batches((3, 4))), wide)
    changed = copy.deepcopy(small)
    with torch.no_grad():
        changed[2].bias[0] += 1e-6
    linger.save_statistics(calibrated(changed, batches((3, 4), seed=8)), weights)
    parts = calibrate._read(str(good))
    empty.write_bytes(encode(Parts({"": (parts.models[""][0], {})})))
    description, layers = parts.models[""]
    of_another = {**layers, "0": replace(layers["0"], ranges={**layers["0"].ranges, "q": layers["0"].ranges["x"]})}
    strange.write_bytes(encode(Parts({"": (description, of_another)})))
    missing = tmp_path / "missing"
    message = refused(small, [good, other, copied, foreign, future, wide, weights, empty, strange, missing])
    assert message.startswith("merge_statistics: ")
    for told in (
        f"{copied} holds the same counts as {good}",
        f"{foreign} is no file of linger.save_statistics",
        f"{future} has format 2 of statistics",
        f"{wide} is of another model, which also has 3",
        f"{weights} is of another model, which has other weights or statistics in 2",
        f"{empty} holds nothing",
        f"{strange} is damaged: it has '0.q', which the model does not",
        f"{missing} cannot be read (No such file or directory)",
    ):
        assert told in message
    assert f"{other} " not in message


def test_widths_and_settings_are_part_of_the_model(tmp_path):
    def made(width, stride):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 2, 3, stride=stride))
        linger.quant_module(net[0], data_bits=width)
        return linger.init(net).eval()

    data = batches((1, 1, 8, 8))
    paths = [tmp_path / "narrow", tmp_path / "stride"]
    linger.save_statistics(calibrated(made(4, 1), data), paths[0])
    linger.save_statistics(calibrated(made(8, 2), data), paths[1])
    with pytest.raises(UsageError) as found:
        linger.merge_statistics(made(8, 1), paths)
    for path in paths:
        assert f"{path} is of another model, which has other types, sizes or widths in 0" in str(found.value)


def test_bad_arguments(small, tmp_path):
    (path,) = shards(small, tmp_path, [batches((3, 4))])
    assert refused(small, []).startswith("merge_statistics: no file was given")
    assert "no layer or range has such a path" in refused(small, path, layers={"nowhere": "max"})
    assert "merge_statistics" in refused(small, path, "nosuch")
    with pytest.raises(UsageError, match="merge_statistics: Linear is not quantized"):
        linger.merge_statistics(nn.Linear(2, 2), path)
    with pytest.raises(UsageError, match="save_statistics: Linear is not quantized"):
        linger.save_statistics(nn.Linear(2, 2), tmp_path / "x")
    with pytest.raises(UsageError, match="save_statistics: nothing was counted"):
        linger.save_statistics(small, tmp_path / "x")
    with pytest.raises(UsageError, match="does not exist"):
        linger.save_statistics(calibrated(small, batches((3, 4))), tmp_path / "no" / "x")
    assert not (tmp_path / "x").exists()


def test_a_method_that_fails_leaves_the_model_as_it_was(blank, tmp_path):
    @linger.calibration_method("broken")
    def broken(bins, bits):
        raise RuntimeError

    paths = shards(blank["images"], tmp_path, [[x] for x in KINDS["images"][1]])
    model = copy.deepcopy(blank["images"])
    with pytest.raises(Exception):  # noqa: B017 - whatever becomes of a method's own error
        linger.merge_statistics(model, paths, "broken")
    assert state_of(model) == state_of(blank["images"])
