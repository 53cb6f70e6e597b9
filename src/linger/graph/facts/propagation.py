# SPDX-License-Identifier: Apache-2.0
"""Type, scale and width of every tensor, from the inputs to the outputs; contradictions are findings, never guesses.

One pass over the nodes. Every input of every node is a use; a use takes a tensor's integers, or it needs real numbers, and
then a Dequant must stand before it. A Dequant whose result is needed as integers somewhere is looked through there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import onnx_ir as ir

from linger.errors import GraphError, UsageError, listing
from linger.graph.core.dialect_node import describe
from linger.graph.core.finding import ERROR
from linger.graph.core.schema import is_standard
from linger.graph.core.tensor_types import INTEGERS
from linger.graph.core.walking import inner_graphs
from linger.graph.facts.fact import REAL, UNKNOWN, Fact, FactBook, Propagation, Use, plain
from linger.graph.facts.flow import LOOP_FORMALS, Flow, find_demand, is_default_domain, scan_states
from linger.graph.facts.node_rules import facts_of_dequant, facts_of_dialect, facts_of_standard, facts_of_unknown
from linger.graph.facts.stated_formats import is_dequant, is_quantising

__all__ = ["OutputPolicy", "Propagation", "Use", "propagate"]

OutputPolicy = Literal["declared", "float", "integer"]


def propagate(model: ir.Model, *, outputs: OutputPolicy = "declared") -> Propagation:
    """Follow types, scales and widths through a sorted model; nothing is changed.

    Args:
        model: The model; nodes in an order in which they can run.
        outputs: What quantised outputs of the model shall be: real numbers where the file does not declare an integer type
            ("declared"), always ("float"), or never ("integer").

    Raises:
        UsageError: `outputs` is none of the three.
        GraphError: The nodes are not sorted, or functions call themselves.
    """
    if outputs not in get_args(OutputPolicy):
        raise UsageError(f"outputs: {outputs!r} means nothing. Choose one of {listing(get_args(OutputPolicy))}.")
    flow = Flow.of(model)
    book = FactBook(flow, find_demand(flow))
    while True:  # each round makes at least one more carried tensor real, so this ends
        book.begin()
        _visit(book, model.graph)
        if book.is_settled:
            break
    for index, value in enumerate(model.graph.outputs):
        is_integer = outputs == "integer" or (outputs == "declared" and value.dtype in INTEGERS)
        is_declared_real = value.dtype == ir.DataType.FLOAT and book.fact(value).element in INTEGERS
        if not is_integer and (book.fact(value).is_quantised or is_declared_real):
            book.need(Use(model.graph, index))
    return book.result


def _visit(book: FactBook, graph: ir.Graph) -> None:
    for node in graph:
        _require_sorted(book, node)
        facts = _facts(book, node)
        for index, output in enumerate(node.outputs):
            book.result.facts[output] = facts[index] if index < len(facts) else UNKNOWN


def _require_sorted(book: FactBook, node: ir.Node) -> None:
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is not None and value not in book.result.facts and producer.graph is not None:
            raise GraphError(
                f"{describe(node)}: it stands before {describe(producer)}, whose result it uses. Sort the nodes first."
            )


def _facts(book: FactBook, node: ir.Node) -> list[Fact]:
    if is_quantising(node):
        return facts_of_dequant(book, node) if is_dequant(node) else facts_of_dialect(book, node)
    function = book.flow.function_of(node)
    if function is not None:
        return _facts_of_call(book, node, function)
    if not is_default_domain(node) or not is_standard(node.op_type):
        return facts_of_unknown(book, node)
    holders = {"If": _facts_of_if, "Loop": _facts_of_loop, "Scan": _facts_of_scan}
    return holders.get(node.op_type, facts_of_standard)(book, node)


def _facts_of_if(book: FactBook, node: ir.Node) -> list[Fact]:
    """An If: both branches give the same kind of integers, or real numbers."""
    bodies = inner_graphs(node)
    for body in bodies:
        _visit(book, body)
    return [_meeting(book, [Use(b, i) for b in bodies if i < len(b.outputs)]) for i in range(len(node.outputs))]


def _meeting(book: FactBook, uses: list[Use]) -> Fact:
    """Tensors of which one is taken at a time: as integers only if all of them are the same kind of integers."""
    facts = [book.fact(use.value) for use in uses]
    if not any(f.is_quantised for f in facts):
        return next((f for f in facts if f.element is not None), UNKNOWN)
    if all(_is_same(f, facts[0]) for f in facts):
        for use in uses:
            book.take(use)
        return facts[0]
    if any(f.element is None for f in facts):
        return UNKNOWN
    for use in uses:
        book.need(use)
    return REAL


def _facts_of_loop(book: FactBook, node: ir.Node) -> list[Fact]:
    """A Loop: carried tensors keep their kind from one iteration to the next."""
    bodies = inner_graphs(node)
    if not bodies:
        return []
    body = bodies[0]
    carried = max(min(len(node.inputs), len(body.inputs)) - LOOP_FORMALS, 0)
    _enter(book, body, {i: node.inputs[i] for i in range(LOOP_FORMALS, LOOP_FORMALS + carried)})
    _visit(book, body)
    facts = [_carried(book, node, body, i + LOOP_FORMALS, i + 1) for i in range(carried)]
    return [*facts, *(_collected(book, body, i) for i in range(carried + 1, len(body.outputs)))]


def _facts_of_scan(book: FactBook, node: ir.Node) -> list[Fact]:
    """A Scan: states as in a Loop, the others are cut into slices."""
    bodies, states = inner_graphs(node), scan_states(node)
    if not bodies or states is None:
        return facts_of_unknown(book, node)
    body = bodies[0]
    _enter(book, body, dict(enumerate(node.inputs[: len(body.inputs)])))
    _visit(book, body)
    known = min(len(node.inputs), len(body.inputs))
    for index in (i for i in range(states, known) if node.inputs[i] is not None):
        _pass_in(book, Use(node, index), body.inputs[index])
    facts = [_carried(book, node, body, i, i) for i in range(min(states, known, len(body.outputs)))]
    return [*facts, *(_collected(book, body, i) for i in range(states, len(body.outputs)))]


def _enter(book: FactBook, body: ir.Graph, given: Mapping[int, ir.Value | None]) -> None:
    """What a body's inputs hold: what is given, as real numbers where that was decided or is declared."""
    for index, formal in enumerate(body.inputs):
        fact = book.fact(given[index]) if index in given else plain(formal.dtype)
        is_declared_real = formal.dtype == ir.DataType.FLOAT and formal not in book.demand.wanted
        if fact.is_quantised and (formal in book.real_formals or is_declared_real):
            fact = REAL
        book.result.facts[formal] = plain(formal.dtype) if fact.element is None else fact


