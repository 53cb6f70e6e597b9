# SPDX-License-Identifier: Apache-2.0
"""From a quantized model to a folder: export, proof, check and C, made aside and moved into place at the end."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import safetensors.torch
import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, joined_rows, keywords_of, rows_of_batch, run_batch, values_of
from linger.errors import LingerError, UnsupportedError, UsageError, listing
from linger.files import write_atomically, write_folders
from linger.graph.network import Network
from linger.notation import value_and_unit
from linger.onnx.exporter.export import export
from linger.proof import verify
from linger.quantization.diagnosis.call_watch import coverage
from linger.quantization.setup.config import config_of
from linger.quantization.setup.config_file import as_text, read_config
from linger.records.reading import Is, read_with_problems
from linger.reporting.facts import FindingFacts, Quality, Run, read_run
from linger.reporting.verdict import verdict_of
from linger.tuning.autotune.result import TuneResult
from linger.verification.array_files import npz_content, read_arrays
from linger.version import __version__
from linger.workflow.file_facts import proof_of_certificate
from linger.workflow.model_quality import is_goal_met
from linger.workflow.quantized import (
    CERTIFICATE,
    CONFIG,
    DATA,
    FILES,
    INPUTS,
    NET,
    PAGE,
    WEIGHTS,
    Quantized,
    QuantizeSettings,
    is_former_run,
)
from linger.workflow.report import Report, report
from linger.workflow.samples import Edges, Piece, Samples, rows_of

if TYPE_CHECKING:
    from linger.c.exported_folder import Cut
    from linger.c.proof import CProof
    from linger.checks.check import CheckResult
    from linger.checks.memory_use import MemoryUse


_NEEDED = ("weights", "inputs", "input_names", "output_names", "onnx_sha256", "quality")
_HOW = "Give the net.yaml of a folder that linger quantize wrote, with the files beside it"

Option = Annotated[Any, Is(lambda value: isinstance(value, (str, int)), "an option")]


@dataclass(frozen=True)
class RunFile:
    """What a run was told, and what it wrote.

    Attributes:
        model, options: The float model as it was named, empty where it was given in Python, and options of the command.
        weights, inputs: The files with the tuned weights, and with the inputs that were verified.
        weights_sha256, inputs_sha256, onnx_sha256: Digests of those files, and of the ONNX file.
        input_names, output_names: Of the ONNX file.
        by_name: The last of the inputs, which the model takes by name.
        axes: Sizes that the file leaves open, by input or output and axis.
        has_rows: Whether the inputs are samples along the first axis, the first of which is the example of the export.
        form, opset: Of the file; None: the usual ones.
        linger: The version that wrote it.
        goal, metric: What the quality must reach, and what the user's own figure is called; empty: there is none.
        quality, cautions: The figures of the run, and what makes them doubtful.
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
    """The file of a quantized model: what `linger.save_config` writes, and the run."""
    said = {key: value for key, value in dataclasses.asdict(run).items() if value not in (None, "", {}, ())}
    said = {key: list(value) if isinstance(value, tuple) else value for key, value in said.items()}
    return as_text(replace(config_of(model), run=said), name)


def read_run_file(path: Path) -> RunFile:
    """The run that a file tells, after its neighbors have been compared with their digests; what does not fit is refused."""
    said = dict(read_config(path).run)
    if not said:
        raise UsageError(f"{path}: it does not say which run wrote it. {_HOW}.")
    wrong, run = read_with_problems(RunFile, said, place="run")
    wrong += [f"run.{key} is missing" for key in _NEEDED if not said.get(key)]
    wrong += [] if run is None else _disagreements(run)
    if wrong or run is None:
        raise UsageError(f"{path}: {'; '.join(wrong)}. {_HOW}.")
    digests = ((run.weights, run.weights_sha256), (run.inputs, run.inputs_sha256))
    changed = list(filter(None, (_problem(path.parent, *named) for named in digests)))
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
    """Give a quantized model the weights of a file; those of another model are refused."""
    try:
        model.load_state_dict(safetensors.torch.load(path.read_bytes()))
    except (RuntimeError, safetensors.SafetensorError) as error:
        lines = " ".join(str(error).split())
        raise UsageError(f"{path}: the weights do not fit the model ({lines[:300]}). {_HOW}.") from error


