# SPDX-License-Identifier: Apache-2.0
"""What a quantized torch model and its float model add to the facts of a file: where error is born, quality, advice."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linger.analysis.advice import FAIR_DB, Item
from linger.analysis.batches import Batch, fresh, rows_of_batch, run_batch, values_of
from linger.constraint.advising import advise
from linger.constraint.conv_bn import EmptyBatchNorm
from linger.errors import LingerError, UsageError, printable
from linger.graph.core.nodes import required_inputs
from linger.graph.network import Network
from linger.progress import progress
from linger.proof import verify
from linger.quantization.core.qtensor import unwrap
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import runtime_of
from linger.quantization.diagnosis.call_watch import Call, CallWatch, Coverage, Key, coverage, working_copy
from linger.quantization.diagnosis.layer_comparison import LayerComparison, LayerRow, compare_layers
from linger.quantization.diagnosis.sensitivity import Sensitivity
from linger.reporting.facts import (
    HELD_OUT,
    METRIC_DATA,
    Bins,
    LayerFacts,
    Quality,
    Run,
    SensitivityFacts,
    TensorFacts,
    TriedStep,
    Tuning,
)
from linger.simulation import record
from linger.targets import Target
from linger.tuning.autotune.result import TuneResult
from linger.tuning.mixed_precision.goals import checked_metric, metric_name
from linger.verification.proof.result import Verification
from linger.workflow.file_facts import MOST_BATCHES, FileFacts, complete_run
from linger.workflow.file_layers import CHUNK, Grid, Tally, origin_of
from linger.workflow.model_quality import DATA, SIGNAL, QualityPass
from linger.workflow.samples import output_name

_FORMATS = ("Quant", "Dequant", "Requant")
"""Nodes that change the format of a module's input or output: a row about the module means its other nodes."""

_NUMBER = re.compile(r"_(\d+)$")


@dataclass(frozen=True)
class _Place:
    """One simulated op: where its result is made, and how it is called."""

    number: int
    path: str
    op: str
    call: int


class _LayerMatcher:
    """Finds layers by the names of modules, functions and calls; `functions` are the names of nodes, with their layers."""

    def __init__(self, layers: Sequence[LayerFacts]) -> None:
        places: dict[str, _Place] = {}
        for number, layer in enumerate(layers):
            origin, call = origin_of(layer.name), _NUMBER.search(layer.name)
            if origin is not None and layer.path:  # its last node makes the result
                places[origin.name] = _Place(number, layer.path, origin.op, origin.call)
            else:
                places[layer.name] = _Place(number, layer.path, layer.op, int(call[1]) if call else 0)
        self._places = list(places.values())
        self._computing = [p for p in self._places if p.op not in _FORMATS]
        self.functions = {layer.name.partition("/")[0]: number for number, layer in enumerate(layers)}

    def of_call(self, path: str, call: int, op: str) -> int | None:
        """The layer that makes the result of a module's call; None for a call whose result the file does not have."""
        own = [p for p in self._computing if (p.path, p.call) == (path, call)]
        exact = [p for p in own if p.op == op]
        inside = [p for p in self._computing if p.path.startswith(f"{path}.")] if path and call == 0 else []
        return next((places[-1].number for places in (exact, own, inside) if places), None)

    def of_name(self, name: str) -> list[int]:
        """Every layer of a module, or of a function whose name ends in its op."""
        exact = [p.number for p in self._places if f"{p.path}.{p.op}".lstrip(".") == name]
        return exact or [p.number for p in self._computing if p.path == name]

    def of_op(self, path: str, op: str) -> list[int]:
        """Every layer of a module that runs an op."""
        return [p.number for p in self._places if p.path == path and p.op == op]


_ADVISED_BATCHES = 4


