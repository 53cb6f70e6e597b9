"""Every limit of a chip has a rule of its own; a site answers for a node."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.checks import memory_use
from linger.checks.limits import products, windows
from linger.checks.limits import target_findings as whole
from linger.checks.limits.limit import Site, aligned, one_of
from linger.checks.limits.target_findings import LIMITS, TARGET_RULES, tables_of
from linger.dialect import ops
from linger.graph.core.check_rules import GENERAL_RULES, CheckRule
from tests.support.chip import TARGETS, model_of

VENUS = TARGETS["venus"]


def test_every_check_of_a_limit_has_a_rule_of_its_own():
    modules = (whole, products, windows)
    checks = [found for module in modules for name, found in vars(module).items() if name.startswith("check_")]
    assert sorted(found.rule.id for found in checks) == sorted(found.rule.id for found in LIMITS)
    of_files = [
        each for module in (whole, memory_use) for name, each in vars(module).items() if isinstance(each, CheckRule)
    ]
    of_files = list(dict.fromkeys(of_files))
    assert sorted(rule.id for rule in of_files) == [
        *("LGR901", "LGR903", "LGR908", "LGR909", "LGR910", "LGR928", "LGR951", "LGR952", "LGR954", "LGR955")
    ]
    ids = [rule.id for rule in TARGET_RULES]
    assert len(set(ids)) == len(ids) == len(checks) + len(of_files)
    assert not set(ids) & {rule.id for rule in GENERAL_RULES}


def test_their_ids_begin_with_a_nine():
    assert all(rule.id.startswith("LGR9") and rule.name.startswith("target-") for rule in TARGET_RULES)


def test_every_limit_concerns_some_op():
    known = {name: op.chip_limits for name, op in ops().items()}
    for found in LIMITS:
        standard = dict.fromkeys(found.op_types or (), ())
        assert any(found.concerns(name, named) for name, named in (standard | known).items()), found.rule.name


def test_an_op_is_asked_what_it_names_and_what_names_it():
    asked = {found.rule.name for found in LIMITS if found.concerns("Slice", ("quant",))}
    everywhere = {found.rule.name for found in LIMITS if found.op_types is None}
    assert asked - everywhere == {"target-slice", "target-quant"}


@pytest.fixture
def site():
    model = model_of("c = Constant<value = int8 {5}>() y = thinker.iqMul<scale_x=4.0, pads=[1, 2]>(x, c)")
    node = next(n for n in model.graph if n.op_type == "iqMul")
    return Site(node, {"x": (1, None, 3)}, {"x": ir.DataType.INT16, "c": ir.DataType.FLOAT}, VENUS, tables_of(VENUS))


def test_what_a_site_knows(site):
    assert (site.attribute("scale_x"), site.attribute("pads"), site.attribute("none", 7)) == (4.0, (1, 2), 7)
    assert (site.shape(0), site.shape(1), site.shape(5)) == ((1, None, 3), None, None)
    assert (site.sizes(0, 0, 2), site.sizes(0, 1), site.sizes(0, 3), site.sizes(0, -3, -1)) == (
        (1, 3),
        None,
        None,
        (1, 3),
    )
    assert (site.bits(0), site.bits(1), site.is_float(0), site.is_float(1)) == (16, None, False, True)
    assert (site.constant(0), site.constant(2), site.input(2)) == (None, None, None)
    np.testing.assert_array_equal(site.constant(1), np.int8(5))
    assert (site.chip, site.op.name, site.limits(windows.WindowLimits).kernel) == ("venus", "iqMul", (1, 5))


def test_a_constant_with_two_contents_is_not_known():
    model = model_of("c = Constant<value_int=1, value_float=2.0>() y = thinker.iqMul<scale_x=4.0>(x, c)")
    assert Site(next(n for n in model.graph if n.op_type == "iqMul"), {}, {}, VENUS, {}).constant(1) is None


def test_severities(site):
    assert [f.severity for f in (site.error("a", "b"), site.warning("a", "b"), site.unchecked("c"))] == [
        "error", "warning", "note",
    ]  # fmt: skip
    assert str(site.unchecked("its length")).startswith(
        "y (iqMul): a size is open, so its length could not be checked."
    )


def test_words():
    assert (aligned(1, 8), aligned(8, 8), aligned(0, 8)) == (8, 8, 0)
    assert (one_of((8,)), one_of((8, 16)), one_of((1, 2, 4))) == ("8", "8 or 16", "1, 2 or 4")


def test_a_constant_that_a_caller_gives_is_not_known():
    held = ir.Node("", "Constant", [], attributes=[ir.RefAttr("value", "k", ir.AttributeType.TENSOR)])
    assert Site(ir.Node("thinker", "iqMul", [None, held.outputs[0]]), {}, {}, VENUS, {}).constant(1) is None
