# SPDX-License-Identifier: Apache-2.0
"""Repairs that must come before a file is read as a graph, because reading it would refuse it or lose what it says.

A graph in memory knows tensors as objects. Two tensors of one name, two initializers, two functions or two versions of a
domain would become one, and a branch that hands on a tensor from around it would lose it.

Two tensors of one name: read from top to bottom, a second definition hides the first one, and what follows uses it. That is
what the file says only if nothing else could be meant. So it is taken only where every other reading would leave a node
without use: nodes in order, the first definition used before the second one, and exactly one use after each further one.
"""

from __future__ import annotations

import itertools
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import onnx

from linger.errors import GraphError, listing, printable
from linger.graph.core.nodes import Changes, Names, proto_graphs

_UNKNOWN_VERSION = 0
_ALIASES = {"ai.onnx": ""}

ProtoGraph = onnx.GraphProto | onnx.FunctionProto


def repair_proto(proto: onnx.ModelProto) -> Changes:
    """Change a ModelProto, in place, so that it can be read as a graph without loss.

    - A tensor that two nodes make gets a second name, where it is clear which of the two each reader means.
    - Of several initializers of one name, and of several versions of one domain, the last one counts, as in ONNX Runtime.
    - An initializer without a name goes: nobody can use it. Of equal functions, one stays.
    - A branch or body that hands on a tensor from around it does so by an Identity.
    - A model that imports no opset gets version 0 of the standard domain, which the rule `fix_versions` replaces.

    Raises:
        GraphError: Inputs or functions that cannot be told apart, or tensors of one name of which it cannot be said which
            is meant; all of them are named. Or a name is no text. The model may then be changed in part.
    """
    changes = Changes()
    if not proto.HasField("graph"):
        return changes  # whoever reads it says where it came from
    try:
        _repair(proto, changes)
    except UnicodeDecodeError as error:  # protobuf reads names that are no text, and refuses to write them
        raise GraphError(f"a name in the model is no text ({error.object!r}). Export it again.") from error
    return changes


def _repair(proto: onnx.ModelProto, changes: Changes) -> None:
    _fix_imports(proto, changes)
    scopes = proto_scopes(proto)
    for graph in itertools.chain.from_iterable(scopes):
        if isinstance(graph, onnx.GraphProto):
            _fix_initializers(graph, changes)
    repeated = sorted(name for name, count in Counter(value.name for value in proto.graph.input).items() if count > 1)
    wrong = [f"{listing(repeated)}: several inputs of the model have this name"] if repeated else []
    wrong += _merge_functions(proto, changes)
    scopes = scopes if len(scopes) == 1 + len(proto.functions) else proto_scopes(proto)
    names = taken_names(scopes)
    wrong += separate_definitions(scopes, names, changes)
    if wrong:
        problems = printable("; ".join(wrong))
        raise GraphError(f"the model contradicts itself: {problems}. Give them different names, or export again.")
    _hand_on(scopes, names, changes)


def proto_scopes(proto: onnx.ModelProto) -> list[list[ProtoGraph]]:
    """The main graph and each function, every one together with the graphs inside it, itself first."""
    return [_graphs(start) for start in (proto.graph, *proto.functions)]


def _graphs(start: ProtoGraph) -> list[ProtoGraph]:
    graphs = [start]
    for outer in graphs:  # the list grows while it is walked
        for node in outer.node:
            graphs += proto_graphs(node)
    return graphs


def _names(values: Iterable[str | onnx.ValueInfoProto]) -> list[str]:
    """The names of inputs or outputs: a graph declares them, a function only names them."""
    return [value if isinstance(value, str) else value.name for value in values]


def _given_names(graph: ProtoGraph) -> list[str]:
    """The names of a graph's inputs and initializers."""
    initializers = graph.initializer if isinstance(graph, onnx.GraphProto) else ()
    return [*_names(graph.input), *(tensor.name for tensor in initializers)]


def _fix_imports(proto: onnx.ModelProto, changes: Changes) -> None:
    domains = [_ALIASES.get(entry.domain, entry.domain) for entry in proto.opset_import]
    last = {domain: index for index, domain in enumerate(domains)}
    for index, domain in reversed(list(enumerate(domains))):
        if last[domain] != index:
            version, other = proto.opset_import[index].version, proto.opset_import[last[domain]].version
            what = f"{domain or 'the standard domain'}: version {version} dropped for {other}"
            changes.note("opset_import", what)
    for index in reversed(range(len(domains))):
        if last[domains[index]] != index:
            del proto.opset_import[index]
    if not proto.opset_import:
        proto.opset_import.add(domain="", version=_UNKNOWN_VERSION)
        changes.note("opset_import", "there was none: an unknown version of the standard domain noted")


