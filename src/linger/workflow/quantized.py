# SPDX-License-Identifier: Apache-2.0
"""What a run of `linger quantize` is to do, and what it has made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from linger.errors import UsageError, refuse_together
from linger.files import require_free_folder
from linger.notation import Widths, read_allowance, read_bits, value_and_unit
from linger.onnx.exporter import FORMS, PACKED_FORMS, check_form, check_opset, check_packed
from linger.reporting.facts import GAP, Quality
from linger.reporting.verdict import Verdict
from linger.targets import refuse_numbers

if TYPE_CHECKING:
    from torch import nn

    from linger.analysis.batches import Batch
    from linger.c.exported_folder import Cut
    from linger.c.proof import CProof
    from linger.checks.check import CheckResult
    from linger.checks.memory_use import MemoryUse
    from linger.verification.proof.result import Verification

NET, CONFIG, WEIGHTS, INPUTS = "net.onnx", "net.yaml", "net.weights.safetensors", "net.inputs.npz"
CERTIFICATE, CERTIFIED_INPUTS = "certificate.json", "certificate.inputs.npz"
PAGE, DATA = "report.html", "report.json"
FILES = (NET, CONFIG, WEIGHTS, INPUTS, CERTIFICATE, CERTIFIED_INPUTS, PAGE, DATA)
"""Everything that a run may write; a folder with anything else in it is never replaced."""


@dataclass(frozen=True)
class QuantizeSettings:
    """What a run is to do.

    Attributes:
        bits: 8, 16, "mixed" (8, and 16 where it helps most), or widths of weights and activations as in "w4a8".
        budget: What tuning may cost, as `linger.tune` takes it; None: CPU time by the size of the network.
        goal: What is enough, "99 %" of the float model's decisions, "30 dB" at every output, or a value of the metric. None: tuning goes
            on as long as it may, and enough is what the report does not call low.
        metric: A figure of the user's own, `metric(model) -> float`, the larger the better: tuning and the verdict go by it.
    """

    bits: int | str | Widths = "8"
    target: str | None = None  # the chip; None: none in particular
    budget: str | float | None = None
    goal: str | float | None = None
    metric: Callable[[nn.Module], float] | None = None
    seed: int = 0  # of everything random
    form: str | None = None  # the form of the file; None: the usual one
    opset: int | None = None  # the opset of the file; None: the usual one
    batch: int = 32  # samples of a batch
    input_range: tuple[float, float] | None = None  # what a number of an input may be; None: what the data show
    per_channel: bool | None = None  # a scale of the weights for each output channel; None: where the target has it
    unsigned: bool | None = None  # 0 … 255 for activations that are never negative; None: where the target has it
    c: Path | None = None  # a folder to write the network to as C, proven on this machine; None: no C
    cut: bool = False  # whether the program in C leaves float ops outside, where there are some
    force: bool = False  # whether files of a former run may be replaced

    @property
    def widths(self) -> Widths:
        """Bits of weights and of activations."""
        return read_bits(self.bits, "quantize")

    @property
    def numbers(self) -> dict[str, bool | None]:
        """What the integers may be, as `linger.init` takes it."""
        return {"per_channel": self.per_channel, "unsigned": self.unsigned}

    @property
    def goal_text(self) -> str:
        """The goal as it is written: a number is a value of the metric, or decibels; empty without a goal."""
        if self.goal is None or isinstance(self.goal, str):
            return self.goal or ""
        return f"{self.goal:g}{'' if self.metric is not None else ' dB'}"

    def check(self) -> None:
        """Refuse what cannot be done, before any work: widths, a budget, a goal, a chip, a form, an opset; all of them are named."""
        refuse_together(self.checks())

    def _check_c(self) -> None:
        if self.cut and self.c is None:
            raise UsageError("quantize: cut is about the program in C, and none is asked for. Give --c and a folder.")
        if self.c is not None and self.form in set(FORMS) - set(PACKED_FORMS):
            raise UsageError(
                f"quantize: the program in C is written from quantized ops, which files of the form {self.form!r} do not have. "
                "Leave out --form, or --c."
            )

    def checks(self, *, has_metric: bool = False) -> list[Callable[[], object]]:
        """What `check` does, one call for each setting; `has_metric` where one is going to be read."""
        has_metric = has_metric or self.metric is not None
        optional: list[tuple[object, Callable[[], object]]] = [
            (self.budget, partial(read_allowance, self.budget, "quantize")),
            (self.goal, partial(value_and_unit, "quantize", self.goal, has_metric=has_metric)),
            (self.opset, partial(check_opset, self.opset or 0)),
            (self.form, partial(check_form, self.form or "")),
            (self.target, partial(refuse_numbers, "quantize", self.target, **self.numbers)),
            (self.target, partial(check_packed, self.form, self.target or "")),
        ]
        given = [check for value, check in optional if value is not None]
        return [partial(read_bits, self.bits, "quantize"), self._check_c, *given]


@dataclass(frozen=True)
class Quantized:
    """What a run has made."""

    folder: Path  # where its files are
    files: tuple[str, ...]  # their names
    name: str  # how the run is called
    quality: tuple[Quality, ...]  # figures, the most telling first, each with the data that it is about
    proof: Verification  # the comparison of every integer
    check: CheckResult  # what `linger check` found
    memory: MemoryUse  # what the network needs
    arena_bytes: int | None  # memory of the program in C; None where there is no such program
    float_bytes: int  # what the weights take in float
    stayed_float: tuple[str, ...]  # what does not run as integers, with the reason
    c_proof: CProof | None  # the comparison of the program in C; None where none was asked for, or none could be made
    sha256: str  # digest of the ONNX file
    c_missing: str = ""  # why a program in C that was asked for is missing or not proven, and what to do
    c_cut: Cut | None = None  # which part of the file that program is; None: all of it
    notes: tuple[str, ...] = ()  # what a reader should know
    offer: str = ""  # what a few tensors at 16 bits would give and cost where 8 bits are not enough
    decision: Verdict | None = None  # the verdict of the report; None before there is a report
    is_repeated: bool = False  # whether this is a former run again, whose file is the same bit for bit
    model: nn.Module | None = field(default=None, repr=False)  # the quantized model of a new run
    inputs: tuple[Batch, ...] = field(default=(), repr=False)  # the batches that were verified

    @property
    def ok(self) -> bool:
        """Whether every integer agrees, nothing was found that is wrong, the quality is enough, and nothing is missing."""
        return self.decision is not None and self.decision.ok and not self.c_missing

    @property
    def has_gap(self) -> bool:
        """Whether tuning gains less on data by which nothing was chosen, by more than chance."""
        return self.decision is not None and any(text.startswith(GAP) for text in self.decision.cautions)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        return "" if self.decision is None else self.decision.sentence

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences behind it."""
        return () if self.decision is None else self.decision.reasons


def require_free(out: Path, settings: QuantizeSettings) -> None:
    """Refuse folders that could not be written at the end, before the work: those not to be replaced, or not linger's."""
    if not settings.force and is_former_run(out):
        raise UsageError(
            f"{out}: a former run wrote this folder. Replace it with --overwrite, or choose another --out."
        )
    require_free_folder(out, is_former_run if settings.force else None)
    if settings.c is not None:
        if settings.c.resolve() == out.resolve() or out.resolve() in settings.c.resolve().parents:
            raise UsageError(f"{settings.c}: C goes into a folder of its own. Give one outside of {out}.")
        require_free_folder(settings.c, _is_exported if settings.force else None)


def _is_exported(folder: Path) -> bool:
    from linger.c.exporter import is_exported  # onnx takes its time: only where such a folder is in the way

    return is_exported(folder)


def is_former_run(folder: Path) -> bool:
    """Whether a folder holds what a run wrote, and nothing else."""
    return folder.is_dir() and (folder / CONFIG).is_file() and all(f.name in FILES for f in folder.iterdir())
