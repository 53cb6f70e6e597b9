# SPDX-License-Identifier: Apache-2.0
"""Type, scale and width of every tensor, from the inputs to the outputs; contradictions are findings, never guesses.

One pass over the nodes. Every input of every node is a use; a use takes a tensor's integers, or it needs real numbers, and
then a Dequant must stand before it. A Dequant whose result is needed as integers somewhere is looked through there.
"""

from __future__ import annotations

from typing import Literal, get_args

import onnx_ir as ir

from linger.errors import GraphError, UsageError, listing
from linger.graph.core.dialect_node import describe
from linger.graph.core.element_types import INTEGERS
from linger.graph.facts.body_rules import facts_of_call, facts_of_if, facts_of_loop, facts_of_scan
from linger.graph.facts.claims import is_dequant, is_quantising
from linger.graph.facts.dialect_rules import facts_of_dequant, facts_of_dialect
from linger.graph.facts.fact import UNKNOWN, Fact
from linger.graph.facts.fact_book import FactBook, Propagation, Use
from linger.graph.facts.flow import Flow, is_default_domain
from linger.graph.facts.required_integers import find_demand
from linger.graph.facts.standard_ops import is_standard
from linger.graph.facts.standard_rules import facts_of_standard, facts_of_unknown

__all__ = ["OutputPolicy", "Propagation", "Use", "propagate"]

OutputPolicy = Literal["declared", "float", "integer"]
_BODIES = {"If": facts_of_if, "Loop": facts_of_loop, "Scan": facts_of_scan}


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
    book = FactBook(flow, find_demand(flow), lambda graph: _visit(book, graph))
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
        return facts_of_call(book, node, function)
    if not is_default_domain(node) or not is_standard(node.op_type):
        return facts_of_unknown(book, node)
    return _BODIES.get(node.op_type, facts_of_standard)(book, node)
