# SPDX-License-Identifier: Apache-2.0
"""What a run of `linger quantize` is to do, and what it has made.

The file that repeats a run of `linger quantize`: how the model is quantised, how it was called, digests of its neighbours.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import safetensors.torch
from torch import Tensor, nn

from linger.errors import UsageError, listing, refuse_together
from linger.files import require_free_folder
from linger.notation import Widths, read_allowance, read_bits, value_and_unit
from linger.onnx.exporter.forms import FORMS, PACKED_FORMS, check_form, check_opset, check_packed
from linger.quantization.setup.config import config_of
from linger.quantization.setup.config_file import as_text
from linger.quantization.setup.config_reader import read_config
from linger.records.reading import Is, read_with_problems
from linger.reporting.facts import Quality
from linger.reporting.verdict import Verdict
from linger.verification.array_files import read_arrays

if TYPE_CHECKING:
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
        target: The chip; None: none in particular.
        budget: What tuning may cost, as `linger.tune` takes it; None: CPU time by the size of the network.
        goal: What is enough, "99 %" of the float model's decisions, "30 dB" at every output, or a value of the metric. None: tuning goes
            on as long as it may, and enough is what the report does not call low.
        metric: A figure of the user's own, `metric(model) -> float`, the larger the better: tuning and the verdict go by it.
        seed: Of everything random.
        form: The form of the file; None: the usual one.
        opset: The opset of the file; None: the usual one.
        batch: Samples of a batch.
        c: A folder to write the network to as C, proven on this machine; None: no C.
        cut: Whether the program in C leaves float ops outside, where there are some.
        force: Whether files of a former run may be replaced.
    """

    bits: int | str | Widths = "8"
    target: str | None = None
    budget: str | float | None = None
    goal: str | float | None = None
    metric: Callable[[nn.Module], float] | None = None
    seed: int = 0
    form: str | None = None
    opset: int | None = None
    batch: int = 32
    c: Path | None = None
    cut: bool = False
    force: bool = False

    @property
    def widths(self) -> Widths:
        """Bits of weights and of activations ."""
        return read_bits(self.bits, "quantize")

    @property
    def goal_text(self) -> str:
        """The goal as it is written: a number is a value of the metric, or decibels; empty without a goal."""
        if self.goal is None or isinstance(self.goal, str):
            return self.goal or ""
        return f"{self.goal:g}{'' if self.metric is not None else ' dB'}"

    def check(self) -> None:
        """Refuse what cannot be done, before any work.

        Raises:
            UsageError: Widths, a budget, a goal, a chip, a form or an opset that do not exist; all of them are named.
        """
        refuse_together(self.checks())

    def _check_cut(self) -> None:
        if self.cut and self.c is None:
            raise UsageError("quantize: cut is about the program in C, and none is asked for. Give --c and a folder.")

    def _check_c(self) -> None:
        if self.c is not None and self.form in set(FORMS) - set(PACKED_FORMS):
            raise UsageError(
                f"quantize: the program in C is written from quantised ops, which files of the form {self.form!r} do not have. "
                "Leave out --form, or --c."
            )

    def checks(self, *, has_metric: bool = False) -> list[Callable[[], object]]:
        """What `check` does, one call for each setting; `has_metric` where one is going to be read."""
        has_metric = has_metric or self.metric is not None
        checks: list[Callable[[], object]] = [partial(read_bits, self.bits, "quantize"), self._check_cut, self._check_c]
        if self.budget is not None:
            checks.append(partial(read_allowance, self.budget, "quantize"))
        if self.goal is not None:
            checks.append(partial(value_and_unit, "quantize", self.goal, has_metric=has_metric))
        if self.opset is not None:
            checks.append(partial(check_opset, self.opset))
        if self.form is not None:
            checks.append(partial(check_form, self.form))
        if self.target is not None:
            checks.append(partial(check_packed, self.form, self.target))
        return checks


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
        c_proof: The comparison of the program in C; None where none was asked for, or none could be made.
        c_missing: Why a program in C that was asked for is missing or not proven, and what to do; empty where it is there.
        c_cut: Which part of the file that program is; None: all of it.
        sha256: Digest of the ONNX file.
        notes: What a reader should know.
        decision: The verdict of the report; None before there is a report.
        is_repeated: Whether this is a former run again, whose file is the same bit for bit.
        model: The quantised model of a new run.
        inputs: The batches that were verified.
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
    c_missing: str = ""
    c_cut: Cut | None = None
    notes: tuple[str, ...] = ()
    decision: Verdict | None = None
    is_repeated: bool = False
    model: nn.Module | None = field(default=None, repr=False)
    inputs: tuple[Batch, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether every integer agrees, nothing was found that is wrong, the quality is enough, and nothing is missing."""
        return self.decision is not None and self.decision.ok and not self.c_missing

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        return "" if self.decision is None else self.decision.sentence

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences behind it."""
        return () if self.decision is None else self.decision.reasons


def require_free(out: Path, settings: QuantizeSettings) -> None:
    """Refuse folders that could not be written at the end, before the work.

    Raises:
        UsageError: One exists and is not to be replaced, or holds what linger did not write.
    """
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


_NEEDED = ("weights", "inputs", "input_names", "output_names", "onnx_sha256", "quality")
_HOW = "Give the net.yaml of a folder that linger quantize wrote, with the files beside it"

Option = Annotated[Any, Is(lambda value: isinstance(value, (str, int)), "an option")]


@dataclass(frozen=True)
class RunFile:
    """What a run was told, and what it wrote.

    Attributes:
        model: The float model as it was named; empty where it was given in Python.
        options: Options of the command that were given, by their names.
        weights, inputs: The files with the tuned weights, and with the inputs that were verified.
        weights_sha256, inputs_sha256, onnx_sha256: Digests of those files, and of the ONNX file.
        input_names, output_names: Of the ONNX file.
        by_name: The last of the inputs, which the model takes by name.
        axes: Sizes that the file leaves open, by input or output and axis.
        has_rows: Whether the inputs are samples along the first axis, the first of which is the example of the export.
        form: The form of the file; None: the usual one.
        opset: The opset; None: the usual one.
        linger: The version that wrote it.
        goal: What the quality must reach; empty: nobody said so.
        metric: What the user's own figure is called; empty: there is none.
        quality: The figures of the run.
        cautions: What makes them doubtful.
    """

    model: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)
    weights: str = ""
    weights_sha256: str = ""
    inputs: str = ""
    inputs_sha256: str = ""
    onnx_sha256: str = ""
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    has_rows: bool = True
    form: str | None = None
    opset: int | None = None
    linger: str = ""
    goal: str = ""
    metric: str = ""
    quality: tuple[Quality, ...] = ()
    cautions: tuple[str, ...] = ()


