"""model.eval() is the integer simulation: every recorded integer against int64 arithmetic written in tests/support."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import linger
from linger import record
from tests.support import int64
from tests.support.comparison import assert_same
from tests.support.models import SmallNet, settle
from tests.support.models import quantized as traced_and_quantized
from tests.support.quantization import QuantLayer
from tests.support.wired import quantize

FLOAT32_EXACT = 2**24


def recorded(model, x):
    (made,) = record(model, (x,))
    return made.integers, made.outputs


def assert_integers(actual, expected):
    """Equal, whatever the width of the integer type."""
    assert_same(actual.astype(np.int64), expected.astype(np.int64))


def assert_layer_is_exact(layer, x, *, is_saturation_wanted=False, distinct=16):
    """One Conv2d or Linear, quantized: its input, its parameters and its output."""
    model = quantize(nn.Sequential(layer), x)
    made = model[0]
    weight, bias = layer.weight.detach().numpy(), None if layer.bias is None else layer.bias.detach().numpy()
    if is_saturation_wanted:
        made.write("running_o", made.read("running_o") / 8)
        model(x)
    found, outputs = recorded(model, x)
    scale_x, scale_o = made.read("scale_x"), made.read("scale_o")
    widths, frozen = made.widths, made.freeze(made.read("scale_x"))
    assert_integers(found["0.Quant"], int64.quantized(x.numpy(), scale_x, widths.data))
    assert_integers(frozen.weight_integers.numpy(), int64.quantized(weight, frozen.scale_w, widths.parameter))
    if bias is not None:
        steps = np.floor(bias.astype(np.float64) * scale_x * frozen.scale_w + 0.5)
        assert_integers(frozen.bias_integers.numpy(), int64.saturated(steps, 32))
    expected = int64.layer_output(made, found["0.Quant"], scale_x)
    assert_integers(found[f"0.{made.op_name}"], expected)
    low, high = -(1 << (widths.output - 1)), (1 << (widths.output - 1)) - 1
    assert (expected.min() == low and expected.max() == high) or not is_saturation_wanted
    assert len(np.unique(expected)) >= (distinct if widths.output > 4 else 5), "proves little"
    np.testing.assert_array_equal(outputs[0], (expected / scale_o).astype(np.float32))
    with torch.no_grad():  # and without a recorder, where the rounding is folded into the product
        np.testing.assert_array_equal(model(x).dequantize().numpy(), outputs[0])
    np.testing.assert_array_equal(model(x).dequantize().detach().numpy(), outputs[0])  # and with gradients


CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "padded": {"kernel_size": 3, "padding": 1},
    "no bias": {"kernel_size": 3, "bias": False},
    "uneven padding": {"kernel_size": (2, 4), "padding": "same"},
    "uneven padding, dilated": {"kernel_size": (4, 2), "padding": "same", "dilation": (3, 1)},
    "valid": {"kernel_size": 2, "padding": "valid"},
    "strided": {"kernel_size": 3, "stride": (2, 3), "padding": (0, 2)},
    "dilated": {"kernel_size": 3, "dilation": (2, 1), "padding": (2, 0)},
    "two groups": {"kernel_size": 3, "groups": 2},
    "depthwise": {"kernel_size": 3, "groups": 4, "padding": 1, "bias": False},
    "one by one": {"kernel_size": 1},
    "everything": {"kernel_size": (3, 2), "stride": 2, "dilation": 2, "padding": (3, 1), "groups": 2},
}
WIDTHS = {"8 bits": (8, 8, 8), "4 bits": (4, 4, 4), "16 bits": (16, 16, 16), "mixed": (8, 4, 16), "32 out": (8, 8, 32)}


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS.keys())
@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_convolution(options, widths):
    layer = nn.Conv2d(4, 8, **options)
    linger.quant_module(layer, data_bits=widths[0], parameter_bits=widths[1], out_bits=widths[2])
    assert_layer_is_exact(layer, torch.randn(2, 4, 9, 8))


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (12,)], ids=["matrix", "three axes", "vector"])
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS.keys())
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_linear(has_bias, widths, shape):
    layer = nn.Linear(12, 40, bias=has_bias)
    linger.quant_module(layer, data_bits=widths[0], parameter_bits=widths[1], out_bits=widths[2])
    assert_layer_is_exact(layer, torch.randn(shape))


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 8, 3), nn.Linear(8, 30)], ids=["Conv2d", "Linear"])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_outputs_beyond_the_range_saturate(bits, layer):
    linger.quant_module(layer, data_bits=bits, parameter_bits=bits, out_bits=bits)
    assert_layer_is_exact(layer, torch.randn(4, 4, 8, 8), is_saturation_wanted=True)


WIDE = {
    "Conv2d 512": (lambda: nn.Conv2d(512, 8, 3), (12, 512, 4, 4)),
    "Conv2d 512, two groups": (lambda: nn.Conv2d(1024, 8, 3, groups=2, bias=False), (12, 1024, 3, 4)),
    "Linear 4096": (lambda: nn.Linear(4096, 8), (40, 4096)),
    "Linear 9000: too wide to split": (lambda: nn.Linear(9000, 8), (40, 9000)),
}


@pytest.mark.parametrize(("make", "shape"), WIDE.values(), ids=WIDE.keys())
def test_sums_beyond_what_float32_holds(make, shape):
    layer = make()
    with torch.no_grad():
        layer.weight.uniform_(0.96, 0.99)  # 8 bits: 123 … 127 of a possible 127
        if layer.bias is not None:
            layer.bias.normal_(0, 100)
    x = torch.rand(shape) * 0.05 + 0.94
    x *= torch.linspace(-1, 1, shape[0]).reshape(-1, *([1] * (len(shape) - 1)))
    assert_layer_is_exact(layer, x, distinct=12)
    model = quantize(nn.Sequential(layer), x)
    made = model[0]
    q = int64.quantized(x.numpy(), made.read("scale_x"), 8)
    w = made.freeze(made.read("scale_x")).weight_integers.numpy()
    total = int64.convolved(q, w, None, made.geometry) if w.ndim == 4 else int64.multiplied(q, w, None)
    assert np.abs(total).max() > FLOAT32_EXACT
    assert (total % 2 == 1).any()  # float32 could not hold these


def test_bias_beyond_what_float32_holds():
    layer = nn.Linear(3, 40)
    with torch.no_grad():
        layer.weight.uniform_(-1e-4, 1e-4)
        layer.bias.uniform_(-900.0, 900.0)
    x = torch.randn(6, 3)
    assert_layer_is_exact(layer, x)
    made = quantize(nn.Sequential(layer), x)[0]
    assert made.freeze(made.read("scale_x")).bias_integers.abs().max() > FLOAT32_EXACT


def test_bias_that_int32_could_not_hold_lowers_the_scale_of_the_weights():
    layer = nn.Linear(2, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1e-6, 0], [0, -1e-6], [1e-6, 1e-6]]))
        layer.bias.copy_(torch.tensor([1e6, -1e6, 5e5]))
    made = quantize(nn.Sequential(layer), torch.rand(4, 2))[0]
    frozen = made.freeze(made.read("scale_x"))
    steps = layer.bias.detach().double() * made.read("scale_x") * frozen.scale_w
    assert frozen.bias_integers.tolist() == torch.floor(steps + 0.5).long().tolist()
    assert 2**30 <= frozen.bias_integers.long().abs().max() < 2**31
    assert frozen.scale_w < 2.0**26  # what the weights alone would have


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(
    groups=st.sampled_from([1, 2, 3]),
    inside=st.integers(1, 5),
    outside=st.integers(1, 4),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.one_of(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.just("same")),
    bits=st.tuples(st.sampled_from([4, 8, 16]), st.sampled_from([4, 8, 16]), st.sampled_from([4, 8, 16])),
    has_bias=st.booleans(),
    magnitude=st.sampled_from([1e-3, 1.0, 300.0]),
    seed=st.integers(0, 2**16),
)
def test_any_convolution(groups, inside, outside, kernel, stride, dilation, padding, bits, has_bias, magnitude, seed):
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Conv2d(
        groups * inside,
        groups * outside,
        kernel,
        stride=1 if padding == "same" else stride,
        dilation=dilation,
        padding=padding,
        groups=groups,
        bias=has_bias,
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * magnitude)
    linger.quant_module(layer, data_bits=bits[0], parameter_bits=bits[1], out_bits=bits[2])
    x = torch.randn(2, groups * inside, 9, 8, generator=generator)
    model = quantize(nn.Sequential(layer), x)
    found, _ = recorded(model, x)
    expected = int64.layer_output(model[0], found["0.Quant"], model[0].read("scale_x"))
    assert_integers(found["0.Conv2dInt"], expected)


def small_net_in_int64(model, x, found):
    """SmallNet's integers, each from the recorded integers before it."""
    scale = {path: layer.read("scale_o") for path, layer in model.named_modules() if "scale_o" in layer._buffers}
    functional = {k.rpartition("_linger_round_tensor_")[2]: v for k, v in scale.items() if "_linger" in k}
    yield "stem.Quant", int64.quantized(x.numpy(), model.stem.read("scale_x"), 8)
    yield "stem.Conv2dInt", int64.layer_output(model.stem, found["stem.Quant"], model.stem.read("scale_x"))
    yield "Relu", np.maximum(found["stem.Conv2dInt"], 0)
    block = model.block
    yield "block.conv1.Conv2dInt", int64.layer_output(block.conv1, found["Relu"], scale["stem"])
    yield "block.relu.Relu", np.maximum(found["block.conv1.Conv2dInt"], 0)
    yield "block.conv2.Conv2dInt", int64.layer_output(block.conv2, found["block.relu.Relu"], scale["block.conv1"])
    total = scale["block._linger_round_tensor_iqadd__default_index_0"]
    operands = (found["block.conv2.Conv2dInt"], found["Relu"])
    yield "block.iqAdd", int64.added(*operands, (scale["block.conv2"], scale["stem"], total))
    yield "block.relu.Relu_1", np.maximum(found["block.iqAdd"], 0)
    yield "pool.MaxPool", int64.pooled_max(found["block.relu.Relu_1"], 2)
    half, one = np.int64(64), np.int64(64)  # 0.5 at scale 128, 1.0 at scale 64
    product, plus = functional["iqmul__default_index_0"], functional["iqadd__default_index_1"]
    yield "iqMul", int64.scaled(found["pool.MaxPool"], half, (total, 128.0, product))
    yield "iqAdd", int64.added(found["iqMul"], one, (product, 64.0, plus))
    yield "relu6.Clip", np.clip(found["iqAdd"], 0, min(127, int(6 * plus)))
    yield "avg.AvgPool2dInt", int64.pooled_mean(found["pool.MaxPool"], 2)
    gated = functional["iqmul__default_index_2"]
    yield "iqMul_1", int64.scaled(found["relu6.Clip"], found["pool.MaxPool"], (plus, total, gated))
    yield "avg.AvgPool2dInt_1", int64.pooled_mean(found["iqMul_1"], 2)
    joined = functional["iqcat_3"]
    halves = [("avg.AvgPool2dInt", total), ("avg.AvgPool2dInt_1", gated)]
    yield "iqCat", np.concatenate([int64.requantized(found[n], s, joined, 8) for n, s in halves], axis=1)
    yield "gap.AvgPool2dInt", int64.pooled_mean(found["iqCat"], 2)
    yield "fc.LinearInt", int64.layer_output(model.fc, found["gap.AvgPool2dInt"][:, :, 0, 0], joined)


