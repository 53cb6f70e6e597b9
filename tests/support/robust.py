"""What a hard case must give: the float model's numbers within the error of 8 bits, and a file that computes the same."""

import copy

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import linger

CLOSE = 0.12
"""Of the largest value. Two or three layers of 8 bits, each within a step or two of 127, stay far below; what is lost or
written over is far above."""


def real(output):
    """The tensors of an output as ordinary ones."""
    return [t.detach().dequantize() if isinstance(t, linger.QTensor) else t.detach() for t in tensors(output)]


def tensors(output):
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def calibrated(model, *inputs):
    """A quantized copy that has seen the inputs, in evaluation mode."""
    made = linger.init(copy.deepcopy(model)).eval()
    with linger.calibration():
        made(*(x.clone() for x in inputs))
    return made


def assert_close(found, expected):
    assert len(found) == len(expected)
    for have, want in zip(found, expected, strict=True):
        assert have.shape == want.shape
        largest = float(want.abs().max()) or 1.0
        assert float((have.float() - want.float()).abs().max()) <= CLOSE * largest


def assert_right(model, *inputs, path=None):
    """The quantized model computes what the float one does; with a path, its file too, integer by integer."""
    with torch.no_grad():
        expected = [t.clone() for t in real(copy.deepcopy(model).eval()(*(x.clone() for x in inputs)))]
        quantized = calibrated(model, *inputs)
        assert_close(real(quantized(*(x.clone() for x in inputs))), expected)
    if path is not None:
        linger.onnx.export(quantized, tuple(x.clone() for x in inputs), path)
        proof = linger.verify(quantized, path, tuple(x.clone() for x in inputs))
        assert proof.ok, proof.summary()
    return quantized
