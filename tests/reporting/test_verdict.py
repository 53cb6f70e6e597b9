"""One level and one sentence, from the facts."""

import dataclasses

import pytest

from linger.reporting.facts import FindingFacts, LayerFacts, MemoryFacts, Proof, Quality, Run
from linger.reporting.verdict import verdict_of
from tests.support.report_runs import hostile, large, minimal, small

PROVEN = Proof(True, "equal", ("torch", "numpy"), 1200)
DIFFERING = Proof(False, "differs", ("torch",), 1200, 3, first="conv1, element 7: 4 instead of 5")
OTHER_OUTPUTS = dataclasses.replace(DIFFERING, differing=0, first="torch has 0.3125")
SAME = Quality("agreement", 100.0, unit="%", samples=100, data="held-out data")
WHOLE = Run("net", target="venus", layers=(LayerFacts("conv1"), LayerFacts("fc")), proof=PROVEN, quality=(SAME,))
ALL = "100.0 % agreement"


def finding(severity, rule="window-size"):
    return FindingFacts(severity, rule)


def agreement(value):
    return (Quality("agreement", value, unit="%"),)


CASES = {
    "ready": ({}, "ready", f"Bit-exact, fits venus, {ALL}"),
    "with a figure": ({"quality": agreement(99.2)}, "ready", "Bit-exact, fits venus, 99.2 % agreement"),
    "no chip": ({"target": ""}, "ready", f"Bit-exact, {ALL}"),
    "a note": ({"findings": (finding("note"),)}, "ready", f"Bit-exact, fits venus, {ALL}"),
    "not proven": ({"proof": None}, "unknown", f"Not proven, fits venus, {ALL}"),
    "differs": ({"proof": DIFFERING}, "not ready", f"3 integers differ, {ALL} in the simulation"),
    "float outputs differ": ({"proof": OTHER_OUTPUTS}, "not ready", f"Outputs differ, {ALL} in the simulation"),
    "differs, with a figure": (
        {"proof": DIFFERING, "quality": agreement(99.2)},
        "not ready",
        "3 integers differ, 99.2 % agreement in the simulation",
    ),
    "one differs": (
        {"proof": dataclasses.replace(DIFFERING, differing=1)},
        "not ready",
        f"1 integer differs, {ALL} in the simulation",
    ),
    "errors": ({"findings": (finding("error"),) * 2}, "not ready", f"Bit-exact, 2 findings forbid venus, {ALL}"),
    "one error": ({"findings": (finding("error"),)}, "not ready", f"Bit-exact, 1 finding forbids venus, {ALL}"),
    "an error without a proof": (
        {"findings": (finding("error"),), "proof": None},
        "not ready",
        f"Not proven, 1 finding forbids venus, {ALL}",
    ),
    "too large": (
        {"memory": MemoryFacts(peak_bytes=101, arena_bytes=10, limit_bytes=100)},
        "not ready",
        f"Bit-exact, too large for the memory of venus, {ALL}",
    ),
    "as large as the memory": (
        {"memory": MemoryFacts(peak_bytes=100, limit_bytes=100)},
        "not ready",
        f"Bit-exact, too large for the memory of venus, {ALL}",
    ),
    "just fits": (
        {"memory": MemoryFacts(peak_bytes=99, arena_bytes=150, limit_bytes=100)},
        "ready",
        f"Bit-exact, fits venus, {ALL}",
    ),
    "an error without a chip": (
        {"findings": (finding("error"),), "target": ""},
        "not ready",
        f"Bit-exact, 1 error of the check, {ALL}",
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
    "a warning": ({"findings": (finding("warning"),)}, "attention", f"Bit-exact, 1 warning of the check, {ALL}"),
    "a float layer": (
        {"layers": (LayerFacts("s", runs_as="float"),)},
        "attention",
        f"Bit-exact, 1 layer runs in floating point, {ALL}",
    ),
    "float layers and no chip": (
        {"layers": (LayerFacts("s", runs_as="float"), LayerFacts("t", runs_as="float")), "target": ""},
        "attention",
        f"Bit-exact, 2 layers run in floating point, {ALL}",
    ),
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
    "a figure without a unit": (
        {"quality": (Quality("score", 0.25, 0.1),)},
        "ready",
        "Bit-exact, fits venus, 0.25 score (0.1 in float)",
    ),
    "a goal that is reached": (
        {"quality": agreement(98.0), "goal": "97 %", "is_goal_met": True},
        "ready",
        "Bit-exact, fits venus, 98.0 % agreement",
    ),
    "a goal that is not reached": (
        {"quality": agreement(99.2), "goal": "99.5 %", "is_goal_met": False},
        "not ready",
        "Bit-exact, fits venus, 99.2 % agreement",
    ),
    "a goal that nobody measured": ({"goal": "99 %"}, "attention", f"Bit-exact, fits venus, {ALL}"),
    "not measured": ({"quality": ()}, "attention", "Bit-exact, fits venus, quality not measured"),
    "not measured, no chip": ({"quality": (), "target": ""}, "attention", "Bit-exact, quality not measured"),
    "neither measured nor proven": (
        {"quality": (), "proof": None},
        "unknown",
        "Not proven, fits venus, quality not measured",
    ),
    "a goal for what nobody measured": (
        {"quality": (), "goal": "99 %"},
        "attention",
        "Bit-exact, fits venus, quality not measured",
    ),
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
        "2 findings forbid venus: a, b. 5 layers run in floating point: l0, l1, l2 and 2 more. 1 warning of the check.",
    )


def test_the_gravest_reason_comes_first():
    run = dataclasses.replace(WHOLE, quality=(), findings=(finding("error", "a"),))
    assert verdict_of(run).reasons == ("1 finding forbids venus: a.", "Nobody has measured the quality.")


def test_float_outputs_that_differ_are_no_integers():
    reasons = verdict_of(dataclasses.replace(WHOLE, proof=OTHER_OUTPUTS)).reasons
    assert reasons == ("Outputs in floating point differ. First: torch has 0.3125",)


def test_a_float_op_without_a_layer_is_not_called_an_integer():
    reasons = verdict_of(dataclasses.replace(WHOLE, float_ops=("model: sum (why)",))).reasons
    assert not any("runs on integers" in reason for reason in reasons)


SENTENCES = {
    "ready": ({}, "Ready: Bit-exact, fits venus, 100.0 % agreement."),
    "not ready": ({"proof": DIFFERING}, "Not ready: 3 integers differ, 100.0 % agreement in the simulation."),
    "not proven": ({"proof": None}, "Not proven: fits venus, 100.0 % agreement."),
    "not proven, no chip": ({"proof": None, "target": ""}, "Not proven: 100.0 % agreement."),
}


@pytest.mark.parametrize(("changes", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_starts_with_the_word(changes, sentence):
    assert verdict_of(dataclasses.replace(WHOLE, **changes)).sentence == sentence


def test_reasons_of_a_ready_network_say_what_was_shown():
    assert verdict_of(WHOLE).reasons == (
        "0 of 1,200 integers differ: the file = torch = numpy.",
        "100.0 % agreement, on 100 samples of held-out data.",
        "The check found nothing that forbids venus. Every layer that computes runs on integers.",
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


def parts(**changes):
    """The level of each part."""
    return {part.name: part.level for part in verdict_of(dataclasses.replace(WHOLE, **changes)).parts}


WIDE = (LayerFacts("conv1", bits="8/16/16"),)
NARROW = (LayerFacts("conv1", bits="8/8/8"), LayerFacts("fc", bits="8/8/8"))


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, ("ready", "ready", "ready")),
        ({"target": ""}, ("ready", "ready", "not asked")),
        ({"quality": ()}, ("ready", "unknown", "ready")),
        ({"proof": None}, ("unknown", "ready", "ready")),
        ({"proof": DIFFERING}, ("not ready", "ready", "ready")),
        ({"quality": agreement(90.0)}, ("ready", "attention", "ready")),
        ({"goal": "99 %", "is_goal_met": False}, ("ready", "not ready", "ready")),
        ({"findings": (finding("error"),)}, ("ready", "ready", "not ready")),
        ({"findings": (finding("warning"),), "target": ""}, ("ready", "ready", "attention")),
        ({"memory": MemoryFacts(peak_bytes=100, limit_bytes=100)}, ("ready", "ready", "not ready")),
    ],
    ids=["ready", "no chip", "not measured", "not proven", "differs", "low", "goal", "error", "warning", "memory"],
)
def test_the_parts_are_judged_apart(changes, levels):
    assert parts(**changes) == dict(zip(("exact", "good enough", "fits"), levels, strict=True))


def test_without_a_chip_the_verdict_says_so_and_can_be_ready():
    found = verdict_of(dataclasses.replace(WHOLE, target="", memory=MemoryFacts(arena_bytes=640)))
    assert found.level == "ready"
    assert found.parts[2].sentence == (
        "No chip was named, so nothing was checked against one. The program in C needs 640 bytes of working memory. "
        "Every layer that computes runs on integers."
    )


CAUTIONS = {
    "few samples": ({"samples": 49}, "judged by 49 samples only"),
    "one sample": ({"samples": 1}, "judged by 1 sample only"),
    "seen": ({"data": "data that tuning has seen"}, "judged by data that tuning has seen"),
    "perhaps seen": ({"data": "the data given"}, "judged by data that calibration may have seen"),
    "gap": ({"after": 99.5, "seen": 101.0, "chance": 1.4}, "agreement 1.5 points better on the data of tuning"),
}


@pytest.mark.parametrize(("changes", "caution"), CAUTIONS.values(), ids=CAUTIONS)
def test_doubtful_figures_are_said_in_the_headline_and_are_not_green(changes, caution):
    found = verdict_of(dataclasses.replace(WHOLE, quality=(dataclasses.replace(SAME, **changes),)))
    assert (found.level, found.cautions) == ("attention", (caution,))
    assert found.headline.endswith(f" % agreement, {caution}")
    assert caution in found.parts[1].sentence
    assert found.parts[1].remedy
    assert found.ok  # doubts are no failure


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 50},
        {"data": "test data"},
        {"after": 99.5, "seen": 100.0, "chance": 0.1},
        {"after": 98.9, "seen": 100.0, "chance": 1.2, "before": 99.0},
        {"after": 99.5, "seen": 101.0, "chance": None},
    ],
    ids=["enough samples", "test data", "a small gap", "by chance", "unknown chance"],
)
def test_figures_without_doubt_have_no_caution(changes):
    found = verdict_of(dataclasses.replace(WHOLE, quality=(dataclasses.replace(SAME, **changes),)))
    assert (found.level, found.cautions) == ("ready", ())


