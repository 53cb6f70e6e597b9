# SPDX-License-Identifier: Apache-2.0
"""One job from a float model to a verdict: tune, export, verify, check, report, and C where it is asked for."""

from __future__ import annotations

import copy
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, Forward, values_of
from linger.checks.memory_use import amount
from linger.errors import LingerError, UsageError, VerificationError, counted
from linger.notation import DECIBELS, PERCENT, Widths
from linger.pipeline import init
from linger.quantization.core.quantized import ranges_of
from linger.quantization.core.runtime import runtime_of
from linger.quantization.setup.marking import choose_widths
from linger.reporting.facts import HELD_OUT, METRIC_DATA, SEEN, TEST, Quality
from linger.reporting.verdict import LOW_AGREEMENT, LOW_SIGNAL, figure_text
from linger.targets import find_chip
from linger.tuning.autotune.result import Budget, fitting_threads, on_threads
from linger.tuning.autotune.steps import GAIN_DB, refuse_not_finite, start_of
from linger.tuning.autotune.tune import INTERRUPTED, tune
from linger.tuning.held_out import split
from linger.tuning.mixed_precision.find_bits import find_bits
from linger.tuning.mixed_precision.goals import checked_metric, metric_name
from linger.tuning.remedy import OutputError
from linger.verification.array_files import read_arrays
from linger.version import __version__
from linger.workflow.delivery import (
    RunFile,
    Tell,
    Work,
    c_obstacle,
    checked,
    command_of,
    delivered,
    exported,
    float_bytes,
    former_run,
    load_weights,
    new_run,
    placed,
    read_run_file,
    reported,
)
from linger.workflow.model_quality import (
    SIGNAL,
    batch_size,
    coarse_notes,
    data_cautions,
    figure_of,
    guessing_note,
    judged,
    missed_figure,
    require_decisions,
    unhelpful_notes,
    usual_budget,
    with_fitting_labels,
)
from linger.workflow.quantized import DATA, Quantized, QuantizeSettings, require_free
from linger.workflow.samples import Edges, Piece, Samples, edges_of, limited, require_alike, rows_of, seen_before

if TYPE_CHECKING:
    from linger.tuning.autotune.result import TuneResult

_PROVEN_SAMPLES = 16
_PROVEN_BYTES = 4 << 20
"""Samples that are verified and kept beside the file: at most so many, and of so many bytes, but one at least."""

_PROVEN_BATCH = 8

_FEW_REPEATED = 0.1
"""Up to so large a share of the samples to judge by may be among those of tuning by chance, as where inputs have few values."""

_OFFER_SHARE, _OFFER_SAMPLES, _TRIALS_EACH, _PASSES_EACH = 0.2, 64, 2, 1.25
"""A search for wider tensors, where 8 bits are not enough: its part of the budget, its samples at most, models that it measures for
each range, and passes for each of these."""

_GOALS = {PERCENT: f"{LOW_AGREEMENT:g} %", DECIBELS: f"{LOW_SIGNAL:g} dB"}
"""What is enough where nobody said so, as the verdict has it."""


