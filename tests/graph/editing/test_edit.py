"""Insert, replace, remove: ONNX text in, ONNX text out, run in ONNX Runtime; a failed edit changes nothing."""

import numpy as np
import onnx_ir as ir
import pytest

from linger import Session
from linger.errors import GraphError, UsageError
from linger.graph import find, insert, load, new_model, remove, replace
from tests.support.onnx_text import BRANCH, content, parse, printed, run

X = np.array([-2.0, -0.5, 0.0, 1.0], np.float32)


def refuses(edit, model, error, message):
    """The edit raises one sentence and leaves every bit of the model."""
    before = content(model)
    with pytest.raises(error, match=message):
        edit(model)
    assert content(model) == before
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.inputs:
            assert value is None or any(use.node is node for use in value.uses())
    known = {id(n) for n in ir.traversal.RecursiveGraphIterator(model.graph)}
    values = [*model.graph.inputs, *model.graph.initializers.values(), *(o for n in model.graph for o in n.outputs)]
    assert all(id(use.node) in known for value in values for use in value.uses()), (
        "a node that was given up is still a user"
    )


# --- insert


def test_all_consumers_take_the_inserted_tensor():
    model = parse("a = Exp(x) b = Neg(a) c = Abs(a) y = Add(b, c)")
    changes = insert(model, "a", lambda g, a: g.Clip(a, 0.0, 1.0))
    assert printed(model) == [
        "a=Exp(x)",
        "a/Clip=Clip(a,a/constant,a/constant_1)",
        "b=Neg(a/Clip)",
        "c=Abs(a/Clip)",
        "y=Add(b,c)",
    ]
    assert changes.rows() == [("a", "Clip inserted, used by b (Neg), c (Abs)")]
    assert run(model, x=X)[0].tolist() == [0.0] * 4


def test_only_the_named_consumers_take_it():
    model = parse("a = Exp(x) [neg] b = Neg(a) c = Abs(a) y = Add(b, c)")
    insert(model, "a", lambda g, a: g.Sqrt(a), before="neg")
    assert printed(model) == ["a=Exp(x)", "a/Sqrt=Sqrt(a)", "b=Neg(a/Sqrt)", "c=Abs(a)", "y=Add(b,c)"]


def test_an_output_keeps_its_name_and_gets_its_new_type():
    model = parse("y = Exp(x)")
    insert(model, "y", lambda g, y: g.Cast(y, to=ir.DataType.INT32))
    assert printed(model) == ["y_1=Exp(x)", "y=Cast<to:int=6>(y_1)"]
    assert run(model, x=np.array([0.0], np.float32))[0].dtype == np.int32


def test_an_output_that_is_also_used_inside():
    model = parse("a = Exp(x) y = Neg(a)", outputs="float[n] a, float[n] y")
    insert(model, "a", lambda g, a: g.Sqrt(a))
    assert printed(model) == ["a_1=Exp(x)", "a=Sqrt(a_1)", "y=Neg(a)"]
    model = parse("a = Exp(x) [neg] y = Neg(a)", outputs="float[n] a, float[n] y")
    insert(model, "a", lambda g, a: g.Sqrt(a), before="neg")
    assert printed(model) == ["a=Exp(x)", "a/Sqrt=Sqrt(a)", "y=Neg(a/Sqrt)"]


def test_graph_inputs_and_initializers_are_tensors_too():
    model = parse("y = Mul(x, w)", extra="<float[1] w = {3.0}>")
    insert(model, "x", lambda g, x: g.Neg(x))
    insert(model, "w", lambda g, w: g.Exp(w))
    assert printed(model) == ["w/Exp=Exp(w)", "x/Neg=Neg(x)", "y=Mul(x/Neg,w/Exp)"]
    np.testing.assert_allclose(run(model, x=X)[0], -X * np.exp(np.float32(3)), rtol=1e-6)


