# SPDX-License-Identifier: Apache-2.0
"""linger demo: from training to a proven file, on data that is installed with scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linger.cli import console, say, say_result
from linger.cli.arguments.options import Json
from linger.errors import VerificationError, counted
from linger.files import require_free_folder, write_folder

if TYPE_CHECKING:
    from linger.workflow.demo import Demonstration


def demo(
    out: Annotated[Path, typer.Option(help="Where to write: a folder.")] = Path("linger-demo"),
    *,
    epochs: Annotated[int, typer.Option(help="How often the training images are seen.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Seed of what is random, the training included.", min=0)] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that this command wrote before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a small network on handwritten digits, quantize it, export it, and prove every integer of the file.

    Exit code 1: an integer differs, or the file has an error

    Examples:
        linger demo
        linger demo --out digits --epochs 20
    """
    require_free_folder(out, _is_own if overwrite else None)  # wrong usage is said before the training
    import torch

    from linger.workflow.demo import demonstrate

    torch.set_num_threads(1)  # layers this small run no faster on two, and much slower where others use the machine
    found: list[Demonstration] = []
    write_folder(
        out,
        lambda folder: found.append(demonstrate(folder, epochs=epochs, seed=seed)),
        is_own=_is_own if overwrite else None,
    )
    _show(out, found[0], as_json=as_json)
    if not found[0].ok:
        raise VerificationError(f"{out}: {found[0].proof.summary()} {_checked(found[0])}")


def _is_own(folder: Path) -> bool:
    """Whether a folder holds what a demonstration wrote, and nothing else."""
    from linger.workflow.demo import CERTIFICATE, FILE, PAGE

    return {FILE, CERTIFICATE} <= {path.name for path in folder.iterdir()} <= {FILE, CERTIFICATE, PAGE}


def _show(out: Path, found: Demonstration, *, as_json: bool) -> None:
    from linger.workflow.demo import FILE, PAGE

    files = sorted(path.name for path in out.iterdir())
    if as_json:
        say_result("demo", _content(out, found, files))
        return
    from linger.records.rich_table import table

    rows = [
        ("float network", f"{found.float_accuracy:.2f} %"),
        ("integers, in ONNX Runtime", f"{found.integer_accuracy:.2f} %"),
    ]
    console().print(table("handwritten digits, 540 test images", ("network", "accuracy"), rows))
    say(found.proof.summary())
    say(_checked(found))
    say(f"written: {', '.join(str(out / name) for name in files)}")
    say(f"next: open {out / PAGE}; linger inspect {out / FILE}; linger c {out / FILE} digits_c")


def _checked(found: Demonstration) -> str:
    counts = found.findings.counts()
    return f"linger check: {', '.join(counted(number, severity) for severity, number in counts.items())}."


def _content(out: Path, found: Demonstration, files: list[str]) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "folder": str(out),
        "files": files,
        "float_accuracy": found.float_accuracy,
        "integer_accuracy": found.integer_accuracy,
        "integers": found.proof.integers,
        "differing": found.proof.differing,
        "findings": found.findings.counts(),
    }
