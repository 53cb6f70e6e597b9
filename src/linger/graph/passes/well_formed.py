# SPDX-License-Identifier: Apache-2.0
"""A file is well formed: it names the versions that it needs, nodes stand in order, nodes and tensors have names of their own.

Dead code, Identities and calls of the users' own functions go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import chain

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from linger.errors import GraphError, listing
from linger.graph.core.dialects import is_quantizing_domain
from linger.graph.core.nodes import (
    NOTE,
    Changes,
    Finding,
    Functions,
    GraphPlace,
    Names,
    all_graphs,
    all_nodes,
    called_functions,
    callees,
    callees_first,
    defined_in,
    describe,
    graph_of,
    in_order,
    is_dialect_domain,
    is_used,
    makers,
    nodes_within,
)
from linger.graph.core.rewiring import ValueReplacer, needed_nodes, remove_nodes, with_makers
from linger.graph.core.tensor_types import formal_input
from linger.graph.qdq.qdq_node import OTHER_NUMBERS, ByteFusing

_BY_HAND = "Remove it by hand and compare the numbers, or leave it."


def remove_dead_code(model: ir.Model) -> Changes:
    """Dead code elimination: nodes whose results nobody needs, then initializers that no node uses and functions that no node calls.

    A node with several outputs is needed as soon as one of them is. Nodes of unknown domains stay, since they may do more than
    compute; so do nodes that decide which kernels ONNX Runtime chooses for those whose results they read
    (`dead_code_findings` lists them). Leaves: inputs and outputs of every graph, also initializers that are inputs.
    """
    changes, places = Changes(), all_graphs(model)
    needed = needed_nodes(model, places)
    needed = with_makers(needed, _deciding(model, places, needed))
    alive = [place.graph for place in places if place.owner is None or place.owner in needed]
    for graph in alive:
        dead = [node for node in graph if node not in needed]
        for node in dead:
            changes.note(describe(node), "removed: nobody uses its results")
        remove_nodes(dead)
    for graph in alive:
        _drop_initializers(graph, changes)
    if model.functions:
        _drop_functions(model, changes)
    return changes


def _drop_functions(model: ir.Model, changes: Changes) -> None:
    called = called_functions(all_nodes(model), model.functions)
    for identifier in [i for i in model.functions if i not in called]:
        del model.functions[identifier]
        changes.note(f"{identifier[0]}::{identifier[1]}", "function removed: nobody calls it")


def _drop_initializers(graph: ir.Graph, changes: Changes) -> None:
    for name, value in tuple(graph.initializers.items()):
        if not is_used(value) and not value.is_graph_input():
            del graph.initializers[name]
            changes.note(name, "initializer removed: nobody uses it")


def _deciding(model: ir.Model, places: list[GraphPlace], needed: set[ir.Node]) -> list[ir.Node]:
    """Nodes that nobody needs, but which decide how ONNX Runtime computes others, and the nodes behind them."""
    dead = dict.fromkeys(node for place in places for node in place.graph if node not in needed)
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
    places = all_graphs(model)
    deciding = _deciding(model, places, needed_nodes(model, places))
    reason = f"nobody uses its results, and it stays: {OTHER_NUMBERS}"
    return tuple(Finding(NOTE, describe(node), reason, _BY_HAND) for node in deciding)


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


_SHOWN = 3
"""New names that a change lists."""


def sort_nodes(model: ir.Model) -> Changes:
    """Put every node after those that it, or a branch or body inside it, needs; in functions too.

    Nodes that can keep their order keep it.

    Raises:
        GraphError: Nodes depend on each other in a circle; those of one circle are named, and nothing is changed.
    """
    changes = Changes()
    ordered = [(place, in_order(place)) for place in all_graphs(model)]
    for place, nodes in ordered:
        before = list(place.graph)
        moved = sum(one is not other for one, other in zip(before, nodes, strict=True))
        if moved:
            place.graph.extend(nodes)  # a node that is in the graph already moves to its end
            changes.note(place.name, f"sorted: {moved} of {len(nodes)} nodes stood elsewhere")
    return changes


def name_nodes(model: ir.Model) -> Changes:
    """Name nodes that have no name, or the name of a node before them, `<op type>_<first output>`.

    Tensors that a node uses but that have no name get one, and a tensor is renamed if nodes that can see it also see another
    tensor of its name; inputs and outputs of the model never are. Names in a function do not clash with those outside it.
    Nodes in the bodies of dialect ops keep their names: nothing looks for them there. Leaves: all other names, so that a second run changes nothing.
    """
    changes = Changes()
    groups: dict[ir.Function | None, list[GraphPlace]] = {}
    for place in all_graphs(model):
        groups.setdefault(place.function, []).append(place)
    for function, group in groups.items():
        namer = _TensorNamer(group, changes)
        for place in group:  # outer graphs first
            namer.name_tensors_of(place)
        if function is None or not is_quantizing_domain(function.domain):
            _name_nodes_of(group, changes)
    return changes


def _name_nodes_of(group: list[GraphPlace], changes: Changes) -> None:
    """Name the nodes of the main graph and the graphs inside it, or of a function."""
    taken, before = Names(node.name for place in group for node in place.graph if node.name), {"", None}
    for place in group:
        nameless = []
        for node in place.graph:
            name = node.name
            if name in before:
                first = [output.name for output in node.outputs if output.name][:1]
                node.name = taken.choose("_".join([node.op_type, *first]))
                if name:
                    changes.note(node.name, f"was called {name}, as another node is")
                else:
                    nameless.append(node.name)
            before.add(node.name)
        if nameless:
            changes.note(place.name, f"nodes without a name called {listing(nameless, limit=_SHOWN)}")


class _TensorNamer:
    """Names the tensors of the main graph and the graphs inside it, or of a function."""

    def __init__(self, group: list[GraphPlace], changes: Changes) -> None:
        counts = Counter(value.name for place in group for value in defined_in(place.graph) if value.name)
        self._taken, self._changes = Names(counts), changes
        self._repeated = {name for name, count in counts.items() if count > 1}
        self._visible: dict[ir.Graph | None, dict[str, ir.Value]] = {}

    def name_tensors_of(self, place: GraphPlace) -> None:
        """Name the tensors that a graph defines, its inputs and outputs first; the graph around it was named before."""
        around, defined = None if place.owner is None else place.owner.graph, defined_in(place.graph)
        visible = self._visible[place.graph] = dict(self._visible.get(around, {}))
        ends = {value: None for value in (*place.graph.inputs, *place.graph.outputs) if value in defined}
        for value in ends | defined:
            if place.owner is None and value in ends and value.name:
                visible.setdefault(value.name, value)  # callers know it by this name, so it keeps it
            else:
                self._name_tensor(value, visible)

    def _name_tensor(self, value: ir.Value, visible: dict[str, ir.Value]) -> None:
        """Name a tensor where it needs a name; a repeated name that it may keep is added to `visible`."""
        if not value.name:
            producer = value.producer()
            if producer is not None and is_used(value):
                value.name = self._taken.choose(f"{producer.op_type}_output")
                self._changes.note(value.name, "had no name")
        elif value.name in self._repeated and visible.setdefault(value.name, value) is not value:
            before = value.name
            value.name = self._taken.choose(before)
            self._changes.note(value.name, f"was called {before}, as another tensor is")


_ALIAS = "ai.onnx"
_STANDARD = frozenset({"", "ai.onnx.ml"})
_FIRST_VERSION = 1

_IR_FOR_FUNCTIONS = 8
_IR_FOR_OWN_INITIALIZERS = 4
"""Up to version 3, every initializer was an input too."""

_OPSETS = (1, 9, 10, 11, 12, 15, 19, 21, 23, 24, 25, 28)
_IR_VERSIONS = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
"""The opsets with which the format's version rose, and the versions that came with them (onnx, Versioning.md)."""

