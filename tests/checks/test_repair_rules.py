"""Rules by name."""

import numpy as np
import pytest

from linger.checks import repair_rules
from linger.errors import UsageError
from tests.support.onnx_text import checked, content, parse, printed
from tests.support.passes import computed

RULES, choose_rules = repair_rules.RULES, repair_rules.choose_rules


def test_every_rule_is_named_like_its_pass_and_says_what_it_does_in_a_sentence():
    for name, rule in RULES.items():
        assert rule.name == name
        assert rule.apply.__name__ in (name, "_attach_where_functions_are")
        assert rule.description.endswith(".")
        assert "\n" not in rule.description


def test_the_default_leaves_out_what_is_a_matter_of_taste():
    on_request = {"inline_functions", "merge_initializers", "merge_duplicates", "fill_float_islands"}
    assert set(RULES) - {rule.name for rule in choose_rules()} == on_request | {"own_parameters"}
    assert set(RULES) - {rule.name for rule in choose_rules(is_for_chip=True)} == on_request


def test_rules_for_chips_are_not_added_to_those_that_are_chosen():
    assert [rule.name for rule in choose_rules("sort_nodes", is_for_chip=True)] == ["sort_nodes"]
    assert [rule.name for rule in choose_rules("own_parameters")] == ["own_parameters"]


def test_chosen_rules_run_in_their_own_order():
    assert [r.name for r in choose_rules(("remove_identity", "sort_nodes", "sort_nodes"))] == [
        "sort_nodes",
        "remove_identity",
    ]
    assert [r.name for r in choose_rules("name_nodes")] == ["name_nodes"]
    assert choose_rules(()) == ()


def test_unknown_names_are_all_named_with_those_that_come_near():
    with pytest.raises(
        UsageError,
        match=r"'remove_identities'.*is remove_identity.* meant.*'xyz': there is no such rule\. Known rules: sort_nodes,",
    ):
        choose_rules(["remove_identities", "sort_nodes", "xyz"])
    with pytest.raises(UsageError, match="3: there is no such rule"):
        choose_rules([3])


def test_all_rules_together_settle_in_one_run():
    """What one rule does, no other undoes: a second run of all finds nothing."""
    model = parse(
        """y = Identity(j)
           r = QuantizeLinear(e, s, z)  d = DequantizeLinear(r, s, z)
           q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)
           b = QuantizeLinear(a, s, z)  c = DequantizeLinear(b, s, z)  f = DequantizeLinear(b, s, z)
           e = Relu(c)  k = Exp(f)  j = Add(d, k)  dead = Neg(x)""",
        extra="<float s = {0.25}, uint8 z = {131}, float[1] unused = {1}>",
    )
    x = np.linspace(-40, 40, 501, dtype=np.float32)
    for rule in RULES.values():
        rule.apply(model)
    checked(model)
    assert printed(model) == [
        "q=QuantizeLinear(x,s_q,z_q)",
        "f=DequantizeLinear(q,s_q,z_q)",
        "r=Clip(q,e_131)",
        "d=DequantizeLinear(r,s,z)",
        "k=Exp(f)",
        "y=Add(d,k)",
    ]
    once = content(model)
    assert [(name, row) for name, rule in RULES.items() for row in rule.apply(model).rows()] == []
    assert content(model) == once
    # by hand: x = 5 is 151, and back 5: relu(5) + exp(5); x = -5 is 111, back -5: 0 + exp(-5)
    found = computed(model, {"x": np.float32([5, -5])})[0]
    np.testing.assert_allclose(found, [5 + np.exp(5), np.exp(-5)], rtol=2e-7)  # Exp is right to two units
    assert computed(model, {"x": x})[0].shape == x.shape


def test_a_sound_file_is_left_alone():
    model = parse(
        "[a] q = QuantizeLinear(x, s, z)  [b] y = DequantizeLinear(q, s, z)", extra="<float s = {0.25}, int8 z = {3}>"
    )
    model.graph.node(0).outputs[0].shape = model.graph.inputs[0].shape
    before = [rule.apply(model).rows() for rule in choose_rules() if rule.name != "complete_types"]
    assert before == [[]] * len(before)


def test_rules_that_are_no_list_are_refused():
    with pytest.raises(UsageError, match="rules: 5 is no list of names"):
        choose_rules(5)
