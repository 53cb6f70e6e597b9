# SPDX-License-Identifier: Apache-2.0
"""Calls of model-local functions become the nodes of their bodies."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe, is_dialect_domain
from linger.graph.core.names import Names
from linger.graph.core.replace_value import ValueReplacer
from linger.graph.core.walking import GraphPlace, all_graphs, all_nodes, defined_in, nodes_within
from linger.graph.forms.function_calls import Copy, Functions, inside_out, require_bounded


def inline_functions(model: ir.Model, *, dialect: bool = False) -> Changes:
    """Write out the users' own functions in the main graph, in its branches and bodies, however deep they call each other.

    Args:
        model: Edited in place.
        dialect: Whether the functions of dialect nodes are written out too. They stay otherwise: a device knows the nodes.

    Leaves: outputs under their names; functions that were written for another version of an op than the model imports, and
    those that they call.

    Raises:
        GraphError: A function calls itself, or the calls would become too many nodes; nothing is changed.
    """
    changes = Changes()
    order = inside_out(model.functions)
    wanted = _wanted(model, dialect=dialect)
    found = [place for place in all_graphs(model) if place.function is None]
    calls = [node for place in found for node in place.graph if node.op_identifier() in wanted]
    require_bounded(model.functions, (node.op_identifier() for node in calls), order)
    if calls:
        _inline(model, found, calls, wanted, changes)
    return changes


def _wanted(model: ir.Model, *, dialect: bool) -> Functions:
    return {
        identifier: function
        for identifier, function in model.functions.items()
        if (dialect or not is_dialect_domain(function.domain)) and _means_the_same(function, model)
    }


def _means_the_same(function: ir.Function, model: ir.Model) -> bool:
    """Whether every op of a body is the same op under the versions that the model imports."""
    ours = model.graph.opset_imports
    other = {d: v for d, v in function.opset_imports.items() if ours.get(d, v) != v}
    if not other:
        return True
    nodes = [node for node in all_nodes(function) if node.domain in other]
    return all(_since(n, ours[n.domain]) == _since(n, other[n.domain]) is not None for n in nodes)


def _since(node: ir.Node, version: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return None


def _inline(
    model: ir.Model, found: list[GraphPlace], calls: list[ir.Node], wanted: Functions, changes: Changes
) -> None:
    tensors = Names(value.name for place in found for value in defined_in(place.graph) if value.name)
    nodes = Names(node.name for place in found for node in place.graph if node.name)
    replacer = ValueReplacer(model)
    used = set()
    for call in calls:
        changes.note(describe(call), f"written out: it called {call.domain}::{call.op_type}")
    waiting = calls[::-1]
    while waiting:
        call = waiting.pop()
        used.add(call.op_identifier())
        copy = Copy(wanted[call.op_identifier()], call, tensors, nodes)
        _put(copy, replacer)
        inner = (node for made in copy.made for node in nodes_within(made))
        waiting += [node for node in inner if node.op_identifier() in wanted]
    replacer.finish()
    for identifier in used:
        for domain, version in model.functions[identifier].opset_imports.items():
            model.graph.opset_imports.setdefault(domain, version)
    _drop(model, used)


def _put(copy: Copy, replacer: ValueReplacer) -> None:
    """Exchange a call for its nodes."""
    call, results = copy.call, copy.write()
    graph = call.graph
    assert graph is not None  # the call came from a graph
    graph.insert_before(call, copy.made)
    for old, new in zip(call.outputs, results, strict=False):
        replacer.stand_in(old, new)
    replacer.discard(call)


def _drop(model: ir.Model, used: set[ir.OperatorIdentifier]) -> None:
    """Remove the functions that were written out and that no function that stays calls."""
    waiting = [function for identifier, function in model.functions.items() if identifier not in used]
    kept: set[ir.OperatorIdentifier] = set()
    while waiting:
        for node in all_nodes(waiting.pop()):
            identifier = node.op_identifier()
            if identifier in used and identifier not in kept:
                kept.add(identifier)
                waiting.append(model.functions[identifier])
    for identifier in used - kept:
        del model.functions[identifier]
