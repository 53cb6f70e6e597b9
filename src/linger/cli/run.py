# SPDX-License-Identifier: Apache-2.0
"""linger run: a file in stock ONNX Runtime."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linger.cli import say_result, say_table
from linger.cli.arguments.options import HELP, Inputs, Json, Seed, one_of, read_feeds, read_shapes
from linger.errors import refuse_if
from linger.files import write_atomically

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run(
    model: Annotated[Path, typer.Argument(help="An ONNX file: dialect, bare or standard.")],
    inputs: Inputs = None,
    out: Annotated[Path | None, typer.Option(help="Where to write: an .npz file for the outputs.")] = None,
    output: Annotated[Path | None, typer.Option("--output", hidden=True)] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Show everything, not only the outputs.")] = False,
    seed: Seed = 0,
    shape: Annotated[list[str] | None, typer.Option(help=HELP)] = None,
    as_json: Json = False,
) -> None:
    """Run a model in ONNX Runtime, and show or save what it computes.

    Exit code 1: the file cannot be run

    Examples:
        linger run digits.onnx --inputs images.npz --out scores.npz
        linger run digits.onnx --shape 1x1x8x8 --all
    """
    from linger.runtime.session import Session
    from linger.verification.array_files import npz_content
    from linger.verification.feeds import generated_feeds

    one_of("run", out=out, output=output)
    out = out or output
    session = Session(model)
    refuse_if(
        inputs is not None and shape, "run: inputs from a file have the sizes they have. Leave --shape or --inputs out."
    )
    shapes = read_shapes(shape, session)
    feeds = generated_feeds(session, seed, shapes) if inputs is None else read_feeds(inputs, session)
    names = [o.name for o in session.get_outputs()]
    results = session.intermediates(feeds) if every else dict(zip(names, session.run(None, feeds), strict=True))
    if out is not None:
        write_atomically(out, npz_content(results))
    if as_json:
        content = [{"name": name, **_facts(array)} for name, array in results.items()]
        say_result("run", {"model": model, "out": out, "tensors": content})
    else:
        rows = [(name, *_cells(array)) for name, array in results.items()]
        say_table(str(model), ("tensor", "type", "shape", "min", "max"), rows)


def _facts(array: NDArray[Any]) -> dict[str, Any]:
    """What JSON has of a tensor; no limits where it is empty, or where a number is no number."""
    limits = [float(array.min()), float(array.max())] if array.size and array.dtype.kind in "biuf" else [math.nan] * 2
    low, high = (limit if math.isfinite(limit) else None for limit in limits)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "min": low, "max": high}


def _cells(array: NDArray[Any]) -> tuple[str, ...]:
    limits = (f"{array.min():g}", f"{array.max():g}") if array.size else ("", "")
    return str(array.dtype), "×".join(map(str, array.shape)), *limits
