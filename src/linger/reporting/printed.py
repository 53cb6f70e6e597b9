# SPDX-License-Identifier: Apache-2.0
"""What commands print: a model as a tree or a listing, a comparison of two files and findings of a check as tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from linger.graph.core.nodes import SEVERITIES, Finding
from linger.graph.files.summary import FunctionSummary, GraphSummary, ModelSummary, NodeSummary, TensorSummary
from linger.records.rich_table import table
from linger.reporting.plots import draw_differences

if TYPE_CHECKING:
    from linger.checks.check import CheckResult
    from linger.verification.devices.comparison_result import FileComparison, TensorDifference

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
    while round(size, 1) >= _STEP and unit < len(_UNITS) - 1:
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
        ops = ", ".join(f"{op} ×{count}" for op, count in graph.op_counts.items())
        nodes = branch.add(_line((f"nodes ({graph.counts['nodes']})", "bold"), f" {ops}"))
        for node in graph.nodes:
            _add_node(nodes, node)
        _add_rest(nodes, graph.counts["nodes"], len(graph.nodes))
    _list(branch, "value_infos", graph, graph.value_infos)


def _add_node(parent: Tree, node: NodeSummary) -> None:
    domain = (f"{node.domain}::", "magenta") if node.domain not in ("", "ai.onnx") else ""
    branch = parent.add(_line(domain, (node.op_type, "cyan"), f"  {node.name}" if node.name else ""))
    inputs = ", ".join(name or "(none)" for name in node.inputs)
    branch.add(_line((f"{inputs or '(nothing)'} → {', '.join(node.outputs)}", "")))
    for attribute in node.attributes:
        if not attribute.graphs:
            branch.add(_line((attribute.name, "green"), f" {attribute.kind} = {attribute.text}"))
        for graph in attribute.graphs:
            _add_graph(branch, graph, attribute.name)


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
    line = Text()
    for part in parts:
        text, style = part if isinstance(part, tuple) else (part, "")
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {len(text) - _LONGEST} more letters"
        line.append("".join(c if c.isprintable() else repr(c)[1:-1] for c in text), style)
    return line


def print_listing(proto: onnx.ModelProto) -> None:
    """Print a model in ONNX's text form, with large tensors replaced by their size, for `export(verbose=True)`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    lines = [f"# {len(copy.graph.initializer)} initializers"] if copy.graph.initializer else []
    for tensor in copy.graph.initializer:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        lines.append(f"#   {tensor.name}: {kind}{list(tensor.dims)}")
    del copy.graph.initializer[:]
    del copy.functions[:]
    text = "\n".join([onnx.printer.to_text(copy), *lines])
    Console(soft_wrap=True).print(text, markup=False, highlight=False)


SHOWN_ROWS = 20
_COLUMNS = (
    *("tensor", "op", "type", "values", "differ", "largest", "mean", "first at", "a", "b", "real", "scale"),
    *("saturated", "matched by", "notes"),
)
_TEXTS = frozenset({"tensor", "op", "type", "matched by", "notes"})


def comparison_table(result: FileComparison, *, is_whole: bool = False) -> Table:
    """A table of the tensors that differ, the first in the order of execution on top, then the worst; then equal ones.

    A long table is cut. With `is_whole` it has every tensor, in the order of execution. Empty columns are left out.
    """
    first = [] if result.first is None else [result.first.row]
    worst = [row for row in result.worst if row not in first]
    important = [*first, *worst, *(row for row in result.rows if row.ok)][:SHOWN_ROWS]
    rows = list(result.rows) if is_whole else important
    shown = Table(title=Text(f"a: {result.a}\nb: {result.b}"), title_justify="left")
    cells = [_cells(row) for row in rows]
    used = [0, *(i for i in range(1, len(_COLUMNS)) if any(texts[i] for texts in cells))]
    for column in (_COLUMNS[i] for i in used):
        shown.add_column(column, justify="left" if column in _TEXTS else "right")
    for row, texts in zip(rows, cells, strict=True):
        shown.add_row(*(Text(texts[i]) for i in used), style="" if row.ok else "red")
    if len(rows) < len(result.rows):
        shown.caption = Text(f"… {len(result.rows) - len(rows)} more tensors; --all shows them")
    return shown


def unmatched_table(result: FileComparison, *, is_whole: bool = False) -> Table | None:
    """The tensors without a partner; None where there are none."""
    names = [("a", name) for name in result.only_a] + [("b", name) for name in result.only_b]
    if not names:
        return None
    shown = names if is_whole else names[:SHOWN_ROWS]
    unmatched = table("without a partner", ("only in", "tensor"), shown)
    if len(shown) < len(names):
        unmatched.caption = Text(f"… {len(names) - len(shown)} more; --all shows them")
    return unmatched


def draw_comparison(result: FileComparison, path: Path) -> None:
    """Draw the largest difference of every tensor along the graph into a .png or .svg file."""
    rows = result.rows
    draw_differences(
        [row.name for row in rows],
        [row.largest if row.largest or row.ok else math.inf for row in rows],
        path,
        title=f"{Path(result.a).name} against {Path(result.b).name}: largest difference of each tensor",
        are_real=[row.unit != "LSB" for row in rows],
    )


def _cells(row: TensorDifference) -> tuple[str, ...]:
    types = row.dtype_a if row.dtype_a == row.dtype_b else f"{row.dtype_a} / {row.dtype_b}"
    first = row.first
    values = (
        ("", "", "") if first is None else (f"{first.batch}: {list(first.index)}", _number(first.a), _number(first.b))
    )
    saturated = (row.saturated_a, row.saturated_b)
    shares = dict.fromkeys(_share(count, row.values) for count in saturated)
    return (
        row.name if row.name == row.other else f"{row.name} / {row.other}",
        row.op_type,
        types,
        str(row.values),
        str(row.differing),
        f"{row.largest:g} {row.unit}",
        f"{row.mean:.3g}" if row.differing else "",
        *values,
        f"{row.largest_real:g}" if row.largest_real else "",
        "" if row.scale is None else f"{row.scale:g}",
        " / ".join(shares) if any(saturated) else "",
        "" if row.matched == "name" else row.matched,
        "; ".join(row.notes),
    )


def _number(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _share(count: int, values: int) -> str:
    """A share of all values, in percent.

    >>> _share(0, 10), _share(1, 1000), _share(5, 10)
    ('0%', '0.1%', '50%')
    """
    return f"{100 * count / values:.3g}%" if values else "0%"


SHOWN = 3
"""Findings of one rule that are shown before the rest is counted."""


def finding_tables(result: CheckResult, *, shown: int | None = SHOWN) -> Iterator[Table]:
    """A table for each severity: the first `shown` findings of each rule (None: all), and the number of the others."""
    for severity in SEVERITIES:
        findings = [f for f in result.findings if f.severity == severity]
        if findings:
            title = f"{len(findings)} {severity}{'' if len(findings) == 1 else 's'}"
            yield table(title, ("rule", "where", "what", "remedy"), _rows(findings, shown))


def _rows(findings: list[Finding], shown: int | None) -> Iterator[tuple[str, str, str, str]]:
    from linger.checks.check import RULES  # a tree needs none of the rules

    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, of_rule in by_rule.items():
        title = f"{rule} {RULES[rule].name}"
        # one finding more takes no more room than the line that counts it
        count = len(of_rule) if shown is None or len(of_rule) <= shown + 1 else shown
        for f in of_rule[:count]:
            yield title, f.node or f.tensor, f.reason, f.remedy
        if count < len(of_rule):
            yield title, f"… {len(of_rule) - count} more", RULES[rule].summary, "--all shows them."
