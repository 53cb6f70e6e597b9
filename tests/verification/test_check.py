"""linger.check: every rule fires on the smallest fault, and not on the same model without it."""

import pytest

import linger
from linger.verification.check_result import RULES
from tests.support.check_cases import CHIPS, GENERAL

CASES = [*GENERAL, *CHIPS]
IDS = [f"{case.rule}-{i}" for i, case in enumerate(CASES)]


def rules_of(result):
    return {finding.rule for finding in result.findings}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_fault_is_found_and_gone_when_mended(case):
    assert case.rule in rules_of(linger.check(case.bad, case.target))
    assert case.rule not in rules_of(linger.check(case.good, case.target))


@pytest.mark.parametrize("case", GENERAL, ids=[f"{case.rule}-{i}" for i, case in enumerate(GENERAL)])
def test_mended_models_have_no_error(case):
    assert [str(f) for f in linger.check(case.good).errors] == []


def test_every_rule_is_tried():
    assert {case.rule for case in CASES} == set(RULES)
