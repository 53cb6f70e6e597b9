"""Curves on the output of a quantized convolution: every spelling, the gradient, the file."""

from typing import Any

import numpy as np
import torch

import linger
from linger.dialect import find_op
from tests.support.samples import run_numpy
from tests.support.wired import Wired, image, quantize


def seen_and_result(function: Any, *, out_bits: int = 8) -> Any:
    """A calibrated model that returns the convolution's output and the function of it."""

    def forward(m, x):
        h = m.conv(x)
        return h.clone(), function(h)

    model = Wired(forward)
    linger.quant_module(model, out_bits=out_bits)
    return quantize(model, image(spread=4.0))


def assert_runs_as(op: str, function: Any, tmp_path: Any, *, out_bits: int = 8, **options: Any) -> tuple[Any, Any]:
    """The model computes the op's integers, nothing stays float, the file gives the same; returns what the op saw and made."""
    model = seen_and_result(function, out_bits=out_bits)
    h, y = model(image(spread=4.0))
    attributes = {"scale_x": h.scale, "scale_o": y.scale, "o_bits": y.bits}
    expected = run_numpy(find_op(op), [h.integers().numpy()], attributes)
    np.testing.assert_array_equal(y.integers().numpy(), expected)
    assert y.bits == out_bits
    assert not linger.coverage(model).float_ops
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", **options)
    assert linger.verify(model, tmp_path / "net.onnx", (image(spread=4.0),)).ok
    return h, y


def assert_learns_like(real: Any) -> None:
    """In training the gradient is that of the real function at the same values."""
    model = seen_and_result(real).train()
    seen = {}

    def forward(m, x):
        h = m.conv(x)
        h.content.retain_grad()
        seen["h"] = h.content
        return real(h)

    model.run = forward
    y = model(image())
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    (y * weight).sum().backward()
    h = seen["h"].detach().clone().requires_grad_()
    (real(h) * weight).sum().backward()
    torch.testing.assert_close(seen["h"].grad, h.grad)