def test_data_that_tuning_has_seen_come_with_the_remedy_for_it():
    many = Quality("agreement", 99.5, unit="%", samples=400, data="data that tuning has seen")
    part = verdict_of(dataclasses.replace(WHOLE, quality=(many,))).parts[1]
    assert part.remedy.startswith("Judge by samples that are not among those of tuning: --test-data")


def test_what_is_known_of_the_data_is_a_caution():
    found = verdict_of(dataclasses.replace(WHOLE, cautions=("the data are all zeros",)))
    assert (found.level, found.headline) == (
        "attention",
        "Bit-exact, fits venus, 100.0 % agreement, the data are all zeros",
    )


def outputs(*figures):
    """Signal to noise over all outputs, which hides the worst, and of each."""
    made = [Quality(f"signal to noise at o{i}", db, unit="dB", output=f"o{i}") for i, db in enumerate(figures)]
    return (Quality("signal to noise at the output", max(figures), unit="dB"), *made)


def test_the_worst_output_is_named_in_the_headline():
    found = verdict_of(dataclasses.replace(WHOLE, quality=outputs(39.3, 26.0, 31.0)))
    assert found.headline == (
        "Bit-exact, fits venus, 26.0 dB signal to noise at o1, the worst of 3 outputs (39.3 dB over all)"
    )
    assert found.level == "ready"


