# SPDX-License-Identifier: Apache-2.0
"""linger report: one HTML page that says whether a network can go to the chip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linger.cli import say, say_json
from linger.cli.arguments.options import Chip, Json, named_options
from linger.errors import UsageError, listing, printable, refuse_if

_PAGE = Path("report.html")


def report(
    files: Annotated[
        list[Path],
        typer.Argument(help="ONNX files, or .json files of earlier reports; several are shown side by side."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write: the page; report.html without --out, and none with --json alone."),
    ] = None,
    target: Chip = None,
    inputs: Annotated[
        Path | None,
        typer.Option(help="The inputs to run on: an .npz or .npy file for one ONNX file; random ones without it."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="A certificate of the file: it is not verified again.")
    ] = None,
    data_json: Annotated[
        Path | None,
        typer.Option(help="Write the data of the page into this .json file, to show it beside others later."),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Make a page that says whether networks can go to the chip: proof, quality, cost, layers, memory, findings.

    Exit code 1: a network is not ready: integers differ, or something forbids the chip

    Examples:
        linger report net.onnx --target venus
        linger report before.json after.onnx --out compare.html
    """
    from linger.files import write_together
    from linger.reporting.verdict import NOT_READY
    from linger.workflow.report import page_place
    from linger.workflow.report import report as make_report

    refuse_if(
        data_json is not None and data_json.suffix != ".json",
        f"{data_json}: the data are JSON. Give --data-json a name that ends in .json.",
    )
    given = named_options(inputs=inputs, certificate=certificate)
    refuse_if(
        given and (len(files) > 1 or files[0].suffix == ".json"),
        f"report: {listing(given)} is about one ONNX file. Make the data of each file first (--data-json), and give these.",
    )
    page = page_place(_PAGE if out is None else out) if out is not None or not as_json else None
    if data_json is not None and not data_json.parent.is_dir():
        raise UsageError(f"{data_json}: there is no folder {data_json.parent}. Make it first.")
    result = make_report(
        files[0] if len(files) == 1 else list(files), None, data=inputs, verification=certificate, target=target
    )
    contents = {page: result.to_html, data_json: result.to_json}
    write_together({place: make().encode() for place, make in contents.items() if place is not None})
    if as_json:
        say_json(result.to_json())
    else:
        say(result.summary())
        for what, path in (("page", page), ("data", data_json)):
            if path is not None:
                say(printable(f"The {what}: {path}"))
    if result.verdict.level == NOT_READY:
        raise typer.Exit(1)
