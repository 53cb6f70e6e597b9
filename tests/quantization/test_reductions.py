"""Sums, means, variances and quotients inside a model: any axes, any spelling, as integers and in the file."""

import onnx
import pytest
import torch

import linger
from linger import QTensor
from tests.support.quantization import unwrap
from tests.support.wired import Wired, image, quantize


def in_place(h):
    h = h.clone()
    h /= 3
    return h


CALLS = {
    "sum of an axis": ("iqSum", lambda h: h.sum(1)),
    "sum, kept": ("iqSum", lambda h: torch.sum(h, -1, keepdim=True)),
    "sum of two axes": ("iqSum", lambda h: h.sum((1, 3))),
    "sum of two axes, kept": ("iqSum", lambda h: h.sum(dim=(3, 1), keepdim=True)),
    "sum of the last axes": ("iqSum", lambda h: torch.sum(h, (2, 3))),
    "mean of channels": ("iqMean", lambda h: h.mean(1)),
    "mean of channels, kept": ("iqMean", lambda h: h.mean(axis=1, keepdims=True)),
    "mean of rows": ("iqMean", lambda h: h.mean((1, -1))),
    "mean of a matrix": ("iqMean", lambda h: h.flatten(2).mean(2)),
    "variance": ("iqVar", lambda h: h.var(1)),
    "variance of images": ("iqVar", lambda h: torch.var(h, (2, 3), unbiased=False, keepdim=True)),
    "variance, correction": ("iqVar", lambda h: h.var(dim=-1, correction=0)),
    "by three": ("iqDiv", lambda h: h / 3),
    "by minus five in place": ("iqDiv", in_place),
    "by a tensor": ("iqDiv", lambda h: torch.div(h, h.clamp(0.25, 2.0))),
    "one by a tensor": ("iqDiv", lambda h: 1.5 / h.clamp(0.25, 2.0)),
    "reciprocal": ("iqDiv", lambda h: torch.reciprocal(h.clamp(0.25, 2.0))),
}
each_call = pytest.mark.parametrize(("op", "call"), CALLS.values(), ids=CALLS.keys())


def quantized(call):
    torch.manual_seed(6)
    return quantize(Wired(lambda m, x: call(m.conv(x))), image(4))


@each_call
def test_call_is_computed_as_integers_near_the_real_numbers(op, call):
    model, x = quantized(call), image(4)
    assert not linger.coverage(model).float_ops
    assert op in [record.op for record in linger.coverage(model).integer_ops]
    with torch.no_grad():
        found = model(x)
        real = call(model.conv(x).dequantize())
    assert isinstance(found, QTensor)
    assert found.content.shape == real.shape
    # a half of the last place; by a number of eight bits less than 1 % more
    allowed = 0.5 / found.scale + (0.01 * real.abs() if op == "iqDiv" else 0.0)
    assert ((unwrap(found) - real).abs() <= allowed + 1e-6).all()


@each_call
def test_gradient_is_that_of_the_real_function(op, call):
    model, x = quantized(call).train(), image(4)
    h = model.conv(x).dequantize().detach().requires_grad_()
    seen = []
    model.conv.register_forward_hook(lambda m, args, y: (y.content.retain_grad(), seen.append(y.content))[1])
    found = unwrap(model(x))
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    (found * upstream).sum().backward()
    (call(h) * upstream).sum().backward()
    mine, real = seen[0].grad, h.grad
    assert torch.isfinite(mine).all()
    # the ranges moved a little; where a number was limited on the way it has no gradient
    assert (mine - real).norm() <= 0.05 * real.norm()


@each_call
@pytest.mark.parametrize("options", [{"opset_version": 11}, {"form": "standard", "opset_version": 18}], ids=str)
@pytest.mark.thin(every=12)
def test_the_file_computes_every_integer_of_the_model(op, call, options, tmp_path):
    model, x, path = quantized(call), image(4), tmp_path / "net.onnx"
    linger.onnx.export(model, (x,), path, input_names=["x"], dynamic_axes={"x": {0: "n"}}, **options)
    result = linger.verify(model, path, [x, 3 * x, x[:1]])
    assert result.ok
    assert result.differing == 0
    if "form" not in options:
        assert op in [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("name", ["sum of two axes", "mean of rows", "variance", "by a tensor"])
def test_the_newer_exporter_writes_the_same_integers(name, tmp_path):
    model, x, path = quantized(CALLS[name][1]), image(4), tmp_path / "net.onnx"
    linger.onnx.export(model, (x,), path, dynamo=True, opset_version=18)
    assert linger.verify(model, path, [x, 3 * x]).ok


@pytest.mark.parametrize(
    ("call", "op"),
    [(lambda h: h.mean((2, 3)), "AvgPool2dInt"), (lambda h: h / 4, "iqMul"), (lambda h: h / -0.5, "iqMul")],
    ids=["mean of images", "by four", "by minus a half"],
)
def test_what_the_device_has_stays_what_it_was(call, op):
    assert [record.op for record in linger.coverage(quantized(call)).ops][-1] == op


@pytest.mark.parametrize("call", [lambda h: h.sum(), lambda h: h.mean(), lambda h: h.var()], ids=["sum", "mean", "var"])
def test_everything_becomes_one_number(call):
    model, x = quantized(call), image(4)
    with torch.no_grad():
        found, real = model(x), call(model.conv(x).dequantize())
    assert found.content.shape == ()
    assert abs(float(unwrap(found)) - float(real)) <= 0.5 / found.scale
    assert not linger.coverage(model).float_ops


def test_division_by_zeros_stays_finite():
    model, x = quantized(lambda h: h / torch.relu(h - 0.5)).train(), image(4)
    found = unwrap(model(x))
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert torch.isfinite(model.conv.weight.grad).all()
