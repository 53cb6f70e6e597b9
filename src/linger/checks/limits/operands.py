# SPDX-License-Identifier: Apache-2.0
"""Limits of element-wise ops (sums, products, joins, curves, variances), and of all scales."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from linger.checks.limits.limit import NO_EXACT_FORM, Site, limit
from linger.dialect import ops
from linger.graph.core.finding import Finding
from linger.graph.lowering.bodies import Shape
from linger.numeric.fixed import is_power_of_two
from linger.targets import Status

_FOLD = (
    "Fold the number into the bias of the layer before, or make it a tensor of the same shape: of a constant a "
    "registered buffer, of a computed tensor torch.cat of copies."
)


@dataclass(frozen=True)
class OperandLimits:
    """The table [operands] of a chip's file; `targets/packer.toml` explains each value."""

    smallest_scale: int
    repeated_axes: int
    divisor_bits: int
    factor_shapes: str
    packed_curve_bits: Mapping[str, int]
    variance_axis: int
    has_mixed_joins: bool
    curve_bits: int | None = None
    mixed_join_bits: int | None = None


@limit(906, "scale", "Scales are powers of two from 1 on; results are shifted right.", everywhere=True)
def check_scales(site: Site) -> Iterator[Finding]:
    """Powers of two that are not too small; products and sums shift right only."""
    scales = _scales(site)
    wrong = {n: s for n, s in scales.items() if not is_power_of_two(s)}
    if wrong:
        yield site.error(
            f"{_listed(wrong)}: no power of two; the chip only shifts", "Choose scales that are powers of two."
        )
        return
    smallest = site.limits(OperandLimits).smallest_scale
    small = {n: s for n, s in scales.items() if s < smallest}
    if small:
        yield site.error(
            f"{_listed(small)}: {site.chip} has no scales below {smallest} (values beyond the range of the integers themselves)",
            "Keep the layer's range smaller, with linger.normalize_layers or a scaled input.",
        )
    yield from _shift_findings(site, scales)


def _scales(site: Site) -> dict[str, float]:
    kinds = (ir.AttributeType.FLOAT, ir.AttributeType.INT)
    given = {n: a for n, a in site.node.attributes.items() if n.startswith("scale_") and not a.is_ref()}
    return {n: float(a.value) for n, a in given.items() if a.type in kinds}


def _listed(scales: dict[str, float]) -> str:
    return ", ".join(f"{name} = {scale:g}" for name, scale in scales.items())


def _shift_findings(site: Site, scales: dict[str, float]) -> Iterator[Finding]:
    """Results of products and sums that would be shifted left; only ops that have limits on chips are known to be concerned."""
    op, output = ops().get(site.op_type), scales.get("scale_o", 0.0)
    if op is None or not op.chip_limits or op.limit not in (math.prod, min):
        return
    names = [a.name for a in op.attributes if a.name in ("scale_x", "scale_w", "scale_y")]
    bound = op.limit(scales.get(name, math.inf) for name in names)
    if output > bound:
        what, whose = ("output", "the product") if op.limit is math.prod else ("sum", "an operand")
        reason = f"the {what}'s scale {output:g} is above {bound:g}, that of {whose}; the chip shifts right only"
        yield site.error(reason, "Train or calibrate the model with linger, which keeps to that.")


@limit(931, "sum", "Summands are integers, repeated along no more axes than the chip has.")
def check_sum(site: Site) -> Iterator[Finding]:
    """Two integer tensors of which one is repeated along few axes."""
    if site.is_float(1):
        yield site.error("a float operand, which the packer refuses", _FOLD)
        return
    axes, most = _broadcast_axes(site), site.limits(OperandLimits).repeated_axes
    if axes is None:
        yield site.unchecked("how its operands are broadcast")
    elif axes > most:
        times = "1 axis" if axes == 1 else f"{axes} axes"
        yield site.error(f"one operand is repeated along {times}; {site.chip} takes {most}", _FOLD)