def test_an_output_that_is_low_makes_the_quality_low():
    found = verdict_of(dataclasses.replace(WHOLE, quality=outputs(39.3, 26.0, 19.0)))
    assert (found.level, found.is_enough) == ("attention", False)
    assert found.reasons == ("The quality is low: 19.0 dB signal to noise at o2.",)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"layers": NARROW}, "--bits mixed"),
        ({"layers": WIDE}, "Accuracy dropped"),
        ({"layers": (*WIDE, LayerFacts("s", runs_as="float"))}, "My op is not supported"),
        ({"layers": NARROW, "quality": (dataclasses.replace(SAME, after=90.0, samples=10),)}, "50 samples or more"),
        ({"layers": NARROW, "quality": (Quality("noise", 15.0, plain=17.0, unit="dB"),)}, "more varied, --data"),
        ({"layers": NARROW, "quality": agreement(90.0)}, "--metric"),
        ({"layers": NARROW, "quality": agreement(99.9), "goal": "100 %", "is_goal_met": False}, "--bits mixed"),
    ],
    ids=["8 bits", "wide", "float", "few samples", "plain is better", "agreement", "goal"],
)
def test_a_low_quality_comes_with_what_to_try_next(changes, remedy):
    low = {"quality": (Quality("noise", 15.0, plain=14.0, unit="dB"),), **changes}
    assert remedy in verdict_of(dataclasses.replace(WHOLE, **low)).parts[1].remedy


