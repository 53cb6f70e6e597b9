# SPDX-License-Identifier: Apache-2.0
"""Limits of what joins two tensors or bends one: sums, products element by element, joins, curves; and of every scale."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from linger.graph.core.finding import Finding, Rule, Shape, Site
from linger.targets import Target

_FOLD = "Fold the number into the bias of the layer before, or make it a tensor of the same shape."
_SHIFTED = {"LinearInt": "scale_w", "BmmInt": "scale_y", "iqMul": "scale_y"} | dict.fromkeys(
    ("Conv1dInt", "Conv2dInt", "ConvTranspose2dInt"), "scale_w"
)
"""Products: the attribute with the scale of the second factor."""


def check_scales(site: Site, target: Target) -> Iterator[Finding]:
    """Powers of two from 1 on; products and sums shift right only."""
    kinds = (ir.AttributeType.FLOAT, ir.AttributeType.INT)
    given = {n: a for n, a in site.node.attributes.items() if n.startswith("scale_") and not a.is_ref()}
    scales = {n: float(a.value) for n, a in given.items() if a.type in kinds}
    wrong = [n for n, s in scales.items() if s <= 0 or math.frexp(s)[0] != 0.5]
    if wrong:
        listed = ", ".join(f"{n} = {scales[n]:g}" for n in wrong)
        yield site.error(f"{listed}: no power of two; the chip only shifts", "Choose scales that are powers of two.")
        return
    small = [n for n, s in scales.items() if s < 1]
    if small:
        listed = ", ".join(f"{n} = {scales[n]:g}" for n in small)
        yield site.error(
            f"{listed}: {target.name} has no scales below 1 (values beyond the range of the integers themselves)",
            "Keep the layer's range smaller, with linger.normalize_layers or a scaled input.",
        )
    second = _SHIFTED.get(site.op_type)
    if second is not None and {"scale_x", second, "scale_o"} <= scales.keys():
        product = scales["scale_x"] * scales[second]
        if scales["scale_o"] > product:
            yield site.error(
                f"the output's scale {scales['scale_o']:g} is above {product:g}, that of the product; the chip shifts right only",
                "Train or calibrate the model with linger, which keeps to that.",
            )
    if site.op_type in ("iqAdd", "iqSub") and "scale_o" in scales:
        finest = min(scales.get(n, math.inf) for n in ("scale_x", "scale_y"))
        if scales["scale_o"] > finest:
            yield site.error(
                f"the sum's scale {scales['scale_o']:g} is above {finest:g}, that of an operand; the chip shifts right only",
                "Train or calibrate the model with linger, which keeps to that.",
            )


def check_sum(site: Site, target: Target) -> Iterator[Finding]:
    """Two tensors of 8 bits that differ in one axis at most."""
    del target
    if site.is_float(1):
        yield site.error("a float operand, which the packer refuses", _FOLD)
        return
    axes = _broadcast_axes(site)
    if axes is None:
        yield site.unchecked("how its operands are broadcast")
    elif axes > 1:
        yield site.error(f"one operand is repeated along {axes} axes; the packer takes one", _FOLD)


def check_factor(site: Site, target: Target) -> Iterator[Finding]:
    """A tensor of the same shape, one number per channel, or a scalar in a Constant node."""
    if _is_scalar(site, 1):
        yield from _check_scalar(site)
        return
    if not target.multiplies_by_channel_only:
        return
    x, y = site.shape(0), site.shape(1)
    if x is None or y is None:
        yield site.unchecked("how its operands are broadcast")
        return
    is_per_channel = len(x) == 4 and len(y) >= 3 and y[-2:] == (1, 1) and y[-3] == x[1] and all(n == 1 for n in y[:-3])
    if not is_per_channel and _broadcast_axes(site) != 0:
        yield site.error(
            f"operands of the shapes {_text(x)} and {_text(y)}; the chip multiplies equal shapes, or by one number per channel",
            "Expand the second operand to the shape of the first (x.expand_as(y)).",
        )


def check_divisor(site: Site, target: Target) -> Iterator[Finding]:
    """Only division by a scalar of 8 bits that is a power of two ran."""
    del target
    content = site.constant(1)
    value = None if content is None or content.size != 1 else abs(float(content.reshape(-1)[0]))
    is_power = value is not None and value > 0 and math.frexp(value)[0] == 0.5
    if content is None or content.dtype != np.int8 or not is_power:
        yield site.error(
            "a divisor that is no 8-bit power of two, the only one that the chip runs",
            "Multiply by the reciprocal instead.",
        )
    else:
        yield from _check_scalar(site)


def check_join(site: Site, target: Target) -> Iterator[Finding]:
    """Wide tensors of different scales cannot be joined."""
    if not target.joins_wide_at_one_scale:
        return
    count = len(site.node.inputs)
    is_wide = any((site.bits(i) or 8) > 8 for i in range(count))
    scales = {site.attribute(f"scale_x_{i}") for i in range(count)} | {site.attribute("scale_o")}
    if is_wide and len(scales) > 1:
        yield site.error(
            "joins numbers of more than 8 bits at different scales; the chip does that for 8 bits only",
            "Leave out_bits of the layers before at 8.",
        )


def check_curve(site: Site, target: Target) -> Iterator[Finding]:
    """The width that the chip's tables want."""
    bits = site.bits(0)
    if bits is None:
        return
    if site.op_type == "iqTanh" and target.curve_bits != _PACKED_TANH_BITS:
        if bits != _PACKED_TANH_BITS:
            yield site.warning(
                f"{bits}-bit input of tanh, for which the packer asks for {_PACKED_TANH_BITS} bits on every chip",
                "Try the file on the chip, or keep tanh in float with linger.disable_quant.",
            )
    elif target.curve_bits not in (None, bits):
        yield site.error(
            f"{bits}-bit input; {target.name} takes {target.curve_bits} bits here",
            f"Quantise the model for this chip: linger.init(model, target={target.name!r}).",
        )


