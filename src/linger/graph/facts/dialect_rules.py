# SPDX-License-Identifier: Apache-2.0
"""What dialect nodes do with quantised tensors."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from linger.graph.core.check_rules import MISSING_ATTRIBUTE, OPERAND_TYPE, SCALE_MISMATCH
from linger.graph.core.dialect_node import describe
from linger.graph.core.finding import ERROR
from linger.graph.facts.claims import Claim, read_scale
from linger.graph.facts.fact import REAL, Fact, quantised, storage_bits, storage_type
from linger.graph.facts.fact_book import FactBook, Use


def facts_of_dequant(book: FactBook, node: ir.Node) -> list[Fact]:
    """A Dequant: its tensor must hold integers at its scale; looked through where its result must be integers."""
    fact = book.fact(node.inputs[0])
    if fact.is_real:
        book.result.of_reals.append(node)
        return [fact]
    own = read_scale(node, "scale_o")
    if fact.scale is not None and own != fact.scale:
        book.result.wrong_scales.append((node, fact.scale))
    elif own is None:
        reason = "it has no scale_o, and its tensor's scale is not known"
        book.find(ERROR, describe(node), reason, "Set scale_o.", rule=MISSING_ATTRIBUTE)
    book.take(Use(node, 0))
    is_looked_through = fact.is_quantised and node.outputs[0] in book.demand.wanted
    return [replace(fact, was_real=True) if is_looked_through else REAL]


def facts_of_dialect(book: FactBook, node: ir.Node) -> list[Fact]:
    """Any other dialect node: what it states is compared with what comes in."""
    claims = book.flow.claims(node)
    for index, claim in claims.integers.items():
        if index < len(node.inputs) and node.inputs[index] is not None:
            _expect_integers(book, node, index, claim)
    for index in claims.reals:
        if index < len(node.inputs) and node.inputs[index] is not None:
            book.need(Use(node, index))
    if claims.kept is not None:
        kept = node.inputs[claims.kept] if claims.kept < len(node.inputs) else None
        if kept is not None and book.fact(kept).is_quantised:
            book.take(Use(node, claims.kept))
        return [book.fact(kept)]
    return [REAL if c is None else quantised(c.scale, c.bits) for c in claims.outputs]


def _expect_integers(book: FactBook, node: ir.Node, index: int, claim: Claim) -> None:
    use = Use(node, index)
    fact, name = book.fact(use.value), use.value.name
    if fact.is_real:
        if index == 0 or not _is_number(use.value):  # a second operand may be one real number
            book.find(
                ERROR,
                describe(node),
                f"it takes integers, and {name!r} holds real numbers",
                "Put a Quant with the scale that this node states before it.",
                rule=OPERAND_TYPE,
            )
        return
    book.take(use)
    if claim.scale is not None and fact.scale is not None and claim.scale != fact.scale:
        book.find(
            ERROR,
            describe(node),
            f"{claim.attribute} is {claim.scale:g}, and {name!r} has the scale {fact.scale:g}",
            "Give this node the scale of its tensor, or requantise the tensor.",
            rule=SCALE_MISMATCH,
        )
    if claim.bits is not None and fact.bits is not None and not _fits(claim.bits, fact, use.value):
        book.find(
            ERROR,
            describe(node),
            f"it reads {name!r} as {claim.bits} bits, and that has {fact.bits} ({fact})",
            "State the width that the tensor has, or requantise it.",
            rule=OPERAND_TYPE,
        )


def _is_number(value: ir.Value) -> bool:
    """Whether a tensor is one constant number."""
    tensor = value.const_value
    producer = value.producer()
    if tensor is None and producer is not None and producer.op_type == "Constant":
        held = producer.attributes.get("value")
        is_tensor = held is not None and held.type == ir.AttributeType.TENSOR and not held.is_ref()
        tensor = held.as_tensor() if held is not None and is_tensor else None
    return (tensor is not None and tensor.size == 1) or (
        producer is not None and producer.op_type == "Constant" and "value_float" in producer.attributes
    )


def _fits(claimed: int, fact: Fact, value: ir.Value) -> bool:
    """Whether integers can be read with a width: the same storage, and no wider than that."""
    producer = value.producer()
    if producer is None or producer.op_type == "Constant":
        return storage_type(claimed) == fact.element  # nothing but its storage says how wide a given tensor is
    storage = storage_bits(fact.element)
    return fact.bits is not None and claimed >= fact.bits and (storage is None or claimed <= storage)
