"""Every limit of a chip has a rule."""

from linger.checks.limits import operands as operand_limits
from linger.checks.limits import packing as packing_limits
from linger.checks.limits import products as product_limits
from linger.checks.limits import windows as window_limits
from linger.checks.limits.target_rules import TARGET_RULES
from linger.graph.core.check_rules import GENERAL_RULES


def test_every_check_of_a_limit_has_a_rule_of_its_own():
    modules = (operand_limits, packing_limits, product_limits, window_limits)
    checks = {found for module in modules for name, found in vars(module).items() if name.startswith("check_")}
    assert set(TARGET_RULES) == checks
    ids = [rule.id for rule in TARGET_RULES.values()]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & {rule.id for rule in GENERAL_RULES}


def test_their_ids_begin_with_a_nine():
    assert all(rule.id.startswith("LGR9") and rule.name.startswith("target-") for rule in TARGET_RULES.values())
