"""New nodes and constants around a node."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger.graph.conversion.node_rewriter import NodeRewriter, content_of, replace_inputs, rewrite, sizes_of
from linger.graph.core.nodes import Names
from tests.support.onnx_text import parse, printed


def rewriter_of(model, function=None):
    return NodeRewriter(model, function, Names(["x", "y", "a"]))


def graph(opset=17):
    return parse("a = Relu(x) y = Neg(a)", inputs="float[2,1] x", outputs="float[n,m] y", opset=opset)


def test_a_node_in_front():
    model = graph()
    relu = model.graph[0]
    made = rewriter_of(model).before(relu, "Abs", [relu.inputs[0]], preferred_name="a", like=relu.inputs[0])
    relu.replace_input_with(0, made)
    assert printed(model) == ["a_1=Abs(x)", "a=Relu(a_1)", "y=Neg(a)"]
    assert (made.dtype, list(made.shape)) == (ir.DataType.FLOAT, [2, 1])


@pytest.mark.parametrize("opset", [12, 13])
def test_a_squeeze_takes_over_name_and_users(opset):
    model = graph(opset)
    rewriter_of(model).squeeze_behind(model.graph[0], [1])
    expected = "a=Squeeze<axes:ints=[1]>(a_rows)" if opset == 12 else "a=Squeeze(a_rows,a_squeeze_axes)"
    assert printed(model) == ["a_rows=Relu(x)", expected, "y=Neg(a)"]


def test_a_squeeze_behind_an_output_is_the_output():
    model = graph(12)
    rewriter_of(model).squeeze_behind(model.graph[1], [1])
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert model.graph.outputs[0].producer().op_type == "Squeeze"
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT
    onnx.checker.check_model(ir.to_proto(model))


def test_constants_are_initializers_and_in_a_function_nodes():
    text = """<ir_version: 8, opset_import: ["": 17, "mine": 1]> g (float[2] x) => (float[2] y) { y = mine.f(x) }
      <domain: "mine", opset_import: ["": 12]> f (a) => (b) { b = Relu(a) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    (function,) = model.functions.values()
    made = rewriter_of(model).constant(model.graph[0], np.arange(2), "c")
    assert model.graph.initializers["c"] is made
    inside = rewriter_of(model, function)
    value = inside.constant(function[0], np.arange(2), "c")
    assert value.producer().op_type == "Constant"
    assert [n.op_type for n in function] == ["Constant", "Relu"]
    assert (rewriter_of(model).opset, inside.opset) == (17, 12)


def test_rewriting_keeps_names_and_sorts_attributes():
    model = graph()
    relu = model.graph[0]
    rewrite(relu, "linger", "QAdd", {"b": ir.AttrInt64("b", 1), "a": ir.AttrInt64("a", 2)})
    assert (relu.domain, relu.op_type, list(relu.attributes), relu.outputs[0].name) == (
        "linger",
        "QAdd",
        ["a", "b"],
        "a",
    )


def test_inputs_that_nothing_uses_any_more_go():
    model = parse("c = Neg(x) y = Concat<axis=0>(x, c, w)", extra="<float[1] w={1}>")
    concat = model.graph[1]
    replace_inputs(concat, [concat.inputs[0]])
    assert printed(model) == ["y=Concat<axis:int=0>(x)"]
    assert list(model.graph.initializers) == []


def test_what_is_known_of_tensors():
    model = parse(
        "c = Constant<value = int64[2] {1, 2}>() y = Add(x, w)", extra="<float[1] w={3}>", inputs="float[n,4] x"
    )
    assert content_of(model.graph[0].outputs[0]).tolist() == [1, 2]
    assert content_of(model.graph.initializers["w"]).tolist() == [3.0]
    assert content_of(model.graph.inputs[0]) is None
    assert content_of(model.graph[1].outputs[0]) is None
    assert content_of(None) is None
    assert sizes_of(model.graph.inputs[0]) == (None, 4)
    assert sizes_of(None) is None
    assert sizes_of(ir.Value(name="v")) is None


def test_what_a_caller_gives_and_what_only_looks_like_a_constant_has_no_content():
    ref = ir.Node("", "Constant", [], attributes=[ir.RefAttr("value", "k", ir.AttributeType.TENSOR)])
    number = ir.Node("", "Constant", [], attributes=[ir.AttrFloat32("value", 1.0)])
    other = ir.Node("my", "Constant", [], attributes=[ir.AttrTensor("value", ir.tensor([1]))])
    assert [content_of(node.outputs[0]) for node in (ref, number, other)] == [None] * 3
