# SPDX-License-Identifier: Apache-2.0
"""What a node does with quantised tensors: dialect nodes, standard nodes, and nodes that nobody knows.

Each rule gives the facts of the node's outputs, and notes in the book which inputs take integers and which need real numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from linger.graph.core.check_rules import MISSING_ATTRIBUTE, MISSING_DEQUANT, OPERAND_TYPE, SCALE_MISMATCH
from linger.graph.core.dialect_node import describe
from linger.graph.core.dialects import StatedFormat, is_dequant, read_scale
from linger.graph.core.finding import ERROR, WARNING
from linger.graph.core.schema import type_variable
from linger.graph.core.tensor_types import INTEGERS, cast_type, integer_bits, output_types
from linger.graph.facts.fact import REAL, Fact, FactBook, Use, plain, quantised
from linger.graph.facts.flow import (
    INTEGER_OPS,
    SHAPE_OPS,
    WHOLE_NUMBERS,
    can_run,
    can_take,
    data_of,
    integer_inputs,
    moved_inputs,
    moved_outputs,
    takes_reals,
)
from linger.graph.qdq.qdq_node import bounds_of
from linger.numeric.onnx.writer import integer_type

CONSTANTS = ("Constant", "ConstantOfShape")


def facts_of_dequant(book: FactBook, node: ir.Node) -> list[Fact]:
    """A Dequant: its tensor must hold integers at its scale. It is ignored where its result must be integers."""
    fact = book.fact(node.inputs[0])
    if fact.is_real:
        book.result.of_reals.append(node)
        return [fact]
    own = read_scale(node, "scale_o")
    if fact.scale is not None:
        book.result.dequant_scales.setdefault(node, set()).add(fact.scale)
    if fact.scale is not None and own != fact.scale:
        book.result.wrong_scales.append((node, fact.scale))
    elif own is None:
        reason = "it has no scale_o, and its tensor's scale is not known"
        book.find(ERROR, describe(node), reason, "Set scale_o.", rule=MISSING_ATTRIBUTE)
    book.take_integers(Use(node, 0))
    is_ignored = fact.is_quantised and node.outputs[0] in book.required
    return [fact.once_real() if is_ignored else REAL]


def facts_of_dialect(book: FactBook, node: ir.Node) -> list[Fact]:
    """Any other dialect node: what it states about its inputs is compared with their facts."""
    stated = book.flow.formats(node)
    for index in _present(node, stated.integers):
        _expect_integers(book, node, index, stated.integers[index])
    for index in _present(node, stated.reals):
        book.need_reals(Use(node, index))
    if stated.kept is None:
        return [REAL if s is None else quantised(s.scale, s.bits) for s in stated.outputs]
    kept = node.inputs[stated.kept] if stated.kept < len(node.inputs) else None
    if book.fact(kept).is_quantised:
        book.take_integers(Use(node, stated.kept))
    return [book.fact(kept)]


def _present(node: ir.Node, indices: Iterable[int]) -> list[int]:
    """Those of some inputs that a node has."""
    return [index for index in indices if index < len(node.inputs) and node.inputs[index] is not None]


def _expect_integers(book: FactBook, node: ir.Node, index: int, stated: StatedFormat) -> None:
    """An input must hold integers of the scale and width that the node states."""
    use = Use(node, index)
    value = use.value
    fact, name = book.fact(value), value.name
    if fact.is_real:
        if index == 0 or _constant_size(value) != 1:  # a second operand may be one real number
            book.find(
                ERROR,
                describe(node),
                f"it takes integers, and {name!r} holds real numbers",
                "Put a Quant with the scale that this node states before it.",
                rule=OPERAND_TYPE,
            )
        return
    book.take_integers(use)
    if stated.scale is not None and fact.scale is not None and stated.scale != fact.scale:
        book.find(
            ERROR,
            describe(node),
            f"{stated.attribute} is {stated.scale:g}, and {name!r} has the scale {fact.scale:g}",
            "Give this node the scale of its tensor, or requantise the tensor.",
            rule=SCALE_MISMATCH,
        )
    if stated.bits is not None and fact.bits is not None and not _fits(stated.bits, fact, value):
        book.find(
            ERROR,
            describe(node),
            f"it reads {name!r} as {stated.bits} bits, and that has {fact.bits} ({fact})",
            "State the width that the tensor has, or requantise it.",
            rule=OPERAND_TYPE,
        )


def _constant_size(value: ir.Value) -> int | None:
    """How many numbers a constant tensor holds; None for a tensor that is computed."""
    if value.const_value is not None:
        return value.const_value.size
    producer = value.producer()
    if producer is None or producer.op_type != "Constant":
        return None
    if "value_float" in producer.attributes:
        return 1
    held = producer.attributes.get("value")
    is_tensor = held is not None and held.type == ir.AttributeType.TENSOR and not held.is_ref()
    return held.as_tensor().size if held is not None and is_tensor else None


def _fits(bits: int, fact: Fact, value: ir.Value) -> bool:
    """Whether a tensor can be read with a width: in the same storage, and not with fewer bits than it has."""
    producer = value.producer()
    if producer is None or producer.op_type == "Constant":
        return integer_type(bits) == fact.element  # nothing but its storage says how wide a given tensor is
    storage = integer_bits(fact.element)
    return fact.bits is not None and bits >= fact.bits and (storage is None or bits <= storage)


def facts_of_standard(book: FactBook, node: ir.Node) -> list[Fact]:
    """A standard node: integers stay integers where they are moved, selected or compared, and a runtime can do so."""
    facts = [book.fact(v) for v in node.inputs]
    if not any(fact.is_quantised for fact in facts):
        return _plain_outputs(book, node, _without_misfits(book, node, facts))
    if node.op_type in SHAPE_OPS:
        _take_all(book, node, facts)
        return [plain(ir.DataType.INT64)]
    if node.op_type in INTEGER_OPS:
        _take_all(book, node, facts)
        return _facts_of_integer_op(book, node, facts)
    data = _present(node, data_of(node))
    if any(facts[i].element is None for i in data):
        return facts_of_unknown(book, node)  # the quantised tensor may meet integers or real numbers
    common = _common_fact(node, facts, data)
    return _on_reals(book, node, facts) if common is None else _on_integers(book, node, facts, common)


def _without_misfits(book: FactBook, node: ir.Node, facts: list[Fact]) -> list[Fact]:
    """Report integers without a scale where the op takes only real numbers, and go on as if they were real."""
    if not any(fact.element in WHOLE_NUMBERS for fact in facts):
        return facts
    seen = list(facts)
    groups = [type_variable(node.op_type, index, book.opset) for index in range(len(facts))]
    of_reals = {group for group, fact in zip(groups, facts, strict=True) if fact.is_real and group is not None}
    for index, fact in enumerate(facts):
        if fact.element not in WHOLE_NUMBERS:
            continue
        if groups[index] in of_reals or not can_take(node, index, fact.element, book.opset):
            book.report_unknown_scale(Use(node, index))
            seen[index] = REAL
    return seen


def _take_all(book: FactBook, node: ir.Node, facts: list[Fact]) -> None:
    for index, fact in enumerate(facts):
        if fact.is_quantised:
            book.take_integers(Use(node, index))


def _on_integers(book: FactBook, node: ir.Node, facts: list[Fact], common: Fact) -> list[Fact]:
    """The node runs on the integers where it can; otherwise on real numbers."""
    is_wanted = any(output in book.required for output in node.outputs) or bool(integer_inputs(node, book.opset))
    if not is_wanted and not can_run(node, common.element, common.bits, book.opset):
        return _on_reals(book, node, facts)
    _take_all(book, node, facts)
    if not moved_inputs(node):
        return _plain_outputs(book, node, facts)
    return [common] * moved_outputs(node) + [plain(ir.DataType.INT64)] * len(node.outputs)


def _on_reals(book: FactBook, node: ir.Node, facts: list[Fact]) -> list[Fact]:
    """The node runs on real numbers, so every quantised input needs a Dequant."""
    seen = list(facts)
    for index, fact in enumerate(facts):
        if not fact.is_quantised:
            continue
        if takes_reals(node, index, book.opset):
            book.need_reals(Use(node, index))
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


def _facts_of_integer_op(book: FactBook, node: ir.Node, facts: list[Fact]) -> list[Fact]:
    """An op that reads integers as they are. A Cast to a type as wide keeps the scale; others lose it."""
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
    if target != ir.DataType.INT64 or not _is_cast_back(node):
        book.find(
            WARNING,
            describe(node),
            f"it takes the integers of {Use(node, 0).value.name!r} ({fact}) as they are, without their scale",
            "If real numbers are meant, put a Dequant before it.",
            rule=MISSING_DEQUANT,
        )
    return [plain(target)]


def _is_cast_back(node: ir.Node) -> bool:
    """Whether the result of a Cast to 64 bits is only moved, compared and cast back, as torch writes cat, roll and `x > 0`."""
    waiting = list(node.outputs[:1])
    seen = set(waiting)
    while waiting:
        value = waiting.pop()
        if value.is_graph_output() or not all(_keeps_integers(user, index) for user, index in value.uses()):
            return False
        users = [user for user, _ in value.uses() if moved_inputs(user)]
        waiting += [o for user in users for o in user.outputs[: moved_outputs(user)] if o not in seen]
        seen.update(waiting)
    return True


def _keeps_integers(node: ir.Node, index: int) -> bool:
    """Whether a node moves or compares an input, or casts it to integers."""
    if node.domain:
        return False
    return index in data_of(node) or (node.op_type == "Cast" and cast_type(node) in WHOLE_NUMBERS)


def _plain_outputs(book: FactBook, node: ir.Node, facts: list[Fact]) -> list[Fact]:
    """Outputs that are not quantised: of the types that ONNX gives them, else of those that the file declares."""
    elements = output_types(node, [fact.element for fact in facts], book.opset)
    if node.op_type in CONSTANTS:
        return [_constant(book, node, elements[0])]
    return [plain(element or output.dtype) for element, output in zip(elements, node.outputs, strict=False)]


def _constant(book: FactBook, node: ir.Node, element: ir.DataType | None) -> Fact:
    """A constant of integers is quantised where all that read it agree on a scale."""
    scale = book.required.scale_of(node.outputs[0]) if node.outputs else None
    return quantised(scale, integer_bits(element), element) if element in INTEGERS and scale else plain(element)


def facts_of_unknown(book: FactBook, node: ir.Node) -> list[Fact]:
    """A node whose op, or the type of whose other inputs, is not known: nothing changes, and a finding says so."""
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


def _common_fact(node: ir.Node, facts: list[Fact], data: list[int]) -> Fact | None:
    """The one fact of a node's data; None where they are not one kind of integers, or other inputs are quantised, too."""
    chosen = [facts[i] for i in data if facts[i].is_quantised]
    if not chosen or _are_mixed(node, facts, data) or not _has_one_scale(chosen, len(data)):
        return None
    widest = max(chosen, key=lambda fact: fact.bits or 0)
    return widest.once_real() if any(fact.was_real for fact in chosen) else widest


def _are_mixed(node: ir.Node, facts: list[Fact], data: list[int]) -> bool:
    """Whether the data have several element types, quantised and computed plain numbers, or meet other quantised inputs."""
    together = [*data, *bounds_of(node)]
    if len({facts[i].element for i in together}) > 1:
        return True
    if any(fact.is_quantised for i, fact in enumerate(facts) if i not in together):
        return True
    # a constant beside quantised numbers is written for their scale
    return not all(facts[i].is_quantised or _is_constant(node.inputs[i]) for i in data)


def _has_one_scale(facts: list[Fact], count: int) -> bool:
    """Whether quantised tensors have the same scale, which must be known where they are among several."""
    scales = {fact.scale for fact in facts}
    return len(scales) == 1 and (None not in scales or count == 1)


def _is_constant(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    is_made_constant = producer is not None and producer.op_type == "Constant"
    return is_made_constant or (value is not None and value.const_value is not None)
