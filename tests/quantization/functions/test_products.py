"""F.linear and F.conv2d with parameters: the integers of a layer with the same weight, in every pass and in the file."""

import copy

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init
from linger.errors import UsageError
from tests.support.functions import MATRIX_PRODUCTS, Product, Refusal, _as_layer
from tests.support.wired import quantize


def noise(*shape, seed=3, spread=1.0):
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Functional(nn.Module):
    """A layer's parameters, and a function of them."""

    def __init__(self, layer, run):
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().clone())
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())
        self.run = run

    def forward(self, x):
        return self.run(self, x)


class After(nn.Module):
    """The layer to look at comes after a quantized one."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(self.first(x))


torch.manual_seed(5)
CASES = {
    "linear": (nn.Linear(6, 5), lambda m, x: F.linear(x, m.weight, m.bias), (4, 6)),
    "linear by keyword": (nn.Linear(6, 5), lambda m, x: F.linear(input=x, weight=m.weight, bias=m.bias), (4, 6)),
    "linear without bias": (nn.Linear(6, 5, bias=False), lambda m, x: F.linear(x, m.weight), (2, 4, 6)),
    "x @ wᵀ": (nn.Linear(6, 5, bias=False), lambda m, x: x @ m.weight.t(), (4, 6)),
    "torch.mm": (nn.Linear(6, 5, bias=False), lambda m, x: torch.mm(x, m.weight.T), (4, 6)),
    "matmul by keyword": (nn.Linear(6, 5, bias=False), lambda m, x: torch.matmul(x, other=m.weight.t()), (2, 4, 6)),
    "conv1d": (nn.Conv1d(4, 6, 3, 2, 1), lambda m, x: F.conv1d(x, m.weight, m.bias, 2, 1), (2, 4, 9)),
    "conv1d, same": (
        nn.Conv1d(4, 6, 4, padding="same"),
        lambda m, x: F.conv1d(x, m.weight, m.bias, padding="same"),
        (2, 4, 9),
    ),
    "conv2d": (
        nn.Conv2d(4, 6, 3, 2, 1, 1, 2),
        lambda m, x: torch.conv2d(x, m.weight, m.bias, (2, 2), 1, (1, 1), 2),
        (2, 4, 7, 8),
    ),
    "conv2d without bias": (nn.Conv2d(4, 6, (1, 3), bias=False), lambda m, x: F.conv2d(x, m.weight), (2, 4, 7, 8)),
    "conv_transpose2d": (
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2),
        lambda m, x: F.conv_transpose2d(x, m.weight, m.bias, 2, 1, output_padding=1, groups=2),
        (2, 4, 5, 5),
    ),
}


def first_for(shape):
    return nn.Linear(shape[-1], shape[-1])


def pair(name):
    """A model with a layer and one with the function, behind the same first layer, calibrated with the same data."""
    layer, run, shape = CASES[name]
    torch.manual_seed(1)
    first = first_for(shape)
    as_layer = quantize(After(copy.deepcopy(first), copy.deepcopy(layer)), noise(*shape))
    as_function = quantize(After(copy.deepcopy(first), Functional(layer, run)), noise(*shape))
    return as_layer, as_function, noise(*shape, seed=8)


@pytest.mark.parametrize("name", CASES)
def test_integers_are_those_of_the_layer(name):
    layer, function, x = pair(name)
    expected, result = layer(x), function(x)
    assert isinstance(result, QTensor)
    assert (result.scale, result.bits) == (expected.scale, expected.bits)
    assert torch.equal(result.integers(), expected.integers())
    assert not linger.coverage(function).float_ops
    with torch.no_grad():  # with and without a gradient
        assert torch.equal(function(x).integers(), expected.integers())


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_layer(name):
    layer, function, x = pair(name)
    gradients = []
    for model in (layer, function):
        model.train()
        model(x).square().sum().backward()
        gradients.append([model.second.weight.grad, model.second.bias.grad if model.second.bias is not None else None])
        gradients[-1].append(model.first.weight.grad)
    for of_layer, of_function in zip(*gradients, strict=True):
        assert (of_layer is None) == (of_function is None)
        if of_layer is not None:
            assert torch.allclose(of_layer, of_function, rtol=1e-4, atol=1e-5)  # float32 sums in another order


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thin
def test_the_file_has_integer_weights_and_the_same_integers(name, tmp_path):
    _, function, x = pair(name)
    path = tmp_path / "model.onnx"
    linger.onnx.export(function, (x,), path)
    assert linger.verify(function, path, [x, noise(*x.shape, seed=9)]).differing == 0
    graph = onnx.load(path).graph
    kinds = {i.name: i.data_type for i in graph.initializer}
    assert kinds["second.weight"] == onnx.TensorProto.INT8
    assert kinds.get("second.bias", onnx.TensorProto.INT32) == onnx.TensorProto.INT32
    assert set(kinds.values()) == {onnx.TensorProto.INT8, onnx.TensorProto.INT32}


def test_numbers_by_hand():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([[0.5, -1.0]]))
            self.b = nn.Parameter(torch.tensor([0.25]))

        def forward(self, x):
            return F.linear(x, self.w, self.b)

    model = quantize(Net(), torch.tensor([[1.0, -1.0]]))
    # |x| ≤ 1 → scale 64, |w| ≤ 1 → 64, the largest result 1·½ + 1·1 + ¼ = 1.75 → 127/1.75 = 72.6 → 64
    layer = model.get_submodule("_linger_round_tensor_function_linear_0")
    scales = [layer.read(f"scale_{name}") for name in "xwo"]
    assert scales == [64.0, 64.0, 64.0]
    # q = 64, −32: 64·32 + (−32)·(−64) + ¼·4096 = 2048 + 2048 + 1024 = 5120, /64 = 80
    result = model(torch.tensor([[1.0, -0.5]]))
    assert result.integers().tolist() == [[80]]


def test_an_optimizer_learns_the_parameters():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(noise(3, 5, spread=0.3))

        def forward(self, x):
            return F.linear(x, self.w)

    model = init(Net()).train()
    x, target = noise(32, 5), noise(32, 5) @ noise(5, 3, seed=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (model(x).dequantize() - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.02 * losses[0]
    model.eval()
    # evaluation sees the learned weights, not some kept from before
    assert float((model(x).dequantize() - target).detach().square().mean()) < 0.03 * losses[0]


WEIGHTS = {
    "slice": lambda m: m.table[2:5],
    "computed": lambda m: m.table[:3] * m.gain,
    "buffer": lambda m: m.fixed,
    "transposed view": lambda m: m.other.t(),
}


class Computed(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.table, self.other = nn.Parameter(noise(6, 4)), nn.Parameter(noise(4, 3))
        self.gain = nn.Parameter(torch.tensor([[1.5], [0.5], [1.0]]))
        self.register_buffer("fixed", noise(3, 4))
        self.weight = weight

    def forward(self, x):
        return F.linear(self.first(x), self.weight(self))


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_slices_computed_values_and_buffers_are_weights(weight, tmp_path):
    model = quantize(Computed(weight), noise(8, 4))
    assert not linger.coverage(model).float_ops
    path = tmp_path / "model.onnx"
    linger.onnx.export(model, (noise(8, 4),), path)
    assert linger.verify(model, path, [noise(8, 4, seed=6)]).differing == 0
    assert {i.data_type for i in onnx.load(path).graph.initializer} == {onnx.TensorProto.INT8, onnx.TensorProto.INT32}
    model.train()
    model(noise(8, 4)).sum().backward()
    assert (model.table.grad is not None) is (weight in (WEIGHTS["slice"], WEIGHTS["computed"]))


class Hyper(nn.Module):
    """A weight that depends on the input."""

    def __init__(self):
        super().__init__()
        self.first, self.w = nn.Linear(4, 4), nn.Parameter(noise(3, 4))

    def forward(self, x):
        return F.linear(self.first(x), self.w * x.abs().mean())


def test_a_weight_that_is_computed_from_the_input_stays_float():
    model = quantize(Hyper(), noise(8, 4))
    reasons = {o.op: o.reason for o in linger.coverage(model).float_ops}
    assert reasons["linear"] == "its weight is computed from the input; a file can only hold constant weights"
    for seed in (4, 5):
        assert not isinstance(model(noise(8, 4, seed=seed)), QTensor)


def test_a_checkpoint_has_the_range_of_the_input_as_of_the_layer():
    layer, function, _ = pair("linear")
    expected, found = layer.state_dict(), function.state_dict()
    for key in ("running_x", "scale_x"):
        of_function = found[f"second._linger_round_tensor_function_linear_0.{key}"]
        assert of_function.item() == expected[f"second.{key}"].item() > 0


def test_keys_are_numbered_by_function_and_load_again():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.w = nn.Linear(4, 4), nn.Parameter(noise(4, 4))

        def forward(self, x):
            h = self.first(x)
            h = F.linear(h + h, self.w)
            return F.linear(h * 2, self.w)

    model = quantize(Net(), noise(8, 4))
    keys = [k for k in model.state_dict() if k.endswith("scale_w") and "round" in k]
    stem = "_linger_round_tensor_function_linear_"
    assert keys == [f"{stem}0.scale_w", f"{stem}1.scale_w"]
    # the sums and products of a checkpoint from before keep their numbers
    assert "_linger_round_tensor_iqmul__default_index_1.scale_o" in model.state_dict()
    fresh = init(Net()).eval()
    fresh.load_state_dict(model.state_dict())
    x = noise(3, 4, seed=7)
    assert torch.equal(fresh(x).integers(), model(x).integers())


def test_a_range_that_was_never_seen_is_an_error():
    with pytest.raises(UsageError, match=r"second\.LinearInt has no scale yet"):
        init(After(nn.Identity(), Functional(nn.Linear(4, 4), CASES["linear"][1]))).eval()(noise(2, 4))


def test_weights_without_numbers_are_an_error():
    model = init(After(nn.Identity(), Functional(nn.Linear(4, 4), CASES["linear"][1]))).train()
    with torch.no_grad():
        model.second.weight[0, 0] = torch.nan
    with pytest.raises(UsageError, match=r"second\.LinearInt: the weights hold NaN"):
        model(noise(2, 4))


def test_a_large_bias_lowers_the_scale_of_the_weights():
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.bias.fill_(3e6)
    model = quantize(After(nn.Identity(), Functional(layer, CASES["linear"][1])), noise(4, 4))
    kept = model.second.get_submodule("_linger_round_tensor_function_linear_0")
    # 3e6·scale_x·scale_w must fit in 31 bits
    assert 2**29 < 3e6 * kept.read("scale_x") * kept.read("scale_w") < 2**31


WISHES = {
    "its type": {"disable_module": [Functional]},
    "its name": {"disable_submodel": ["second"]},
    "other layers only": {"quant_modules": [nn.Conv2d]},
}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES.keys())
def test_what_is_to_stay_float_stays_float(wish):
    model = init(After(nn.Linear(4, 4), Functional(nn.Linear(4, 4), CASES["linear"][1])), **wish).eval()
    with linger.calibration():
        model(noise(4, 4))
    assert ("second", "linear") in [(o.where, o.op) for o in linger.coverage(model).float_ops]


def test_float_layers_behind_quantized_ones_stay_float():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    linger.disable_quant(model[1])
    model = quantize(model, noise(4, 4))
    (found,) = linger.coverage(model).float_ops
    assert (found.where, found.op) == ("1", "linear")


REFUSED = {
    "a vector": lambda m, x: F.linear(x, m.weight[0]),
    "no batch": lambda m, x: F.conv1d(x, m.weight[:, :, None]),
    "a computed quantized weight": lambda m, x: F.linear(x, x),
}


@pytest.mark.parametrize("run", REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_computed_in_float_and_said(run):
    layer = nn.Linear(4, 4)
    model = quantize(After(nn.Linear(4, 4), Functional(layer, run)), noise(4, 4))
    assert [o.where for o in linger.coverage(model).float_ops] == ["second"]
    assert linger.coverage(model).float_ops[0].reason


def test_widths_of_a_marked_module():
    model = After(nn.Linear(4, 4), Same(4, 4))
    linger.quant_module(model.second, parameter_bits=4, out_bits=16)
    model = quantize(model, noise(4, 4))
    result = model(noise(4, 4))
    assert result.bits == 16
    frozen = next(iter(model.__dict__["_linger_runtime"].last_pass.values()))[1]
    assert int(frozen.weight_integers.abs().max()) <= 8


class Same(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def test_readers_say_what_they_read():
    x, w = noise(2, 4, 6, 6), noise(8, 2, 3, 3)
    found = _as_layer(F.conv2d, {"input": x, "weight": w, "stride": (2, 1), "padding": 1, "dilation": 1, "groups": 2})
    assert isinstance(found, Product)
    assert found.geometry == {
        "dilations": (1, 1), "group": 2, "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 1)
    }  # fmt: skip
    assert found.transposed_groups is None
    assert isinstance(_as_layer(F.conv2d, {"input": x[0], "weight": w}), Refusal)
    assert torch.matmul in MATRIX_PRODUCTS


def test_the_newer_exporter_writes_the_same_nodes(tmp_path):
    _, function, x = pair("conv2d")
    path = tmp_path / "model.onnx"
    linger.onnx.export(function, (x,), path, dynamo=True, opset_version=18)
    assert linger.verify(function, path, [x]).differing == 0
    assert [n.op_type for n in onnx.load(path).graph.node] == ["Quant", "LinearInt", "Conv2dInt", "Dequant"]


def test_a_copy_computes_the_same():
    _, function, x = pair("linear")
    expected = function(x).integers().numpy()
    assert np.array_equal(copy.deepcopy(function)(x).integers().numpy(), expected)


def test_evaluation_sees_a_changed_weight():
    _, function, x = pair("linear")
    with torch.no_grad():
        before = function(x).integers()
        function.second.weight.neg_()
        after = function(x).integers()
    assert not torch.equal(before, after)
