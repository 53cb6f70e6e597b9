# SPDX-License-Identifier: Apache-2.0
"""Whether a network can go to the chip: is it exact, is it good enough, does it fit. One level and one line, from the facts of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter, itemgetter
from typing import Any

from linger.errors import listing
from linger.reporting.facts import GAP, METRIC_DATA, SEEN, UNSEEN, Proof, Quality, Run

READY, ATTENTION, UNKNOWN, NOT_READY = "ready", "attention", "unknown", "not ready"
LEVELS = (READY, ATTENTION, UNKNOWN, NOT_READY)
"""The levels of a verdict, the best first."""
NOT_ASKED = "not asked"
"""The level of a part that nobody asked for; it holds nothing back."""
_WORDS = {READY: "Ready", ATTENTION: "Needs attention", NOT_READY: "Not ready", UNKNOWN: "Not proven"}
_ANSWERS = {READY: "yes", ATTENTION: "doubtful", UNKNOWN: "not known", NOT_READY: "no", NOT_ASKED: "not asked"}

EXACT, GOOD_ENOUGH, FITS = "exact", "good enough", "fits"
"""The parts of a verdict."""

LOW_AGREEMENT = 99.0
"""Percent of equal decisions below which somebody should look at the network."""
LARGE_DROP = 1.0
"""Percentage points that a figure may lose against the float network."""
LOW_SIGNAL = 20.0
"""Decibels at an output below which the noise is more than a tenth of the signal."""
CLEAR_SIGNAL = 30.0
"""Decibels at the output from which on other decisions are no cause for worry: rows of a regression have no classes."""
FEW_SAMPLES = 50
"""With fewer samples one decision is more than two points."""
LARGE_GAPS = {"dB": 3.0, "%": LARGE_DROP}
"""How much worse than on tuning data a figure may be, even where chance does not explain it."""

_MORE = f"Judge by {FEW_SAMPLES} samples or more: --test-data, or {5 * FEW_SAMPLES} samples of --data, of which one in five is held out."
_UNSEEN = "Judge by samples that are not among those of tuning: --test-data, or more samples of --data, of which one in five is held out."
_TYPICAL = "Give --data and --test-data as the network will see them."
_VARIED = "Give more, and more varied, --data: tuning has fitted the network to data unlike those that it is judged by."
_HELD_OUT = "Judge by data that calibration has not seen: linger quantize holds some out, and linger.report takes held_out=True."
_DROPPED = "The page 'Accuracy dropped' of the documentation shows how to find the cause, and how to train it away."
_MEASURE = (
    "Measure it: linger quantize does, and linger.report with model=, reference= and data= that no step has seen."
)


@dataclass(frozen=True)
class Part:
    """One of the three things that a network needs.

    Attributes:
        name: `exact`, `good enough` or `fits`.
        level: `ready`; `attention` where something should be looked at; `unknown` where it was not measured; `not ready`; or `not
            asked`, which holds nothing back: no chip was named.
        sentence: What is known of it, in one or a few sentences.
        remedy: What to do about it; empty where there is nothing to do.
    """

    name: str
    level: str
    sentence: str
    remedy: str = ""

    @property
    def answer(self) -> str:
        """The level as an answer: `yes`, `doubtful`, `not known`, `no`, `not asked`."""
        return _ANSWERS[self.level]

    @property
    def is_holding(self) -> bool:
        """Whether it keeps the network from being ready."""
        return self.level not in (READY, NOT_ASKED)


@dataclass(frozen=True)
class Verdict:
    """What a report says first.

    Attributes:
        level: `ready` where all parts are; `attention`, `not ready`, or `unknown` where nothing was proven.
        headline: The verdict as one line, cautions included.
        reasons: Sentences behind it, the gravest first: what holds the network back, or what was shown where nothing does.
        is_enough: Whether the quality is: it reaches its goal, or without a goal nothing that was measured is low.
        parts: Whether the file is exact, whether the quality is good enough, and whether the network fits.
        cautions: What makes the figures of quality doubtful: few samples, constant data, data that were seen.
    """

    level: str
    headline: str
    reasons: tuple[str, ...] = ()
    is_enough: bool = True
    parts: tuple[Part, ...] = ()
    cautions: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the network is proven, nothing forbids it, and its quality is enough."""
        return self.level in (READY, ATTENTION) and self.is_enough

    @property
    def word(self) -> str:
        """The level as the report and the commands show it."""
        return _WORDS[self.level]

    @property
    def sentence(self) -> str:
        """The word and the headline, which does not say the word again."""
        rest = self.headline.removeprefix(self.word).lstrip(", ")
        return f"{self.word}: {rest}." if rest else f"{self.word}."

    def facts(self) -> dict[str, Any]:
        """The verdict as plain data, as it stands in JSON."""
        parts = [{**asdict(part), "answer": part.answer} for part in self.parts]
        return {**asdict(self), "word": self.word, "parts": parts}

    def lines(self) -> Iterator[str]:
        """A line for each part, and one for what to do about it."""
        for part in self.parts:
            yield f"{part.name}: {part.answer}. {part.sentence}"
            if part.remedy:
                yield f"  → {part.remedy}"