def quantize(
    model: nn.Module,
    data: Samples,
    out: Path,
    settings: QuantizeSettings | None = None,
    *,
    test: Samples | None = None,
    run: RunFile | None = None,
    name: str = "net",
    tell: Tell = lambda _: None,
) -> Quantized:
    """Quantize a float model, prove the file, and write everything about it into a folder.

    One sample in five, chosen at random by a fixed seed, is held out from tuning, and the figures of quality are about these,
    unless `test` data are given: then tuning may see all of `data`. Of what it may see, one sample in five chooses between steps. Nothing is in the folder before everything is. The file that
    repeats the run says how it was called (`run`). `tell` is given a line about each step.

    Raises:
        UsageError: Something was given that cannot be used. Nothing is written.
        UnsupportedError: The model cannot be exported; this is told before tuning. Nothing is written.
    """
    settings, run = settings or QuantizeSettings(), run or RunFile()
    settings.check()
    require_free(out, settings)
    seen, kept = data.divided() if test is None else (data, test)
    require_alike(seen, kept)
    model = model.eval()
    refuse_not_finite(model)
    measure = None if settings.metric is None else checked_metric("quantize", settings.metric)
    before = None if measure is None else measure(model)  # a metric that fails is told before the work
    seen, kept = with_fitting_labels(model, seen, kept)
    kind, notes = _kind_of(seen, kept, test)
    classes = require_decisions(model, seen, kept, settings.goal if measure is None else None)
    batches, parts = _batches(seen, settings)
    every = [kept.pieces[0].arguments] if kept.are_rows else [*batches, *(p.arguments for p in kept.pieces)]
    edges = edges_of(model, every, can_open=find_chip(settings.target) is None)
    threads = fitting_threads(model, batches[0])
    with on_threads(threads), tempfile.TemporaryDirectory(prefix="linger.") as folder:
        budget = settings.budget or usual_budget(model, batches)
        work = Work(
            model=model,
            folder=Path(folder),
            settings=settings,
            name=name,
            edges=edges,
            proven=_proven(kept, edges),
            has_rows=kept.are_rows,
            command=command_of(run),
            notes=list(dict.fromkeys((*seen.notes, *kept.notes, *notes))),
            cautions=data_cautions(seen, kept),
        )
        tell(f"tune: {_shares(seen, kept, kind)}" + ("" if settings.budget else f", {budget} of CPU time at most"))
        with work.noting():
            plain = start_of(_with_widths(model, settings), settings.target, settings.numbers).plain(batches)[0]
            exported(work, plain)  # what cannot be exported is told before the search, not after it
            if obstacle := c_obstacle(work):
                tell(obstacle)
            tuned, result = _tuned(work, parts, [p.arguments for p in kept.batches(settings.batch)], budget)
        tell(f"measure: {counted(len(kept), kept.unit)}")
        figures = _judged(work, plain, tuned, kept, kind, classes, seen)
        if measure is not None and result.after_metric is not None:
            own = metric_name(settings.metric)
            figures = (Quality(own, result.after_metric, before, measure(plain), data=METRIC_DATA), *figures)
            run = replace(run, metric=own)
        run = replace(run, goal=settings.goal_text, quality=figures, cautions=tuple(work.cautions))
        made = replace(delivered(work, tuned, run, tell), quality=figures, notes=tuple(work.notes))
        made = _with_offer(work, made, (tuned, result.reference or model), (seen, kept), budget, tell)
        tell("report")
        with work.noting():
            made = reported(work, made, new_run(work, made, tuned, result))
        return replace(placed(made, work, out), model=tuned, inputs=tuple(piece.arguments for piece in work.proven))


def repeat(
    model: nn.Module,
    config: Path,
    out: Path,
    settings: QuantizeSettings | None = None,
    *,
    run: RunFile | None = None,
    name: str = "net",
    tell: Tell = lambda _: None,
) -> Quantized:
    """Make the file of a former run again, from the float model, the settings file and the weights beside it.

    Nothing is tuned, and no data are needed: the inputs that were verified lie beside the settings file. The model is changed in
    place, as it gets the weights of the run. Of the settings `c` and `force` count; everything else is what the run says.

    Raises:
        UsageError: The settings file, or a file beside it, is wrong or belongs to another model. Nothing is written.
        VerificationError: The file is not the same, bit for bit. Nothing is written.
    """
    settings = settings or QuantizeSettings()
    require_free(out, settings)
    told = read_run_file(config) if run is None else run
    size = float_bytes(model)
    quantized = init(model, config_file=config).eval()
    load_weights(quantized, config.parent / told.weights)
    arrays = read_arrays(config.parent / told.inputs)
    proven = [Piece(_arguments(model, {name: torch.from_numpy(arrays[name]) for name in told.input_names}))]
    if told.has_rows:
        proven = Samples(rows_of(proven[0]), are_rows=True).batches(_PROVEN_BATCH if told.axes else 1)
    runtime = runtime_of(quantized)
    target = None if runtime is None else runtime.target
    edges = Edges(told.input_names, told.output_names, told.axes, is_batch_open=bool(told.axes))
    with tempfile.TemporaryDirectory(prefix="linger.") as folder:
        work = Work(
            model=model,
            folder=Path(folder),
            settings=replace(settings, form=told.form, opset=told.opset, target=target, goal=told.goal or None),
            name=name,
            edges=edges,
            proven=proven,
            has_rows=told.has_rows,
            command=command_of(told),
        )
        made = delivered(work, quantized, told, tell)
        made = replace(made, quality=told.quality, float_bytes=size, is_repeated=True)
        work.cautions += told.cautions
        if made.sha256 != told.onnx_sha256:
            raise VerificationError(
                f"{config}: the file is not the one of that run: its SHA-256 is {made.sha256[:16]}…, not "
                f"{told.onnx_sha256[:16]}…. The run was made by linger {told.linger}, and this is {__version__}; look for "
                "changes in the model's code. Nothing was written."
            )
        tell("report")
        with work.noting():
            former = former_run(work, config.parent / DATA, made)
            made = reported(work, made, former or new_run(work, made, quantized))
        return placed(replace(made, notes=tuple(work.notes)), work, out)


