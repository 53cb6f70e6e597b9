"""compare_layers: numbers worked out apart, a planted error, fused layers, and models that stay as they were."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import linger
from linger import QTensor, compare_layers, trace_layers
from linger.errors import UsageError
from tests.support.models import SmallNet, settle
from tests.support.noisy_layers import db_by_hand, everything, net_with_outlier, quantized_copy, vectors
from tests.support.quantization import fold, init
from tests.support.wired import Wired, image

X = vectors()


def by_name(result):
    return {(row.name, row.call) if row.call else row.name: row for row in result.rows}


def layers_of(result):
    return [row.name for row in result.rows if not row.is_function]


def real(t):
    return t.dequantize() if isinstance(t, QTensor) else t


def test_a_planted_outlier_is_born_where_it_is_and_passed_on_after():
    model = net_with_outlier()
    found = compare_layers(model, quantized_copy(model, X), X)
    rows = by_name(found)
    assert [row.name for row in found.rows] == ["first", "relu", "bad", "after", "last"]
    assert found.born()[0].name == "bad"
    assert rows["bad"].verdict == "born"
    assert rows["bad"].born_db < 15 < rows["bad"].passed_db
    assert rows["after"].verdict == rows["last"].verdict == "passed"
    assert rows["first"].verdict == "born"
    assert rows["relu"].verdict == "passed"
    assert rows["relu"].born_db == math.inf


@pytest.mark.parametrize("batches", [[X], [X[:5], X[5:20], X[20:]]], ids=["one batch", "three"])
def test_every_number_is_what_it_is_by_hand(batches):
    model = net_with_outlier()
    quantized = quantized_copy(model, X)
    found = compare_layers(model, quantized, batches)
    f_in = q_in = X
    with torch.no_grad():
        for row, (name, layer) in zip(found.rows, model.named_children(), strict=True):
            f_out, q_out, local = layer(f_in), getattr(quantized, name)(q_in), layer(real(q_in))
            if name == "first":  # ReLU is all that reads it: negative numbers do not count
                f_out, q_out, local = f_out.relu(), quantized.relu(q_out), local.relu()
            # between one batch and three, float32 products may round differently: 2^-24, -144 dB, of values whose
            # noise is at least -50 dB. That moves a level by less than 10^(-94/20) of itself, 0.0002 dB
            assert row.input_db == pytest.approx(db_by_hand(f_in, real(q_in)), abs=3e-4)
            assert row.sqnr_db == pytest.approx(db_by_hand(f_out, real(q_out)), abs=3e-4)
            signal = float((f_out.double() ** 2).sum())
            for level, first, second in ((row.born_db, q_out, local), (row.passed_db, local, f_out)):
                noise = float(((real(first).double() - real(second).double()) ** 2).sum())
                assert level == pytest.approx(10 * math.log10(signal / noise) if noise else math.inf, abs=3e-4)
            a, b = f_out.double().numpy().ravel(), real(q_out).double().numpy().ravel()
            assert row.cosine == pytest.approx(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)
            assert row.max_lsb == pytest.approx(np.abs(a - b).max() * q_out.scale, rel=1e-4)
            f_in, q_in = f_out, q_out
        assert found.output_db == pytest.approx(db_by_hand(model(X), real(quantized(X))), abs=3e-4)
    assert found.unmatched == ()


def test_ops_and_float_layers():
    model = nn.Sequential(
        nn.Linear(12, 12),
        linger.disable_quant(nn.LayerNorm(12)),
        linger.disable_quant(nn.Linear(12, 12)),
        nn.Linear(12, 2),
    )
    rows = by_name(compare_layers(model, quantized_copy(model, X), X))
    assert [row.op for row in rows.values()] == ["LinearInt", "LayerNorm", "Linear", "LinearInt"]
    assert [row.max_lsb is None for row in rows.values()] == [False, True, True, False]
    assert rows["1"].verdict == rows["2"].verdict == "passed"


def test_a_model_that_stays_float_has_no_error():
    model = linger.disable_quant(nn.Sequential(nn.Linear(12, 4), nn.ReLU()))
    found = compare_layers(model, init(copy.deepcopy(model)), X)
    assert [(row.verdict, row.sqnr_db) for row in found.rows] == [("none", math.inf)] * 2
    # Σab, Σaa and Σbb are the same sum of n = 32·4 squares, perhaps added in different orders: each within n·2^-53 of itself
    n = len(X) * 4
    assert [row.cosine for row in found.rows] == pytest.approx([1.0, 1.0], rel=0, abs=2 * n * 2.0**-53)
    assert found.output_db == math.inf


def test_zero_outputs_have_a_direction_or_none():
    model = nn.Sequential(nn.Linear(12, 4), nn.Threshold(1e9, 0.0))
    assert by_name(compare_layers(model, quantized_copy(model, X), X))["1"].cosine == 1.0


def test_a_second_call_is_a_row_of_its_own():
    model = nn.Sequential(nn.Linear(12, 12), nn.ReLU())
    model.append(model[0])
    found = compare_layers(model, quantized_copy(model, X), X)
    assert [(row.name, row.call) for row in found.rows] == [("0", 0), ("1", 0), ("0", 1)]


def test_an_error_between_layers_shows_in_the_next_input():
    arriving = []

    def forward(m, x):
        # one scale for both parts: what is left of the small one is coarse
        h = torch.cat([m.conv(x) * 100.0, m.conv2(m.conv(x))], dim=1)[:, 4:, 0, 0]
        arriving.append(h)
        return m.fc(h)

    model = Wired(forward).eval()
    quantized = quantized_copy(model, image())
    del arriving[:]
    rows = by_name(compare_layers(model, quantized, image()))
    assert rows["fc"].input_db < 10 < 25 < min(rows["conv"].sqnr_db, rows["conv2"].sqnr_db)
    found, reference = arriving  # the quantized model runs first
    assert rows["fc"].input_db == pytest.approx(db_by_hand(reference, real(found)), abs=1e-9)


# -- conv + bn ----------------------------------------------------------------------------------------------


def conv_bn_relu(m, x):
    return m.bn2(m.conv2(F.relu(m.bn(m.conv(x)))))


def conv_bn():
    return settle(Wired(conv_bn_relu)).eval()


def fused(model):
    return trace_layers(copy.deepcopy(model), image())


def test_against_an_unfused_model_a_fused_layer_is_compared_at_the_batch_norm():
    model = conv_bn()
    quantized = quantized_copy(fused(model), image())
    found = compare_layers(model, quantized, image())
    assert [(row.name, row.op) for row in found.rows] == [("bn", "Conv2dInt"), ("Relu", "Relu"), ("bn2", "Conv2dInt")]
    assert found.unmatched == ()
    rows = by_name(found)
    with torch.no_grad():
        f = F.relu(model.bn(model.conv(image())))
        q = F.relu(real(quantized.conv(image())))  # the layer has done it, as only ReLU sees it
        assert rows["bn"].sqnr_db == pytest.approx(db_by_hand(f, q), abs=1e-3)
        f2, q2, local = model.bn2(model.conv2(f)), real(quantized(image())), model.bn2(model.conv2(q))
    assert rows["bn2"].sqnr_db == pytest.approx(db_by_hand(f2, q2), abs=1e-3)
    signal = float((f2.double() ** 2).sum())
    assert rows["bn2"].born_db == pytest.approx(10 * math.log10(signal / ((q2 - local).double() ** 2).sum()), abs=1e-3)
    assert rows["bn2"].passed_db == pytest.approx(
        10 * math.log10(signal / ((local - f2).double() ** 2).sum()), abs=1e-3
    )
    assert rows["bn2"].input_db == pytest.approx(db_by_hand(f, q), abs=1e-3)


def test_against_a_fused_model_it_is_compared_at_the_convolution():
    model = conv_bn()
    quantized = quantized_copy(fused(model), image())
    at_bn = compare_layers(model, quantized, image())
    at_conv = compare_layers(fused(model), quantized, image())
    assert layers_of(at_conv) == ["conv", "conv2"]
    assert at_conv.unmatched == ()
    for first, second in zip(at_bn.rows, at_conv.rows, strict=True):
        assert first.sqnr_db == pytest.approx(second.sqnr_db, abs=1e-3)  # folding rounds in float32
        assert first.verdict == second.verdict


def test_a_fused_float_model_against_an_unfused_quantized_one():
    model = conv_bn()
    found = compare_layers(fused(model), quantized_copy(model, image()), image())
    assert layers_of(found) == ["bn", "bn2"]
    assert by_name(found)["bn"].sqnr_db > 25
    assert by_name(found)["bn"].input_db == math.inf
    assert by_name(found)["bn"].verdict == "born"


def test_both_unfused_have_rows_for_both():
    model = conv_bn()
    found = compare_layers(model, quantized_copy(model, image()), image())
    assert layers_of(found) == ["conv", "bn", "conv2", "bn2"]


def folded_checkpoint(model, quantized):
    """A checkpoint of the quantized model whose batch norms are in the weights."""
    state = {key: value for key, value in quantized.state_dict().items() if ".bn." not in key}
    for conv, bn in (("conv", "bn"), ("conv2", "bn2")):
        layer = getattr(model, conv)
        weight, bias = fold(layer.weight, layer.bias, getattr(model, bn))
        state[f"{conv}.weight"], state[f"{conv}.bias"] = weight.detach(), bias.detach()
    return state


@pytest.mark.parametrize(("is_fused", "names"), [(False, ["bn", "bn2"]), (True, ["conv", "conv2"])])
def test_a_layer_folded_by_its_checkpoint(is_fused, names):
    model = conv_bn()
    quantized = quantized_copy(fused(model), image())
    expected = compare_layers(model, quantized, image())
    quantized.load_state_dict(folded_checkpoint(model, quantized))
    assert quantized.conv.bn is None
    found = compare_layers(fused(model) if is_fused else model, quantized, image())
    assert layers_of(found) == names
    assert [row.sqnr_db for row in found.rows] == pytest.approx([row.sqnr_db for row in expected.rows], abs=1e-3)


def test_a_fused_layer_that_stays_float():
    model = conv_bn()
    linger.disable_quant(model.conv)
    joined = fused(model)
    found = compare_layers(model, quantized_copy(joined, image()), image())
    assert [(row.name, row.op, row.verdict) for row in found.rows] == [
        ("bn", type(joined.conv).__name__, "none"),
        ("bn2", "Conv2dInt", "born"),
    ]


class HandedOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pause, self.bn = nn.Conv2d(3, 4, 1), nn.Identity(), nn.BatchNorm2d(4)
        self.relu, self.out = nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.out(self.relu(self.bn(self.pause(self.conv(x)))))


def test_what_hands_a_fused_result_on_is_not_compared_but_what_follows_is():
    model = settle(HandedOn()).eval()
    found = compare_layers(model, quantized_copy(fused(model), image()), image())
    assert [row.name for row in found.rows] == ["bn", "relu", "out"]
    assert min(row.sqnr_db for row in found.rows) > 25
    assert by_name(found)["relu"].input_db == pytest.approx(by_name(found)["bn"].sqnr_db, abs=1e-3)


def test_a_whole_network_agrees_with_its_output():
    model, x = settle(SmallNet()).eval(), torch.randn(6, 1, 8, 8)
    quantized = quantized_copy(trace_layers(copy.deepcopy(model), x), x)
    found = compare_layers(model, quantized, x)
    assert [row.name for row in found.rows if row.name.startswith("block")] == [
        "block.bn1",
        "block.relu",
        "block.bn2",
        "block.iqAdd",
        "block.relu",
    ]
    assert found.rows[-1].name == "fc"
    assert found.rows[-1].sqnr_db == found.output_db
    assert found.unmatched == ()
    assert min(row.sqnr_db for row in found.rows) > 20
    assert all(row.input_db > 20 for row in found.rows)


# -- functions ------------------------------------------------------------------------------------------------


class Gate(nn.Module):
    def forward(self, x, y):
        return x * y


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.gate, self.out = nn.Linear(12, 6), nn.Linear(12, 6), Gate(), nn.Linear(12, 3)

    def forward(self, x):
        a, b = F.relu(self.a(x)), self.b(x)
        first = torch.sigmoid(a + b)
        joined = torch.cat([first + b, self.gate(a, b)], 1)
        joined += 1.0
        return self.out(joined)


def test_functions_have_rows_under_the_names_of_their_nodes(tmp_path):
    model = Functions().eval()
    quantized = quantized_copy(model, X)
    found = compare_layers(model, quantized, [X[:9], X[9:]])
    assert [(row.name, row.call) for row in found.rows if row.is_function] == [
        ("Relu", 0),
        ("iqAdd", 0),
        ("iqSigmoid", 0),
        ("iqAdd_1", 0),
        ("iqCat", 0),
        ("iqAdd_2", 0),
    ]
    assert layers_of(found) == ["a", "b", "gate", "out"], "a function that is all of a module is the module's row"
    assert found.unmatched == ()
    assert "4 calls of layers, 6 of functions" in found.summary()
    linger.onnx.export(quantized, (X,), tmp_path / "net.onnx")
    nodes = {node.name: node.op_type for node in linger.graph.load(tmp_path / "net.onnx").graph}
    assert all(nodes[row.name] == row.op for row in found.rows if row.is_function)


def test_the_numbers_of_functions_are_what_they_are_by_hand():
    model = Functions().eval()
    quantized = quantized_copy(model, X)
    rows = by_name(compare_layers(model, quantized, X))
    recorded = {}
    linger.quantization.core.runtime.runtime_of(quantized).observers.append(
        lambda name, op, operands, attributes, result: recorded.setdefault(
            name, ([real(o) for o in operands if isinstance(o, QTensor)], real(result), result.scale)
        )
    )
    with torch.no_grad():
        quantized(X)
        a, b = F.relu(model.a(X)), model.b(X)
        first = torch.sigmoid(a + b)
    for name, f, local in (
        ("iqAdd", a + b, lambda x, y: x + y),
        ("iqSigmoid", first, torch.sigmoid),
        ("iqAdd_1", first + b, lambda x, y: x + y),
    ):
        operands, q, scale = recorded[name]
        between = local(*operands)
        row, signal = rows[name], float((f.double() ** 2).sum())
        assert row.sqnr_db == pytest.approx(db_by_hand(f, q), abs=1e-3)
        for level, one, other in ((row.born_db, q, between), (row.passed_db, between, f)):
            noise = float(((one - other).double() ** 2).sum())
            assert level == pytest.approx(10 * math.log10(signal / noise) if noise else math.inf, abs=1e-3)
        assert row.max_lsb == pytest.approx(float((f - q).abs().max()) * scale, rel=1e-4)


def test_a_function_whose_result_only_a_relu_sees_is_compared_behind_it():
    class Skipped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)
            nn.init.constant_(self.b.bias, -3.0)

        def forward(self, x):
            return F.relu(self.a(x) + self.b(x))

    model = Skipped().eval()
    rows = by_name(compare_layers(model, quantized_copy(model, X), X))
    assert rows["iqAdd"].sqnr_db == pytest.approx(rows["Relu"].sqnr_db, abs=1e-6)
    assert rows["Relu"].input_db == pytest.approx(rows["iqAdd"].sqnr_db, abs=1e-6)
    assert rows["iqAdd"].born_db > 20


def test_a_function_that_only_one_model_calls_has_no_counterpart():
    class Other(Functions):
        def forward(self, x):
            a, b = F.relu(self.a(x)), self.b(x)
            joined = torch.cat([torch.tanh(a) + b, self.gate(a, b)], 1)
            return self.out(joined)

    model = Functions().eval()
    other = Other().eval()
    found = compare_layers(other, quantized_copy(model, X), X)
    assert {"iqSigmoid", "iqAdd_1", "iqAdd_2"} <= set(found.unmatched)
    assert "iqSigmoid" not in by_name(found)


# -- other kinds of layers ------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 12)
        self.first = nn.Linear(12, 6)
        self.rnn = nn.LSTM(6, 5, batch_first=True)
        self.last = nn.Linear(5, 2)

    def forward(self, words, lengths):
        h = self.first(self.embed(words))
        out, state = self.rnn(pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False))
        out, _ = pad_packed_sequence(out, batch_first=True)
        return {"y": self.last(out), "state": state}


def test_recurrent_layers_packed_sequences_and_dict_outputs():
    model = Recurrent().eval()
    arguments = (torch.arange(18).reshape(3, 6) % 9, torch.tensor([6, 2, 4]))
    quantized = init(copy.deepcopy(model))
    with linger.calibration():
        quantized(*arguments)
    found = compare_layers(model, quantized, [arguments])
    assert [(row.name, row.op, row.verdict) for row in found.rows] == [
        ("embed", "Embedding", "none"),
        ("first", "LinearInt", "born"),
        ("rnn", "LSTMInt", "born"),
        ("last", "LinearInt", "both"),
    ]
    with torch.no_grad():
        outputs = [model(*arguments), quantized(*arguments)]
    flat = [torch.cat([real(o["y"]).flatten(), *(part.flatten() for part in o["state"])]) for o in outputs]
    assert found.output_db == pytest.approx(db_by_hand(*flat), abs=1e-9)


def test_layers_inside_torchs_own_containers():
    model = nn.Sequential(nn.Linear(12, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    x = X.reshape(4, 8, 12)
    found = compare_layers(model, quantized_copy(model, x), x)
    rows = by_name(found)
    assert rows["1.linear1"].op == "LinearInt"
    assert rows["1.self_attn"].op == "MultiheadAttention"
    assert rows["1.self_attn"].verdict == "born"
    assert found.unmatched == ()


def test_a_model_that_is_one_layer():
    model = nn.Linear(12, 3)
    found = compare_layers(model, quantized_copy(model, X), X)
    assert [(row.name, row.verdict) for row in found.rows] == [("", "born")]
    assert found.rows[0].sqnr_db == found.output_db


class Branches(nn.Module):
    def __init__(self, *names):
        super().__init__()
        torch.manual_seed(1)
        self.shared = nn.Linear(12, 12)
        for name in names:
            self.add_module(name, nn.Linear(12, 12))
        self.names = names

    def forward(self, x):
        x = self.shared(x)
        for name in self.names:
            x = getattr(self, name)(x)
        return x


def test_layers_of_one_model_only_are_listed():
    quantized = quantized_copy(Branches("left", "common"), X)
    found = compare_layers(Branches("common", "right"), quantized, X)
    assert [row.name for row in found.rows] == ["shared", "common"]
    assert found.unmatched == ("left", "right")


def test_a_call_of_one_model_only_is_listed():
    twice = Branches("extra", "extra")
    found = compare_layers(Branches("extra"), quantized_copy(twice, X), X)
    assert found.unmatched == ("extra (call 1)",)


# -- what stays as it was -------------------------------------------------------------------------------------


class Stops:
    def __init__(self, stop_at, error):
        self.passes, self.stop_at, self.error = 0, stop_at, error

    def __call__(self, m, x):
        self.passes += 1
        if self.passes == self.stop_at:
            raise self.error
        return m.fc(F.relu(m.bn(m.conv(x))).mean((2, 3)))

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize("stop_at", [None, 1, 2, 4])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_both_models_stay_as_they_were(stop_at, error):
    stops = Stops(None, error)
    model = settle(Wired(stops)).train()
    linger.quant_module(model.fc, parameter_bits=4)
    quantized = quantized_copy(trace_layers(copy.deepcopy(model), image()), image()).train()
    quantized.conv.eval()
    ops = list(linger.coverage(quantized).ops)
    before, x = (everything(model), everything(quantized)), image()
    stops.passes, stops.stop_at = 0, stop_at
    if stop_at is None:
        compare_layers(model, quantized, [x, x])
    else:
        with pytest.raises((KeyboardInterrupt, UsageError)):
            compare_layers(model, quantized, [x, x])
    assert (everything(model), everything(quantized)) == before
    assert list(linger.coverage(quantized).ops) == ops
    assert torch.equal(x, image())


def test_models_are_compared_in_evaluation():
    model = conv_bn()
    quantized = quantized_copy(fused(model), image())
    expected = compare_layers(model, quantized, image())
    assert compare_layers(model.train(), quantized.train(), image()) == expected


def test_inputs_may_shuffle_themselves_and_come_once():
    model = net_with_outlier()
    quantized = quantized_copy(model, X)
    data = torch.utils.data.DataLoader(X, batch_size=8, shuffle=True)
    before = torch.get_rng_state()
    found = compare_layers(model, quantized, data)
    assert torch.equal(torch.get_rng_state(), before)
    assert found == compare_layers(model, quantized, iter(list(data)))


def test_models_that_draw_numbers_draw_the_same():
    model = nn.Sequential(nn.Linear(12, 8), Noise())
    found = compare_layers(model, quantized_copy(model, X), X)
    assert by_name(found)["1"].sqnr_db > 25


class Noise(nn.Module):
    def forward(self, x):
        return F.dropout(x.dequantize() if isinstance(x, QTensor) else x, training=True)


# -- errors -----------------------------------------------------------------------------------------------------


class Wide(Branches):
    def __init__(self):
        super().__init__("head")
        self.head = nn.Linear(12, 5)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((Branches(), quantized_copy(Branches(), X), []), "the inputs are empty"),
        ((Branches(), quantized_copy(Branches(), X), 3), "int is no batch"),
        ((Branches(), Branches(), X), "the second model is not quantized"),
        ((quantized_copy(Branches(), X), quantized_copy(Branches(), X), X), "the first model is quantized"),
        ((torch.relu, "model", X), "two torch modules are expected, not builtin_function_or_method, str"),
        ((Branches(), init(Branches()), X), "has no scale yet"),
        ((Branches(), quantized_copy(Branches(), X), X[:, :3]), "the forward pass fails on the input"),
        ((nn.Sequential(nn.Linear(12, 12)), quantized_copy(Branches(), X), X), "Sequential and Branches have no layer"),
        (
            (Branches("head"), quantized_copy(Wide(), X), X),
            r"not of the same architecture\. head: shapes \[\(32, 12\)\] in the float model, \[\(32, 5\)\] in the "
            r"quantized one, output: shapes",
        ),
    ],
    ids=["empty", "number", "float", "swapped", "no models", "uncalibrated", "misfit", "strangers", "other shapes"],
)
def test_a_wrong_call_is_refused(arguments, match):
    with pytest.raises(UsageError, match=match):
        compare_layers(*arguments)


@pytest.mark.filterwarnings("ignore:calibration. no quantized model ran")
def test_inside_a_calibration_it_is_refused():
    quantized = quantized_copy(Branches(), X)
    with linger.calibration(), pytest.raises(UsageError, match=r"call it after `with linger\.calibration"):
        compare_layers(Branches(), quantized, X)
