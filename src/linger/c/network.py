# SPDX-License-Identifier: Apache-2.0
"""A file as a list of nodes with known sizes: what the writer of C works on, or a refusal that names every obstacle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.c.exported_folder import Tensor
from linger.c.moves import ALIASES, MOVES, settings
from linger.errors import UnsupportedError, listing, printable
from linger.graph.conversion.convert import convert_nodes
from linger.graph.core.dialects import NEWER, OLDER, has_nodes_of
from linger.graph.core.nodes import (
    Names,
    attributes_of,
    describe,
    graph_of,
    inner_graphs,
    is_dialect,
    is_used,
    op_of,
    required_inputs,
    tensor_names,
)
from linger.graph.core.rewiring import needed_nodes, remove_nodes
from linger.graph.files.model_io import exchange, in_memory
from linger.graph.lowering.bodies import bring_to_normal_form
from linger.graph.network import Network, NetworkLike, with_one_batch
from linger.graph.passes.constants import fix_shapes
from linger.graph.qdq.qdq_node import constant
from linger.numeric.numpy_kernel import NumpyKernel
from linger.runtime.reference import Reference
from linger.verification.feeds import spread_feeds

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
        for state in node.outputs[1:] if is_dialect(node) and op_of(node).is_recurrent else ():
            if not is_used(state):  # then it need not be computed
                state.name = ""
    return {name: value.name for name, value in same.items() if value.name}


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


def _join_quants(model: ir.Model, same: dict[str, ir.Value]) -> bool:
    """One Quant for all that read the same numbers with the same settings."""
    known: dict[tuple[ir.Value | None, str], ir.Node] = {}
    doubled = []
    for node in model.graph:
        if is_dialect(node, "Quant"):
            first = known.setdefault((node.inputs[0], repr(sorted(attributes_of(node, op_of(node)).items()))), node)
            if first is not node and not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(first.outputs[0])
                same[str(node.outputs[0].name)] = first.outputs[0]
                doubled.append(node)
    remove_nodes(doubled)
    return bool(doubled)


def _quants_first(model: ir.Model, names: Names) -> bool:
    """Quant(move(x)) becomes move(Quant(x))."""
    for node in list(model.graph):
        move = node.inputs[0].producer() if is_dialect(node, "Quant") and node.inputs[0] is not None else None
        if move is None or not _moves_one(move) or len(move.outputs) != 1:
            continue
        moved = move.outputs[0]
        is_shared = list(moved.consumers()) != [node] or moved.is_graph_output()
        if is_shared or not _quantize_border(model, move, node, names):
            continue
        source = _first(move)
        quant = ir.node("Quant", [source], domain=node.domain, attributes=dict(node.attributes))
        result, made = node.outputs[0], quant.outputs[0]
        made.name = names.choose(f"{source.name}/quantized")
        _take_type(made, result.dtype)
        graph_of(move).insert_before(move, quant)
        move.replace_input_with(0, made)
        result.replace_all_uses_with(moved, replace_graph_outputs=True)
        kept = result.name
        remove_nodes([node])
        moved.name = kept
        _take_type(moved, made.dtype)
        return True
    return False


def _quantize_border(model: ir.Model, move: ir.Node, quant: ir.Node, names: Names) -> bool:
    """Give a Pad the integer of its border; False where it is computed."""
    value = move.inputs[_PAD_VALUE] if move.op_type == "Pad" and len(move.inputs) > _PAD_VALUE else None
    if value is None:
        return True
    known = constant(value)
    if known is None:
        return False
    op = op_of(quant)
    content: NDArray[Any] = op.body(NumpyKernel(), known.numpy(), **attributes_of(quant, op))
    made = ir.Value(name=names.choose(f"{value.name}/quantized"), const_value=ir.Tensor(np.asarray(content)))
    made.dtype, made.shape = ir.DataType.from_numpy(content.dtype), ir.Shape(content.shape)
    model.graph.register_initializer(made)
    move.replace_input_with(_PAD_VALUE, made)
    return True


def _dequants_last(model: ir.Model, names: Names) -> bool:
    """move(Dequant(q)) becomes Dequant(move(q))."""
    for node in list(model.graph):
        if not is_dialect(node, "Dequant") or node.outputs[0].is_graph_output():
            continue
        readers = list(dict.fromkeys(node.outputs[0].consumers()))
        if not readers or not all(_moves_one(r) and r.op_type != "Pad" for r in readers):
            continue
        for move in readers:
            move.replace_input_with(0, _first(node))
            for moved in move.outputs:
                copy = ir.node("Dequant", [moved], domain=node.domain, attributes=dict(node.attributes))
                _take_place(copy, moved, names.choose(f"{moved.name}/integers"), _first(node).dtype)
                graph_of(move).insert_after(move, copy)
        remove_nodes([node])
        return True
    return False


def _widening(node: ir.Node | None) -> tuple[ir.Value, ir.DataType, ir.DataType] | None:
    """What a Cast to wider integers reads, and both types; None for other nodes."""
    wide = None if node is None else _cast_to(node)
    if node is None or wide is None:
        return None
    source, narrow = _first(node), _first(node).dtype
    if narrow is None or not (narrow.is_integer() and narrow.is_signed() and wide.is_integer()):
        return None
    return (source, narrow, wide) if wide.bitwidth > narrow.bitwidth else None


def _cast_to(node: ir.Node) -> ir.DataType | None:
    return ir.DataType(node.attributes["to"].as_int()) if node.op_type == "Cast" and not node.domain else None


def _casts_last(model: ir.Model, names: Names, same: dict[str, ir.Value]) -> bool:
    """move(Cast(x)) becomes Cast(move(x)) for wider integers, and a Cast back to the first type goes."""
    return any(_drop_casts_back(node, same) or _sink_cast(node, names) for node in list(model.graph))


def _drop_casts_back(node: ir.Node, same: dict[str, ir.Value]) -> bool:
    """Let what reads integers that were made wider and narrow again read them as they were."""
    widening = _widening(node)
    if widening is None:
        return False
    source, narrow, _ = widening
    readers = [r for r in node.outputs[0].consumers() if _cast_to(r) == narrow]
    back = [r for r in readers if not r.outputs[0].is_graph_output()]
    for reader in back:
        reader.outputs[0].replace_all_uses_with(source)
        same[str(reader.outputs[0].name)] = source
    remove_nodes(back)
    return bool(back)


def _sink_cast(node: ir.Node, names: Names) -> bool:
    """Let a node move integers before they are made wider."""
    if not _is_move(node, "Where", "Pad"):
        return False
    data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    casts = list(filter(None, (_widening(value.producer()) for value in data if value is not None)))
    kinds = {(narrow, wide) for _, narrow, wide in casts}
    if len(casts) < len(data) or len(kinds) != 1:
        return False
    ((narrow, wide),) = kinds
    for index, (source, _, _) in enumerate(casts):
        node.replace_input_with(index, source)
    for moved in node.outputs:
        behind = ir.node("Cast", [moved], attributes={"to": int(wide)})
        _take_place(behind, moved, names.choose(f"{moved.name}/narrow"), narrow)
        graph_of(node).insert_after(node, behind)
    return True


Array = NDArray[Any]
Feed = Mapping[str, Array]

_TYPES = ("int8", "uint8", "int16", "int32", "int64", "float32", "bool")
_SEED = 20260101
_RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Ops whose results may differ from run to run, whatever they are given."""


