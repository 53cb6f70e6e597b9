"""Tensors of one name told apart; `test_proto_repair` shows the whole."""

import onnx
import pytest

from linger.checks.proto_repair import proto_scopes, separate_definitions, taken_names
from linger.graph.core.nodes import Changes

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x, bool c) => (float[n] y)'


def read(body):
    proto = onnx.parser.parse_model(f"{HEAD} {{ {body} }}")
    changes = Changes()
    scopes = proto_scopes(proto)
    wrong = separate_definitions(scopes, taken_names(scopes), changes)
    return proto, wrong, changes.rows()


def test_every_name_is_known():
    proto, _, _ = read(
        "a = Abs(x)  y = If(c)<then_branch = t () => (float[n] p) { p = Neg(w) }, else_branch = e () => (float[n] q) { q = Abs(a) }>"
    )
    names = taken_names(proto_scopes(proto))
    assert all(name in names for name in ("x", "c", "y", "a", "p", "q", "w"))
    assert "g" not in names


def test_two_branches_that_hide_one_tensor_get_two_names():
    branch = "{ a = Neg(a)  %s = Exp(a) }"
    body = f"a = Abs(x)  y = If(c)<then_branch = t () => (float[n] p) {branch % 'p'}, else_branch = e () => (float[n] q) {branch % 'q'}>"
    proto, wrong, rows = read(body)
    assert not wrong
    assert len(rows) == 2
    inner = [a.g.node[0].output[0] for a in proto.graph.node[1].attribute]
    assert inner == ["a_1", "a_2"]
    assert [a.g.node[1].input[0] for a in proto.graph.node[1].attribute] == inner


def test_a_use_inside_a_branch_before_anything_is_made_is_noticed():
    body = """y = If(c)<then_branch = t () => (float[n] p) { p = Neg(a) }, else_branch = e () => (float[n] q) { q = Exp(x) }>
              a = Abs(x)  b = Exp(a)  a = Neg(b)"""
    _, wrong, _ = read(body)
    assert wrong == ["the tensor a is made by a (Abs) and by a (Neg), and p (Neg) uses it before"]


@pytest.mark.parametrize("count", [3, 2000])
def test_long_chains(count):
    body = "a = Abs(x)  " + "a = Neg(a)  " * count + "y = Exp(a)"
    proto, wrong, rows = read(body)
    assert not wrong
    assert len(rows) == count
    assert proto.graph.node[-1].input[0] == f"a_{count}"


def test_an_input_that_comes_back_as_an_output_of_its_name_is_refused():
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] x) { a = Abs(x)  x = Neg(a) }'
    )
    scopes = proto_scopes(proto)
    (problem,) = separate_definitions(scopes, taken_names(scopes), Changes())
    assert problem == "the tensor x is an input or initializer and again the output of x (Neg)"
