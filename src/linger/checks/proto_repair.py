# SPDX-License-Identifier: Apache-2.0
"""Repairs that must come before a file is read as a graph, because reading it would refuse it or lose what it says.

A graph in memory knows tensors as objects. Two tensors of one name, two initializers, two functions or two versions of a
domain would become one, and a branch that hands on a tensor from around it would lose it. `definitions` tells tensors of
one name apart.
"""

from __future__ import annotations

import onnx

from linger.checks.definitions import separate_definitions, taken_names
from linger.errors import GraphError, listing, printable
from linger.graph.core.changes import Changes
from linger.graph.core.names import Names
from linger.graph.core.walking import proto_graphs

_UNKNOWN_VERSION = 0
_ALIASES = {"ai.onnx": ""}


def repair_proto(proto: onnx.ModelProto) -> Changes:
    """Make of a ModelProto, in place, one that can be read without loss.

    - A tensor that two nodes make gets a second name, where it is clear who uses which (`definitions`).
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
    graphs = [*_graphs(proto.graph), *(g for f in proto.functions for n in f.node for g in proto_graphs(n))]
    for graph in graphs:
        _fix_initializers(graph, changes)
    wrong = [*_repeated_inputs(proto.graph), *_merge_functions(proto, changes)]
    names = taken_names(proto)
    wrong += separate_definitions(proto, names, changes)
    if wrong:
        raise GraphError(
            f"the model contradicts itself: {printable('; '.join(wrong))}. Give them different names, or export again."
        )
    _hand_on(proto, names, changes)


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for outer in found:  # the list grows while it is walked
        for node in outer.node:
            found += proto_graphs(node)
    return found


def _fix_imports(proto: onnx.ModelProto, changes: Changes) -> None:
    last = {_ALIASES.get(entry.domain, entry.domain): index for index, entry in enumerate(proto.opset_import)}
    for index in reversed(range(len(proto.opset_import))):
        entry = proto.opset_import[index]
        domain = _ALIASES.get(entry.domain, entry.domain)
        if last[domain] != index:
            kept = proto.opset_import[last[domain]].version
            changes.note(
                "opset_import", f"{domain or 'the standard domain'}: version {entry.version} dropped for {kept}"
            )
    kept_entries = [proto.opset_import[index] for index in sorted(last.values())]
    if len(kept_entries) < len(proto.opset_import):
        copies = [onnx.OperatorSetIdProto(domain=e.domain, version=e.version) for e in kept_entries]
        del proto.opset_import[:]
        proto.opset_import.extend(copies)
    if not proto.opset_import:
        proto.opset_import.add(domain="", version=_UNKNOWN_VERSION)
        changes.note("opset_import", "there was none: an unknown version of the standard domain noted")


def _fix_initializers(graph: onnx.GraphProto, changes: Changes) -> None:
    last = {tensor.name: index for index, tensor in enumerate(graph.initializer)}
    doomed = [i for i, tensor in enumerate(graph.initializer) if not tensor.name or last[tensor.name] != i]
    for index in reversed(doomed):
        name = graph.initializer[index].name
        what = (
            f"one of several initializers {name} dropped for the last one"
            if name
            else "initializer without a name dropped"
        )
        changes.note(name or graph.name, what)
        del graph.initializer[index]


def _repeated_inputs(graph: onnx.GraphProto) -> list[str]:
    names = [value.name for value in graph.input]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    return [f"{listing(twice)}: several inputs of the model have this name"] if twice else []


def _merge_functions(proto: onnx.ModelProto, changes: Changes) -> list[str]:
    first: dict[tuple[str, str, str], onnx.FunctionProto] = {}
    wrong, doomed = [], []
    for index, function in enumerate(proto.functions):
        kept = first.setdefault((function.domain, function.name, function.overload), function)
        if kept is function:
            continue
        if kept.SerializeToString(deterministic=True) != function.SerializeToString(deterministic=True):
            wrong.append(f"{function.domain}::{function.name}: there are two different functions of this name")
        doomed.append(index)
    for index in reversed(doomed if not wrong else []):
        changes.note(
            f"{proto.functions[index].domain}::{proto.functions[index].name}", "second copy of the function dropped"
        )
        del proto.functions[index]
    return wrong


def _hand_on(proto: onnx.ModelProto, names: Names, changes: Changes) -> None:
    """Let inner graphs make the outputs that they only have from around them."""
    inner = [
        g for outer in (proto.graph.node, *(f.node for f in proto.functions)) for n in outer for g in proto_graphs(n)
    ]
    for graph in [g for start in inner for g in _graphs(start)]:
        own = {*(v.name for v in graph.input), *(t.name for t in graph.initializer)}
        own |= {name for node in graph.node for name in node.output}
        for output in graph.output:
            if output.name and output.name not in own:
                name = names.choose(output.name)
                graph.node.append(onnx.NodeProto(op_type="Identity", name=name, input=[output.name], output=[name]))
                changes.note(name, f"hands on {output.name}, which comes from around {graph.name or 'the body'}")
                output.name = name