def _fix_initializers(graph: onnx.GraphProto, changes: Changes) -> None:
    last = {tensor.name: index for index, tensor in enumerate(graph.initializer)}
    for index in reversed(range(len(graph.initializer))):
        name = graph.initializer[index].name
        if not name or last[name] != index:
            repeated = f"one of several initializers {name} dropped for the last one"
            changes.note(name or graph.name, repeated if name else "initializer without a name dropped")
            del graph.initializer[index]


def _merge_functions(proto: onnx.ModelProto, changes: Changes) -> list[str]:
    first: dict[tuple[str, str, str], onnx.FunctionProto] = {}
    wrong, repeated = [], []
    for index, function in enumerate(proto.functions):
        twin = first.setdefault((function.domain, function.name, function.overload), function)
        if twin is not function:
            repeated.append(index)
            if twin.SerializeToString(deterministic=True) != function.SerializeToString(deterministic=True):
                wrong.append(f"{function.domain}::{function.name}: there are two different functions of this name")
    for index in reversed(repeated if not wrong else []):
        name = f"{proto.functions[index].domain}::{proto.functions[index].name}"
        changes.note(name, "second copy of the function dropped")
        del proto.functions[index]
    return wrong


def _hand_on(scopes: list[list[ProtoGraph]], names: Names, changes: Changes) -> None:
    """Add an Identity for every output of an inner graph that comes from a graph around it."""
    holders = [outer for outer, *inside in scopes if inside]
    inner = [graph for outer in holders for node in outer.node for graph in proto_graphs(node)]
    for graph in itertools.chain.from_iterable(map(_graphs, inner)):
        own = {"", *_given_names(graph)}.union(*(node.output for node in graph.node))
        outputs = graph.output if isinstance(graph, onnx.GraphProto) else ()
        for output in filter(lambda output: output.name not in own, outputs):
            name = names.choose(output.name)
            graph.node.append(onnx.NodeProto(op_type="Identity", name=name, input=[output.name], output=[name]))
            changes.note(name, f"hands on {output.name}, which comes from around {graph.name or 'the body'}")
            output.name = name


def taken_names(scopes: list[list[ProtoGraph]]) -> Names:
    """Every name of a tensor in the file."""
    names: set[str] = set()
    for graph in (graph for scope in scopes for graph in scope):
        names.update(_given_names(graph), _names(graph.output))
        for node in graph.node:
            names.update(node.input, node.output)
    return Names(names)


@dataclass(frozen=True)
class _Mention:
    """A place in the file where a tensor's name stands: the node, input or output that names it, and how to rename it there."""

    by: str
    rename: Callable[[str], None]


