"""linger.Schedule: warm-up in float, widths by step, frozen ranges and batch norms, checkpoints, errors."""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.chip import add_wide_chip
from tests.support.processes import run_processes
from tests.support.tuning import QuantizedBase, runtime_of


class Net(nn.Module):
    """A fused convolution, a plain batch norm, a sum, a dropout and a head."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.inner, self.alone = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4, 3)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x)))
        h = self.alone(F.relu(self.inner(h)) + h)
        return self.head(self.drop(h.mean((2, 3))))


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(6, 1, 5, 5, generator=generator), torch.randint(0, 3, (6,), generator=generator))
        for _ in range(count)
    ]


def float_net():
    torch.manual_seed(0)
    return Net()


def quantized():
    return linger.init(linger.trace_layers(float_net(), batches(1)[0][0]))


def train(model, data, schedule=None, *, rate=0.05, seed=5):
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for x, y in data:
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses


def assert_file_agrees(model, folder, x):
    model.eval()
    linger.onnx.export(model, (x,), folder / "net.onnx")
    assert linger.verify(model, folder / "net.onnx", [x]).differing == 0


def ranges(model):
    return {key: value.clone() for key, value in model.state_dict().items() if key.endswith(("_x", "_o"))}


def same(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[key], value) for key, value in expected.items())


# warm-up
def test_training_in_float_is_the_training_of_the_float_model():
    model, reference = quantized(), float_net()
    linger.Schedule(model, float_steps=9)
    losses, expected = train(model, batches(5)), train(reference, batches(5))
    # equal but for rounding: the batch norm that is a layer of its own computes alpha·x + offset, some ulps apart
    assert losses == pytest.approx(expected, rel=2.0**-18)
    theirs = dict(reference.named_parameters())
    assert all(torch.allclose(p, theirs[name], atol=1e-6) for name, p in model.named_parameters() if name in theirs)
    assert torch.allclose(model.conv.bn.running_var, reference.bn.running_var, rtol=1e-6)


def test_training_in_float_without_a_batch_norm_has_the_same_bits():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(36, 3))

    model = linger.init(make())
    linger.Schedule(model, float_steps=9)
    reference = make()
    assert train(model, batches(4)) == train(reference, batches(4))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True))


def test_limits_of_the_constraint_stage_are_those_of_the_float_model():
    def make():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(25, 3))
        return linger.normalize_layers(net, normalize_weight_value=0.125, normalize_bias_value=0.125)

    model = linger.init(make())
    linger.Schedule(model, float_steps=9)
    assert train(model, batches(2)) == train(make(), batches(2))


def test_evaluation_computes_integers_in_the_warm_up_and_training_does_after_it(tmp_path):
    model = quantized()
    schedule = linger.Schedule(model, float_steps=2)
    train(model, batches(1), schedule)
    assert runtime_of(model).trains_real
    assert_file_agrees(model, tmp_path, batches(1)[0][0])
    train(model, batches(1), schedule)
    assert not runtime_of(model).trains_real
    h = model.train().conv(batches(1)[0][0])
    assert torch.equal(h.dequantize() * h.scale, (h.dequantize() * h.scale).round())


# widths
@pytest.mark.parametrize(
    "widths", [{0: 16, 1: 8, 2: 4}, {0: "16/16/16", 1: "8/8/8", 2: "8/4/8"}], ids=["weights", "all"]
)
def test_each_width_is_that_of_evaluation_and_of_the_file(widths, tmp_path):
    model, x = quantized(), batches(1)[0][0]
    schedule = linger.Schedule(model, widths=widths)
    for bits in (16, 8, 4):
        train(model, batches(1), schedule if bits < 16 else None)
        assert model.head.widths.parameter == bits
        assert_file_agrees(model, tmp_path, x)
    with torch.no_grad():
        assert model.head.freeze(model.head.read("scale_x")).weight_integers.abs().max() <= 7


def test_widths_of_single_layers_add_up():
    model = quantized()
    schedule = linger.Schedule(model, widths={0: {"*": "16/16/16", "head": "16/8/16"}, 2: {"inner": 4}})
    assert [str(layer.widths) for layer in (model.conv, model.head)] == ["16/16/16", "16/8/16"]
    train(model, batches(2), schedule)
    assert [str(layer.widths) for layer in (model.conv, model.inner)] == ["16/16/16", "16/4/16"]


class OwnProduct(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(3, 4)), nn.LayerNorm(4)

    def forward(self, x):
        return F.linear(self.norm(x), self.weight)


def test_a_product_in_a_forward_has_the_width_and_a_norm_keeps_its_weight(tmp_path):
    torch.manual_seed(0)
    model, x = linger.init(OwnProduct()), torch.randn(5, 4)
    model.train()(x)
    linger.Schedule(model, widths={0: "16/4/16"})
    assert str(model.norm.widths) == "16/16/16"
    assert model.train()(x).bits == 16
    other = linger.init(OwnProduct())
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(other.eval()(x).integers(), model.eval()(x).integers())
    assert_file_agrees(other, tmp_path, x)


# freezing
def test_frozen_ranges_stay_and_weights_follow(tmp_path):
    model = quantized()
    schedule = linger.Schedule(model, freeze_ranges=2)
    train(model, batches(2), schedule)
    frozen, weight = ranges(model), model.inner.read("running_w")
    train(model, [(10 * x, y) for x, y in batches(2)], schedule)
    assert same(ranges(model), frozen)
    assert model.inner.read("running_w") != weight
    assert_file_agrees(model, tmp_path, batches(1)[0][0])
    with linger.calibration():
        model(10 * batches(1)[0][0])
    assert not same(ranges(model), frozen)


def test_frozen_weights_saturate_at_their_range():
    model = quantized()
    schedule = linger.Schedule(model, freeze_ranges=1, freeze_weights=True)
    train(model, batches(1), schedule)
    largest = float(model.inner.weight.detach().abs().max())
    with torch.no_grad():
        model.inner.weight *= 4
    model.train()(batches(1)[0][0])
    assert model.inner.ranges["w"].chosen_range() == pytest.approx(largest)
    assert model.inner.read("running_w") == pytest.approx(4 * largest)
    assert model.inner.read("scale_w") == 2.0 ** torch.tensor(127 / largest).log2().floor().item()
    schedule.load_state_dict({**schedule.state_dict(), "step": 0})
    assert model.inner.ranges["w"].chosen_range() is None


def test_a_frozen_recurrent_layer_keeps_its_output_range():
    torch.manual_seed(0)
    model, x = linger.init(nn.Sequential(nn.LSTM(3, 4))), torch.randn(5, 2, 3)
    model.train()(0.1 * x)
    linger.Schedule(model, freeze_ranges=0)
    frozen = ranges(model)
    model(10 * x)
    assert same(ranges(model), frozen)


def test_a_range_that_was_never_seen_is_seen_once():
    model = quantized()
    linger.Schedule(model, freeze_ranges=0)
    model.train()(batches(1)[0][0])
    frozen = ranges(model)
    assert all(frozen.values())
    model(9 * batches(1)[0][0])
    assert same(ranges(model), frozen)
    assert {layer.holds_ranges for layer in model.modules() if isinstance(layer, QuantizedBase)} == {True}


def test_frozen_batch_norms_compute_as_in_evaluation_mode():
    model, (x, _) = quantized(), batches(1)[0]
    train(model, batches(2))
    model.drop.p = 0.0
    by_hand = copy.deepcopy(model).train()
    by_hand.conv.bn.eval()
    by_hand.alone.eval()
    schedule = linger.Schedule(model, freeze_batch_norms=0)
    statistics = [t.clone() for t in (model.conv.bn.running_var, model.alone.running_mean)]
    assert torch.equal(model.train().conv(x).dequantize(), by_hand.conv(x).dequantize())
    F.cross_entropy(model(x), batches(1)[0][1]).backward()
    assert all(p.grad is not None for p in (model.conv.bn.weight, model.alone.bias))
    assert torch.equal(statistics[0], model.conv.bn.running_var)
    assert torch.equal(statistics[1], model.alone.running_mean)
    schedule.load_state_dict({**schedule.state_dict(), "step": 0})
    assert schedule.events[-1].what == "batch norms frozen"


def test_a_batch_norm_that_stays_float_is_frozen_too():
    model = linger.init(float_net(), disable_submodel=["alone"])
    linger.Schedule(model, freeze_batch_norms=0)
    before = model.alone.running_mean.clone()
    model.train()(batches(1)[0][0])
    assert torch.equal(model.alone.running_mean, before)


@pytest.mark.parametrize(("mode", "sign"), [("min", 1.0), ("max", -1.0)], ids=["min", "max"])
def test_a_plateau_freezes_after_the_last_change_of_arithmetic(mode, sign):
    model = quantized()
    schedule = linger.Schedule(
        model, float_steps=2, freeze_ranges="plateau", freeze_batch_norms="plateau", patience=2, mode=mode
    )
    train(model, batches(1))
    for metric in (0.1, 0.2, 0.9, None, 0.8, 0.8, torch.tensor(0.85), 0.1):
        schedule.step(None if metric is None else sign * metric)
    # 0.1 and 0.2 belong to the warm-up, 0.8 is the best, the next two are no better
    assert [str(event) for event in schedule.events[-2:]] == ["step 7: ranges frozen", "step 7: batch norms frozen"]
    assert model.conv.holds_ranges
    assert model.conv.holds_batch_norm


# learned scales
def calibrated(method):
    model = quantized().eval()
    with linger.calibration():
        model(batches(1)[0][0])
    return model, linger.learn_scales(model, method)


@pytest.mark.parametrize("method", ["tqt", "lsq"])
def test_learned_ranges_are_independent_of_the_width_and_freeze(method, tmp_path):
    model, parameters = calibrated(method)
    thresholds = [model.inner.ranges[name].learned.parameter for name in ("w", "o")]
    schedule = linger.Schedule(model, widths={0: 16, 1: 4}, freeze_ranges=3)
    model.train()(batches(1)[0][0])
    before = model.inner.ranges["w"].chosen_range(), float(thresholds[0].detach())
    schedule.step()
    model(batches(1)[0][0])
    # a range stays; 32767 steps of 16 bits are 7 of 4 bits. Both numbers of the range are rounded to float32, twice for a step
    assert model.inner.ranges["w"].chosen_range() == pytest.approx(before[0], rel=2.0**-22)
    factor = 1.0 if method == "tqt" else 32767 / 7
    assert float(thresholds[0].detach()) == pytest.approx(before[1] * factor, rel=2.0**-22)
    assert model.inner.read("scale_w") == 2.0 ** torch.tensor(7 / before[0]).log2().floor().item()
    train(model, batches(2), schedule, rate=1e-3)
    assert [p.requires_grad for p in thresholds] == [True, False]
    frozen = [p.detach().clone() for p in thresholds]
    train(model, batches(1), schedule, rate=1e-3)
    assert [torch.equal(p, old) for p, old in zip(thresholds, frozen, strict=True)] == [False, True]
    assert_file_agrees(model, tmp_path, batches(1)[0][0])
    schedule.load_state_dict({**schedule.state_dict(), "step": 0})
    assert all(p.requires_grad for p in parameters)


def test_frozen_weights_of_learned_ranges_have_no_gradient():
    model, parameters = calibrated("tqt")
    linger.Schedule(model, freeze_ranges=0, freeze_weights=True)
    assert not any(p.requires_grad for p in parameters)


def _wrapped():
    model, parameters = calibrated("tqt")
    with pytest.raises(UsageError, match="needs find_unused_parameters=True"):
        linger.Schedule(nn.parallel.DistributedDataParallel(model), freeze_ranges=1)
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    schedule = linger.Schedule(wrapped, float_steps=1, freeze_ranges=3)
    own = batches(4, seed=torch.distributed.get_rank())
    train(wrapped, own, schedule, rate=1e-2)
    return [parameter.item() for parameter in parameters]


def test_another_schedule_undoes_the_first():
    model = linger.init(float_net(), disable_submodel=["alone"]).eval()
    with linger.calibration():
        model(batches(1)[0][0])
    learned = linger.learn_scales(model, layers=["head"])
    first = linger.Schedule(model, freeze_ranges=0, freeze_weights=True, freeze_batch_norms=0)
    assert model.inner.ranges["w"].chosen_range() is not None
    second = linger.Schedule(model, freeze_ranges=9)
    assert model.inner.ranges["w"].chosen_range() is None
    assert all(parameter.requires_grad for parameter in learned)
    before = model.alone.running_mean.clone()
    model.train()(batches(1)[0][0])
    assert not torch.equal(model.alone.running_mean, before)
    with pytest.raises(UsageError, match="another Schedule of this model has ended this one"):
        first.step()
    second.step()
    assert (first.steps, second.steps) == (0, 1)
    copy.deepcopy(model).train()(batches(1)[0][0])


# checkpoints
def test_training_resumes_to_the_same_integers(tmp_path):
    options = {"float_steps": 1, "widths": {0: 16, 3: 4}, "freeze_ranges": 4, "freeze_weights": True}
    model = quantized()
    schedule = linger.Schedule(model, **options, freeze_batch_norms="plateau", patience=1)
    for x, y in batches(4):
        train(model, [(x, y)], schedule)
    torch.save({"model": model.state_dict(), "schedule": schedule.state_dict()}, tmp_path / "at4.pt")
    saved = torch.load(tmp_path / "at4.pt", weights_only=True)

    other = quantized()
    again = linger.Schedule(other, **options, freeze_batch_norms="plateau", patience=1)
    again.load_state_dict(saved["schedule"])
    other.load_state_dict(saved["model"])
    assert again.events == schedule.events
    for each, own in ((model, schedule), (other, again)):
        own.step(1.0)
        own.step(1.0)
        train(each, batches(2, seed=8), own)
    assert same(other.state_dict(), model.state_dict())
    assert again.state_dict() == schedule.state_dict()
    assert again.events == schedule.events
    assert model.conv.holds_batch_norm
    assert other.conv.holds_batch_norm


def test_a_checkpoint_of_the_model_alone_is_enough_for_evaluation():
    model, x = quantized(), batches(1)[0][0]
    train(model, batches(2), linger.Schedule(model, widths={0: "16/16/16", 1: "8/4/8"}))
    other = quantized()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(other.eval()(x).integers(), model.eval()(x).integers())
    assert str(other.head.widths) == "8/4/8"
    plain = quantized()  # a checkpoint without widths leaves those of the model
    train(plain, batches(1))
    model.load_state_dict(plain.state_dict())
    assert str(model.head.widths) == "8/4/8"


def test_an_average_of_models_has_the_widths_of_the_last():
    model = quantized()
    train(model, batches(1))
    schedule = linger.Schedule(model, widths={0: 16, 1: 4})
    average = torch.optim.swa_utils.AveragedModel(model)
    train(model, batches(1), schedule)
    average.update_parameters(model)
    assert str(average.eval().module.head.widths) == "8/4/8"
    linger.quant_module(model.head, parameter_bits=8)  # what is chosen by hand stays, in the checkpoint too
    assert str(model.eval().head.widths) == "8/8/8"
    assert model.state_dict()["head.bits"].tolist() == [8, 8, 8]


# what a user sees
def test_events_are_logged_and_shown(caplog):
    model = quantized()
    with caplog.at_level(logging.INFO, logger="linger.tuning.schedule"):
        schedule = linger.Schedule(model, float_steps=1, widths={2: {"head": 16}}, freeze_ranges=3)
        assert repr(schedule) == "Schedule(step 0: trains in real numbers; next: integers at step 1)"
        for _ in range(3):
            schedule.step()
    assert [record.message for record in caplog.records] == [
        "Schedule: step 1: integers",
        "Schedule: step 2: weights of 16 bits in head",
        "Schedule: step 3: ranges frozen",
    ]
    assert repr(schedule) == "Schedule(step 3: weights of 16 bits in head, ranges frozen)"
    assert schedule.steps == 3


def test_a_wrapper_may_be_given():
    model = quantized()
    linger.Schedule(nn.Sequential(model), float_steps=1)
    assert runtime_of(model).trains_real


# errors
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"float_steps": -1}, ["float_steps=-1 (a number of steps)"]),
        (
            {"freeze_ranges": "soon", "patience": 0},
            ["freeze_ranges='soon'", "patience=0 (a number of metrics, at least 1)"],
        ),
        ({"freeze_batch_norms": -3, "mode": "best"}, ["freeze_batch_norms=-3", "mode='best'"]),
        ({"freeze_weights": True}, ["without freeze_ranges"]),
        ({"widths": {5: 8, 2: 4}}, ["the steps 5, 2 are not in order"]),
        ({"widths": {-1: 8, "a": 4}}, ["-1 is no step", "'a' is no step"]),
        ({"widths": {0: 5, 1: "8/8", 2: "8/8/7", 3: None}}, ["widths[0]=5", "'8/8'", "out_bits=7", "widths[3]=None"]),
        ({"widths": [16, 8]}, ["a dictionary from steps to widths"]),
        ({"widths": {0: {"haed": 4}, 1: {"nothing": 8}}}, ["'haed' (is 'head' meant?)", "'nothing'"]),
        ({"widths": {0: {"pool": 4}}}, ["no layer has the path 'pool'"]),
    ],
    ids=["negative", "freeze", "mode", "weights", "order", "steps", "bits", "no-dictionary", "names", "no-layer"],
)
def test_wrong_options_are_told_all_at_once(options, told):
    model = quantized()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UsageError) as error:
        linger.Schedule(model, **options)
    assert all(part in str(error.value) for part in told), str(error.value)
    assert same(model.state_dict(), before)
    assert not runtime_of(model).trains_real


def test_a_layer_without_weights_and_sums_that_are_not_exact_are_refused():
    model = linger.init(nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.LayerNorm(4096)))
    with pytest.raises(UsageError) as error:
        linger.Schedule(model, widths={0: {"0": 4, "2": 8}, 3: "16/8/16"})
    for part in ("0 has no weights whose width", "2 has no weights whose width", "2 sums over 4096 numbers"):
        assert part in str(error.value)


def test_the_chip_decides_about_the_last_widths():
    def make():
        return linger.init(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2)), target="arcs")

    linger.Schedule(make(), widths={0: 16, 2: 8})
    with pytest.raises(UsageError) as error:
        linger.Schedule(make(), widths={0: 8, 2: 4, 3: {"2": "16/16/8"}})
    for part in (
        "arcs has no Conv2dInt with weights of 4 bits (0)",
        "arcs has no LinearInt with weights of 16 bits (2)",
    ):
        assert part in str(error.value)


def test_weights_may_end_with_any_width_of_the_chip(monkeypatch, tmp_path):
    wide = add_wide_chip(monkeypatch, tmp_path)
    model = linger.init(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2)), target=wide)
    linger.Schedule(model, widths={0: 4})
    assert [str(model[place].widths) for place in (0, 2)] == ["8/4/8", "8/4/8"]


@pytest.mark.parametrize("model", [nn.Linear(2, 2), "net"], ids=["float", "no-module"])
def test_a_model_that_is_not_quantized_is_refused(model):
    with pytest.raises(UsageError, match="is not quantized"):
        linger.Schedule(model)


def test_wrong_metrics_and_states_change_nothing():
    model = quantized()
    schedule = linger.Schedule(model, float_steps=2)
    with pytest.raises(UsageError, match="metric='high' is no number"):
        schedule.step("high")
    with pytest.raises(UsageError) as error:
        schedule.load_state_dict({"step": -1, "best": "x", "waited": 0, "width": 4})
    for part in ("'plateau_at' is missing", "'width' is unknown", "step=-1", "best='x'"):
        assert part in str(error.value)
    assert schedule.steps == 0


def test_the_state_of_another_schedule_is_refused():
    model = quantized()
    saved = linger.Schedule(model, float_steps=2, widths={0: 16, 3: 8}).state_dict()
    schedule = linger.Schedule(model, float_steps=2, widths={0: 16, 4: 8}, freeze_ranges=9)
    with pytest.raises(UsageError, match=r"freeze_ranges=None there, 9 here, widths=\{0: 16, 3: 8\} there"):
        schedule.load_state_dict({**saved, "step": 3})
    assert schedule.steps == 0


# several processes
def _in_a_group(metrics):
    rank = torch.distributed.get_rank()
    schedule = linger.Schedule(quantized(), freeze_ranges="plateau", patience=1)
    for metric in metrics[rank]:
        schedule.step(metric)
    events = [str(event) for event in schedule.events]
    # from the first step on, not only once the metrics count
    schedule = linger.Schedule(quantized(), float_steps=9, freeze_ranges="plateau")
    schedule.load_state_dict({**schedule.state_dict(), "step": rank, "best": None, "waited": 0, "plateau_at": None})
    with pytest.raises(UsageError) as error:
        schedule.step(1.0)
    learned = _wrapped()
    assert schedule.steps == rank
    if rank:
        return events, str(error.value), learned
    with pytest.raises(UsageError, match=r"one did not answer .* Call it equally often"):
        schedule.step(1.0)  # the other process has ended
    return events, str(error.value), learned


def test_processes_decide_alike_by_the_metric_of_all():
    # the means are 3, 2, 2.5: the third is no better. Alone, the first would find 3 and the second none
    found = run_processes(_in_a_group, 2, [[1.0, None, 2.0], [5.0, 2.0, 3.0]])
    told = "Schedule.step: the processes are at the steps 0, 1. Call it equally often in each."
    assert found == [(["step 3: ranges frozen"], told, found[0][2])] * 2