_FLOAT8 = [ir.DataType[f"FLOAT8{form}"] for form in ("E4M3FN", "E4M3FNUZ", "E5M2", "E5M2FNUZ")]
_IR_FOR_TYPES = {
    **dict.fromkeys(_FLOAT8, 9),
    **dict.fromkeys((ir.DataType.INT4, ir.DataType.UINT4), 10),
    ir.DataType.FLOAT4E2M1: 11,
}
"""The versions of the format that brought newer element types."""


def fix_versions(model: ir.Model) -> Changes:
    """Name every domain that is used, once and with a version, and raise the format's version where it is too low.

    A missing standard opset becomes the lowest one that has all ops as they are used; other domains begin at 1. `ai.onnx` is
    another name of the standard domain. Leaves: all versions that are named and above 0, also of domains that nothing uses.

    Raises:
        GraphError: The standard opset is missing, and no version fits all ops.
    """
    changes = Changes()
    groups: dict[ir.Function | None, list[GraphPlace]] = {None: [], **{f: [] for f in model.functions.values()}}
    for place in all_graphs(model):
        groups[place.function].append(place)
    main = groups.pop(None)
    called = {
        domain
        for function, own in groups.items()
        if function is not None
        for domain in (function.domain, *_domains(own))
    }
    _fix_imports(model.graph.opset_imports, "", main, called, model, changes)
    for function, own in groups.items():
        assert function is not None  # the main graph is out
        _fix_imports(function.opset_imports, f"{function.domain}::{function.name}", own, set(), model, changes)
    needed = _needed_ir_version(model, main)
    if (model.ir_version or 0) < needed:
        changes.note("ir_version", f"raised from {model.ir_version} to {needed}")
        model.ir_version = needed
    return changes


