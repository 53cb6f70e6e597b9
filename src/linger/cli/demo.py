# SPDX-License-Identifier: Apache-2.0
"""linger demo: from training to a proven file, on data that is installed with scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linger.cli import say, say_result, say_table
from linger.cli.arguments.options import Json, Overwrite
from linger.errors import VerificationError, counted
from linger.files import require_free_folder, write_folder

if TYPE_CHECKING:
    from linger.workflow.demo import Demonstration


def demo(
    out: Annotated[Path, typer.Option(help="Where to write: a folder.")] = Path("linger-demo"),
    *,
    epochs: Annotated[int, typer.Option(help="How often the training images are seen.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Seed of what is random, the training included.", min=0)] = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a small network on handwritten digits, quantize it, export it, and prove every integer of the file.

    Exit code 1: an integer differs, or the file has an error

    Examples:
        linger demo
        linger demo --out digits --epochs 20
    """
    is_own = _is_own if overwrite else None
    require_free_folder(out, is_own)  # wrong usage is said before the training
    import torch

    from linger.workflow.demo import demonstrate

    torch.set_num_threads(1)  # layers this small run no faster on two, and much slower where others use the machine
    results: list[Demonstration] = []
    write_folder(out, lambda folder: results.append(demonstrate(folder, epochs=epochs, seed=seed)), is_own=is_own)
    _show(out, results[0], as_json=as_json)
    if not results[0].ok:
        raise VerificationError(f"{out}: {results[0].proof.summary()} {_checked(results[0])}")


def _is_own(folder: Path) -> bool:
    """Whether a folder holds what a demonstration wrote, and nothing else."""
    from linger.workflow.demo import CERTIFICATE, FILE, PAGE

    return {FILE, CERTIFICATE} <= {path.name for path in folder.iterdir()} <= {FILE, CERTIFICATE, PAGE}


def _show(out: Path, result: Demonstration, *, as_json: bool) -> None:
    from linger.records.table import picked
    from linger.workflow.demo import FILE, PAGE

    files = sorted(path.name for path in out.iterdir())
    if as_json:
        content = {
            "ok": result.ok,
            "folder": str(out),
            "files": files,
            **picked(result, "float_accuracy integer_accuracy"),
            **picked(result.proof, "integers differing"),
            "findings": result.findings.counts(),
        }
        say_result("demo", content)
        return
    rows = [
        ("float network", f"{result.float_accuracy:.2f} %"),
        ("integers, in ONNX Runtime", f"{result.integer_accuracy:.2f} %"),
    ]
    say_table("handwritten digits, 540 test images", ("network", "accuracy"), rows)
    say(result.proof.summary())
    say(_checked(result))
    say(f"written: {', '.join(str(out / name) for name in files)}")
    say(f"next: open {out / PAGE}; linger inspect {out / FILE}; linger c {out / FILE} digits_c")


def _checked(result: Demonstration) -> str:
    counts = result.findings.counts()
    return f"linger check: {', '.join(counted(number, severity) for severity, number in counts.items())}."
