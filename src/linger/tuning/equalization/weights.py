# SPDX-License-Identifier: Apache-2.0
"""The weights of layers as matrices of magnitudes, and factors put into them: rows multiplied, columns divided.

The function of the model stays. A product takes x·c and gives y·r when its weight is multiplied by r/c and its bias by r.
A batch norm takes x·c when its mean is multiplied by c and its variance by c²; γ makes up for eps, which stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from linger.tuning.equalization.flow import Form, Layer, Norm, Numbers

Factors = Mapping[int, float]
"""Factors by the numbers of channels; a channel that is not there has the factor 1."""

Array = NDArray[np.float64]


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def factors_of(numbers: Numbers, factors: Factors) -> Tensor:
    """The factor of each channel, in double precision."""
    return torch.tensor([factors.get(int(n), 1.0) for n in numbers], dtype=torch.double)


def matrix_of(rows: Tensor, columns: Tensor, form: Form) -> Tensor:
    """rows/columns, in the shape of the first two axes of a weight."""
    groups = form.groups
    if form.is_transposed:
        tops = rows.reshape(groups, -1).repeat_interleave(len(columns) // groups, 0)
        return tops / columns[:, None]
    bottoms = columns.reshape(groups, -1).repeat_interleave(len(rows) // groups, 0)
    return rows[:, None] / bottoms


def put(model: nn.Module, layers: Iterable[Layer], factors: Factors) -> None:
    """Put factors into the weights of a model."""
    state = state_of(model)
    done: set[str] = set()
    with torch.no_grad():
        for layer in layers:
            rows, columns = factors_of(layer.rows, factors), factors_of(layer.columns, factors)
            if layer.norm is not None:
                _put_norm(state, layer.norm, rows, columns)
                continue
            assert layer.weight is not None
            _multiply(state[layer.weight], _as_shape(matrix_of(rows, columns, layer.form), state[layer.weight]))
            for name in layer.biases - done:
                _multiply(state[name], rows)
            done |= layer.biases


def _as_shape(matrix: Tensor, weight: Tensor) -> Tensor:
    return matrix.reshape(*matrix.shape, *[1] * (weight.dim() - 2))


def _multiply(tensor: Tensor, factor: Tensor) -> None:
    """Multiply with one rounding; a factor of 1 changes no bit."""
    tensor.copy_((tensor.double() * factor.to(tensor.device)).to(tensor.dtype))


def _put_norm(state: Mapping[str, Tensor], norm: Norm, rows: Tensor, columns: Tensor) -> None:
    var = state[norm.var].double().cpu()
    correction = torch.sqrt((columns.square() * var + norm.eps) / (columns.square() * (var + norm.eps)))
    _multiply(state[norm.weight], rows * correction)
    if norm.bias is not None:
        _multiply(state[norm.bias], rows)
    _multiply(state[norm.mean], columns)
    _multiply(state[norm.var], columns.square())


def magnitudes(layer: Layer, state: Mapping[str, Tensor]) -> tuple[Array, Array]:
    """The largest magnitude, and the sum of squares, of what multiplies each input channel for each output channel.

    [outputs, inputs/groups], a batch norm that reads the product included; a batch norm alone is [channels, 1].
    """
    if layer.norm is not None:
        gain = _gain(layer.norm, state)[:, None]
        return gain, np.square(gain)
    assert layer.weight is not None
    weight = state[layer.weight].detach().double().cpu()
    taps = weight.abs().reshape(*weight.shape[:2], -1)
    largest, energy = (_outputs_first(part, layer.form).numpy() for part in (taps.amax(2), taps.square().sum(2)))
    reader = layer.reader
    if reader is not None and reader.norm is not None:
        gain = _gain(reader.norm, state)[:, None]
        largest, energy = largest * gain, energy * np.square(gain)
    return largest, energy


def _outputs_first(matrix: Tensor, form: Form) -> Tensor:
    """[outputs, inputs/groups], also of a transposed convolution."""
    if not form.is_transposed:
        return matrix
    parts = matrix.reshape(form.groups, -1, matrix.shape[1])
    return parts.transpose(1, 2).reshape(-1, parts.shape[1])


def _gain(norm: Norm, state: Mapping[str, Tensor]) -> Array:
    gamma, var = state[norm.weight].detach().double().cpu(), state[norm.var].double().cpu()
    found: Array = (gamma.abs() * torch.rsqrt(var + norm.eps)).numpy()
    return found
