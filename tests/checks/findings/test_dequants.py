"""Dequants that there are too many of."""

import pytest

import linger
from tests.support.check_cases import QUANT, text_model
from tests.support.findings import findings_of

BRANCHES = """{before} [c] c = Constant<value = bool {{1}}>()
  [i] y = If(c)<then_branch = t () => (float[2,2] p) {{ [p] p = thinker.Dequant<scale_o=16.0>(q) }},
                else_branch = e () => (float[2,2] r) {{ [r] r = thinker.Dequant<scale_o=16.0>(q) }}>"""


def found(body, **settings):
    return [str(f) for f in findings_of("dequants", text_model(body, **settings))]


def test_every_one_after_the_first_is_named():
    body = f"{QUANT} [a] a = thinker.Dequant<scale_o=16.0>(q) [b] b = thinker.Dequant<scale_o=16.0>(q) " + (
        "[e] e = thinker.Dequant<scale_o=16.0>(q)"
    )
    assert found(body) == [
        f"{name} (Dequant): 'q' is dequantized by a (Dequant) already. Let all consumers share one Dequant; "
        "linger.repair does."
        for name in "be"
    ]


def test_two_branches_have_one_each():
    assert found(BRANCHES.format(before=QUANT)) == []


def test_a_branch_could_use_the_one_outside():
    used = BRANCHES.replace("p = thinker", "o = thinker").replace("(q) }},", "(q) p = Neg(o) }},")
    found_now = found(used.format(before=f"{QUANT} [a] a = thinker.Dequant<scale_o=16.0>(q)"))
    assert [text.partition(":")[0] for text in found_now] == ["i/then_branch/p (Dequant)"]


TWO_OUTPUTS = f"{QUANT} [a] a = thinker.Dequant<scale_o=16.0>(q) [b] b = thinker.Dequant<scale_o=16.0>(q)"
SHARED = {
    "two outputs": (TWO_OUTPUTS, "float[2,2] a, float[2,2] b", 0),
    "an output behind another reader": (TWO_OUTPUTS + " z = Neg(a)", "float[2,2] b, float[2,2] z", 1),
    "another reader behind an output": (TWO_OUTPUTS + " z = Neg(b)", "float[2,2] a, float[2,2] z", 1),
    "outputs of branches": (
        BRANCHES.format(before=f"{QUANT} [a] a = thinker.Dequant<scale_o=16.0>(q)") + " z = Neg(a)",
        "float[2,2] y, float[2,2] z",
        0,
    ),
}


@pytest.mark.parametrize(("body", "outputs", "count"), SHARED.values(), ids=SHARED)
def test_a_repair_leaves_none_that_the_check_names(body, outputs, count):
    """Every output of a graph is a tensor of its own, so it keeps its Dequant."""
    assert len(found(body, outputs=outputs)) == count
    repaired = linger.repair(text_model(body, outputs=outputs))
    assert sum("does the same" in change.what for change in repaired.changes) == count
    assert findings_of("dequants", repaired.model) == []


def test_the_newer_dialect_has_dequants_too():
    body = "[a] a = linger.Dequant<scale_o=16.0>(x) [b] y = linger.Dequant<scale_o=16.0>(x)"
    assert len(found(body, inputs="int8[2,2] x", domains=', "linger": 1')) == 1


def test_other_nodes_may_read_a_tensor_as_often_as_they_like():
    assert found("[a] a = Neg(x) [b] b = Neg(x) [d] y = my.Dequant(x) [e] z = my.Dequant(x)", domains=', "my": 1') == []
