# SPDX-License-Identifier: Apache-2.0
"""Building graphs node by node: a model from scratch, and the nodes that an edit puts into a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.errors import UsageError, listing
from linger.graph.core.nodes import Names
from linger.graph.core.tensor_types import (
    check_node,
    find_schema,
    infer_outputs,
    make_attributes,
    number_type,
    parse_types,
    type_of,
)
from linger.graph.editing.search import op_call

Build = Callable[..., Any]
"""`build(g, *tensors)`: makes nodes with the builder `g` and returns the resulting tensor, or a tuple of them."""

_TensorKind = tuple[ir.TensorType, ir.Shape | None]
_FIRST_OPSETS = {9: 19, 10: 21, 11: 23, 12: 24, 13: 25, 14: 28}
"""The first opset of each version of the format: runtimes of that time know no newer version."""


class GraphBuilder:
    """Makes nodes: `g.Relu(x)`, `g.Conv(x, weight, kernel_shape=[3, 3])`, `g.op("iqAdd", x, y, _domain="thinker")`.

    An input is a tensor, None (left out), a numpy array or a Python number (they become initializers; a number takes the
    type of the operands it goes with), or the name of a tensor in the model that is edited. Keywords are attributes,
    except `_domain`, `_version` (of the domain), `_name` (of the node) and `_outputs` (how many, or their names).
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        *,
        prefix: str = "",
        tensors: Names | None = None,
        nodes: Names | None = None,
        lookup: Callable[[str], ir.Value] | None = None,
        reserved: Sequence[str] = (),
    ) -> None:
        self.opsets = dict(opsets)
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.made: list[ir.Node] = []  # those of inner graphs included
        self._prefix = prefix
        self._tensors = tensors or Names()
        self._reserved = set(reserved)  # only an explicit request may take these names
        self._node_names = nodes or Names()
        self._lookup = lookup
        self._automatic: set[ir.Value] = set()

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        return op_call(self.op, op_type)

    def op(
        self,
        op_type: str,
        *inputs: Any,
        _domain: str = "",
        _version: int | None = None,
        _name: str | None = None,
        _outputs: int | Sequence[str] = 1,
        **attributes: Any,
    ) -> Any:  # one tensor, or a tuple where several outputs are asked for
        """Make a node and return its output; several outputs come as a tuple.

        Raises:
            UsageError: Standard ONNX has no such op, or it does not take these inputs and attributes.
        """
        domain = "" if _domain == "ai.onnx" else _domain
        schema = find_schema(op_type, domain, self._import(op_type, domain, _version))
        attrs = make_attributes(op_type, attributes, schema)
        named = [self._named(x) if isinstance(x, str) else x for x in inputs]
        values = [self._input(op_type, i, named, schema) for i in range(len(named))]
        names: list[str | None] = [None] * _outputs if isinstance(_outputs, int) else list(_outputs)
        node = self._node(domain, op_type, values, attrs, names, _name)
        if schema is not None:
            check_node(node, schema)
            infer_outputs(node, schema, self.opsets)
        self.nodes.append(node)
        return node.outputs[0] if len(names) == 1 else node.outputs

    def _node(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr],
        names: Sequence[str | None],
        name: str | None,
    ) -> ir.Node:
        """A node whose name and whose outputs' names are those asked for, or chosen."""
        self._refuse_taken([n for n in names if n is not None], name)
        title = self._node_names.choose(name or f"{self._prefix}{op_type}")
        node = ir.Node(domain, op_type, inputs, attributes=attributes, num_outputs=len(names), name=title)
        self.made.append(node)
        for index, (output, wanted) in enumerate(zip(node.outputs, names, strict=True)):
            self._give_name(output, wanted, title if len(names) == 1 else f"{title}.{index}")
        return node

    def constant(self, content: Any, name: str | None = None) -> ir.Value:
        """An initializer with the content of an array."""
        array = np.asarray(content)
        self._refuse_taken([] if name is None else [name], None)
        tensor = ir.tensor(array)
        made = ir.Value(type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self._give_name(made, name, f"{self._prefix}constant")
        self.initializers.append(made)
        return made

    def graph(self, build: Build, name: str = "body") -> ir.Graph:
        """A graph for an attribute (the branch of an If, say); it may use every tensor made so far."""
        inner = GraphBuilder(self.opsets, prefix=self._prefix)
        for shared in ("made", "_tensors", "_reserved", "_node_names", "_lookup", "_automatic"):
            setattr(inner, shared, getattr(self, shared))
        outputs = inner.own_outputs(results_of(build(inner), "the inner graph"))
        self.opsets.update(inner.opsets)
        return ir.Graph([], outputs, nodes=inner.nodes, initializers=inner.initializers, name=name)

    def own_outputs(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Outputs of the graph's own: an input, an initializer, or a tensor that is an output already gets an Identity."""
        outputs: list[ir.Value] = []
        for value in values:
            is_own = value.producer() in self.nodes and not any(value is other for other in outputs)
            outputs.append(value if is_own else self.op("Identity", value))
        return outputs

    def has_chosen_name(self, value: ir.Value) -> bool:
        """Whether the builder chose the name of a tensor, so that nobody can depend on it."""
        return value in self._automatic

    def discard(self) -> None:
        """Take away the inputs of the nodes: they are not wanted after all, and must not count as users of tensors."""
        for node in self.made:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)

    def _give_name(self, value: ir.Value, name: str | None, preferred_name: str) -> None:
        if name is None:
            self._automatic.add(value)
            while preferred_name in self._reserved:
                preferred_name += "_"
        value.name = self._tensors.choose(name or preferred_name)

    def _import(self, op_type: str, domain: str, version: int | None) -> int:
        if not domain and version is None and "" not in self.opsets:
            raise UsageError(f"{op_type}: the model imports no standard opset. Give its version with _version.")
        present = self.opsets.setdefault(domain, version or 1)
        if version is not None and version != present:
            where = f"domain {domain!r}"
            raise UsageError(f"{op_type}: the model imports version {present} of {where}, not {version}. Use that one.")
        return present

    def _named(self, name: str) -> ir.Value:
        if self._lookup is None:
            raise UsageError(f"{name}: a new model has no tensors to name. Give the tensor itself.")
        return self._lookup(name)

    def _input(self, op_type: str, index: int, inputs: Sequence[Any], schema: Any) -> ir.Value | None:
        given = inputs[index]
        if given is None or isinstance(given, ir.Value):
            return given
        if isinstance(given, (np.ndarray, np.generic)):
            return self.constant(given)
        if isinstance(given, (bool, int, float, list, tuple)):
            return self.constant(np.asarray(given).astype(number_type(given, index, inputs, schema).numpy()))
        raise UsageError(
            f"{op_type}: input {index} is {type(given).__name__}. Give a tensor, an array, a number, or a tensor's name."
        )

    def _refuse_taken(self, tensors: Sequence[str], node: str | None) -> None:
        taken = [f"tensor {n!r}" for n in tensors if n in self._tensors or tensors.count(n) > 1]
        if node is not None and node in self._node_names:
            taken.append(f"node {node!r}")
        if taken:
            raise UsageError(f"{listing(dict.fromkeys(taken))}: the name is in use. Choose another, or none.")


def results_of(results: Any, where: str) -> list[ir.Value]:
    """What a build function returned, as a list.

    Raises:
        UsageError: It returned something else than tensors.
    """
    values = list(results) if isinstance(results, (list, tuple)) else [results]
    wrong = [type(value).__name__ for value in values if not isinstance(value, ir.Value)]
    if wrong:
        raise UsageError(f"{where}: the build function returned {listing(wrong)}. Return the tensors that nodes made.")
    return values


def new_model(
    inputs: Mapping[str, str],
    outputs: Sequence[str] | Mapping[str, str],
    build: Build,
    *,
    opset: int | Mapping[str, int] = 17,
    name: str = "graph",
) -> ir.Model:
    """A model from scratch.

    >>> model = new_model({"x": "float[n,3]"}, ["y"], lambda g, x: g.Relu(g.Mul(x, 2.0)))
    >>> [node.op_type for node in model.graph], type_of(model.graph.outputs[0])
    (['Mul', 'Relu'], 'float[n,3]')

    Args:
        inputs: Types of the inputs by name, in the notation of ONNX text: `float[n,3]`, `int8[1,?,?]`, `bool`.
        outputs: Names of the outputs, or their types by name where these do not follow from the inputs.
        build: `build(g, *inputs)` makes the nodes with the builder `g` and returns the outputs.
        opset: Version of the standard opset, or of every domain.
        name: Name of the graph.

    Raises:
        UsageError: A type, an op, an input or an attribute does not exist or does not fit.
    """
    opsets = {"": opset} if isinstance(opset, int) else dict(opset)
    declared = parse_types(outputs) if isinstance(outputs, Mapping) else {}
    counts = Counter([*outputs, *(name for name in inputs if name in outputs)])
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise UsageError(f"{listing(twice)}: two inputs or outputs have the same name. Rename one.")
    arguments = [ir.Value(name=n, type=t, shape=s) for n, (t, s) in parse_types(inputs).items()]
    g = GraphBuilder(opsets, tensors=Names(inputs), reserved=list(outputs))
    results = results_of(build(g, *arguments), name)
    if len(results) != len(outputs):
        raise UsageError(f"{name}: the build function returned {len(results)} tensors for {len(outputs)} outputs.")
    finished = g.own_outputs(results)
    _name_outputs(g, dict(zip(outputs, finished, strict=True)), declared)
    graph = ir.Graph(arguments, finished, nodes=g.nodes, initializers=g.initializers, opset_imports=g.opsets, name=name)
    return ir.Model(graph, ir_version=ir_version_for(g.opsets.get("", 0)), producer_name="linger")


def ir_version_for(opset: int) -> int:
    """The version of the format that a standard opset needs."""
    return max((version for version, first in _FIRST_OPSETS.items() if opset >= first), default=8)


def _name_outputs(g: GraphBuilder, outputs: Mapping[str, ir.Value], declared: Mapping[str, _TensorKind]) -> None:
    """Give outputs their names and declared types."""
    made = {v.name: v for v in (*g.initializers, *(o for node in g.made for o in node.outputs))}
    wrong = [f"{name}: another tensor has this name" for name, v in outputs.items() if made.get(name, v) is not v]
    for name, value in outputs.items():
        kind, shape = declared.get(name, (value.type, value.shape))
        if kind is None or kind.dtype is None:
            wrong.append(f"{name}: its type does not follow from the inputs; give outputs={{{name!r}: 'float[…]'}}")
        elif value.dtype not in (None, kind.dtype):
            wrong.append(f"{name}: it is declared as {kind.dtype.name.lower()}, but has type {type_of(value)}")
        value.type, value.shape = kind, shape
    if wrong:
        raise UsageError(f"{'; '.join(wrong)}.")
    for name, value in outputs.items():
        value.name = name
