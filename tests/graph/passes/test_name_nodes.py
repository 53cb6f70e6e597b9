"""Names that are missing or taken."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.support.onnx_text import parse, printed
from tests.support.passes import applied, body_of, computed, name_nodes, parsed

X = np.float32([-1, 2, 3])


def names(model):
    return [node.name for node in model.graph.all_nodes()]


def test_nodes_without_a_name_are_called_after_their_op_and_output():
    model = parse("[one] a = Abs(x)  b = Neg(a)  [one] y = Exp(b)")
    with pytest.raises(Exception, match="two nodes with same node name"):
        computed(model, {"x": X})
    rows = applied(name_nodes, model)
    np.testing.assert_array_equal(computed(model, {"x": X * 0})[0], [1, 1, 1])
    assert names(model) == ["one", "Neg_b", "Exp_y"]
    assert rows == [("Exp_y", "was called one, as another node is"), ("g", "nodes without a name called Neg_b")]


def test_a_name_that_is_taken_gets_a_number():
    model = parse("a = Abs(x)  [Abs_a] b = Neg(a)  y = Exp(b)")
    applied(name_nodes, model)
    assert names(model) == ["Abs_a_1", "Abs_a", "Exp_y"]


def test_branches_share_one_set_of_names_and_functions_have_their_own():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x, bool c) => (float[n] y) {
        [a] z = f.f(x)
        [b] y = If(c)<then_branch = t () => (float[n] p) { [a] p = Neg(z) },
                      else_branch = e () => (float[n] q) { [b] q = Abs(z) }>
        }
        <domain: "f", opset_import: ["": 17]> f (x) => (y) { [a] k = Neg(x)  [a] y = Neg(k) }"""
    )
    applied(name_nodes, model)
    np.testing.assert_array_equal(computed(model, {"x": X, "c": np.array(True)})[0], -X)
    assert names(model) == ["a", "b", "Neg_p", "Abs_q"]
    assert [n.name for n in next(iter(model.functions.values()))] == ["a", "Neg_y"]


def test_a_tensor_called_like_one_around_it_is_renamed_inside():
    model = parse(
        """[m] a = Abs(x)
           [o] y = If(c)<then_branch = t () => (float[n] p) { [k] a = Neg(x)  [l] p = Exp(a) },
                         else_branch = e () => (float[n] q) { [n] q = Neg(a) }>""",
        inputs="float[n] x, bool c",
    )
    assert applied(name_nodes, model) == [("a_1", "was called a, as another tensor is")]
    assert "{ a_1 = Neg (x) p = Exp (a_1) }" in body_of(model)
    assert "{ q = Neg (a) }" in body_of(model)


def test_a_result_of_a_branch_called_like_a_tensor_around_it_is_renamed():
    model = parse(
        """[m] a = Abs(x)
           [o] y = If(c)<then_branch = t () => (float[n] a) { [k] a = Neg(x) },
                         else_branch = e () => (float[n] q) { [n] q = Exp(a) }>""",
        inputs="float[n] x, bool c",
    )
    assert applied(name_nodes, model) == [("a_1", "was called a, as another tensor is")]
    assert "(float[n] a_1) { a_1 = Neg (x) }" in body_of(model)


def test_branches_beside_each_other_may_use_the_same_names():
    model = parse(
        """[o] y = If(c)<then_branch = t () => (float[n] p) { [k] k = Neg(x)  [l] p = Exp(k) },
                         else_branch = e () => (float[n] p) { [m] k = Abs(x)  [n] p = Neg(k) }>""",
        inputs="float[n] x, bool c",
    )
    assert applied(name_nodes, model, x=X, c=np.array(True)) == []


def test_tensors_made_in_memory_get_names_and_outputs_keep_theirs():
    model = parse("[a] a = Abs(x)  [b] y = Neg(a)")
    first = model.graph.node(0)
    first.outputs[0].name = "y"
    assert applied(name_nodes, model) == [("y_1", "was called y, as another tensor is")]
    first.outputs[0].name = None
    assert applied(name_nodes, model) == [("Abs_output", "had no name")]
    assert printed(model) == ["Abs_output=Abs(x)", "y=Neg(Abs_output)"]


def test_outputs_that_are_left_out_stay_so():
    model = parse("[p] y, m = MaxPool<kernel_shape = [1]>(x)", inputs="float[1,1,4] x", outputs="float[1,1,4] y")
    model.graph.node(0).outputs[1].name = ""
    assert applied(name_nodes, model) == []


def test_initializers_move_with_their_name():
    model = parse(
        """[o] y = If(c)<then_branch = t () => (float[n] p) { [k] p = Add(x, w) },
                         else_branch = e () => (float[n] q) { [n] q = Neg(w) }>""",
        inputs="float[n] x, bool c",
        extra="<float[1] w = {1}>",
    )
    inner = model.graph.node(0).attributes["then_branch"].as_graph()
    own = ir.Value(name="w", const_value=ir.tensor(np.float32([2]), name="w"))
    inner.register_initializer(own)
    inner.node(0).replace_input_with(1, own)
    assert applied(name_nodes, model) == [("w_1", "was called w, as another tensor is")]
    assert list(inner.initializers) == ["w_1"]