@dataclass(eq=False)
class _Definition:
    """One tensor: where its name is given, who uses it, and the tensor of the same name that it hides."""

    name: str
    made: _Mention
    hidden: _Definition | None = None
    is_local: bool = True
    is_fixed: bool = False
    used_early_by: str = ""
    uses: list[_Mention] = field(default_factory=list)
    chain: list[_Definition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chain = [] if self.hidden is None else self.hidden.chain
        self.chain.append(self)


def separate_definitions(scopes: list[list[ProtoGraph]], names: Names, changes: Changes) -> list[str]:
    """Give second definitions names of their own; returns what cannot be told apart, as parts of a sentence."""
    wrong: list[str] = []
    for scope in scopes:
        chains = _Reader(scope[0]).chains if _repeats_names(scope) else []
        problems = [problem for chain in chains for problem in _problems(chain)]
        wrong += problems
        for chain in chains if not problems else ():
            _rename(chain, names, changes)
    return wrong


def _repeats_names(scope: list[ProtoGraph]) -> bool:
    """Whether two tensors of a scope have the same name; reading it from top to bottom takes ten times as long."""
    names = [name for graph in scope for name in _given_names(graph)]
    names += [name for graph in scope for node in graph.node for name in node.output if name]
    return len(set(names)) < len(names)


class _Reader:
    """Reads a graph from top to bottom, inner graphs where they stand.

    Attributes:
        chains: The tensors of each name that is given more than once, each hiding the one before.
    """

    def __init__(self, graph: ProtoGraph) -> None:
        self.chains: list[list[_Definition]] = []
        # a map for each graph around the place that was reached: its tensors, and names that were used before they were given
        self._known: ChainMap[str, _Definition] = ChainMap()
        self._early: ChainMap[str, str] = ChainMap()
        self._waiting: list[Callable[[], None]] = [partial(self._begin, graph)]
        while self._waiting:  # no recursion: files may be nested deeply
            self._waiting.pop()()

    def _begin(self, graph: ProtoGraph) -> None:
        self._known, self._early = self._known.new_child(), self._early.new_child()
        for name in _given_names(graph):
            made = _Mention(f"the input or initializer {name}", lambda _: None)  # it keeps its name
            self._known[name] = _Definition(name, made, is_fixed=True)
        self._waiting.append(partial(self._end, graph))
        for node in reversed(graph.node):
            self._waiting.append(partial(self._define_outputs, node))
            self._waiting += [partial(self._begin, inner) for inner in reversed(proto_graphs(node))]
            self._waiting.append(partial(self._use_inputs, node))

    def _use_inputs(self, node: onnx.NodeProto) -> None:
        for index, name in enumerate(node.input):
            if name and name in self._known:
                self._known[name].uses.append(_Mention(_described(node), partial(node.input.__setitem__, index)))
            elif name:
                for early in self._early.maps:
                    early.setdefault(name, _described(node))

    def _define_outputs(self, node: onnx.NodeProto) -> None:
        for index, name in enumerate(node.output):
            if not name:
                continue
            definition = _Definition(
                name,
                _Mention(_described(node), partial(node.output.__setitem__, index)),
                hidden=self._known.get(name),
                is_local=name in self._known.maps[0],
                used_early_by=self._early.maps[0].get(name, ""),
            )
            self._known[name] = definition
            if len(definition.chain) == 2:
                self.chains.append(definition.chain)

    def _end(self, graph: ProtoGraph) -> None:
        own = self._known.maps[0]
        self._known, self._early = self._known.parents, self._early.parents
        is_outermost = len(self._known.maps) == 1
        for index, (name, output) in enumerate(zip(_names(graph.output), graph.output, strict=True)):
            if name in own:
                is_declared = isinstance(output, onnx.ValueInfoProto)
                rename = partial(setattr, output, "name") if is_declared else partial(graph.output.__setitem__, index)
                own[name].uses.append(_Mention(f"the output {name}", rename))
                own[name].is_fixed |= is_outermost


def _problems(chain: list[_Definition]) -> Iterator[str]:
    """Why it is unclear which nodes use which of the tensors of one name."""
    if sum(definition.is_fixed for definition in chain) > 1:
        yield f"the tensor {chain[0].name} is an input or initializer and again the output of {chain[-1].made.by}"
    hidden = {definition.hidden for definition in chain}
    for definition in chain[1:]:
        problem = _problem(definition, is_hidden=definition in hidden)
        if problem:
            assert definition.hidden is not None  # only the first of a chain hides none
            both = f"made by {definition.hidden.made.by} and by {definition.made.by}"
            yield f"the tensor {definition.name} is {both}, and {problem}"


def _problem(definition: _Definition, *, is_hidden: bool) -> str:
    """What is unclear about a tensor that hides another one of its name; empty where nothing is."""
    if definition.used_early_by:
        return f"{definition.used_early_by} uses it before"
    if definition.is_local and definition.hidden is not None and not definition.hidden.uses:
        return "nothing uses the first one"
    if len(definition.uses) > 1 or (is_hidden and not definition.uses):
        users = listing(dict.fromkeys(use.by for use in definition.uses))
        return f"it cannot be told which of them is used by {users or 'what follows'}"
    return ""


def _rename(chain: list[_Definition], names: Names, changes: Changes) -> None:
    """All but one get another name; that one is an input or output of the model, if one of them is."""
    first = next((definition for definition in chain if definition.is_fixed), chain[0])
    for definition in [definition for definition in chain if definition is not first]:
        name = names.choose(definition.name)
        for mention in (definition.made, *definition.uses):
            mention.rename(name)
        changes.note(definition.made.by, f"its result is called {name} now: {definition.name} was made twice")


def _described(node: onnx.NodeProto) -> str:
    return f"{node.name or next(iter(node.output), '?')} ({node.op_type})"
