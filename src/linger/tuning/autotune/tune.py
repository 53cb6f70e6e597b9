# SPDX-License-Identifier: Apache-2.0
"""linger.tune: a float model in, the best quantized model that a budget allows out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

from torch import nn

from linger.analysis.advice import FAIR_DB, Advice, Item
from linger.analysis.batches import Batch, fresh
from linger.constraint.advising import advise
from linger.constraint.conv_bn import layer_of
from linger.constraint.limits import limits_of
from linger.constraint.normalize import NORMALIZED, normalize_layers, normalize_module
from linger.constraint.tracing import trace_layers
from linger.errors import LingerError, UsageError
from linger.notation import Widths, read_bits
from linger.progress import progress
from linger.quantization.core.quantized import QuantizedBase, ranges_of
from linger.quantization.core.runtime import runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.diagnosis.layer_comparison import LayerRow, compare_layers
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.setup.marking import choose_widths
from linger.tuning.autotune.result import (
    Budget,
    Problem,
    Round,
    Step,
    TuneResult,
    TuneStep,
    fitting_threads,
    on_threads,
)
from linger.tuning.autotune.search import Judge, Plan, Search, Trial, gap_of, is_better
from linger.tuning.autotune.steps import (
    ALWAYS,
    GAIN_DB,
    STEPS,
    Start,
    expected_seconds,
    quantized,
    start_of,
    usual_plan,
)
from linger.tuning.held_out import Parts, split
from linger.tuning.mixed_precision.goals import Metric, read_goal
from linger.tuning.remedy import OutputError, checked_data

TrainStep = Callable[[nn.Module], float | None]
"""Trains a model for a while, an epoch or some steps, and may return its loss."""

_MOST_ROUNDS = 20


def finetuned(
    model: nn.Module, train_step: TrainStep, batches: Sequence[Batch], budget: Budget
) -> tuple[nn.Module, tuple[Round, ...]]:
    """A float model, which is changed: analyzed, limited where advised and trained, again and again; and what each round found."""
    trace_layers(model.eval(), fresh(batches[0]))
    rounds: list[Round] = []
    loss: float | None = None
    longest = 0.0
    for number in range(_MOST_ROUNDS + 1):
        advice = advise(model.eval(), [fresh(batch) for batch in batches])
        rounds.append(_round(number, advice, loss))
        if not advice.limits or longest > budget.seconds_left or budget.is_spent:
            break
        begun = budget.spent
        model = _limited(model, advice)
        loss = _trained(model, train_step)
        budget.use(1)
        longest = max(longest, budget.spent - begun)
    return model.eval(), tuple(rounds)


def _round(number: int, advice: Advice, loss: float | None) -> Round:
    flagged = [item for item in advice.items if item.line and item.limit is not None]
    worst = min(flagged, key=lambda item: item.concern, default=None)
    name, sqnr = ("", None) if worst is None else (worst.name, worst.sqnr_8)
    return Round(number, len(flagged), name, sqnr, loss)


def _limited(model: nn.Module, advice: Advice) -> nn.Module:
    """The model with the limits that are advised, and no others."""
    for path, limits in advice.limits.items():
        module = model.get_submodule(path)
        kinds = [kind for kind in type(layer_of(module)).__mro__ if kind in NORMALIZED]
        before = limits_of(module)  # of an earlier round, or the user's own
        normalize_module(
            module,
            kinds[:1],
            normalize_weight_value=limits.get("weight", before.weight),
            normalize_bias_value=before.bias,
            normalize_output_value=limits.get("output", before.output),
        )
    return normalize_layers(model, normalize_weight_value=None, normalize_bias_value=None, normalize_output_value=None)


def _trained(model: nn.Module, train_step: TrainStep) -> float | None:
    try:
        loss = train_step(model.train())
        value = None if loss is None else float(loss)
    except LingerError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise UsageError(f"tune: finetune(model) failed with {type(error).__name__}: {error}.") from error
    if value is not None and not math.isfinite(value):
        raise UsageError(f"tune: finetune(model) returned the loss {value}. Train with smaller steps.")
    return value


_GIVEN = "as given"
"""The branch of a model that was calibrated before."""

INTERRUPTED = "Interrupted: this is the best model until then."
"""The note of a result after Ctrl-C."""

_NOTHING = (
    "No step is better than plain calibration beyond the noise of the data that choose, so this is plain calibration."
)
_TOO_LONG = "it would not end within the budget"
_PROBLEMS = 3
_MATTERS_DB = 1.0
"""What a scale for each output channel must give to be named."""

_OUTLIER_BITS, _SPREAD_BITS = 2.0, 4.0
"""As `linger.advise` uses them."""

_USUAL_BITS = 8


def tune(
    model: nn.Module,
    data: object,
    *,
    metric: Metric | None = None,
    budget: str | float = "2 min",
    bits: int | str = 8,
    goal: float | str | None = None,
    target: str | None = None,
    finetune: TrainStep | None = None,
    seed: int = 0,
    steps: Sequence[TuneStep] | None = None,
    test_data: object = None,
    input_range: tuple[float, float] | None = None,
    per_channel: bool | None = None,
    unsigned: bool | None = None,
) -> tuple[nn.Module, TuneResult]:
    """Quantize a model as well as a budget allows, without labels.

    The data have three parts: three samples in five are what steps learn from, one in five chooses, and the reported figure is
    measured on one in five, once, at the end. Every step runs on a copy and is kept if the error at the outputs falls on the
    choosing part by more than the noise of its samples (or `metric` rises), does not rise on what steps learn from, and is not above
    that of plain calibration on data made brighter, darker and shifted.

    The model that is given is not changed.

    Args:
        model: The float model; or one after `linger.init`, calibrated or not, whose reference then is the model itself
            in real numbers. Fusing and equalizing need the float model.
        data: Typical inputs in any form of the page "Inputs", or in parts already; all of it is kept in memory.
        metric: A figure of a quantized model, the larger the better, on data of your own; without it the error at the
            outputs against the float model decides.
        budget: CPU time of the thread that searches ("2 min", "90 s", "1 h", or seconds), or a number of measured models
            ("20 trials").
        bits: 8: every tensor keeps 8 bits. "mixed": a few get 16, weights first. For a float model also 16, or weights and
            activations as in "w4a8"; what `quant_module` marked keeps its widths.
        goal: What is enough: decibels at the output (`30`, `"30 dB"`), agreement with the float model's decisions
            (`"99 %"`), or a value of the metric; the search ends there. Without one wider tensors are to gain 10 dB.
        target: The chip: steps stay within what it has.
        finetune: `train_step(model) -> loss or None`, for those with labels: the float model is analyzed, limited where
            `linger.advise` says so and given to this function, again and again until nothing is left to limit; then it is
            tuned as above, and it is its own reference.
        seed: Of everything random. The same seed and the same completed steps give the same model.
        steps: Repeat the steps of an earlier result, without a budget.
        test_data: What the reported figure is measured on, in the same forms; then nothing of `data` is taken for it.
        input_range: The lowest and the highest number that an input may have, such as (0, 1): how far other data may reach. None:
            what the data show, 0…1, −1…1 or 0…255 where they lie within, else half as far again as they reach.
        per_channel: Whether weights have one scale for each output channel, as for `linger.init`; None: where the target has it.
        unsigned: Whether 8-bit activations that are never negative use 0 … 255; None: where the target has it.

    Returns:
        The tuned model, quantized and in evaluation mode, and what was tried. Ctrl-C ends the search: the best model so
        far is returned, and the result says so.

    Raises:
        UsageError: No data, data that the model does not accept or that are not finite, a metric that fails or returns
            no number, a budget that leaves nothing, a model that cannot be quantized. The model is as it was.
    """
    left = Budget.read(budget)
    widths = read_bits(bits, "tune")
    start = start_of(model, target, {"per_channel": per_channel, "unsigned": unsigned})
    if widths != Widths() and not widths.is_mixed:
        if start.given is not None:
            raise UsageError(
                f"tune: bits={bits!r} is for a float model. Give the model before linger.init, or use 8 or mixed."
            )
        choose_widths(start.reference, widths, "tune")
    parts = data if isinstance(data, Parts) else _parts(start.reference, data, test_data, input_range)
    threads = fitting_threads(start.reference, parts.tuning[0])
    with on_threads(threads):
        session, notes = _begun(start, parts, metric, left, seed)
    rounds: tuple[Round, ...] = ()
    first = session
    if finetune is not None:
        if start.given is not None:
            raise UsageError("tune: finetune works on the float model. Give the model before linger.init.")
        # training is the user's, and has the threads of the process
        trained, rounds = finetuned(copy.deepcopy(start.reference), finetune, parts.tuning, left)
        with on_threads(threads):
            session, notes = _begun(Start(trained, start.target, numbers=start.numbers), parts, metric, left, seed)
        notes.append(
            "After fine-tuning the reference is the fine-tuned model in float; plain calibration is that of the model given."
        )
    if steps is not None:
        left.lift()
    with on_threads(threads):
        session.is_mixed = widths.is_mixed
        _set_goal(session, goal)
        notes += _searched(session, usual_plan if steps is None else lambda _: iter(repeatable(steps)))
        return _finished(first, session, rounds, notes)


def _parts(reference: nn.Module, data: object, test_data: object, input_range: object) -> Parts:
    given = () if test_data is None else checked_data("tune, test_data", reference, test_data)
    return split(reference, checked_data("tune", reference, data), given, input_range)


def _begun(start: Start, parts: Parts, metric: Metric | None, budget: Budget, seed: int) -> tuple[Search, list[str]]:
    """Plain calibration, judged: what everything else is compared with."""
    judge = Judge(start.reference, parts, metric)
    session = Search(parts, judge, budget, STEPS, start.target, start.numbers, seed, metric)
    plain, warned = start.plain(parts.whole(parts.tuning))
    session.begin(Trial(plain, start.reference))
    given = start.given
    if given is not None and not any(isinstance(m, QuantizedBase) and m.lacks_scale for m in given.modules()):
        session.branches[_GIVEN] = Trial(given, start.reference, score=session.judged(given))
    return session, [*parts.notes, *warned]


def _set_goal(session: Search, goal: float | str | None) -> None:
    """Say what is enough, measured on the choosing part; what is no goal is refused."""
    session.goal = goal
    if goal is None:
        return
    if session.metric is not None:
        if isinstance(goal, bool) or not isinstance(goal, (int, float)):
            raise UsageError(f"tune: goal={goal!r} is no value of the metric. Give a number.")
        least = session.goal = float(goal)
        session.is_reached = lambda trial: trial.score.metric is not None and trial.score.metric >= least
        return
    reference, choosing = session.best.reference, session.parts.choosing
    read = read_goal("tune", goal, None, reference, choosing, OutputError(reference, choosing))
    session.is_reached = lambda trial: read.measure(trial.model) >= read.value


def repeatable(steps: Sequence[TuneStep]) -> list[Step]:
    """The steps of an earlier result that ran to their end, to be tried again."""
    return [Step(s.name, s.branch, s.source, dict(s.settings)) for s in steps if s.is_complete]


def _searched(session: Search, plan: Plan) -> list[str]:
    """Run the plan; returns what has to be said about its end."""
    try:
        for step in progress(plan(session), "tune"):
            if session.is_good_enough:
                return [f"The goal of {session.goal} is reached."]
            if session.budget.is_spent:
                return [f"The budget of {session.budget.text} ended before the last step."]
            if step.name not in ALWAYS and expected_seconds(session, step) > session.budget.seconds_left:
                session.skip(step, _TOO_LONG)
            else:
                session.run(step)
    except KeyboardInterrupt:
        return [INTERRUPTED]
    return []


def _finished(
    first: Search, session: Search, rounds: tuple[Round, ...], notes: list[str]
) -> tuple[nn.Module, TuneResult]:
    """The best model, which after fine-tuning may still be that of plain calibration, if a metric says so."""
    if first is not session and first.metric is not None and is_better(first.best.score, session.best.score):
        notes.append("Fine-tuning did not help by the metric, so this is the model without it.")
        session = first
    best, begun = session.best, first.begun
    assert begun is not None  # plain calibration was the beginning
    model = best.model.eval()
    weights, others = wide_shares(model)
    steps = session.settled()
    left_out = list(dict.fromkeys(step.name for step in steps if step.why == _TOO_LONG))
    if left_out:
        notes.append(
            f"Left out, for it would not end within {session.budget.text}: {', '.join(left_out)}. Raise the budget."
        )
    if {step.is_kept for step in steps} == {False}:
        notes.append(_NOTHING)
    notes += _goal_notes(session, steps)
    problems = _found_problems(session, notes)
    notes += _of_channels(session)
    last = first.judge.reported(begun), session.judge.reported(best)
    return model, TuneResult(
        plain_db=last[0].db,
        after_db=last[1].db,
        choosing_db=(begun.score.db, best.score.db),
        learning_db=(begun.score.learned_db, best.score.learned_db),
        samples=session.parts.samples,
        warning=gap_of((begun.score, best.score), last),
        steps=steps,
        branch=session.best_branch,
        plain_metric=begun.score.metric,
        after_metric=best.score.metric,
        problems=problems,
        wide=best.wide,
        wide_weights=weights,
        wide_activations=others,
        seconds=session.budget.spent,
        budget=session.budget.text,
        seed=session.seed,
        rounds=rounds,
        notes=tuple(notes),
        reference=best.reference,
    )


def _goal_notes(session: Search, steps: Sequence[TuneStep]) -> list[str]:
    """Which goal was taken for wider tensors where none was given."""
    goals = [step.settings["goal"] for step in steps if step.name == "find_bits" and session.goal is None]
    taken = f"No goal was given, so wider tensors were to gain {GAIN_DB:g} dB: {goals[0] if goals else ''} dB."
    return [f"{taken} For fewer or better ones give goal=, on the command line --goal."] * bool(goals)


def _of_channels(session: Search) -> list[str]:
    """What a scale for each output channel would give, where nobody has decided about it and no chip forbids it."""
    best, runtime = session.best, runtime_of(session.best.model)
    is_free = not (session.target or session.is_mixed or session.metric) and runtime_of(best.reference) is None
    is_decided = "per_channel" in session.numbers or runtime is None or runtime.is_per_channel
    if is_decided or not is_free or session.budget.is_spent:
        return []
    own = quantized(best.reference, session.parts.tuning, None, {**session.numbers, "per_channel": True})
    gain = session.judge(own).db - best.score.db
    if gain < _MATTERS_DB:
        return []
    given = f"One scale of the weights for each output channel gives {gain:.1f} dB more on the choosing part, without a step"
    return [f'{given}: target="c" or per_channel=True.']


def _found_problems(session: Search, notes: list[str]) -> tuple[Problem, ...]:
    best = session.best
    try:
        return problems_of(best.model, best.reference, session.parts.choosing[0])
    except LingerError as error:  # the search is over, so this is only a note
        notes.append(f"The remaining problems were not found: {error}")
        return ()


def problems_of(model: nn.Module, reference: nn.Module, batch: Batch) -> tuple[Problem, ...]:
    """The layers that make the largest errors themselves, each with the tensor that loses most."""
    layers = dict(model.named_modules())
    rows = [row for row in compare_layers(reference, model, [batch]).rows if row.born_db < FAIR_DB]
    rows = [row for row in rows if isinstance(layers.get(row.name), (QuantLayer, QuantRecurrent))]
    items = advise(reference, [batch]).items
    worst = sorted({row.name: row for row in reversed(rows)}.values(), key=lambda row: row.born_db)
    problems = (_problem(row, layers[row.name], items) for row in worst)
    return tuple(problem for problem in problems if problem is not None)[:_PROBLEMS]


def _problem(row: LayerRow, layer: nn.Module, items: Sequence[Item]) -> Problem | None:
    assert isinstance(layer, (QuantLayer, QuantRecurrent))  # as the caller chose it
    widths = {"weight": layer.widths.parameter, "output": layer.widths.output}
    own = [item for item in items if item.module == row.name and _loses(item)]
    if not own:
        return None
    worst = min(own, key=lambda item: (widths[item.role], item.sqnr_8))  # of the narrowest, what loses most
    bits = widths[worst.role]
    if bits > _USUAL_BITS:  # what the weights and the output cost at 8 bits is not the cause
        return Problem(row.name, "layer", bits, row.born_db, "inside the layer", "Its tensors are wide already.")
    return Problem(worst.name, worst.role, bits, row.born_db, _cause(worst), worst.advice)


def _loses(item: Item) -> bool:
    """Whether a weight or an output loses much at 8 bits."""
    loses = item.sqnr_8 is not None and (item.sqnr_8 < FAIR_DB or item.limit is not None or item.needs_width)
    return loses and item.role in ("weight", "output")


def _cause(item: Item) -> str:
    if (item.channel_bits or 0.0) >= _SPREAD_BITS:
        return "channel spread"
    return "outlier" if (item.outlier_bits or 0.0) >= _OUTLIER_BITS else "narrow width"


def wide_shares(model: nn.Module) -> tuple[float, float]:
    """The share of weight tensors, and of other tensors, with more than 8 bits."""
    ranges = list(ranges_of(model).values())
    weights = [r.bits > _USUAL_BITS for r in ranges if r.kind is Kind.WEIGHT]
    others = [r.bits > _USUAL_BITS for r in ranges if r.kind is not Kind.WEIGHT]
    return sum(weights) / max(1, len(weights)), sum(others) / max(1, len(others))
