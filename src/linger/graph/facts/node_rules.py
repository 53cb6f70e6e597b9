# SPDX-License-Identifier: Apache-2.0
"""What a node does with quantised tensors: dialect nodes, standard nodes, and nodes that nobody knows."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from linger.graph.core.check_rules import MISSING_ATTRIBUTE, MISSING_DEQUANT, OPERAND_TYPE, SCALE_MISMATCH
from linger.graph.core.dialect_node import describe
from linger.graph.core.finding import ERROR, WARNING
from linger.graph.core.schema import type_variable
from linger.graph.core.tensor_types import INTEGERS, cast_type, integer_bits, output_types
from linger.graph.facts.fact import REAL, Fact, FactBook, Use, plain, quantised
from linger.graph.facts.standard_ops import (
    LOOKING,
    RAW,
    WHOLE,
    can_run,
    can_take,
    compared_inputs,
    inputs_beside,
    integer_inputs,
    moved_inputs,
    moved_outputs,
    takes_reals,
)
from linger.graph.facts.stated_formats import Claim, is_dequant, read_scale
from linger.numeric.onnx.writer import integer_type


def facts_of_standard(book: FactBook, node: ir.Node) -> list[Fact]:
    """A standard node: integers stay integers where they are moved, selected or compared and a runtime can do so."""
    facts = [book.fact(v) for v in node.inputs]
    if not any(f.is_quantised for f in facts):
        return _plain_outputs(book, node, _without_misfits(book, node, facts))
    if node.op_type in LOOKING:
        _take_all(book, node, facts)
        return [plain(ir.DataType.INT64)]
    if node.op_type in RAW:
        _take_all(book, node, facts)
        return _raw(book, node, facts)
    data = moved_inputs(node) or compared_inputs(node)
    if any(facts[i].element is None for i in data if i < len(facts) and node.inputs[i] is not None):
        return facts_of_unknown(book, node)  # what it meets may be integers or not
    common = _common(node, facts, data)
    if common is not None and _can_stay(book, node, common):
        _take_all(book, node, facts)
        if not moved_inputs(node):
            return _plain_outputs(book, node, facts)
        return [common] * moved_outputs(node) + [plain(ir.DataType.INT64)] * len(node.outputs)
    return _on_reals(book, node, facts)


def _without_misfits(book: FactBook, node: ir.Node, facts: list[Fact]) -> list[Fact]:
    """Integers that nobody gave a scale, where the op takes real numbers only: said so, and followed as if they were real."""
    seen = list(facts)
    groups = [type_variable(node.op_type, index, book.opset) for index in range(len(facts))]
    of_reals = {group for group, fact in zip(groups, facts, strict=True) if fact.is_real and group is not None}
    for index, fact in enumerate(facts):
        if fact.element not in WHOLE:
            continue
        if groups[index] in of_reals or not can_take(node, index, fact.element, book.opset):
            book.need_unscaled(Use(node, index))
            seen[index] = REAL
    return seen


def _take_all(book: FactBook, node: ir.Node, facts: list[Fact]) -> None:
    for index, fact in enumerate(facts):
        if fact.is_quantised:
            book.take(Use(node, index))


def _can_stay(book: FactBook, node: ir.Node, fact: Fact) -> bool:
    if any(output in book.demand.wanted for output in node.outputs):
        return True  # what takes integers further on decides
    if integer_inputs(node, book.opset):
        return True  # so do integers beside them
    return can_run(node, fact.element, fact.bits, book.opset)


def _on_reals(book: FactBook, node: ir.Node, facts: list[Fact]) -> list[Fact]:
    seen = list(facts)
    for index, fact in enumerate(facts):
        if not fact.is_quantised:
            continue
        if takes_reals(node, index, book.opset):
            book.need(Use(node, index))
            seen[index] = REAL
        else:
            book.find(
                ERROR,
                describe(node),
                f"input {index} cannot be quantised numbers, and {Use(node, index).value.name!r} is {fact}",
                "Connect the tensor that is meant.",
                rule=OPERAND_TYPE,
            )
    return _plain_outputs(book, node, seen)


def _raw(book: FactBook, node: ir.Node, facts: list[Fact]) -> list[Fact]:
    if node.op_type == "DequantizeLinear":
        return [REAL]
    if node.op_type != "Cast":
        return _plain_outputs(book, node, facts)
    target, fact = cast_type(node), facts[0]
    if fact.was_real and fact.scale is not None:
        book.result.kept_real.append(Use(node, 0))
        return [plain(target)]
    bits, width = integer_bits(target), integer_bits(fact.element)
    if bits is not None and width is not None and bits >= width:
        return [quantised(fact.scale, fact.bits, target)]
    if target != ir.DataType.INT64 or not _stay_integers(node):
        book.find(
            WARNING,
            describe(node),
            f"it takes the integers of {Use(node, 0).value.name!r} ({fact}) as they are, without their scale",
            "If real numbers are meant, put a Dequant before it.",
            rule=MISSING_DEQUANT,
        )
    return [plain(target)]


def _stay_integers(node: ir.Node) -> bool:
    """Whether what a Cast to 64 bits makes is only moved, compared, and cast back: so torch writes cat, roll and `x > 0`."""
    waiting = list(node.outputs[:1])
    seen = set(waiting)
    while waiting:
        value = waiting.pop()
        if value.is_graph_output():
            return False
        for consumer, index in value.uses():
            if consumer.op_type == "Cast" and consumer.domain == "" and cast_type(consumer) in WHOLE:
                continue
            if consumer.domain != "" or index not in (*moved_inputs(consumer), *compared_inputs(consumer)):
                return False
            if moved_inputs(consumer):
                waiting += [o for o in consumer.outputs[: moved_outputs(consumer)] if o not in seen]
                seen.update(waiting)
    return True


def _plain_outputs(book: FactBook, node: ir.Node, facts: list[Fact]) -> list[Fact]:
    """Outputs that are not quantised: of the types that ONNX gives them, else of those that the file declares."""
    elements = output_types(node, [fact.element for fact in facts], book.opset)
    if node.op_type in ("Constant", "ConstantOfShape"):
        return [_constant(book, node, elements[0])]
    return [plain(element or output.dtype) for element, output in zip(elements, node.outputs, strict=False)]


def _constant(book: FactBook, node: ir.Node, element: ir.DataType | None) -> Fact:
    scale = book.demand.scale_of(node.outputs[0]) if node.outputs else None
    return quantised(scale, integer_bits(element), element) if element in INTEGERS and scale else plain(element)


def facts_of_unknown(book: FactBook, node: ir.Node) -> list[Fact]:
    """A node whose op, or whose other inputs, nobody knows: left as it is, and said so."""
    for index, value in enumerate(node.inputs):
        fact = book.fact(value)
        if value is not None and fact.was_real and fact.scale is not None:
            book.result.kept_real.append(Use(node, index))
        elif value is not None and fact.is_quantised and not is_dequant(value.producer()):
            book.find(
                WARNING,
                describe(node),
                f"whether it takes the integers of {value.name!r} ({book.fact(value)}), its input {index}, cannot be told: "
                "the op, or the type of what it meets there, is not known",
                "If it computes with real numbers, put a Dequant before it.",
                rule=MISSING_DEQUANT,
            )
    return [plain(output.dtype) for output in node.outputs]


def _common(node: ir.Node, facts: list[Fact], data: tuple[int, ...]) -> Fact | None:
    """What the data of a node are together, where they are one kind of integers and nothing else is quantised."""
    of_data = [facts[i] for i in data if i < len(facts) and node.inputs[i] is not None]
    first = next((f for f in of_data if f.is_quantised), None)
    others = [f for i, f in enumerate(facts) if f.is_quantised and i not in data and i not in inputs_beside(node)]
    if first is None or others:
        return None
    beside = [facts[i] for i in inputs_beside(node)]
    if any(f.element != first.element for f in (*of_data, *beside)):
        return None
    numbers = [f for i in data if i < len(facts) and (f := facts[i]).is_quantised]
    is_mixed = len(of_data) > len(numbers) and not _is_constant_elsewhere(node, facts, data)
    if is_mixed or any(f.scale != first.scale or (f.scale is None and len(of_data) > 1) for f in numbers):
        return None
    return replace(max(numbers, key=lambda f: f.bits or 0), was_real=any(f.was_real for f in numbers))


def _is_constant_elsewhere(node: ir.Node, facts: list[Fact], data: tuple[int, ...]) -> bool:
    """Whether the operands that are not known to be quantised are constants, which are written for the others."""
    rest = [v for i in data if i < len(facts) and not facts[i].is_quantised and (v := node.inputs[i]) is not None]
    return all(v.const_value is not None or _comes_from(v, "Constant") for v in rest)


def _comes_from(value: ir.Value, op_type: str) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == op_type


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
        return integer_type(claimed) == fact.element  # nothing but its storage says how wide a given tensor is
    storage = integer_bits(fact.element)
    return fact.bits is not None and claimed >= fact.bits and (storage is None or claimed <= storage)