@dataclass
class _ModelFacts:
    """A quantized model that is reported, its float model if that is known, and everything that was measured of both."""

    model: nn.Module
    reference: nn.Module | None
    kept: list[Batch]  # the first batches of the data
    quality: list[Quality]  # how good it is, and what makes that doubtful
    notes: list[str]  # sentences for the reader
    cautions: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: object,
        reference: object = None,
        data: object = None,
        *,
        metric: Callable[[nn.Module], float] | None = None,
        labels: object = None,
        of: str = DATA,
    ) -> _ModelFacts:
        """Check what was given, and measure the quality in one pass over the data."""
        quantized, original = _checked(model, reference)
        made = cls(quantized, original, [], [], [])
        if metric is not None:
            measure = checked_metric("report", metric)
            before = None if original is None else measure(original)
            made.quality.append(Quality(metric_name(metric), measure(quantized), before, data=METRIC_DATA))
        if data is not None:
            copies = [None if m is None else working_copy(m, "report") for m in (quantized, original)]
            assert copies[0] is not None  # the quantized model is there
            measured = QualityPass(copies[0], copies[1], MOST_BATCHES)
            measured.run(data)
            made.kept = measured.kept
            made.quality += [replace(figure, data=of) for figure in measured.figures(labels)]
            made.cautions = tuple(measured.variety.cautions("the data"))
        return made

    def verified(self, facts: FileFacts) -> Verification | None:
        """The simulation held against the file on the first batches; None, with a note, where that cannot be done."""
        if not self.kept:
            return None
        try:
            return verify(self.model, facts.network, _fitted(self.kept, facts))
        except LingerError as error:
            self.notes.append(f"The file could not be compared with the model on the data: {error}")
            return None

    def feeds(self, facts: FileFacts) -> list[dict[str, Any]] | None:
        """The first batches as the file takes them; None where it does not take them."""
        names = [value.name or "" for value in required_inputs(facts.model)]
        try:
            recordings = list(record(self.model, _fitted(self.kept, facts), file=facts.model)) if self.kept else []
        except LingerError:
            return None
        return [dict(zip(r.input_names or names, r.inputs, strict=False)) for r in recordings] or None

    def added_to(
        self, run: Run, facts: FileFacts, tuning: TuneResult | None = None, sensitivity: Sensitivity | None = None
    ) -> Run:
        """A file's run with what the models tell."""
        try:
            run = _covered(run, coverage(self.model))
        except UsageError as error:
            self.notes.append(f"Why layers stayed float is not known: {error}")
        # the float model whose layers are those of the quantized one: after equalization that is not the user's
        like = self.reference
        if like is not None and tuning is not None and tuning.reference is not None:
            like = tuning.reference
        if like is not None:
            compared = self._compared(like)
            run = run if compared is None else self._with_comparison(run, facts, compared, like)
            run = _with_advice(run, self._advice(like))
        quality = _named_outputs([*self.quality, *_tuned_quality(tuning, self.quality)], facts)
        run = with_results(run, tuning, sensitivity)
        return replace(run, quality=quality, notes=(*run.notes, *self.notes), cautions=self.cautions)

    def _compared(self, reference: nn.Module) -> LayerComparison | None:
        if not self.kept:
            return None
        try:
            return compare_layers(reference, self.model, self.kept)
        except LingerError as error:
            self.notes.append(f"The layers could not be compared with the float model: {error}")
            return None

    def _with_comparison(self, run: Run, facts: FileFacts, compared: LayerComparison, reference: nn.Module) -> Run:
        layers, matcher = list(run.layers), _LayerMatcher(run.layers)
        rows: dict[int, LayerRow] = {}
        lost, fused = [], self._fused_calls()
        for row in compared.rows:
            if row.is_function:
                number = matcher.functions.get(row.name)
            else:
                number = matcher.of_call(*fused.get((row.name, row.call), (row.name, row.call)), row.op)
            if number is None:
                lost.append(row.name or "the model")
                continue
            rows[number] = row
            sqnr, born, passed = row.sqnr_db, row.born_db, row.passed_db
            layers[number] = replace(layers[number], sqnr_db=sqnr, born_db=born, passed_db=passed, verdict=row.verdict)
        if lost:
            self.notes.append(f"Compared with the float model, but not found in the file: {', '.join(lost)}.")
        modules = {row: layers[n] for n, row in rows.items() if not row.is_function}
        seen = self._reference_tallies(facts, modules, reference)
        tensors = tuple(_with_reference(tensor, rows, seen) for tensor in run.tensors)
        return replace(run, layers=tuple(layers), tensors=tensors)

    def _fused_calls(self) -> dict[Key, Key]:
        """By call of a batch norm that was fused, the call of the convolution that it is part of: only that has a node."""
        fused: dict[Key, Key] = {}

        def note(call: Call, _output: object) -> None:
            if isinstance(call.module, EmptyBatchNorm) and call.source is not None:
                fused[call.key] = call.source

        _watch_calls(self.model, self.kept[:1], note)
        return fused

    def _reference_tallies(
        self, facts: FileFacts, wanted: Mapping[LayerRow, LayerFacts], reference: nn.Module
    ) -> dict[str, Bins]:
        """Histograms of what the float model computes, by the tensor of the file that stands for it, in its bins."""
        tallies: dict[tuple[str, int], tuple[str, Tally]] = {}
        for row, layer in wanted.items():
            own = facts.tallies.get(layer.outputs[0]) if layer.outputs else None
            if own is not None and (own.grid.scale is not None or own.grid.bits is None):  # else in unknown units
                grid = Grid(own.grid.scale or 1.0)
                tallies[row.name, row.call] = (layer.outputs[0], Tally(grid, exponent=own.exponent))

        def count(call: Call, output: object) -> None:
            if call.key in tallies and isinstance(output, Tensor):
                tally = tallies[call.key][1]
                for part in unwrap(output).detach().reshape(-1).split(CHUNK):
                    tally.add(part.double().cpu().numpy() * (tally.grid.scale or 1.0))

        _watch_calls(reference, progress(self.kept, "float model"), count)
        return {name: bins for name, tally in tallies.values() if (bins := tally.bins()) is not None}

    def _advice(self, reference: nn.Module) -> Sequence[Item]:
        try:
            return advise(reference, self.kept[:_ADVISED_BATCHES] or None).items
        except LingerError as error:
            self.notes.append(f"No advice could be given: {error}")
            return ()


