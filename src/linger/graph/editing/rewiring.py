# SPDX-License-Identifier: Apache-2.0
"""The steps that edits share: a tensor takes the place of another, what is not used goes, what is not true is forgotten."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from linger.graph.core.walking import inputs_within
from linger.graph.editing.build import GraphBuilder
from linger.graph.editing.transaction import Transaction


def hand_over(edit: Transaction, old: ir.Value, new: ir.Value, builder: GraphBuilder | None = None) -> ir.Value:
    """Let everything use `new` that used `old`, which goes away; outputs of a graph keep their name.

    Args:
        edit: The transaction.
        old: The tensor that is no longer made.
        new: The tensor to use, of the same graph or of one around it.
        builder: Who made `new`, where it is new: it gets the name of `old` unless the caller chose another.

    Returns:
        The tensor that now stands where `old` stood: `new`, or an Identity of it where an output needs its own tensor.
    """
    if builder is not None and new.dtype in (None, old.dtype):
        edit.retype(new, old.type or new.type, _merged(old.shape, new.shape))
    forget_downstream(edit, old, new, old.consumers())
    edit.redirect(old.uses(), new)
    graph = old.graph
    if graph is not None and old.is_graph_output():
        if not can_be_output(new, graph):
            identity = edit.builder(graph, f"{old.name}/")
            made: ir.Value = identity.op("Identity", new)
            edit.place(identity, graph, after=new.producer() if new.graph is graph else None)
            new = made
        if new.type is None:
            edit.retype(new, old.type, old.shape)
        become_output(edit, old, new)
        edit.rename(new, old.name)
    elif builder is not None and builder.has_chosen_name(new) and new.graph is graph and not new.is_graph_output():
        edit.rename(new, old.name)
    return new


def can_be_output(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether a tensor can take the place and the name of an output: made by a node here, and no output yet."""
    return value.producer() is not None and value.graph is graph and not value.is_graph_output()


def become_output(edit: Transaction, old: ir.Value, new: ir.Value) -> None:
    """Put a tensor wherever another is an output of their graph."""
    graph = old.graph
    assert graph is not None  # it is one of its outputs
    for index, output in enumerate(list(graph.outputs)):
        if output is old:
            edit.set_output(graph, index, new)


def _merged(old: ir.Shape | None, new: ir.Shape | None) -> ir.Shape | None:
    """What two shapes say together; where they contradict each other, the new one."""
    if old is None or new is None or _contradict(old, new):
        return new if old is None or new is not None else old
    return ir.Shape([n if isinstance(n, int) else o for o, n in zip(old, new, strict=True)])


def _contradict(one: ir.Shape, other: ir.Shape) -> bool:
    return len(one) != len(other) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(one, other, strict=True)
    )


def forget_downstream(edit: Transaction, old: ir.Value, new: ir.Value, users: Iterable[ir.Node]) -> None:
    """Where a tensor of another type or shape comes in, drop the types noted further on; outputs keep what is declared."""
    types_differ = old.dtype is not None and new.dtype is not None and old.dtype != new.dtype
    shapes_differ = old.shape is not None and new.shape is not None and _contradict(old.shape, new.shape)
    if not types_differ and not shapes_differ:
        return
    seen: set[ir.Node] = set()
    waiting = list(users)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        owner = edit.scopes.owners.get(node.graph) if node.graph is not None else None
        waiting += [] if owner is None else [owner]
        for output in node.outputs:
            if not (output.is_graph_output() and output.graph is edit.model.graph):
                edit.retype(output, None, None)
            waiting += output.consumers()


def drop_unused(edit: Transaction, values: Iterable[ir.Value | None], *, constants_only: bool) -> list[ir.Node]:
    """Remove what makes tensors that nothing uses any more, and what only that needed.

    Args:
        edit: The transaction.
        values: Where to begin.
        constants_only: Initializers and Constant nodes go, other nodes stay.

    Returns:
        The removed nodes.
    """
    removed = []
    waiting = [v for v in values if v is not None]
    while waiting:
        value = waiting.pop()
        if value.uses() or value.is_graph_output():
            continue
        node = value.producer()
        if node is None:
            if value.is_initializer() and not value.is_graph_input():
                edit.drop_initializer(value)
            continue
        is_used = any(o.uses() or o.is_graph_output() for o in node.outputs)
        if node.graph is None or is_used or (constants_only and node.op_type != "Constant"):
            continue
        waiting += inputs_within(node)
        edit.remove(node)
        removed.append(node)
    return removed
