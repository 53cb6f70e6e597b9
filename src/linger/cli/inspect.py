# SPDX-License-Identifier: Apache-2.0
"""linger inspect: what is in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linger.cli import console, say_result
from linger.cli.arguments.options import Json

_SHOWN_ITEMS = 50


def inspect(
    model: Annotated[Path, typer.Argument(help="An ONNX file; weights in other files are not needed.")],
    depth: Annotated[
        int | None, typer.Option(min=0, help="0: counts only, 1: the main graph, 2: branches and functions too, …")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=0, help="How many nodes, initializers and value infos each graph shows.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show the tree of a model: graph, inputs, outputs, initializers, nodes, attributes, functions, with sizes.

    Exit code 1: the file is no complete model

    Examples:
        linger inspect digits.onnx
        linger inspect digits.onnx --depth 1 --nodes 20
    """
    from linger.graph.files.summary import limited, summarize
    from linger.reporting.printed import model_tree

    whole = summarize(model)
    if as_json:
        say_result("inspect", limited(whole, depth=depth, items=nodes).as_dict())
        return
    shown = limited(whole, depth=depth, items=_SHOWN_ITEMS if nodes is None else nodes)
    console().print(model_tree(shown))