def test_consumers_in_branches_take_it():
    model = parse(BRANCH)
    insert(model, "a", lambda g, a: g.Sqrt(a))
    users = {node.op_type for value in find(model, "Sqrt")[0].outputs for node in value.consumers()}
    assert users == {"Neg"}
    np.testing.assert_allclose(run(model, x=X)[0], np.sqrt(np.exp(X)), rtol=1e-6)


def test_inside_a_branch():
    model = parse(BRANCH)
    insert(model, "k", lambda g, k: g.Mul(k, 2.0))
    np.testing.assert_allclose(run(model, x=X)[0], 2 * np.exp(X), rtol=1e-6)


def test_several_nodes_may_be_inserted_and_name_other_tensors():
    model = parse("a = Exp(x) y = Neg(a)")
    insert(model, "a", lambda g, a: g.Add(g.Sqrt(a), "x"))
    assert printed(model)[1:] == ["a/Sqrt=Sqrt(a)", "a/Add=Add(a/Sqrt,x)", "y=Neg(a/Add)"]


def test_types_that_no_longer_hold_are_forgotten():
    extra = "<float[n] a, float[n] b, float[n] c>"
    model = parse("a = Exp(x) b = Neg(a) c = Abs(b) y = Cast<to=1>(c)", extra=extra)
    insert(model, "a", lambda g, a: g.Cast(a, to=ir.DataType.DOUBLE))
    assert [v.dtype for v in (model.graph[2].outputs[0], model.graph[3].outputs[0])] == [None, None]
    np.testing.assert_allclose(run(model, x=X)[0], np.exp(X), rtol=1e-6)


def test_a_dialect_node_may_be_inserted_and_its_domain_is_imported():
    model = parse("y = Exp(x)", opset=12)
    attributes = {"data_bits": 8, "scale_x": 16.0, "_domain": "thinker"}
    insert(model, "x", lambda g, x: g.Dequant(g.op("Quant", x, **attributes), scale_o=16.0, _domain="thinker"))
    assert model.graph.opset_imports["thinker"] == 1
    x = np.array([0.03, 1.0], np.float32)
    np.testing.assert_allclose(Session(model).run(None, {"x": x})[0], np.exp(np.float32([0, 1])), rtol=1e-6)


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda m: insert(m, "z", lambda g, z: g.Neg(z)), UsageError, "z: there is no tensor of this name"),
        (lambda m: insert(m, "a", lambda g, a: g.Add(a, "y")), GraphError, "depend on each other in a circle"),
        (lambda m: insert(m, "a", lambda g, a: g.Negg(a)), UsageError, "no such op in opset 17. Is Neg meant"),
        (lambda m: insert(m, "a", lambda g, a: g.Neg(a, _outputs=["y"])), UsageError, "tensor 'y': the name is in use"),
        (lambda m: insert(m, "a", lambda g, a: g.Neg(a, _name="e")), UsageError, "node 'e': the name is in use"),
        (lambda m: insert(m, "a", lambda g, a: a), UsageError, "one tensor that its nodes make"),
        (lambda m: insert(m, "a", lambda g, a: None), UsageError, "returned NoneType"),
        (lambda m: insert(m, "a", lambda g, a: g.Neg(a), before=["e", "s"]), UsageError, r"e \(Exp\) does not use.*s \(Neg\)"),
        (lambda m: insert(m, "d", lambda g, d: g.Neg(d)), UsageError, "nothing uses this tensor"),
        (lambda m: insert(m, "a", lambda g, a: g.Neg(a, alpha=1)), UsageError, "there is no attribute 'alpha'"),
        (lambda m: insert(m, "a", lambda g, a: g.Add(a, "k")), UsageError, "k: there is no tensor"),
    ],
    ids=[
        "unknown tensor", "cycle", "unknown op", "tensor name", "node name", "nothing made", "nothing returned",
        "no consumer", "unused", "attribute", "unknown operand",
    ],
)  # fmt: skip
def test_an_insertion_that_cannot_be_changes_nothing(edit, error, message):
    refuses(edit, parse("[e] a = Exp(x) d = Abs(x) [s] y = Neg(a)"), error, message)


