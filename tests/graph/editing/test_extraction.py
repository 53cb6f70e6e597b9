"""A part of a model as a model of its own."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import Session
from linger.errors import GraphError, UsageError
from linger.graph import extract, load
from tests.support.onnx_text import BRANCH, attach_functions, checked, content, parse, printed, run, type_of

X = np.array([-2.0, -0.5, 0.0, 1.0], np.float32)


def test_the_part_has_typed_ends_and_computes_what_the_whole_computes():
    model = parse(
        "a = Exp(x) b = Mul(a, w) c = Neg(b) y = Abs(c)", extra="<float[1] w = {2.0}, float[1] unused = {1.0}>"
    )
    before = content(model)
    part = extract(model, ["a"], ["c"])
    assert printed(part) == ["b=Mul(a,w)", "c=Neg(b)"]
    assert list(part.graph.initializers) == ["w"]
    assert [type_of(v) for v in (*part.graph.inputs, *part.graph.outputs)] == ["float[n]", "float[n]"]
    assert run(part, a=X)[0].tolist() == (-2 * X).tolist()
    assert content(model) == before


def test_the_part_is_independent_of_the_model():
    model = parse("a = Exp(x) y = Neg(a)", extra="<float[n] a>")
    before = content(model)
    part = extract(model, ["a"], ["y"])
    part.graph.inputs[0].name = "other"
    part.graph.inputs[0].dtype = part.graph.outputs[0].dtype = type(part.graph.inputs[0].dtype).DOUBLE
    assert content(model) == before


def test_several_ends_and_the_order_asked_for():
    model = parse("a = Exp(x) b = Neg(a) c = Abs(b) y = Add(b, c)")
    part = extract(model, ["b"], ["y", "c"])
    assert [v.name for v in part.graph.outputs] == ["y", "c"]
    assert printed(part) == ["c=Abs(b)", "y=Add(b,c)"]


def test_a_weight_may_be_an_input():
    model = parse("a = Mul(x, w) y = Neg(a)", extra="<float[1] w = {2.0}>")
    part = extract(model, ["x", "w"], ["a"])
    assert [v.name for v in part.graph.inputs] == ["x", "w"]
    assert not part.graph.initializers
    assert run(part, x=X, w=np.float32([3]))[0].tolist() == (3 * X).tolist()


def test_captured_tensors_are_followed():
    model = parse(BRANCH)
    part = extract(model, ["x"], ["y"])
    np.testing.assert_allclose(run(part, x=X)[0], np.exp(X), rtol=1e-6)
    assert extract(model, ["a"], ["y"]).graph.inputs[0].name == "a"
    checked(extract(model, ["a"], ["y"]))


def test_a_captured_input_that_is_missing_is_named():
    model = parse(BRANCH.replace("Neg(a)", "Neg(x)"))
    with pytest.raises(UsageError, match="also depend on x, add it to the inputs"):
        extract(model, [], ["y"])


def test_functions_and_domains_come_along_only_if_used():
    body = "q = thinker.Quant<data_bits=8, scale_x=16.0>(x) r = Relu(q) f = thinker.Dequant<scale_o=16.0>(r) y = Abs(f)"
    model = parse(body, domains=', "thinker": 1', opset=12)
    attach_functions(model)
    part = extract(model, ["q"], ["f"])
    assert {name for _, name, _ in part.functions} == {"Relu", "Dequant"}
    assert type_of(part.graph.inputs[0]).startswith("int8")
    assert Session(part).run(None, {"q": np.array([-3, 16], np.int8)})[0].tolist() == [0.0, 1.0]
    tail = extract(model, ["f"], ["y"])
    assert not tail.functions
    assert tail.graph.opset_imports == {"": 12}


def test_domains_of_nodes_stay_beside_functions_that_do_not_use_them():
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17, "own": 1, "com.microsoft": 1, "unused": 1]>'
            "g (float[n] x) => (float[n] y) <float[n] b> { a = com.microsoft.QuickGelu<alpha=1.0>(x) b = own.Twice(a) y = Abs(b) }"
            '<domain: "own", opset_import: ["": 17]> Twice (p) => (q) { q = Add(p, p) }'
        )
    )
    part = extract(model, ["x"], ["b"])
    assert part.graph.opset_imports == {"": 17, "own": 1, "com.microsoft": 1}
    np.testing.assert_allclose(run(part, x=X)[0], 2 * X / (1 + np.exp(-X)), rtol=1e-6)


def test_a_bare_dialect_file_shows_its_types_with_functions(shared):
    path = shared / "golden" / "resnet18-12-regular.onnx"
    model = load(path)
    for value in (o for node in model.graph for o in node.outputs if not o.is_graph_output()):
        value.type = value.shape = None
    middle = [n.outputs[0].name for n in model.graph if n.op_type == "Relu"][2:5:2]
    part = extract(model, middle[:1], middle[1:])
    assert type_of(part.graph.inputs[0]).startswith("int8[")
    feed = {model.graph.inputs[0].name: np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)}
    whole = Session(path).intermediates(feed)
    got = Session(part).run(None, {middle[0]: whole[middle[0]]})[0]
    np.testing.assert_array_equal(got, whole[middle[1]])


def test_a_file_of_the_newer_dialect_shows_its_types_too():
    body = """q = linger.Quant<data_bits=8, scale_x=16.0, zero_point=0>(x) r = Relu(q) y = linger.Dequant<scale_o=16.0>(r)"""
    part = extract(parse(body, inputs="float[2] x", outputs="float[2] y", domains=', "linger": 1'), ["q"], ["y"])
    assert type_of(part.graph.inputs[0]) == "int8[2]"
    assert Session(part).run(None, {"q": np.array([-3, 16], np.int8)})[0].tolist() == [0.0, 1.0]


def test_large_weights_do_not_hinder_inference():
    model = parse("a = MatMul(x, w) b = Neg(a) y = Abs(b)", inputs="float[n,64] x", outputs="float[n,32] y",
                  extra=f"<float[64,32] w = {{{','.join(['1'] * 2048)}}}>")  # fmt: skip
    part = extract(model, ["x"], ["b"])
    assert type_of(part.graph.outputs[0]) == "float[n,32]"
    assert model.graph.initializers["w"].const_value is not None
    assert run(part, x=np.ones((2, 64), np.float32))[0].tolist() == [[-64.0] * 32] * 2


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (["x"], [], "there are no outputs"),
        (["nope", "x"], ["gone"], "nope: there is no tensor"),
        (["x"], ["gone", "y", "away"], "gone: there is no tensor.*away: there is no tensor"),
        (["b", "x"], ["a"], "do not depend on b, leave it out"),
        (["c"], ["a"], "do not depend on c, leave it out; the outputs also depend on x, add it"),
        ([], ["y"], "also depend on x, add it to the inputs"),
        (["x", "x"], ["y", "y"], "x, y is named twice"),
    ],
    ids=["no outputs", "unknown input", "unknown outputs", "spare input", "both", "missing input", "twice"],
)
def test_bounds_that_do_not_bound_are_one_sentence(inputs, outputs, message):
    with pytest.raises(UsageError, match=message):
        extract(parse("a = Exp(x) b = Neg(a) c = Abs(x) d = Add(b, c) y = Abs(d)"), inputs, outputs)


def test_tensors_of_a_branch_are_refused():
    with pytest.raises(UsageError, match="k belongs to a sub-graph"):
        extract(parse(BRANCH), ["x"], ["k"])


def test_a_type_that_cannot_be_known_is_an_error():
    model = parse("a = my.Op(x) y = Neg(a)", domains=', "my": 1')
    with pytest.raises(GraphError, match="the element type of a is not noted"):
        extract(model, ["a"], ["y"])


def test_unsorted_nodes_and_unmade_tensors_are_told_apart():
    model = parse("a = Exp(x) b = Neg(a) y = Abs(b)", extra="<float[n] a, float[n] b>")
    model.graph.append(model.graph[0])
    with pytest.raises(GraphError, match="not in the order of computation"):
        extract(model, ["x"], ["y"])
    with pytest.raises(GraphError, match="no node makes nothing, which is used"):
        extract(parse("y = Add(x, nothing)"), ["x"], ["y"])