_Seen = tuple[list[Batch], list[Batch]]


def _batches(seen: Samples, settings: QuantizeSettings) -> tuple[list[Batch], _Seen]:
    """What tuning may see; and apart, to learn from and to choose by, where recordings must not be parted; else for both at once."""
    parts = seen.divided() if len({p.group for p in seen.pieces}) > 1 else (seen, replace(seen, pieces=()))
    size = batch_size(len(parts[0]), settings.batch)
    made = [p.arguments for p in parts[0].batches(size)], [p.arguments for p in parts[1].batches(settings.batch)]
    return made[0] + made[1], made


def _tuned(work: Work, seen: _Seen, kept: list[Batch], budget: str | float) -> tuple[nn.Module, TuneResult]:
    """The tuned model, and what was tried; whether it gains less on what was `kept` from tuning is a caution."""
    settings = work.settings
    reported = () if len(seen[0]) == 1 and seen[0][0] is kept[0] else kept
    tuned, result = tune(
        _with_widths(work.model, settings),
        split(work.model, seen[0], reported, settings.input_range, choosing=seen[1]),
        budget=budget,
        bits="mixed" if settings.widths.is_mixed else "8",
        metric=settings.metric,
        goal=settings.goal if settings.metric is None or settings.goal is None else float(settings.goal),
        target=settings.target,
        seed=settings.seed,
        per_channel=settings.per_channel,
        unsigned=settings.unsigned,
    )
    if INTERRUPTED in result.notes:
        raise KeyboardInterrupt  # the user wants the command to end, and gets nothing half done
    work.notes += [note for note in result.notes if note not in work.notes]
    work.cautions += [result.warning] * bool(result.warning)
    return tuned, result


def _with_offer(
    work: Work,
    made: Quantized,
    models: tuple[nn.Module, nn.Module],
    samples: tuple[Samples, Samples],
    budget: str | float,
    tell: Tell,
) -> Quantized:
    """Where 8 bits are not enough, what the fewest wide tensors that are would give, measured on data that did not choose them.

    The search takes data of tuning, and a fifth of the budget at most. No offer where that is too little, or nothing is gained.
    """
    settings, missed = work.settings, missed_figure(work.settings.goal_text, made.quality)
    if missed is None or settings.widths != Widths() or made.quality[-1].data == SEEN:
        return made
    tell("16 bits: what a few tensors would gain")
    wide, whole = copy.deepcopy(models[0]), Budget.read(budget)
    limit = Budget(whole.text, _OFFER_SHARE * whole.seconds_left, _OFFER_SHARE * whole.trials_left)
    usual = _GOALS.get(missed.unit, "")
    goal, wish = (settings.goal, "") if settings.goal else (usual, f" --goal '{usual}'")
    measure = partial(figure_of, work.model, samples=samples[1], name=missed.name, batch=settings.batch)
    if settings.metric is not None and not missed.unit:  # its data judge, so decibels choose: as many more as in tuning
        measure = partial(checked_metric("quantize", settings.metric))
        goal, wish = sum(figure.after for figure in made.quality if figure.name == SIGNAL) + GAIN_DB, ""
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), limit.watching(wide):
            warnings.simplefilter("ignore")  # about a model that nobody gets
            some, trials = _affordable(wide, samples[0], limit, settings.batch)
            target = settings.target
            found = find_bits(wide, models[1], some, goal=goal, target=target, bits=(8, 16), max_trials=trials)
        after, cost = measure(wide), _cost(work, made, wide)
    except LingerError:  # the run is complete without an offer
        return made
    gained = f"{figure_text(missed)}; {found.wide_text}: {figure_text(missed, after)}, {cost}"
    offer = f"8 bits: {gained}. Run again with --bits mixed{wish}, or accept 8 bits."
    return replace(made, offer=offer * (after > missed.after))


