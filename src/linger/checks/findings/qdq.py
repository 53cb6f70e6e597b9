# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear: what stands between a file of other tools and fixed point."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.checks.findings.node_places import Whole
from linger.checks.findings.scales import is_power_of_two
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import WARNING, Finding

_PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})
_SCALE, _ZERO_POINT = 1, 2


def qdq_findings(whole: Whole, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """Zero points and scales that fixed point does not have; warnings in a file of the dialect, notes in any other."""
    severity = WARNING if whole.has_dialect else None
    for place in whole.places:
        if place.node.op_type not in _PAIR or place.node.domain or str(place) in skip:
            continue
        scales, zeros = _content(place.node, _SCALE), _content(place.node, _ZERO_POINT)
        odd = None if scales is None else next((s for s in scales if not is_power_of_two(s)), None)
        if odd is not None:
            yield place.finding(
                rules.ODD_QDQ_SCALE,
                f"its scale {odd:.9g} is no power of two",
                "Quantise the float model with linger for a fixed-point device.",
                severity=severity,
            )
        shifted = None if zeros is None else next((z for z in zeros if z), None)
        if shifted is not None:
            yield place.finding(
                rules.ZERO_POINT,
                f"its zero point is {shifted:g}",
                "Quantise the float model with linger for a fixed-point device.",
                severity=severity,
            )


def _content(node: ir.Node, index: int) -> list[float] | None:
    """The different numbers of a constant input, in order."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return None
    producer = value.producer()
    tensor = value.const_value
    if producer is not None:
        held = producer.attributes.get("value") if producer.op_type == "Constant" else None
        is_tensor = held is not None and held.type == ir.AttributeType.TENSOR and not held.is_ref()
        tensor = held.as_tensor() if held is not None and is_tensor else None
    if tensor is None:
        return None
    content: NDArray[Any] = np.unique(tensor.numpy().astype(np.float64))
    return [float(number) for number in content]
