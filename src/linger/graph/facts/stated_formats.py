# SPDX-License-Identifier: Apache-2.0
"""What a dialect node says about its tensors: the scale and width that it expects, and those that it gives.

Reading never fails: an attribute that is missing or of a wrong type is a claim that is not made. What a node must have is
the business of the checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from linger.dialect import DOMAIN, Op, find_op, is_known
from linger.errors import UsageError
from linger.graph.core.dialects import NEWER, NEWER_OPS, NewerOp
from linger.graph.core.dialects import claims as newer_claims
from linger.graph.core.walking import inner_graphs

NEWER_DOMAIN = NEWER
"""The domain of the newer dialect, whose ops have Q names."""

QUANT, DEQUANT = "Quant", "Dequant"

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


@dataclass(frozen=True)
class Claim:
    """The scale and the width that a node states for one tensor; None for what it does not state."""

    scale: float | None = None
    bits: int | None = None
    attribute: str = ""


@dataclass(frozen=True)
class Claims:
    """Everything that a node states.

    Attributes:
        integers: Inputs that must hold quantised integers.
        reals: Inputs that must hold real numbers.
        outputs: Per output the claim, None for real numbers.
        kept: The input whose numbers come out as they are, moved or selected; None where they are computed.
    """

    integers: Mapping[int, Claim] = field(default_factory=dict)
    reals: frozenset[int] = frozenset()
    outputs: tuple[Claim | None, ...] = ()
    kept: int | None = None


def is_quantising(node: ir.Node) -> bool:
    """Whether a node belongs to one of the dialects."""
    return is_quantising_domain(node.domain)


def is_quantising_domain(domain: str) -> bool:
    """Whether a domain is that of a dialect, or a sub-domain of the older one."""
    return domain in (DOMAIN, NEWER_DOMAIN) or domain.startswith(f"{DOMAIN}.")


def is_dequant(node: ir.Node | None) -> bool:
    """Whether a node turns integers into real numbers, in either dialect, and depends on nothing else.

    One without a tensor does nothing; one with more inputs, or with a graph in it, cannot be moved before its other readers.
    """
    if node is None or node.op_type != DEQUANT or not is_quantising(node):
        return False
    return len(node.outputs) == 1 and len(node.inputs) == 1 and node.inputs[0] is not None and not inner_graphs(node)


def claims_of(node: ir.Node) -> Claims:
    """The claims of a dialect node."""
    if node.op_type == QUANT:
        return Claims(
            reals=frozenset({0}), outputs=(Claim(read_scale(node, "scale_x"), read_bits(node, "data_bits"), "scale_x"),)
        )
    if node.op_type == DEQUANT:
        return Claims(integers={0: Claim()}, outputs=(None,))
    if node.domain == NEWER_DOMAIN and node.op_type in NEWER_OPS:
        return _of_newer(node, NEWER_OPS[node.op_type])
    op = _known_op(node)
    if op is not None and op.output_bits is None:
        return Claims(kept=0, outputs=(Claim(),))
    names = _input_names(node, op)
    integers = {i: _input_claim(node, name, i) for i, name in enumerate(names) if name in _SCALES or name == "xs"}
    reals = frozenset(i for i, name in enumerate(names) if name in _REAL_INPUTS)
    return Claims(integers=integers, reals=reals, outputs=_outputs(node, op))


def _of_newer(node: ir.Node, op: NewerOp) -> Claims:
    """What the table of the newer dialect says; a bias, whose scale is a product, is not asked for."""
    said = newer_claims(node)
    if op.result is None:
        return Claims(kept=0, outputs=(Claim(),))
    integers = {}
    for index, claim in said.inputs.items():
        if len(claim.scales) == 1:
            names = _SCALES["x"] if claim.scales == ("scale_x",) else claim.scales
            bits = claim.bits if isinstance(claim.bits, int) else read_bits(node, str(claim.bits))
            attribute = next((n for n in names if n in node.attributes), names[0])
            integers[index] = Claim(read_scale(node, *names), bits, attribute)
    own = [n for n in ("scale_o", *op.result.scales) if n in node.attributes]
    first = Claim(read_scale(node, *own), read_bits(node, "o_bits", str(op.result.bits)), own[0] if own else "scale_o")
    return Claims(integers=integers, outputs=(first, *[None] * (len(node.outputs) - 1)))


def read_scale(node: ir.Node, *names: str) -> float | None:
    """The first of some attributes that is a number above zero; None where there is none."""
    for name in names:
        attribute = node.attributes.get(name)
        if (
            attribute is None
            or attribute.is_ref()
            or attribute.type not in (ir.AttributeType.FLOAT, ir.AttributeType.INT)
        ):
            continue
        value = float(attribute.value)
        if math.isfinite(value) and value > 0:
            return value
    return None


def read_bits(node: ir.Node, *names: str) -> int | None:
    """The first of some attributes that is a width; None where there is none."""
    for name in names:
        attribute = node.attributes.get(name)
        if attribute is not None and not attribute.is_ref() and attribute.type == ir.AttributeType.INT:
            value = int(attribute.value)
            if 0 < value <= 32:
                return value
    return None


def _known_op(node: ir.Node) -> Op | None:
    return find_op(node.op_type) if node.domain != NEWER_DOMAIN and is_known(node.op_type) else None


def _input_names(node: ir.Node, op: Op | None) -> tuple[str, ...]:
    """What the inputs are; of an op that linger does not know, as its attributes tell."""
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


def _input_claim(node: ir.Node, name: str, index: int) -> Claim:
    if name == "xs":
        return Claim(read_scale(node, f"scale_x_{index}"), read_bits(node, f"x_{index}_bits"), f"scale_x_{index}")
    names = _SCALES[name]
    bits = read_bits(node, *_BITS[name])
    if name == "y" and bits is None and node.op_type == "BmmInt":
        bits = read_bits(node, "data_bits")  # one width for both matrices
    return Claim(read_scale(node, *names), bits, next((n for n in names if n in node.attributes), names[0]))


def _outputs(node: ir.Node, op: Op | None) -> tuple[Claim | None, ...]:
    scale = read_scale(node, "scale_o")
    if scale is None and "scale_o" not in node.attributes and op is not None:
        scale = op.output_scale
    first = Claim(scale, read_bits(node, "o_bits") or _default_bits(op), "scale_o")
    return (first, *[None] * (len(node.outputs) - 1))


def _default_bits(op: Op | None) -> int | None:
    """The width that a node has without saying so; None where it must say it, and for an op that linger does not know."""
    found = None if op is None else next((a for a in op.attributes if a.name == op.output_bits), None)
    return None if found is None or found.is_required else int(found.default)