def verdict_of(run: Run) -> Verdict:
    """Judge a run.

    It is `ready` if it is exact, its quality was measured and is good enough, and nothing is known that keeps it from fitting;
    `not ready` if a part is; `unknown` without a proof; and else `attention`.
    """
    cautions = tuple(_cautions(run))
    parts = (_exact(run.proof), _good_enough(run, cautions), _fits(run))
    levels = {part.level for part in parts}
    if NOT_READY in levels:
        level = NOT_READY
    elif parts[0].level == UNKNOWN:
        level = UNKNOWN
    else:
        level = ATTENTION if levels & {ATTENTION, UNKNOWN} else READY
    holding = sorted(filter(attrgetter("is_holding"), parts), key=lambda part: -LEVELS.index(part.level))
    reasons = tuple(part.sentence for part in holding or parts)
    said = tuple(text for text, _ in cautions)
    is_enough = not _low(run) and (not run.goal or run.is_goal_met is True)
    return Verdict(level, _headline(run, said), reasons, is_enough, parts, said)


def memory_needed(run: Run) -> int | None:
    """Bytes of working memory, if known: the most alive at one step where a chip limits these, else the arena of the program in C."""
    if run.memory is None:
        return None
    is_live = run.memory.arena_bytes is None or run.memory.limit_bytes is not None
    return run.memory.peak_bytes if is_live else run.memory.arena_bytes


# Exact


def _exact(proof: Proof | None) -> Part:
    if proof is None:
        sentence = "Nobody has compared the file with another computation of the network."
        return Part(EXACT, UNKNOWN, sentence, "Compare it: linger verify.")
    integers = _counted(proof.integers, "integer")
    if not proof.is_exact:
        what = f"{proof.differing:,} of {integers} differ." if proof.differing else "Outputs in floating point differ."
        sentence = f"{what} First: {proof.first}" if proof.first else what
        remedy = (
            "Look for the first difference: linger verify, and the page 'The device disagrees' of the documentation."
        )
        return Part(EXACT, NOT_READY, sentence, remedy)
    with_what = f": the file = {' = '.join(proof.compared)}" if proof.compared else ""
    return Part(EXACT, READY, f"0 of {integers} differ{with_what}.")


# Good enough


def _good_enough(run: Run, cautions: Sequence[tuple[str, str]]) -> Part:
    if not run.quality:
        goal = f", so whether the goal of {run.goal} is reached is not known" * bool(run.goal)
        return Part(GOOD_ENOUGH, UNKNOWN, f"Nobody has measured the quality{goal}.", _MEASURE)
    low, measured = _low(run), _quality_text(run)
    if run.goal and run.is_goal_met is False:
        sentence = f"The quality is not enough: the goal of {run.goal} is not reached, with {measured}."
        return Part(GOOD_ENOUGH, NOT_READY, sentence, _next_step(run, cautions))
    if low:
        return Part(GOOD_ENOUGH, ATTENTION, f"The quality is low: {_quality(low[0])}.", _next_step(run, cautions))
    if run.goal and run.is_goal_met is None:
        sentence = f"Whether the goal of {run.goal} is reached is not known: nobody has measured it."
        return Part(GOOD_ENOUGH, ATTENTION, sentence, "Give a goal of another kind: a share of decisions, or decibels.")
    if cautions:
        doubts = "; ".join(text for text, _ in cautions)
        return Part(GOOD_ENOUGH, ATTENTION, f"{_capital(measured)}, but {doubts}.", cautions[0][1])
    if _is_unjudged(run):
        sentence = f"{_capital(measured)}: nobody said which {run.quality[0].name} is enough."
        return Part(GOOD_ENOUGH, ATTENTION, sentence, "Say so: --goal, a value of the metric.")
    return Part(GOOD_ENOUGH, READY, f"{_capital(measured)}{_about(run.quality[0])}.")


def _about(figure: Quality) -> str:
    """On what it was measured: ` on 119 samples of held-out data`."""
    count = "" if figure.samples is None else _counted(figure.samples, "sample")
    where = " of ".join(text for text in (count, figure.data) if text)
    chosen = ", by which tuning has chosen" * (figure.data == METRIC_DATA and figure.plain is not None)
    return where and f", on {where}{chosen}"


