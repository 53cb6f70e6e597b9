"""The fuzzing corpus, and a few mutations of it, in every run of the tests."""

import json
import sys
from collections import Counter
from random import Random

import onnx
import pytest

from tests.fuzz import run
from tests.fuzz.mutations import MUTATIONS, mutated
from tests.fuzz.seeds import CORPUS, corpus, seeds
from tests.fuzz.target import exercise

INPUTS = corpus()
STARTS = {name: data for name, data in seeds().items() if not name.startswith("broke")}


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_of_the_corpus_keeps_its_promises(name):
    assert exercise(INPUTS[name]) in {"unreadable", "flawed", "not repaired", "partly repaired", "repaired"}


def test_the_seeds_can_be_repaired():
    assert {name for name, data in STARTS.items() if exercise(data) not in ("repaired", "partly repaired")} == set()


def test_every_input_has_its_note():
    notes = (CORPUS / "NOTES.md").read_text()
    assert [name for name in INPUTS if f"`{name}`" not in notes] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_mutation_changes_some_model(mutation):
    changed = 0
    for seed, data in enumerate(STARTS.values()):
        proto = onnx.ModelProto.FromString(data)
        mutation(proto, Random(seed))
        changed += proto.SerializeToString(deterministic=True) != data
    assert changed


def test_the_same_seed_mutates_alike():
    data = STARTS["seed_functions.txt"]
    assert mutated(data, Random(3)) == mutated(data, Random(3)) != mutated(data, Random(4))


def test_what_cannot_be_mutated_stays_as_it_is():
    """Protobuf reads a name that is no UTF-8, and refuses to show it."""
    data = onnx.ModelProto.FromString(STARTS["seed_linear.txt"]).SerializeToString().replace(b"Quant", b"Qu\xffnt")
    results = [mutated(data, Random(seed)) for seed in range(40)]
    assert data in results
    assert all(type(result) is bytes for result in results)


def test_mutated_models_keep_the_promises():
    random = Random(20260101)
    reached = Counter(exercise(mutated(data, random)) for _ in range(4) for data in STARTS.values())
    assert reached["repaired"] > 10


@pytest.mark.parametrize(
    ("broken", "exit_code", "expected", "closing"),
    [
        pytest.param({}, 0, 0, "5 inputs: {'repaired': 5}; 0 broken places", id="nothing"),
        pytest.param({"ValueError at x": "a.bin"}, 0, 1, "5 inputs: {'repaired': 5}; 1 broken places", id="a place"),
        pytest.param({}, 77, 77, "5 inputs: {'repaired': 5}; 0 broken places", id="a crash"),
        pytest.param(None, 0, 1, "no input was tried", id="not one input"),
    ],
)
def test_a_run_says_what_it_found_and_fails_by_it(tmp_path, monkeypatch, capsys, broken, exit_code, expected, closing):
    monkeypatch.chdir(tmp_path)
    tally = f"open({str(run.TALLY)!r}, 'w').write({json.dumps({'reached': {'repaired': 5}, 'broken': broken})!r});"
    script = f"{tally if broken is not None else ''} raise SystemExit({exit_code})"
    assert run.main([], [sys.executable, "-c", script]) == expected
    assert capsys.readouterr().err.splitlines()[-1] == closing