@limit(932, "factor", "Factors have equal shapes, or are a scalar Constant.")
def check_factor(site: Site) -> Iterator[Finding]:
    """A tensor of the same shape, one number per channel, or a scalar in a Constant node."""
    if _is_scalar(site, 1):
        yield from _check_scalar(site)
        return
    allowed = site.limits(OperandLimits).factor_shapes
    if allowed == "any":
        return
    x, y = site.shape(0), site.shape(1)
    if x is None or y is None:
        yield site.unchecked("how its operands are broadcast")
        return
    if not (allowed == "channel" and _is_per_channel(x, y)) and _broadcast_axes(site) != 0:
        also = ", or by one number per channel" if allowed == "channel" else ""
        yield site.error(
            f"operands of the shapes {_text(x)} and {_text(y)}; the chip multiplies equal shapes{also}",
            "Repeat the smaller operand with torch.cat, until both have one shape.",
        )


def _is_per_channel(x: Shape, y: Shape) -> bool:
    """Whether y is [C, 1, 1], leading axes of size 1 aside, for pictures x."""
    return len(x) == 4 and len(y) >= 3 and y[-3:] == (x[1], 1, 1) and all(n == 1 for n in y[:-3])


@limit(933, "divisor", "Divisors are 8-bit powers of two.")
def check_divisor(site: Site) -> Iterator[Finding]:
    """A scalar of the chip's width that is a power of two, of either sign."""
    content, bits = site.constant(1), site.limits(OperandLimits).divisor_bits
    value = None if content is None or content.size != 1 else abs(float(content.reshape(-1)[0]))
    if content is None or content.dtype != f"int{bits}" or value is None or not is_power_of_two(value):
        yield site.error(
            f"a divisor that is no {bits}-bit power of two, the only one that the chip runs",
            "Multiply by the reciprocal instead (iqMul by a number is exact).",
        )
    else:
        yield from _check_scalar(site)


@limit(934, "join", "Wide tensors that are joined have one scale.")
def check_join(site: Site) -> Iterator[Finding]:
    """Tensors of different scales: wide ones cannot be joined, on some chips none."""
    limits, count = site.limits(OperandLimits), len(site.node.inputs)
    scales = {site.attribute(f"scale_x_{i}") for i in range(count)} | {site.attribute("scale_o")}
    if len(scales) > 1 and not limits.has_mixed_joins:
        yield site.error(
            f"joins tensors of different scales, which {site.chip} was seen to compute otherwise",
            "Let the tensors come from layers of one range: linger.normalize_layers with equal limits, or a ReLU6 behind each.",
        )
    most = limits.mixed_join_bits
    is_wide = most is not None and any((site.bits(i) or 0) > most for i in range(count))
    if is_wide and len(scales) > 1:
        yield site.error(
            f"joins numbers of more than {most} bits at different scales; the chip does that for {most} bits only",
            f"Leave out_bits of the layers before at {most}.",
        )


@limit(935, "curve", "Sigmoid and tanh have the width of the chip's tables.")
def check_curve(site: Site) -> Iterator[Finding]:
    """The width that the chip's tables take, or for which the packer asks whatever they take."""
    limits, bits = site.limits(OperandLimits), site.bits(0)
    if bits is None or site.target.status_of(site.op_type) is Status.REFUSED:
        return
    packed = limits.packed_curve_bits.get(site.op_type)
    if packed is not None and packed != limits.curve_bits:
        if bits != packed:
            yield site.warning(
                f"{bits}-bit input of {site.op_type}, for which the packer asks for {packed} bits on every chip",
                f"Try the file on the chip. {NO_EXACT_FORM}",
            )
    elif limits.curve_bits not in (None, bits):
        yield site.error(
            f"{bits}-bit input; {site.chip} takes {limits.curve_bits} bits here",
            f"Quantise the model for this chip: linger.init(model, target={site.chip!r}).",
        )


@limit(936, "variance", "Variances run along axis 2.")
def check_variance(site: Site) -> Iterator[Finding]:
    """The packer reduces one axis whatever is asked for."""
    axis = site.limits(OperandLimits).variance_axis
    if site.attribute("dim", axis) != axis:
        yield site.error(
            f"a variance along axis {site.attribute('dim')}; the packer takes axis {axis}",
            f"Move that axis to place {axis}.",
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
