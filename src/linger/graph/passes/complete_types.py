# SPDX-License-Identifier: Apache-2.0
"""Every tensor says which type and shape it has, and says it right."""

from __future__ import annotations

import onnx_ir as ir

from linger.errors import GraphError
from linger.graph.core.changes import Changes
from linger.graph.core.element_types import INTEGERS
from linger.graph.core.order import in_order
from linger.graph.core.tensor_text import type_of
from linger.graph.core.walking import all_graphs, graphs_in
from linger.graph.facts.propagation import Propagation, propagate
from linger.graph.facts.standard_ops import OLDEST_OPSET, takes
from linger.graph.passes.inferred_types import Inferred, inferred_types, keyed_graphs

_MOST_ROUNDS = 4
"""What was found in a branch or a body may tell more outside it, which a second run of the inference sees."""


def complete_types(model: ir.Model) -> Changes:
    """Declare type and shape of every tensor, as onnx's inference finds them, through function bodies too.

    What is declared and not contradicted stays. A declaration that contradicts the nodes is corrected, that of an output too:
    what an output computes follows from its nodes, and a runtime refuses the file otherwise; but where real numbers are
    declared and quantised integers come, a Dequant is missing, and the declaration stays. Sizes that an output leaves open
    stay open. Leaves: tensors of ops that nobody knows as they were declared.

    Raises:
        GraphError: The nodes are not in order.
    """
    changes = Changes()
    if any(in_order(place) != list(place.graph) for place in all_graphs(model)):
        raise GraphError("the nodes are not in order, so their types cannot be told. Run the rule sort_nodes first.")
    has_bodies = len(graphs_in(model.graph)) > 1
    for _ in range(_MOST_ROUNDS if has_bodies else 1):
        count = len(changes)
        _complete_once(model, changes)
        if len(changes) == count:
            break
    return changes


def _complete_once(model: ir.Model, changes: Changes) -> None:
    """What one run of the inference tells."""
    inferred, facts = inferred_types(model), None
    interface, opset = set(model.graph.outputs), model.graph.opset_imports.get("", OLDEST_OPSET)
    for key, graph in keyed_graphs(model.graph):
        added = 0
        for value in (output for node in graph for output in node.outputs if output.name):
            found = inferred.get((key, value.name or ""))
            if found is not None and (not found.is_sure or _contradicts(value, found)):
                facts = propagate(model) if facts is None else facts
                found = _as_followed(value, found, facts)
            if found is None or not _is_welcome(value, found, opset, is_interface=value in interface):
                continue
            before, is_wrong = type_of(value), _is_wrong(value, found)
            if not _declare(value, found, is_interface=value in interface):
                continue
            if is_wrong:
                changes.note(value.name or "", f"declared as {before}, corrected to {type_of(value)}")
            else:
                added += 1
        if added:
            changes.note(graph.name or "graph", f"types or shapes added: {added}")


def _contradicts(value: ir.Value, found: Inferred) -> bool:
    return value.type is not None and found.type is not None and value.type != found.type


def _is_welcome(value: ir.Value, found: Inferred, opset: int, *, is_interface: bool) -> bool:
    """Whether what was found may replace what is declared."""
    if value.type is not None and not found.is_sure:
        return False
    if value.type not in (None, found.type) and _is_fed_wrongly(value, opset):
        return False  # what comes out of a node that cannot take its inputs, nobody knows
    return not (is_interface and _is_broken_promise(value, found))


def _as_followed(value: ir.Value, found: Inferred, facts: Propagation) -> Inferred | None:
    """What inference says, where the rules that follow quantised numbers do not say otherwise.

    Both decide types; if one took back what the other wrote, a repair would never settle.
    """
    element = facts.element(value)
    if not found.is_sure:
        return None if element is None else Inferred(ir.TensorType(element), None, is_sure=False)
    return None if element is not None and value.dtype == element else found


def _is_broken_promise(value: ir.Value, found: Inferred) -> bool:
    """Whether real numbers are declared and integers come, as of quantised tensors: that takes a Dequant, not a declaration."""
    is_integer = found.type is not None and found.type.dtype in INTEGERS
    return is_integer and value.dtype == ir.DataType.FLOAT


def _is_fed_wrongly(value: ir.Value, opset: int) -> bool:
    """Whether standard ONNX does not let the node that makes a tensor have an input of the type it has."""
    node = value.producer()
    if node is None or node.domain:
        return False
    types = [(i, v.dtype) for i, v in enumerate(node.inputs) if v is not None]
    return any(t is not None and not takes(node.op_type, i, t.name.lower(), opset) for i, t in types)


def _is_wrong(value: ir.Value, found: Inferred) -> bool:
    """Whether what is declared contradicts what was found."""
    if value.type is not None and found.type is not None and value.type != found.type:
        return True
    if value.shape is None or found.shape is None:
        return False
    if len(value.shape) != len(found.shape):
        return True
    return any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(value.shape, found.shape, strict=True)
    )


def _declare(value: ir.Value, found: Inferred, *, is_interface: bool) -> bool:
    """Write down what was found; returns whether that changed anything."""
    kind, shape = found.type or value.type, _merged(value.shape, found.shape, is_interface=is_interface)
    if kind is None or (kind == value.type and _same(shape, value.shape)):
        return False  # without a type, a file keeps no shape
    value.type, value.shape = kind, shape
    return True


def _same(one: ir.Shape | None, other: ir.Shape | None) -> bool:
    return one == other if one is None or other is None else list(one) == list(other)


def _merged(declared: ir.Shape | None, found: ir.Shape | None, *, is_interface: bool) -> ir.Shape | None:
    if declared is None or found is None:
        return declared if found is None else found
    if len(declared) != len(found):
        return found
    return ir.Shape([_size(a, b, is_interface=is_interface) for a, b in zip(declared, found, strict=True)])


def _size(declared: int | ir.SymbolicDim, found: int | ir.SymbolicDim, *, is_interface: bool) -> int | ir.SymbolicDim:
    if isinstance(found, int):
        return declared if is_interface and not isinstance(declared, int) else found
    if isinstance(declared, int) or declared.value is not None:
        return declared
    return found
