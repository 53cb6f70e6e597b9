"""Every kind of layer with weights through the whole road: PTQ, QAT, batch norm, limits, checkpoints, files."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger
from linger import (
    NormalizeConv1d,
    NormalizeConvBN1d,
    NormalizeConvTranspose2d,
    NormalizeConvTransposeBN2d,
    init,
    normalize_layers,
    trace_layers,
)
from tests.support import int64, naive
from tests.support.models import settle
from tests.support.quantization import Limits, scale_for, unwrap
from tests.support.wired import quantize


@dataclass(frozen=True)
class Kind:
    """A layer, a batch norm for it, the shape of its input and torch's function of (layer, x, weight, bias)."""

    make: Callable[..., Any]
    arguments: tuple[int, ...]
    shape: tuple[int, ...]
    function: Callable[..., Tensor]
    options: dict[str, Any]
    pair: type[nn.Module]
    bn: type[nn.Module]
    normalized: type[nn.Module]

    def layer(self) -> Any:
        torch.manual_seed(7)
        return self.make(*self.arguments, **self.options)

    def signal(self, spread: float = 1.0) -> Tensor:
        return spread * torch.randn(self.shape, generator=torch.Generator().manual_seed(3))


def conv1d(layer, x, w, b):
    return layer._conv_forward(x, w, b)


def one_axis(**options):
    pair = {"pair": NormalizeConvBN1d, "bn": nn.BatchNorm1d, "normalized": NormalizeConv1d}
    return Kind(nn.Conv1d, (4, 6, 3), (5, 4, 11), conv1d, options, **pair)


def transposed(layer, x, w, b):
    return F.conv_transpose2d(x, w, b, layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation)


def up(**options):
    pair = {"pair": NormalizeConvTransposeBN2d, "bn": nn.BatchNorm2d, "normalized": NormalizeConvTranspose2d}
    return Kind(nn.ConvTranspose2d, (4, 6, 3), (5, 4, 4, 5), transposed, options, **pair)