_PACKED_TANH_BITS = 16


def check_variance(site: Site, target: Target) -> Iterator[Finding]:
    """The packer always reduces the axis 2."""
    del target
    if site.attribute("dim", 2) != 2:
        yield site.error(
            f"a variance along axis {site.attribute('dim')}; the packer takes axis 2", "Move that axis to place 2."
        )


def _is_scalar(site: Site, index: int) -> bool:
    content = site.constant(index)
    return content is not None and content.size == 1


def _check_scalar(site: Site) -> Iterator[Finding]:
    value, content = site.input(1), site.constant(1)
    assert content is not None  # callers ask first
    assert value is not None
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or content.ndim != 0:
        yield site.error(
            "a scalar operand that is no Constant node of rank 0, which runs silently wrong on the chip",
            "Write it as a Constant node of rank 0, as linger's own export does (not simplified).",
        )


def _broadcast_axes(site: Site) -> int | None:
    """Along how many axes one of two operands is repeated; None where that depends on an open size."""
    x, y = site.shape(0), site.shape(1)
    if x is None or y is None:
        return None
    rank = max(len(x), len(y))
    pairs = list(zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y, strict=True))
    # two open sizes come from the same batch
    if any((a is None) != (b is None) and 1 not in (a, b) for a, b in pairs):
        return None
    return sum(a != b for a, b in pairs)


def _text(shape: Shape) -> str:
    return f"[{', '.join('?' if n is None else str(n) for n in shape)}]"


RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(("iqAdd", "iqSub"), (check_sum,)),
    "iqMul": (check_factor,),
    "iqDiv": (check_divisor,),
    "iqCat": (check_join,),
    **dict.fromkeys(("iqSigmoid", "iqTanh"), (check_curve,)),
    "iqVar": (check_variance,),
}
"""What is asked of each op type; every node is asked for its scales."""
