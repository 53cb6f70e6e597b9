"""Torch ops, autograd functions and exports for the tests of custom operators."""

import json
import subprocess
import sys
import warnings

import numpy as np
import onnxruntime as ort
import torch
from torch import nn
from torch.jit._trace import TracerWarning

import linger
from linger.onnx.operators.declaration import Symbolic

SCALE_BODY = """
scale <factor, power> (x, shift) => (y) {
  f = Constant <value_float: float = @factor> ()
  p = Constant <value_int: int = @power> ()
  exponent = Cast <to = 1> (p)
  raised = Pow (f, exponent)
  scaled = Mul (x, raised)
  y = Add (scaled, shift)
}
"""
UNSHIFTED_BODY = """
scale <factor, power> (x) => (y) {
  f = Constant <value_float: float = @factor> ()
  p = Constant <value_int: int = @power> ()
  exponent = Cast <to = 1> (p)
  raised = Pow (f, exponent)
  y = Mul (x, raised)
}
"""


def register_scale():
    """mylib::scale: x·factor^power + shift, every kind of argument in its schema."""
    library = torch.library.Library("mylib", "FRAGMENT")
    library.define(
        "scale(Tensor x, Tensor? shift=None, *, float factor=2.0, int power=1, bool is_odd=False, int[] sizes=[1, 2], "
        "float[] levels=[], str mode='plain', int? axis=None, ScalarType? dtype=None) -> Tensor"
    )
    library.impl("scale", _scale, "CompositeExplicitAutograd")
    torch.library.register_fake("mylib::scale", lambda x, *_, **__: torch.empty_like(x), lib=library)
    return library


def _scale(x, shift=None, *, factor=2.0, power=1, **_):
    scaled = x * factor**power
    return scaled if shift is None else scaled + shift


class Scaled(nn.Module):
    """Whole weights and inputs give whole numbers: every runtime must agree exactly."""

    def __init__(self, shift=None, **options):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        nn.init.constant_(self.conv.weight, 2.0)
        nn.init.constant_(self.conv.bias, 1.0)
        self.shift = None if shift is None else nn.Parameter(torch.tensor(shift))
        self.options = options

    def forward(self, x):
        y = torch.ops.mylib.scale(self.conv(x), self.shift, **self.options)
        return y.view(y.size(0), -1)


class Doubling(torch.autograd.Function):
    """An autograd function without a symbolic method."""

    @staticmethod
    def forward(ctx, x, times, offsets=()):
        return x * 2**times + sum(offsets)


def whole(*shape):
    """Whole numbers, exact in float32."""
    return torch.randint(-8, 9, shape).float()


def torch_export(model, args, path, **options):
    """torch's own tracing exporter, which announces its retirement on every call."""
    linger.restore()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", TracerWarning)
        torch.onnx.export(model.eval(), args, str(path), dynamo=False, **options)


def linger_export(model, args, path, **options):
    linger.onnx.export(model.eval(), args, path, **options)


def run_stock(content, **feeds):
    """The first output, in ONNX Runtime alone."""
    content = content if isinstance(content, bytes) else str(content)
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(value) for name, value in feeds.items()})[0]


def run_elsewhere(path, x):
    """The first output of a file with one input, in a process that never imports linger or torch."""
    np.save(path.with_suffix(".npy"), np.asarray(x))
    script = (
        "import sys, json, numpy, onnxruntime\n"
        f"s = onnxruntime.InferenceSession({str(path)!r}, providers=['CPUExecutionProvider'])\n"
        f"y = s.run(None, {{s.get_inputs()[0].name: numpy.load({str(path.with_suffix('.npy'))!r})}})[0]\n"
        "assert not any(m.split('.')[0] in ('linger', 'torch') for m in sys.modules)\n"
        "print(json.dumps(y.tolist()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return np.array(json.loads(done.stdout), np.float32)


def registry():
    """What torch's tracing exporter knows beyond its own translations; its copies of others' autograd functions apart."""
    entries = torch.onnx.utils.registration.registry._registry
    return {
        (kind, opset): group._functions[opset]
        for kind, group in entries.items()
        for opset in group._functions
        if group._functions.overridden(opset)
        and not kind.startswith("linger::call")
        and not (kind.startswith("::") and not isinstance(group._functions[opset], Symbolic))
    }
