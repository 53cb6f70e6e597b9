"""One level and one sentence, from the facts."""

import dataclasses

import pytest

from linger.reporting.facts import FindingFacts, LayerFacts, MemoryFacts, Proof, Quality, Run
from linger.reporting.page import verdict_of
from tests.support.report_runs import hostile, large, minimal, small

PROVEN = Proof(True, "equal", ("torch", "numpy"), 1200)
DIFFERING = Proof(False, "differs", ("torch",), 1200, 3, first="conv1, element 7: 4 instead of 5")
OTHER_OUTPUTS = dataclasses.replace(DIFFERING, differing=0, first="torch has 0.3125")
WHOLE = Run("net", target="venus", layers=(LayerFacts("conv1"), LayerFacts("fc")), proof=PROVEN)


def finding(severity, rule="window-size"):
    return FindingFacts(severity, rule)


def agreement(value):
    return (Quality("agreement", value, unit="%"),)


CASES = {
    "ready": ({}, "ready", "Bit-exact, fits venus"),
    "with a figure": ({"quality": agreement(99.2)}, "ready", "Bit-exact, fits venus, 99.2 % agreement"),
    "no chip": ({"target": ""}, "ready", "Bit-exact"),
    "a note": ({"findings": (finding("note"),)}, "ready", "Bit-exact, fits venus"),
    "not proven": ({"proof": None}, "unknown", "Not proven, fits venus"),
    "differs": ({"proof": DIFFERING}, "not ready", "3 integers differ"),
    "float outputs differ": ({"proof": OTHER_OUTPUTS}, "not ready", "Outputs differ"),
    "differs, with a figure": (
        {"proof": DIFFERING, "quality": agreement(99.2)},
        "not ready",
        "3 integers differ, 99.2 % agreement in the simulation",
    ),
    "one differs": ({"proof": dataclasses.replace(DIFFERING, differing=1)}, "not ready", "1 integer differs"),
    "errors": ({"findings": (finding("error"),) * 2}, "not ready", "Bit-exact, 2 findings forbid venus"),
    "one error": ({"findings": (finding("error"),)}, "not ready", "Bit-exact, 1 finding forbids venus"),
    "an error without a proof": (
        {"findings": (finding("error"),), "proof": None},
        "not ready",
        "Not proven, 1 finding forbids venus",
    ),
    "too large": (
        {"memory": MemoryFacts(peak_bytes=101, arena_bytes=10, limit_bytes=100)},
        "not ready",
        "Bit-exact, too large for the memory of venus",
    ),
    "as large as the memory": (
        {"memory": MemoryFacts(peak_bytes=100, limit_bytes=100)},
        "not ready",
        "Bit-exact, too large for the memory of venus",
    ),
    "just fits": (
        {"memory": MemoryFacts(peak_bytes=99, arena_bytes=150, limit_bytes=100)},
        "ready",
        "Bit-exact, fits venus",
    ),
    "an error without a chip": (
        {"findings": (finding("error"),), "target": ""},
        "not ready",
        "Bit-exact, 1 error of the check",
    ),
    "low agreement of a clear signal": (
        {"quality": (*agreement(95.0), Quality("signal to noise", 31.9, unit="dB"))},
        "ready",
        "Bit-exact, fits venus, 95.0 % agreement",
    ),
    "low agreement of a fair signal": (
        {"quality": (*agreement(95.0), Quality("signal to noise", 29.9, unit="dB"))},
        "attention",
        "Bit-exact, fits venus, 95.0 % agreement",
    ),
    "no number": (
        {"quality": (Quality("loss", float("nan"), 1.0),)},
        "attention",
        "Bit-exact, fits venus, nan loss (1.0 in float)",
    ),
    "a second figure is no number": (
        {"quality": (*agreement(100.0), Quality("signal to noise", float("nan"), unit="dB"))},
        "attention",
        "Bit-exact, fits venus, 100.0 % agreement",
    ),
    "a warning": ({"findings": (finding("warning"),)}, "attention", "Bit-exact, fits venus"),
    "a float layer": ({"layers": (LayerFacts("s", runs_as="float"),)}, "attention", "Bit-exact, fits venus"),
    "low agreement": ({"quality": agreement(98.9)}, "attention", "Bit-exact, fits venus, 98.9 % agreement"),
    "accuracy kept": (
        {"quality": (Quality("accuracy", 71.2, 72.0, unit="%"),)},
        "ready",
        "Bit-exact, fits venus, 71.2 % accuracy (72.0 % in float)",
    ),
    "accuracy lost": (
        {"quality": (Quality("accuracy", 70.9, 72.0, unit="%"),)},
        "attention",
        "Bit-exact, fits venus, 70.9 % accuracy (72.0 % in float)",
    ),
    "noise": (
        {"quality": (Quality("signal to noise", 19.9, unit="dB"),)},
        "attention",
        "Bit-exact, fits venus, 19.9 dB signal to noise",
    ),
    "a figure of unknown direction": (
        {"quality": (Quality("loss", 0.25, 0.1),)},
        "ready",
        "Bit-exact, fits venus, 0.25 loss (0.1 in float)",
    ),
    "a goal that is reached": (
        {"quality": agreement(98.0), "goal": "97 %", "is_goal_met": True},
        "ready",
        "Bit-exact, fits venus, 98.0 % agreement",
    ),
    "a goal that is not reached": (
        {"quality": agreement(99.2), "goal": "99.5 %", "is_goal_met": False},
        "not ready",
        "Bit-exact, 99.2 % agreement",
    ),
    "a goal that nobody measured": ({"goal": "99 %"}, "attention", "Bit-exact, fits venus"),
    "nearly all": ({"quality": agreement(99.99)}, "ready", "Bit-exact, fits venus, 99.99 % agreement"),
    "infinite": (
        {"quality": (Quality("signal to noise", float("inf"), unit="dB"),)},
        "ready",
        "Bit-exact, fits venus, infinite signal to noise",
    ),
}


