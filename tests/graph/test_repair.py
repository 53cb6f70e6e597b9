"""Rules one after the other."""

import pytest

from linger.errors import UsageError
from linger.graph.repair import RuleChange, repair
from tests.support.dialect_text import lines, quantising


def test_the_rules_work_together():
    model = quantising("q = Q16(x) d = DQ4(q) r = Relu(d) a = ADD16(r, r) e = Exp(r) y = Add(e, a)")
    changes, findings = repair(model)
    assert lines(model) == [
        "q=Q16(x)", "r=Relu(q)", "r_dequant=DQ16(r)", "a=ADD16(r,r)", "a_dequant=DQ16(a)", "e=Exp(r_dequant)", "y=Add(e,a_dequant)",
    ]  # fmt: skip
    assert findings == []
    assert changes[1] == RuleChange(
        "remove_dequant", "r (Relu)", "takes the integers 'q' (int8 at scale 16) instead of 'd'"
    )
    assert repair(model) == ([], [])


def test_unknown_rules_are_named_together():
    with pytest.raises(
        UsageError, match=r"'one': there is no such rule. 'two': there is no such rule. Known rules: .*insert_dequant"
    ):
        repair(quantising("y = Exp(x)"), rules=["one", "insert_dequant", "two"])


def test_a_sound_model_is_only_completed():
    model = quantising(
        "q = Q16(x) d = DQ16(q) r = Relu(d) s = Reshape(r, t) y = Softmax(s)", extra="<int64[1] t = {-1}>"
    )
    before = lines(model)
    changes, findings = repair(model)
    assert {change.rule for change in changes} == {"name_nodes", "complete_types"}
    assert lines(model) == before
    assert findings == []
    assert repair(model) == ([], [])
