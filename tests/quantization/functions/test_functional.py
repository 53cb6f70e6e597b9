"""Ops that no layer stands for: their statistics, their keys, their widths, and the passes they run in."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init, trace_layers
from linger.errors import UsageError
from tests.support.functions import KEY_PREFIX, as_operand
from tests.support.quantization import Runtime, dispatch, real_copy
from tests.support.wired import Wired, after, image, quantize


def functional_keys(model):
    return [k for k in model.state_dict() if KEY_PREFIX in k and k.endswith("running_o")]


def test_each_module_counts_for_itself_and_starts_again_at_every_call():
    class Twice(nn.Module):
        def forward(self, x):
            return x + x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.twice = nn.Linear(3, 3), Twice()

        def forward(self, x):
            h = self.twice(self.twice(self.fc(x)))
            return h + h

    model = init(Net()).eval()
    x = torch.randn(4, 3)
    with linger.calibration():
        model(x)
    assert functional_keys(model) == [
        "twice._linger_round_tensor_iqadd__default_index_0.running_o",
        "_linger_round_tensor_iqadd__default_index_0.running_o",
    ]
    # called twice, one range: that of the second, larger sum
    twice = model.twice.get_submodule("_linger_round_tensor_iqadd__default_index_0").running_o.item()
    last = model.get_submodule("_linger_round_tensor_iqadd__default_index_0").running_o.item()
    assert twice == last / 2


def test_range_of_a_sum_is_that_of_the_exact_sum():
    model = after(lambda h: (h.clone(), h + h))
    h, _ = real_copy(model)(image())
    _, total = model(image())
    layer = model.get_submodule("_linger_round_tensor_iqadd__default_index_0")
    assert layer.read("running_o") == 2 * float(h.dequantize().detach().abs().max())
    assert layer.read("scale_o") == total.scale


def test_range_of_a_join_is_the_widest_of_its_parts():
    def forward(m, x):
        h = m.conv(x)
        return h.clone(), torch.cat([h, h * 0.25], 1)

    model = quantize(Wired(forward), image())
    h, _ = real_copy(model)(image())
    layer = model.get_submodule("_linger_round_tensor_iqcat_1")
    assert layer.read("running_o") == float(h.dequantize().detach().abs().max())


def test_statistics_move_in_training_and_rest_in_evaluation():
    model = after(lambda h: h + h)
    layer = model.get_submodule("_linger_round_tensor_iqadd__default_index_0")
    before = layer.read("running_o")
    with torch.no_grad():
        model(image(spread=9.0))
    assert layer.read("running_o") == before
    model.train()(image(spread=9.0))
    assert layer.read("running_o") > before


def test_a_sum_that_calibration_never_met_is_named():
    model = init(Wired(lambda m, x: m.conv(x) + 1.0 if m.training else m.conv(x) * 2.0)).train()
    model(image())
    model.eval()
    with pytest.raises(UsageError, match=r"^iqMul has no scale yet\. Run data through the model"):
        model(image())
    assert functional_keys(model) == ["_linger_round_tensor_iqadd__default_index_0.running_o"]


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_different_widths_meet_at_the_wider(mode):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.narrow, self.wide = nn.Linear(3, 4), linger.quant_module(nn.Linear(3, 4), out_bits=16)

        def forward(self, x):
            a, b = self.narrow(x), self.wide(x)
            return a, b, a + b, b * a, torch.cat([a, b])

    model = quantize(Net(), torch.randn(20, 3))
    model.train(mode == "train")
    x = torch.randn(20, 3)
    if mode == "train":
        model(x)
    a, b, total, product, joined = model(x)
    assert (a.bits, b.bits) == (8, 16)
    for result, exact in (
        (total, a.dequantize() + b.dequantize()),
        (product, a.dequantize() * b.dequantize()),
        (joined, torch.cat([a.dequantize(), b.dequantize()])),
    ):
        assert result.bits == 16
        assert result.integers().dtype == torch.int16
        inside = exact.abs() < 32767 / result.scale
        assert float(((result.dequantize() - exact)[inside]).detach().abs().max()) <= 1 / result.scale


@pytest.mark.parametrize(
    ("value", "integer", "scale"),
    [
        (1.0, 64, 64.0),
        (0.5, 64, 128.0),
        (-3, -96, 32.0),
        (127.0, 127, 1.0),
        (128, 64, 0.5),
        (0, 0, 128.0),
        (0.1, 102, 1024.0),
    ],
)
def test_a_number_takes_the_finest_scale_that_holds_it(value, integer, scale):
    made = as_operand(value, Runtime(dispatch))
    assert (made.integers().item(), made.scale, made.bits) == (integer, scale, 8)


@pytest.mark.parametrize("value", [True, torch.ones(2), "text", None, float("inf"), float("nan")], ids=repr)
def test_what_is_no_operand(value):
    assert as_operand(value, Runtime(dispatch)) is None


def test_a_quantized_tensor_is_an_operand_until_floats_overwrite_it():
    x = QTensor(torch.ones(2), 16.0, 8, Runtime(dispatch))
    assert as_operand(x, x.runtime) is x
    x.overwrite(torch.ones(2))
    assert as_operand(x, x.runtime) is None


def test_broadcast_operands():
    def forward(m, x):
        h = m.conv(x)
        return h.clone(), h + h[:, :1], h * h.amax((2, 3), keepdim=True), h * h[:1, :1, :1, :1]

    model = quantize(Wired(forward), image())
    h, total, product, scaled = (t.dequantize() if isinstance(t, QTensor) else t for t in model(image()))
    layers = dict(model.named_modules())
    scale = layers["_linger_round_tensor_iqadd__default_index_0"].read("scale_o")
    assert float((total - (h + h[:, :1])).detach().abs().max()) <= 1 / scale
    scale = layers["_linger_round_tensor_iqmul__default_index_float0"].read("scale_o")  # amax is a float function
    assert float((product - h * h.amax((2, 3), keepdim=True)).detach().abs().max()) <= 2 / scale
    scale = layers["_linger_round_tensor_iqmul__default_index_1"].read("scale_o")
    assert float((scaled - h * h[:1, :1, :1, :1]).detach().abs().max()) <= 0.5 / scale


def test_relu_of_a_fused_layer_is_not_computed_again():
    model = Wired(lambda m, x: F.relu(m.conv(x)))
    trace_layers(model, image())
    quantize(model, image())
    with torch.no_grad():
        result = model(image())
    assert result.is_nonnegative
    assert result.dequantize().min() == 0
    assert [op.op for op in linger.coverage(model).integer_ops] == ["Quant", "Conv2dInt", "Relu"]
