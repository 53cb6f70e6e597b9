"""A torch.autograd.Function behind quantized layers in an exported file: inlined, or the node that it is declared as."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import linger
from tests.support.wired import Wired, image, quantize

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


class Tripled(torch.autograd.Function):
    """Integers inside."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return (x * factor).relu()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Waves(torch.autograd.Function):
    """Real values and integers inside, a real and a quantized result."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x), x.flip(-1)

    @staticmethod
    def backward(ctx, gradient, other):
        return gradient * torch.cos(ctx.saved_tensors[0]) + other.flip(-1)


def tripled(net, x):
    return net.last(Tripled.apply(net.first(x), 3.0))


def waves(net, x):
    y = net.first(x)
    outside = torch.cos(y)  # the real values are known before the function is met
    real, moved = Waves.apply(y)
    return net.last(real) + outside[:, :3], net.last(moved)


def repeated(net, x):
    return checkpoint(net.last, net.first(x), use_reentrant=False)


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.first, self.last, self.run = nn.Linear(4, 5), nn.Linear(5, 3), run

    def forward(self, x):
        return self.run(self, x)


def quantized(run):
    torch.manual_seed(0)
    net = linger.init(Net(run)).eval()
    with linger.calibration():
        net(X)
    return net


@pytest.mark.parametrize("run", [tripled, waves, repeated], ids=lambda run: run.__name__)
def test_file_computes_the_integers_of_the_model(tmp_path, run):
    net, path = quantized(run), tmp_path / "net.onnx"
    axes = {"x": {0: "batch"}}
    linger.onnx.export(net, (X,), path, input_names=["x"], dynamic_axes=axes)
    for inputs in (X, X[:2]):
        assert linger.verify(net, path, inputs).ok
    types = [node.op_type for node in onnx.load(path).graph.node]
    assert types.count("Quant") == (3 if run is waves else 1)  # the input, what sin has made, and cos


@pytest.mark.filterwarnings("ignore:The shape inference of custom")
def test_declared_function_is_a_node_that_gets_real_values(tmp_path, capfd):
    body = """<opset_import: ["" : 12], domain: "custom"> Tripled <factor> (x) => (y) {
        f = Constant<value_float: float = @factor>()
        z = Mul(x, f)
        y = Relu(z)
    }"""
    net, path = quantized(tripled), tmp_path / "net.onnx"
    with linger.onnx.operator(Tripled, to="custom::Tripled", body=body):
        linger.onnx.export(net, (X,), path, input_names=["x"], output_names=["y"])
    types = [node.op_type for node in onnx.load(path).graph.node]
    assert types == ["Quant", "LinearInt", "Dequant", "Tripled", "Quant", "LinearInt", "Dequant"]
    found = linger.Session(path).run(None, {"x": X.numpy()})[0]
    with torch.no_grad():
        np.testing.assert_array_equal(found, net(X).numpy())
    capfd.readouterr()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoint_is_refused_as_torch_itself_does(tmp_path):
    net = quantized(lambda net, x: checkpoint(net.last, net.first(x), use_reentrant=True))
    with pytest.raises(linger.LingerError, match="use_reentrant=False"):
        linger.onnx.export(net, (X,), tmp_path / "net.onnx")


def test_wide_integers_beside_a_function_are_refused(tmp_path):
    torch.manual_seed(0)
    net = Net(tripled)
    linger.quant_module(net.first, data_bits=8, parameter_bits=8, out_bits=32)
    net = linger.init(net).eval()
    with linger.calibration():
        net(X)
    with pytest.raises(linger.LingerError, match=r"32 bits.*quant_module"):
        linger.onnx.export(net, (X,), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
    net(X)  # and the model is as before


def test_sizes_of_quantized_tensors_need_no_second_trace(tmp_path, monkeypatch):
    monkeypatch.setattr("linger.onnx.exporter.export.WrapperTrace", None)  # made only where a function is met

    def forward(m, x):
        y = F.pad(m.conv(x), (1, 2, 1, 1), mode="reflect")
        return F.relu6(y).mean((2, 3)), F.softmax(y, 1), F.adaptive_avg_pool2d(y, 1), y.reshape(y.shape[0], -1) + 0.5

    model = quantize(Wired(forward), image())
    linger.onnx.export(model, (image(),), tmp_path / "m.onnx", verify=True)


class Declared(torch.autograd.Function):
    """Says itself which node it is; 0.3 is no constant of 8 bits."""

    @staticmethod
    def forward(ctx, x):
        return x * 0.3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.3

    @staticmethod
    def symbolic(g, x):
        return g.op("Mul", x, g.op("Constant", value_t=torch.tensor(0.3)))


def test_a_function_with_a_symbolic_is_that_node_in_file_and_simulation(tmp_path):
    model = quantize(Wired(lambda m, x: m.conv2(Declared.apply(m.conv(x)))), image())
    assert [op.reason for op in linger.coverage(model).float_ops] == [
        "Declared has a symbolic, which the file has instead"
    ]
    linger.onnx.export(model, (image(),), tmp_path / "m.onnx")
    assert "Mul" in [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node]
    proof = linger.verify(model, tmp_path / "m.onnx", (image(seed=2),))
    assert (proof.ok, proof.differing, proof.missing) == (True, 0, ())
    model.train()(image()).dequantize().sum().backward()
    assert model.conv.weight.grad.abs().sum() > 0
