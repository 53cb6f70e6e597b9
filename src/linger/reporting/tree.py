# SPDX-License-Identifier: Apache-2.0
"""A model on a terminal: as a tree, or as a listing of its graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from linger.graph.files.summary import (
    AttributeSummary,
    FunctionSummary,
    GraphSummary,
    ModelSummary,
    NodeSummary,
    TensorSummary,
)

_UNITS = ("kB", "MB", "GB", "TB")
_STEP = 1000

_LONGEST = 100_000
"""Longer lines are cut: rich needs a second for every few million letters."""


def format_bytes(count: int | None) -> str:
    """A number of bytes in a readable unit.

    >>> format_bytes(1), format_bytes(999), format_bytes(43210), format_bytes(None)
    ('1 byte', '999 bytes', '43.2 kB', 'unknown size')
    """
    if count is None:
        return "unknown size"
    if count < _STEP:
        return "1 byte" if count == 1 else f"{count} bytes"
    size, unit = count / _STEP, 0
    while size >= _STEP and unit < len(_UNITS) - 1:
        size, unit = size / _STEP, unit + 1
    return f"{size:.1f} {_UNITS[unit]}"


def model_tree(summary: ModelSummary) -> Tree:
    """The model with everything that the summary holds."""
    tree = Tree(_line((summary.path, "bold"), f"  {format_bytes(summary.bytes)}, IR version {summary.ir_version}"))
    if summary.producer:
        tree.add(_line(("producer ", "dim"), summary.producer))
    if summary.model_version:
        tree.add(_line(("model version ", "dim"), str(summary.model_version)))
    tree.add(_line(("opsets ", "dim"), _opsets(summary.opsets)))
    _section(tree, "metadata", [_line((f"{key} ", "dim"), value) for key, value in summary.metadata.items()])
    sizes = {name: "missing" if size is None else format_bytes(size) for name, size in summary.data_files.items()}
    _section(tree, "data files", [_line(f"{name}  {size}") for name, size in sizes.items()])
    _add_graph(tree, summary.graph)
    if summary.functions:
        functions = tree.add(_line((f"functions ({len(summary.functions)})", "bold")))
        for function in summary.functions:
            _add_function(functions, function)
    return tree


def _add_graph(parent: Tree, graph: GraphSummary, title: str = "graph") -> None:
    branch = parent.add(_line((title, "bold"), f" {graph.name}" if graph.name else ""))
    weights = f", {format_bytes(graph.initializer_bytes)}" if graph.initializer_bytes else ""
    _list(branch, "inputs", graph, graph.inputs)
    _list(branch, "outputs", graph, graph.outputs)
    _list(branch, "initializers", graph, graph.initializers, weights)
    if graph.counts["nodes"]:
        nodes = branch.add(_line((f"nodes ({graph.counts['nodes']})", "bold"), f" {_op_counts(graph.op_counts)}"))
        for node in graph.nodes:
            _add_node(nodes, node)
        _add_rest(nodes, graph.counts["nodes"], len(graph.nodes))
    _list(branch, "value_infos", graph, graph.value_infos)


def _op_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{op} ×{count}" for op, count in counts.items())


def _add_node(parent: Tree, node: NodeSummary) -> None:
    domain = (f"{node.domain}::", "magenta") if node.domain not in ("", "ai.onnx") else ""
    branch = parent.add(_line(domain, (node.op_type, "cyan"), f"  {node.name}" if node.name else ""))
    inputs = ", ".join(name or "(none)" for name in node.inputs)
    branch.add(_line((f"{inputs or '(nothing)'} → {', '.join(node.outputs)}", "")))
    for attribute in node.attributes:
        _add_attribute(branch, attribute)


def _add_attribute(parent: Tree, attribute: AttributeSummary) -> None:
    if not attribute.graphs:
        parent.add(_line((attribute.name, "green"), f" {attribute.kind} = {attribute.text}"))
    for graph in attribute.graphs:
        _add_graph(parent, graph, attribute.name)


def _add_function(parent: Tree, function: FunctionSummary) -> None:
    signature = f"({', '.join(function.inputs)}) → {', '.join(function.outputs)}"
    domain = (f"{function.domain}::", "magenta")
    branch = parent.add(_line(domain, (function.name, "cyan"), f" {signature}"))
    if function.attributes:
        branch.add(_line(("attributes ", "dim"), ", ".join(function.attributes)))
    branch.add(_line(("opsets ", "dim"), _opsets(function.opsets)))
    _add_graph(branch, dataclasses.replace(function.body, name=""), "body")


def _tensor(tensor: TensorSummary) -> Text:
    content = f"  {format_bytes(tensor.bytes)}" if tensor.bytes is not None else ""
    place = f" in {tensor.location}" if tensor.location is not None else ""
    dynamic = (f"  dynamic: {', '.join(tensor.dynamic)}", "yellow") if tensor.dynamic else ""
    return _line(f"{tensor.name}  ", (tensor.type, "cyan"), f"{content}{place}", dynamic)


def _opsets(opsets: Mapping[str, int]) -> str:
    return ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in opsets.items())


def _section(parent: Tree, title: str, lines: Sequence[Text]) -> None:
    if lines:
        branch = parent.add(_line((f"{title} ({len(lines)})", "bold")))
        for line in lines:
            branch.add(line)


def _list(parent: Tree, key: str, graph: GraphSummary, tensors: Sequence[TensorSummary], more: str = "") -> None:
    """A list with its count, which may have been cut short."""
    if graph.counts[key]:
        branch = parent.add(_line((f"{key.replace('_', ' ')} ({graph.counts[key]}{more})", "bold")))
        for tensor in tensors:
            branch.add(_tensor(tensor))
        _add_rest(branch, graph.counts[key], len(tensors))


def _add_rest(branch: Tree, count: int, shown: int) -> None:
    if 0 < shown < count:
        branch.add(_line((f"… {count - shown} more", "dim")))


def _line(*parts: str | tuple[str, str]) -> Text:
    """Plain text with styles: names are never markup, and cannot move the cursor."""
    made = Text()
    for part in parts:
        text, style = part if isinstance(part, tuple) else (part, "")
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {len(text) - _LONGEST} more letters"
        made.append("".join(c if c.isprintable() else repr(c)[1:-1] for c in text), style)
    return made


def listing(proto: onnx.ModelProto) -> str:
    """The model in ONNX's text form, with large tensors replaced by their size."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    lines = []
    for tensor in copy.graph.initializer:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        lines.append(f"#   {tensor.name}: {kind}{list(tensor.dims)}")
    del copy.graph.initializer[:]
    del copy.functions[:]
    header = [f"# {len(lines)} initializers"] if lines else []
    return "\n".join([onnx.printer.to_text(copy), *header, *lines])


def print_listing(proto: onnx.ModelProto) -> None:
    """Print the listing of a model, for `export(verbose=True)`."""
    Console(soft_wrap=True).print(listing(proto), markup=False, highlight=False)
