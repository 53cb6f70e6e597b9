# SPDX-License-Identifier: Apache-2.0
"""What a run of `linger quantize` is to do, and what it has made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linger.errors import UsageError
from linger.onnx.exporter.options import OPSET, ExportOptions, check_options, chosen_form
from linger.reporting.facts import Quality
from linger.reporting.page import Verdict
from linger.tuning.one_call.budget import read_budget
from linger.tuning.widths.goals import value_and_unit

if TYPE_CHECKING:
    from linger.c.proof import CProof
    from linger.checks.check_result import CheckResult
    from linger.checks.memory_use import MemoryUse
    from linger.verification.proof.result import Verification

NET, CONFIG, WEIGHTS, INPUTS = "net.onnx", "net.yaml", "net.weights.safetensors", "net.inputs.npz"
CERTIFICATE, CERTIFIED_INPUTS = "certificate.json", "certificate.inputs.npz"
PAGE, DATA = "report.html", "report.json"
FILES = (NET, CONFIG, WEIGHTS, INPUTS, CERTIFICATE, CERTIFIED_INPUTS, PAGE, DATA)
"""Everything that a run may write; a folder with anything else in it is never replaced."""

MIXED = "mixed"
_WIDTHS = re.compile(r"(?:w(4|8|16)a)?(8|16)")


@dataclass(frozen=True)
class QuantizeSettings:
    """What a run is to do.

    Attributes:
        bits: "8", "16", "mixed" (8, and 16 where it helps most), or widths of weights and activations as in "w4a8".
        target: The chip; None: none in particular.
        budget: What tuning may cost, as `linger.tune` takes it; None: CPU time by the size of the network.
        goal: What is enough, "99 %" of the float model's decisions or "30 dB". None: tuning goes on as long as it may, and enough is
            what the report does not call low.
        seed: Of everything random.
        form: The form of the file; None: the usual one.
        opset: The opset of the file; None: the usual one.
        batch: Samples of a batch.
        c: A folder to write the network to as C, proven on this machine; None: no C.
        force: Whether files of a former run may be replaced.
    """

    bits: str = "8"
    target: str | None = None
    budget: str | float | None = None
    goal: str | None = None
    seed: int = 0
    form: str | None = None
    opset: int | None = None
    batch: int = 32
    c: Path | None = None
    force: bool = False

    @property
    def widths(self) -> tuple[int, int] | None:
        """Bits of weights and of activations that every layer is to have; None where tuning chooses them."""
        found = _WIDTHS.fullmatch(self.bits)
        return None if found is None else (int(found[1] or found[2]), int(found[2]))

    def check(self) -> None:
        """Refuse what cannot be done, before any work.

        Raises:
            UsageError: Widths, a budget, a goal, a chip, a form or an opset that do not exist.
        """
        if self.bits != MIXED and self.widths is None:
            raise UsageError(
                f"bits {self.bits!r}: no such widths. Use 8, 16, mixed, or weights and activations as in w4a8 or w16a8."
            )
        if self.budget is not None:
            read_budget(self.budget)
        if self.goal is not None:
            value_and_unit("quantize", self.goal)
        form = chosen_form(self.form, self.target)  # refuses a chip that does not exist
        opset = OPSET if self.opset is None else self.opset
        check_options(ExportOptions(form=form, opset=opset, target=self.target), is_quantized=True)


@dataclass(frozen=True)
class Quantized:
    """What a run has made.

    Attributes:
        folder: Where its files are.
        files: Their names.
        name: How the run is called.
        quality: Figures of the quantised network, the most telling first, each with the data that it is about.
        proof: The comparison of every integer.
        check: What `linger check` found.
        memory: What the network needs.
        arena_bytes: Memory of the program in C; None where there is no such program.
        float_bytes: What the weights take in float.
        stayed_float: What does not run as integers, with the reason.
        c_proof: The comparison of the program in C; None where none was asked for.
        sha256: Digest of the ONNX file.
        notes: What a reader should know.
        decision: The verdict of the report; None before there is a report.
        is_repeated: Whether this is a former run again, whose file is the same bit for bit.
    """

    folder: Path
    files: tuple[str, ...]
    name: str
    quality: tuple[Quality, ...]
    proof: Verification
    check: CheckResult
    memory: MemoryUse
    arena_bytes: int | None
    float_bytes: int
    stayed_float: tuple[str, ...]
    c_proof: CProof | None
    sha256: str
    notes: tuple[str, ...] = ()
    decision: Verdict | None = None
    is_repeated: bool = False

    @property
    def ok(self) -> bool:
        """Whether every integer agrees, nothing was found that is wrong, and the quality is enough."""
        return self.decision is not None and self.decision.ok

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        return "" if self.decision is None else self.decision.sentence

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences behind it."""
        return () if self.decision is None else self.decision.reasons