def test_a_callback_that_raises_changes_nothing():
    def fails(g, a):
        g.Add(g.Neg(a), 1.0)
        raise KeyError("mine")

    refuses(lambda m: insert(m, "a", fails), parse("a = Exp(x) y = Neg(a)"), KeyError, "mine")


def test_a_tensor_of_the_other_branch_is_refused():
    model = parse(BRANCH)
    refuses(lambda m: insert(m, "k", lambda g, k: g.Add(k, "q")), model, GraphError, "another sub-graph")
    q = find(model, "Neg")[1].outputs[0]
    refuses(lambda m: insert(m, "k", lambda g, k: g.Add(k, q)), model, GraphError, "q cannot be used here")


def test_an_input_that_is_the_output_is_refused():
    model = parse("a = Exp(x)", outputs="float[n] x")
    refuses(lambda m: insert(m, "x", lambda g, x: g.Neg(x)), model, UsageError, "an input and an output")


# --- replace


def test_a_node_is_replaced_and_the_output_keeps_its_name():
    model = parse("[act] y = HardSwish(x)")
    changes = replace(model, "act", lambda g, x: g.Mul(x, g.HardSigmoid(x, alpha=1 / 6, beta=0.5)))
    assert [node.op_type for node in model.graph] == ["HardSigmoid", "Mul"]
    assert model.graph.outputs[0].name == "y"
    assert changes.rows() == [("act (HardSwish)", "replaced by HardSigmoid, Mul")]
    np.testing.assert_allclose(run(model, x=X)[0], X * np.clip(X / 6 + 0.5, 0, 1), atol=1e-6)


def test_a_tensor_in_the_middle_keeps_its_name_too():
    model = parse("a = Exp(x) b = Neg(a) y = Abs(b)")
    replace(model, find(model, "Neg"), lambda g, a: g.Mul(a, -1.0))
    assert printed(model) == ["a=Exp(x)", "b=Mul(a,b/constant)", "y=Abs(b)"]
    model = parse("[n] b = Neg(x) y = Abs(b)")
    replace(model, "n", lambda g, x: g.Mul(x, -1.0, _outputs=["mine"]))
    assert printed(model) == ["mine=Mul(x,n/constant)", "y=Abs(mine)"]


def test_several_nodes_become_one_and_their_weights_go():
    model = parse("a = MatMul(x, w) y = Add(a, b)", inputs="float[n,2] x", outputs="float[n,2] y",
                  extra="<float[2,2] w = {1, 2, 3, 4}, float[2] b = {5, 6}>")  # fmt: skip
    replace(model, list(model.graph), lambda g, x, w, b: g.Gemm(x, w, b))
    assert printed(model) == ["y=Gemm(x,w,b)"]
    replace(model, list(model.graph), lambda g, x, w, b: g.Relu(x))
    assert printed(model) == ["y=Relu(x)"]
    assert list(model.graph.initializers) == []


def test_missing_inputs_come_as_none():
    model = parse('hi = Constant<value_float = 1.0>() [c] y = Clip(x, "", hi)')
    seen = []
    replace(model, "c", lambda g, x, low, high: seen.extend([x, low, high]) or g.Min(x, high))
    assert [None if v is None else v.name for v in seen] == ["x", None, "hi"]
    assert printed(model)[1:] == ["y=Min(x,hi)"]


def test_unused_outputs_need_no_replacement():
    model = parse(
        "y, unused = MaxPool<kernel_shape=[2], strides=[2]>(x)", inputs="float[1,1,4] x", outputs="float[1,1,2] y"
    )
    replace(model, model.graph[0], lambda g, x: g.AveragePool(x, kernel_shape=[2], strides=[2]))
    assert run(model, x=X.reshape(1, 1, 4))[0].tolist() == [[[-1.25, 0.5]]]


