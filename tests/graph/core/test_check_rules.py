"""The rules' ids, names and texts."""

import re

from linger.checks.check import RULES
from linger.graph.core.check_rules import GENERAL_RULES
from linger.graph.core.nodes import SEVERITIES
from tests.conftest import REPOSITORY


def test_ids_and_names_are_unique_and_well_formed():
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    assert all(re.fullmatch(r"LGR\d{3}", identifier) for identifier in RULES)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name) for rule in RULES.values())
    assert len({rule.id for rule in GENERAL_RULES}) == len(GENERAL_RULES)


def test_rules_stand_in_the_order_of_their_ids():
    ids = [rule.id for rule in GENERAL_RULES]
    assert ids == sorted(ids)


def test_every_rule_says_what_it_asks_for_in_one_line_and_what_helps():
    for rule in RULES.values():
        assert rule.severity in SEVERITIES
        assert rule.summary.endswith(".")
        assert "\n" not in rule.summary
        assert len(rule.help) > 20


def test_the_page_lists_exactly_the_rules():
    page = (REPOSITORY / "docs" / "check.md").read_text(encoding="utf-8")
    listed = [line for line in page.splitlines() if line.startswith("| LGR")]
    expected = [f"| {r.id} | {r.name} | {r.severity} | {_cell(r.summary)} |" for r in RULES.values()]
    assert listed == expected


def _cell(text):
    return text.replace("|", "\\|")