@pytest.mark.parametrize("seed", range(3))
def test_whole_network(seed):
    torch.manual_seed(seed)
    x = torch.randn(6, 1, 8, 8)
    model = traced_and_quantized(settle(SmallNet()), x)
    found, outputs = recorded(model, x)
    expected = dict(small_net_in_int64(model, x, found))
    assert list(found) == list(expected)
    for name, integers in expected.items():
        assert_integers(found[name], integers)
        assert len(np.unique(integers)) > 8, f"{name} proves little"
    with torch.no_grad():
        np.testing.assert_array_equal(model(x).dequantize().numpy(), outputs[0])


def test_evaluation_does_not_depend_on_who_watches():
    model, x = traced_and_quantized(settle(SmallNet()), torch.randn(6, 1, 8, 8)), torch.randn(6, 1, 8, 8)
    _, outputs = recorded(model, x)
    with torch.no_grad():
        quiet = model(x).dequantize()
    with torch.inference_mode():
        inference = model(x).dequantize()
    with_gradients = model(x).dequantize()
    one_by_one = torch.cat([model(row[None]).dequantize() for row in x])
    for result in (quiet, inference, with_gradients.detach(), one_by_one.detach()):
        np.testing.assert_array_equal(result.numpy(), outputs[0])
    assert with_gradients.requires_grad


def test_ragged_widths_between_layers_are_requantized():
    model = nn.Sequential(nn.Linear(6, 20), nn.Linear(20, 20), nn.Linear(20, 12))
    linger.quant_module(model[1], data_bits=16, parameter_bits=8, out_bits=16)
    x = torch.randn(5, 6)
    quantize(model, x)
    found, _ = recorded(model, x)
    first, second, third = (model[i].read("scale_o") for i in range(3))
    assert_integers(found["1.Requant"], found["0.LinearInt"].astype(np.int64) * 256)
    assert found["1.Requant"].dtype == np.int16
    assert_integers(found["1.LinearInt"], int64.layer_output(model[1], found["1.Requant"], first * 256))
    assert_integers(found["2.Requant"], int64.requantized(found["1.LinearInt"], second, second / 256, 8))
    assert_integers(found["2.LinearInt"], int64.layer_output(model[2], found["2.Requant"], second / 256))
    assert all(isinstance(layer, QuantLayer) for layer in model)
    assert third > 0
