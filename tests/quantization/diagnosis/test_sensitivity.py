"""sensitivity: the ranking, the search for wide layers, resuming, and a model that stays as it was."""

import copy
import json
import logging
import math
from collections import OrderedDict

import pytest
import torch
from torch import nn

import linger
from linger import init, sensitivity, trace_layers
from linger.errors import UsageError
from tests.support.models import SmallNet, settle
from tests.support.noisy_layers import db_by_hand, everything, net_with_outlier, quantized_copy, vectors
from tests.support.wired import Wired, image

X = vectors()


def names(result):
    """The layers; functions have a width of their result alone."""
    return [row.name for row in result.rows if "/" in row.widths]


def test_the_planted_outlier_ranks_first():
    found = sensitivity(net_with_outlier(), X)
    assert found.rows[0].name == "bad"
    assert found.rows[0].sqnr_db < 15 < 30 < found.rows[1].sqnr_db
    assert found.rows[0].noise_share > 0.95
    assert set(names(found)) == {"first", "bad", "after", "last"}


class Planted(nn.Module):
    """One culprit: weights, an activation or a recurrent layer, made noisy by a number that does nothing in float."""

    def __init__(self, culprit):
        super().__init__()
        torch.manual_seed(0)
        self.culprit = culprit
        self.first, self.second, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.rnn = nn.GRU(12, 12, batch_first=True)
        with torch.no_grad():
            self.last.weight[:, 0] = 0.0
            if culprit == "weights":
                self.first.weight[0], self.first.bias[0], self.second.weight[3, 0] = 0.0, -1.0, 60.0
            if culprit == "activations":
                self.second.bias[0] = 60.0
            if culprit == "recurrent":
                self.first.weight[0], self.first.bias[0], self.rnn.weight_ih_l0[3, 0] = 0.0, -1.0, 90.0

    def forward(self, x):
        h = torch.relu(self.first(x))
        y = self.second(h)
        if self.culprit == "recurrent":
            y = self.rnn(torch.relu(h).unsqueeze(1))[0].squeeze(1)
        return self.last(y)


@pytest.mark.parametrize(
    ("culprit", "op", "what"),
    [
        ("weights", "LinearInt", "weights"),
        ("activations", "LinearInt", "activations"),
        ("recurrent", "GRUInt", "weights"),
    ],
)
def test_the_planted_culprit_ranks_first(culprit, op, what):
    found = sensitivity(Planted(culprit).eval(), X)
    assert (found.rows[0].op, found.rows[0].what) == (op, what)
    assert found.rows[0].name == ("rnn" if culprit == "recurrent" else "second")
    assert found.rows[0].noise_share > 0.8
    others = [row.sqnr_db for row in found.rows[1:]]
    assert found.rows[0].sqnr_db < min(others) - 6
    assert found.predicted_db == pytest.approx(found.quantised_db, abs=1.5)  # one tensor makes nearly all of the noise


@pytest.mark.parametrize(
    ("excess", "times", "what"), [(0.0022, 3, "activations"), (0.0025, 2, "both")], ids=["3.5 times", "2.7 times"]
)
def test_a_part_is_blamed_alone_from_three_times_the_noise_of_the_other(excess, times, what):
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(0.75 + excess)  # the excess is what rounding takes from the weight
    x = torch.randint(-127, 128, (256, 1), generator=torch.Generator().manual_seed(0)) / 128.0  # exact in 8 bits
    row = sensitivity(layer.eval(), x).rows[0]
    assert (int(10 ** ((row.weights_db - row.activations_db) / 10)), row.what) == (times, what)


