"""Equal nodes become one, random ones never."""

import numpy as np
import pytest

from linger.errors import GraphError
from tests.support.onnx_text import parse, printed
from tests.support.passes import applied, merge_duplicates, parsed

X = np.float32([-1, 2, 3])


def test_equal_chains_become_one_chain():
    model = parse("a = Abs(x)  b = Neg(a)  c = Abs(x)  d = Neg(c)  y = Add(b, d)")
    rows = applied(merge_duplicates, model, x=X)
    assert printed(model) == ["a=Abs(x)", "b=Neg(a)", "y=Add(b,b)"]
    assert rows[0] == ("c (Abs)", "merged with a (Abs), which computes the same")


def test_order_in_the_file_does_not_matter():
    model = parse("y = Add(b, d)  d = Neg(c)  b = Neg(a)  c = Abs(x)  a = Abs(x)")
    assert len(applied(merge_duplicates, model)) == 2


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("a = Elu<alpha = 1.0>(x)  b = Elu<alpha = 2.0>(x)  y = Add(a, b)", id="attribute"),
        pytest.param("a = Elu<alpha = 0.0>(x)  b = Elu<alpha = -0.0>(x)  y = Add(a, b)", id="sign of zero"),
        pytest.param("a = Elu<alpha = 1.0>(x)  b = Elu(x)  y = Add(a, b)", id="attribute left out"),
        pytest.param("a = Sub(x, x)  b = Add(x, x)  y = Add(a, b)", id="op"),
        pytest.param("c = Abs(x)  a = Sub(x, c)  b = Sub(c, x)  y = Add(a, b)", id="order of inputs"),
        pytest.param("a = RandomNormalLike(x)  b = RandomNormalLike(x)  y = Add(a, b)", id="random"),
        pytest.param("a = Dropout(x)  b = Dropout(x)  y = Add(a, b)", id="dropout"),
        pytest.param("a = own.F(x)  b = own.F(x)  y = Add(a, b)", id="unknown domain"),
    ],
)
def test_what_may_differ_stays(body):
    model = parse(body, domains=', "own": 1')
    before = printed(model)
    assert applied(merge_duplicates, model) == []
    assert printed(model) == before


def test_functions_that_draw_numbers_stay_and_others_merge():
    text = """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y)
    {{ a = f.a(x)  b = f.a(x)  y = Add(a, b) }}
    <domain: "f", opset_import: ["": 17, "f": 1]> a (x) => (y) {{ y = f.b(x) }}
    <domain: "f", opset_import: ["": 17]> b (x) => (y) {{ y = {op}(x) }}"""
    assert applied(merge_duplicates, parsed(text.format(op="RandomNormalLike"))) == []
    assert len(applied(merge_duplicates, parsed(text.format(op="Abs")), x=X)) == 1


def test_equal_constants_become_one():
    model = parse(
        "c = Constant<value = float[1] {2}>()  d = Constant<value = float[1] {2}>()  a = Mul(x, c)  b = Mul(x, d)  y = Add(a, b)"
    )
    assert len(applied(merge_duplicates, model, x=X)) == 2
    assert printed(model)[-1] == "y=Add(a,a)"


def test_the_first_one_takes_the_name_of_an_output():
    model = parse("a = Abs(x)  b = Neg(a)  y = Abs(x)", outputs="float[n] y, float[n] b")
    applied(merge_duplicates, model, x=X)
    assert printed(model) == ["y=Abs(x)", "b=Neg(y)"]


def test_of_two_outputs_both_stay_and_the_first_serves_the_rest():
    model = parse("y = Abs(x)  z = Abs(x)  w = Neg(z)", outputs="float[n] y, float[n] z, float[n] w")
    assert applied(merge_duplicates, model, x=X) == [
        ("z (Abs)", "serves its output alone: y (Abs) computes the same for all others")
    ]
    assert printed(model) == ["y=Abs(x)", "z=Abs(x)", "w=Neg(y)"]


def test_several_outputs_go_together():
    model = parse(
        "a, b = Split<axis = 0>(x)  c, d = Split<axis = 0>(x)  e = Add(a, d)  y = Add(e, b)",
        inputs="float[4] x",
        outputs="float[2] y",
    )
    applied(merge_duplicates, model, x=np.float32([1, 2, 3, 5]))
    assert printed(model)[1:] == ["e=Add(a,b)", "y=Add(e,b)"]


def test_branches_merge_within_themselves_only():
    model = parse(
        """a = Abs(x)
           y = If(c)<then_branch = t () => (float[n] p) { k = Abs(x)  m = Abs(x)  p = Add(k, m) },
                     else_branch = e () => (float[n] q) { q = Abs(a) }>""",
        inputs="float[n] x, bool c",
    )
    assert applied(merge_duplicates, model, x=X, c=np.array(True)) == [
        ("m (Abs)", "merged with k (Abs), which computes the same")
    ]


def test_equal_ifs_stay():
    branch = "<then_branch = t{0} () => (float[n] p{0}) {{ p{0} = Abs(x) }}, else_branch = e{0} () => (float[n] q{0}) {{ q{0} = Abs(x) }}>"
    model = parse(
        f"a = If(c){branch.format(1)}  b = If(c){branch.format(2)}  y = Add(a, b)", inputs="float[n] x, bool c"
    )
    assert applied(merge_duplicates, model) == []


def test_a_circle_is_named():
    with pytest.raises(GraphError, match=r"circle: a \(Add\), b \(Neg\), a \(Add\)"):
        merge_duplicates(parse("a = Add(x, b)  b = Neg(a)  y = Neg(b)"))


@pytest.mark.parametrize(("other", "count"), [("0, 1", 1), ("1, 0", 2), ("", 2)], ids=["equal", "turned", "none"])
def test_layers_with_other_shifts_of_their_channels_stay(other, count):
    widths = "data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=16.0, scale_o=16.0"
    second = f", exponents_w=[{other}]" if other else ""
    body = f"a = thinker.LinearInt<{widths}, exponents_w=[0, 1]>(x, w)  b = thinker.LinearInt<{widths}{second}>(x, w)  y = Sub(a, b)"
    model = parse(
        body,
        inputs="int8[1,2] x",
        outputs="int8[1,2] y",
        extra="<int8[2,2] w = {1, 2, 3, 4}>",
        domains=', "thinker": 1',
        opset=14,
    )
    merge_duplicates(model)
    assert sum("LinearInt" in line for line in printed(model)) == count
