"""Whether work on a model can end."""

import onnx
import onnx_ir as ir
import pytest

from linger.errors import GraphError
from linger.graph import load
from linger.graph.files import soundness
from linger.graph.files.soundness import CYCLE, REPORTABLE, UNDEFINED, Flaw, flaws, refuse
from tests.support.hostile import chain, nested, plain
from tests.support.onnx_text import BRANCH, parse


def categories(model):
    return [flaw.category for flaw in flaws(model)]


def with_functions(*texts, calls="y = my.f0(x)"):
    bodies = "".join(f'<domain: "my", opset_import: ["": 17, "my": 1]> {text}' for text in texts)
    text = f'<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[n] x) => (float[n] y) {{ {calls} }} {bodies}'
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize(
    "model",
    [parse(BRANCH), parse("b = Neg(a) a = Exp(x) y = Abs(b)"), ir.from_proto(nested(31)), ir.from_proto(chain(5000))],
    ids=["branch", "unsorted", "31 levels", "5000 nodes"],
)
def test_sound_models_have_no_flaws(model):
    assert flaws(model) == []


def test_nodes_on_a_cycle_are_named_and_those_behind_it_are_not():
    model = parse("[p] a = Add(x, c) [q] b = Neg(a) [r] c = Abs(b) [after] y = Exp(c) [before] z = Exp(x)")
    (flaw,) = flaws(model)
    assert flaw.category == CYCLE
    assert flaw.reason in {
        "p (Add), q (Neg), r (Abs) wait for each other",
        "q (Neg), r (Abs), p (Add) wait for each other",
        "r (Abs), p (Add), q (Neg) wait for each other",
    }


def test_a_node_that_feeds_itself_is_a_cycle():
    assert flaws(parse("[p] a = Add(x, a) y = Exp(a)")) == [Flaw(CYCLE, "p (Add) waits for itself")]


def test_a_cycle_may_go_through_a_branch():
    body = """[i] y = If(c)<then_branch = t () => (float[n] p) { p = Neg(z) }, else_branch = e () => (float[n] q) { q = Neg(x) }>
    [n] z = Abs(y)"""
    (flaw,) = flaws(parse(body, inputs="float[n] x, bool c"))
    assert flaw.reason in {"n (Abs), i (If) wait for each other", "i (If), n (Abs) wait for each other"}


def test_a_cycle_inside_a_branch_and_inside_a_function_is_found():
    body = "y = If(c)<then_branch = t () => (float[n] p) { p = Neg(r) r = Abs(p) }, else_branch = e () => (float[n] q) { q = Neg(x) }>"
    assert categories(parse(body, inputs="float[n] x, bool c")) == [CYCLE]
    assert categories(with_functions("f0 (a) => (b) { b = Neg(c) c = Abs(b) }")) == [CYCLE]


def test_a_branch_that_uses_what_a_later_node_makes_is_no_cycle():
    body = """y = If(c)<then_branch = t () => (float[n] p) { p = Neg(z) }, else_branch = e () => (float[n] q) { q = Neg(x) }>
    z = Abs(x)"""
    assert flaws(parse(body, inputs="float[n] x, bool c")) == []


def test_tensors_from_nowhere_are_all_named():
    model = parse("[p] a = Add(x, gone) y = Abs(lost)", outputs="float[n] y, float[n] never")
    assert flaws(model) == [
        Flaw(UNDEFINED, "no node makes 'gone', which p (Add) uses"),
        Flaw(UNDEFINED, "no node makes 'lost', which y (Abs) uses"),
        Flaw(UNDEFINED, "no node makes the output 'never'"),
    ]


def test_outputs_may_be_inputs_and_initializers():
    assert flaws(parse("y = Neg(x)", outputs="float[n] y, float[n] x, float[1] w", extra="<float[1] w = {1}>")) == []


def test_functions_that_never_end_are_named():
    assert [f.reason for f in flaws(with_functions("f0 (a) => (b) { b = my.f0(a) }"))] == [
        "the function calls itself: my::f0"
    ]
    (flaw,) = flaws(with_functions("f0 (a) => (b) { b = my.f1(a) }", "f1 (a) => (b) { b = my.f0(a) }"))
    assert flaw.category == "recursion"
    assert flaw.reason == "the functions call each other: my::f0, my::f1"


def doubling(levels):
    texts = [f"f{i} (a) => (b) {{ c = my.f{i + 1}(a) b = my.f{i + 1}(c) }}" for i in range(levels)]
    return with_functions(*texts, f"f{levels} (a) => (b) {{ b = Neg(a) }}")


def test_calls_are_counted_as_they_unfold():
    # f0 is called once, and inside it 2 + 4 + … + 2^n calls are made
    assert flaws(doubling(13)) == []  # 2^14 − 2 = 16382
    (flaw,) = flaws(doubling(14))  # 2^15 − 2 = 32766; 1 + 2·14 + 1 nodes
    assert (flaw.category, flaw.reason) == (
        "unfolding",
        "its functions unfold into 32766 calls; at most 20030 are supported",
    )


def test_many_calls_of_the_main_graph_are_no_flaw(monkeypatch):
    monkeypatch.setattr(soundness, "MOST_NESTED_CALLS", 0)
    calls = "a = my.f0(x) b = my.f0(a) c = my.f0(b) y = my.f0(c)"
    assert flaws(with_functions("f0 (a) => (b) { c = Neg(a) b = Neg(c) }", calls=calls)) == []


@pytest.mark.parametrize(("levels", "found"), [(98, []), (99, ["depth"])])
def test_functions_call_each_other_so_deep_and_no_deeper(levels, found):
    texts = [f"f{i} (a) => (b) {{ b = my.f{i + 1}(a) }}" for i in range(levels)]
    assert categories(with_functions(*texts, f"f{levels} (a) => (b) {{ b = Neg(a) }}")) == found


@pytest.mark.parametrize("op_type", ["If", "Loop"])
def test_graphs_inside_each_other_have_a_limit(op_type):
    model = ir.from_proto(nested(32, op_type))
    (flaw,) = flaws(model)
    assert flaw.category == "depth"
    assert "more than 32 levels deep" in flaw.reason


def test_a_model_in_memory_that_is_bottomless_is_refused_without_recursion():
    inner = ir.Graph([], [], nodes=[ir.Node("", "Abs", [ir.Value(name="x")])], name="g")
    for level in range(5000):
        inner = ir.Graph([], [], nodes=[ir.Node("", "If", [], [ir.AttrGraph("then_branch", inner)])], name=f"g{level}")
    with pytest.raises(GraphError, match=r"the given model: the model cannot be used: .* levels deep"):
        load(ir.Model(inner, ir_version=8))


def test_what_is_refused_can_be_chosen():
    found = [Flaw(CYCLE, "round"), Flaw("depth", "deep")]
    with pytest.raises(GraphError, match=r"^m: the model cannot be used: round, deep\. Export it again\.$"):
        refuse(found, "m")
    with pytest.raises(GraphError, match="used: deep"):
        refuse(found, "m", allowed=REPORTABLE)
    refuse(found[:1], "m", allowed=REPORTABLE)


def test_a_model_with_a_cycle_can_be_loaded_by_those_who_report_it():
    proto = plain("a = Add(x, a) y = Exp(a)")
    with pytest.raises(GraphError, match="waits for itself"):
        load(proto)
    assert load(proto, allowed=REPORTABLE).graph[0].op_type == "Add"
