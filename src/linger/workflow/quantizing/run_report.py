# SPDX-License-Identifier: Apache-2.0
"""The report of a run of `linger quantize`: its page and its data, beside the file."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from torch import nn

from linger.errors import UsageError
from linger.files import write_atomically
from linger.reporting.facts import FindingFacts, Run, read_run
from linger.reporting.verdict import verdict_of
from linger.tuning.one_call.result import TuneResult
from linger.workflow.proofs import proof_of_certificate
from linger.workflow.quantizing.delivery import Work
from linger.workflow.quantizing.judging import is_goal_met
from linger.workflow.quantizing.quantized import CERTIFICATE, CONFIG, DATA, NET, PAGE, Quantized
from linger.workflow.quantizing.run_file import RunFile
from linger.workflow.report import Report, report

_C_DIFFERS = "c-differs"

_REPEAT = f"linger quantize --config {CONFIG} --out again"
"""The line that gives the same file again, in the folder of the run: the search itself may end elsewhere on another machine."""


def new_run(
    work: Work,
    made: Quantized,
    quantised: nn.Module,
    tuning: TuneResult | None = None,
) -> Run:
    """Everything that can be told of the file in the working folder.

    Args:
        work: The run on its way.
        made: What it has made so far.
        quantised: The model that the file was exported from.
        tuning: What was tried.
    """
    run = report(
        work.file,
        None,
        model=quantised,
        reference=None if tuning is None else work.model,
        data=[piece.arguments for piece in work.proven],
        tuning=tuning,
        verification=work.folder / CERTIFICATE,
        target=work.settings.target,
        name=work.name,
    ).runs[0]
    return replace(run, float_weight_bytes=made.float_bytes, notes=(*run.notes, *made.notes))


def former_run(work: Work, path: Path, made: Quantized) -> Run | None:
    """What a former run told of the same file, with today's proof; None where it told nothing, or something of another file."""
    try:
        run = read_run(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, UsageError):
        return None
    is_same = run.proof is not None and run.proof.digests.get(NET) == made.sha256
    return (
        replace(run, proof=proof_of_certificate(work.folder / CERTIFICATE, work.folder / NET, ())) if is_same else None
    )


def reported(work: Work, made: Quantized, run: Run) -> Quantized:
    """Write the page and its data into the working folder; the verdict of the report becomes that of the run."""
    text = (work.folder / CONFIG).read_text(encoding="utf-8")
    goal = work.settings.goal_text
    run = replace(
        run,
        name=work.name,
        quality=made.quality,
        cautions=tuple(work.cautions),
        findings=(*_about_c(made), *(finding for finding in run.findings if finding.rule != _C_DIFFERS)),
        command=_REPEAT if work.command else "",
        notes=_with_origin(run.notes, work.command),
        config=text,
        goal=goal,
        is_goal_met=is_goal_met(goal, made.quality),
    )
    page = Report((run,))
    write_atomically(work.folder / PAGE, page.to_html().encode())
    write_atomically(work.folder / DATA, page.to_json().encode())
    return replace(made, decision=verdict_of(run))


def _with_origin(notes: tuple[str, ...], command: str) -> tuple[str, ...]:
    """Notes that say, once, which command made the run."""
    note = f"Made by: {command}"
    return notes if not command or note in notes else (*notes, note)


def _about_c(made: Quantized) -> tuple[FindingFacts, ...]:
    """What forbids a program in C that computes something else."""
    if made.c_proof is None or made.c_proof.ok:
        return ()
    reason = f"{made.c_proof.differing:,} of {made.c_proof.elements:,} numbers of the program in C are not those of the file."
    return (
        FindingFacts("error", _C_DIFFERS, where="program in C", reason=reason, remedy="Use the file, and tell us."),
    )


def command_of(run: RunFile) -> str:
    """The line that made a run; empty where no command did."""
    words = ["linger", "quantize", run.model]
    for name, value in run.options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words) if run.model else ""
