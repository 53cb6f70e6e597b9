# SPDX-License-Identifier: Apache-2.0
"""find_bits: planted culprits are found, and no more is widened than needed; bad goals leave the model as it was."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from linger import BitWidths, find_bits
from linger.tuning.mixed_precision.find_bits import _WideModel
from linger.tuning.mixed_precision.units import BitModel, Originals, layers_of
from tests.support.chip import add_wide_chip
from tests.support.noisy_layers import net_with_outlier, quantized_copy, vectors
from tests.support.tuning import OutputError, error_db, units_of, watch_flow

X = vectors(48)


def pair(model: nn.Module, *batches: Tensor) -> tuple[nn.Module, nn.Module]:
    return quantized_copy(model.eval(), *batches), model


def changed(result: BitWidths) -> list[tuple[str, str, int]]:
    return [(row.name, row.what, row.after) for row in result.changed]


def state_of(model: nn.Module) -> tuple[object, ...]:
    values = {key: (value.dtype, value.numpy().tobytes()) for key, value in model.state_dict().items()}
    return values, {path: layer.widths for path, layer in layers_of(model).items()}, model.training


# what is found
def test_only_the_weights_of_the_bad_layer_are_widened() -> None:
    model, reference = pair(net_with_outlier(), X)
    found = find_bits(model, reference, X, goal=30, bits=(8, 16))
    assert changed(found) == [("bad", "weights", 16)]
    assert (found.rows[0].name, found.rows[0].what) == ("bad", "weights")
    assert found.is_reached
    assert found.after_db >= 30 > found.before_db
    assert (found.before, found.after) == (found.before_db, found.after_db)
    assert str(layers_of(model)["bad"].widths) == "8/16/8"
    assert found.cost_after.weight_bytes - found.cost_before.weight_bytes == 16 * 16
    assert (found.cost_before.wide_macs, found.cost_after.wide_macs) == (0, 48 * 16 * 16)
    assert found.lines == (
        'linger.quant_module(model.get_submodule("bad"), data_bits=8, parameter_bits=16, out_bits=8)',
    )


def test_the_lines_give_what_was_measured() -> None:
    model, reference = pair(net_with_outlier(), X)
    found = find_bits(model, reference, X, goal=34)
    again = copy.deepcopy(reference)
    for line in found.lines:
        exec(line, {"linger": linger, "model": again})
    assert error_db(OutputError(reference, [(X,)])(quantized_copy(again, X))) == pytest.approx(found.after_db, abs=0.5)


def test_noises_add_up_to_about_what_is_measured() -> None:
    torch.manual_seed(1)
    layers = [part for _ in range(4) for part in (nn.Linear(12, 12), nn.Tanh())]
    model, reference = pair(nn.Sequential(*layers, nn.Linear(12, 4)), X)
    found = find_bits(model, reference, X, goal=1, bits=(8, 16))
    # independent roundings: noises add up, but for their correlations on 48 vectors
    assert found.predicted_db == pytest.approx(found.before_db, abs=3)


def test_a_row_has_the_noise_of_its_tensor_alone() -> None:
    model, reference = pair(net_with_outlier(), X)
    found = find_bits(model, reference, X, goal=30, bits=(8, 16))
    worst = found.rows[0]
    # all tensors together have this noise, of which the worst makes its share
    assert worst.alone_db == pytest.approx(found.predicted_db - 10 * math.log10(worst.noise_share), abs=1e-9)
    assert worst.alone_db < 30
    assert all(row.alone_db is None or row.alone_db >= worst.alone_db for row in found.rows)


class Residual(nn.Module):
    """Sums of sums: noises of groups must be those of their members."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if layer is self.layers[0] else x + layer(x)
        return x