def _watch_calls(model: nn.Module, batches: Iterable[Batch], note: Callable[[Call, object], None]) -> None:
    """Run a copy of a model, and note every call with its output."""
    copy = working_copy(model, "report")
    watch = CallWatch(copy, note)
    with torch.random.fork_rng(), torch.no_grad():
        for batch in batches:
            watch.begin()
            run_batch(copy, fresh(batch))


def _checked(model: object, reference: object) -> tuple[nn.Module, nn.Module | None]:
    if not isinstance(model, nn.Module):
        raise UsageError(f"report: model is a {type(model).__name__}. Give the quantized torch model.")
    if runtime_of(model) is None:
        raise UsageError(
            "report: the model is not quantized. Give it after linger.init, and the float one as reference."
        )
    if reference is None:
        return model, None
    if not isinstance(reference, nn.Module):
        raise UsageError(f"report: reference is a {type(reference).__name__}. Give the float torch model.")
    if any(isinstance(module, QuantizedBase) for module in reference.modules()):
        raise UsageError("report: the reference is quantized. Give the float model that the other was made from.")
    return model, reference


def _fitted(batches: Sequence[Batch], facts: FileFacts) -> list[Batch]:
    """The batches in the size of the file: 16 images for a file that takes one are 16 batches."""
    shapes = [value.shape for value in required_inputs(facts.model)]
    sizes = {s[0] for s in shapes if s is not None and len(s)}
    size = sizes.pop() if len(sizes) == 1 else None
    if not isinstance(size, int) or size < 1:
        return list(batches)
    return [part for batch in batches for part in _cut(batch, size)][:MOST_BATCHES]


def _cut(batch: Batch, size: int) -> list[Batch]:
    rows = {int(x.shape[0]) if isinstance(x, Tensor) and x.dim() else None for x in values_of(batch)}
    count = rows.pop() if len(rows) == 1 else None
    if count is None or count <= size:
        return [batch]
    return [rows_of_batch(batch, slice(i, i + size)) for i in range(0, count - count % size, size)]


def _covered(run: Run, counted: Coverage) -> Run:
    """The reasons why layers stayed float, and what is doubtful about integer ones."""
    layers, matcher = list(run.layers), _LayerMatcher(run.layers)
    float_paths = {layer.path for layer in run.float_layers}
    lost = []
    for row in counted.table():
        if row.runs_as != "float":
            for number in matcher.of_op(row.where, row.op) if row.reason else ():
                layers[number] = _advised(layers[number], row.reason)
            continue
        if row.where not in float_paths:
            lost.append(printable(f"{row.where or 'model'}: {row.op} ({row.reason})"))
        for number, layer in enumerate(layers):
            if (layer.runs_as, layer.path, layer.float_reason) == ("float", row.where, ""):
                layers[number] = replace(layer, float_reason=row.reason)
    share = counted.integer_share if counted.macs else run.integer_share
    notes = [f"The model computes in floating point, without a layer of its own in the file: {op}." for op in lost]
    return replace(
        run, layers=tuple(layers), integer_share=share, float_ops=tuple(lost), notes=(*run.notes, *dict.fromkeys(notes))
    )


def _advised(layer: LayerFacts, sentence: str) -> LayerFacts:
    return layer if sentence in layer.advice else replace(layer, advice=(*layer.advice, sentence))


def _with_advice(run: Run, items: Iterable[Item]) -> Run:
    """Sentences about tensors that lose much in 8 bits, at the layers that have them with no more bits."""
    layers, matcher = list(run.layers), _LayerMatcher(run.layers)
    for item in items:
        place, loss = item.concern
        if item.role == "other" or (place >= 1.0 and loss >= FAIR_DB):
            continue
        for number in matcher.of_name(item.module):
            if not _is_wide(layers[number], item.role):
                what = "its weights: " if item.role == "weight" else ""
                layers[number] = _advised(layers[number], f"{what}{item.advice}")
    return replace(run, layers=tuple(layers))


def _is_wide(layer: LayerFacts, role: str) -> bool:
    """Whether the tensor of this role has more than 8 bits already; without weights there is nothing to say of them."""
    widths = layer.bits.split("/")
    if role == "weight" and len(widths) != 3:
        return True
    text = widths[1] if role == "weight" else widths[-1]
    return text.isdecimal() and int(text) > 8


