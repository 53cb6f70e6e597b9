"""The fuzzing corpus, and a few mutations of it, in every run of the tests."""

from random import Random

import pytest

from tests.fuzz.mutations import MUTATIONS, mutated
from tests.fuzz.seeds import CORPUS, corpus, seeds
from tests.fuzz.target import exercise

INPUTS = corpus()


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_of_the_corpus_keeps_its_promises(name):
    assert exercise(INPUTS[name]) in {"unreadable", "flawed", "not mended", "partly mended", "mended"}


def test_the_seeds_can_be_mended():
    starts = {name: data for name, data in seeds().items() if not name.endswith(".bin")}
    assert {name for name, data in starts.items() if exercise(data) not in ("mended", "partly mended")} == set()


def test_every_input_has_its_note():
    notes = (CORPUS / "NOTES.md").read_text()
    assert [name for name in INPUTS if f"`{name}`" not in notes] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mutation_is_the_same_for_a_seed_and_can_change_a_model(mutation):
    pass


@pytest.mark.parametrize("seed", range(20))
def test_mutated_models_keep_the_promises(seed):
    random = Random(seed)
    for data in seeds().values():
        exercise(mutated(data, random))
