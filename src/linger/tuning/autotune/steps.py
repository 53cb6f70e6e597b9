# SPDX-License-Identifier: Apache-2.0
"""Where tuning begins, its steps, and their order: what is cheap and helps most first, each on the best that there is so far.

Each step makes a quantized model from another, on the tuning part of the data alone.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from linger.analysis.batches import Batch, fresh, run_batch
from linger.constraint.conv_bn import ConvBN
from linger.errors import LingerError, UsageError, listing, no_module, refuse_if
from linger.quantization.core.calibrate import choose_ranges, local_calibration, real_copy
from linger.quantization.core.distributed.fsdp import refuse_sharded
from linger.quantization.core.quantized import QuantizedBase, ranges_of
from linger.quantization.core.runtime import Runtime, runtime_of
from linger.quantization.core.stored import Kind
from linger.quantization.core.supported import refuse_compiled, refuse_empty
from linger.quantization.setup.initialize import init, refuse_unquantizable
from linger.targets import find_target, refuse_numbers
from linger.tuning.autotune.result import Numbers, Settings, Step
from linger.tuning.autotune.search import FOLDED, HEADROOM, PLAIN, NothingToDoError, Search, StepFunction, Trial
from linger.tuning.bias_correction.correction import correct_biases
from linger.tuning.distillation import distill
from linger.tuning.equalization.equalize import equalize, fuses
from linger.tuning.exponents import choose_exponents, is_cut
from linger.tuning.held_out import GAINS, shifted
from linger.tuning.learned_rounding.rounding import round_weights
from linger.tuning.mixed_precision.find_bits import find_bits
from linger.tuning.remedy import Remedy

_SAFE = 0.9  # the share of the time left that a step may take which keeps what it has when the clock ends it
_WIDE = 16

_SEEN = 64  # samples by which it is found how far other data reach


@dataclass(frozen=True)
class Start:
    """A copy of the model that was given."""

    reference: nn.Module  # it in real numbers: the float model, or the quantized one without rounding
    target: str | None  # the chip
    given: nn.Module | None = None  # the model itself if it was quantized already
    numbers: Numbers = field(default_factory=dict)  # whether weights have scales of channels, and activations 0 … 255

    def plain(self, batches: Sequence[Batch]) -> tuple[nn.Module, list[str]]:
        """The model quantized and calibrated on these batches, and what calibration warned of.

        Raises:
            UsageError: Nothing of it becomes integers.
        """
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if self.given is None:
                model = quantized(self.reference, batches, self.target, self.numbers)
            else:
                model = copy.deepcopy(self.given)
                for one in ranges_of(model, with_adopted=True).values():  # as if calibrated for the first time
                    one.set(0.0, 0.0)
                    if one.kind is Kind.WEIGHT:
                        one.choose_range(None)
                _calibrate(model, batches)
        if not ranges_of(model):
            raise UsageError(
                f"tune: nothing of {type(self.reference).__name__} becomes integers, so there is nothing to tune. Layers with weights "
                "do, and functions that read their results; linger.coverage(model) says why others stay float."
            )
        return model, [str(warning.message) for warning in said]


def start_of(model: object, target: str | None, numbers: Numbers | None = None) -> Start:
    """Copy a model; what cannot be tuned is refused.

    Raises:
        UsageError: It is no module, holds NaN, or cannot be quantized or copied; the chip is unknown, or another one than its own.
    """
    if not isinstance(model, nn.Module):
        raise no_module("tune", model)
    chip = None if target is None else find_target(target).name
    runtime = runtime_of(model)
    refuse_compiled(model)
    refuse_empty(model)
    refuse_sharded(model, "tune")
    refuse_not_finite(model)
    if runtime is None:
        refuse_unquantizable(model)
    elif chip not in (None, runtime.target):
        raise UsageError(
            f"tune: target={chip!r}, and the model was quantized for {runtime.target!r}. Give the float model instead, or "
            "leave target out."
        )
    try:
        own = copy.deepcopy(model).eval()
    except LingerError:
        raise
    except Exception as error:  # a user's class may refuse to be copied in any way
        raise UsageError(f"tune: {type(model).__name__} cannot be copied ({type(error).__name__}: {error}).") from error
    asked = _asked(numbers or {}, chip, runtime)
    return Start(own, chip, numbers=asked) if runtime is None else Start(real_copy(own), runtime.target, own)


def _asked(numbers: Numbers, chip: str | None, runtime: Runtime | None) -> Numbers:
    """What is said of the numbers; what the chip does not have, or a quantized model, is refused."""
    asked = {name: value for name, value in numbers.items() if value is not None}
    refuse_numbers("tune", chip, **asked)
    wrong = [name for name, value in asked.items() if runtime is not None and value != getattr(runtime, f"is_{name}")]
    refuse_if(wrong, f"tune: {listing(wrong)} is not what the model was quantized with. Give the float model instead.")
    return asked


def refuse_not_finite(model: nn.Module) -> None:
    """Refuse weights that are no numbers, all of them by name; infinity in a buffer may be meant, as in a mask."""
    wrong = [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]
    for path, module in model.named_modules():
        own = module.named_buffers(path, recurse=False)
        unread = module.optional if isinstance(module, QuantizedBase) else ()
        wrong += [name for name, b in own if name.rpartition(".")[2] not in unread and bool(b.isnan().any())]
    if wrong:
        raise UsageError(
            f"{type(model).__name__}: {listing(wrong)} holds NaN or infinity. Train the model again, or load a "
            "checkpoint that is whole."
        )


def quantized(
    reference: nn.Module, batches: Sequence[Batch], target: str | None, numbers: Numbers | None = None
) -> nn.Module:
    """A copy of a float model, quantized and calibrated on these batches."""
    per_channel, unsigned = ((numbers or {}).get(name) for name in ("per_channel", "unsigned"))
    model = init(copy.deepcopy(reference), target=target, per_channel=per_channel, unsigned=unsigned).eval()
    _calibrate(model, batches)
    return model


def _calibrate(model: nn.Module, batches: Sequence[Batch]) -> None:
    with torch.no_grad(), local_calibration():
        for batch in batches:
            run_batch(model, fresh(batch))


# steps on the float model
def fuse(session: Search, start: Trial, settings: Settings) -> Trial:
    """Fold batch norms into their convolutions, and mark what ReLU follows."""
    del settings
    reference = _float_model(start)
    is_changed = fuses(reference, session.parts.tuning[0])
    folded, every = (sum(isinstance(m, kind) for m in reference.modules()) for kind in (ConvBN, _BatchNorm))
    note = f"{folded} of {every} batch norms are folded"
    if not is_changed:
        raise NothingToDoError(f"{note}, and no ReLU follows a layer")
    model = quantized(reference, session.whole, session.target, session.numbers)
    return Trial(model, reference, note=f"; {note}")


def equalization(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.equalize`."""
    reference = _float_model(start)
    with session.budget.watching(reference):
        parts, some = session.parts, session.some(settings.get("batches"))
        others = shifted(some, parts.intervals, GAINS[-1:])[f"gain {GAINS[-1]:g}"]
        result = equalize(
            reference, session.whole, target=session.target, trial_data=some, other_data=others, **session.numbers
        )
    if not result.changes or result.after_db <= result.before_db:
        raise NothingToDoError("no factors are better than none on the data that it saw")
    return Trial(quantized(reference, session.whole, session.target, session.numbers), reference, result.trials)