def _cautions(run: Run) -> Iterator[tuple[str, str]]:
    """What makes the figures doubtful, as the headline says it, and what to do about it."""
    yield from ((text, _VARIED if text.startswith(GAP) else _TYPICAL) for text in run.cautions)
    fewest = _fewest_samples(run)
    if fewest < FEW_SAMPLES:
        yield f"judged by {_counted(fewest, 'sample')} only", _MORE
    data = {figure.data for figure in run.quality if figure.unit and figure.data}
    if SEEN in data:
        yield "judged by data that tuning has seen", _UNSEEN
    elif data - set(UNSEEN):
        yield "judged by data that calibration may have seen", _HELD_OUT
    gap = next(_gaps(run), None)
    if gap is not None:
        yield gap, _VARIED


def _fewest_samples(run: Run) -> int:
    """The samples behind the figure that has the fewest; where no number is known, enough."""
    return min((figure.samples for figure in run.quality if figure.samples is not None), default=FEW_SAMPLES)


def _gaps(run: Run) -> Iterator[str]:
    """Figures that are better on data that tuning has seen, by more than chance explains, and by more than a little."""
    for figure in run.quality:
        if figure.seen is not None and figure.chance is not None and figure.unit in LARGE_GAPS:
            gap = figure.seen - figure.after
            if gap > max(figure.chance, LARGE_GAPS[figure.unit]):
                better = f"{_figure(gap)} {'points' if figure.unit == '%' else figure.unit}"
                yield f"{figure.name} {better} better on the data of tuning"


def _next_step(run: Run, cautions: Sequence[tuple[str, str]]) -> str:
    """What to try next where the quality is low, chosen by the cause; what was measured comes first."""
    measured = " ".join((run.offer, *map(itemgetter(1), cautions[:1]))).strip()
    if measured:
        return measured
    if any(map(_is_below_plain, run.quality)):
        return _VARIED
    widths = [int(text) for layer in run.layers for text in layer.bits.split("/") if text.isdecimal()]
    if max(widths, default=math.inf) <= 8:
        step = "Try linger quantize --bits mixed: 16 bits where they help most."
    elif run.float_layers:
        step = f"Look at the layers that stayed float: {_FLOAT}"
    else:
        step = _DROPPED
    if run.quality[0].unit == "%" and run.quality[0].before is None:
        step += " If these decisions are not what counts, judge by labels, or by your own figure: --metric file.py:callable."
    return step


def _is_below_plain(figure: Quality) -> bool:
    return figure.plain is not None and figure.plain > figure.after and figure.unit == "dB"


def _low(run: Run) -> list[Quality]:
    """Figures that are too low: what is no number; and without a goal the most telling one, or that of an output."""
    wrong = [figure for figure in run.quality if math.isnan(figure.after)]
    if wrong or run.goal or not run.quality:
        return wrong
    first = run.quality[0]
    if not first.unit and not _is_unjudged(run):
        return []  # the user's figure is no worse than that of the float network
    telling = next(filter(attrgetter("unit"), run.quality), first)
    outputs = sorted(filter(attrgetter("output"), run.quality), key=attrgetter("after"))
    return [figure for figure in (*outputs, telling) if _is_low(figure, run.quality)]


def _is_unjudged(run: Run) -> bool:
    """Whether the most telling figure is the user's own, below that of the float network, and nobody said what is enough."""
    first = run.quality[0]
    return not first.unit and not run.goal and (first.before is None or first.after < first.before)


def _is_low(quality: Quality, among: Sequence[Quality] = ()) -> bool:
    """Whether a figure is one that somebody should look at.

    Only for percentages and decibels: nobody knows the scale of other figures. Agreement is not low where another figure
    `among` all of them says that the signal at the output is clear.
    """
    if quality.unit == "dB":
        return quality.after < LOW_SIGNAL
    if quality.unit != "%":
        return False
    if quality.before is not None:
        return quality.before - quality.after > LARGE_DROP
    is_clear = any(other.unit == "dB" and other.after >= CLEAR_SIGNAL for other in among)
    return quality.after < LOW_AGREEMENT and not is_clear


# Fits

_FLOAT = "the page 'My op is not supported' of the documentation says how they become integers."


def _fits(run: Run) -> Part:
    forbidding = list(_forbidding(run))
    problems = [*forbidding, *_doubts(run)]
    unasked = [] if run.target else ["No chip was named, so nothing was checked against one."]
    if problems:
        sentences = [*(sentence for sentence, _ in problems), *unasked]
        return Part(FITS, NOT_READY if forbidding else ATTENTION, " ".join(sentences), problems[0][1])
    facts = unasked or [f"The check found nothing that forbids {run.target}."]
    arena = None if run.target or run.memory is None else run.memory.arena_bytes
    facts += [] if arena is None else [f"The program in C needs {_counted(arena, 'byte')} of working memory."]
    facts += ["Every layer that computes runs on integers."] * bool(run.layers and not run.float_ops)
    return Part(FITS, READY if run.target else NOT_ASKED, " ".join(facts))


