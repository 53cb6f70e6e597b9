# SPDX-License-Identifier: Apache-2.0
"""The part of a file that integers compute, where float ops stand before it, behind it or between."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from linger.c.exported_folder import Cut
from linger.c.network import brought_to_order, computing, has_c, value_names
from linger.errors import UnsupportedError, printable
from linger.graph.core.nodes import describe, is_dialect, required_inputs
from linger.graph.editing.models import extract
from linger.graph.lowering.bodies import known_tensors
from linger.graph.network import Network, NetworkLike, multiplications_of
from linger.runtime.reference import Reference
from linger.verification.feeds import spread_feeds

_CONVERSIONS = ("Quant", "Dequant")
_SEED = 20260101


def find_cut(source: NetworkLike) -> Cut | None:
    """Where the integer part of a file begins and ends; None where all of the file has C.

    Nodes without C divide a file: a node belongs to the part behind as many of them, one after the other, as lie before it. Of
    these parts the one with the most multiply-accumulates is taken.

    Raises:
        UnsupportedError: No node computes with integers, or sizes are open.
    """
    model = brought_to_order(Network.of(source))
    nodes, constants, fixed = computing(model)
    known = {*constants, *fixed}
    inside = {node for node in nodes if has_c(node, known)}
    if len(inside) == len(nodes):
        return None
    parts = _parts(nodes, inside)
    if not parts:
        name = printable(model.graph.name or "the model")
        raise UnsupportedError(
            f"{name} has no part to write as C: no node computes with integers. Of the forms that linger.onnx.export writes, "
            "dialect and bare have such nodes; linger.coverage(model) says why layers stayed float."
        )
    part = _with_what_only_it_reads(max(parts, key=lambda some: _work(model, some)), nodes, inside)
    part = _without_loose_moves(part)
    outside = tuple(describe(node) for node in nodes if node not in part)
    return Cut(_taken(part, known), _given(part), outside)


def _taken(part: Sequence[ir.Node], known: Collection[str]) -> tuple[str, ...]:
    """The tensors that a part reads and does not make."""
    made = {value for node in part for value in node.outputs}
    names = value_names(value for node in part for value in node.inputs if value not in made)
    return tuple(name for name in dict.fromkeys(names) if name not in known)


def _given(part: Sequence[ir.Node]) -> tuple[str, ...]:
    """The tensors of a part that are read outside, or what stands for them."""
    made = [value for node in part for value in node.outputs]
    return tuple(dict.fromkeys(value_names(end for value in made for end in _ends(value, part))))


def cut_to(network: Network, cut: Cut) -> ir.Model:
    """A part of a file as a model of its own, with the sizes that it has for one sample.

    Raises:
        UsageError: The file has no such tensors.
    """
    model = brought_to_order(network)
    part = extract(model, cut.inputs, cut.outputs)
    if {str(value.name) for value in required_inputs(model)}.issuperset(cut.inputs):
        return part
    (feed,) = spread_feeds(model, seed=_SEED, batches=1)
    found = {**Reference(model, is_checked=True).intermediates(feed), **feed}
    for value in part.graph.inputs:
        array = found[str(value.name)]
        value.shape, value.dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
    return part


def _parts(nodes: Sequence[ir.Node], inside: Collection[ir.Node]) -> list[list[ir.Node]]:
    """The nodes that have C, by how many without it lie before them on the longest way; only parts that compute."""
    levels: dict[ir.Value, int] = {}
    parts: dict[int, list[ir.Node]] = {}
    for node in nodes:
        level = max((levels.get(value, 0) for value in node.inputs if value is not None), default=0)
        if node in inside:
            parts.setdefault(level, []).append(node)
        else:
            level += 1
        levels |= dict.fromkeys(node.outputs, level)
    return [part for part in parts.values() if any(map(_computes, part))]


def _computes(node: ir.Node) -> bool:
    return is_dialect(node) and node.op_type not in _CONVERSIONS


def _work(model: ir.Model, part: Iterable[ir.Node]) -> tuple[int, int]:
    """Multiply-accumulates of a part, and how many of its nodes compute."""
    shapes = known_tensors(model).shapes
    found = [
        (multiplications_of(n, lambda v: None if v is None else shapes.get(v.name or "")) or 0, _computes(n))
        for n in part
    ]
    return sum(count for count, _ in found), sum(computes for _, computes in found)


def _with_what_only_it_reads(
    part: Sequence[ir.Node], nodes: Sequence[ir.Node], inside: Collection[ir.Node]
) -> list[ir.Node]:
    """A part with the nodes before it that nothing else reads, such as the Quant of an input that is added later."""
    members = set(part)
    for node in reversed(nodes):
        readers = {reader for value in node.outputs for reader in value.consumers()}
        is_read = bool(readers) and readers <= members and not any(v.is_graph_output() for v in node.outputs)
        if is_read and node in inside:
            members.add(node)
    return [node for node in nodes if node in members]


def _without_loose_moves(part: list[ir.Node]) -> list[ir.Node]:
    """A part without nodes that only move what is read outside: that is done there."""
    while loose := [node for node in part if not is_dialect(node) and not _is_read(node, part)]:
        part = [node for node in part if node not in loose]
    return part


def _is_read(node: ir.Node, part: Collection[ir.Node]) -> bool:
    return any(v.is_graph_output() or any(reader in part for reader in v.consumers()) for v in node.outputs)


def _ends(value: ir.Value, part: Collection[ir.Node]) -> Iterator[ir.Value]:
    """The results of a part that stand for a tensor which is read outside; what was only moved is moved outside, too."""
    if not value.is_graph_output() and all(reader in part for reader in value.consumers()):
        return
    waiting = [value]
    while waiting:
        found = waiting.pop()
        maker = found.producer()
        if maker is None or maker not in part:
            continue
        if is_dialect(maker) or found.is_graph_output():
            yield found
        else:
            waiting += [source for source in maker.inputs if source is not None]