def test_every_occurrence_of_a_pattern_is_replaced_adjacent_ones_too():
    model = parse("s = Sigmoid(x) a = Mul(x, s) t = Sigmoid(a) y = Mul(t, a)")
    before = run(model, x=X)[0]
    changes = replace(model, lambda g, x: g.Mul(x, g.Sigmoid(x)), lambda g, x: g.Div(x, g.Add(g.Exp(g.Neg(x)), 1.0)))
    assert len(changes) == 2
    assert [n.op_type for n in model.graph] == ["Neg", "Exp", "Add", "Div"] * 2
    assert model.graph[3].outputs[0].name == "a"
    np.testing.assert_allclose(run(model, x=X)[0], before, rtol=1e-6)


def test_a_pattern_may_vanish():
    model = parse("a = Neg(x) b = Neg(a) c = Neg(b) y = Neg(c)")
    assert len(replace(model, lambda g, x: g.Neg(g.Neg(x)), lambda g, x: x)) == 2
    assert printed(model) == ["y=Identity(x)"]
    assert run(model, x=X)[0].tolist() == X.tolist()


def test_attributes_of_what_goes_can_be_used():
    def fused(g, x, w, *, match):
        clip = match.nodes[1]
        assert clip.op_type == "Relu"
        return g.op("ConvRelu", x, w, _domain="my", strides=match.nodes[0].attributes["strides"])

    model = parse("c = Conv<strides=[2,2]>(x, w) y = Relu(c)", inputs="float[1,1,4,4] x, float[1,1,1,1] w",
                  outputs="float[1,1,2,2] y")  # fmt: skip
    replace(model, lambda g, x, w: g.Relu(g.Conv(x, w)), fused)
    assert printed(model) == ["y=my.ConvRelu<strides:ints=[2,2]>(x,w)"]
    assert model.graph.opset_imports == {"": 17, "my": 1}


def test_where_chooses_among_the_occurrences():
    model = parse("[a1] a = Neg(x) [b1] b = Neg(a) y = Abs(b)")
    replace(model, lambda g, x: g.Neg(x), lambda g, x: g.Exp(x), where=lambda match: match.nodes[0].name == "b1")
    assert printed(model) == ["a=Neg(x)", "b=Exp(a)", "y=Abs(b)"]


def test_captured_tensors_follow_a_replacement():
    model = parse(BRANCH)
    replace(model, find(model, "Exp"), lambda g, x: g.Pow(np.float32(2.718281828), x))
    np.testing.assert_allclose(run(model, x=X)[0], np.exp(X), rtol=1e-5)


def test_patterns_are_replaced_inside_branches():
    model = parse(BRANCH)
    assert len(replace(model, lambda g, a: g.Abs(g.Neg(a)), lambda g, a: g.Abs(a))) == 1
    np.testing.assert_allclose(run(model, x=X)[0], np.exp(X), rtol=1e-6)


def test_an_if_can_be_replaced_and_lets_go_of_what_it_captured():
    model = parse(BRANCH)
    replace(model, find(model, "If"), lambda g, c: g.Neg("a"))
    assert printed(model) == ["a=Exp(x)", "y=Neg(a)"]
    assert [n.op_type for n in model.graph[0].outputs[0].consumers()] == ["Neg"]


