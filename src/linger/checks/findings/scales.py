# SPDX-License-Identifier: Apache-2.0
"""Scales of dialect nodes, each by itself: numbers, powers of two, shifts to the right. Who feeds whom is propagation's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from linger.checks.findings.node_places import Place, Whole
from linger.dialect import Limit, is_known
from linger.graph.core import check_rules as rules
from linger.graph.core.dialect_node import is_dialect, op_of
from linger.graph.core.dialects import is_quantising
from linger.graph.core.finding import Finding

_FACTORS = ("scale_x", "scale_w", "scale_y")
_NEWER_LIMITS: dict[str, Limit] = {
    **dict.fromkeys(("QConv1d", "QConv2d", "QConvBN2d", "QConvTranspose1d", "QConvTranspose2d", "QLinear"), math.prod),
    **dict.fromkeys(("QBatchNorm1d", "QBatchNorm2d", "QMul", "QBmm", "QMatmul"), math.prod),
    "QAdd": min,
}
"""What bounds the output scale of ops of the newer dialect."""

_CALIBRATE = "Calibrate or train the model with linger and export it again."


def scale_findings(whole: Whole, *, for_target: bool = False) -> Iterator[Finding]:
    """What the scales of each node say by themselves.

    Args:
        whole: The model.
        for_target: A chip is asked too; it judges shifts and scales below 1 by its own rules.
    """
    for place in whole.places:
        if not is_quantising(place.node):
            continue
        scales = scales_of(place.node)
        yield from _value_findings(place, scales, for_target=for_target)
        if all(_is_positive(scale) for scale in scales.values()):
            yield from _relation_findings(place, scales, for_target=for_target)


def scales_of(node: ir.Node) -> dict[str, float]:
    """The scales among a node's attributes."""
    return {
        name: float(attribute.value)
        for name, attribute in node.attributes.items()
        if name.startswith("scale_") and attribute.type == ir.AttributeType.FLOAT and not attribute.is_ref()
    }


def is_power_of_two(number: float) -> bool:
    """Whether a number is 2 to a whole power.

    >>> [is_power_of_two(x) for x in (0.5, 1.0, 3.0, 0.0, -2.0)]
    [True, True, False, False, False]
    """
    return number > 0 and math.frexp(number)[0] == 0.5


def _is_positive(scale: float) -> bool:
    return math.isfinite(scale) and scale > 0


def _value_findings(place: Place, scales: dict[str, float], *, for_target: bool) -> Iterator[Finding]:
    invalid = {n: s for n, s in scales.items() if not _is_positive(s)}
    odd = {n: s for n, s in scales.items() if n not in invalid and not is_power_of_two(s)}
    small = {n: s for n, s in scales.items() if n not in invalid and s < 1}
    if invalid:
        yield place.finding(rules.INVALID_SCALE, f"{_listed(invalid)}: no scale", _CALIBRATE)
    if odd and not for_target:
        yield place.finding(
            rules.ODD_SCALE, f"{_listed(odd)}: no power of two", "Choose scales that are powers of two."
        )
    if small and not for_target:
        yield place.finding(
            rules.SMALL_SCALE,
            f"{_listed(small)}: below 1, which no device has",
            "Keep the layer's range smaller, with linger.normalize_layers or a scaled input.",
        )


def _listed(scales: dict[str, float]) -> str:
    return ", ".join(f"{name} = {scale:g}" for name, scale in scales.items())


def _relation_findings(place: Place, scales: dict[str, float], *, for_target: bool) -> Iterator[Finding]:
    output, node = scales.get("scale_o"), place.node
    if output is None:
        return
    op = op_of(node) if is_dialect(node) and is_known(node.op_type) else None
    limit = _NEWER_LIMITS.get(node.op_type) if op is None else op.limit
    operands = [scales[name] for name in _FACTORS if name in scales]
    if operands and not for_target and limit in (math.prod, min):
        bound = limit(operands)
        if output > bound:
            whose = "that of the product" if limit is math.prod else "that of an operand"
            yield place.finding(
                rules.LEFT_SHIFT,
                f"scale_o = {output:g} is above {bound:g}, {whose}, so the result would be shifted left",
                _CALIBRATE,
            )
    if op is not None and op.output_scale is not None and output != op.output_scale:
        yield place.finding(
            rules.FIXED_SCALE,
            f"scale_o = {output:g}; the device's {op.name} gives {op.output_scale:g}",
            f"Export with linger, which writes {op.output_scale:g}.",
        )