def _forbidding(run: Run) -> Iterator[tuple[str, str]]:
    """Why the network cannot go to the chip, and what to do about it."""
    errors = [finding for finding in run.findings if finding.severity == "error"]
    if errors:
        rules = listing(sorted({finding.rule or finding.reason for finding in errors}), limit=3)
        remedy = next((finding.remedy for finding in errors if finding.remedy), "")
        yield f"{_errors(run)}: {rules}.", remedy
    if _memory_missing(run):
        sentence = f"The chip lacks {_counted(_memory_missing(run), 'byte')} of memory."
        yield sentence, "linger memory shows the layers at which most is alive: make these smaller."


def _doubts(run: Run) -> Iterator[tuple[str, str]]:
    if run.float_layers:
        names = listing([layer.name for layer in run.float_layers], limit=3)
        yield f"{_float_layers(run)}: {names}.", _capital(_FLOAT)
    if _warnings(run):
        remedy = next((finding.remedy for finding in run.findings if finding.severity == "warning"), "")
        yield f"{_warnings(run)}.", remedy


def _float_layers(run: Run) -> str:
    """`1 layer runs in floating point`; empty where none does."""
    count = len(run.float_layers)
    return f"{_counted(count, 'layer')} run{'s' * (count == 1)} in floating point" if count else ""


def _warnings(run: Run) -> str:
    count = _found(run, "warning")
    return f"{_counted(count, 'warning')} of the check" if count else ""


def _memory_missing(run: Run) -> int:
    """Bytes that the chip lacks: the tensors alive at one step must take less than it has."""
    if run.memory is None or run.memory.limit_bytes is None:
        return 0
    return max(0, run.memory.peak_bytes + 1 - run.memory.limit_bytes)


def _found(run: Run, severity: str) -> int:
    return sum(finding.severity == severity for finding in run.findings)


def _errors(run: Run) -> str:
    """`1 finding forbids venus`; where no chip was asked, `1 error of the check`."""
    errors = _found(run, "error")
    if not run.target:
        return f"{_counted(errors, 'error')} of the check"
    return f"{_counted(errors, 'finding')} forbid{'s' * (errors == 1)} {run.target}"


# Words


def _headline(run: Run, cautions: Sequence[str]) -> str:
    is_other = run.proof is not None and not run.proof.is_exact
    doubts = [_float_layers(run), _warnings(run)]
    is_fitting = run.target and not is_other and not any((*doubts, *_forbidding(run)))
    parts = [
        _proven(run.proof),
        _errors(run) if _found(run, "error") else "",
        f"too large for the memory of {run.target or 'the chip'}" if _memory_missing(run) else "",
        f"fits {run.target}" if is_fitting else "",
        *doubts,
        f"{_quality_text(run)}{' in the simulation' * is_other}" if run.quality else "quality not measured",
    ]
    return ", ".join([*filter(None, parts), *cautions])


def _proven(proof: Proof | None) -> str:
    if proof is None or proof.is_exact:
        return "Not proven" if proof is None else "Bit-exact"
    integers = f"{_counted(proof.differing, 'integer')} differ{'s' * (proof.differing == 1)}"
    return integers if proof.differing else "Outputs differ"  # numbers of float ops only


def _quality_text(run: Run) -> str:
    """The most telling figure, and of several outputs the worst: an average may hide it."""
    first = run.quality[0]
    outputs = [figure for figure in run.quality if figure.output]
    if len(outputs) < 2:
        return _quality(first)
    worst = min(outputs, key=lambda figure: -math.inf if math.isnan(figure.after) else figure.after)
    text = f"{_quality(worst)}, the worst of {len(outputs)} outputs"
    return f"{text} ({figure_text(first)} over all)" if first.unit == "dB" else f"{_quality(first)}, {text}"


def _quality(quality: Quality) -> str:
    """`99.2 % agreement with the float model`, `97.1 % accuracy (98.0 % in float)`."""
    before = "" if quality.before is None else f" ({figure_text(quality, quality.before)} in float)"
    return f"{figure_text(quality)} {quality.name}{before}"


def figure_text(quality: Quality, value: float | None = None) -> str:
    """A figure with its unit; `value` is another one of its kind: that of the float network, or of plain calibration."""
    shown = quality.after if value is None else value
    if math.isinf(shown):
        return f"{'minus ' * (shown < 0)}infinite"
    return f"{_figure(shown, 3 if quality.unit else 4)}{quality.unit and f' {quality.unit}'}"


def _figure(value: float, digits: int = 3) -> str:
    """One digit behind the point, more of them below 1, and never a 100.0 that is not one."""
    if value < 100 <= round(value, 1):
        return f"{value:.4f}".rstrip("0")
    return f"{value:.{digits}g}" if 0 < abs(value) < 1 else f"{value:,.1f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
