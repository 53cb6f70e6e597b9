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

from linger.c.moves import ALIASES, MOVES, settings
from linger.c.preparation import prepare
from linger.errors import UnsupportedError, listing, printable
from linger.graph.conversion.convert import convert_nodes
from linger.graph.core.dialect_node import describe, is_dialect
from linger.graph.core.dialects import NEWER, OLDER, has_nodes_of
from linger.graph.core.unused import needed_nodes
from linger.graph.core.walking import inner_graphs, required_inputs
from linger.graph.files.model_io import exchange, in_memory
from linger.graph.forms.normal_form import bring_to_normal_form
from linger.graph.network import Network, NetworkLike, with_one_batch
from linger.graph.passes.fixed_shapes import fix_shapes
from linger.runtime.reference import Reference
from linger.verification.feeds import spread_feeds

Array = NDArray[Any]
Feed = Mapping[str, Array]

_TYPES = ("int8", "int16", "int32", "int64", "float32", "bool")
_SEED = 20260101
_RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Ops whose results may differ from run to run, whatever they are given."""


@dataclass(frozen=True)
class Tensor:
    """Size and element type of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def bytes(self) -> int:
        """How many bytes its elements take."""
        return self.count * np.dtype(self.dtype).itemsize


class NetworkReference(Reference):
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
    def reference(self) -> NetworkReference:
        """The numpy reference of the model."""
        return NetworkReference(self.model, self.same)

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
    needed = needed_nodes(model)
    nodes = [node for node in model.graph if node in needed and node.op_type != "Constant"]
    constants = dict(initializers(model))
    computed = depending(nodes, constants)
    fixed = [node for node in nodes if node not in computed]
    names = list(value_names(v for node in fixed for v in node.outputs))
    _refuse(model, [*_obstacles(computed), *_open(computed, {*constants, *names})])
    return _measured(model, computed, constants, names, same)


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


def _measured(
    model: ir.Model, computed: list[ir.Node], constants: dict[str, Array], fixed: list[str], same: Mapping[str, str]
) -> FixedNetwork:
    """Run the numpy reference once: it tells every size, and the content of the tensors that are fixed."""
    (example,) = spread_feeds(model, seed=_SEED, batches=1)
    found = Reference(model, is_checked=True).intermediates(example)
    constants |= {name: found[name] for name in fixed}
    arrays = {**found, **constants, **example}
    tensors = {name: Tensor(name, array.shape, str(array.dtype)) for name, array in arrays.items()}
    _refuse(model, [*_wrong_types(computed, tensors), *_endless(computed, constants)])
    kept = {name: of for name, of in same.items() if of in tensors and of not in constants}
    tensors |= {name: replace(tensors[of], name=name) for name, of in kept.items()}
    return FixedNetwork(model, tuple(computed), tensors, constants, example, kept)


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
        shape = value.shape
        if shape is None:
            yield f"the input {printable(str(value.name))} has no shape; export with fixed sizes"
            continue
        is_open = [not isinstance(size, int) for size in shape]
        if any(is_open[1:]):
            sizes = ", ".join(str(size) for size in shape)
            yield f"the input {printable(str(value.name))} has open sizes [{sizes}]; export with fixed sizes, or fix them"


def _obstacles(nodes: Sequence[ir.Node]) -> Iterator[str]:
    """Nodes that have no C, with the reason."""
    inside = [describe(node) for node in nodes if inner_graphs(node)]
    if inside:
        yield f"{listing(inside)} runs graphs inside it; unroll the loop, or choose the branch, before the export"
    known = [node for node in nodes if is_dialect(node)]
    real = [describe(node) for node in nodes if not (inner_graphs(node) or is_dialect(node) or _only_moves(node))]
    if real and not known:
        yield "it has no quantised op; of the forms that linger.onnx.export writes, dialect and bare have them, standard and qdq do not"
    elif real:
        yield (
            f"these are not quantised ops: {listing(real)}; linger.coverage(model) says why a layer stayed float; the rest is "
            "exported with cut=True (on the command line --cut), and the caller computes these"
        )


def _open(nodes: Sequence[ir.Node], constants: Collection[str]) -> Iterator[str]:
    """Nodes that move elements to places, or give sizes, that depend on data."""
    for node in nodes:
        wrong = [name for name in settings(node) if name not in constants] if _only_moves(node) else []
        if wrong:
            yield (
                f"{describe(node)} takes sizes or indices from data ({listing(map(printable, wrong))}); make them constants "
                "before the export"
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
