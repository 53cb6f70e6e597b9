# SPDX-License-Identifier: Apache-2.0
"""linger compare: two files, or a file and the dumps of a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linger.cli import console, say, say_result
from linger.cli.arguments.options import Batches, Json, Seed


def compare(
    a: Annotated[Path, typer.Argument(help="An ONNX file.")],
    b: Annotated[Path, typer.Argument(help="Another one; or a folder of dumps, an .npz, .npy or text file.")],
    inputs: Annotated[
        Path | None,
        typer.Option(help="The inputs to run on: an .npz file; those of the dumps, or random ones, without it."),
    ] = None,
    *,
    batches: Batches = 1,
    seed: Seed = 0,
    engine: Annotated[str, typer.Option(help="What runs the files: onnxruntime or numpy.")] = "onnxruntime",
    float_tolerance: Annotated[
        float | None,
        typer.Option(
            help="How far floats without a scale may lie apart, as a part of the largest one; "
            "0 for two files and 0.001 for dumps without it.",
            min=0,
        ),
    ] = None,
    allow_unknown: Annotated[
        bool,
        typer.Option("--allow-unknown", help="List dumps that mean no tensor of the file instead of refusing them."),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw an image: a .png or .svg file with the differences along the graph.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show everything, not only the first tensors that differ.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two files, or a file and the dumps of a device, tensor by tensor, in LSB.

    Exit code 1: a tensor differs or is missing

    Examples:
        linger compare digits.onnx dumps/ --plot differences.svg
        linger compare old.onnx new.onnx --batches 4 --all
    """
    from linger.reporting.plots import require_image
    from linger.reporting.printed import comparison_table, draw_comparison, unmatched_table
    from linger.verification.devices.compare import compare as compare_tensors

    if plot is not None:
        require_image(plot)
    result = compare_tensors(
        a,
        b,
        inputs,
        batches=batches,
        seed=seed,
        engine=engine,
        float_tolerance=float_tolerance,
        allow_unknown=allow_unknown,
    )
    if plot is not None:
        draw_comparison(result, plot)
    if as_json:
        say_result("compare", result.as_dict())
    else:
        if result.rows:
            console().print(comparison_table(result, is_whole=every))
        unmatched = unmatched_table(result, is_whole=every)
        if unmatched is not None:
            console().print(unmatched)
        say(result.summary())
    if not result.ok:
        raise typer.Exit(1)