def _needed_ir_version(model: ir.Model, main: list[GraphPlace]) -> int:
    opset = model.graph.opset_imports[""]
    needed = [_IR_VERSIONS[bisect_right(_OPSETS, opset) - 1]]
    if model.functions:
        needed.append(_IR_FOR_FUNCTIONS)
    if any(not value.is_graph_input() for value in model.graph.initializers.values()):
        needed.append(_IR_FOR_OWN_INITIALIZERS)
    types = {value.dtype for place in main for value in defined_in(place.graph)}
    return max(*needed, *(_IR_FOR_TYPES.get(dtype, 0) for dtype in types if dtype is not None), 0)


def _fix_imports(
    imports: MutableMapping[str, int],
    where: str,
    own: list[GraphPlace],
    extra: set[str],
    model: ir.Model,
    changes: Changes,
) -> None:
    said = f"opset_import of {where}" if where else "opset_import"
    if _ALIAS in imports:
        version = imports.pop(_ALIAS)
        kept = imports.setdefault("", version)
        changes.note(said, f"'ai.onnx' is the standard domain; its version is {kept}")
    for domain in sorted({"", *_domains(own), *extra}):
        if imports.get(domain, 0) > 0:
            continue
        before = imports.get(domain)
        imports[domain] = _version(domain, own, where, model)
        was = "missing" if before is None else f"{before}"
        changes.note(said, f"version of {domain or 'the standard domain'} was {was} and is {imports[domain]} now")


def _domains(places: Iterable[GraphPlace]) -> set[str]:
    """The domains of the nodes of some graphs."""
    return {node.domain for place in places for node in place.graph}


def _version(domain: str, own: list[GraphPlace], where: str, model: ir.Model) -> int:
    agreed = model.graph.opset_imports.get(domain, 0)
    if where and agreed > 0:
        return agreed
    if domain in _STANDARD:
        return lowest_opset((n for place in own for n in place.graph if n.domain == domain), domain)
    return _FIRST_VERSION


_LOWEST = {"": 7}
"""Below opset 7, binary ops broadcast by attributes and runtimes refuse the file."""

_Form = tuple[str, int, int, tuple[tuple[str, str], ...], tuple[str, ...]]
"""How a node uses its op: type, number of inputs and outputs, attributes with their kinds, element types of the inputs."""


def lowest_opset(nodes: Iterable[ir.Node], domain: str) -> int:
    """The lowest version in which every op exists with these attributes, numbers of inputs and element types.

    Raises:
        GraphError: No version has all of them; the nodes that fit least are named.
    """
    forms: dict[_Form, ir.Node] = {}
    for node in nodes:
        forms.setdefault(_form(node), node)
    history = (s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain)
    newest = max(history, default=1) if domain else int(onnx.defs.onnx_opset_version())
    best: list[ir.Node] = list(forms.values())
    for version in range(_LOWEST.get(domain, 1), newest + 1):
        wrong = [node for form, node in forms.items() if not _fits(form, domain, version)]
        if not wrong:
            return version
        best = min(best, wrong, key=len)
    raise GraphError(
        f"the model imports no version of the domain {domain!r}, and no version has all of its ops as they are used: "
        f"{listing(describe(node) for node in best)} would not fit. Name the opset that the file was written for."
    )


