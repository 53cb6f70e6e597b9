"""Dequants where integers meet ops that need real numbers: text in, text out."""

import onnx
import onnx_ir as ir
import pytest

from tests.support.dialect_text import lines, quantizing, short
from tests.support.passes import insert_dequant


def inserted(body, policy="declared", **arguments):
    model = quantizing(body, **arguments)
    changes = insert_dequant(model, policy)
    assert not insert_dequant(model, policy), "twice is once"
    return lines(model), changes, model


def test_one_for_all_that_need_it():
    text, _, _ = inserted("q = Q64(x) m = MaxPool<kernel_shape = [1]>(q) a = Softmax(m) b = Exp(m) y = Add(a, b)")
    assert text == [
        "q=Q64(x)", "m=MaxPool<kernel_shape:ints=[1]>(q)", "m_dequant=DQ64(m)", "a=Softmax(m_dequant)", "b=Exp(m_dequant)", "y=Add(a,b)",
    ]  # fmt: skip


def test_one_that_is_there_is_used():
    assert inserted("q = Q64(x) d = DQ64(q) a = Exp(d) b = Exp(q) y = Add(a, b)")[0][2:4] == ["a=Exp(d)", "b=Exp(d)"]


def test_one_that_stands_too_late_is_moved_forward():
    text = inserted("q = Q64(x) b = Exp(q) d = DQ64(q) a = Tanh(d) y = Add(a, b)")[0]
    assert text == ["q=Q64(x)", "d=DQ64(q)", "b=Exp(d)", "a=Tanh(d)", "y=Add(a,b)"]


def test_not_one_with_another_scale():
    assert "q_dequant=DQ64(q)" in inserted("q = Q64(x) d = DQ8(q) a = Exp(d) b = Exp(q) y = Add(a, b)")[0]


def test_an_output_keeps_its_name_and_integer_readers_their_integers():
    text, changes, model = inserted(
        "q = Q64(x) y = Relu(q) a = ADD64(y, y) z = DQ64(a)", outputs="float[n] y, float[n] z"
    )
    assert text == ["q=Q64(x)", "y_quant=Relu(q)", "y=DQ64(y_quant)", "a=ADD64(y_quant,y_quant)", "z=DQ64(a)"]
    assert [o.name for o in model.graph.outputs] == ["y", "z"]
    assert [(c.where, c.what) for c in changes] == [
        ("y_dequant", "Dequant of 'y' at scale 64 inserted"), ("output 'y'", "gives real numbers (int8 at scale 64 before)"),
    ]  # fmt: skip


def test_real_readers_of_an_output_share_its_dequant():
    text, _, _ = inserted("y = Q64(x) z = Exp(y)", outputs="float[n] y, float[n] z")
    assert text == ["y_quant=Q64(x)", "y=DQ64(y_quant)", "z=Exp(y)"]


def test_two_outputs_of_the_same_tensor():
    text, _, model = inserted("q = Q64(x) y = Identity(q) z = Identity(q)", outputs="float[n] y, float[n] z")
    assert [o.name for o in model.graph.outputs] == ["y", "z"]
    assert text[1:] == ["y_quant=Identity(q)", "y=DQ64(y_quant)", "z_quant=Identity(q)", "z=DQ64(z_quant)"]


@pytest.mark.parametrize(
    ("policy", "kind", "last"), [("float", "int8", "y=DQ64(y_quant)"), ("integer", "float", "y=Q64(x)")]
)
def test_outputs_follow_the_policy(policy, kind, last):
    assert inserted("y = Q64(x)", policy, outputs=f"{kind}[n] y")[0][-1] == last


def test_an_integer_that_is_both_input_and_output_is_the_interface():
    assert inserted("a = ADD16(x, x) y = DQ16(a)", "float", inputs="int8[n] x", outputs="int8[n] x, float[n] y")[0] == [
        "a=ADD16(x,x)",
        "y=DQ16(a)",
    ]


def test_an_integer_input_gets_its_dequant_first():
    assert inserted("a = ADD16(x, x) y = Exp(x)", inputs="int8[n] x")[0] == [
        "x_dequant=DQ16(x)",
        "a=ADD16(x,x)",
        "y=Exp(x_dequant)",
    ]


def test_captured_tensors_are_dequantized_where_they_are_made():
    text, _, _ = inserted(
        """q = Q16(x) c = Constant<value = bool {1}>() y = If(c)<then_branch = t () => (float[n] p) { p = Neg(q) },
        else_branch = b () => (float[n] k) { k = Exp(q) }>"""
    )
    assert text[:2] == ["q=Q16(x)", "q_dequant=DQ16(q)"]
    assert "p=Neg(q_dequant)" in text[3]
    assert "k=Exp(q_dequant)" in text[3]


def test_a_branch_that_gives_integers_where_the_other_does_not():
    text, _, _ = inserted(
        """q = Q16(x) c = Constant<value = bool {1}>() y = If(c)<then_branch = t () => (float[n] p) { p = Relu(q) },
        else_branch = b () => (float[n] k) { k = Exp(x) }>"""
    )
    assert "=>(float[n]p_dequant)" in text[2]
    assert "p_dequant=DQ16(p)" in text[2]


def test_names_that_are_taken_are_not_used_again():
    assert "q_dequant_1=DQ16(q)" in inserted("q_dequant = Exp(x) q = Q16(q_dequant) y = Exp(q)")[0]


def test_files_of_the_newer_dialect_get_its_dequant():
    body = "q = linger.Quant <data_bits: int = 8, scale_x: float = 16.0> (x) y = Exp(q)"
    assert "linger.Dequant" in inserted(body, domains=', "linger": 1')[0][1]


def test_inside_a_function_with_its_imports():
    text = f"""<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[n] x) => (float[n] y) {{ y = my.f(x) }}
    <domain: "my", opset_import: ["": 17, "thinker": 1]> f (a) => (b) {{ {short("q = Q16(a) b = Exp(q)")} }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    insert_dequant(model)
    (function,) = model.functions.values()
    assert [n.op_type for n in function] == ["Quant", "Dequant", "Exp"]
    assert function.opset_imports["thinker"] == model.graph.opset_imports["thinker"] == 1


def test_without_a_known_scale_nothing_is_inserted():
    assert not inserted("q = thinker.Quant <data_bits: int = 8> (x) y = Exp(q)")[1]


def test_a_dequant_that_is_there_serves_readers_before_it():
    model = quantizing("q = Q16(x) a = Neg(q) d = DQ16(q) y = Add(a, d)")
    insert_dequant(model)
    assert lines(model) == ["q=Q16(x)", "d=DQ16(q)", "a=Neg(d)", "y=Add(a,d)"]
    assert not insert_dequant(model)


UNSIGNED = "thinker.Requant <data_bits: int = 8, o_bits: int = 8, scale_x: float = 16.0, scale_o: float = 32.0, o_unsigned: int = 1>"


def test_behind_unsigned_bytes():
    model = quantizing(f"q = Q16(x) u = {UNSIGNED} (q) r = Relu(u) y = Exp(r)")
    insert_dequant(model)
    assert lines(model)[2:] == ["r=Relu(u)", "r_dequant=DQ32(r)", "y=Exp(r_dequant)"]
    onnx.checker.check_model(ir.to_proto(model))