def test_a_finding_comes_with_its_remedy():
    run = dataclasses.replace(WHOLE, findings=(FindingFacts("error", "window-size", remedy="Split the window."),))
    assert verdict_of(run).parts[2].remedy == "Split the window."


METRICS = {
    "as good as float": (Quality("map", 0.71, 0.71), "ready", True),
    "better than float": (Quality("map", 0.75, 0.71), "ready", True),
    "below float": (Quality("map", 0.25, 0.5), "attention", True),  # 0.25 is no number of points, and 0.25 no share
    "many points below float": (Quality("score", 70.0, 75.0), "attention", True),
    "alone": (Quality("map", 0.25), "attention", True),
    "alone, above 99": (Quality("score", 250.0), "attention", True),
    "negative": (Quality("minus wer", -0.1, -0.2), "ready", True),
}


@pytest.mark.parametrize("others", [(), (SAME,)], ids=["alone", "beside another"])
@pytest.mark.parametrize(("metric", "level", "is_enough"), METRICS.values(), ids=METRICS)
def test_a_figure_of_unknown_scale_is_no_percentage(metric, level, is_enough, others):
    found = verdict_of(dataclasses.replace(WHOLE, quality=(metric, *others)))
    assert (found.level, found.is_enough, found.ok) == (level, is_enough, True)
    assert "low" not in found.parts[1].sentence
    assert ("--goal" in found.parts[1].remedy) is (level == "attention")


def test_a_metric_below_float_is_low_where_the_decisions_are():
    found = verdict_of(dataclasses.replace(WHOLE, quality=(Quality("map", 0.1, 0.7), *agreement(60.0))))
    assert (found.level, found.is_enough) == ("attention", False)
    assert found.reasons == ("The quality is low: 60.0 % agreement.",)


def test_data_by_which_tuning_has_chosen_are_said_to_be_that():
    metric = Quality("map", 0.71, 0.71, data="the metric's own data")
    chosen = dataclasses.replace(metric, plain=0.5)
    said = [verdict_of(dataclasses.replace(WHOLE, quality=(each,))).parts[1].sentence for each in (metric, chosen)]
    assert said == [
        "0.71 map (0.71 in float), on the metric's own data.",
        "0.71 map (0.71 in float), on the metric's own data, by which tuning has chosen.",
    ]


def test_the_goal_of_a_metric_decides():
    metric = Quality("map", 0.68, 0.71)
    reached = verdict_of(dataclasses.replace(WHOLE, quality=(metric, *agreement(60.0)), goal="0.65", is_goal_met=True))
    assert (reached.level, reached.headline) == ("ready", "Bit-exact, fits venus, 0.68 map (0.71 in float)")


def test_the_lines_say_each_part_and_what_to_do():
    assert list(verdict_of(dataclasses.replace(WHOLE, quality=())).lines()) == [
        "exact: yes. 0 of 1,200 integers differ: the file = torch = numpy.",
        "good enough: not known. Nobody has measured the quality.",
        "  → Measure it: linger quantize does, and linger.report with model=, reference= and data= that no step has seen.",
        "fits: yes. The check found nothing that forbids venus. Every layer that computes runs on integers.",
    ]