def _form(node: ir.Node) -> _Form:
    attributes = tuple(sorted((name, attribute.type.name) for name, attribute in node.attributes.items()))
    types = tuple("" if v is None or v.dtype is None else v.dtype.name.lower() for v in node.inputs)
    return node.op_type, len(node.inputs), len(node.outputs), attributes, types


def _fits(form: _Form, domain: str, version: int) -> bool:
    op_type, inputs, outputs, attributes, types = form
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    if schema.deprecated:
        return False
    if not schema.min_input <= inputs <= schema.max_input or not schema.min_output <= outputs <= schema.max_output:
        return False
    return _attributes_fit(schema, dict(attributes)) and _types_fit(schema, types)


def _attributes_fit(schema: OpSchema, stated: dict[str, str]) -> bool:
    kinds = {name: str(attribute.type).rpartition(".")[2] for name, attribute in schema.attributes.items()}
    required = {name for name, attribute in schema.attributes.items() if attribute.required}
    return required <= stated.keys() and stated.items() <= kinds.items()


def _types_fit(schema: OpSchema, types: tuple[str, ...]) -> bool:
    formals = [(name, formal_input(schema, index)) for index, name in enumerate(types) if name]
    return all(formal is None or f"tensor({name})" in formal.types for name, formal in formals)


_MOST_NODES = 2_000_000
"""Functions that call functions can grow without limit; a model beyond this could not be used."""


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
    own = {key: function for key, function in model.functions.items() if dialect or not is_dialect_domain(key[0])}
    functions = dict(filter(lambda item: _means_the_same(item[1], model), own.items()))
    graphs = [place.graph for place in all_graphs(model) if place.function is None]
    calls = [node for graph in graphs for node in graph if node.op_identifier() in functions]
    require_bounded(model.functions, map(ir.Node.op_identifier, calls))
    for call in calls:
        changes.note(describe(call), f"written out: it called {call.domain}::{call.op_type}")
    if calls:
        _inline(model, graphs, calls, functions)
    return changes


def _means_the_same(function: ir.Function, model: ir.Model) -> bool:
    """Whether every op of a body is the same op under the versions that the model imports."""
    ours = model.graph.opset_imports
    other = {d: v for d, v in function.opset_imports.items() if ours.get(d, v) != v}
    nodes = [node for node in all_nodes(function) if node.domain in other] if other else []
    return all(_since(n, ours[n.domain]) == _since(n, other[n.domain]) is not None for n in nodes)


