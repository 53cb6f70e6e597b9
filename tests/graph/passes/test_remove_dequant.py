"""Dequants that should not be there: text in, text out."""

import pytest

from tests.support.dialect_text import lines, quantizing
from tests.support.passes import remove_dequant


def removed(body, **arguments):
    model = quantizing(body, **arguments)
    changes = remove_dequant(model)
    assert not remove_dequant(model), "twice is once"
    return lines(model), [c.where for c in changes]


def test_an_op_that_takes_integers_gets_them():
    text, where = removed("q = Q16(x) d = DQ16(q) a = ADD16(d, q) y = DQ16(a)")
    assert text == ["q=Q16(x)", "a=ADD16(q,q)", "y=DQ16(a)"]
    assert where == ["a (iqAdd)", "d (Dequant)"]


def test_also_behind_data_movement_and_several_dequants():
    text, _ = removed("q = Q16(x) d = DQ16(q) e = DQ16(d) r = Relu(e) t = Transpose(r) a = ADD16(t, t) y = DQ16(a)")
    assert text == ["q=Q16(x)", "r=Relu(q)", "t=Transpose(r)", "a=ADD16(t,t)", "y=DQ16(a)"]


def test_real_readers_of_the_same_dequant_keep_it():
    text, _ = removed("q = Q16(x) d = DQ16(q) a = ADD16(d, d) y = Exp(d) z = DQ16(a)", outputs="float[n] y, float[n] z")
    assert text == ["q=Q16(x)", "d=DQ16(q)", "a=ADD16(q,q)", "y=Exp(d)", "z=DQ16(a)"]


def test_a_dequant_of_real_numbers_goes():
    assert removed("e = Exp(x) y = DQ16(e)")[0] == ["y=Exp(x)"]
    assert removed("d = DQ16(x) y = Exp(d)")[0] == ["y=Exp(x)"]


def test_an_output_that_is_an_input_needs_an_identity():
    assert removed("y = DQ16(x)")[0] == ["y=Identity(x)"]


def test_two_of_one_tensor_become_one_wherever_they_can_be_seen():
    text, _ = removed(
        """q = Q16(x) d = DQ16(q) e = DQ16(q) c = Constant<value = bool {1}>() f = Exp(d) g = Exp(e)
        y = If(c)<then_branch = t () => (float[n] p) { h = DQ16(q) p = Add(h, f) }, else_branch = b () => (float[n] k) { k = Neg(g) }>"""
    )
    assert text[:5] == ["q=Q16(x)", "d=DQ16(q)", "c=Constant<value:tensor=bool{1}>()", "f=Exp(d)", "g=Exp(d)"]
    assert "p=Add(d,f)" in text[5]


def test_one_in_each_branch_is_not_two():
    branch = """q = Q16(x) c = Constant<value = bool {1}>() y = If(c)<then_branch = t () => (float[n] p) { d = DQ16(q) p = Exp(d) },
      else_branch = b () => (float[n] k) { e = DQ16(q) k = Neg(e) }>"""
    assert removed(branch)[1] == []


def test_outputs_keep_a_dequant_each():
    text, where = removed(
        "q = Q16(x) y = DQ16(q) z = DQ16(q) d = DQ16(q) w = Exp(d)", outputs="float[n] y, float[n] z, float[n] w"
    )
    assert text == ["q=Q16(x)", "y=DQ16(q)", "z=DQ16(q)", "w=Exp(y)"]
    assert where == ["d (Dequant)"]


def test_the_dequant_of_an_output_is_moved_before_its_readers():
    text, _ = removed("q = Q16(x) d = DQ16(q) w = Exp(d) y = DQ16(q)", outputs="float[n] y, float[n] w")
    assert text == ["q=Q16(x)", "y=DQ16(q)", "w=Exp(y)"]


def test_other_scales_are_other_dequants():
    assert removed("q = Q16(x) d = DQ16(q) e = DQ8(q) y = Add(d, e)")[1] == []


@pytest.mark.parametrize("kind", ["int8", "float"])
def test_an_output_of_a_branch_that_must_be_integers(kind):
    text, _ = removed(
        f"""q = Q16(x) c = Constant<value = bool {{1}}>() r = If(c)<then_branch = t () => ({kind}[n] p) {{ p = DQ16(q) }},
        else_branch = b () => ({kind}[n] k) {{ u = Relu(q) k = DQ16(u) }}> a = ADD16(r, r) y = DQ16(a)"""
    )
    assert "p_integers=Identity(q)" in text[2]
    assert "u)" in text[2]
    assert "DQ16" not in text[2]


def test_what_nobody_uses_goes():
    assert removed("q = Q16(x) d = DQ16(q) y = DQ16(q)") == (["q=Q16(x)", "y=DQ16(q)"], ["d (Dequant)"])


def test_a_sound_model_stays():
    assert removed("q = Q16(x) a = ADD16(q, q) d = DQ16(a) r = Relu(d) y = Exp(r)")[1] == []
