"""Float tensors that meet parameters first: quantized on the way in, never half of a model."""

import math

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor
from tests.support.quantization import EdgeMode, InputQuantizer, init, runtime_of
from tests.support.wired import quantize


def noise(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class SamePadding(nn.Conv2d):
    """As much padding as the output needs to have size/stride pixels, at the end first."""

    def forward(self, x):
        pads = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class StaticPadding(nn.Conv2d):
    """The padding is a layer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.static_padding = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x):
        x = self.static_padding(x)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Net(nn.Module):
    def __init__(self, kind, *, bias):
        super().__init__()
        self.stem = kind(3, 8, 3, stride=2, bias=bias)
        self.deep = kind(8, 8, 3, stride=2, groups=8, bias=bias)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        h = F.relu(self.deep(F.relu6(self.stem(x))))
        return self.fc(h.mean((2, 3)))


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("kind", [SamePadding, StaticPadding])
def test_convolutions_with_a_forward_of_their_own(kind, bias, tmp_path):
    torch.manual_seed(0)
    model = quantize(Net(kind, bias=bias), noise(4, 3, 12, 12))
    assert linger.coverage(model).float_ops == ()
    path = tmp_path / "model.onnx"
    linger.onnx.export(model, (noise(4, 3, 12, 12),), path)
    assert linger.verify(model, path, [noise(4, 3, 12, 12, seed=5)]).ok
    graph = onnx.load(path).graph
    assert [n.op_type for n in graph.node if n.op_type in ("Quant", "iqPad", "Conv2dInt")] == [
        "Quant", "iqPad", "Conv2dInt", "iqPad", "Conv2dInt"
    ]  # fmt: skip
    assert onnx.TensorProto.FLOAT not in [i.data_type for i in graph.initializer]


def test_training_reaches_every_parameter():
    torch.manual_seed(0)
    model = init(Net(SamePadding, bias=True)).train()
    model(noise(4, 3, 12, 12)).square().sum().backward()
    assert all(float(p.grad.abs().max()) > 0 for p in model.parameters())


def test_the_float_checkpoint_loads():
    torch.manual_seed(0)
    state = Net(SamePadding, bias=True).state_dict()
    model = init(Net(SamePadding, bias=True))
    assert not model.load_state_dict(state).missing_keys


class First(nn.Module):
    """A float input meets a parameter at once."""

    def __init__(self, run):
        super().__init__()
        self.w, self.kernel = nn.Parameter(noise(5, 6)), nn.Parameter(noise(4, 3, 3, 3))
        self.run = run

    def forward(self, x):
        return self.run(self, x)


FIRST = {
    "linear": (lambda m, x: F.linear(x, m.w), (4, 6)),
    "matmul": (lambda m, x: x @ m.w.t(), (4, 6)),
    "conv2d": (lambda m, x: F.conv2d(x, m.kernel, padding=1), (2, 3, 6, 6)),
    "conv2d by keyword": (lambda m, x: F.conv2d(input=x, weight=m.kernel), (2, 3, 6, 6)),
}


@pytest.mark.parametrize(("run", "shape"), FIRST.values(), ids=FIRST.keys())
def test_the_first_product_quantizes_its_input(run, shape, tmp_path):
    model = quantize(First(run), noise(*shape))
    assert isinstance(model(noise(*shape)), QTensor)
    assert linger.coverage(model).float_ops == ()
    assert linger.coverage(model).ops[0].op == "Quant"
    path = tmp_path / "model.onnx"
    linger.onnx.export(model, (noise(*shape),), path)
    assert linger.verify(model, path, [noise(*shape, seed=4)]).ok


def test_models_of_layers_alone_do_not_pay_for_it():
    assert runtime_of(init(nn.Sequential(nn.Linear(3, 3)))).make_edge is None
    assert runtime_of(init(nn.TransformerEncoderLayer(8, 2))).make_edge is None
    assert runtime_of(init(First(FIRST["linear"][0]))).make_edge is EdgeMode


def test_products_of_two_parameters_and_other_floats_stay_what_they_are():
    def run(m, x):
        both = F.linear(m.w, m.w)
        return x @ torch.ones(6, 2), both

    model = quantize(First(run), noise(4, 6))
    assert not any(isinstance(part, QTensor) for part in model(noise(4, 6)))
    assert [o.op for o in linger.coverage(model).float_ops] == ["matmul"]


def test_one_tensor_given_twice_stays_one():
    module = nn.Module()
    model = init(nn.Sequential(module))
    runtime = runtime_of(model)
    quantizer = InputQuantizer(runtime, ("query", "key"))
    x = noise(2, 3)
    runtime.enter("0", module)
    module.train()
    (first, second, rest), named = quantizer(module, (x, x, "mask"), {})
    assert isinstance(first, QTensor)
    assert first is second
    assert (rest, named) == ("mask", {})
    (again,), named = quantizer(module, (first,), {"key": x, "mask": x})
    assert again is first
    assert isinstance(named["key"], QTensor)
    assert named["mask"] is x
    runtime.leave(module)


def test_an_error_in_forward_leaves_no_mode_behind():
    def run(m, x):
        raise RuntimeError("stop")

    model = init(First(run)).eval()
    with pytest.raises(RuntimeError):
        model(noise(4, 6))
    assert not isinstance(F.linear(noise(4, 6), model.w), QTensor)