def _float_model(start: Trial) -> nn.Module:
    if runtime_of(start.reference) is not None:
        raise NothingToDoError("the model was quantized already, and this needs the float model")
    return copy.deepcopy(start.reference)


# steps on the quantized model
def methods(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.choose_ranges`: other methods of calibration, from what was counted."""
    del session
    model = copy.deepcopy(start.model)
    before = {key: one.save() for key, one in ranges_of(model).items()}
    choose_ranges(model, **settings)
    for key, one in ranges_of(model).items():
        if key in before and is_cut(before[key][0], one.scale, one):
            one.restore(before[key])
    if all(one.save() == before.get(key) for key, one in ranges_of(model).items()):
        raise NothingToDoError("every range is the same by this method")
    return Trial(model, start.reference)


def bias_correction(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.correct_biases`."""
    return _remedied(session, start, correct_biases, **settings)


def rounding(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.round_weights`."""
    return _remedied(session, start, round_weights, seed=session.seed, **settings)


def exponents(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.choose_exponents`, on some rows of every batch where all would take too long."""
    return _remedied(session, start, choose_exponents, settings["batches"], max_trials=settings["max_trials"])


def distillation(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.distill`; where its steps take longer than expected the clock ends it, and it keeps what it has."""
    left = session.budget.seconds_left
    limit = None if math.isinf(left) else left * _SAFE
    return _remedied(session, start, distill, is_watched=False, seed=session.seed, budget=limit, **settings)


def _remedied(
    session: Search,
    start: Trial,
    remedy: Callable[..., Remedy],
    batches: int | None = None,
    *,
    is_watched: bool = True,
    **options: Any,
) -> Trial:
    """What a remedy makes of a copy; it has judged itself on the tuning data, and may have undone everything."""
    model = copy.deepcopy(start.model)
    watched = [model] if is_watched else []
    with session.budget.watching(*watched):
        result = remedy(model, start.reference, session.some(batches), **options)
    if not result.changes or result.after_db == result.before_db:
        raise NothingToDoError(f"{result.name} found nothing better on the data that it saw")
    return Trial(model, start.reference, max(1, result.trials))


def widening(session: Search, start: Trial, settings: Settings) -> Trial:
    """`linger.find_bits`: 16 bits for a few tensors, chosen anew where the step before has widened others."""
    narrow = start.model if start.narrow is None else start.narrow
    model = copy.deepcopy(narrow)
    options = {name: value for name, value in settings.items() if name not in ("is_of_metric", "batches")}
    if session.metric is not None and settings["is_of_metric"]:
        options |= {"goal": session.metric, "at_least": settings["goal"]}
    some = session.some(settings["batches"])
    with session.budget.watching(model):
        result = find_bits(model, start.reference, some, target=session.target, bits=(8, 16), **options)
    if not result.changed:
        raise NothingToDoError("no tensor had to be wider")
    return Trial(model, start.reference, max(1, result.trials), wide=result.changed, narrow=narrow)


def headroom(session: Search, start: Trial, settings: Settings) -> Trial:
    """Coarser scales for wide activations: other data may go beyond what was seen, and 16 bits can spare a few."""
    del session
    model = copy.deepcopy(start.model)
    wide = [r for r in ranges_of(model).values() if r.kind is not Kind.WEIGHT and r.bits >= _WIDE and r.scale]
    if not wide:
        raise NothingToDoError("no activation is wider than 8 bits")
    for one in wide:
        one.choose(one.scale / 2.0 ** settings["bits"])
    return Trial(model, start.reference)


def widened(session: Search, start: Trial, settings: Settings) -> Trial:
    """Room in the ranges of data for inputs that are brighter, darker or shifted; what the network itself limits stays as it is."""
    model, seen = copy.deepcopy(start.model), copy.deepcopy(start.model)
    parts = session.parts
    some = parts.drawn(parts.tuning, _SEEN)
    _calibrate(seen, some)  # on top of what was chosen, so that ranges that were cut on purpose stay cut
    wide = copy.deepcopy(seen)
    _calibrate(wide, [b for batches in shifted(some, parts.intervals, (settings["gain"],)).values() for b in batches])
    reached, before = ranges_of(wide), ranges_of(seen)
    low = [one for key, one in ranges_of(model).items() if one.kind is not Kind.WEIGHT and one.scale > 0]
    low = [one for one in low if reached[one.key].scale < before[one.key].scale]
    if not low:
        raise NothingToDoError("nothing of the network reaches farther on brighter, darker or shifted data")
    for one in low:
        one.choose(one.scale * reached[one.key].scale / before[one.key].scale)
    return Trial(model, start.reference)


STEPS: Mapping[str, StepFunction] = {
    "fuse": fuse,
    "equalize": equalization,
    "choose_ranges": methods,
    "correct_biases": bias_correction,
    "round_weights": rounding,
    "choose_exponents": exponents,
    "distill": distillation,
    "find_bits": widening,
    "headroom": headroom,
    HEADROOM: widened,
}
"""Every step by its name."""

# the order
EQUALIZED, TOGETHER = "equalized", "together"
"""The branches that begin with equalization, and with the methods that help most networks, tried as one."""

_PASSES: Mapping[str, float] = {
    "fuse": 4.0,
    "choose_ranges": 1.0,
    "equalize": 8.0,
    "correct_biases": 8.0,
    "find_bits": 60.0,
    "round_weights": 22.0,
    "choose_exponents": 10.0,
    "distill": 20.0,
    "headroom": 2.0,
    HEADROOM: 4.0,
}
"""What a step costs at least, in passes over the tuning data, before it was measured."""

ALWAYS = ("fuse", "choose_ranges")
"""Steps so cheap that no estimate, which begins with one cold pass, may leave them out while time is left."""

_METHODS: tuple[Mapping[str, str], ...] = (
    {"weights": "mse"},
    {"outputs": "topk"},
    {"outputs": "mse"},
    {"outputs": "percentile:99.9"},
    {"inputs": "mse"},
)
"""Methods of calibration, tried one after the other on top of what helped; the first two are enough for few data."""

_TOGETHER: Mapping[str, str] = {"weights": "mse", "outputs": "topk"}
"""What helps most networks together, tried as one: one of them alone may lose, and greed would never see what both gain."""

_ANY_TENSOR = 3  # times as long as of weights alone a search of all tensors takes, about
_WIDE_LAYERS = 6  # at most so many layers get 16-bit weights at first
GAIN_DB = 10.0
"""What wider tensors should gain where no goal is given."""

_EQUALIZE_PASSES = 28  # passes that equalization takes, about: of eight trials
_NEAR_DB = 1.0  # a branch that begins farther behind another one is not gone on with
_TRIALS_EACH = 3
_SEARCH_SHARE = 0.2
"""Trials of a search for each range, and the part of the time left that they may take."""

_TRAININGS: tuple[Mapping[str, float | bool], ...] = ({}, {"learning_rate": 0.01}, {"learn_ranges": True})
"""Ways to train, one after the other on top of what helped, where a short trial of the first has gained something."""

_FASTEST = 1e-4

_POSITIONS, _FIXED, _LEAST_PART = 4096, 0.3, 0.2
"""Of rounding: the positions that it looks at, the part of its cost that does not depend on the data, and the least part of them."""

_STEP_COST = 5.0  # a step of training costs about as much as so many forward passes of its batch
_SHARE = 0.6  # of the time left that training may take
_MOST_STEPS, _LEAST_STEPS = 400, 20


def usual_plan(session: Search) -> Iterator[Step]:
    """Folded first, then branches with and without equalization; wider tensors, if wished; the best of all is rounded and trained.

    The order is that of value: what gains most for its time comes first, so that a short budget has most of a long one's gain.
    """
    yield Step("fuse", FOLDED, PLAIN)
    base = FOLDED if FOLDED in session.branches else PLAIN
    yield Step("equalize", EQUALIZED, base, {"batches": affordable(session, _EQUALIZE_PASSES)[0]})
    if session.is_mixed:
        yield from _mixed(session, base)
    else:
        yield from _narrow(session, base)
    nearest = min(session.branches, key=lambda name: session.branches[name].score.error)
    if nearest != session.best_branch:  # it may only lack room
        yield from _room(session, nearest)
    yield from _polished(session, session.best_branch)


def _narrow(session: Search, base: str) -> Iterator[Step]:
    """Ranges and rounding at 8 bits of the nearest branch, and while time is left of others that are not far behind it."""
    branches = _by_error(session, base, EQUALIZED, PLAIN)  # the better one first, the older one of equals
    yield Step("choose_ranges", TOGETHER, branches[0], _TOGETHER)
    branches = _by_error(session, *branches, TOGETHER)
    least = session.branches[branches[0]].score.db - _NEAR_DB
    for branch in [name for name in branches if session.branches[name].score.db > least]:
        if branch == branches[0] or _leaves_time(session, branch, "choose_ranges"):
            yield from _ranges(session, branch)
            yield from _rounded(session, branch)


def _by_error(session: Search, *names: str) -> list[str]:
    return sorted(filter(session.branches.__contains__, names), key=lambda name: session.branches[name].score.error)


def _rounded(session: Search, branch: str) -> Iterator[Step]:
    """Rounding, which gains most for its time, of fewer samples and positions where all would take too long; it sets biases, too."""
    whole = Step("round_weights", branch, branch)
    afforded = session.budget.seconds_left * _SAFE / max(expected_seconds(session, whole), _FASTEST)
    part = (min(afforded, 1.0) - _FIXED) / (1 - _FIXED)
    fitting = {"batches": max(2, int(part * len(session.parts.tuning))), "positions": int(part * _POSITIONS)}
    yield replace(whole, settings=fitting if _LEAST_PART <= part < 1 else {})
    yield Step("correct_biases", branch, branch)


def _polished(session: Search, best: str) -> Iterator[Step]:
    """Dearer steps on the best branch; biases are corrected again only where something has changed since."""
    if not any(step.name == "round_weights" and step.branch == best for step in session.steps):
        yield from _rounded(session, best)
    if not (session.is_mixed or session.parts.is_few):
        yield from _exponents(session, best)
        if _was_kept(session, "choose_exponents"):
            yield Step("correct_biases", best, best)
    yield from _room(session, best)
    if session.parts.is_few:
        return
    steps = training_steps(session)
    if steps < _LEAST_STEPS:
        return
    yield Step("distill", best, best, {"steps": _LEAST_STEPS})
    if not _was_kept(session, "distill"):
        return
    for settings in _TRAININGS:
        steps = training_steps(session)
        if steps >= _LEAST_STEPS:
            yield Step("distill", best, best, {"steps": steps, **settings})
    yield Step("correct_biases", best, best)


def _room(session: Search, branch: str) -> Iterator[Step]:
    """Headroom, and less of it where that costs too much."""
    for gain in (2.0, 1.5):
        yield Step(HEADROOM, branch, branch, {"gain": gain})
        if _was_kept(session, HEADROOM):
            return


def _was_kept(session: Search, name: str) -> bool:
    """Whether the step that was tried last is this one, and helped."""
    return bool(session.steps) and session.steps[-1].name == name and session.steps[-1].is_kept


def _mixed(session: Search, base: str) -> Iterator[Step]:
    """Wider tensors first: scales and biases that were fitted to narrow ones would hide what wide ones gain."""
    for branch in _by_error(session, base, EQUALIZED):
        yield from _ranges(session, branch)
    branches = _by_error(session, base, EQUALIZED)  # a short budget widens the nearest alone
    goal = session.goal if session.goal is not None else round(session.best.score.db + GAIN_DB, 1)
    for branch in branches:
        if branch == branches[0] or _leaves_time(session, branch, "find_bits", "correct_biases"):
            yield from _widened(session, branch, goal)
            yield Step("headroom", branch, branch, {"bits": 2})
            yield Step("correct_biases", branch, branch)
    best = session.best_branch
    if _leaves_time(session, best, "choose_exponents", "correct_biases"):
        yield from _exponents(session, best)
        yield Step("correct_biases", best, best)


def _ranges(session: Search, branch: str) -> Iterator[Step]:
    for methods in _METHODS[: 2 if session.parts.is_few else None]:
        yield Step("choose_ranges", branch, branch, methods)


def _exponents(session: Search, branch: str) -> Iterator[Step]:
    """Exponents by the error at the output, where the time allows a trial of every range at least."""
    count = len(ranges_of(session.branches[branch].model))
    batches, trials = affordable(session, _TRIALS_EACH * count)
    if trials >= count:
        yield Step("choose_exponents", branch, branch, {"max_trials": trials, "batches": batches})


def _widened(session: Search, branch: str, goal: float | str) -> Iterator[Step]:
    """16-bit weights of a few layers; where that is not enough, any activation, too."""
    batches, trials = affordable(session, _TRIALS_EACH * len(ranges_of(session.branches[branch].model)))
    settings = {
        "goal": goal,
        "is_of_metric": session.goal is not None and session.metric is not None,
        "max_wide_layers": _WIDE_LAYERS,
        "max_trials": trials,
        "batches": batches,
    }
    yield Step("find_bits", branch, branch, settings | {"widen": ["weights"]})
    after = session.branches[branch]
    is_enough = session.is_reached(after) if session.is_reached is not None else after.score.db >= float(goal)
    if not is_enough and _leaves_time(session, branch, *["find_bits"] * _ANY_TENSOR, "correct_biases"):
        yield Step("find_bits", branch, branch, settings)


def _leaves_time(session: Search, branch: str, *names: str) -> bool:
    """Whether steps can be run and weights still be rounded after them."""
    steps = [Step(name, branch, branch) for name in (*names, "round_weights")]
    return sum(expected_seconds(session, step) for step in steps) <= session.budget.seconds_left


def affordable(session: Search, wanted: int) -> tuple[int, int]:
    """Batches and trials of a search: as many trials as wanted, on fewer batches where all of them would take too long."""
    allowed = session.budget.seconds_left * _SEARCH_SHARE / max(session.batch_seconds, _FASTEST)  # passes of one batch
    batches = int(max(1, min(len(session.parts.tuning), allowed / wanted)))  # as many samples, drawn from every batch
    return batches, int(max(1, min(wanted, allowed / batches, session.budget.trials_left)))


def training_steps(session: Search) -> int:
    """As many steps as fit into a part of the time that is left."""
    before = [s.seconds / s.settings["steps"] for s in session.steps if s.name == "distill" and s.seconds]
    each = max(before, default=_STEP_COST * max(session.batch_seconds, _FASTEST))
    return int(min(_MOST_STEPS, session.budget.seconds_left * _SHARE / each))


def expected_seconds(session: Search, step: Step) -> float:
    """What a step will cost: as much as before, or a number of passes."""
    if step.name == "distill" or "positions" in step.settings:
        return 0.0  # its number of steps was chosen by the time, and it keeps what it has when the clock ends it
    one_pass = session.batch_seconds * len(session.parts.tuning)
    return session.costs.get(step.name, _PASSES.get(step.name, 1.0) * one_pass)
