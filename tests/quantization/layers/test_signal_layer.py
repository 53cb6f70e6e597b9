"""nn.ConvTranspose1d and F.conv_transpose1d: the transposed convolution of an image of one row."""

import copy

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import init
from tests.support.quantized_layers import TransposedSignalLayer
from tests.support.wired import quantize


def signal(batch=2, channels=4, length=7, seed=1):
    return torch.randn(batch, channels, length, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    """A layer of one kind, with the size that its caller wants."""

    def __init__(self, *args, size=None, norm=False, **kwargs):
        super().__init__()
        self.up = nn.ConvTranspose1d(*args, **kwargs)
        self.bn = nn.BatchNorm1d(args[1]) if norm else nn.Identity()
        self.size = size

    def forward(self, x):
        y = self.up(x) if self.size is None else self.up(x, self.size)
        return torch.relu(self.bn(y))


GEOMETRIES = {
    "plain": {},
    "strided": {"stride": 2},
    "padded": {"stride": 3, "padding": 2},
    "output padding": {"stride": 3, "padding": 1, "output_padding": 2},
    "dilated": {"dilation": 2, "padding": 1},
    "two groups": {"groups": 2, "stride": 2},
    "depthwise": {"groups": 4, "padding": 1},
    "no bias": {"bias": False},
}


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.thin
def test_every_geometry_equals_the_file_and_nearly_the_float_layer(geometry, tmp_path):
    torch.manual_seed(0)
    net = Net(4, 8, 3, **geometry)
    expected = net(signal())
    model = quantize(net, signal())
    assert isinstance(model.up, TransposedSignalLayer)
    assert linger.coverage(model).float_ops == ()
    result = model(signal())
    assert result.shape == expected.shape
    # steps of 1/32 or finer: input and output round by half a step, 12 products by half a step of weight and input each
    assert torch.allclose(result, expected, atol=0.1)
    linger.onnx.export(model, (signal(),), tmp_path / "m.onnx")
    nodes = [n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node]
    assert nodes.count("ConvTranspose2dInt") == 1
    assert linger.verify(model, tmp_path / "m.onnx", [signal(seed=5), signal(batch=2, seed=6)]).ok


def test_the_integers_by_hand():
    layer = nn.ConvTranspose1d(1, 1, 2, stride=2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[1.0, -0.5]]]))
        layer.bias.copy_(torch.tensor([0.25]))
    model = quantize(nn.Sequential(layer), torch.tensor([[[1.0, -1.0]]]))
    # x: 1 → scale 64; w: 1 → 64; each input gives two outputs, x·1 + ¼ and −x/2 + ¼: 1¼, −¼, −¾, ¾.
    # the largest is 1.25 → scale 64: 1.25·64 = 80, −16, −48, 48
    result = model[0](torch.tensor([[[1.0, -1.0]]]))
    assert result.scale == 64.0
    assert result.integers().tolist() == [[[80, -16, -48, 48]]]
    # 0.5 → q = 32: (32·64 + 1024)/64 = 48 and (−32·32 + … ): −16 + 16 = 0
    assert model[0](torch.tensor([[[0.5]]])).integers().tolist() == [[[48, 0]]]


@pytest.mark.parametrize("size", [[15], (16,), [2, 8, 16]], ids=["shortest", "longest", "with all axes"])
def test_the_callers_output_size(size, tmp_path):
    torch.manual_seed(0)
    model = quantize(Net(4, 8, 3, stride=2, size=size), signal())
    assert model(signal()).shape == (2, 8, size[-1])
    linger.onnx.export(model, (signal(),), tmp_path / "m.onnx")
    assert linger.verify(model, tmp_path / "m.onnx", [signal(seed=5)]).ok


def test_a_wrong_output_size_is_torchs_error():
    with pytest.raises(ValueError, match="output size"):
        quantize(Net(4, 8, 3, stride=2, size=[40]), signal())
    with pytest.raises(ValueError, match="output_size must have"):
        quantize(Net(4, 8, 3, stride=2, size=[8, 16]), signal())


def test_without_a_batch():
    torch.manual_seed(0)
    model = quantize(Net(4, 8, 3, stride=2), signal())
    x = signal(batch=1, seed=3)
    assert torch.equal(model(x[0]), model(x)[0])


@pytest.mark.parametrize(("data", "parameter", "output"), [(8, 4, 8), (16, 8, 16), (8, 8, 32), (4, 4, 4)])
def test_widths(data, parameter, output, tmp_path):
    torch.manual_seed(0)
    net = Net(4, 8, 3, stride=2)
    linger.quant_module(net, data_bits=data, parameter_bits=parameter, out_bits=output)
    model = quantize(net, signal())
    linger.onnx.export(model, (signal(),), tmp_path / "m.onnx")
    assert linger.verify(model, tmp_path / "m.onnx", [signal(seed=5)]).ok


