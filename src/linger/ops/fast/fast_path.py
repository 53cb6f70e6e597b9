# SPDX-License-Identifier: Apache-2.0
"""How torch computes an op faster than by its body: on real carriers q/scale, with the same integers.

Most ops need no code of their own for that. An op with weights has one accumulator (`product_fast_path`); an op file declares the
real function behind it (`Op.real`) or an exact result that is rounded once (`Op.exact`). The rest has a module of the
op file's name in this folder.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.dialect import Op
from linger.numeric.torch.gates import look_up
from linger.numeric.torch.kernel import carrier, conv1d, conv2d, conv_transpose2d
from linger.numeric.torch.quantize import Scale, fake_quantize

_GEOMETRY = ("strides", "pads", "dilations", "group", "output_padding")
_of_images = itemgetter(*_GEOMETRY[:4])  # a generator would cost five calls in every layer
_IMAGE_CHANNELS = -3


_Accumulate = Callable[[Tensor, Tensor, Tensor | None, Mapping[str, Any]], Tensor]


class _ProductFastPath(NamedTuple):
    """An op with weights: `accumulate(x, w, b, attributes)` is the sum that is then rounded.

    `channel_axis` counts from the end, since data without a batch has its channels first.
    """

    accumulate: _Accumulate
    channel_axis: int


@cache
def product_fast_path(op: Op) -> _ProductFastPath:
    """The accumulator of an op with weights: a convolution, a linear layer, or one factor per channel."""
    if op.window_axes:
        if op.window_axes > 1 and not op.is_transposed:
            return _ProductFastPath(_images, -1 - op.window_axes)
        return _ProductFastPath(_convolution(conv1d if op.window_axes == 1 else conv_transpose2d), -1 - op.window_axes)
    return _ProductFastPath(_scaled_channels, _IMAGE_CHANNELS) if op.weight_axes == 1 else _ProductFastPath(_linear, -1)


def _convolution(function: Callable[..., Tensor]) -> _Accumulate:
    def accumulate(x: Tensor, w: Tensor, b: Tensor | None, attributes: Mapping[str, Any]) -> Tensor:
        return function(x, w, b, **{name: attributes[name] for name in _GEOMETRY if name in attributes})

    return accumulate


def _images(x: Tensor, w: Tensor, b: Tensor | None, attributes: Mapping[str, Any]) -> Tensor:
    """The convolution of images; one that is padded alike at both edges is torch's own, called without a detour."""
    strides, pads, dilations, group = _of_images(attributes)
    if pads[:2] == pads[2:]:
        return F.conv2d(x, w, b, strides, pads[:2], dilations, group)
    return conv2d(x, w, b, strides=strides, pads=pads, dilations=dilations, group=group)


def _linear(x: Tensor, w: Tensor, b: Tensor | None, attributes: Mapping[str, Any]) -> Tensor:
    del attributes
    return F.linear(x, w, b)


def _scaled_channels(x: Tensor, w: Tensor, b: Tensor | None, attributes: Mapping[str, Any]) -> Tensor:
    del attributes
    factor = w.reshape(-1, 1, 1)
    return x * factor if b is None else torch.addcmul(b.reshape(-1, 1, 1), x, factor)


class RealFastPath:
    """An op that stands for a real function: integers by the body, also in training, with that function's gradient."""

    def __init__(self, op: Op) -> None:
        self._op = op

    def real_result(
        self,
        operands: Sequence[Tensor],
        scales: Sequence[Scale] = (),
        bits: Sequence[int] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """The function of the real values, whose range is observed."""
        del scales, bits
        assert self._op.real_function is not None  # such ops have this fast path
        return cast(Tensor, self._op.real_function(torch, *operands, **(settings or {})))

    def exact_values(self, operands: Sequence[Tensor], attributes: Mapping[str, Any]) -> Tensor | None:
        """What the body gives, as real values, by one look into a table; None where the op has none."""
        if self._op.pieces is None:
            return None
        scales = attributes["scale_x"], attributes["scale_o"]
        return look_up(operands[0], self._op.pieces, *scales, attributes["o_bits"])


class ExactFastPath:
    """An op whose exact real result is rounded once, to the output's scale."""

    def __init__(self, op: Op) -> None:
        self._op = op
        self._module = _module(op)

    def real_result(
        self,
        operands: Sequence[Tensor],
        scales: Sequence[Scale],
        bits: Sequence[int],
        settings: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """The exact result of operands of these scales and widths."""
        del settings
        if self._module is not None:
            return cast(Tensor, self._module.real_result(operands, scales, bits))
        assert self._op.exact_result is not None  # such ops have this fast path
        return cast(Tensor, self._op.exact_result(torch, *operands, bits=bits))

    def evaluate(
        self, result: Tensor | None, operands: Sequence[Tensor], attributes: Mapping[str, Any], *, can_saturate: bool
    ) -> Tensor:
        """The result at scale_o, limited to o_bits; `result` is the exact one, if known."""
        if self._module is not None:
            return cast(Tensor, self._module.evaluate(result, operands, attributes, can_saturate=can_saturate))
        scale, bits = attributes["scale_o"], attributes["o_bits"]
        if result is None:
            result = self.real_result(operands, (), (attributes.get("data_bits", bits),) * len(operands))
        return fake_quantize(result, scale, bits, can_saturate=can_saturate, is_owned=True).to(carrier(bits))


@cache
def functional_fast_path(op: Op) -> ExactFastPath | RealFastPath | None:
    """The fast path of an op that torch functions stand for; None: it only moves or compares numbers."""
    if op.real_function is not None:
        return RealFastPath(op)
    return ExactFastPath(op) if op.exact_result is not None or _module(op) is not None else None


@cache
def recurrent_fast_path(op: Op) -> ModuleType:
    """The module whose `run` is all steps of a recurrent op."""
    module = _module(op)
    assert module is not None  # every recurrent op has one
    return module


def _module(op: Op) -> ModuleType | None:
    """The module in this folder that is called as the op's file, if there is one."""
    name = op.module.replace("linger.ops.", "linger.ops.fast.")
    return importlib.import_module(name) if importlib.util.find_spec(name) is not None else None


def accumulate(op: Op, geometry: Mapping[str, Any], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of an op, on real carriers."""
    # `to` only where needed: torch's own way to find out takes long
    dtype = x.dtype
    if bias is not None and bias.dtype != dtype:
        bias = bias.to(dtype)
    return product_fast_path(op).accumulate(x, weight if weight.dtype == dtype else weight.to(dtype), bias, geometry)
