# SPDX-License-Identifier: Apache-2.0
"""What a dialect node states about the scale and width of its tensors: of those that it takes and of those that it gives.

Reading never fails. An attribute that is missing or of a wrong type states nothing; the checks say what a node must have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from linger.dialect import Op, find_op, is_known
from linger.errors import UsageError
from linger.graph.core.dialects import DEQUANT, NEWER, NEWER_OPS, QUANT, NewerOp
from linger.graph.core.dialects import claims as newer_claims

_SCALES = {
    "x": ("scale_x", "scale_i"),
    "y": ("scale_y",),
    "w": ("scale_w",),
    "w_ih": ("scale_iw",),
    "w_hh": ("scale_hw",),
}
_BITS = {
    "x": ("data_bits", "x_bits"),
    "y": ("y_bits",),
    "w": ("parameter_bits", "w_bits"),
    "w_ih": ("parameter_bits", "w_bits"),
    "w_hh": ("parameter_bits", "w_bits"),
}
_REAL_INPUTS = frozenset({"h", "c", "running_mean", "running_var"})
_WIDEST = 32


@dataclass(frozen=True)
class StatedFormat:
    """The scale and the width that a node states for one tensor; None for what it does not state.

    Attributes:
        scale: int = real · scale.
        bits: Width of the integers.
        attribute: The attribute that holds the scale, for messages.
    """

    scale: float | None = None
    bits: int | None = None
    attribute: str = ""


@dataclass(frozen=True)
class StatedFormats:
    """What a node states about all its tensors.

    Attributes:
        integers: Inputs that must hold quantised integers, by index.
        reals: Inputs that must hold real numbers.
        outputs: One entry per output; None for real numbers.
        kept: The input whose numbers the node moves or selects without changing them; None where it computes new ones.
    """

    integers: Mapping[int, StatedFormat] = field(default_factory=dict)
    reals: frozenset[int] = frozenset()
    outputs: tuple[StatedFormat | None, ...] = ()
    kept: int | None = None


def stated_formats(node: ir.Node) -> StatedFormats:
    """What a node of either dialect states about its tensors."""
    if node.op_type == QUANT:
        made = StatedFormat(read_scale(node, "scale_x"), read_bits(node, "data_bits"), "scale_x")
        return StatedFormats(reals=frozenset({0}), outputs=(made,))
    if node.op_type == DEQUANT:
        return StatedFormats(integers={0: StatedFormat()}, outputs=(None,))
    newer = NEWER_OPS.get(node.op_type) if node.domain == NEWER else None
    return _of_older(node) if newer is None else _of_newer(node, newer)


def _of_older(node: ir.Node) -> StatedFormats:
    """By the op's own file; of an op that linger does not know, by the names of the attributes."""
    op = find_op(node.op_type) if node.domain != NEWER and is_known(node.op_type) else None
    if op is not None and op.output_bits is None:
        return StatedFormats(kept=0, outputs=(StatedFormat(),))
    names = _input_names(node, op)
    integers = {i: _of_input(node, name, i) for i, name in enumerate(names) if name in (*_SCALES, "xs")}
    reals = frozenset(i for i, name in enumerate(names) if name in _REAL_INPUTS)
    return StatedFormats(integers=integers, reals=reals, outputs=_of_outputs(node, op))


def _of_newer(node: ir.Node, op: NewerOp) -> StatedFormats:
    """By the table of the newer dialect; a bias, whose scale is a product of two others, is not asked for."""
    if op.result is None:
        return StatedFormats(kept=0, outputs=(StatedFormat(),))
    integers = {}
    for index, claim in newer_claims(node).inputs.items():
        if len(claim.scales) == 1:
            names = _SCALES["x"] if claim.scales == ("scale_x",) else claim.scales
            bits = claim.bits if isinstance(claim.bits, int) else read_bits(node, str(claim.bits))
            integers[index] = StatedFormat(read_scale(node, *names), bits, _present(node, names))
    own = [n for n in ("scale_o", *op.result.scales) if n in node.attributes]
    bits = read_bits(node, "o_bits", str(op.result.bits))
    return StatedFormats(
        integers=integers,
        outputs=_one_quantised(node, StatedFormat(read_scale(node, *own), bits, [*own, "scale_o"][0])),
    )


def read_scale(node: ir.Node, *names: str) -> float | None:
    """The first of some attributes that is a number above zero; None where there is none."""
    numbers = (ir.AttributeType.FLOAT, ir.AttributeType.INT)
    for attribute in (node.attributes.get(name) for name in names):
        if attribute is not None and not attribute.is_ref() and attribute.type in numbers:
            value = float(attribute.value)
            if math.isfinite(value) and value > 0:
                return value
    return None


def read_bits(node: ir.Node, *names: str) -> int | None:
    """The first of some attributes that is a width; None where there is none."""
    for attribute in (node.attributes.get(name) for name in names):
        if attribute is not None and not attribute.is_ref() and attribute.type == ir.AttributeType.INT:
            value = int(attribute.value)
            if 0 < value <= _WIDEST:
                return value
    return None


def _present(node: ir.Node, names: tuple[str, ...]) -> str:
    """The first of some attributes that a node has, else the first of them."""
    return next((name for name in names if name in node.attributes), names[0])


def _input_names(node: ir.Node, op: Op | None) -> tuple[str, ...]:
    """The names of the inputs; of an op that linger does not know, as its attributes suggest them."""
    count = len(node.inputs)
    if op is not None and op.is_variadic:
        return ("xs",) * count
    if op is not None:
        try:
            return op.form(count)
        except UsageError:
            return op.inputs[:count]
    if any(f"scale_x_{i}" in node.attributes for i in range(count)):
        return ("xs",) * count
    second = "y" if "scale_y" in node.attributes else "w" if "scale_w" in node.attributes else "b"
    return ("x", second, "b", "b", "b")[:count]


def _of_input(node: ir.Node, name: str, index: int) -> StatedFormat:
    if name == "xs":
        return StatedFormat(
            read_scale(node, f"scale_x_{index}"), read_bits(node, f"x_{index}_bits"), f"scale_x_{index}"
        )
    bits = read_bits(node, *_BITS[name])
    if name == "y" and bits is None and node.op_type == "BmmInt":
        bits = read_bits(node, "data_bits")  # one width for both matrices
    return StatedFormat(read_scale(node, *_SCALES[name]), bits, _present(node, _SCALES[name]))


def _of_outputs(node: ir.Node, op: Op | None) -> tuple[StatedFormat | None, ...]:
    scale = read_scale(node, "scale_o")
    if scale is None and "scale_o" not in node.attributes and op is not None:
        scale = op.output_scale
    return _one_quantised(node, StatedFormat(scale, read_bits(node, "o_bits") or _default_bits(op), "scale_o"))


def _one_quantised(node: ir.Node, first: StatedFormat) -> tuple[StatedFormat | None, ...]:
    """The first output of a node is quantised, the others are real."""
    return (first, *[None] * (len(node.outputs) - 1))


def _default_bits(op: Op | None) -> int | None:
    """The width of the output where the node does not state it; None where it must, and for an op that linger does not know."""
    found = None if op is None else next((a for a in op.attributes if a.name == op.output_bits), None)
    return None if found is None or found.is_required else int(found.default)
