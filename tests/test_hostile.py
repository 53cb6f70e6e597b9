"""Files made to do harm, given to every part of the deployment side: a sentence, soon, and nothing is left behind."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hostile import ALL, ENDLESS, ENORMOUS, EXTERNAL, HEAVY, NO_MODEL
from tests.support.hostile_run import ENTRIES, MEMORY, SECONDS

REPOSITORY = Path(__file__).resolve().parent.parent
REFUSED_BY_LOAD = {
    *(f"no model: {name}" for name in NO_MODEL),
    *(f"endless: {name}" for name in ENDLESS),
    *(f"external: {name}" for name in EXTERNAL),
    "lying: dims of 2^40",
    "lying: negative dims",
    "lying: too little raw data",
    "lying: element type 999",
    "lying: sparse initializer",
    "lying: invalid UTF-8 in an op type",
    "lying: a second opset",
    "lying: an output that nothing makes",
    "lying: an input that nothing makes",
    "lying: a function without a body",
    "lying: a node without a type",
}
REPAIRED = {"lying: a second opset"}
"""What `load` refuses, and a repair puts right."""

REFUSED_TO_RUN = {
    *(f"enormous: {name}" for name in ENORMOUS),
    "attribute: scale missing",
    "attribute: scale of zero",
    "attribute: scale not a number",
    "attribute: scale infinite",
    "attribute: scale negative",
    "attribute: scale a text",
    "attribute: scale a tensor",
    "attribute: bits negative",
    "attribute: bits 2^40",
    "attribute: kernel_shape floats",
    "attribute: kernel_shape of 2^40",
    "attribute: platform a number",
    "attribute: platform unknown, of a curve",
    "attribute: arithmetic unknown",
    "attribute: rounding unknown",
    "attribute: an unknown op",
    "attribute: too many inputs",
}
LIMITS = {
    "linger verify": "the file has no integer tensors",
    "linger vectors": "there is no quantized tensor in it",
    "graph.extract": r"the nodes are not in the order of computation|the outputs do not depend on n_times",
}
"""What an entry says of sound files that hold nothing for it: standard ops only, or inputs that nothing reads."""

PARTLY_REPAIRED = "not everything could be repaired. See the list above."
"""How `linger repair` ends after it wrote what it could repair (docs/repair.md)."""

ONE_OF_EACH = (
    "no model: truncated",
    "no model: a fifo",
    "lying: dims of 2^40",
    "attribute: scale a text",
    "endless: a cycle",
    "endless: functions that double 40 times",
    "endless: If 1 000 levels deep",
    "enormous: ConstantOfShape of a terabyte",
    "external: a path upwards",
)


def outcomes(*tasks):
    """What a process with little memory says of every case; a task is a list of cases and a list of entries."""
    command = [sys.executable, "-m", "tests.support.hostile_run"]
    done = subprocess.run(
        command,
        check=False,
        input=json.dumps([[list(part) for part in task] for task in tasks]),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines[-1], done.stderr[-2000:])
    return [line for line in lines if "kind" in line]


def wrong(found):
    """Every outcome that must not be, with the reason."""
    problems = []
    for case in found:
        is_repaired = case["entry"] == "linger repair" and case["message"].endswith(PARTLY_REPAIRED)
        is_written_in_vain = case["kind"] != "done" and case["written"] and not is_repaired
        limit = LIMITS.get(case["entry"])
        reasons = {
            "an error that is not ours": case["kind"] == "escaped",
            "not one line": case["kind"] == "refused" and len(case["message"].splitlines()) != 1,
            "too slow": case["seconds"] > SECONDS,
            "something was written": is_written_in_vain or case["missing"],
            "accepted by load": case["case"] in REFUSED_BY_LOAD
            and case["kind"] == "done"
            and "inspect" not in case["entry"]
            and "check" not in case["entry"]  # which lists what can be listed
            and not (case["case"] in REPAIRED and ("dequant" in case["entry"] or "repair" in case["entry"])),
            "accepted by the runtime": case["case"] in REFUSED_TO_RUN
            and case["kind"] == "done"
            and case["entry"] == "Session",
            "a sound file refused": case["case"].startswith("sound:")
            and case["kind"] != "done"
            and not (limit and re.search(limit, case["message"])),
        }
        problems += [
            (reason, case["entry"], case["case"], case["message"]) for reason, is_so in reasons.items() if is_so
        ]
    return problems


def test_light_cases_are_refused_or_read_and_every_entry_refuses_one_of_each_kind():
    found = outcomes(
        ([case for case in ALL if case not in HEAVY], ["graph.load", "fix_dequant"]), (ONE_OF_EACH, ENTRIES)
    )
    assert wrong(found) == []
    assert {line["entry"] for line in found} == set(ENTRIES)
    assert found[-1]["peak"] - found[0]["peak"] < MEMORY / 4


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL)
def test_every_case_in_every_entry(case):
    assert wrong(outcomes(([case], ENTRIES))) == []


def test_the_tables_name_cases_that_exist():
    assert REFUSED_BY_LOAD | REFUSED_TO_RUN | set(ONE_OF_EACH) | HEAVY <= set(ALL)