@pytest.mark.parametrize(("changes", "level", "headline"), CASES.values(), ids=CASES)
def test_a_run_is_judged(changes, level, headline):
    verdict = verdict_of(dataclasses.replace(WHOLE, **changes))
    assert (verdict.level, verdict.headline) == (level, headline)
    assert verdict.reasons


def test_reasons_say_what_holds_the_network_back():
    run = dataclasses.replace(
        WHOLE,
        proof=DIFFERING,
        findings=(finding("error", "b"), finding("error", "a"), finding("warning")),
        layers=tuple(LayerFacts(f"l{i}", runs_as="float") for i in range(5)),
    )
    assert verdict_of(run).reasons == (
        "3 of 1,200 integers differ. First: conv1, element 7: 4 instead of 5",
        "2 findings forbid venus: a, b.",
        "5 layers run in floating point: l0, l1, l2 and 2 more.",
        "1 warning of the check.",
    )


def test_float_outputs_that_differ_are_no_integers():
    reasons = verdict_of(dataclasses.replace(WHOLE, proof=OTHER_OUTPUTS)).reasons
    assert reasons == ("Outputs in floating point differ. First: torch has 0.3125",)


def test_a_float_op_without_a_layer_is_not_called_an_integer():
    reasons = verdict_of(dataclasses.replace(WHOLE, float_ops=("model: sum (why)",))).reasons
    assert not any("runs on integers" in reason for reason in reasons)


SENTENCES = {
    "ready": ({}, "Ready: Bit-exact, fits venus."),
    "not ready": ({"proof": DIFFERING}, "Not ready: 3 integers differ."),
    "not proven": ({"proof": None}, "Not proven: fits venus."),
    "not proven, no chip": ({"proof": None, "target": ""}, "Not proven."),
}


@pytest.mark.parametrize(("changes", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_starts_with_the_word(changes, sentence):
    assert verdict_of(dataclasses.replace(WHOLE, **changes)).sentence == sentence


def test_reasons_of_a_ready_network_say_what_was_shown():
    assert verdict_of(WHOLE).reasons == (
        "0 of 1,200 integers differ: the file = torch = numpy.",
        "The check found nothing that forbids venus.",
        "Every layer that computes runs on integers.",
    )


@pytest.mark.parametrize(
    ("run", "level"),
    [(small(), "ready"), (large(20), "attention"), (minimal(), "unknown"), (hostile(), "not ready")],
    ids=["small", "large", "minimal", "hostile"],
)
def test_whole_runs_are_judged(run, level):
    assert verdict_of(run).level == level


@pytest.mark.parametrize(
    ("changes", "is_ok"),
    [
        ({}, True),
        ({"findings": (finding("warning"),)}, True),
        ({"quality": agreement(98.0)}, False),
        ({"quality": agreement(98.0), "goal": "97 %", "is_goal_met": True}, True),
        ({"quality": agreement(99.9), "goal": "30 dB"}, False),
        ({"proof": None}, False),
        ({"proof": DIFFERING}, False),
    ],
    ids=["plain", "warning", "low", "goal-reached", "goal-not-measured", "not-proven", "differs"],
)
def test_a_network_is_good_if_it_is_proven_and_its_quality_enough(changes, is_ok):
    assert verdict_of(dataclasses.replace(WHOLE, **changes)).ok is is_ok
