# SPDX-License-Identifier: Apache-2.0
"""LayerNormInt: the last axes of a tensor normalized, then times a weight plus a bias, element by element.

How many axes are normalized follows from the weight, which is flat: its N numbers are the product of their sizes. The
file format has no `eps`: the device's is 1e-5. linger writes one where a layer has another, and takes 1e-5 where none is
written. The weight has 16 bits always.
"""

from __future__ import annotations

import math
from typing import Any

from linger.dialect import Newer, NodeFacts, Refusal, Settings, op
from linger.numeric import blocks, curves
from linger.numeric.kernel import Draw, Kernel, Sample, T

_NEWER_INPUTS = ("x", "w", "b_normal")
_Q15 = "normalizes to Q15 in 32 bits, LayerNormInt to Q10 in 16 bits, so their numbers differ"


@op(
    "LayerNormInt",
    newer=(
        Newer("QLayerNorm", inputs=_NEWER_INPUTS, own={"scale_y_normal": None}, unlike=_Q15, is_packed=False),
        Newer("QLayerNorm2d", inputs=_NEWER_INPUTS, own={"scale_y_normal": None}, unlike=_Q15),
    ),
    limit=curves.finest_normal_scale,
    normalizes=True,
    keeps_shape=True,
    chip_limits=("layer-norm",),
    state_name="layernorm",
)
def layernorm_int(
    k: Kernel[T],
    x: T,
    w: T,
    b: T,
    *,
    data_bits: int,
    parameter_bits: int,
    o_bits: int,
    scale_x: float,
    scale_w: float,
    scale_o: float,
    eps: float = curves.DEFAULT_EPS,
) -> T:
    """Y = sat(⌊sat32(n·w + b)·scale_o/(2^10·scale_w) + ½⌋), n = (x − mean)/√(var + eps) in Q10.

    n has 16 bits; how it is computed is in `linger.numeric.curves`. b is int32 at 2^10·scale_w.
    """
    lines = k.lines(k.wide(x), w)
    n = curves.normalize(k, lines, source=k.scalar(scale_x), eps=eps)
    total = blocks.saturate(k, k.add(k.mul(n, k.wide(w)), k.wide(b)), 32)
    source = k.mul(k.scalar(2.0**curves.FRACTION), k.scalar(scale_w))
    return blocks.requantize(k, k.reshape_like(total, x), source=source, target=k.scalar(scale_o), bits=o_bits)


@layernorm_int.refuse
def refuse_long_lines(node: NodeFacts) -> str | None:
    """Refuse to normalize more numbers than can be added exactly."""
    count, bits = node.size("w", 0), node.bits("x")
    if count is None or curves.is_exact(count, bits):
        return None
    return f"the sums over {count} numbers of {bits} bits would not be exact. Normalize fewer numbers."


@layernorm_int.real
def real(torch: Any, x: Any, w: Any, b: Any, *, eps: float = curves.DEFAULT_EPS, **_: Any) -> Any:
    """Layer norm over as many of the last axes as the flat weight has numbers for."""
    lines = x.reshape(-1, w.numel())
    return torch.nn.functional.layer_norm(lines, (w.numel(),), w, b, eps).reshape(x.shape)


def _settings(count: int, eps: float) -> Settings:
    if not curves.is_exact(count, 8):
        return Refusal(f"the sums over {count} numbers would not be exact; normalize fewer than 2^19")
    return {} if eps == curves.DEFAULT_EPS else {"eps": float(eps)}


@layernorm_int.layer("torch.nn.LayerNorm")
def from_layer_norm(layer: Any) -> Settings:
    """Only eps is a setting: the axes follow from the weight."""
    return _settings(math.prod(layer.normalized_shape), layer.eps)


@layernorm_int.function("torch.nn.functional.layer_norm")
def from_functional_layer_norm(
    x: object, normalized_shape: Any, weight: object = None, bias: object = None, eps: float = curves.DEFAULT_EPS
) -> Settings:
    """As for the layer."""
    return _settings(math.prod(normalized_shape), eps)


_sample = Sample.norm

layernorm_int.samples = (
    _sample("plain", Draw((2, 3, 32)), 32),
    _sample("two axes", Draw((2, 3, 4, 6)), 24),
    _sample("every axis but the first", Draw((2, 3, 4)), 12),
    _sample("saturating", Draw((2, 3, 16)), 16, scale_o=256.0),
    _sample("small numbers in a fine format: eps counts", Draw((4, 5, 8), low=-2, high=2), 8, scale_x=2.0**9),
    _sample("another eps", Draw((2, 3, 8), low=-9, high=9), 8, eps=0.125),
    _sample("equal numbers, no eps", Draw((2, 3, 8), low=7, high=7), 8, scale_x=1.0, eps=0.0),
    _sample("beyond the table", Draw((2, 3, 8)), 8, scale_x=2.0**30),
    _sample("4 bits", Draw((2, 3, 8), 4), 8, scale_o=2.0, bits=4),
    _sample("16 bits", Draw((2, 3, 40), 16), 40, scale_x=2048.0, scale_o=2.0**12, bits=16),
    _sample("32-bit output", Draw((2, 3, 8)), 8, scale_o=2.0**20, bits=32),
    _sample("long lines of 16 bits", Draw((1, 2048), 16), 2048, scale_x=2048.0),
    _sample("one high number among many saturates n", Draw((1, 4096), low=0, high=1), 4096),
    _sample("empty batch", Draw((0, 3, 8)), 8),
    _sample("one element", Draw((1, 1)), 1),
)