class _NetworkReference(Reference):
    """The numpy reference, which has the tensors that are gone as well."""

    def __init__(self, model: ir.Model, same: Mapping[str, str]) -> None:
        super().__init__(model, is_checked=True)
        self._same = same

    def intermediates(self, feeds: Feed) -> dict[str, Array]:
        """Every tensor of the main graph by name."""
        found = super().intermediates(feeds)
        return found | {name: found[of] for name, of in self._same.items()}


@dataclass(frozen=True)
class FixedNetwork:
    """A model with fixed sizes, all of whose nodes have C.

    Attributes:
        model: The model: batch 1, older dialect, normal form.
        nodes: The nodes that compute data, in order.
        tensors: Every tensor of the main graph by name.
        constants: The content of those that never change.
        example: The feed that the sizes were measured with.
        same: Tensors of the file that no node makes any more, because another one has their content: its name by theirs.
    """

    model: ir.Model
    nodes: tuple[ir.Node, ...]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Array]
    example: Feed
    same: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def reference(self) -> _NetworkReference:
        """The numpy reference of the model."""
        return _NetworkReference(self.model, self.same)

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        return [str(value.name) for value in required_inputs(self.model)]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [str(value.name) for value in self.model.graph.outputs]

    def readers(self) -> dict[str, list[ir.Node]]:
        """The nodes that read each tensor."""
        found: dict[str, list[ir.Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(value_names(node.inputs)):
                found.setdefault(name, []).append(node)
        return found


def value_names(values: Iterable[ir.Value | None]) -> Iterator[str]:
    """The names of values that are there."""
    return (value.name for value in values if value is not None and value.name)


def load_network(source: NetworkLike) -> FixedNetwork:
    """Take a file, a model in memory or a `Network`, and find the size of every tensor, once for each network.

    Raises:
        UnsupportedError: What C cannot be written for, every node of it.
    """
    return Network.of(source).once(_fixed)


def _fixed(network: Network) -> FixedNetwork:
    model = brought_to_order(network)
    same = prepare(model)
    computed, constants, names = computing(model)
    _refuse(model, [*_obstacles(computed), *_open(computed, {*constants, *names})])
    # the numpy reference tells every size, and the content of the tensors that are fixed
    (example,) = spread_feeds(model, seed=_SEED, batches=1)
    found = Reference(model, is_checked=True).intermediates(example)
    constants |= {name: found[name] for name in names}
    arrays = {**found, **constants, **example}
    tensors = {name: Tensor(name, array.shape, str(array.dtype)) for name, array in arrays.items()}
    _refuse(model, [*_wrong_types(computed, tensors), *_endless(computed, constants)])
    same = {name: same[name] for name in same if same[name] in tensors.keys() - constants.keys()}
    tensors |= {name: replace(tensors[of], name=name) for name, of in same.items()}
    return FixedNetwork(model, tuple(computed), tensors, constants, example, same)


def computing(model: ir.Model) -> tuple[list[ir.Node], dict[str, Array], list[str]]:
    """The nodes that compute data, the constants of the file, and the names of what other nodes compute from them."""
    needed, constants = needed_nodes(model), dict(initializers(model))
    nodes = [node for node in model.graph if node in needed and node.op_type != "Constant"]
    computed = depending(nodes, constants)
    fixed = [node for node in nodes if node not in computed]
    return computed, constants, list(value_names(value for node in fixed for value in node.outputs))


def brought_to_order(network: Network) -> ir.Model:
    """A file with one sample, in the older dialect and in normal form, with sizes as constants; tensors keep their names.

    Raises:
        UnsupportedError: Sizes are open.
    """
    _refuse(network.model, _sizes(network.model))
    model = with_one_batch(network.model)
    exchange(model, in_memory(model))
    if has_nodes_of(model, NEWER):
        convert_nodes(model, OLDER)
    bring_to_normal_form(model)
    fix_shapes(model)
    return model


def depending(nodes: Iterable[ir.Node], constants: Iterable[str]) -> list[ir.Node]:
    """The nodes whose results depend on inputs, or on chance; those of the others never change."""
    known, found = set(constants), []
    for node in nodes:
        names = list(value_names(node.inputs))
        is_size = node.op_type in ("Shape", "Size")  # sizes never change: those that depend on data are refused
        is_known = bool(names) and known.issuperset(names)
        if is_size or (is_known and not inner_graphs(node) and node.op_type not in _RANDOM):
            known.update(value_names(node.outputs))
        else:
            found.append(node)
    return found


def initializers(model: ir.Model) -> Iterator[tuple[str, Array]]:
    """The constants that a file holds, by name."""
    for name, value in model.graph.initializers.items():
        if value.const_value is not None:
            yield name, np.asarray(value.const_value.numpy())
    for node in model.graph:
        if node.op_type == "Constant" and node.outputs[0].name:
            content = node.outputs[0].const_value or node.attributes["value"].as_tensor()
            yield node.outputs[0].name, np.asarray(content.numpy())


def _refuse(model: ir.Model, problems: Iterable[str]) -> None:
    found = list(problems)
    if found:
        name = printable(model.graph.name or "the model")
        raise UnsupportedError(f"{name} cannot be written as C: {listing(found)}.")


def _sizes(model: ir.Model) -> Iterator[str]:
    """Inputs with sizes that are open, other than the batch."""
    for value in required_inputs(model):
        name, shape = printable(str(value.name)), value.shape
        if shape is None:
            yield f"the input {name} has no shape; export with fixed sizes"
        elif not all(isinstance(size, int) for size in list(shape)[1:]):
            sizes = ", ".join(map(str, shape))
            yield f"the input {name} has open sizes [{sizes}]; export with fixed sizes, or fix them"


def _obstacles(nodes: Sequence[ir.Node]) -> Iterator[str]:
    """Nodes that have no C, with the reason."""
    inside = [node for node in nodes if inner_graphs(node)]
    if inside:
        yield f"{listing(map(describe, inside))} runs graphs inside it; unroll the loop, or choose the branch, before the export"
    real = [describe(node) for node in nodes if node not in inside and not is_dialect(node) and not _only_moves(node)]
    if not real:
        return
    if any(map(is_dialect, nodes)):
        yield (
            f"these are not quantized ops: {listing(real)}; linger.coverage(model) says why a layer stayed float; the rest is "
            "exported with cut=True (on the command line --cut), and the caller computes these"
        )
    else:
        yield "it has no quantized op; of the forms that linger.onnx.export writes, dialect and bare have them, standard and qdq do not"


def _open(nodes: Sequence[ir.Node], constants: Collection[str]) -> Iterator[str]:
    """Nodes that move elements to places, or give sizes, that depend on data."""
    for node in nodes:
        wrong = [name for name in settings(node) if name not in constants] if _only_moves(node) else []
        if wrong:
            yield (
                f"{describe(node)} takes sizes or indices from data ({listing(map(printable, wrong))}); make them constants "
                "before the export, or leave this to the caller with cut=True (on the command line --cut)"
            )


def has_c(node: ir.Node, constants: Collection[str]) -> bool:
    """Whether C is written for a node, where these tensors are constants."""
    if inner_graphs(node):
        return False
    return is_dialect(node) or (_only_moves(node) and all(name in constants for name in settings(node)))


def _only_moves(node: ir.Node) -> bool:
    return not is_dialect(node) and (node.op_type in MOVES or node.op_type in ALIASES)


def _wrong_types(nodes: Iterable[ir.Node], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for node in nodes:
        names = dict.fromkeys([*value_names(node.inputs), *value_names(node.outputs)])
        wrong = [tensors[name].dtype for name in names if name in tensors and tensors[name].dtype not in _TYPES]
        if wrong:
            yield f"{describe(node)} has elements of type {listing(dict.fromkeys(wrong))}; C is written for {listing(_TYPES)}"


def _endless(nodes: Iterable[ir.Node], constants: Mapping[str, Array]) -> Iterator[str]:
    """Nodes that read constants for which C has no literals."""
    for node in nodes:
        read = [constants[name] for name in value_names(node.inputs) if name in constants]
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in read):
            yield f"{describe(node)} reads a constant with infinities or NaN; use finite numbers"