def _cost(work: Work, made: Quantized, wide: nn.Module) -> str:
    """What another file needs more than the one that was made; one that a chip forbids is refused."""
    with tempfile.TemporaryDirectory(prefix="linger.") as folder:
        aside = replace(work, folder=Path(folder), notes=[], cautions=[])
        exported(aside, wide)
        check, memory, _ = checked(aside)
    if len(check.errors) > len(made.check.errors):
        raise UsageError("quantize: the chip forbids it.")
    weights, tensors = memory.weight_bytes - made.memory.weight_bytes, memory.peak_bytes - made.memory.peak_bytes
    return f"+{amount(weights + tensors)}: {weights:,} of weights, {tensors:,} of tensors alive at one time"


def _affordable(model: nn.Module, seen: Samples, limit: Budget, batch: int) -> tuple[list[Batch], int]:
    """Data and trials of a search for wide tensors, on as many samples as the time allows; refused where there is too little."""
    wanted, count = _TRIALS_EACH * len(ranges_of(model)), min(len(seen), _OFFER_SAMPLES)
    while True:
        some, begun = [piece.arguments for piece in limited(seen, count).batches(batch)], limit.spent
        OutputError(model, some)  # one pass
        if wanted <= limit.trials_left and (limit.spent - begun) * _PASSES_EACH * wanted <= limit.seconds_left:
            return some, wanted
        if count == 1:
            raise UsageError("quantize: too little is left for a search.")
        count //= 2


def _with_widths(model: nn.Module, settings: QuantizeSettings) -> nn.Module:
    """A copy of the float model whose layers and functions are marked with the widths asked for."""
    made = start_of(model, settings.target).reference
    if not settings.widths.is_mixed:
        choose_widths(made, settings.widths, "quantize")
    return made


def _judged(
    work: Work,
    plain: nn.Module,
    tuned: nn.Module,
    kept: Samples,
    kind: str,
    classes: int | None,
    seen: Samples | None = None,
) -> tuple[Quality, ...]:
    """The figures, the one that the verdict is about first; what there is to say of them is noted."""
    with work.noting():
        known = None if kind == SEEN else seen
        figures = judged(work.model, plain, tuned, kept, batch=work.settings.batch, data=kind, seen=known)
    work.notes += unhelpful_notes(figures) + coarse_notes(figures)
    note = guessing_note(figures, classes)
    if not note:
        return figures
    work.notes.append(note)
    work.cautions.append("the float model is no better than a guess")
    accuracy, agreement, *others = figures
    return (agreement, accuracy, *others)


def _kind_of(seen: Samples, kept: Samples, test: Samples | None) -> tuple[str, list[str]]:
    """Which data the figures are about, and what there is to say of them."""
    if seen.pieces is kept.pieces:
        return SEEN, []
    repeated, count = seen_before(seen, kept)
    if repeated > _FEW_REPEATED * count:
        return SEEN, [
            f"{repeated} of {counted(count, 'sample')} to judge by are among the data of tuning, bit for bit."
        ]
    return HELD_OUT if test is None else TEST, []


def _arguments(model: nn.Module, tensors: dict[str, Tensor]) -> Batch:
    """The inputs of a file as the arguments of its model: by name where forward has these names."""
    forward = Forward.of(model)
    is_known = all(name in forward.names for name in tensors) and forward.takes((), tensors)
    return forward.bound((), tensors) if is_known else tuple(tensors.values())


def _proven(kept: Samples, edges: Edges) -> list[Piece]:
    """The inputs to verify: some samples, or a few of the user's batches."""
    if not kept.are_rows:
        return list(kept.pieces[:4])
    size = sum(a.numel() * a.element_size() for a in values_of(kept.pieces[0].arguments))
    count = max(1, min(_PROVEN_SAMPLES, _PROVEN_BYTES // max(1, size)))
    return replace(kept, pieces=kept.pieces[:count]).batches(_PROVEN_BATCH if edges.is_batch_open else 1)


def _shares(seen: Samples, kept: Samples, kind: str) -> str:
    held = {HELD_OUT: f"{len(kept)} held out", TEST: f"{len(kept)} test data", SEEN: "and to judge by"}[kind]
    return f"{counted(len(seen), seen.unit)} to tune on, {held}"