def config_text(model: nn.Module, run: RunFile, name: str) -> str:
    """The file of a quantised model: what `linger.save_config` writes, and the run."""
    content = {
        key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(run).items()
    }
    said = {key: value for key, value in content.items() if value not in (None, "", {}, [])}
    return as_text(replace(config_of(model), run=said), name)


def read_run_file(path: Path) -> RunFile:
    """The run that a file tells, after its neighbours have been compared with their digests.

    Raises:
        UsageError: It is no such file, says what is not known, or a file beside it is missing or has changed.
    """
    said = dict(read_config(path).run)
    if not said:
        raise UsageError(f"{path}: it does not say which run wrote it. {_HOW}.")
    wrong, run = read_with_problems(RunFile, said, place="run")
    wrong += [f"run.{key} is missing" for key in _NEEDED if not said.get(key)]
    wrong += [] if run is None else _disagreements(run)
    if wrong or run is None:
        raise UsageError(f"{path}: {'; '.join(wrong)}. {_HOW}.")
    changed = [
        problem
        for name, digest in ((run.weights, run.weights_sha256), (run.inputs, run.inputs_sha256))
        if (problem := _problem(path.parent, name, digest))
    ]
    if changed:
        raise UsageError(f"{path}: {listing(changed)}. {_HOW}.")
    absent = sorted({*run.input_names, *run.by_name} - set(read_arrays(path.parent / run.inputs)))
    if absent:
        raise UsageError(f"{path}: {run.inputs} holds no input {listing(absent)}. {_HOW}.")
    return run


def _disagreements(run: RunFile) -> list[str]:
    """Entries that do not fit each other."""
    names = (*run.input_names, *run.output_names)
    wrong = [f"run.axes.{name} is no input or output" for name in run.axes if name not in names]
    if run.options.get("goal", run.goal) != run.goal:
        wrong.append(f"run.options.goal: {run.options['goal']!r:.40} is not the goal of the run, {run.goal!r}")
    try:
        value_and_unit("run", run.goal or 0, has_metric=bool(run.metric))
    except UsageError as error:
        wrong.append(str(error).rstrip("."))
    return wrong


def _problem(folder: Path, name: str, digest: str) -> str:
    file = folder / name
    if Path(name).name != name or not file.is_file():
        return f"{name}, which it names, does not lie beside it"
    return "" if sha256(file.read_bytes()) == digest else f"{file.name} has changed since it was written"


def weights_content(model: nn.Module) -> bytes:
    """The state of a model as a safetensors file, always the same for the same state."""
    state = {k: v.detach().cpu().clone().contiguous() for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    return safetensors.torch.save(state)


def load_weights(model: nn.Module, path: Path) -> None:
    """Give a quantised model the weights of a file.

    Raises:
        UsageError: They are another model's.
    """
    try:
        model.load_state_dict(safetensors.torch.load(path.read_bytes()))
    except (RuntimeError, safetensors.SafetensorError) as error:
        lines = " ".join(str(error).split())
        raise UsageError(f"{path}: the weights do not fit the model ({lines[:300]}). {_HOW}.") from error


def sha256(content: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(content).hexdigest()