class Sums(nn.Module):
    """Exact layers, and a sum whose range one number stretches that nothing reads later."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.last = (nn.Linear(4, 4, bias=False) for _ in range(3))
        with torch.no_grad():
            for layer in (self.a, self.b):
                layer.weight.copy_(torch.eye(4))
            self.last.weight.copy_(torch.diag(torch.tensor([0.0, 1.0, 1.0, 1.0])))

    def forward(self, x):
        return self.last(self.a(x[:, :4]) + self.b(x[:, 4:]))


def test_a_sum_that_rounds_coarsely_ranks_first():
    x = torch.randint(-60, 61, (64, 8), generator=torch.Generator().manual_seed(1)) / 64.0  # on the grid of the inputs
    x[:, 0], x[:, 4] = 0.9, 0.9
    x[:, 1:4], x[:, 5:8] = x[:, 1:4] / 4, x[:, 5:8] / 4
    found = sensitivity(Sums(), x)
    assert (found.rows[0].op, found.rows[0].what, found.rows[0].widths) == ("iqAdd", "activations", "8")
    assert found.rows[0].name == "iqAdd"


def test_a_cell_is_a_layer():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.cell, self.fc = nn.LSTMCell(6, 5), nn.Linear(5, 2)

        def forward(self, x):
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            return self.fc(state[0])

    found = sensitivity(Steps().eval(), vectors(8, size=24).reshape(8, 4, 6))
    rows = {row.name: row for row in found.rows}
    assert rows["cell"].op == "LSTMInt"
    assert rows["cell"].weights_db is not None
    assert rows["cell"].macs > 0
    assert 20 < rows["cell"].sqnr_db < 60


def test_noises_add_up_to_about_what_is_measured():
    torch.manual_seed(0)
    found = sensitivity(settle(SmallNet()).eval(), torch.randn(8, 1, 8, 8))
    # all tensors round by themselves: the sum is right up to correlations, which a few images leave
    assert found.predicted_db == pytest.approx(found.quantised_db, abs=4)


def test_rows_go_from_most_to_least_damaging_and_shares_add_up():
    found = sensitivity(settle(SmallNet()), torch.randn(6, 1, 8, 8))
    values = [row.sqnr_db for row in found.rows]
    assert values == sorted(values)
    noises = [10 ** (-row.sqnr_db / 10) for row in found.rows]
    for row, noise in zip(found.rows, noises, strict=True):
        assert row.noise_share == pytest.approx(noise / sum(noises), rel=1e-9)  # logarithm and back, in float64


def test_the_quantized_model_is_measured_too():
    model = net_with_outlier()
    with torch.no_grad():
        expected = db_by_hand(model(X), quantized_copy(model, X)(X))
    found = sensitivity(model, X)
    assert found.quantised_db == pytest.approx(expected, abs=1e-9)
    assert (found.target_db, found.wide_layers, found.reached_db, found.lines) == (None, (), None, ())


def test_layers_are_those_that_init_quantizes():
    model = settle(SmallNet()).eval()
    linger.disable_quant(model.block)
    x = torch.randn(4, 1, 8, 8)
    trace_layers(model, x)
    found = sensitivity(model, x)
    assert set(names(found)) == {"stem", "relu6", "avg", "gap", "fc"}
    assert {row.name: row.op for row in found.rows}["relu6"] == "Clip"


def test_one_warning_for_a_layer_that_stays_float(caplog):
    normed = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3, padding=1))
    model = nn.Sequential(normed, nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1))
    with caplog.at_level(logging.WARNING):
        found = sensitivity(model, image())
    assert set(names(found)) == {"1", "2"}
    assert len(caplog.records) == 1


def test_a_perfect_layer_costs_nothing():
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
    found = sensitivity(model, torch.tensor([[1.0, -0.5]]), target_db=300)
    assert (found.rows[0].sqnr_db, found.rows[0].noise_share, found.quantised_db) == (math.inf, 0.0, math.inf)
    assert (found.reached_db, found.wide_layers, found.lines) == (math.inf, (), ())


# -- the target ---------------------------------------------------------------------------------------


def remeasured(model, lines, x):
    """What the lines, pasted before init, really give."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        reference = model(x)
        for line in lines:
            exec(line, {"linger": linger, "model": model})
        return db_by_hand(reference, quantized_copy(model, x)(x))


def test_the_smallest_set_by_largest_noise_is_measured_and_the_lines_make_it():
    model = net_with_outlier()
    found = sensitivity(model, X, target_db=30)
    assert found.wide_layers == ("bad",)
    assert found.is_reached
    assert found.reached_db >= 30 > found.quantised_db
    assert found.lines == (
        'linger.quant_module(model.get_submodule("bad"), data_bits=16, parameter_bits=16, out_bits=16)',
    )
    assert remeasured(model, found.lines, X) == pytest.approx(found.reached_db, abs=1e-9)


@pytest.mark.parametrize(("bits", "target"), [(4, 8), (4, 12), (8, 32), (8, 36)])
def test_lines_of_a_fused_network_give_what_was_measured(bits, target):
    model, x = settle(SmallNet()).eval(), torch.randn(6, 1, 8, 8)
    trace_layers(model, x)
    linger.quant_module(model.block.conv1, parameter_bits=4)
    found = sensitivity(model, x, bits=bits, target_db=target)
    assert 0 < len(found.wide_layers) < len(found.rows)
    assert found.wide_layers == tuple(names(found)[: len(found.wide_layers)])
    assert found.is_reached == (found.reached_db >= target)
    assert remeasured(model, found.lines, x) == pytest.approx(found.reached_db, abs=1e-9)