def _since(node: ir.Node, version: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return None


def _inline(model: ir.Model, graphs: list[ir.Graph], calls: list[ir.Node], functions: Functions) -> None:
    tensors = Names(value.name or "" for graph in graphs for value in defined_in(graph))
    nodes = Names(node.name or "" for graph in graphs for node in graph)
    replacer = ValueReplacer(model)
    used: dict[ir.OperatorIdentifier, None] = {}  # in the order of the calls, as the imports are to be
    waiting = calls[::-1]
    while waiting:
        call = waiting.pop()
        used[call.op_identifier()] = None
        copy = _Copy(functions[call.op_identifier()], call, tensors, nodes)
        copy.replace_call(replacer)
        waiting += copy.calls(functions)
    replacer.finish()
    for identifier in used:
        model.graph.opset_imports.update(model.functions[identifier].opset_imports | model.graph.opset_imports)
    _drop(model, used)


def _drop(model: ir.Model, used: Mapping[ir.OperatorIdentifier, None]) -> None:
    """Remove the functions that were written out and that no function that stays calls."""
    staying = (all_nodes(function) for key, function in model.functions.items() if key not in used)
    for identifier in used.keys() - called_functions(chain.from_iterable(staying), model.functions):
        del model.functions[identifier]


def require_bounded(functions: Functions, calls: Iterable[ir.OperatorIdentifier]) -> None:
    """Refuse calls that would become more nodes than any model has, and functions that call themselves (GraphError)."""
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for identifier in callees_first(functions):
        function = functions[identifier]
        own = sum(1 for _ in all_nodes(function))
        sizes[identifier] = own + sum(sizes[callee] for callee in callees(function, functions))
    total = sum(sizes[call] for call in calls)
    if total > _MOST_NODES:
        raise GraphError(
            f"the model's functions, written out, have {total} nodes; at most {_MOST_NODES} are taken. Keep them as functions."
        )


@dataclass
class _Copy:
    """The body of a function for one call: attributes filled in, tensors and nodes under names that are free."""

    function: ir.Function
    call: ir.Node
    tensor_names: Names
    node_names: Names
    nodes: list[ir.Node] = field(default_factory=list)
    _values: dict[ir.Value, ir.Value | None] = field(default_factory=dict)

    @property
    def _prefix(self) -> str:
        first = next((output.name for output in self.call.outputs if output.name), self.call.op_type)
        return self.call.name or first or self.call.op_type

    def replace_call(self, replacer: ValueReplacer) -> None:
        """Put the nodes in the place of the call."""
        results = self._write()
        graph_of(self.call).insert_before(self.call, self.nodes)
        for old, new in zip(self.call.outputs, results, strict=False):
            replacer.stand_in(old, new)
        replacer.discard(self.call)

    def _write(self) -> list[ir.Value]:
        """Make the nodes; returns what stands for the function's outputs, each a tensor of its own."""
        graph = self.function.graph
        self._values.update(zip(graph.inputs, [*self.call.inputs, *[None] * len(graph.inputs)], strict=False))
        self.nodes = self._copies(graph)
        outputs: list[ir.Value] = []
        for output in graph.outputs:
            value = self._values.get(output)
            if value is None or output.producer() is None or value in outputs:
                name = self.tensor_names.choose(f"{self._prefix}/passed")
                node = ir.Node(
                    "", "Identity", [value], outputs=[ir.Value(name=name)], name=self.node_names.choose(name)
                )
                self.nodes.append(node)
                value = node.outputs[0]
            outputs.append(value)
        return outputs

    def calls(self, functions: Functions) -> list[ir.Node]:
        """The nodes that were made and call functions in their turn."""
        nodes = (node for each in self.nodes for node in nodes_within(each))
        return [node for node in nodes if node.op_identifier() in functions]

    def _copies(self, graph: ir.Graph) -> list[ir.Node]:
        for node in graph:
            for output in node.outputs:
                self._values[output] = self._fresh(output)
        return [self._node(node) for node in graph]

    def _fresh(self, value: ir.Value) -> ir.Value:
        name = self.tensor_names.choose(f"{self._prefix}/{value.name}") if value.name else ""
        return ir.Value(name=name, type=value.type, shape=value.shape)

    def _node(self, node: ir.Node) -> ir.Node:
        inputs = [None if value is None else self._values.get(value, value) for value in node.inputs]
        outputs = [value for output in node.outputs if (value := self._values[output]) is not None]
        attributes = [own for a in node.attributes.values() if (own := self._attribute(a)) is not None]
        name = self.node_names.choose(f"{self._prefix}/{node.name or node.op_type}")
        copy = ir.Node(node.domain, node.op_type, inputs, attributes, overload=node.overload, outputs=outputs)
        copy.name = name
        return copy

    def _attribute(self, attribute: ir.Attr) -> ir.Attr | None:
        if attribute.is_ref():
            name = attribute.ref_attr_name or ""
            value = self.call.attributes.get(name) or self.function.attributes.get(name)
            if value is None or (value.value is None and not value.is_ref()):
                return None  # left out by the caller, without a default
            return ir.Attr(attribute.name, value.type, value.value, ref_attr_name=value.ref_attr_name)
        if attribute.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(attribute.name, self._graph(attribute.as_graph()))
        if attribute.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(attribute.name, [self._graph(graph) for graph in attribute.as_graphs()])
        return attribute

    def _graph(self, graph: ir.Graph) -> ir.Graph:
        inputs = [self._fresh(value) for value in graph.inputs]
        self._values.update(zip(graph.inputs, inputs, strict=True))
        initializers = []
        for value in graph.initializers.values():
            known = self._values.get(value)
            copy = self._fresh(value) if known is None else known
            self._values[value] = copy
            copy.const_value = value.const_value
            initializers.append(copy)
        nodes = self._copies(graph)
        outputs = [result for output in graph.outputs if (result := self._values.get(output, output)) is not None]
        return ir.Graph(inputs, outputs, nodes=nodes, initializers=initializers, name=graph.name)
