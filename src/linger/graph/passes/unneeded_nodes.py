# SPDX-License-Identifier: Apache-2.0
"""Remove what a model does not need: Identities, and nodes, initializers and functions that are unused."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe
from linger.graph.core.finding import NOTE, Finding
from linger.graph.core.replace_value import ValueReplacer
from linger.graph.core.unused import is_used, needed_nodes, remove_nodes, with_makers
from linger.graph.core.walking import GraphPlace, all_graphs, all_nodes, called_functions, makers
from linger.graph.qdq.qdq_node import OTHER_NUMBERS, ByteFusing

_BY_HAND = "Remove it by hand and compare the numbers, or leave it."


def remove_dead_code(model: ir.Model) -> Changes:
    """Remove nodes whose results nobody needs, then initializers that no node uses and functions that no node calls.

    A node with several outputs is needed as soon as one of them is. Nodes of unknown domains stay, since they may do more than
    compute; so do nodes that decide which kernels ONNX Runtime chooses for those whose results they read
    (`dead_code_findings` lists them). Leaves: inputs and outputs of every graph, also initializers that are inputs.
    """
    changes = Changes()
    found = all_graphs(model)
    needed = needed_nodes(model, found)
    needed = with_makers(needed, _deciding(model, found, needed))
    alive = [place for place in found if place.owner is None or place.owner in needed]
    for place in alive:
        dead = [node for node in place.graph if node not in needed]
        for node in dead:
            changes.note(describe(node), "removed: nobody uses its results")
        remove_nodes(dead)
    _drop_initializers(alive, changes)
    _drop_functions(model, changes)
    return changes


def _deciding(model: ir.Model, found: list[GraphPlace], needed: set[ir.Node]) -> list[ir.Node]:
    """Nodes that nobody needs, but which decide how ONNX Runtime computes others, and the nodes behind them."""
    dead = dict.fromkeys(node for place in found for node in place.graph if node not in needed)
    gone: set[ir.Node] = set()
    while dead:
        deciding = _held(dead, needed, ByteFusing(model, gone))
        going = dead.keys() - with_makers(needed, deciding)
        if going == gone:
            return deciding
        gone = going  # without these nodes, fewer others may decide anything
    return []


def _held(dead: Iterable[ir.Node], needed: set[ir.Node], fusing: ByteFusing) -> list[ir.Node]:
    """Dead nodes that read a needed result whose readers must stay, and all nodes behind them."""
    first = [node for node in dead if fusing.holds(node.inputs) and not needed.isdisjoint(makers(node.inputs))]
    deciding = dict.fromkeys(first)
    for node in first:  # the list grows while it is walked
        behind = [use.node for output in node.outputs for use in output.uses() if use.node not in deciding]
        deciding.update(dict.fromkeys(behind))
        first += behind
    return list(deciding)


def dead_code_findings(model: ir.Model) -> tuple[Finding, ...]:
    """Nodes that lead nowhere and stay all the same, as notes."""
    found = all_graphs(model)
    return tuple(
        Finding(NOTE, describe(node), f"nobody uses its results, and it stays: {OTHER_NUMBERS}", _BY_HAND)
        for node in _deciding(model, found, needed_nodes(model, found))
    )


def _drop_initializers(found: list[GraphPlace], changes: Changes) -> None:
    for place in found:
        for name, value in tuple(place.graph.initializers.items()):
            if not is_used(value) and not value.is_graph_input():
                del place.graph.initializers[name]
                changes.note(name, "initializer removed: nobody uses it")


def _drop_functions(model: ir.Model, changes: Changes) -> None:
    if not model.functions:
        return
    called = called_functions(all_nodes(model), model.functions)
    for identifier in [i for i in model.functions if i not in called]:
        del model.functions[identifier]
        changes.note(f"{identifier[0]}::{identifier[1]}", "function removed: nobody calls it")


def remove_identity(model: ir.Model) -> Changes:
    """Let users of an Identity use its input, in the main graph, in branches and bodies, and in functions.

    Leaves: Identities only in front of outputs whose tensor is an input, an initializer, a tensor of a graph around or an
    output already; names, order and declared types of all outputs as they were.
    """
    changes = Changes()
    replacer = ValueReplacer(model)
    for node in [node for place in all_graphs(model) for node in place.graph if _is_identity(node)]:
        (x,), (y,) = node.inputs, node.outputs
        if x is None:  # it went with the one that held it
            continue
        where, before, after = describe(node), x.name, y.name
        if replacer.replace(y, x):
            replacer.discard(node)
            said = f"{before} is called {after} now" if x.name != before else f"{before} takes its place"
            changes.note(where, f"removed: {said}")
    replacer.finish()
    return changes


def _is_identity(node: ir.Node) -> bool:
    if node.op_type != "Identity" or node.domain:
        return False
    return len(node.inputs) == 1 and len(node.outputs) == 1 and node.inputs[0] is not None
