"""Rules one after the other, until none of them finds anything."""

import gc

import numpy as np
import onnx_ir as ir
import pytest

from linger.checks.repair import RuleChange, apply_rules, load_broken, uncollected
from linger.errors import UsageError
from linger.graph import load, save
from tests.support.dialect_text import lines, quantizing
from tests.support.onnx_text import parse


def test_the_rules_work_together():
    model = quantizing("q = Q16(x) d = DQ4(q) r = Relu(d) a = ADD16(r, r) e = Exp(r) y = Add(e, a)")
    changes, findings = apply_rules(model)
    assert lines(model) == [
        "q=Q16(x)", "r=Relu(q)", "r_dequant=DQ16(r)", "a=ADD16(r,r)", "a_dequant=DQ16(a)", "e=Exp(r_dequant)", "y=Add(e,a_dequant)",
    ]  # fmt: skip
    assert findings == []
    assert changes[1] == RuleChange(
        "remove_dequant", "r (Relu)", "takes the integers 'q' (int8 at scale 16) instead of 'd'"
    )
    assert apply_rules(model) == ([], [])


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_as_before_also_after_an_error(was_on):
    before = gc.isenabled()
    try:
        gc.enable() if was_on else gc.disable()
        with pytest.raises(UsageError), uncollected():
            apply_rules(quantizing("y = Exp(x)"), rules=["none" if not gc.isenabled() else "sort_nodes"])
        assert gc.isenabled() == was_on
    finally:
        gc.enable() if before else gc.disable()


def test_unknown_rules_are_named_together():
    with pytest.raises(
        UsageError, match=r"'one': there is no such rule. 'two': there is no such rule. Known rules: .*insert_dequant"
    ):
        apply_rules(quantizing("y = Exp(x)"), rules=["one", "insert_dequant", "two"])


def test_a_sound_model_is_only_completed():
    model = quantizing(
        "q = Q16(x) d = DQ16(q) r = Relu(d) s = Reshape(r, t) y = Softmax(s)", extra="<int64[1] t = {-1}>"
    )
    before = lines(model)
    changes, findings = apply_rules(model)
    assert {change.rule for change in changes} == {"name_nodes", "complete_types"}
    assert lines(model) == before
    assert findings == []
    assert apply_rules(model) == ([], [])


def test_a_model_in_memory_finds_its_weights_where_they_are(tmp_path):
    model = parse("y = Add(x, w)", inputs="float[1000] x", outputs="float[1000] y")
    weight = ir.Value(name="w", const_value=ir.tensor(np.arange(1000, dtype=np.float32), name="w"))
    model.graph.register_initializer(weight)
    model.graph.node(0).replace_input_with(1, weight)
    save(model, tmp_path / "m.onnx", external_data=True)
    copy, changes = load_broken(load(tmp_path / "m.onnx"))
    assert not changes
    assert copy.graph.initializers["w"].const_value.numpy()[-1] == 999


def test_an_identity_that_an_output_no_longer_needs_goes():
    body = """q = Q16(x) qs = Q16(xs)
      last, all = Scan(q, qs)<num_scan_inputs=1, body = b (float[n] s, int8[n] v) => (float[n] t, int8[n] u) {
        t = ADD16(v, v) u = Identity(t) }> y = DQ16(last) ys = DQ16(all)"""
    model = quantizing(body, inputs="float[n] x, float[3,n] xs", outputs="float[n] y, float[3,n] ys")
    apply_rules(model)
    scan = next(node for node in model.graph if node.op_type == "Scan")
    assert [node.op_type for node in scan.attributes["body"].as_graph()] == ["iqAdd", "Dequant"]
    assert apply_rules(model)[0] == []


def test_a_type_that_is_found_late_counts_for_every_rule():
    body = "s = SequenceConstruct(x, x) a = SequenceAt(s, i) b = DQ4(a) y = Neg(b)"
    model = quantizing(body, inputs="float[n] x, int64 i")
    apply_rules(model)
    assert lines(model) == ["s=SequenceConstruct(x,x)", "a=SequenceAt(s,i)", "y=Neg(a)"]
    assert apply_rules(model) == ([], [])
