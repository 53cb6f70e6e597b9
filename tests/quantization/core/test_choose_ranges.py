"""Methods of calibration on models: per kind, per layer, changed without data, from merged shards, and bad input."""

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.quantization import ranges_of, real_copy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x):
        h = F.relu(self.bn(self.first(x)))
        h = torch.sigmoid(self.second(h)) + h
        return torch.softmax(self.head(h.mean((2, 3))), 1) if self.training else self.head(h.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(6, 8, num_layers=2, bidirectional=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.cell(x)[0])


def quantized(make=Net):
    torch.manual_seed(2)
    return linger.init(linger.trace_layers(make(), data()[0]) if make is Net else make()).eval()


def data(count=6, shape=(4, 3, 8, 8), seed=4):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * (0.5 + 0.3 * k) for k in range(count)]


def sequences():
    return data(4, (7, 2, 6))


def calibrate(model, *batches, **methods):
    with linger.calibration(**methods):
        for x in batches:
            model(x)
    return model


def calibrated(batches, make=Net, **methods):
    return calibrate(quantized(make), *batches, **methods)


def settled(model, x):
    """The state after a pass, which brings what follows from several ranges up to date."""
    with torch.no_grad():
        model(x)
    return model.state_dict()


def assert_same(first, second):
    assert list(first) == list(second)
    assert [key for key in first if not torch.equal(first[key], second[key])] == []


KINDS = [(Net, data), (Recurrent, sequences)]
METHODS = ["max", "percentile:99", "mse", "kl", "topk"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("make", "batches"), KINDS, ids=["images", "sequences"])
@pytest.mark.thin
def test_order_does_not_matter(make, batches, method):
    found = batches()
    expected = settled(calibrated(found, make, method=method), found[0])
    assert_same(settled(calibrated(found[::-1], make, method=method), found[0]), expected)


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize(("make", "batches"), KINDS, ids=["images", "sequences"])
@pytest.mark.thin
def test_method_is_changed_without_data(make, batches, method):
    found = batches()
    later = calibrated(found, make)
    before = copy.deepcopy(later.state_dict())
    linger.choose_ranges(later, method)
    assert_same(settled(later, found[0]), settled(calibrated(found, make, method=method), found[0]))
    is_changed = any(not torch.equal(value, before[key]) for key, value in later.state_dict().items() if key in before)
    assert is_changed or make is Recurrent
    linger.choose_ranges(later, "max", weights="max")
    assert_same(settled(later, found[0]), settled(calibrated(found, make), found[0]))


def test_second_block_adds_to_the_first():
    found = data()
    twice = calibrated(found[:3], method="percentile:99")
    with linger.calibration("percentile:99"):
        for x in found[3:]:
            twice(x)
    assert_same(settled(twice, found[0]), settled(calibrated(found, method="percentile:99"), found[0]))


def test_ranges_of_a_checkpoint_are_widened_by_max_and_replaced_by_others():
    found, wide = data(), data(seed=9)
    state = calibrated([x * 50 for x in wide]).state_dict()
    model = quantized()
    model.load_state_dict(calibrated(found[:1]).state_dict())
    model.load_state_dict(state)
    with linger.calibration():
        model(found[0])
    assert model.first.read("running_x") == float(state["first.running_x"])
    model.load_state_dict(state)
    with linger.calibration("percentile:100"):
        model(found[0])
    assert model.first.read("running_x") == float(found[0].abs().max())


def test_training_makes_counts_obsolete():
    model = calibrated(data()).train()
    model(data()[0])
    with pytest.raises(UsageError, match=r"choose_ranges: .*first.o.*nothing was counted"):
        linger.choose_ranges(model, "mse")


def scales(model):
    return {key: found.scale for key, found in ranges_of(model).items()}


def values(model):
    return {key: found.largest for key, found in ranges_of(model).items()}


def test_methods_by_kind_and_by_layer():
    found = data()
    plain, mixed = (
        calibrated(found),
        calibrated(
            found,
            inputs="percentile:90",
            outputs="max",
            weights="percentile:80",
            layers={"second": "percentile:80", "head.o": "topk:3"},
        ),
    )
    first, second = values(plain), values(mixed)
    changed = {key for key in first if first[key] != second[key]}
    assert {"first.x", "first.w", "second.w", "second.o", "head.w", "head.o"} == changed
    assert second["first.x"] < first["first.x"]
    assert mixed.first.ranges["w"].chosen_range() is not None
    assert plain.first.ranges["w"].chosen_range() is None
    only_one = copy.deepcopy(plain)
    linger.choose_ranges(only_one, layers={"*.o": "percentile:70"})
    third = values(only_one)
    assert {"first.o", "second.o", "head.o"} <= {key for key in first if first[key] != third[key]}
    assert all(key.endswith(".o") for key in first if first[key] != third[key])


def test_weights_are_found_by_their_own_numbers_with_the_batch_norm_folded_in():
    model = quantized()
    linger.choose_ranges(model, weights="topk:1")
    factor = model.first.bn.weight / (model.first.bn.running_var + model.first.bn.eps).sqrt()
    expected = (model.first.weight * factor.reshape(-1, 1, 1, 1)).abs().max().item()
    assert model.first.ranges["w"].chosen_range() == pytest.approx(expected, rel=1e-6)
    linger.choose_ranges(model, weights="max")
    assert model.first.ranges["w"].chosen_range() is None
    assert "first.chosen_w" not in model.state_dict()