def test_a_branch_can_be_built():
    model = parse("[act] y = Relu(x)")
    replace(
        model,
        "act",
        lambda g, x: g.If(
            g.Greater(g.ReduceMax(x, keepdims=0), 0.5),
            then_branch=g.graph(lambda b: b.Neg(x)),
            else_branch=g.graph(lambda b: x),
        ),
    )
    assert run(model, x=X)[0].tolist() == (-X).tolist()
    assert run(model, x=X * 0.1)[0].tolist() == (X * np.float32(0.1)).tolist()


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda m: replace(m, "no", lambda g, x: x), UsageError, "no: there is no node"),
        (lambda m: replace(m, "e", lambda g, x: (x, x)), UsageError, r"returned 2 tensors for 1 \(a\)"),
        (lambda m: replace(m, "e", lambda g, x: g.Neg("y")), GraphError, "circle"),
        (lambda m: replace(m, "e", lambda g, x: g.Neg("a")), GraphError, "circle"),
        (lambda m: replace(m, ["e", "s"], lambda g, x: g.Neg(x)), UsageError, "returned 1 tensors for 2"),
        (lambda m: replace(m, ["e", "last"], lambda g, *xs: g.op("F", *xs, _domain="my", _outputs=2)), GraphError, "circle"),
        (lambda m: replace(m, "dead", lambda g, x: g.Neg(x)), UsageError, r"nothing uses dead \(Abs\). Remove it"),
        (lambda m: replace(m, [], lambda g: None), UsageError, "must be nodes of one graph"),
        (lambda m: replace(m, "e", lambda g, x: x, where=bool), UsageError, "`where` chooses among the occurrences"),
        (lambda m: replace(m, lambda g, x: x, lambda g, x: x), UsageError, "must return the tensors that its nodes"),
        (lambda m: replace(m, lambda g, x: g.Exp(x), lambda g, x: g.Nope(x)), UsageError, "no such op"),
    ],
    ids=[
        "unknown node", "too many", "cycle", "own output", "too few", "not convex", "dead", "none", "where", "no pattern",
        "unknown op",
    ],
)  # fmt: skip
def test_a_replacement_that_cannot_be_changes_nothing(edit, error, message):
    body = "[e] a = Exp(x) [dead] d = Abs(x) [s] b = Neg(a) [last] y = Add(a, b)"
    if message == "returned 1 tensors for 2":
        refuses(edit, parse(body, outputs="float[n] y, float[n] b"), error, message)
    else:
        refuses(edit, parse(body), error, message)


def test_a_failure_at_the_second_place_undoes_the_first():
    model = parse("a = Exp(x) b = Exp(a) y = Mul(b, w)", extra="<float[1] w = {2.0}, float[1] v = {1.0}>")
    calls = []

    def second_fails(g, x):
        calls.append(x)
        return g.Add(x, np.float32(1)) if len(calls) == 1 else g.Conv(x)

    refuses(
        lambda m: replace(m, lambda g, x: g.Exp(x), second_fails), model, UsageError, "Conv: it takes 2 to 3 inputs"
    )
    assert len(calls) == 2


def test_a_model_with_a_cycle_is_reported_and_left_alone():
    model = parse("a = Add(x, b) b = Abs(a) y = Neg(a)")
    refuses(lambda m: replace(m, find(m, "Neg"), lambda g, a: g.Abs(a)), model, GraphError, "circle")


# --- remove


def test_consumers_take_the_first_input():
    model = parse("a = Exp(x) b = Relu(a) c = Neg(b) y = Add(b, c)")
    changes = remove(model, find(model, "Relu"))
    assert printed(model) == ["a=Exp(x)", "c=Neg(a)", "y=Add(a,c)"]
    assert changes.rows() == [("b (Relu)", "removed, a used instead")]


def test_the_node_before_makes_the_output():
    model = parse("a = Exp(x) y = Relu(a)")
    remove(model, model.graph[1])
    assert printed(model) == ["y=Exp(x)"]
    np.testing.assert_allclose(run(model, x=X)[0], np.exp(X), rtol=1e-6)


def test_an_input_cannot_be_the_output_itself():
    model = parse("y = Relu(x)")
    remove(model, model.graph[0])
    assert printed(model) == ["y=Identity(x)"]
    assert run(model, x=X)[0].tolist() == X.tolist()


def test_two_outputs_stay_two():
    model = parse("a = Exp(x) y = Relu(a)", outputs="float[n] a, float[n] y")
    remove(model, model.graph[1])
    assert printed(model) == ["a=Exp(x)", "y=Identity(a)"]


def test_a_chain_goes_at_once():
    model = parse("a = Exp(x) b = Relu(a) c = Relu(b) y = Relu(c)")
    assert len(remove(model, find(model, "Relu"))) == 3
    assert printed(model) == ["y=Exp(x)"]


def test_captured_tensors_are_bypassed():
    model = parse(BRANCH)
    remove(model, find(model, "Exp"))
    assert [v.name for node in find(model, "Neg") for v in node.inputs] == ["x", "x"]
    assert run(model, x=X)[0].tolist() == np.abs(X).tolist()