def test_keys_and_shapes_are_those_of_the_float_layer():
    float_state = Net(4, 8, 3).state_dict()
    model = init(Net(4, 8, 3))
    state = model.state_dict()
    assert {key: state[key].shape for key in float_state} == {key: value.shape for key, value in float_state.items()}
    model.load_state_dict(float_state)
    assert torch.equal(model.up.weight, float_state["up.weight"])


def test_the_batch_norm_is_fused_and_learns(tmp_path):
    torch.manual_seed(0)
    net = Net(4, 6, 3, stride=2, groups=2, norm=True)
    with torch.no_grad():
        net.bn.running_mean.uniform_(-1, 1)
        net.bn.running_var.uniform_(0.5, 2)
        net.bn.weight.uniform_(0.5, 1.5)
    expected = copy.deepcopy(net).eval()(signal())
    linger.trace_layers(net, net, signal())
    assert isinstance(net.up, linger.NormalizeConvTransposeBN1d)
    assert torch.allclose(net.eval()(signal()), expected, atol=1e-5)  # another order of the same sums
    float_pass = copy.deepcopy(net).train()
    model = init(net).train()
    assert model.up.is_ahead_of_relu
    learned = model(signal())
    # both normalize by the batch; the integers round input, weights (scale 32 or finer) and output
    assert torch.allclose(learned, float_pass(signal()), atol=0.15)
    assert torch.allclose(model.up.bn.running_mean, float_pass.up.bn.running_mean, atol=0.02)
    learned.square().sum().backward()
    assert model.up.weight.grad.abs().max() > 0
    model.eval()
    with linger.calibration():
        model(signal())
    linger.onnx.export(model, (signal(),), tmp_path / "m.onnx")
    assert linger.verify(model, tmp_path / "m.onnx", [signal(seed=5)]).ok


def test_limits_on_a_fused_pair_are_kept_by_the_integers(tmp_path):
    torch.manual_seed(0)
    net = linger.trace_layers(Net(4, 6, 3, norm=True), signal())
    kinds = [linger.NormalizeConvTransposeBN1d]
    linger.normalize_layers(net, normalize_modules=kinds, normalize_weight_value=0.125, normalize_output_value=1.0)
    expected = copy.deepcopy(net).eval()(signal())
    model = init(net).train()
    model(signal()).square().sum().backward()
    model.eval()
    with linger.calibration():
        model(signal())
    assert float(model(signal()).detach().max()) <= 1.0
    assert float(expected.detach().max()) <= 1.0
    # −0.125 and 0.125 − 1/1024 are the ends of 8 bits at scale 1024
    assert model.state_dict()["up.scale_w"] == 1024.0


class Functional(nn.Module):
    def __init__(self, *, own_forward):
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.weight, self.bias = nn.Parameter(torch.randn(4, 3, 3)), nn.Parameter(torch.randn(6))
        self.up = Doubling(4, 6, 3, groups=2) if own_forward else None

    def forward(self, x):
        if self.up is not None:
            return self.up(x)
        x = torch.relu(self.conv(x))
        return F.conv_transpose1d(x, self.weight, self.bias, stride=3, padding=1, output_padding=2, groups=2)


class Doubling(nn.ConvTranspose1d):
    def forward(self, x):
        return F.conv_transpose1d(x, self.weight, self.bias, 2, 1, 1, self.groups, 1)


@pytest.mark.parametrize("own_forward", [False, True], ids=["function", "subclass"])
def test_the_function(own_forward, tmp_path):
    torch.manual_seed(0)
    net = Functional(own_forward=own_forward)
    expected = net(signal())
    model = quantize(net, signal())
    assert linger.coverage(model).float_ops == ()
    result = model(signal())
    # up to 12 products of numbers up to 3, each with the rounding of 8-bit operands
    assert torch.allclose(result, expected, atol=0.3)
    linger.onnx.export(model, (signal(),), tmp_path / "m.onnx")
    nodes = [n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node]
    assert nodes.count("ConvTranspose2dInt") == 1
    assert linger.verify(model, tmp_path / "m.onnx", [signal(seed=5)]).ok


def test_an_open_batch_size(tmp_path):
    model = quantize(Net(4, 8, 3, stride=2), signal())
    axes = {"x": {0: "n"}}
    linger.onnx.export(model, (signal(),), tmp_path / "m.onnx", input_names=["x"], dynamic_axes=axes)
    assert linger.verify(model, tmp_path / "m.onnx", [signal(batch=5)]).ok
