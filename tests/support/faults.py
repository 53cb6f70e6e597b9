"""Kernels and blocks with one deliberate mistake, planted where the real ones stand."""

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from linger.dialect import Op
from linger.graph.lowering.bodies import _ElementAwareKernel
from linger.numeric import blocks
from linger.numeric.numpy_kernel import NumpyKernel
from linger.numeric.onnx.kernel import OnnxKernel
from linger.numeric.onnx.writer import BEYOND, INT64
from linger.numeric.torch.kernel import TorchKernel
from tests.support.golden import run_expanded as run_expanded_file
from tests.support.golden import run_reference, run_session
from tests.support.golden import run_torch as run_torch_file
from tests.support.samples import run_expanded, run_function, run_numpy, run_torch

KERNELS = {"numpy": NumpyKernel, "torch": TorchKernel, "function": _ElementAwareKernel, "expansion": OnnxKernel}
FAULTS = ("half-even", "wrap", "shift + 1", "shift − 1", "no bias")


class HalfEven:
    """Ties go to the even neighbor."""

    def floor(self, x: Any) -> Any:
        return _to_nearest_even(self, self.sub(x, self.like(0.5, x)))


def _to_nearest_even(kernel: Any, x: Any) -> Any:
    if isinstance(kernel, OnnxKernel):
        return kernel.emit("Round", [x], x.dtype)
    return np.rint(x) if isinstance(kernel, NumpyKernel) else torch.round(x)


class Wrap:
    """What does not fit comes in again at the other end."""

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        span = self.add(self.sub(high, low), self.like(1.0, x))
        return self.sub(x, self.mul(span, self.floor(self.div(self.sub(x, low), span))))


class ShiftMore:
    """One bit too far to the right."""

    def div(self, a: Any, b: Any) -> Any:
        return self.mul(super().div(a, b), self.like(0.5, a))


class ShiftLess:
    """One bit not far enough."""

    def div(self, a: Any, b: Any) -> Any:
        return self.mul(super().div(a, b), self.like(2.0, a))


class NoBias:
    """The bias is forgotten."""

    def linear(self, x: Any, w: Any, b: Any, **settings: Any) -> Any:
        return super().linear(x, w, None, **settings)

    def rounded_product(self, w: Any, b: Any, factor: Any, **settings: Any) -> Any:
        return super().rounded_product(w, self.sub(b, b), factor, **settings)

    def conv1d(self, x: Any, w: Any, b: Any, **settings: Any) -> Any:
        return super().conv1d(x, w, None, **settings)

    def conv2d(self, x: Any, w: Any, b: Any, **settings: Any) -> Any:
        return super().conv2d(x, w, None, **settings)

    def conv_transpose2d(self, x: Any, w: Any, b: Any, **settings: Any) -> Any:
        return super().conv_transpose2d(x, w, None, **settings)


NEXT, TURNS = ((1, None, 1), (0, 1, 1)), ((0, None, 2), (1, None, 2))
"""Parts of a vector (start, stop, step) that make the next channel's exponent each channel's, or let two groups take turns."""


class NextChannel:
    """Every channel has the exponent of the next one."""

    def vector(self, values: Any) -> Any:
        return _reordered(self, super().vector(values), NEXT)


class OtherOrder:
    """The exponents of two groups take turns."""

    def vector(self, values: Any) -> Any:
        return _reordered(self, super().vector(values), TURNS)


class EndsAt127:
    """What is unsigned ends where signed numbers do."""

    def store(self, x: Any, bits: Any, *, is_unsigned: bool = False) -> Any:
        x = self.clip(x, self.scalar(0.0), self.scalar(127.0)) if is_unsigned else x
        return super().store(x, bits, is_unsigned=is_unsigned)


def _reordered(kernel: Any, vector: Any, parts: Any) -> Any:
    """The parts of a vector behind each other."""
    if not isinstance(kernel, OnnxKernel):
        return kernel.concat([vector[slice(*part)] for part in parts], 0)
    if vector.known is not None:
        known = np.concatenate([vector.known[slice(*part)] for part in parts])
        return replace(kernel.constant(known, vector.dtype), axis=vector.axis)
    ends = [[kernel.constant([n], INT64) for n in (start, stop or BEYOND, 0, step)] for start, stop, step in parts]
    pieces = [kernel.emit("Slice", [vector, *each], vector.dtype) for each in ends]
    return replace(kernel.concat(pieces, 0), axis=vector.axis)


NUMBER_FAULTS = ("next channel", "other order", "ends at 127")
_MISTAKES = dict(
    zip(
        (*FAULTS, *NUMBER_FAULTS),
        (HalfEven, Wrap, ShiftMore, ShiftLess, NoBias, NextChannel, OtherOrder, EndsAt127),
        strict=True,
    )
)


