# SPDX-License-Identifier: Apache-2.0
"""linger.report: everything known of a quantized network as one HTML page, with a verdict. Torch is needed for a model only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linger.errors import UsageError, listing, missing_extra, printable
from linger.files import write_atomically
from linger.graph.network import Network
from linger.records.table import written
from linger.reporting.facts import Run, encodable, read_run
from linger.reporting.page import inline_frame, render_page
from linger.reporting.verdict import LEVELS, Verdict, verdict_of
from linger.targets import Target, find_chip
from linger.verification.feeds import given_feeds
from linger.workflow.file_facts import FileFacts, complete_run, require_verification

if TYPE_CHECKING:
    from torch import nn

    from linger.quantization.diagnosis.sensitivity import Sensitivity
    from linger.tuning.autotune.result import TuneResult
    from linger.verification.proof.result import Verification

_SUFFIXES = (".html", ".htm")
_DATA = ".json"
Place = str | os.PathLike[str]


@dataclass(frozen=True, repr=False)
class Report:
    """What is known of one or several networks, as data and as a page.

    Attributes:
        runs: The networks, in the order in which they were given.
        path: The page; None where it was not written.
    """

    runs: tuple[Run, ...]
    path: Path | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the network can go to the chip: the level, one sentence and the reasons. Of several networks, the worst."""
        return max((verdict_of(run) for run in self.runs), key=lambda verdict: LEVELS.index(verdict.level))

    def summary(self) -> str:
        """The verdict of every network: a sentence, and a line for each part of it."""
        lines = []
        for run in self.runs:
            verdict, name = verdict_of(run), "" if len(self.runs) == 1 else f"{run.name}: "
            lines += [f"{name}{verdict.sentence}", *(f"  {line}" for line in verdict.lines())]
        return "\n".join(map(printable, lines))

    def to_html(self) -> str:
        """The page."""
        return render_page(self.runs)

    def to_json(self, path: str | Path | None = None) -> str:
        """The data and the verdict as JSON text, also written to `path` if one is given; of several networks, a list.

        `linger.report` and `linger report` read it again.
        """
        texts = [run.to_json(verdict_of(run).facts()) for run in self.runs]
        return written(texts[0] if len(texts) == 1 else f"[\n{','.join(texts)}]\n", path)

    def _repr_html_(self) -> str:
        return inline_frame(self.to_html())

    def __repr__(self) -> str:
        return f"Report({listing(printable(run.name) for run in self.runs)}: {printable(self.verdict.headline)})"

    def __str__(self) -> str:
        return self.summary()


def report(
    file: Place | Network | Run | Report | Sequence[Place | Network | Run | Report],
    path: Place | None = "report.html",
    *,
    model: nn.Module | None = None,
    reference: nn.Module | None = None,
    data: object = None,
    labels: object = None,
    metric: Callable[[nn.Module], float] | None = None,
    tuning: TuneResult | None = None,
    sensitivity: Sensitivity | None = None,
    verification: Verification | Place | None = None,
    target: str | Target | None = None,
    held_out: bool = False,
    name: str | None = None,
    command: str = "",
    config: str = "",
) -> Report:
    """Make one HTML page that says whether a quantized network can go to the chip, and why.

    A file alone gives its layers, what they cost, what a chip says, memory over time, what its tensors hold, and a proof that
    ONNX Runtime computes what the numpy reference does. The model adds the proof against the simulation; the reference adds
    where error is born, agreement and advice.

    Args:
        file: An ONNX file, or a `Network` of one; the data of an earlier report (a .json file, a `Report`); or a list of these, side by side: then
            only `path` and `target` may be given too.
        path: The page; None writes none.
        model: The quantized model that the file was exported from; it stays as it is.
        reference: Its float model.
        data: What the model takes, in any form of the page "Inputs". Quality is measured on all of
            it, layers on the first 8 batches. Without a model: the file's inputs, as arrays or an .npz file.
        labels: Class numbers, one for every row of the data: accuracy is measured.
        metric: A figure of a model, `metric(model) -> float`, the larger the better, measured on both models.
        tuning: What `linger.tune` returned.
        sensitivity: What `linger.sensitivity` returned.
        verification: What `linger.verify` returned, or the path of a certificate; None verifies here.
        target: The chip that the file is for; None asks no chip. Earlier data must have been made for the same chip.
        held_out: Whether no step has seen the data: neither calibration nor tuning. Otherwise the verdict says that they may have.
        name: How the network is called; None: the file's name.
        command: The line that makes the same network again.
        config: The settings that it was made with, as text.

    Returns:
        The data, the verdict and the place of the page; a notebook shows the page.

    Raises:
        UsageError: A file, a chip or a folder that is not there, a model that is not quantized, data that do not fit,
            arguments that do not belong together.
        GraphError: The file is no complete ONNX model.
    """
    place = None if path is None else page_place(path)
    more = {
        "model": model,
        "reference": reference,
        "data": data,
        "labels": labels,
        "metric": metric,
        "tuning": tuning,
        "sensitivity": sensitivity,
        "verification": verification,
        "held_out": held_out or None,
        "name": name,
    }
    given = [key for key, value in more.items() if value is not None]
    chip = find_chip(target)
    sources = _sources(file)
    if len(sources) == 1 and isinstance(sources[0], Network):
        runs = [_run(sources[0], chip, more)]
    elif given:
        raise UsageError(
            f"report: {listing(given)} can be given with one ONNX file only. Make a report of each file first, and give "
            "these together."
        )
    else:
        runs = list(chain.from_iterable(_runs_of(source, chip) for source in sources))
    made = Report(_told_apart(runs, encodable(command), encodable(config)), place)
    if place is not None:
        write_atomically(place, made.to_html().encode())
    return made