KINDS = {
    "1d": one_axis(),
    "1d, strided, padded": one_axis(stride=2, padding=1),
    "1d, same": one_axis(padding="same", dilation=2),
    "1d, groups, no bias": one_axis(groups=2, bias=False),
    "1d, grouped and dilated": one_axis(groups=2, dilation=3, padding=2),
    "transposed": up(),
    "transposed, strided": up(stride=2, padding=1, output_padding=1),
    "transposed, by axis, no bias": up(stride=(2, 3), padding=(1, 0), output_padding=(0, 2), bias=False),
    "transposed, groups": up(groups=2, stride=2),
    "transposed, grouped and dilated": up(groups=2, dilation=(1, 2), padding=1),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def raw(kind):
    """The layer and a batch norm with statistics of its own, float."""
    return settle(nn.Sequential(kind.layer(), kind.bn(kind.arguments[1]))).eval()


def fused(kind):
    """A calibrated pair of the layer and a batch norm that still learns."""
    return quantize(trace_layers(raw(kind), kind.signal()), kind.signal())


def assert_exact(model, x):
    """The evaluation is the integer arithmetic of the definition."""
    layer = model[0]
    with torch.no_grad():
        found = layer(x).integers().numpy()
    scale_x = layer.read("scale_x")
    expected = int64.layer_output(layer, int64.quantized(x.numpy(), scale_x, layer.widths.data), scale_x)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 5


@each_kind
def test_weights_are_kept_and_evaluation_is_exact(kind):
    source = kind.layer()
    model = quantize(nn.Sequential(source), kind.signal())
    assert model[0].weight is source.weight
    assert model[0].bias is source.bias
    assert_exact(model, kind.signal())
    assert_exact(model, kind.signal(4.0))  # saturates


@each_kind
@pytest.mark.parametrize("bits", [(4, 4, 4), (16, 16, 16), (16, 8, 32)], ids=str)
def test_other_widths_are_exact(kind, bits):
    source = nn.Sequential(kind.layer())
    linger.quant_module(source, data_bits=bits[0], parameter_bits=bits[1], out_bits=bits[2])
    assert_exact(quantize(source, kind.signal()), kind.signal())


@each_kind
def test_result_is_near_the_float_layer(kind):
    source, x = kind.layer(), kind.signal()
    with torch.no_grad():
        expected = source(x)
    model = quantize(nn.Sequential(copy.deepcopy(source)), x)
    with torch.no_grad():
        error = unwrap(model(x)) - expected
    assert error.norm() < 0.03 * expected.norm()


@each_kind
def test_training_step_is_the_plain_composition(kind):
    source = kind.layer()
    model = init(nn.Sequential(copy.deepcopy(source))).train()
    mine, x = kind.signal().requires_grad_(), kind.signal().requires_grad_()
    found = model(mine)
    upstream = torch.randn(found.shape)
    found.backward(upstream)
    scale_x = scale_for(float(x.detach().abs().max()), 8)
    scale_w = scale_for(float(source.weight.detach().abs().max()), 8)
    q, w = naive.quantized(x, scale_x, 8), naive.rounded(source.weight, scale_w) / scale_w
    b = None if source.bias is None else naive.quantized(source.bias.double(), scale_x * scale_w, 32).float()
    y = kind.function(source, q, w, b)
    expected = naive.quantized(y, min(scale_for(float(y.detach().abs().max()), 8), scale_x * scale_w), 8)
    expected.backward(upstream)
    assert torch.equal(found.dequantize(), expected)
    pairs = [(mine.grad, x.grad), (model[0].weight.grad, source.weight.grad)]
    pairs += [] if source.bias is None else [(model[0].bias.grad, source.bias.grad)]
    for grad, plain in pairs:  # the same sums of products in another order: at most 100 terms of float32
        assert torch.isfinite(grad).all()
        torch.testing.assert_close(grad, plain, rtol=1e-5, atol=1e-5)


# -- batch norm -------------------------------------------------------------------------------------------------


@each_kind
def test_batch_norm_is_folded_along_the_output_channels(kind):
    model = fused(kind)
    assert model[0].bn is not None
    assert_exact(model, kind.signal())
    twin = raw(kind)
    with torch.no_grad():
        expected = twin(kind.signal())
        error = unwrap(model(kind.signal())) - expected
    assert error.norm() < 0.05 * expected.norm()


@each_kind
def test_batch_norm_goes_on_learning(kind):
    x, twin = kind.signal(), raw(kind).train()
    model = init(trace_layers(raw(kind), x)).train()  # not calibrated: the first batch sets the range, none saturates
    found, expected = model(x), twin(x)
    upstream = torch.randn(expected.shape)
    found.backward(upstream)
    expected.backward(upstream)
    pairs = [
        (model[0].bn.running_mean, twin[1].running_mean),
        (model[0].bn.running_var, twin[1].running_var),
        (model[0].bn.weight.grad, twin[1].weight.grad),
        (model[0].bn.bias.grad, twin[1].bias.grad),
        (model[0].weight.grad, twin[0].weight.grad),
    ]
    for mine, plain in pairs:  # 8 bits: about one percent, a few in a gradient
        assert torch.isfinite(mine).all()
        assert (mine - plain).norm() < 0.1 * plain.norm()


@each_kind
@pytest.mark.thin(every=8)
def test_a_trained_model_is_exact_and_so_is_its_file(kind, tmp_path):
    model = fused(kind).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        model(kind.signal()).dequantize().square().mean().backward()
        optimizer.step()
    assert_exact(model.eval(), kind.signal())
    assert verified(model, kind.signal(), tmp_path / "net.onnx").integers > 100


@each_kind
@pytest.mark.thin(every=8)
def test_two_layers_with_relu_between_them(kind, tmp_path):
    """The first saturates at zero for the second, whose products then have a sharper bound."""
    inner = kind.layer()
    channels = kind.arguments[1]
    outer = kind.make(channels, channels, 3, padding=1)
    model = settle(nn.Sequential(inner, kind.bn(channels), nn.ReLU(), outer)).eval()
    model = quantize(trace_layers(model, kind.signal()), kind.signal())
    assert model[0].is_ahead_of_relu
    with torch.no_grad():
        first = model[0](kind.signal())
        assert first.is_nonnegative
        found = model(kind.signal()).integers().numpy()
    expected = int64.layer_output(model[3], first.integers().numpy(), first.scale)
    np.testing.assert_array_equal(found, expected)
    verified(model, kind.signal(), tmp_path / "net.onnx")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("is_transposed", [False, True], ids=["1d", "transposed"])
def test_sums_beyond_float32_are_exact(is_transposed, groups, tmp_path):
    # 1200 weights of 127 in a group, and inputs of ±127: up to 19 354 800 > 2^24
    channels = 1200 * groups
    layer = nn.ConvTranspose2d(channels, 2 * groups, 1, groups=groups) if is_transposed else nn.Conv1d(
        channels, 2 * groups, 1, groups=groups
    )  # fmt: skip
    nn.init.constant_(layer.weight, 127 / 128)
    x = torch.where(torch.rand(3, channels, 2) < 0.9, 127 / 128, -3 / 128)
    x = x[..., None] if is_transposed else x
    model = nn.Sequential(layer)
    linger.quant_module(model, out_bits=32)
    model = quantize(model, x)
    with torch.no_grad():
        found = model(x).integers().numpy()
    assert np.abs(found).max() > 2**24
    scale_x = model[0].read("scale_x")
    np.testing.assert_array_equal(found, int64.layer_output(model[0], int64.quantized(x.numpy(), scale_x, 8), scale_x))
    verified(model, x, tmp_path / "net.onnx")


# -- limits -----------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("has_bn", [False, True], ids=["layer", "pair"])
def test_limits_are_kept(kind, has_bn):
    limits = {"normalize_weight": 0.125, "normalize_bias": 0.25, "normalize_data": 0.5}
    torch.manual_seed(7)
    source = (kind.pair if has_bn else kind.normalized)(*kind.arguments, **kind.options, **limits)
    model = quantize(nn.Sequential(settle(source).eval()), kind.signal())
    layer = model[0]
    assert layer.limited_to == Limits(0.125, 0.25, 0.5)
    frozen = layer.freeze(layer.read("scale_x"))
    assert frozen.weight.abs().max() <= 0.125
    assert frozen.bias is None or frozen.bias.abs().max() <= 0.25
    assert unwrap(model(kind.signal())).abs().max() <= 0.5
    assert_exact(model, kind.signal())
    model.train()
    model(kind.signal()).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


# -- checkpoints ------------------------------------------------------------------------------------------------


@each_kind
def test_checkpoints_of_every_earlier_stage_load(kind):
    source = raw(kind)
    torch.manual_seed(11)
    nn.init.normal_(source[0].weight, std=0.3)
    traced = trace_layers(copy.deepcopy(source), kind.signal())
    limited = normalize_layers(copy.deepcopy(traced))
    expected = quantize(copy.deepcopy(limited), kind.signal())
    for stage in (source, traced, limited, expected):
        checkpoint = stage.state_dict()
        model = init(normalize_layers(trace_layers(raw(kind), kind.signal()))).eval()
        model.load_state_dict(checkpoint, strict=True)
        with linger.calibration():
            model(kind.signal())
        with torch.no_grad():
            assert torch.equal(model(kind.signal()).integers(), expected(kind.signal()).integers())


# -- the size of a transposed convolution's output --------------------------------------------------------------


class Upsampled(nn.Module):
    """A transposed convolution whose caller says how large the output is."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.up(x, output_size=[8, 9]))


@pytest.mark.parametrize("has_bn", [False, True], ids=["layer", "pair"])
def test_output_size_is_honored(has_bn, tmp_path):
    torch.manual_seed(3)
    model, x = settle(Upsampled()).eval(), torch.randn(2, 3, 4, 5)
    if has_bn:
        trace_layers(model, x)
    with torch.no_grad():
        expected = model(x)
    model = quantize(model, x)
    with torch.no_grad():
        found = unwrap(model(x))
    assert found.shape == expected.shape == (2, 4, 8, 9)
    assert (found - expected).norm() < 0.05 * expected.norm()
    path = tmp_path / "net.onnx"
    verified(model, x, path)
    node = next(node for node in onnx.load(path).graph.node if node.op_type == "ConvTranspose2dInt")
    assert {a.name: list(a.ints) for a in node.attribute if a.ints}["output_padding"] == [1, 0]


def test_work_of_a_transposed_convolution_is_counted_by_its_inputs():
    kind = KINDS["transposed, groups"]
    model = quantize(nn.Sequential(kind.layer()), kind.signal())
    (record,) = [op for op in linger.coverage(model).integer_ops if op.op == "ConvTranspose2dInt"]
    assert record.macs == 5 * 4 * 4 * 5 * (6 // 2) * 3 * 3  # every input meets each tap of its group's outputs


def test_an_edit_behind_torchs_back_that_swaps_output_channels_is_seen():
    model = quantize(nn.Sequential(nn.ConvTranspose2d(40, 40, 3)), torch.randn(1, 40, 4, 4))
    x = torch.randn(1, 40, 4, 4)
    with torch.no_grad():
        before = model(x).integers().clone()
        model[0].weight.data.copy_(model[0].weight.data.flip(1).clone())
        after = model(x).integers()
    assert not torch.equal(before, after)


# -- the file ---------------------------------------------------------------------------------------------------


def verified(model, x, path, **options):
    linger.onnx.export(model, (x,), path, **options)
    result = linger.verify(model, path, [x, 3 * x])
    assert result.differing == 0
    assert result.ok
    return result


FILES = [
    ("dialect", 11),
    ("dialect", 12),
    ("dialect", 18),
    ("dialect", 20),
    ("bare", 12),
    ("standard", 11),
    ("standard", 20),
]


@each_kind
@pytest.mark.parametrize(("form", "opset"), FILES, ids=str)
@pytest.mark.thin(every=6)
def test_the_file_computes_every_integer_of_the_model(kind, form, opset, tmp_path):
    path = tmp_path / "net.onnx"
    verified(fused(kind), kind.signal(), path, form=form, opset_version=opset)
    if form != "standard":
        node = onnx.load(path).graph.node[1]
        names = {a.name for a in node.attribute}
        assert {
            "data_bits",
            "scale_w",
            "dilations",
            "group",
            "kernel_shape",
            "pads",
            "strides",
            "platform_quant",
        } <= names


@each_kind
@pytest.mark.thin(every=2)
def test_an_open_batch_size_stays_open(kind, tmp_path):
    model, x, path = fused(kind), kind.signal(), tmp_path / "net.onnx"
    linger.onnx.export(model, (x,), path, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    with torch.no_grad():
        expected = unwrap(model(x[:2])).numpy()
    np.testing.assert_array_equal(linger.Session(path).run(None, {"x": x[:2].numpy()})[0], expected)


@each_kind
def test_the_newer_exporter_writes_the_same_integers(kind, tmp_path):
    verified(fused(kind), kind.signal(), tmp_path / "net.onnx", dynamo=True, opset_version=18)


@each_kind
@pytest.mark.thin(every=2)
def test_qdq_is_as_exact_as_it_says(kind, tmp_path):
    model, x, path = fused(kind), kind.signal(), tmp_path / "net.onnx"
    linger.onnx.export(model, (x,), path, form="qdq", opset_version=13)
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert operators & {"Conv", "ConvTranspose"}
    assert "DequantizeLinear" in operators