@pytest.mark.parametrize("is_corrected", [False, True], ids=["calibrated", "corrected"])
def test_the_noise_of_all_tensors_together_is_that_of_the_model(is_corrected: bool) -> None:
    model, reference = pair(net_with_outlier() if is_corrected else Residual(), X)
    if is_corrected:
        linger.correct_biases(model, reference, X)
    flow = watch_flow(model, (X,))
    units = units_of(model, flow)
    error = OutputError(reference, [(X,)])
    wide = _WideModel(model, [(X,)], Originals(model, reference), units)
    everything = wide.error_with(units, error)
    # all of them as narrow as they are: that is the model itself, but for biases, which a layer that reads 16 bits rounds at
    # a finer step: a few per cent of the noise where weights are coarse (0.2 dB is 5 %); a bias that is left uncorrected is 2 dB
    assert error_db(everything) == pytest.approx(error_db(error(model)), abs=0.2)
    assert error_db(wide.error_with((), error)) > error_db(everything) + 30


def small_net() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))


@pytest.mark.parametrize("goal", [38.0, 41.0, 44.0])
def test_no_smaller_set_reaches_the_goal(goal: float) -> None:
    model, reference = pair(small_net(), X)
    error = OutputError(reference, [(X,)])
    original = copy.deepcopy(model)
    found = find_bits(model, reference, X, goal=goal, bits=(8, 16))
    flow = watch_flow(original, (X,))
    units = units_of(original, flow)
    originals = Originals(original, reference)
    bits = BitModel(original, units, flow, _WideModel(original, [(X,)], originals, units).reach, originals)

    def reaches(chosen: tuple[object, ...]) -> bool:
        bits.apply(dict.fromkeys(chosen, 16))  # type: ignore[arg-type]
        return error_db(error(original)) >= goal

    smallest = next(n for n in range(len(units) + 1) if any(map(reaches, itertools.combinations(units, n))))
    assert found.is_reached
    assert len(found.changed) <= smallest + 1  # greedy: one more at the most, on this net
    assert len(found.changed) == smallest or goal != 38.0


class Pool(nn.Module):
    """A wide range between two layers whose weights are exact: only the activation between them is noisy."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12, bias=False), nn.Linear(12, 4, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(12))
            self.first.weight[0, 0] = 64.0  # stretches the range of the output; the second layer ignores this number
            self.second.weight.copy_(torch.eye(12)[1:5])

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def test_an_activation_is_widened_where_it_is_made_and_where_it_is_read() -> None:
    model, reference = pair(Pool(), X)
    found = find_bits(model, reference, X, goal=25, bits=(8, 16))
    assert changed(found) == [("first", "activations", 16)]
    assert {path: str(layer.widths) for path, layer in layers_of(model).items()} == {
        "first": "8/8/16",
        "second": "16/8/8",
    }
    assert found.is_reached
    assert found.cost_after.activation_bytes - found.cost_before.activation_bytes == 48 * 12


class Sums(nn.Module):
    """Exact layers, and a sum whose range one number stretches that nothing reads later."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = (nn.Linear(4, 4, bias=False) for _ in range(3))
        with torch.no_grad():
            self.a.weight.copy_(torch.eye(4))
            self.b.weight.copy_(torch.eye(4))
            self.last.weight.copy_(torch.diag(torch.tensor([0.0, 1.0, 1.0, 1.0])))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.a(x[:, :4]) + self.b(x[:, 4:]))


def far_sums() -> Tensor:
    x = torch.randint(-60, 61, (64, 8), generator=torch.Generator().manual_seed(1)) / 256.0
    x[:, 0], x[:, 4] = 0.9, 0.9
    return x