class Choir(nn.Module):
    """Four equal layers make four equal errors: together sixteen times the noise of one, and not four times."""

    def __init__(self):
        super().__init__()
        self.voices = nn.ModuleList(nn.Linear(12, 4) for _ in range(4))
        for voice in self.voices:
            voice.load_state_dict(self.voices[0].state_dict())

    def forward(self, x):
        return torch.stack([voice(x) for voice in self.voices]).sum(0)


def test_layers_are_added_until_the_target_is_measured(tmp_path):
    model, path = Choir(), tmp_path / "run.json"
    alone = sensitivity(model, X)
    # half way to what wide layers can give: the voices are equal, so their noises add up as amplitudes do
    target = (alone.quantised_db + sensitivity(model, X, target_db=99).reached_db) / 2
    found = sensitivity(model, X, target_db=target, save_path=path)
    tried = [trial["wide"] for trial in json.loads(path.read_text())["together"]]
    count = len(found.wide_layers)
    assert tried[0] == []
    assert tried[1:] == [names(alone)[:n] for n in range(len(tried[1]), count + 1)]
    assert found.wide_layers == tuple(names(alone)[:count])
    assert remeasured(model, found.lines[: count - 1], X) < target <= remeasured(model, found.lines, X)


def test_lines_also_say_what_stays_narrow_where_init_would_not_guess_it():
    model = Choir()
    target = sensitivity(model, X, bits=4).quantised_db + 0.1
    found = sensitivity(model, X, bits=4, target_db=target)
    count = len(found.wide_layers)
    assert 0 < count < 4
    assert [line.partition(", ")[2][:-1] for line in found.lines] == [
        *["data_bits=16, parameter_bits=16, out_bits=16"] * count,
        *["data_bits=4, parameter_bits=4, out_bits=4"] * (4 - count),
    ]
    assert remeasured(model, found.lines, X) == pytest.approx(found.reached_db, abs=1e-9)


def test_lines_name_layers_as_the_model_does():
    model = nn.Sequential(OrderedDict([("Schlüssel", net_with_outlier())]))
    found = sensitivity(model, X, target_db=30)
    assert [line.partition(", ")[0] for line in found.lines] == [
        'linger.quant_module(model.get_submodule("Schlüssel.bad")'
    ]
    assert remeasured(model, found.lines, X) == pytest.approx(found.reached_db, abs=1e-9)


def test_a_target_that_is_met_already_needs_nothing():
    found = sensitivity(net_with_outlier(), X, target_db=-5)
    assert (found.wide_layers, found.lines) == ((), ())
    assert found.reached_db == found.quantised_db


def test_a_target_out_of_reach_is_said_with_the_best():
    model = net_with_outlier()
    found = sensitivity(model, X, target_db=150)
    assert not found.is_reached
    assert len(found.wide_layers) == 4
    assert found.quantised_db < found.reached_db < 150
    assert "cannot be reached" in str(found)
    assert remeasured(model, found.lines, X) == pytest.approx(found.reached_db, abs=1e-9)


def test_a_target_far_out_of_reach_is_tried_once_with_every_layer_wide(tmp_path):
    path = tmp_path / "run.json"
    found = sensitivity(net_with_outlier(), X, target_db=300, save_path=path)
    tried = [trial["wide"] for trial in json.loads(path.read_text())["together"]]
    assert tried == [[], names(found)]


def test_sixteen_bits_cannot_be_widened():
    found = sensitivity(net_with_outlier(), X, bits=16, target_db=150)
    assert not found.is_reached
    assert found.wide_layers == ()
    assert found.reached_db == found.quantised_db


# -- resuming ---------------------------------------------------------------------------------------------


class Counted:
    """Counts the passes of a model and of its copies; can stop one of them."""

    def __init__(self, stop_at=None, error=KeyboardInterrupt):
        self.passes, self.stop_at, self.error = 0, stop_at, error

    def __call__(self, m, x):
        self.passes += 1
        if self.passes == self.stop_at:
            raise self.error
        return m.fc(torch.relu(m.conv2(torch.relu(m.conv(x)))).mean((2, 3)))

    def __deepcopy__(self, memo):
        return self