def _with_reference(tensor: TensorFacts, rows: Mapping[int, LayerRow], seen: Mapping[str, Bins]) -> TensorFacts:
    row = None if tensor.layer is None else rows.get(tensor.layer)
    if row is None or not (row.is_function or tensor.name in seen):
        return tensor
    return replace(tensor, sqnr_db=row.sqnr_db, reference=seen.get(tensor.name))


def _named_outputs(figures: Sequence[Quality], facts: FileFacts) -> tuple[Quality, ...]:
    """Figures of outputs by the names that these have in the file."""
    names = {output_name(place): value.name or "" for place, value in enumerate(facts.model.graph.outputs)}
    return tuple(
        replace(f, output=names[f.output], name=f"signal to noise at {names[f.output]}") if f.output in names else f
        for f in figures
    )


def _tuned_quality(tuning: TuneResult | None, present: Sequence[Quality]) -> Iterable[Quality]:
    """What tuning measured on held-out data, unless the same figure was measured on the data of the report."""
    if tuning is None:
        return
    if tuning.after_metric is not None:
        yield Quality("metric", tuning.after_metric, plain=tuning.plain_metric, data=HELD_OUT)
    if not any(quality.name == SIGNAL for quality in present):
        yield Quality(SIGNAL, tuning.after_db, plain=tuning.plain_db, unit="dB", data=HELD_OUT)


def with_results(run: Run, tuning: TuneResult | None, sensitivity: Sensitivity | None) -> Run:
    """A run with what tuning tried, and the ranking by sensitivity."""
    if tuning is not None:
        run = replace(run, tuning=tuning_facts(tuning))
    if sensitivity is None:
        return run
    layers, matcher = list(run.layers), _LayerMatcher(run.layers)
    for row in sensitivity.rows:
        numbers = matcher.of_name(row.name)
        if numbers and math.isfinite(row.noise_share):
            layers[numbers[0]] = replace(layers[numbers[0]], noise_share=row.noise_share)
    rows = sensitivity.rows
    ranked = (SensitivityFacts(r.name, r.op, r.widths, r.sqnr_db, r.noise_share, r.what) for r in rows)
    return replace(run, layers=tuple(layers), sensitivity=tuple(ranked))


def tuning_facts(result: TuneResult) -> Tuning:
    """What tuning tried, as a report shows it."""
    same = [f.name for f in fields(TriedStep) if f.name != "name"]
    steps = tuple(TriedStep(step.shown, **{name: getattr(step, name) for name in same}) for step in result.steps)
    problems = tuple(f"{p.name} ({p.role}, {p.bits} bits, {p.born_db:.1f} dB): {p.advice}" for p in result.problems)
    return Tuning(result.summary(), steps, (*result.notes, *problems))


def run_of_model(
    file: Path | Network,
    chip: Target | None,
    *,
    model: nn.Module | None,
    reference: nn.Module | None,
    data: object,
    labels: object,
    metric: Callable[[nn.Module], float] | None,
    tuning: TuneResult | None,
    sensitivity: Sensitivity | None,
    verification: Verification | str | None,
    held_out: bool | None,
    name: str | None,
) -> Run:
    """What `linger.report` says of a file and its models; the arguments are the same, and refused where they do not fit."""
    _require_kinds(tuning, sensitivity)
    if model is None:
        without = {"reference": reference, "data": data, "labels": labels, "metric": metric, "held_out": held_out}
        wrong = [key for key, value in without.items() if value is not None]
        if wrong:
            raise UsageError(f"report: {', '.join(wrong)} needs the quantized model. Give model= too.")
        return with_results(complete_run(FileFacts.of(file, chip), name, None, verification), tuning, sensitivity)
    if labels is not None and data is None:
        raise UsageError("report: labels need the data that they belong to. Give data= too.")
    of = HELD_OUT if held_out else DATA
    measured = _ModelFacts.of(model, reference, data, metric=metric, labels=labels, of=of)  # wrong usage is said first
    facts = FileFacts.of(file, chip)
    feeds = None if verification is None else measured.feeds(facts)
    run = complete_run(facts, name, feeds, verification or measured.verified(facts))
    return measured.added_to(run, facts, tuning, sensitivity)


def _require_kinds(tuning: object, sensitivity: object) -> None:
    if tuning is not None and not isinstance(tuning, TuneResult):
        raise UsageError(
            f"report: tuning is a {type(tuning).__name__}. Give the second of what linger.tune returns, a TuneResult."
        )
    if sensitivity is not None and not isinstance(sensitivity, Sensitivity):
        raise UsageError(
            f"report: sensitivity is a {type(sensitivity).__name__}. Give what linger.sensitivity returns."
        )
