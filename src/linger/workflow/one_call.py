# SPDX-License-Identifier: Apache-2.0
"""linger.quantize: the job of the command in Python. Nothing is written until it is asked for."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from torch import nn

from linger.analysis.batches import Batch, evaluating
from linger.errors import UsageError, no_module
from linger.files import write_atomically
from linger.proof import verify
from linger.quantization.setup.initialize import refuse_unquantizable
from linger.reporting.facts import Quality, read_run
from linger.reporting.verdict import Verdict
from linger.verification.proof.result import Verification
from linger.workflow import quantize as job
from linger.workflow.quantized import CERTIFICATE, CERTIFIED_INPUTS, DATA, NET, Quantized, QuantizeSettings
from linger.workflow.report import Place, Report, report
from linger.workflow.samples import Samples, checked_arguments, of_user

if TYPE_CHECKING:
    from linger.c.proof import CProof

_BATCH = 32


@dataclass(frozen=True, repr=False)
class QuantizeResult:
    """A quantized model with its proof and its verdict; its methods write what is asked for.

    Attributes:
        model: The quantized model, in evaluation mode.
        reference: The float model that was given.
        made: Everything that the job found out: the proof, what a chip says, memory, notes.
        files: What the command would have written, by name.
        inputs: The batches that were verified.
    """

    model: nn.Module
    reference: nn.Module
    made: Quantized
    files: Mapping[str, bytes] = field(repr=False)
    inputs: tuple[Batch, ...] = field(repr=False)

    @property
    def verdict(self) -> Verdict:
        """Whether it is exact, good enough, and fits."""
        assert self.made.decision is not None  # the job ends with a report
        return self.made.decision

    @property
    def ok(self) -> bool:
        """Whether every integer agrees, nothing forbids the network, and the quality is enough."""
        return self.made.ok

    @property
    def quality(self) -> tuple[Quality, ...]:
        """The figures of quality, the most telling first, each with the data that it is about."""
        return self.made.quality

    def summary(self) -> str:
        """The verdict, a line for each of its parts, and the notes."""
        notes = (f"Note: {note}" for note in self.made.notes)
        return "\n".join([self.verdict.sentence, *(f"  {line}" for line in self.verdict.lines()), *notes])

    def export(self, path: Place) -> Path:
        """Write the ONNX file that was proven."""
        write_atomically(Path(path), self.files[NET])
        return Path(path)

    def verify(self, inputs: object = None) -> Verification:
        """Prove the file again: every integer of the model on these inputs, or on those of the first proof."""
        file = onnx.load_model_from_string(self.files[NET])
        return verify(self.model, file, list(self.inputs) if inputs is None else inputs)

    def report(self, path: Place | None = "report.html") -> Report:
        """Write the page with the verdict and the reasons; None writes none."""
        return report(read_run(self.files[DATA].decode(), DATA), path)

    def c(self, folder: Place, *, name: str | None = None, cut: bool = False, overwrite: bool = False) -> CProof:
        """Write the network as C into a folder, compile it here, and compare every tensor with the file.

        Args:
            folder: The folder.
            name: How the network is called in C.
            cut: Leave float ops outside, and write the integer part.
            overwrite: Replace a folder that was exported before.

        Raises:
            UnsupportedError: The file has ops that cannot be written as C, without `cut` or in its midst.
        """
        from linger.c.exporter import export as export_c
        from linger.c.program import build
        from linger.c.proof import prove

        with tempfile.TemporaryDirectory(prefix="linger.") as temporary:
            place = Path(temporary)
            for file in (NET, CERTIFICATE, CERTIFIED_INPUTS):
                if file in self.files:
                    write_atomically(place / file, self.files[file])
            as_c = partial(export_c, name=name or self.made.name, certificate=place / CERTIFICATE)
            with build(as_c(place / NET, folder, overwrite=overwrite, cut=cut)) as program:
                return prove(program, place / NET)

    def __repr__(self) -> str:
        return f"QuantizeResult({self.verdict.sentence})"

    def __str__(self) -> str:
        return self.summary()


def quantize(
    model: nn.Module,
    data: object,
    *,
    bits: int | str = 8,
    target: str | None = None,
    budget: str | float | None = None,
    goal: str | float | None = None,
    metric: Callable[[nn.Module], float] | None = None,
    test_data: object = None,
    seed: int = 0,
    form: str | None = None,
    opset: int | None = None,
    batch: int = _BATCH,
    limit: int | None = None,
    name: str = "net",
    input_range: tuple[float, float] | None = None,
    per_channel: bool | None = None,
    unsigned: bool | None = None,
) -> QuantizeResult:
    """Quantize a float model, prove the file bit for bit, and judge it: what `linger quantize` does, without its folder.

    One sample in five, the same for every run, is held out from tuning, and the figures of quality are about these, unless test
    data are given. The same data and the same seed give the same file as the command.

    Args:
        model: The float model; it is not changed.
        data: Typical inputs in any form of the page "Inputs", or a torch Dataset. Labels beside them give the accuracy.
        bits: 8, 16, "mixed" (8, and 16 where it helps most), or widths of weights and activations as in "w4a8".
        target: The chip; None: none in particular.
        budget: What tuning may cost, "5 min" or "20 trials"; None: CPU time by the size of the network.
        goal: What is enough: "99 %" of the float model's decisions, "30 dB" at every output, or a value of the metric; the search ends
            there.
        metric: A figure of your own to tune and judge by, `metric(model) -> float`, the larger the better.
        test_data: Data to judge by, in the same forms; then tuning may see all of `data`.
        seed: Of everything random.
        form: The form of the file: "dialect", "bare", "standard" or "qdq"; None: what the chip takes.
        opset: The opset of the file; None: 12.
        batch: Samples of a batch.
        limit: Use so many samples at most, evenly from all.
        name: How the network is called.
        input_range: The lowest and the highest number that an input may have, such as (0, 1); None: what the data show.
        per_channel: Whether weights have one scale for each output channel; None: where the target has it.
        unsigned: Whether activations that are never negative use 0 … 255; None: where the target has it.

    Returns:
        The model and the verdict; `export`, `verify`, `report` and `c` go on from there.

    Raises:
        UsageError: Something was given that cannot be used.
        UnsupportedError: The model cannot be exported; this is told before tuning.
    """
    if not isinstance(model, nn.Module):
        raise no_module("quantize", model)
    refuse_unquantizable(model)
    settings = QuantizeSettings(bits, target, budget, goal, metric, seed, form, opset, batch)
    settings = replace(settings, input_range=input_range, per_channel=per_channel, unsigned=unsigned)
    settings.check()
    with evaluating(model), tempfile.TemporaryDirectory(prefix="linger.") as folder:
        samples = _samples(data, model, "data", batch, limit)
        test = None if test_data is None else _samples(test_data, model, "test_data", batch, limit)
        made = job.quantize(model, samples, Path(folder) / "run", settings, test=test, name=name)
        files = {file: (made.folder / file).read_bytes() for file in made.files}
    assert made.model is not None  # a new run has one
    return QuantizeResult(made.model, model, made, files, made.inputs)


def _samples(data: object, model: nn.Module, what: str, batch: int, limit: int | None) -> Samples:
    if isinstance(data, (str, bytes, os.PathLike)):
        raise UsageError(
            f"quantize: {what} is a path. Load the arrays (np.load), or use the command: linger quantize --data."
        )
    samples = of_user(data, model, what, batch=batch, limit=limit)
    checked_arguments(samples, what)
    return samples
