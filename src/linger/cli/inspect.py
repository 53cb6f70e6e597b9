# SPDX-License-Identifier: Apache-2.0
"""linger inspect: what is in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from linger.graph.summary import limited
from linger.graph.summary_reading import summarize
from linger.reporting.tree import model_tree

_SHOWN_ITEMS = 50
_UNBROKEN = 100_000


def inspect(
    model: Annotated[Path, typer.Argument(help="An ONNX file; weights in other files are not needed.")],
    depth: Annotated[
        int | None, typer.Option(min=0, help="0: counts only, 1: the main graph, 2: branches and functions too, …")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=0, help="How many nodes, initializers and value infos each graph shows.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, everything unless limited.")] = False,
) -> None:
    """Show the tree of a model: graph, inputs, outputs, initializers, nodes, attributes, functions, with sizes."""
    whole = summarize(model)
    if as_json:
        typer.echo(json.dumps(limited(whole, depth=depth, items=nodes).as_dict(), indent=2))
        return
    shown = limited(whole, depth=depth, items=_SHOWN_ITEMS if nodes is None else nodes)
    console = Console()
    if not console.is_terminal:
        console.width = _UNBROKEN  # one line each, for grep and diff
    console.print(model_tree(shown))