def three_layers(count):
    torch.manual_seed(5)
    model = Wired(count)
    model.bn = model.bn2 = nn.Identity()
    return model


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "run.json"
    whole = sensitivity(three_layers(Counted()), image(), target_db=60)
    # two float passes and two of all layers, then six for each layer: the twelfth is in the middle of the second one
    first = Counted(stop_at=12)
    with pytest.raises(KeyboardInterrupt):
        sensitivity(three_layers(first), image(), target_db=60, save_path=path)
    assert list(json.loads(path.read_text())["alone"]) == ["conv"]
    second = Counted()
    result = sensitivity(three_layers(second), image(), save_path=path)
    assert second.passes == 2 + 2 * 6 + 1 + 1  # the float model, two layers, the calibrated model for one function
    assert result.rows == whole.rows
    third = Counted()
    assert sensitivity(three_layers(third), image(), save_path=path) == result
    assert third.passes == 0
    fourth = Counted()
    assert sensitivity(three_layers(fourth), image(), target_db=60, save_path=path) == whole
    assert 0 < fourth.passes <= 2 + 2 * 3  # the sets of wide layers alone
    assert sensitivity(three_layers(third), image(), target_db=60, save_path=path) == whole
    assert third.passes == 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "other",
    [
        lambda path: sensitivity(three_layers(Counted()), image(seed=2), save_path=path),
        lambda path: sensitivity(three_layers(Counted()), image(), bits=4, save_path=path),
        lambda path: sensitivity(Wired(Counted()), image(), save_path=path),
    ],
    ids=["inputs", "bits", "weights"],
)
def test_a_file_of_another_run_is_refused_and_untouched(tmp_path, other):
    path = tmp_path / "run.json"
    sensitivity(three_layers(Counted()), image(), save_path=path)
    before = path.read_bytes()
    torch.manual_seed(6)
    with pytest.raises(UsageError, match="belongs to another model"):
        other(path)
    assert path.read_bytes() == before


def test_a_damaged_file_is_refused_before_any_work(tmp_path):
    (tmp_path / "run.json").write_text("{")
    count = Counted()
    with pytest.raises(UsageError, match="damaged"):
        sensitivity(three_layers(count), image(), save_path=tmp_path / "run.json")
    assert count.passes == 0


# -- what stays as it was -------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_at", [None, 1, 3, 5, 9])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_model_stays_as_it_was(stop_at, error):
    model = settle(Wired(Counted(stop_at, error))).train()
    model.bn.eval()
    linger.quant_module(model.conv, parameter_bits=4)
    linger.disable_quant(model.bn2)
    model.fc.register_forward_hook(lambda *_: None)
    x = image()
    before, given = everything(model), x.clone()
    if stop_at is None:
        sensitivity(model, [x, x], target_db=40)
    else:
        with pytest.raises((KeyboardInterrupt, UsageError)):
            sensitivity(model, [x, x], target_db=40)
    assert everything(model) == before
    assert torch.equal(x, given)


def test_a_training_batch_norm_is_measured_in_evaluation():
    model = settle(Wired(lambda m, x: m.bn(m.conv(x))))
    assert sensitivity(model.train(), image()) == sensitivity(model.eval(), image())


def test_inputs_may_shuffle_themselves_and_come_once():
    model = net_with_outlier()
    data = torch.utils.data.DataLoader(vectors(8), batch_size=4, shuffle=True)
    before = torch.get_rng_state()
    found = sensitivity(model, data)
    assert torch.equal(torch.get_rng_state(), before)
    assert found == sensitivity(model, data)
    assert found == sensitivity(model, iter(list(data)))


# -- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((net_with_outlier(), []), {}, "the inputs are empty"),
        ((net_with_outlier(), None), {}, "NoneType is no batch"),
        ((net_with_outlier(), X), {"bits": 7}, "data_bits=7, parameter_bits=7, out_bits=7: no such width"),
        ((net_with_outlier(), X), {"bits": 32}, "no such width"),
        ((net_with_outlier(), X), {"target_db": math.nan}, "target_db=nan is no number of decibels"),
        ((net_with_outlier(), X), {"target_db": "high"}, "target_db='high' is no number"),
        ((init(net_with_outlier()), X), {}, "quantized already"),
        ((linger.disable_quant(net_with_outlier()), X), {}, "would quantize no layer of Sequential"),
        ((torch.relu, X), {}, "a torch module is expected"),
        ((net_with_outlier(), torch.full((2, 12), math.nan)), {}, "first.Quant: the tensor holds NaN"),
    ],
    ids=["empty", "nothing", "bits", "32", "nan", "text", "quantized", "nothing to do", "function", "NaN"],
)
def test_a_wrong_call_is_refused(tmp_path, arguments, options, match):
    path = tmp_path / "run.json"
    with pytest.raises(UsageError, match=match):
        sensitivity(*arguments, save_path=path, **options)
    assert not path.exists() or "NaN" in match


@pytest.mark.filterwarnings("ignore:calibration. no quantized model ran")
def test_inside_a_calibration_it_is_refused():
    with linger.calibration(), pytest.raises(UsageError, match=r"outside `with linger\.calibration"):
        sensitivity(net_with_outlier(), X)