def sha256(content: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(content).hexdigest()


Tell = Callable[[str], None]

C = "c"
"""The folder with the program in C, in the working folder."""

NO_C = "There is no program in C"


@dataclass
class Work:
    """A run on its way: everything that its steps hand on."""

    model: nn.Module
    folder: Path
    settings: QuantizeSettings
    name: str
    edges: Edges
    proven: list[Piece]
    has_rows: bool
    command: str = ""
    notes: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    file: Network = field(init=False)  # what was exported last, which all later steps share

    @property
    def example(self) -> Batch:
        """The input that the export traces: one sample, or the first batch."""
        first = self.proven[0].arguments
        return rows_of_batch(first, slice(1)) if self.has_rows else first

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keep what libraries warn of as notes."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
        self.notes += [text for w in said if (text := " ".join(str(w.message).split())) not in self.notes]


def delivered(work: Work, quantized: nn.Module, run: RunFile, tell: Tell) -> Quantized:
    """Export, prove and check a quantized model in the working folder."""
    tell("export")
    with work.noting():
        exported(work, quantized)
        tell("verify")
        inputs = [piece.arguments for piece in work.proven]
        proof = verify(quantized, work.file, inputs, certificate=work.folder / CERTIFICATE)
        tell("check")
        check, memory, arena = checked(work)
        c_proof, c_cut, c_missing = _as_c(work, tell)
    digest = sha256((work.folder / NET).read_bytes())
    _keep(work, quantized, run, digest)
    with torch.no_grad():
        run_batch(quantized, work.example)
    in_float = coverage(quantized).float_ops
    return Quantized(
        folder=work.folder,
        files=(),
        name=work.name,
        quality=(),
        proof=proof,
        check=check,
        memory=memory,
        arena_bytes=arena,
        float_bytes=float_bytes(work.model),
        stayed_float=tuple(f"{op.where or 'model'}: {op.op} ({op.reason})" for op in in_float),
        c_proof=c_proof,
        c_cut=c_cut,
        c_missing=c_missing,
        sha256=digest,
    )


def exported(work: Work, quantized: nn.Module) -> None:
    """Write the file, with open sizes where that is possible; a model that cannot be exported is an UnsupportedError."""
    can_close = work.edges.is_batch_open and not any(set(places) - {0} for places in work.edges.axes.values())
    try:
        _export(work, quantized)
    except UnsupportedError as error:
        if not can_close:
            raise
        _close(work, " ".join(str(error).split()))
        _export(work, quantized)
    except UsageError as error:  # the settings were checked before, so it is the model
        raise UnsupportedError(str(error)) from error
    else:
        if can_close:
            _without_branches(work, quantized)


def _without_branches(work: Work, quantized: nn.Module) -> None:
    """Write the file again for one sample at a time where branches and loops come from the open number of samples."""
    branches = _branches(work)
    if not branches:
        return
    edges, proven, notes = work.edges, work.proven, list(work.notes)
    _close(work, "with the number of samples open, the file would need branches or loops, which no program in C has.")
    _export(work, quantized)
    if _branches(work) >= branches:  # they are the model's own
        work.edges, work.proven, work.notes = edges, proven, notes
        _export(work, quantized)


def _close(work: Work, why: str) -> None:
    """One sample at a time from now on."""
    work.edges = replace(work.edges, axes={}, is_batch_open=False)
    work.proven = Samples(tuple(p for one in work.proven for p in rows_of(one)), are_rows=True).batches(1)
    work.notes.append(f"The file takes one sample at a time: {why}")


def _branches(work: Work) -> int:
    """How many nodes of the file hold graphs: If, Loop, Scan."""
    return sum(node.op_type in ("If", "Loop", "Scan") for node in work.file.model.graph)


def _export(work: Work, quantized: nn.Module) -> None:
    settings, edges = work.settings, work.edges
    export(
        quantized,
        work.example,
        work.folder / NET,
        input_names=edges.inputs,
        output_names=edges.outputs,
        dynamic_axes={name: dict(places) for name, places in edges.axes.items()} or None,
        form=settings.form,
        opset_version=settings.opset,
        allow_findings=True,
    )
    work.file = Network(work.folder / NET)


def checked(work: Work) -> tuple[CheckResult, MemoryUse, int | None]:
    """What is wrong with the file, what it needs, and the memory of its program in C."""
    from linger.c.memory_use import memory as memory_in_c
    from linger.checks.check import check
    from linger.checks.memory_use import memory

    file, target = work.file, work.settings.target
    try:
        arena = memory_in_c(file).arena_bytes
    except LingerError:
        arena = None
    return check(file, target), memory(file, target), arena


def _as_c(work: Work, tell: Tell) -> tuple[CProof | None, Cut | None, str]:
    """The network as C in the working folder, proven on this machine; the part that it is, and why it is missing."""
    if work.settings.c is None:
        return None, None, ""
    from linger.c.exporter import export as export_c
    from linger.c.interface import network_name
    from linger.c.program import build
    from linger.c.proof import prove

    tell("write C, and prove it on this machine")
    folder = work.folder / C
    symbol = network_name(Path(f"{work.name}.onnx"), None)
    try:
        export_c(work.file, folder, name=symbol, certificate=work.folder / CERTIFICATE, cut=work.settings.cut)
        with build(folder) as program:
            return prove(program, work.file), program.folder.cut, ""
    except LingerError as error:  # the rest of the run is done, and stays
        return None, None, f"{'The program in C was not proven' if folder.is_dir() else NO_C}: {error}"


def c_obstacle(work: Work) -> str:
    """Why the file in the working folder has no program in C, before the search; empty where it has one."""
    from linger.c.network import load_network

    if work.settings.c is None or work.settings.cut:
        return ""
    try:
        load_network(work.file)
    except UnsupportedError as error:
        return f"{NO_C} without --cut: {error}"
    return ""


def _keep(work: Work, quantized: nn.Module, run: RunFile, digest: str) -> None:
    """Write what repeats the run: weights, inputs, settings."""
    weights = weights_content(quantized)
    pieces = work.proven if work.has_rows else work.proven[:1]
    arguments = values_of(joined_rows([piece.arguments for piece in pieces]))
    inputs = npz_content({n: a.cpu().numpy() for n, a in zip(work.edges.inputs, arguments, strict=True)})
    run = replace(
        run,
        weights=WEIGHTS,
        weights_sha256=sha256(weights),
        inputs=INPUTS,
        inputs_sha256=sha256(inputs),
        onnx_sha256=digest,
        input_names=work.edges.inputs,
        output_names=work.edges.outputs,
        by_name=tuple(keywords_of(pieces[0].arguments)),
        axes={name: dict(places) for name, places in work.edges.axes.items()},
        has_rows=work.has_rows,
        form=work.settings.form,
        opset=work.settings.opset,
        linger=__version__,
    )
    text = config_text(quantized, run, type(work.model).__name__)
    for name, content in ((WEIGHTS, weights), (INPUTS, inputs), (CONFIG, text.encode())):
        write_atomically(work.folder / name, content)


def placed(made: Quantized, work: Work, out: Path) -> Quantized:
    """Move everything to its place at once."""
    from linger.c.exporter import is_exported

    settings = work.settings
    files = tuple(name for name in FILES if (work.folder / name).is_file())

    def fill(place: Path) -> None:
        for name in files:
            shutil.copy(work.folder / name, place / name)

    def fill_c(place: Path) -> None:
        shutil.copytree(work.folder / C, place, dirs_exist_ok=True)

    folders = {out: (fill, is_former_run if settings.force else None)}
    if settings.c is not None and (work.folder / C).is_dir():
        folders[settings.c] = (fill_c, is_exported if settings.force else None)
    write_folders(folders)
    is_cut_next = made.c_missing.startswith(NO_C) and not settings.cut and _has_integer_part(work.folder / NET)
    remedy = f" The integer part can be written now: linger c {out / NET} {settings.c} --cut --prove." * is_cut_next
    return replace(made, folder=out, files=files, c_missing=made.c_missing + remedy)


def _has_integer_part(file: Path) -> bool:
    """Whether a file without a program in C has a part that `--cut` would write."""
    from linger.c.integer_part import find_cut

    try:
        return find_cut(file) is not None
    except LingerError:
        return False


def float_bytes(model: nn.Module) -> int:
    """The weights in float, batch norms included."""
    tensors: list[Tensor] = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    return sum(4 * t.numel() for t in tensors)


_C_DIFFERS = "c-differs"

_REPEAT = f"linger quantize --config {CONFIG} --out again"
"""The line that gives the same file again, in the folder of the run: the search itself may end elsewhere on another machine."""


def new_run(work: Work, made: Quantized, quantized: nn.Module, tuning: TuneResult | None = None) -> Run:
    """Everything that can be told of the file in the working folder, and of the model that it was exported from."""
    run = report(
        work.file,
        None,
        model=quantized,
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
    if run.proof is None or run.proof.digests.get(NET) != made.sha256:
        return None
    return replace(run, proof=proof_of_certificate(work.folder / CERTIFICATE, work.folder / NET, ()))


def reported(work: Work, made: Quantized, run: Run) -> Quantized:
    """Write the page and its data into the working folder; the verdict of the report becomes that of the run."""
    goal, origin = work.settings.goal_text, f"Made by: {work.command}"
    run = replace(
        run,
        name=work.name,
        quality=made.quality,
        cautions=tuple(work.cautions),
        offer=made.offer or run.offer,
        findings=(*_about_c(made), *(finding for finding in run.findings if finding.rule != _C_DIFFERS)),
        command=_REPEAT if work.command else "",
        notes=run.notes if not work.command or origin in run.notes else (*run.notes, origin),
        config=(work.folder / CONFIG).read_text(encoding="utf-8"),
        goal=goal,
        is_goal_met=is_goal_met(goal, made.quality),
    )
    page = Report((run,))
    write_atomically(work.folder / PAGE, page.to_html().encode())
    write_atomically(work.folder / DATA, page.to_json().encode())
    return replace(made, decision=verdict_of(run))


def _about_c(made: Quantized) -> tuple[FindingFacts, ...]:
    """What forbids a program in C that computes something else."""
    if made.c_proof is None or made.c_proof.ok:
        return ()
    proof, remedy = made.c_proof, "Use the file, and tell us."
    reason = f"{proof.differing:,} of {proof.elements:,} numbers of the program in C are not those of the file."
    return (FindingFacts("error", _C_DIFFERS, where="program in C", reason=reason, remedy=remedy),)


def command_of(run: RunFile) -> str:
    """The line that made a run; empty where no command did."""
    words = ["linger", "quantize", run.model]
    for name, value in run.options.items():
        values = [] if value is True else str(value).split() if name == "input_range" else [str(value)]
        words += [f"--{name.replace('_', '-')}", *values]
    return shlex.join(words) if run.model else ""
