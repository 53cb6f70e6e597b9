"""What does not fit between nodes."""

from tests.support.check_cases import DEQUANT, FUNCTION, PARAMETERS, QUANT, linear, text_model
from tests.support.findings import findings_of


def found(body, **settings):
    proto = text_model(body, **settings)
    findings = findings_of("propagation", proto)
    return [(f.rule, f.severity, f.node, f.tensor, f.reason) for f in findings]


def short(body, **settings):
    return [entry[:4] for entry in found(body, **settings)]


def test_a_sound_model_has_none():
    assert found(linear(), extra=PARAMETERS) == []


def test_each_reader_that_needs_a_dequant_is_named_with_the_scale():
    assert found(f"{QUANT} [e] e = Exp(q) [n] y = Add(e, q)") == [
        ("LGR601", "error", "e (Exp)", "q", "it needs real numbers, and 'q' is int8 at scale 16"),
        ("LGR601", "error", "n (Add)", "q", "it needs real numbers, and 'q' is int8 at scale 16"),
    ]


def test_an_output_that_is_declared_as_float():
    assert found(f"{QUANT} [n] y = Relu(q)") == [
        ("LGR601", "error", "", "y", "output 'y': it needs real numbers, and 'y' is int8 at scale 16")
    ]
    assert found(f"{QUANT} [n] y = Relu(q)", outputs="int8[2,2] y") == []


def test_scales_are_compared_through_what_moves_numbers():
    assert found(f"{QUANT} [t] t = Transpose(q) [d] y = thinker.Dequant<scale_o=4.0>(t)") == [
        ("LGR603", "error", "d (Dequant)", "t", "its scale_o is 4, and its tensor has the scale 16")
    ]


def test_a_dequant_without_a_valid_scale_is_told_the_right_one():
    ((rule, _, _, _, reason),) = found(f"{QUANT} [d] y = thinker.Dequant<scale_o=-4.0>(q)")
    assert (rule, reason) == ("LGR603", "its scale_o is not valid, and its tensor has the scale 16")


def test_nodes_of_branches_have_their_path():
    body = f"""{QUANT} [c] c = Constant<value = bool {{1}}>()
      [i] y = If(c)<then_branch = t () => (float[2,2] p) {{ [p] p = Exp(q) }},
                    else_branch = e () => (float[2,2] r) {{ [a] a = thinker.iqAdd<scale_x=8.0, scale_y=16.0, scale_o=8.0>(q, q)
                                                            [r] r = thinker.Dequant<scale_o=8.0>(a) }}>"""
    assert sorted(short(body)) == [
        ("LGR403", "error", "i/else_branch/a (iqAdd)", ""),
        ("LGR601", "error", "i/then_branch/p (Exp)", "q"),
    ]


def test_a_dequant_before_an_op_of_integers_and_one_of_floats():
    body = linear(before=f"{QUANT} [e] r = thinker.Dequant<scale_o=16.0>(q)", operands="r, w, b")
    assert short(body, extra=PARAMETERS) == [("LGR605", "error", "l (LinearInt)", "r")]
    assert short("[d] y = thinker.Dequant<scale_o=16.0>(x)") == [("LGR604", "error", "d (Dequant)", "")]


def test_declarations_are_compared_with_what_is_computed():
    declared = PARAMETERS[:-1] + ", int16[2,2] l>"
    assert found(linear(), extra=declared) == [
        ("LGR303", "error", "l (LinearInt)", "l", "'l' is declared as int16, and it computes int8")
    ]


def test_readers_of_an_input_that_disagree():
    body = "[a] a = thinker.Dequant<scale_o=2.0>(x) [b] b = thinker.Dequant<scale_o=4.0>(x) [n] y = Add(a, b)"
    ((rule, severity, node, tensor, reason),) = found(body, inputs="int8[2,2] x")
    assert (rule, severity, node, tensor) == ("LGR403", "error", "", "x")
    assert reason.startswith("input 'x': its readers take it at the scales")


def test_an_unknown_op_that_gets_integers_is_in_doubt():
    assert short(f"{QUANT} [n] y = my.Thing(q)", domains=', "thinker": 1, "my": 1') == [
        ("LGR601", "warning", "n (Thing)", "")
    ]


def test_unsorted_files_are_followed_all_the_same():
    assert short(f"[e] y = Exp(r) [r] r = Relu(q) {QUANT}") == [("LGR601", "error", "e (Exp)", "r")]


def test_circles_cannot_be_followed():
    ((rule, *_),) = found("[a] a = Add(x, b) [b] b = Neg(a) [n] y = Abs(b)")
    assert rule == "LGR204"


def test_functions_that_call_themselves_cannot_be_followed():
    function = FUNCTION.replace(
        "[r] b = thinker.Requant<data_bits=8, o_bits=8, scale_x=16.0, scale_o=8.0>(a)", "[r] b = my.f(a)"
    )
    (only,) = found("[f] y = my.f(x)", domains=', "thinker": 1, "my": 1', functions=function)
    assert (only[0], only[2]) == ("LGR204", "")


def test_what_the_schema_says_is_not_said_again():
    assert found("[d] y = thinker.Dequant(x)", inputs="int8[2,2] x") == []


def test_wide_dequants_are_no_surprise():
    body = linear(after=DEQUANT).replace("o_bits=8", "o_bits=32")
    assert found(body, extra=PARAMETERS) == []


def test_calls_that_give_a_function_different_numbers():
    """One gives integers beside real numbers, the other what nobody knows: no scale is common to both."""
    body = (
        f"{QUANT} [u] u = com.Thing(x) [f] c = my.f(q, x) [d] y = thinker.Dequant<scale_o=16.0>(c) [g] z = my.f(u, u)"
    )
    function = '<domain: "my", opset_import: ["": 12]> f (a, b) => (c) { [c] c = Concat<axis=1>(a, b) }'
    entries = found(
        body, domains=', "thinker": 1, "my": 1, "com": 1', functions=function, outputs="float[2,4] y, float[2,4] z"
    )
    assert (
        "LGR601",
        "error",
        "c (Concat)",
        "a",
        "it needs real numbers, and 'a' is int8 at scale 16",
    ) in entries