def test_a_sum_is_widened_with_what_reads_it(tmp_path: Path) -> None:
    x = far_sums()
    model, reference = pair(Sums(), x)
    found = find_bits(model, reference, x, goal=26, bits=(8, 16))
    assert changed(found) == [("iqAdd", "activations", 16)]
    assert found.is_reached
    assert {path: str(layer.widths) for path, layer in layers_of(model).items()} == {
        "a": "8/8/8",
        "b": "8/8/8",
        "last": "16/8/8",
    }
    assert found.lines[1:] == ('linger.quant_function(model, "iqAdd", out_bits=16)',)
    again = copy.deepcopy(reference)
    for line in found.lines:
        exec(line, {"linger": linger, "model": again})
    assert torch.equal(quantized_copy(again, x)(x).integers(), model(x).integers())
    linger.onnx.export(model, (x[:3],), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (x[:3],)).ok


def test_lines_leave_the_functions_of_inner_modules_narrow() -> None:
    class Outer(Sums):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Sums()

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.inner(x / 64)

    x = far_sums()
    model, reference = pair(Outer(), x)
    found = find_bits(model, reference, x, goal=24, bits=(8, 16))
    assert ("iqAdd", "activations", 16) in changed(found)
    assert 'linger.quant_function(model.get_submodule("inner"), "iqAdd", out_bits=None)' in found.lines


