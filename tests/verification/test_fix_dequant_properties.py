"""Random dialect graphs, damaged in every way: the repair gives back what they computed, or says that it cannot."""

from collections import Counter
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import linger
from linger.graph.finding import NOTE
from linger.graph.repair_rules import choose_rules
from linger.runtime.reference import Reference
from linger.runtime.session import Session
from linger.verification.fix_dequant import Repair
from tests.support.comparison import assert_same
from tests.support.damages import KINDS, Damaged, injure
from tests.support.dialect_graphs import FLOAT, Made, feeds
from tests.support.graph_control import FAMILIES, random_model
from tests.support.graph_text import edits
from tests.support.repairs import as_reals, first_difference, interface, outputs_of

Rules = tuple[str, ...] | None
FREELY = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
SMALL, LARGE = st.integers(1, 6), st.integers(2, 10)
SEEDS = st.integers(0, 2**32 - 1)
SPARING = tuple(rule.name for rule in choose_rules() if rule.name != "complete_types")
"""Declaring every type takes most of the time, so the fast suite does it for one case in four."""
WAYS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)


def claims(repair: Repair) -> list[str]:
    """What the repair says of what it could not mend, notes left out."""
    return [str(f) for f in repair.findings if f.severity != NOTE]


def unhurt(made: Made, rules: Rules) -> None:
    """A right file comes back as it was, and without complaint."""
    repair = linger.fix_dequant(made.model, rules=rules)
    assert edits(repair) == []
    assert claims(repair) == []


def same_as_before(made: Made, hurt: Damaged, repaired: onnx.ModelProto, number: int) -> None:
    """The same inputs and outputs, and the same bits.

    An output that was declared as integers and then stood behind a Dequant may have become real: then it is the real
    number of each integer.
    """
    expected = onnx.ModelProto()
    expected.CopyFrom(made.model)
    scales = {}
    for index, (found, wanted) in enumerate(zip(repaired.graph.output, expected.graph.output, strict=True)):
        if found.name in hurt.real_ends and found.type.tensor_type.elem_type == FLOAT:
            wanted.type.tensor_type.elem_type = FLOAT
            scales[index] = made.tensors[found.name].scale
    assert interface(repaired) == interface(expected)
    inputs = feeds(made.model, number)
    before = as_reals(outputs_of(made.model, inputs), scales)
    assert first_difference(outputs_of(repaired, inputs), before) is None


def restored(made: Made, hurt: Damaged, number: int, rules: Rules) -> str:
    """Repair a damaged model; "exact", or "reported" where the file no longer tells what it was and the repair says so."""
    given_bytes = hurt.model.SerializeToString(deterministic=True)
    repair = linger.fix_dequant(hurt.model, rules=rules)
    assert hurt.model.SerializeToString(deterministic=True) == given_bytes  # the given model stays as it is
    if hurt.can_be_restored:
        assert claims(repair) == []
    elif claims(repair):
        return "reported"
    repaired = ir.to_proto(repair.model)
    same_as_before(made, hurt, repaired, number)
    assert [str(c) for c in linger.fix_dequant(repaired, rules=rules).changes] == []
    return "exact"


@dataclass
class Tally:
    """What was tried, and how it ended."""

    is_sparing: bool = False
    families: Counter = field(default_factory=Counter)
    kinds: Counter = field(default_factory=Counter)
    outcomes: Counter = field(default_factory=Counter)

    def try_case(self, size: int, number: int, ways: list[str]) -> None:
        made = random_model(number, size)
        hurt = injure(made, ways, number)
        rules = SPARING if self.is_sparing and number % 4 else None
        unhurt(made, rules)
        outcome = restored(made, hurt, number, rules)
        self.families.update(made.families)
        self.kinds.update(hurt.kinds)
        self.outcomes.update([outcome])

    def try_cases(self, count: int, sizes: st.SearchStrategy[int]) -> None:
        case = given(sizes, SEEDS, WAYS)(self.try_case)
        seed(20261116)(settings(FREELY, max_examples=count, derandomize=self.is_sparing)(case))()

    def try_what_is_rare(self) -> None:
        """One case more for each kind of op and of damage that did not come up by chance."""
        for name in [f for f in FAMILIES if not self.families[f]]:
            self.try_case(9, next(n for n in range(500) if name in random_model(n, 9).families), ["drop"])
        for name in [k for k in KINDS if not self.kinds[k]]:
            self.try_case(9, next(n for n in range(500) if injure(random_model(n, 9), [name], n).kinds), [name])


def test_a_hundred_damaged_graphs_are_restored_or_reported():
    tally = Tally(is_sparing=True)
    tally.try_cases(100, SMALL)
    tally.try_what_is_rare()
    assert sum(tally.outcomes.values()) >= 100
    assert set(tally.families) == set(FAMILIES)
    assert set(tally.kinds) == set(KINDS)
    assert tally.outcomes["reported"] > 0


@pytest.mark.slow
def test_thousands_of_damaged_graphs_are_restored_or_reported():
    tally = Tally()
    tally.try_cases(2500, LARGE)
    assert sum(tally.outcomes.values()) >= 2000
    assert min(tally.families[name] for name in FAMILIES) >= 10
    assert min(tally.kinds[name] for name in KINDS) >= 10
    assert tally.outcomes["reported"] >= 10


@settings(FREELY, max_examples=15, derandomize=True)
@given(LARGE, SEEDS)
def test_the_graphs_run_alike_in_onnx_runtime_and_in_the_reference(size, number):
    made = random_model(number, size, is_exact=True)
    session, reference = Session(made.model), Reference(made.model)
    for inputs in feeds(made.model, number):
        found = reference.run(inputs)
        for output, array in zip(session.get_outputs(), session.run(None, inputs), strict=True):
            assert_same(found[output.name], array)