def kernel_class(kernel: str, fault: str | None) -> type:
    """The kernel as it is, or with a fault."""
    base = KERNELS[kernel]
    return base if fault is None else type(f"{_MISTAKES[fault].__name__}{base.__name__}", (_MISTAKES[fault], base), {})


def plant(monkeypatch: Any, kernel: str, fault: str | None) -> tuple[Any, Any]:
    """(compute one op, run one file) with this kernel; the kernels that write ONNX are replaced where they are made."""
    chosen = kernel_class(kernel, fault)
    if kernel == "numpy":
        return partial(run_numpy, kernel=chosen()), partial(run_reference, kernel=chosen())
    if kernel == "torch":
        return partial(run_torch, kernel=chosen()), partial(run_torch_file, kernel=chosen())
    if kernel == "function":
        monkeypatch.setattr(importlib.import_module("linger.graph.lowering.bodies"), "_ElementAwareKernel", chosen)
        return partial(run_function, opset=12), run_session
    monkeypatch.setattr(importlib.import_module("linger.graph.lowering.bodies"), "OnnxKernel", chosen)
    return partial(run_expanded, opset=12), run_expanded_file


def plant_in_op(monkeypatch: Any, op: Op, fault: str) -> None:
    """One op alone computes with a faulty numpy kernel."""
    body, kernel = op.body, kernel_class("numpy", fault)()
    monkeypatch.setattr(op, "body", lambda _, *inputs, **attributes: body(kernel, *inputs, **attributes))


def _round_half_even(k: Any, x: Any) -> Any:
    up = k.floor(k.add(x, k.like(0.5, x)))
    two = k.like(2.0, x)
    is_odd = k.sub(up, k.mul(two, k.floor(k.div(up, two))))
    # at a tie x + ½ is up itself; a tie that went to an odd number goes one down
    return k.where_less(up, k.add(x, k.like(0.5, x)), up, k.sub(up, is_odd))


def _wrap(k: Any, x: Any, bits: int, _unsigned: int = 0) -> Any:
    half = k.pow2(k.sub(k.scalar(bits), k.scalar(1.0)))
    span = k.mul(half, k.scalar(2.0))
    return k.sub(x, k.mul(span, k.floor(k.div(k.add(x, half), span))))


def _rescale(factor: float) -> Any:
    def rescale(k: Any, x: Any, *, source: Any, target: Any) -> Any:
        return blocks.round_half_up(k, k.mul(x, k.mul(k.div(target, source), k.scalar(factor))))

    return rescale


def plant_in_blocks(monkeypatch: Any, fault: str, ops: list[Op]) -> None:
    """The mistake every kernel shares; the bias is forgotten by the bodies of `ops`."""
    if fault == "half-even":
        monkeypatch.setattr(blocks, "round_half_up", _round_half_even)
    elif fault == "wrap":
        monkeypatch.setattr(blocks, "saturate", _wrap)
    elif fault == "shift + 1":
        monkeypatch.setattr(blocks, "rescale", _rescale(0.5))
    elif fault == "shift − 1":
        monkeypatch.setattr(blocks, "rescale", _rescale(2.0))
    else:
        for op in ops:
            monkeypatch.setattr(op, "body", _without_bias(op.body))


def plant_in_numbers(monkeypatch: Any, fault: str) -> None:
    """A mistake in what all kernels share of exponents and unsigned numbers."""
    stored = blocks.stored
    if fault == "ends at 127":

        def limited(k: Any, x: Any, bits: Any, unsigned: Any = 0) -> Any:
            x = k.clip(x, k.scalar(-128.0), k.scalar(127.0)) if unsigned != 0 else x
            return stored(k, x, bits, unsigned)

        monkeypatch.setattr(blocks, "stored", limited)
    else:
        parts = {"next channel": NEXT, "other order": TURNS}[fault]
        monkeypatch.setattr(blocks, "channel_powers", lambda k, e: _of_reordered(k, e, parts))


def _of_reordered(k: Any, exponents: Any, parts: Any) -> Any:
    return k.pow2(k.sub(k.scalar(0.0), _reordered(k, k.vector(exponents), parts)))


def plant_wrong_axis(monkeypatch: Any, op: Op) -> None:
    """The exponents of a transposed convolution belong to the rows of its weights, which are its input channels."""
    body = op.body

    def along_rows(k: Any, x: Any, w: Any, b: Any = None, *, exponents_w: Any = (), **attributes: Any) -> Any:
        rows = 2.0 ** -np.resize(np.asarray(exponents_w or 0, np.float64), (w.shape[0], 1, 1, 1))
        return body(k, x, w * rows, b, **attributes)

    monkeypatch.setattr(op, "body", along_rows)


def _without_bias(body: Any) -> Any:
    return lambda k, x, w, b=None, **attributes: body(k, x, w, None, **attributes)
