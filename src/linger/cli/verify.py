# SPDX-License-Identifier: Apache-2.0
"""linger verify: a file against recordings, compiled C, itself, or a certificate, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linger.cli import console, say, say_result
from linger.cli.arguments.options import HELP, Batches, Inputs, Json, Machine, Seed, named_options, read_shapes
from linger.errors import UsageError, VerificationError, refuse_if

if TYPE_CHECKING:
    from linger.c.program import Program
    from linger.verification.proof.result import Verification


def verify(
    model: Annotated[
        Path | None, typer.Argument(help="An ONNX file; with --certificate it may be the one beside that.")
    ] = None,
    inputs: Inputs = None,
    recordings: Annotated[
        Path | None, typer.Option(help="What a model computed: an .npz file, or a folder with one per batch.")
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(help="Optimization level of ONNX Runtime: disable, basic, extended, all. May be repeated."),
    ] = None,
    batches: Batches = 4,
    seed: Seed = 0,
    certificate: Annotated[Path | None, typer.Option(help="A certificate of the file: it is checked again.")] = None,
    write_certificate: Annotated[Path | None, typer.Option(help="Write a certificate of the result.")] = None,
    c: Annotated[
        Path | None,
        typer.Option(
            "--c", help="The network as C: a folder that linger c has written, built and held against the file."
        ),
    ] = None,
    target: Machine = None,
    *,
    shape: Annotated[list[str] | None, typer.Option(help=HELP)] = None,
    every: Annotated[bool, typer.Option("--all", help="Show everything, not only the tensors that differ.")] = False,
    as_json: Json = False,
) -> None:
    """Compare every integer that ONNX Runtime computes with the numpy reference, with recordings, and with compiled C.

    Exit code 1: an integer differs, or the certificate does not hold

    Examples:
        linger verify digits.onnx --recordings recorded/ --write-certificate digits.json
        linger verify digits.onnx --c digits_c --target cortex-m4
        linger verify --certificate digits.json
    """
    from linger.proof import verify as prove
    from linger.verification.feeds import OWN_TRIALS
    from linger.verification.proof.recheck import check_certificate

    if certificate is not None:
        named = named_options(inputs=inputs, recordings=recordings, write_certificate=write_certificate)
        refuse_if(named, f"verify: a certificate says itself what to run. Leave {', '.join(named)} out.")
        result = check_certificate(certificate, model, levels=level or None, witness=_built(c, target))
        _show(result, f"{certificate} holds. {result.summary()}", every=every, as_json=as_json)
        return
    if model is None:
        raise UsageError(
            "verify: Missing argument: the ONNX file, or --certificate with a certificate that lies beside its file."
        )
    given = named_options(
        recordings=recordings, inputs=inputs, write_certificate=write_certificate, shape=shape or None
    )
    result = prove(
        recordings,
        model,
        _made_up(model, shape, range(seed, seed + batches), recordings, inputs) if shape else inputs,
        levels=level or ("all",),
        batches=batches,
        seed=seed,
        certificate=write_certificate,
        sizes=0 if given else OWN_TRIALS,
        witness=_built(c, target),
    )
    _show(result, f"{model}: {result.summary()}", every=every, as_json=as_json)
    if not result.ok:
        raise VerificationError(f"{model}: {result.summary()}")


def _built(folder: Path | None, target: str | None) -> Program | None:
    """The folder's program, compiled."""
    if folder is None:
        refuse_if(
            target is not None, "verify: --target says what a folder of C is built for. Give the folder with --c."
        )
        return None
    from linger.c.program import build

    return build(folder, target=target)


def _made_up(
    model: Path, shape: list[str], seeds: Iterable[int], recordings: Path | None, inputs: Path | None
) -> list[Any]:
    """Random inputs of the sizes asked for."""
    from linger.runtime.session import Session
    from linger.verification.feeds import generated_feeds

    refuse_if(
        recordings is not None or inputs is not None,
        "verify: inputs from a file have the sizes they have. Leave --shape or the files out.",
    )
    session = Session(model, as_written=True)
    shapes = read_shapes(shape, session)
    return [generated_feeds(session, seed, shapes) for seed in seeds]


def _show(result: Verification, title: str, *, every: bool, as_json: bool) -> None:
    """Show the tensors (all, or those that differ), or only the summary. A failure is reported by the error that follows."""
    from linger.records.table import picked, to_rich
    from linger.verification.proof.result import COLUMNS

    if as_json:
        facts = "ok summary levels batches integers differing output_differences float_error missing sizes"
        content = {
            **picked(result, facts, "impossible_sizes flips"),
            "narrow": [row.name for row in result.narrow],
            "tensors": _dicts(result.rows),
            "outputs": _dicts(result.outputs),
            "witnesses": _dicts(result.witnesses),
            "not_asked": result.not_asked,
        }
        say_result("verify", content)
        return
    rows = result.rows if every else [row for row in result.rows if row.differing]
    if rows:
        console().print(to_rich(title if result.ok else "", COLUMNS, rows))
    elif result.ok:
        say(title)


def _dicts(rows: Iterable[Any]) -> list[dict[str, Any]]:
    return [row.as_dict() for row in rows]