def page_place(path: Place) -> Path:
    """Where the page goes; refused before the work where it cannot be written there."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"report: path is a {type(path).__name__}. Give the name of the page, or None to write none.")
    place = Path(path)
    if place.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{place}: the page is an HTML file. Give a name that ends in .html.")
    if place.is_dir():
        raise UsageError(f"{place}: this is a folder. Give the name of the page in it.")
    if not place.parent.is_dir():
        raise UsageError(f"{place}: there is no folder {place.parent}. Make it first.")
    return place


def _sources(file: object) -> list[Path | Network | Run | Report]:
    given: list[Any] = list(file) if isinstance(file, (list, tuple)) else [file]
    if not given:
        raise UsageError("report: there is nothing to report. Give at least one file.")
    wrong = [type(one).__name__ for one in given if not isinstance(one, (str, os.PathLike, Network, Run, Report))]
    if wrong:
        raise UsageError(
            f"report: {listing(wrong)} is nothing that can be reported. Give ONNX files, .json files of earlier reports, "
            "or reports; a torch model goes into model=, beside the file that was exported from it."
        )
    paths = [Path(one) for one in given if isinstance(one, (str, os.PathLike))]
    missing = [f"{p} ({'a folder' if p.is_dir() else 'not there'})" for p in paths if not p.is_file()]
    if missing:
        raise UsageError(f"report: files that cannot be read: {listing(missing)}. Give ONNX files or .json files.")
    return list(map(_opened, given))


def _opened(source: Place | Network | Run | Report) -> Path | Network | Run | Report:
    if isinstance(source, (Network, Run, Report)):
        return source
    return Path(source) if Path(source).suffix == _DATA else Network(Path(source))


def _runs_of(source: Path | Network | Run | Report, chip: Target | None) -> Iterable[Run]:
    if isinstance(source, Network):
        return [complete_run(FileFacts.of(source, chip))]
    runs = [source] if isinstance(source, Run) else source.runs if isinstance(source, Report) else _read_data(source)
    without = [printable(run.name) for run in runs if chip is not None and run.target != chip.name]
    if chip is not None and without:
        raise UsageError(
            f"report: the data of {listing(without)} were made without {chip.name}. Give the ONNX file to ask the chip."
        )
    return runs


def _read_data(path: Path) -> list[Run]:
    try:
        text = path.read_bytes().decode()
        content = json.loads(text)
    except (OSError, ValueError, RecursionError):
        text, content = "", None
    if isinstance(content, list) and content:
        return [read_run(json.dumps(one), f"{path}[{number}]") for number, one in enumerate(content)]
    return [read_run(text, str(path))]


def _told_apart(runs: Iterable[Run], command: str, config: str) -> tuple[Run, ...]:
    """The runs with command and settings, where these are given; those of one name get numbers."""
    by_name: dict[str, Run] = {}
    for run in runs:
        name, number = run.name, 2
        while name in by_name:
            name, number = f"{run.name} ({number})", number + 1
        by_name[name] = replace(run, name=name, command=command or run.command, config=config or run.config)
    return tuple(by_name.values())


def _run(file: Network, chip: Target | None, more: dict[str, Any]) -> Run:
    """The run of one ONNX file, with whatever else is known of it."""
    if more["verification"] is not None and not isinstance(more["verification"], (str, os.PathLike)):
        require_verification(more["verification"])
    if more["name"] is not None and not isinstance(more["name"], str):
        raise UsageError(f"report: name is a {type(more['name']).__name__}. Give a text.")
    of_models = ("model", "reference", "labels", "metric", "tuning", "sensitivity", "held_out")
    if any(more[key] is not None for key in of_models):
        try:
            from linger.workflow.model_facts import run_of_model  # needs torch, which a file alone does without
        except ModuleNotFoundError as error:
            raise missing_extra("report", error) from error
        return run_of_model(file, chip, **more)
    facts = FileFacts.of(file, chip)
    feeds = None if more["data"] is None else given_feeds(more["data"], facts.model)
    return complete_run(facts, more["name"], feeds, more["verification"])
