# SPDX-License-Identifier: Apache-2.0
"""Brings a graph into an order that needs fewer real and wide numbers; every tensor that stays keeps its name and content.

Quants go before what only moves elements, and Dequants behind it, so that programs take and give integers. Casts to wider
integers around moves go too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.c.moves import ALIASES, MOVES
from linger.graph.core.dialect_node import attributes_of, is_dialect, op_of
from linger.graph.core.names import Names, tensor_names
from linger.graph.core.unused import is_used, remove_nodes
from linger.graph.qdq.qdq_node import constant
from linger.numeric.numpy_kernel import NumpyKernel

_PAD_VALUE = 2


def prepare(model: ir.Model) -> dict[str, str]:
    """Change a model in place, as long as there is something to change.

    Returns:
        Tensors that are gone, because another one has the same content: its name by theirs.
    """
    names, same = tensor_names(model), dict[str, ir.Value]()
    while any(
        [
            _join_quants(model, same),
            _quants_first(model, names),
            _dequants_last(model, names),
            _casts_last(model, names, same),
        ]
    ):
        pass
    for node in model.graph:
        if is_dialect(node) and op_of(node).is_recurrent:
            _forget_unread(node.outputs[1:])
    return {name: value.name for name, value in same.items() if value.name}


def _forget_unread(values: Iterable[ir.Value]) -> None:
    """States that nobody reads need not be computed."""
    for value in values:
        if not is_used(value):
            value.name = ""


def _take_type(value: ir.Value, dtype: ir.DataType | None) -> None:
    if dtype is not None:
        value.dtype = dtype


def _take_place(node: ir.Node, value: ir.Value, name: str, dtype: ir.DataType | None) -> None:
    """Let the result of a new node stand for a value that it reads, under its name; the value gets another one, and a type."""
    result = node.outputs[0]
    _take_type(result, value.dtype)
    result.shape = value.shape
    value.replace_all_uses_with(result, replace_graph_outputs=True)
    node.replace_input_with(0, value)
    result.name, value.name = value.name, name
    _take_type(value, dtype)


def _is(node: ir.Node | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type and is_dialect(node)


def _is_move(node: ir.Node, *others: str) -> bool:
    """Whether a node only moves elements, those of these types left out."""
    return (node.op_type in MOVES or node.op_type in ALIASES) and not node.domain and node.op_type not in others


def _moves_one(node: ir.Node) -> bool:
    """Whether a node moves the elements of its first input."""
    return _is_move(node, "Concat", "Where") and bool(node.inputs) and node.inputs[0] is not None


def _first(node: ir.Node) -> ir.Value:
    """The first input, of a node that has one."""
    value = node.inputs[0]
    assert value is not None
    return value


def _graph(node: ir.Node) -> ir.Graph | ir.Function:
    """The graph that a node is in."""
    assert node.graph is not None
    return node.graph


def _settings(node: ir.Node) -> str:
    return repr(sorted(attributes_of(node, op_of(node)).items()))


def _join_quants(model: ir.Model, same: dict[str, ir.Value]) -> bool:
    """One Quant for all that read the same numbers with the same settings."""
    known: dict[tuple[ir.Value | None, str], ir.Node] = {}
    doubled = []
    for node in model.graph:
        if _is(node, "Quant"):
            first = known.setdefault((node.inputs[0], _settings(node)), node)
            if first is not node and not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(first.outputs[0])
                same[str(node.outputs[0].name)] = first.outputs[0]
                doubled.append(node)
    remove_nodes(doubled)
    return bool(doubled)


def _quants_first(model: ir.Model, names: Names) -> bool:
    """Quant(move(x)) becomes move(Quant(x))."""
    for node in list(model.graph):
        move = node.inputs[0].producer() if _is(node, "Quant") and node.inputs[0] is not None else None
        if move is None or not _moves_one(move) or len(move.outputs) != 1:
            continue
        moved = move.outputs[0]
        if (
            list(moved.consumers()) != [node]
            or moved.is_graph_output()
            or not _quantise_border(model, move, node, names)
        ):
            continue
        source = _first(move)
        quant = ir.node("Quant", [source], domain=node.domain, attributes=dict(node.attributes))
        result, made = node.outputs[0], quant.outputs[0]
        made.name = names.choose(f"{source.name}/quantised")
        _take_type(made, result.dtype)
        _graph(move).insert_before(move, quant)
        move.replace_input_with(0, made)
        result.replace_all_uses_with(moved, replace_graph_outputs=True)
        kept = result.name
        remove_nodes([node])
        moved.name = kept
        _take_type(moved, made.dtype)
        return True
    return False


def _quantise_border(model: ir.Model, move: ir.Node, quant: ir.Node, names: Names) -> bool:
    """Give a Pad the integer of its border; False where it is computed."""
    value = move.inputs[_PAD_VALUE] if move.op_type == "Pad" and len(move.inputs) > _PAD_VALUE else None
    if value is None:
        return True
    known = constant(value)
    if known is None:
        return False
    op = op_of(quant)
    content: NDArray[Any] = op.body(NumpyKernel(), known.numpy(), **attributes_of(quant, op))
    made = ir.Value(name=names.choose(f"{value.name}/quantised"), const_value=ir.Tensor(np.asarray(content)))
    made.dtype, made.shape = ir.DataType.from_numpy(content.dtype), ir.Shape(content.shape)
    model.graph.register_initializer(made)
    move.replace_input_with(_PAD_VALUE, made)
    return True


def _dequants_last(model: ir.Model, names: Names) -> bool:
    """move(Dequant(q)) becomes Dequant(move(q))."""
    for node in list(model.graph):
        if not _is(node, "Dequant") or node.outputs[0].is_graph_output():
            continue
        readers = list(dict.fromkeys(node.outputs[0].consumers()))
        if not readers or not all(_moves_one(r) and r.op_type != "Pad" for r in readers):
            continue
        for move in readers:
            move.replace_input_with(0, _first(node))
            for moved in move.outputs:
                _convert_behind(move, moved, node, names)
        remove_nodes([node])
        return True
    return False


def _convert_behind(move: ir.Node, moved: ir.Value, dequant: ir.Node, names: Names) -> None:
    """Put a copy of a Dequant behind a result, which takes over its name."""
    copy = ir.node("Dequant", [moved], domain=dequant.domain, attributes=dict(dequant.attributes))
    _take_place(copy, moved, names.choose(f"{moved.name}/integers"), _first(dequant).dtype)
    _graph(move).insert_after(move, copy)


@dataclass(frozen=True)
class _Widening:
    """A Cast to wider integers: what it reads, and both types."""

    source: ir.Value
    narrow: ir.DataType
    wide: ir.DataType


def _widening(node: ir.Node | None) -> _Widening | None:
    """A node as a Cast to wider integers; None for other nodes."""
    wide = None if node is None else _cast_to(node)
    if node is None or wide is None:
        return None
    source, narrow = _first(node), _first(node).dtype
    if narrow is None or not narrow.is_integer() or not narrow.is_signed() or not wide.is_integer():
        return None
    return _Widening(source, narrow, wide) if wide.bitwidth > narrow.bitwidth else None


def _cast_to(node: ir.Node) -> ir.DataType | None:
    return ir.DataType(node.attributes["to"].as_int()) if node.op_type == "Cast" and not node.domain else None


def _casts_last(model: ir.Model, names: Names, same: dict[str, ir.Value]) -> bool:
    """move(Cast(x)) becomes Cast(move(x)) for wider integers, and a Cast back to the first type goes."""
    return any(_drop_casts_back(node, same) or _sink_cast(node, names) for node in list(model.graph))


def _drop_casts_back(node: ir.Node, same: dict[str, ir.Value]) -> bool:
    """Let what reads integers that were made wider and narrow again read them as they were."""
    found = _widening(node)
    if found is None:
        return False
    readers = [r for r in node.outputs[0].consumers() if _cast_to(r) == found.narrow]
    back = [r for r in readers if not r.outputs[0].is_graph_output()]
    for reader in back:
        reader.outputs[0].replace_all_uses_with(found.source)
        same[str(reader.outputs[0].name)] = found.source
    remove_nodes(back)
    return bool(back)


def _sink_cast(node: ir.Node, names: Names) -> bool:
    """Let a node move integers before they are made wider."""
    data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    found = [None if value is None else _widening(value.producer()) for value in data]
    casts = [cast for cast in found if cast is not None]
    kinds = {(cast.narrow, cast.wide) for cast in casts}
    if not _is_move(node, "Where", "Pad") or len(casts) < len(data) or len(kinds) != 1:
        return False
    ((narrow, wide),) = kinds
    for index, cast in enumerate(casts):
        node.replace_input_with(index, cast.source)
    for moved in node.outputs:
        behind = ir.node("Cast", [moved], attributes={"to": int(wide)})
        _take_place(behind, moved, names.choose(f"{moved.name}/narrow"), narrow)
        _graph(node).insert_after(node, behind)
    return True
