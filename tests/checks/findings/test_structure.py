"""Who makes what, and in which order."""

from tests.support.check_cases import text_model
from tests.support.findings import findings_of

IF = "[c] c = Constant<value = bool {{1}}>() [i] y = If(c)<then_branch = t () => ({then}), else_branch = e () => ({other})>"


def found(body, **settings):
    whole = text_model(body, domains="", **settings)
    return [(f.rule, f.node, f.tensor) for f in findings_of("structure", whole)]


def branches(then, other):
    return IF.format(then=f"float[2,2] p) {{ {then} }}", other=f"float[2,2] r) {{ {other} }}").replace("})", "}")


def test_branches_see_what_is_around_them_and_not_each_other():
    assert found(f"[a] a = Abs(x) {branches('[k] k = Neg(a) [p] p = Abs(k)', '[r] r = Neg(a)')}") == []
    assert found(branches("[k] k = Neg(x) [p] p = Abs(k)", "[r] r = Neg(k)")) == [
        ("LGR201", "i/else_branch/r (Neg)", "k")
    ]


def test_outputs_of_branches_need_a_maker_too():
    (only,) = findings_of("structure", text_model(branches("[k] k = Neg(x)", "[r] r = Neg(x)"), domains=""))
    assert (only.rule, only.node, only.tensor) == ("LGR201", "", "p")
    assert "the output 'p' of i/then_branch is made by no node" in only.reason


def test_a_graph_may_hand_on_its_input_or_an_initializer():
    assert (
        found("[n] z = Abs(x)", outputs="float[2,2] x, float[2] w, float[2,2] z", extra="<float[2] w = {1, 2}>") == []
    )


def test_a_tensor_that_is_read_twice_is_missed_once():
    assert found("[n] y = Add(z, z)") == [("LGR201", "n (Add)", "z")]


def test_names_of_outer_graphs_are_not_used_again_at_any_depth():
    body = """[a] a = Abs(x) [c] c = Constant<value = bool {1}>()
      [i] y = If(c)<else_branch = e () => (float[2,2] r) { [r] r = Neg(a) }, then_branch = t () => (float[2,2] p) {
        [j] p = If(c)<else_branch = f () => (float[2,2] u) { [u] u = Neg(a) }, then_branch = v () => (float[2,2] s) {
          [k] a = Neg(x) [s] s = Abs(a) }> }>"""
    assert found(body) == [("LGR202", "i/then_branch/j/then_branch/k (Neg)", "a")]


def test_a_branch_that_reads_a_later_tensor_makes_its_node_too_early():
    early = branches("[p] p = Neg(a)", "[r] r = Neg(x)")
    assert found(f"{early} [a] a = Abs(x)") == [("LGR203", "i (If)", "")]


def test_a_circle_may_lead_through_a_branch():
    round_about = branches("[p] p = Neg(a)", "[r] r = Neg(x)")
    assert found(f"{round_about} [a] a = Abs(y)") == [("LGR204", "i (If)", "")]


def test_what_comes_out_of_a_circle_or_leads_to_it_is_not_in_it():
    body = "[k] k = Abs(x) [a] a = Add(k, b) [b] b = Neg(a) [n] y = Abs(b)"
    assert found(body) == [("LGR204", "a (Add)", "")]


def test_a_node_before_a_circle_that_it_reads_from_is_only_too_early():
    assert found("[n] y = Abs(b) [a] a = Add(x, b) [b] b = Neg(a)") == [
        ("LGR203", "n (Abs)", ""),
        ("LGR204", "a (Add)", ""),
    ]


def test_a_node_that_reads_itself_is_a_circle():
    assert found("[a] a = Add(x, a) [n] y = Abs(a)") == [("LGR204", "a (Add)", "")]


def test_every_node_that_is_too_early_is_named():
    whole = text_model("[n] y = Neg(b) [m] b = Neg(a) [k] a = Abs(x)", domains="")
    assert [str(f) for f in findings_of("structure", whole)] == [
        "n (Neg): it stands before the nodes whose results it uses (b). Sort the nodes.",
        "m (Neg): it stands before the nodes whose results it uses (a). Sort the nodes.",
    ]
