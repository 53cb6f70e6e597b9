"""Parameters and buffers as operands: constants of 8 bits that learn."""

import onnx
import pytest
import torch
from torch import nn

import linger
from linger import QTensor
from tests.support.functions import as_constant, is_fixed, is_state, note_derived
from tests.support.quantization import Runtime, dispatch
from tests.support.wired import quantize


def noise(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.position = nn.Parameter(noise(1, 4, 6))
        self.gamma = nn.Parameter(noise(6))
        self.token = nn.Parameter(noise(1, 1, 6))
        self.register_buffer("fixed", noise(4, 1, seed=5))
        self.run = run

    def forward(self, x):
        return self.run(self, self.fc(x))


CASES = {
    "position": lambda m, h: h + m.position,
    "position first": lambda m, h: m.position + h,
    "slice": lambda m, h: h[:, :3] + m.position[:, :3],
    "gain": lambda m, h: h * m.gamma,
    "buffer": lambda m, h: h - m.fixed,
    "token": lambda m, h: torch.cat([m.token.expand(h.shape[0], -1, -1), h], 1),
    "larger": lambda m, h: torch.maximum(h, m.gamma),
    "matrix first": lambda m, h: m.position[:, :, :4] @ h,
}


@pytest.mark.parametrize("run", CASES.values(), ids=CASES.keys())
@pytest.mark.thin
def test_they_are_integers_in_the_model_and_in_the_file(run, tmp_path):
    x = noise(5, 4, 6, seed=6)
    model = quantize(Net(run), x)
    result = model(x)
    assert isinstance(result, QTensor)
    assert not linger.coverage(model).float_ops
    expected = run(model, model.fc(x).dequantize())
    # the constant is off by half of its step (|c| < 4: 1/64), the sum rounds both operands once more, a product of
    # numbers up to 4 is off by 4/64, one over four terms by four times that
    assert float((result.dequantize() - expected).detach().abs().max()) < 4 * 4 / 64 + 1 / result.scale
    path = tmp_path / "model.onnx"
    axes = {"x": {0: "batch"}}
    linger.onnx.export(model, (x,), path, input_names=["x"], dynamic_axes=axes)
    assert linger.verify(model, path, [x, noise(2, 4, 6, seed=7)]).differing == 0  # any number of rows
    floats = [i.name for i in onnx.load(path).graph.initializer if i.data_type == onnx.TensorProto.FLOAT]
    assert floats == (["token"] if run is CASES["token"] else [])  # whose shape alone is asked for


def test_integers_by_hand():
    runtime = Runtime(dispatch)
    module = nn.Module()
    module.p = nn.Parameter(torch.tensor([0.3, -1.0, 0.0]))
    runtime.enter("", module)
    found = as_constant(module.p, runtime)
    # 127/1 → scale 64; 0.3·64 = 19.2 → 19
    assert (found.scale, found.bits) == (64.0, 8)
    assert found.integers().tolist() == [19, -64, 0]


@pytest.mark.parametrize("name", ["position", "gain", "token"])
def test_they_learn(name):
    model = quantize(Net(CASES[name]), noise(5, 4, 6)).train()
    model(noise(5, 4, 6)).square().sum().backward()
    parameter = {"position": model.position, "gain": model.gamma, "token": model.token}[name]
    assert torch.isfinite(parameter.grad).all()
    assert float(parameter.grad.abs().max()) > 0


def test_gradient_is_that_of_the_float_sum():
    model = quantize(Net(CASES["position"]), noise(5, 4, 6)).train()
    model(noise(5, 4, 6)).sum().backward()
    # nothing saturates: d(sum)/dp is the number of rows
    assert torch.equal(model.position.grad, torch.full_like(model.position, 5.0))


def test_only_the_models_own_memory_counts():
    runtime = Runtime(dispatch)
    module = nn.Linear(3, 2)
    assert not is_state(module.weight, runtime)  # nothing is running
    runtime.enter("", module)
    assert is_state(module.weight, runtime)
    assert is_state(module.weight[1:].t(), runtime)
    other = module.weight * 2
    assert not is_state(other, runtime)
    assert not is_state(torch.ones(2), runtime)
    assert not is_state(3.0, runtime)
    assert as_constant(other, runtime) is None
    # in a watched pass it is known what it was made of
    assert note_derived([module.weight], [other], runtime)
    assert is_fixed(other, runtime)
    assert not note_derived([torch.ones(2)], [torch.ones(2)], runtime)
    runtime.leave(module)
    runtime.enter("", module)
    assert not is_fixed(other, runtime)


def test_infinite_constants_are_none():
    runtime = Runtime(dispatch)
    module = nn.Module()
    module.register_buffer("c", torch.tensor([1.0, float("inf")]))
    runtime.enter("", module)
    assert as_constant(module.c, runtime) is None


def test_a_float_module_keeps_its_parameters_float():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(noise(6))

        def forward(self, x):
            return x + self.p

    model = nn.Sequential(nn.Linear(6, 6), linger.disable_quant(Half()))
    model = quantize(model, noise(3, 6))
    assert [o.op for o in linger.coverage(model).float_ops] == ["add"]


def test_the_newer_exporter_knows_them(tmp_path):
    model = quantize(Net(CASES["position"]), noise(5, 4, 6))
    path = tmp_path / "model.onnx"
    linger.onnx.export(model, (noise(5, 4, 6),), path, dynamo=True, opset_version=18)
    assert linger.verify(model, path, [noise(5, 4, 6, seed=8)]).differing == 0
