# SPDX-License-Identifier: Apache-2.0
"""linger run: a file in stock ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linger.cli.arguments.inputs import HELP, read_shapes
from linger.cli.terminal import console
from linger.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray
from linger.files import write_atomically


def run(
    model: Annotated[Path, typer.Argument(help="An ONNX file: dialect, bare or standard.")],
    inputs: Annotated[Path | None, typer.Option(help="An .npz file with the inputs; random ones without it.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the outputs to this .npz file.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Every intermediate tensor, not only the outputs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.", min=0)] = 0,
    shape: Annotated[list[str] | None, typer.Option(help=HELP)] = None,
) -> None:
    """Run a model and show (or save) what it computes."""
    from linger.cli.arguments.inputs import read_feeds
    from linger.reporting.tables import table
    from linger.runtime.session import Session
    from linger.verification.array_files import npz_content
    from linger.verification.feeds import generated_feeds

    session = Session(model)
    if inputs is not None and shape:
        raise UsageError("run: inputs from a file have the sizes they have. Leave --shape or --inputs out.")
    shapes = read_shapes(shape or (), session)
    feeds = generated_feeds(session, seed, shapes) if inputs is None else read_feeds(inputs, session)
    names = [o.name for o in session.get_outputs()]
    results = session.intermediates(feeds) if every else dict(zip(names, session.run(None, feeds), strict=True))
    if output is not None:
        write_atomically(output, npz_content(results))
    rows = [(name, *_cells(array)) for name, array in results.items()]
    console().print(table(str(model), ("tensor", "type", "shape", "min", "max"), rows))


def _cells(array: NDArray[Any]) -> tuple[str, ...]:
    limits = (f"{array.min():g}", f"{array.max():g}") if array.size else ("", "")
    return str(array.dtype), "×".join(map(str, array.shape)), *limits
