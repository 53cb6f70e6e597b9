"""Norms that are function calls, with weights of the model or without."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import init
from tests.support.quantization import unwrap


class Called(nn.Module):
    """A linear layer and a norm written as a function."""

    def __init__(self, call):
        super().__init__()
        torch.manual_seed(4)
        self.fc = nn.Linear(6, 8)
        self.w, self.b = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.norm = nn.LayerNorm(8)
        self.call = call

    def forward(self, x):
        return self.call(self, self.fc(x))


CALLS = {
    "with weights": lambda m, h: F.layer_norm(h, (8,), m.w, m.b),
    "by keyword": lambda m, h: F.layer_norm(h, normalized_shape=(8,), bias=m.b, weight=m.w, eps=0.1),
    "without": lambda m, h: F.layer_norm(h, (5, 8)),
    "weight only": lambda m, h: F.layer_norm(h, (8,), m.w),
    "groups": lambda m, h: F.group_norm(h.transpose(1, 2), 2, m.w, m.b),
    "groups without weights": lambda m, h: F.group_norm(h, 5, eps=0.1),
    "instances": lambda m, h: F.instance_norm(h, eps=1e-3),
}
OPS = {"groups": "GroupNormInt", "groups without weights": "GroupNormInt", "instances": "GroupNormInt"}
X = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1))


def quantized(call, **options):
    model = init(Called(call), **options).eval()
    with linger.calibration():
        model(X)
    return model


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.thin
def test_call_is_computed_as_integers_and_stays_so_in_the_file(name, tmp_path):
    call = CALLS[name]
    model = quantized(call)
    assert [op.op for op in linger.coverage(model).ops] == ["Quant", "LinearInt", OPS.get(name, "LayerNormInt")]
    with torch.no_grad():
        real = Called(call)(X)
        assert (unwrap(model(X)) - real).norm() < 0.05 * real.norm()
    assert_exact(model, tmp_path / "net.onnx", opset_version=12)


@pytest.mark.slow
def test_all_calls_come_through_both_exporters(tmp_path):
    model = quantized(lambda m, h: tuple(call(m, h) for call in CALLS.values()))
    ops = [OPS.get(name, "LayerNormInt") for name in CALLS]
    assert [op.op for op in linger.coverage(model).ops] == ["Quant", "LinearInt", *ops]
    assert_exact(model, tmp_path / "net.onnx", opset_version=18, dynamo=True)
    assert_exact(model, tmp_path / "net.onnx", opset_version=18)


def assert_exact(model, path, **options):
    linger.onnx.export(model, (X,), path, **options)
    result = linger.verify(model, path, [X, 2 * X])
    assert result.ok
    assert result.differing == 0


def test_weights_learn():
    model, real = init(Called(CALLS["with weights"])).train(), Called(CALLS["with weights"])
    upstream = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(3))
    (unwrap(model(X)) * upstream).sum().backward()
    (real(X) * upstream).sum().backward()
    for name in ("w", "b", "fc.weight"):
        mine, expected = model.get_parameter(name).grad, real.get_parameter(name).grad
        assert (mine - expected).norm() < 0.05 * expected.norm()
    before = model(X).integers()
    with torch.no_grad():
        model.w.mul_(-1)
    assert not torch.equal(before, model(X).integers())


def test_ranges_are_kept_in_the_checkpoint():
    model = quantized(CALLS["with weights"])
    other = init(Called(CALLS["with weights"])).eval()
    other.load_state_dict(model.state_dict(), strict=True)
    with torch.no_grad():
        np.testing.assert_array_equal(other(X).integers().numpy(), model(X).integers().numpy())


@pytest.mark.parametrize(
    ("call", "options", "reason"),
    [
        (lambda m, h: F.layer_norm(h, (8,), h[0, 0]), {}, "its weight or bias is a quantized tensor"),
        (lambda m, h: F.layer_norm(torch.sin(h), (8,), h[0, 0]), {}, "its input is a float tensor"),
        (lambda m, h: m.norm(h), {"disable_module": [nn.LayerNorm]}, "kept float by disable_module"),
    ],
    ids=["quantized weight", "float input", "a layer that shall stay float"],
)
def test_what_stays_float_says_why(call, options, reason):
    model = quantized(call, **options)
    (record,) = [op for op in linger.coverage(model).float_ops if op.op == "layer_norm"]
    assert reason in record.reason


def test_wide_integers_stay_float():
    model = Called(CALLS["without"])
    linger.quant_module(model.fc, out_bits=32)
    model = init(model).eval()
    with linger.calibration():
        model(X)
    (record,) = linger.coverage(model).float_ops
    assert "the sums over 40 numbers of 32 bits would not be exact" in record.reason
