"""What a file holds for nothing."""

import onnx

from tests.support.check_cases import text_model
from tests.support.findings import findings_of


def found(body, **settings):
    proto = body if isinstance(body, onnx.ModelProto) else text_model(body, domains="", **settings)
    return [(f.rule, f.node or f.tensor) for f in findings_of("usage", proto)]


def test_what_only_dead_nodes_use_is_dead_too():
    assert found("[a] a = Abs(x) [b] b = Neg(a) [n] y = Exp(x)") == [("LGR205", "a (Abs)"), ("LGR205", "b (Neg)")]


def test_one_used_output_is_enough():
    body = "[s] y, z = Split<axis=0>(x)"
    assert found(body, opset=12) == []


def test_what_a_branch_reads_is_alive():
    branch = """[a] a = Abs(x) [c] c = Constant<value = bool {1}>()
      [i] y = If(c)<then_branch = t () => (float[2,2] p) { [p] p = Neg(a) [k] k = Exp(a) },
                    else_branch = e () => (float[2,2] a) { }>"""
    assert found(branch) == [("LGR205", "i/then_branch/k (Exp)")]


def test_nodes_inside_a_dead_node_are_not_named_again():
    branch = """[n] y = Neg(x) [c] c = Constant<value = bool {1}>()
      [i] z = If(c)<then_branch = t () => (float[2,2] p) { [p] p = Neg(x) }, else_branch = e () => (float[2,2] q) { [q] q = Abs(x) }>"""
    assert found(branch) == [("LGR205", "c (Constant)"), ("LGR205", "i (If)")]


def test_initializers_may_be_outputs_and_old_files_list_them_as_inputs():
    assert found("[n] y = Neg(x)", outputs="float[2,2] y, float[2] w", extra="<float[2] w = {1, 2}>") == []
    old = text_model("[n] y = Neg(x)", domains="", extra="<float[2] w = {1, 2}>")
    old.graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info("w", 1, [2]))
    assert found(old) == [("LGR206", "w")]


def test_the_size_of_what_could_be_removed_is_told():
    whole = text_model("[n] y = Neg(x)", domains="", extra="<float[2] w = {1, 2}>")
    assert [f.reason for f in findings_of("usage", whole)] == ["the initializer 'w' (8 bytes) is used by nothing"]


def test_words_have_no_size():
    proto = text_model("[n] y = Neg(x)", domains="")
    proto.graph.initializer.add().CopyFrom(onnx.helper.make_tensor("s", onnx.TensorProto.STRING, [1], [b"word"]))
    assert [f.reason for f in findings_of("usage", proto)] == ["the initializer 's' is used by nothing"]


def test_a_loop_may_ignore_its_counter():
    loop = """[m] m = Constant<value = int64 {2}>() [c] c = Constant<value = bool {1}>()
      [l] y = Loop(m, c, x)<body = b (int64 i, bool k, float[2,2] s) => (bool k2, float[2,2] t) {
        [k] k2 = Identity(k) [t] t = Neg(s) }>"""
    assert found(loop) == []