def _pass_in(book: FactBook, use: Use, formal: ir.Value) -> None:
    if not book.fact(use.value).is_quantised:
        return
    if book.result.facts[formal].is_quantised:
        book.take(use)
    else:
        book.need(use)


def _carried(book: FactBook, node: ir.Node, body: ir.Graph, given: int, returned: int) -> Fact:
    """A tensor that a loop hands on: what comes in and what goes back must be the same kind."""
    formal = body.inputs[given]
    fact = book.result.facts[formal]
    if returned >= len(body.outputs) or node.inputs[given] is None:
        return fact
    back = book.fact(body.outputs[returned])
    if (fact.is_quantised or back.is_quantised) and not _is_same(fact, back):
        if fact.is_quantised and formal not in book.real_formals:
            book.real_formals.add(formal)
            book.is_settled = False
        book.need(Use(body, returned))
    elif back.is_quantised:
        book.take(Use(body, returned))
    _pass_in(book, Use(node, given), formal)
    return fact


def _collected(book: FactBook, body: ir.Graph, index: int) -> Fact:
    if book.fact(body.outputs[index]).is_quantised:
        book.take(Use(body, index))
    return book.fact(body.outputs[index])


def _facts_of_call(book: FactBook, node: ir.Node, function: ir.Function) -> list[Fact]:
    """A user's function: integers go in where its body moves them or wants them, else real numbers."""
    if function.identifier() in book.calling:
        raise GraphError(f"{describe(node)}: the function calls itself. Remove the circle.")
    given = [book.fact(v) for v in node.inputs]
    if _tried(book, function, given) is None:
        given = [
            REAL if fact.is_quantised and formal not in book.demand.wanted else fact
            for formal, fact in zip(function.inputs, given, strict=False)
        ]
    for index, fact in enumerate(given):
        if fact.is_quantised:
            book.take(Use(node, index))
        elif book.fact(node.inputs[index]).is_quantised:
            book.need(Use(node, index))
    results = _tried(book, function, given)
    return _called(book, node, function, given) if results is None or _is_bound(book, function, given) else results


def _called(book: FactBook, node: ir.Node, function: ir.Function, given: list[Fact]) -> list[Fact]:
    """What a function gives whose body has to change, or holds contradictions: it can do so for one kind of inputs."""
    identifier = function.identifier()
    known = book.function_facts.get(identifier)
    if known is None:
        book.function_facts[identifier] = given
        _enter_function(book, function, given)
    elif known != given:
        book.find(
            ERROR,
            describe(node),
            f"it calls a function with {', '.join(map(str, given))}, and another call gives it {', '.join(map(str, known))}",
            "Inline the function, or give it the same kind of numbers everywhere.",
        )
        return [plain(output.dtype) for output in node.outputs]
    return [book.fact(v) for v in function.outputs]


def _tried(book: FactBook, function: ir.Function, given: list[Fact]) -> list[Fact] | None:
    """What a function gives for these inputs if nothing in its body has to change; None otherwise."""
    key = (function.identifier(), tuple(given))
    if key not in book.trials:
        kept, known, reported = book.result, dict(book.function_facts), set(book.reported)
        book.result = Propagation()
        _enter_function(book, function, given)
        trial, book.result, book.function_facts = book.result, kept, known
        book.reported = reported
        book.trials[key] = [trial.fact(v) for v in function.outputs] if trial.is_clean else None
        if trial.is_clean and not _is_bound(book, function, given):
            book.function_facts.setdefault(function.identifier(), given)
            for value, fact in trial.facts.items():  # bodies may be called with several kinds
                kept.facts[value] = fact if kept.facts.get(value, fact) == fact else UNKNOWN
    return book.trials[key]


def _is_bound(book: FactBook, function: ir.Function, given: list[Fact]) -> bool:
    """Whether a body has to change for a call before, and so cannot serve one with other inputs."""
    identifier = function.identifier()
    known = book.function_facts.get(identifier)
    return known is not None and known != given and book.trials.get((identifier, tuple(known))) is None


def _enter_function(book: FactBook, function: ir.Function, given: list[Fact]) -> None:
    book.result.facts.update(zip(function.inputs, given, strict=False))
    book.calling.append(function.identifier())
    _visit(book, function.graph)
    book.calling.pop()


def _is_same(one: Fact, other: Fact) -> bool:
    return one.is_quantised and other.is_quantised and (one.element, one.scale) == (other.element, other.scale)
