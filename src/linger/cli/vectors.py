# SPDX-License-Identifier: Apache-2.0
"""linger vectors: what a device must compute, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linger.cli.terminal import say
from linger.errors import UsageError, listing


def vectors(
    model: Annotated[Path, typer.Argument(help="A dialect, bare or standard ONNX file.")],
    inputs: Annotated[Path | None, typer.Option(help="An .npz file with the inputs; random ones without it.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write; without it <model>_vectors.")] = None,
    *,
    batches: Annotated[int, typer.Option(help="How many random batches.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.", min=0)] = 0,
    form: Annotated[str, typer.Option("--format", help="npz, text, bin (raw, little endian) or all.")] = "all",
    header: Annotated[bool, typer.Option("--header", help="Also write vectors.h with the small arrays.")] = False,
    header_limit: Annotated[int | None, typer.Option(help="How many numbers a small array has.", min=1)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder of vectors.")] = False,
) -> None:
    """Write inputs, every intermediate integer and outputs for those who bring up a device."""
    from linger.verification.devices.vector_files import FORMATS
    from linger.verification.devices.vectors import HEADER_LIMIT, write_vectors

    if form not in (*FORMATS, "all"):
        raise UsageError(f"--format {form}: choose among {listing(FORMATS)} and all.")
    written = write_vectors(
        model,
        model.parent / f"{model.stem}_vectors" if out is None else out,
        inputs,
        batches=batches,
        seed=seed,
        formats=FORMATS if form == "all" else form,
        header_limit=(header_limit or HEADER_LIMIT) if header else None,
        force=force,
    )
    say(written.summary())