class Hearing(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.rnn, self.fc = kind(6, 8, batch_first=True), nn.Linear(8, 3)
        with torch.no_grad():
            self.rnn.weight_ih_l0[3, 5] = 100.0  # the input there is zero: nothing changes in float

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(out[:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_is_ranked_and_widened(kind: type[nn.LSTM | nn.GRU]) -> None:
    x = vectors(12, size=30).reshape(12, 5, 6)
    x[..., 5] = 0.0
    model, reference = pair(Hearing(kind), x)
    found = find_bits(model, reference, x, goal=22, bits=(8, 16))
    assert (found.rows[0].name, found.rows[0].what) == ("rnn", "weights")
    assert ("rnn", "weights", 16) in changed(found)
    assert found.is_reached


def test_where_the_goal_is_met_weights_get_four_bits() -> None:
    model, reference = pair(net_with_outlier(), X)
    found = find_bits(model, reference, X, goal=2)
    narrow = [row for row in found.changed if row.after == 4]
    assert narrow
    assert found.is_reached
    assert found.after_db >= 2
    assert all(row.what == "weights" for row in narrow)
    assert found.cost_after.weight_bytes < found.cost_before.weight_bytes
    untouched = find_bits(*pair(net_with_outlier(), X), X, goal=2, bits=(8, 16))
    assert untouched.changed == ()


def test_a_corrected_bias_is_taken_back_where_weights_are_widened() -> None:
    remedy = linger.correct_biases
    model, reference = pair(net_with_outlier(), X)
    remedy(model, reference, X)
    bad = layers_of(model)["bad"]
    assert not all(torch.equal(bad.get_parameter(n), p) for n, p in reference.bad.named_parameters())
    found = find_bits(model, reference, X, goal=100)
    assert ("bad", "weights", 16) in changed(found)
    assert found.after_db > found.before_db
    assert all(torch.equal(bad.get_parameter(n), p) for n, p in reference.bad.named_parameters())
    failing = pair(net_with_outlier(), X)[0]
    remedy(failing, reference, X)
    before = state_of(failing)
    with pytest.raises(KeyboardInterrupt):
        find_bits(failing, reference, X, goal=Once(), at_least=1)
    assert state_of(failing) == before


class TwoBad(nn.Module):
    """Two branches with a bad layer each, of which a user may look at the second output alone."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.soft = net_with_outlier(), net_with_outlier()
        with torch.no_grad():
            self.loud.last.weight *= 8  # its noise is the larger one at the output

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.loud(x), self.soft(x)


def test_the_second_tensor_that_greed_takes_is_taken_back() -> None:
    model, reference = pair(TwoBad(), X)
    with torch.no_grad():
        expected = reference(X)[1]

    def closeness(made: nn.Module) -> float:
        with torch.no_grad():
            return -float((made(X)[1].dequantize() - expected).abs().mean())

    start = closeness(model)
    found = find_bits(model, reference, X, goal=closeness, at_least=start / 4, bits=(8, 16))
    assert [row.tensor for row in found.rows[:2]] == ["weights of loud.bad", "weights of soft.bad"]  # in this order
    assert changed(found) == [("soft.bad", "weights", 16)]
    (row,) = found.changed
    assert row.gain == found.after - found.before
    assert row.added_bytes == 16 * 16


def test_every_wide_tensor_has_its_gain_and_its_cost(tmp_path: Path) -> None:
    model, reference = pair(small_net(), X[:1], X)
    found = find_bits(model, reference, [X[:1], X[1:]], goal=44, bits=(8, 16))
    after = [row for row in found.rows if row.after == 16]
    assert len(after) > 1
    assert all(row.gain is not None and row.gain > 0 for row in after)  # else the goal would be reached without it
    assert all(found.after - row.gain < 44 for row in after if row.gain is not None)
    assert all(row.gain is row.added_bytes is None for row in found.rows if row.after == 8)
    linger.onnx.export(model, (X[:1],), tmp_path / "net.onnx")
    use = linger.memory(tmp_path / "net.onnx")
    integers = [sum(t.bytes or 0 for t in use.alive_at(i) if not t.is_float) for i in range(len(use.layers))]
    assert found.cost_after.peak_bytes == max(integers)
    weights = sum(row.added_bytes or 0 for row in after if row.what == "weights")
    assert weights == found.cost_after.weight_bytes - found.cost_before.weight_bytes
    assert "bytes added" in str(found)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_input_of_a_recurrent_layer_is_widened_where_it_is_to_blame(kind: type[nn.LSTM | nn.GRU]) -> None:
    x = vectors(12, size=30).reshape(12, 5, 6)
    x[..., 5] = 200.0  # stretches the range, and no weight reads it
    torch.manual_seed(2)
    hearing = Hearing(kind)
    with torch.no_grad():
        hearing.rnn.weight_ih_l0[:, 5] = 0.0
    model, reference = pair(hearing, x)
    found = find_bits(model, reference, x, goal=25, bits=(8, 16))
    assert [row.tensor for row in found.changed] == ["input of rnn"]
    assert found.is_reached
    assert str(layers_of(model)["rnn"].widths) == "16/8/8"  # weights keep their 8 bits
    (row,) = found.changed
    assert row.gain == pytest.approx(found.after_db - found.before_db)  # one output: the goal's decibels are the same


class Halves(nn.Module):
    """A GRU whose state after one step is half of tanh(x), in steps of 1/256, beside one large number that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 3, bias=False)
        with torch.no_grad():
            for parameter in self.rnn.parameters():
                parameter.zero_()
            self.rnn.weight_ih_l0[16:22] = torch.eye(6)
            self.fc.weight.copy_(torch.eye(8)[1:4])

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


def test_the_state_of_a_recurrent_layer_is_widened_where_it_is_to_blame() -> None:
    odd = 2 * torch.randint(-4, 4, (32, 1, 6), generator=torch.Generator().manual_seed(1)) + 1
    x = torch.atanh(odd / 128.0)
    x[..., 0] = 3.0
    reference = Halves()
    linger.quant_module(reference.rnn, data_bits=16)  # so that tanh(x) is exact in the gates
    model, reference = pair(reference, x)
    found = find_bits(model, reference, x, goal=20, bits=(8, 16))
    assert [row.tensor for row in found.changed] == ["output of rnn"]
    assert (found.before_db < 20, found.is_reached) == (True, True)
    assert str(layers_of(model)["rnn"].widths) == "16/8/16"
    assert found.cost_before.wide_macs == 32 * 6 * 24  # the products of the input, which 16 bits were given by hand
    assert found.cost_after.wide_macs == 32 * (6 * 24 + 8 * 24 + 8 * 3)  # those of the state, and of what reads it


# other goals
def classifier() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(5)
    return pair(net_with_outlier(), X)


def test_a_share_of_equal_decisions() -> None:
    model, reference = classifier()
    found = find_bits(model, reference, X, goal="95 %", bits=(8, 16))
    with torch.no_grad():
        same = (model(X).dequantize().argmax(1) == reference(X).argmax(1)).float().mean()
    assert found.after == pytest.approx(100 * float(same))
    assert found.before < 95 <= found.after
    assert changed(found) == [("bad", "weights", 16)]


def test_a_metric_of_the_user() -> None:
    model, reference = classifier()
    calls = []

    def closeness(made: nn.Module) -> float:
        calls.append(made.training)
        with torch.no_grad():
            return -float((made(X).dequantize() - reference(X)).abs().mean())

    start = closeness(model)
    found = find_bits(model.train(), reference, X, goal=closeness, at_least=start / 4, bits=(8, 16))
    assert found.is_reached
    assert found.before == start
    assert changed(found) == [("bad", "weights", 16)]
    assert calls.count(True) == 0
    assert model.training


def test_a_goal_out_of_reach_gives_the_best_there_is() -> None:
    model, reference = classifier()
    found = find_bits(model, reference, X, goal=150)
    assert not found.is_reached
    assert found.after_db > 45
    assert "cannot be reached" in found.summary()
    assert all(row.after in (8, 16) for row in found.rows)


def test_the_number_of_wide_layers_is_bounded() -> None:
    model, reference = classifier()
    found = find_bits(model, reference, X, goal=60, max_wide_layers=1, widen=("weights",))
    assert changed(found) == [("bad", "weights", 16)]
    assert not found.is_reached
    model, reference = classifier()
    assert find_bits(model, reference, X, goal=30, max_wide_layers=0, widen=["weights"]).changed == ()


def test_trials_are_bounded() -> None:
    model, reference = classifier()
    found = find_bits(model, reference, X, goal=60, max_trials=25)
    assert found.trials <= 26  # the last one may be the one that is kept


def test_a_chip_keeps_to_its_widths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = classifier()
    found = find_bits(model, reference, X, goal=30, target="venus")
    assert all(row.what == "activations" for row in found.changed)  # venus has 8-bit weights alone
    linger.onnx.export(model, (X[:1],), tmp_path / "net.onnx")
    assert linger.check(tmp_path / "net.onnx", target="venus").ok
    model, reference = classifier()
    wide = add_wide_chip(monkeypatch, tmp_path)
    assert changed(find_bits(model, reference, X, goal=30, target=wide, bits=(8, 16))) == [("bad", "weights", 16)]


def test_a_chip_of_convolutions_of_eight_bits_refuses_wide_ones() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    x = torch.randn(4, 2, 8, 8)
    model, reference = pair(net, x)
    found = find_bits(model, reference, x, goal=60, target="venus")
    assert (found.changed, found.is_reached) == ((), False)


# the proof, and the same twice
def test_a_mixed_model_is_exported_and_proven(tmp_path: Path) -> None:
    model, reference = pair(net_with_outlier(), X)
    find_bits(model, reference, X, goal=38)
    assert len({str(layer.widths) for layer in layers_of(model).values()}) > 1
    linger.onnx.export(model, (X[:3],), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (X[:3],)).ok


def test_scales_of_channels_and_unsigned_bytes_are_widened_and_proven(tmp_path: Path) -> None:
    reference = net_with_outlier()
    model = linger.init(copy.deepcopy(reference), target="c").eval()
    with linger.calibration():
        model(X)
    found = find_bits(model, reference, X, goal=45, bits=(8, 16))
    assert found.is_reached
    assert {row.what for row in found.changed} == {"weights", "activations"}
    linger.onnx.export(model, (X[:3],), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (X[:3],)).ok


def test_the_same_twice() -> None:
    first, second = (find_bits(*pair(net_with_outlier(), X), X, goal=37) for _ in range(2))
    assert first == second


# bad input
def fails(model: nn.Module) -> float:
    raise RuntimeError("no disk")


def is_nan(model: nn.Module) -> float:
    return math.nan


class Once:
    """A metric that fails after some calls, in the middle of the search."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module) -> float:
        self.calls += 1
        if self.calls > 3:
            raise KeyboardInterrupt
        return 0.0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"goal": "abc"}, r"goal='abc' is no goal\. Give decibels"),
        ({"goal": None}, "goal=None is no goal"),
        ({"goal": True}, "goal=True is no goal"),
        ({"goal": math.nan}, "goal=nan is no goal"),
        ({"goal": "120 %"}, "no share of decisions"),
        ({"goal": fails}, "at_least=None"),
        ({"goal": fails, "at_least": 1}, r"fails\(model\) failed with RuntimeError: no disk"),
        ({"goal": is_nan, "at_least": 1}, r"is_nan\(model\) returned nan"),
        ({"goal": 30, "at_least": 1}, "at_least=1 belongs to a metric"),
        ({"goal": 30, "bits": (8, 12)}, r"bits=\(8, 12\)"),
        ({"goal": 30, "widen": "weights"}, "widen='weights'"),
        ({"goal": 30, "max_trials": 0}, "max_trials=0"),
        ({"goal": 30, "max_wide_layers": -1}, "max_wide_layers=-1"),
        ({"goal": 30, "target": "pluto"}, "pluto"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_bad_goals_and_options_leave_the_model_as_it_was(options: dict[str, object], match: str) -> None:
    model, reference = classifier()
    before = state_of(model)
    with pytest.raises(linger.UsageError, match=match):
        find_bits(model, reference, X, **options)  # type: ignore[arg-type]
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda q, f: (f, f, X), "the model is not quantized"),
        (lambda q, f: (q, q, X), "quantized already"),
        (lambda q, f: (q, nn.Linear(3, 3), X), "the reference has no layer"),
        (lambda q, f: (q, f, []), "the data are empty"),
        (lambda q, f: (q, f, X * math.nan), "NaN or infinity"),
        (lambda q, f: (q, f, torch.randn(2, 5)), "forward pass fails"),
    ],
    ids=["float", "no float", "other", "no data", "NaN", "shape"],
)
def test_bad_models_and_data_are_refused(make: Callable[..., tuple[object, ...]], match: str) -> None:
    model, reference = classifier()
    before = state_of(model)
    with pytest.raises(linger.UsageError, match=match):
        find_bits(*make(model, reference), goal=30)  # type: ignore[arg-type]
    assert state_of(model) == before


def test_an_interrupted_search_leaves_the_model_as_it_was() -> None:
    model, reference = classifier()
    before = state_of(model)
    with pytest.raises(KeyboardInterrupt):
        find_bits(model, reference, X, goal=Once(), at_least=1)
    assert state_of(model) == before


def test_agreement_of_one_number_is_refused() -> None:
    model, reference = pair(nn.Sequential(nn.Linear(12, 1)), X)
    with pytest.raises(linger.UsageError, match="largest of several numbers"):
        find_bits(model, reference, X, goal="99 %")


# how it is shown
def test_the_result_in_its_forms(tmp_path: Path) -> None:
    model, reference = pair(net_with_outlier(), X)
    found = find_bits(model, reference, X, goal="30 dB", bits=(8, 16))
    read = json.loads(found.to_json(tmp_path / "bits.json"))
    assert read["rows"][0]["name"] == "bad"
    assert read["goal"] == "30 dB"
    assert read["cost_before"]["wide_weights"] == 0
    assert found.to_csv().splitlines()[0].startswith("name,op,what,before,after")
    assert repr(found) == "BitWidths(30 dB reached, 1 of 9 tensors changed)"
    assert found.summary().startswith("30 dB reached: ")
    assert str(found).splitlines()[-1] == found.lines[-1]
    assert [(change.name, change.before, change.after) for change in found.changes] == [("bad", 8, 16)]
