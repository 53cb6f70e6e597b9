# SPDX-License-Identifier: Apache-2.0
"""The file that repeats a run of `linger quantize`: how the model is quantized, how it was called, digests of its neighbors."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
from torch import Tensor, nn

from linger.errors import UsageError, listing
from linger.notation import value_and_unit
from linger.quantization.setup.config import config_of
from linger.quantization.setup.config_file import as_text
from linger.quantization.setup.config_reader import read_config
from linger.records.reading import Is, read_with_problems
from linger.reporting.facts import Quality
from linger.verification.array_files import read_arrays

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
    """The file of a quantized model: what `linger.save_config` writes, and the run."""
    content = {
        key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(run).items()
    }
    said = {key: value for key, value in content.items() if value not in (None, "", {}, [])}
    return as_text(replace(config_of(model), run=said), name)


def read_run_file(path: Path) -> RunFile:
    """The run that a file tells, after its neighbors have been compared with their digests.

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
    """Give a quantized model the weights of a file.

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