def test_default_leaves_choices_of_weights_alone():
    model = calibrated(data(), weights="percentile:90")
    chosen = model.first.ranges["w"].chosen_range()
    with linger.calibration():
        model(data()[0])
    assert model.first.ranges["w"].chosen_range() == chosen


def test_what_a_relu_drops_does_not_count():
    identity = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        identity.weight.copy_(torch.eye(2))
    model = nn.Sequential(copy.deepcopy(identity), nn.ReLU())
    model = linger.init(linger.trace_layers(model, torch.zeros(1, 2))).eval()
    x = torch.cat([torch.full((100, 2), 1.0), torch.full((1, 2), -900.0)])
    alone = linger.init(copy.deepcopy(identity)).eval()
    alone.is_ahead_of_relu = True  # as a user may know it where linger sees no ReLU
    for method in METHODS:
        assert calibrate(model, x, method=method)[0].read("running_o") <= 1.0
        assert calibrate(alone, x, method=method).read("running_o") <= 1.0


def sqnr(model, batches):
    reference = real_copy(model)
    with torch.no_grad():
        pairs = [(reference(x).dequantize(), model(x).dequantize()) for x in batches]
    noise = sum(float((a - b).square().sum()) for a, b in pairs)
    return 10 * math.log10(sum(float(a.square().sum()) for a, _ in pairs) / noise)


OUTLIERS = {"number": lambda x: x[0, 0, 2, 2], "image": lambda x: x[0]}


@pytest.mark.parametrize("part", OUTLIERS.values(), ids=OUTLIERS)
def test_outlier_of_a_hundredfold_costs_at_most_one_decibel(part):
    generator = torch.Generator().manual_seed(1)
    *clean, held_out = torch.randn(12, 4, 3, 8, 8, generator=generator)
    spoilt = [x.clone() for x in clean]
    part(spoilt[3]).mul_(100.0)
    plain = sqnr(calibrated(clean), [held_out])
    assert sqnr(calibrated(spoilt), [held_out]) < plain - 6  # max loses bits to it
    assert sqnr(calibrated(spoilt, method="topk"), [held_out]) >= plain - 1


def test_users_method_finds_the_ranges_of_a_model():
    @linger.calibration_method("twice_too_small")
    def half(bins, bits):
        return bins.largest / (2 if bits == 8 else 1)

    found = data()
    plain, own = calibrated(found), calibrated(found, outputs="twice_too_small")
    assert own.head.read("running_o") == pytest.approx(plain.head.read("running_o") / 2, rel=1e-6)
    assert own.first.read("running_x") == plain.first.read("running_x")


def test_tuned_model_is_exported_and_proven(tmp_path):
    model, x = calibrated(data(), method="mse"), data()[0]
    linger.onnx.export(model, (x,), str(tmp_path / "model.onnx"))
    assert linger.verify(model, str(tmp_path / "model.onnx"), x).ok


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"method": "meen"}, "calibration: 'meen' is no method.*Methods: "),
        ({"weights": "mes"}, "Did you mean 'mse'"),
        ({"layers": {"first": "nothing"}}, "'nothing' is no method"),
    ],
)
def test_unknown_methods_are_refused_before_any_pass(methods, message):
    model = quantized()
    with pytest.raises(UsageError, match=message), linger.calibration(**methods):
        model(data()[0])
    assert model.first.read("running_o") == 0.0
    with pytest.raises(UsageError, match=message.replace("calibration:", "choose_ranges:")):
        linger.choose_ranges(model, **methods)


def test_unknown_layers_are_refused_and_nothing_changes():
    model = quantized()
    before = copy.deepcopy(model.state_dict())
    with (
        pytest.raises(UsageError, match=r"'secnd' \(did you mean 'second'\?\).*no layer or range has such a path"),
        linger.calibration(layers={"secnd": "mse"}),
    ):
        model(data()[0])
    assert_same(model.state_dict(), before)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_data_that_are_no_numbers_leave_the_ranges_as_before(value):
    model = calibrated(data())
    before = copy.deepcopy(model.state_dict())
    bad = data()[1].clone()
    bad[0, 0, 0, 0] = value
    with pytest.raises(UsageError, match=r"first\.Quant: the tensor holds NaN or infinity"):
        calibrate(model, data()[0] * 30, bad)
    assert_same(model.state_dict(), before)
    fresh = quantized()
    before = copy.deepcopy(fresh.state_dict())
    with pytest.raises(UsageError, match="NaN or infinity"):
        calibrate(fresh, data()[0], bad)
    assert_same(fresh.state_dict(), before)
    assert [r.histogram for r in fresh.first.ranges.values()] == [None] * 3


def test_ranges_without_counts_are_all_named():
    model = quantized()
    model.load_state_dict(calibrated(data()).state_dict(), strict=False)
    with pytest.raises(
        UsageError, match=r"choose_ranges: first.o, second.o, head.o, .*iqadd.*Calibrate the model again"
    ):
        linger.choose_ranges(model, "mse")


def test_a_float_model_is_refused():
    with pytest.raises(UsageError, match="choose_ranges: Linear is not quantized"):
        linger.choose_ranges(nn.Linear(2, 2), "mse")


def test_counts_are_no_part_of_a_checkpoint():
    model = calibrated(data())
    assert not any("histogram" in key for key in model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized().load_state_dict(model.state_dict(), strict=False)