def test_a_branch_that_would_return_an_outer_tensor_gets_an_identity():
    model = parse(BRANCH)
    remove(model, find(model, "Neg")[1])
    inner = find(model, "Identity")[0]
    assert (inner.inputs[0].name, inner.outputs[0].name) == ("a", "q")
    run(model, x=X)


def test_what_only_the_node_needed_goes_when_asked():
    body = "a = Exp(x) s = Sqrt(a) t = Mul(s, w) b = Add(x, t) y = Neg(b)"
    model = parse(body, extra="<float[1] w = {2.0}>")
    remove(model, find(model, "Add"))
    assert len(model.graph) == 4
    assert list(model.graph.initializers) == ["w"]
    model = parse(body, extra="<float[1] w = {2.0}>")
    changes = remove(model, find(model, "Add"), prune=True)
    assert printed(model) == ["y=Neg(x)"]
    assert list(model.graph.initializers) == []
    assert {what for _, what in changes.rows()[1:]} == {"removed, nothing uses it"}
    assert len(changes) == 4


def test_pruning_stops_at_what_is_used_elsewhere():
    model = parse("a = Exp(x) s = Sqrt(a) b = Add(x, s) y = Mul(b, a)")
    remove(model, find(model, "Add"), prune=True)
    assert printed(model) == ["a=Exp(x)", "y=Mul(x,a)"]


def test_a_node_that_was_pruned_with_another_may_be_named_too():
    model = parse("s = Sqrt(x) b = Add(x, s) y = Neg(b)")
    remove(model, [*find(model, "Add"), *find(model, "Sqrt")], prune=True)
    assert printed(model) == ["y=Neg(x)"]


def test_a_dead_node_simply_goes():
    model = parse("d = Constant<value_float = 1.0>() y = Neg(x)")
    remove(model, find(model, "Constant"))
    assert printed(model) == ["y=Neg(x)"]


def test_a_second_use_of_the_same_tensor_as_input():
    model = parse("a = Relu(x) y = Add(a, a)")
    remove(model, model.graph[0])
    assert printed(model) == ["y=Add(x,x)"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[c] a = Constant<value_float = 1.0>() [s] p, q = Split<num_outputs=2>(x) y = Add(p, q)",
         r"c \(Constant\) has no input.*s \(Split\) makes q too, which is used.*i \(Identity\) is needed"),
    ],
    ids=["all"],
)  # fmt: skip
def test_all_nodes_that_cannot_go_are_named(body, message):
    model = parse(body + " [i] z = Identity(x) w = Mul(y, a)", outputs="float[m] w, float[n] z", opset=18)
    refuses(lambda m: remove(m, ["c", "s", "i"]), model, UsageError, message)


def test_an_if_is_not_bypassed():
    model = parse(BRANCH)
    refuses(lambda m: remove(m, find(m, "If")), model, UsageError, "has no input that could stand in")


def test_a_removed_node_is_no_longer_there():
    model = parse("[r] a = Relu(x) y = Neg(a)")
    node = model.graph[0]
    remove(model, node)
    with pytest.raises(UsageError, match=r"r \(Relu\) is no node of this model"):
        remove(model, node)


def test_edits_of_a_real_dialect_file_leave_its_integers_alone(shared):
    path = shared / "golden" / "resnet18-12-regular.onnx"
    model = load(path)
    name = model.graph.inputs[0].name
    feed = {name: np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)}
    relus = len(find(model, "Relu"))
    assert relus > 10
    assert len(replace(model, lambda g, x: g.Relu(x), lambda g, x: g.Relu(g.Relu(x)))) == relus
    insert(model, name, lambda g, x: g.Identity(x))
    np.testing.assert_array_equal(Session(model).run(None, feed)[0], Session(path).run(None, feed)[0])


def test_new_model_and_edits_fit_together():
    model = new_model({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(g.Neg(x)))
    remove(model, find(model, "Neg"))
    assert printed(model) == ["y=Relu(x)"]
