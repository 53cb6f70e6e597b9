# SPDX-License-Identifier: Apache-2.0
"""linger vectors: what a device must compute, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linger.cli import say, say_result
from linger.cli.arguments.options import Batches, Force, Inputs, Json, Overwrite, Seed
from linger.errors import listing, refuse_if


def vectors(
    model: Annotated[Path, typer.Argument(help="A dialect, bare or standard ONNX file.")],
    inputs: Inputs = None,
    out: Annotated[Path | None, typer.Option(help="Where to write: a folder; without it <model>_vectors.")] = None,
    *,
    batches: Batches = 1,
    seed: Seed = 0,
    form: Annotated[
        str, typer.Option("--format", help="How it is written: npz, text, bin (raw, little endian) or all.")
    ] = "all",
    header: Annotated[bool, typer.Option("--header", help="Also write vectors.h with the small arrays.")] = False,
    header_limit: Annotated[int | None, typer.Option(help="How many numbers a small array has.", min=1)] = None,
    overwrite: Overwrite = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write inputs, every intermediate integer and outputs for those who bring up a device.

    Exit code 1: the file cannot be run

    Examples:
        linger vectors digits.onnx --out vectors --format bin
        linger vectors digits.onnx --inputs images.npz --header
    """
    from linger.verification.devices.vectors import FORMATS, HEADER_LIMIT, write_vectors

    refuse_if(form not in (*FORMATS, "all"), f"--format {form}: choose among {listing(FORMATS)} and all.")
    written = write_vectors(
        model,
        model.parent / f"{model.stem}_vectors" if out is None else out,
        inputs,
        batches=batches,
        seed=seed,
        formats=FORMATS if form == "all" else form,
        header_limit=(header_limit or HEADER_LIMIT) if header else None,
        force=overwrite or force,
    )
    if as_json:
        say_result("vectors", vars(written))
    else:
        say(written.summary())
