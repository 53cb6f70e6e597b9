# SPDX-License-Identifier: Apache-2.0
"""Piecewise-linear curves in torch, by one look into a table of all inputs of 16 or of 8 bits."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from linger.numeric import blocks
from linger.numeric.tables import ONE, LongPieces, Pieces, WidePieces
from linger.numeric.torch.kernel import TorchKernel, carrier
from linger.numeric.torch.scale import Scale

_Q11 = 2.0**11
_REACH = 1 << 15


def look_up(x: Tensor, pieces: Pieces | WidePieces | LongPieces, scale_x: Scale, scale_o: Scale, bits: int) -> Tensor:
    """The result of a curve's body for real values x at scale_x, as real values. x has the width that the device wants."""
    if isinstance(pieces, LongPieces):
        return evaluate_long_pieces(x, pieces, scale_x, scale_o, bits)
    if isinstance(pieces, WidePieces):
        return evaluate_wide_pieces(x, pieces, scale_x, scale_o, bits)
    return evaluate_pieces(x, pieces, scale_o, bits)


def evaluate_pieces(x: Tensor, pieces: Pieces, scale_o: float, bits: int) -> Tensor:
    """The result of blocks.piecewise_linear and requantize for real values x of at most 16 bits, divided by scale_o."""
    # 16 bits and a half are exact in float32
    index = torch.floor(x.detach() * _Q11 + 0.5).clamp_(-_REACH, _REACH - 1).int().add_(_REACH)
    return _table(pieces, scale_o, bits, x.device)[index]


@cache
def _table(pieces: Pieces, scale_o: float, bits: int, device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False), torch.no_grad():
        k = TorchKernel()
        every = torch.arange(-_REACH, _REACH, dtype=torch.float64)
        y = blocks.piecewise_linear(k, every, source=k.scalar(_Q11), pieces=pieces)
        result = blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=bits)
        return (result / scale_o).to(device)


@cache
def flat_ends(pieces: Pieces, scale_o: float, bits: int) -> tuple[float, float]:
    """The numbers beyond which a curve returns the same integer for ever, found among all of its inputs."""
    values = _table(pieces, scale_o, bits, torch.device("cpu"))
    first, last = (torch.nonzero(values != values[end]) for end in (0, -1))
    return (int(first[0]) - 1 - _REACH) / _Q11, (int(last[-1]) + 1 - _REACH) / _Q11


def evaluate_long_pieces(x: Tensor, pieces: LongPieces, scale_x: Scale, scale_o: Scale, bits: int) -> Tensor:
    """The result of blocks.long_piecewise_linear and requantize for real values x at scale_x, divided by scale_o."""
    # the carrier of 32 bits has too many numbers for a table; and one for a scale on a device could not be found again
    if x.dtype == torch.float64 or isinstance(scale_o, Tensor):
        return _long_curve(x.detach() * scale_x, pieces, scale_x, scale_o, bits)
    index = (x.detach() * scale_x).int().add_(_REACH)
    return _long_table(pieces, scale_x, scale_o, bits, x.device)[index]


def _long_curve(integers: Tensor, pieces: LongPieces, scale_x: Scale, scale_o: Scale, bits: int) -> Tensor:
    k = TorchKernel(device=integers.device)
    y = blocks.long_piecewise_linear(k, integers, source=k.scalar(scale_x), pieces=pieces)
    result = blocks.requantize(k, y, source=k.scalar(ONE), target=k.scalar(scale_o), bits=bits)
    real: Tensor = result / scale_o
    return real.to(carrier(bits))


@cache
def _long_table(pieces: LongPieces, scale_x: float, scale_o: float, bits: int, device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False), torch.no_grad():
        every = torch.arange(-_REACH, _REACH, dtype=torch.float64)
        return _long_curve(every, pieces, scale_x, scale_o, bits).to(device)


_REACH_OF_8_BITS = 1 << 7


def evaluate_wide_pieces(x: Tensor, pieces: WidePieces, scale_x: Scale, scale_o: Scale, bits: int) -> Tensor:
    """The result of blocks.wide_piecewise_linear and requantize for real values x (8 bits, scale_x), divided by scale_o."""
    index = (x.detach() * scale_x).int().add_(_REACH_OF_8_BITS)
    if isinstance(scale_x, Tensor) or isinstance(scale_o, Tensor):
        return _wide_curve(x.detach() * scale_x, pieces, scale_x, scale_o, bits)
    return _wide_table(pieces, scale_x, scale_o, bits, x.device)[index]


@cache
def _wide_table(pieces: WidePieces, scale_x: float, scale_o: float, bits: int, device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False), torch.no_grad():
        every = torch.arange(-_REACH_OF_8_BITS, _REACH_OF_8_BITS, dtype=torch.float64)
        return _wide_curve(every, pieces, scale_x, scale_o, bits).to(device)


def _wide_curve(integers: Tensor, pieces: WidePieces, scale_x: Scale, scale_o: float, bits: int) -> Tensor:
    k = TorchKernel(device=integers.device)
    y = blocks.wide_piecewise_linear(k, integers.double(), source=k.scalar(scale_x), pieces=pieces)
    curve = k.scalar(blocks.WIDE_CURVE_SCALE)
    real: Tensor = blocks.requantize(k, y, source=curve, target=k.scalar(scale_o), bits=bits) / scale_o
    return real
