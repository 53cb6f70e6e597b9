"""One layer or all of them as integers, measured at the output."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import trace_layers
from linger.errors import UsageError
from tests.support.diagnosis import NoiseBench
from tests.support.models import SmallNet, settle
from tests.support.noisy_layers import db_by_hand, linear_by_hand, net_with_outlier, quantized_copy, vectors
from tests.support.quantization import Widths
from tests.support.wired import Wired, image


def bench(model, *batches, bits=8):
    return NoiseBench(
        model, [batch if isinstance(batch, tuple) else (batch,) for batch in batches], Widths(bits, bits, bits)
    )


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", ["first", "bad", "last"])
def test_one_layer_alone_is_what_it_is_by_hand(name, bits):
    model, x = net_with_outlier(), vectors()
    found = bench(model, x[:20], x[20:], bits=bits).alone(name).db
    with torch.no_grad():
        h = x
        for path, layer in model.named_children():
            h = torch.from_numpy(linear_by_hand(layer, h.numpy(), bits)).float() if path == name else layer(h)
        # noise at 16 bits is about -80 dB; the float32 roundings of the layers around, 2^-24 of a value or -144 dB,
        # can move it by 10^(-64/20) of itself, that is 0.006 dB
        assert found == pytest.approx(db_by_hand(model(x), h), abs=0.01)


def test_what_follows_a_single_quantized_layer_is_float():
    seen = []

    def forward(m, x):
        h = m.conv(x)
        seen.extend([type(h), type(h + h)])
        return F.relu(h + h)

    bench(Wired(forward), image()).alone("conv")
    assert set(seen) == {torch.Tensor}


def test_a_layer_that_is_not_reached_does_no_harm():
    measured = bench(Wired(lambda m, x: m.conv(x)), image())
    assert measured.alone("fc").db == math.inf
    assert measured.alone("conv").db < 80


def test_together_is_the_model_that_init_makes():
    model, x = settle(SmallNet()).eval(), torch.randn(6, 1, 8, 8)
    trace_layers(model, x)
    with torch.no_grad():
        assert bench(model, x).together().powers.db == pytest.approx(
            db_by_hand(model(x), quantized_copy(model, x)(x)), abs=1e-9
        )


def test_wide_layers_have_sixteen_bits():
    model, x = net_with_outlier(), vectors()
    measured = bench(model, x).together(["bad"]).powers.db
    linger.quant_module(model.bad, data_bits=16, parameter_bits=16, out_bits=16)
    with torch.no_grad():
        assert measured == pytest.approx(db_by_hand(model(x), quantized_copy(model, x)(x)), abs=1e-9)


def test_macs_and_parameters_are_counted_for_the_first_batch():
    model = settle(Wired(lambda m, x: m.fc(m.bn(m.conv(x)).mean((2, 3))), bias=False)).eval()
    trace_layers(model, image())
    measured = bench(model, image(2), image(5))
    assert measured.together().macs == {"conv": 2 * 4 * 6 * 6 * 27, "conv2": 0, "bn2": 0, "fc": 2 * 4 * 4}
    # the folded batch norm gives the convolution a bias
    assert {path: layer.parameters for path, layer in measured.layers.items()} == {
        "conv": 4 * 27 + 4,
        "conv2": 4 * 36,
        "bn2": 4 + 4,
        "fc": 16 + 4,
    }


def test_marks_of_layers_hold():
    model = settle(Wired(lambda m, x: m.fc(m.bn(m.conv(x)).mean((2, 3))))).eval()
    linger.quant_module(model.conv, parameter_bits=4, out_bits=32)
    linger.disable_quant(model.conv2)
    trace_layers(model, image())
    layers = bench(model, image(), bits=16).layers
    assert {path: layer.widths for path, layer in layers.items()} == {
        "conv": Widths(8, 4, 32),
        "bn2": Widths(16, 16, 16),
        "fc": Widths(16, 16, 16),
    }
    assert layers["conv"].wide == Widths(16, 16, 32)
    assert layers["fc"].by_itself == Widths(8, 8, 8)


def test_a_layer_with_two_names_is_one_layer():
    shared = nn.Linear(4, 4)
    measured = bench(nn.Sequential(shared, nn.Sequential(shared)), vectors(size=4))
    assert list(measured.layers) == ["0"]
    assert measured.alone("0").db < 60


def test_a_model_that_is_one_layer():
    model, x = nn.Linear(4, 3), vectors(size=4)
    measured = bench(model, x)
    assert list(measured.layers) == [""]
    with torch.no_grad():
        expected = db_by_hand(model(x), quantized_copy(model, x)(x))
    assert measured.alone("").db == measured.together().powers.db == pytest.approx(expected, abs=1e-9)


class Counting(nn.Module):
    """Returns its input plus what it has seen so far, and draws numbers in evaluation."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
        self.total += x.abs().sum()
        return F.dropout(self.fc(x), training=True) + self.total


def test_every_measurement_starts_from_the_same_state_and_the_same_random_numbers():
    measured = bench(Counting(), vectors(size=4), vectors(size=4, seed=2))
    assert measured.alone("fc").db == measured.alone("fc").db > 20
    assert measured.together().powers == measured.together().powers


def test_inputs_changed_in_place_are_changed_in_copies():
    x = vectors(size=4)
    before = x.clone()
    measured = bench(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), x)
    measured.together()
    assert torch.equal(x, before)


class Nest(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, is_on):
        return {"a": self.a(x), "rest": (self.b(x), [torch.arange(3), is_on])}


def test_every_output_counts():
    model, x = Nest(), vectors(size=4)
    measured = bench(model, (x, True))
    with torch.no_grad():
        a, b = model.a(x), model.b(x)
        quantized = torch.from_numpy(linear_by_hand(model.b, x.numpy(), 8)).float()
    # the other half is equal, but its signal counts
    assert measured.alone("b").db == pytest.approx(db_by_hand(torch.cat([a, b]), torch.cat([a, quantized])), abs=1e-6)


@pytest.mark.parametrize(
    ("model", "x"),
    [(Wired(lambda m, x: m.conv(x).argmax()), image()), (nn.Sequential(nn.Linear(4, 4)), torch.zeros(0, 4))],
    ids=["integers", "no elements"],
)
def test_a_model_without_float_results_is_refused(model, x):
    with pytest.raises(UsageError, match="returns no float tensor for these inputs"):
        bench(model, x).together()


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match=r"the forward pass fails on the input \[\(32, 7\)\]"):
        bench(net_with_outlier(), vectors(size=7)).alone("bad")
