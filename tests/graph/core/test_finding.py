"""Findings read as sentences; a site answers for a node."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.graph.core.finding import Finding, Site, aligned, one_of
from tests.support.chip import model_of


@pytest.fixture
def site():
    model = model_of("c = Constant<value = int8 {5}>() y = thinker.iqMul<scale_x=4.0, pads=[1, 2]>(x, c)")
    node = next(n for n in model.graph if n.op_type == "iqMul")
    return Site(node, {"x": (1, None, 3)}, {"x": ir.DataType.INT16, "c": ir.DataType.FLOAT})


def test_a_finding_is_two_sentences():
    assert str(Finding("error", "a (Conv)", "it is wrong", "Mend it.")) == "a (Conv): it is wrong. Mend it."
    assert str(Finding("error", "", "it is wrong", "Mend it.")) == "it is wrong. Mend it."


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


def test_a_constant_with_two_contents_is_not_known():
    model = model_of("c = Constant<value_int=1, value_float=2.0>() y = thinker.iqMul<scale_x=4.0>(x, c)")
    assert Site(next(n for n in model.graph if n.op_type == "iqMul"), {}, {}).constant(1) is None


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
    assert Site(ir.Node("thinker", "iqMul", [None, held.outputs[0]]), {}, {}).constant(1) is None
