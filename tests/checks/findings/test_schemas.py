"""Nodes against their schemas."""

import pytest

from tests.support.check_cases import FUNCTION, LINEAR, PARAMETERS, QUANT, text_model
from tests.support.findings import findings_of


def found(body, **settings):
    whole = text_model(body, **settings)
    return [(f.rule, f.severity, f.node, f.reason) for f in findings_of("schemas", whole)]


def reasons(body, **settings):
    return [(rule, reason) for rule, _, _, reason in found(body, **settings)]


def test_everything_about_a_node_is_said_at_once():
    assert found("[n] y = LeakyRelu<alpha=1, slope=2.0>(x, x)") == [
        ("LGR104", "error", "n (LeakyRelu)", "the attribute 'alpha' is of the type INT, not FLOAT"),
        ("LGR103", "error", "n (LeakyRelu)", "LeakyRelu has no attribute 'slope'"),
        ("LGR106", "error", "n (LeakyRelu)", "it has 2 inputs; the op takes 1"),
    ]


def test_dialect_nodes_are_measured_by_linger():
    assert found("[n] y = thinker.Quant<data_bits=8.0, scalex=1.0>(x, x)") == [
        ("LGR104", "error", "n (Quant)", "the attribute 'data_bits' is of the type FLOAT, not INT"),
        ("LGR103", "warning", "n (Quant)", "Quant has no attribute 'scalex' (is scale_x meant?)"),
        ("LGR105", "error", "n (Quant)", "it lacks scale_x"),
        ("LGR106", "error", "n (Quant)", "it has 2 inputs; the op takes 1"),
    ]


def test_every_scale_of_a_join_is_required():
    body = "[n] y = thinker.iqCat<scale_x_0=1.0, scale_x_2=1.0, scale_o=1.0, dim=0>(x, x)"
    assert reasons(body) == [
        ("LGR103", "iqCat has no attribute 'scale_x_2' (is scale_x_1 or scale_x_0 meant?)"),
        ("LGR105", "it lacks scale_x_1"),
    ]


def test_attributes_of_either_toolkit_are_no_surprise():
    extras = 'platform="arcs", platform_quant="luna_quant", quant_mode="floor_add", castor_mode="luna", o_dtype=3'
    assert found(f"[n] y = thinker.Quant<data_bits=8, scale_x=16.0, {extras}>(x)") == []


def test_attributes_that_the_files_own_function_declares_are_known():
    quant = "[n] y = thinker.Quant<data_bits=8, scale_x=16.0, half=0.5>(x)"
    function = '<domain: "thinker", opset_import: ["": 12]> Quant <data_bits, scale_x, half> (x) => (y) { y = Neg(x) }'
    assert found(quant, functions=function) == []
    assert reasons(quant) == [("LGR103", "Quant has no attribute 'half'")]


@pytest.mark.parametrize("operands", ["x", "x, low", "x, low, high", "x, , high"], ids=["none", "low", "both", "high"])
def test_ends_of_a_clip_may_be_left_out(operands):
    operands = operands.replace("x, , high", 'x, "", high')
    assert found(f"[n] y = thinker.Clip({operands})", inputs="int8[2] x, int8 low, int8 high") == []


def test_a_bias_may_be_left_out_and_a_weight_not():
    assert found(f"{QUANT} [l] l = thinker.LinearInt<{LINEAR}>(q, w)", extra=PARAMETERS) == []
    assert reasons(f'{QUANT} [l] l = thinker.LinearInt<{LINEAR}>(q, "", b)', extra=PARAMETERS) == [
        ("LGR106", "its input w is left out")
    ]


def test_recurrent_nodes_have_few_forms():
    gates = (
        "input_size=1, hidden_size=1, batch_first=0, go_forward=1, scale_i=1.0, scale_h=1.0, scale_iw=1.0, scale_hw=1.0"
    )
    widths = "scale_o=1.0, data_bits=8, parameter_bits=8, o_bits=8"
    body = f"[n] y = thinker.LSTMInt<{gates}, {widths}>({{}})"
    assert found(body.format("x, x, x, x, x")) == []
    assert reasons(body.format("x, x, x")) == [("LGR106", "LSTMInt: the node has 3 inputs; expected 5, 6, 8")]


def test_ops_of_branches_have_their_path():
    body = """[c] c = Constant<value = bool {1}>()
      [i] y = If(c)<then_branch = t () => (float[2,2] p) { [n] p = Rilu(x) }, else_branch = e () => (float[2,2] q) { q = Neg(x) }>"""
    assert [(rule, node) for rule, _, node, _ in found(body)] == [("LGR101", "i/then_branch/n (Rilu)")]


def test_nodes_of_functions_are_checked_by_the_functions_opset():
    bad = FUNCTION.replace("o_bits=8, ", "")
    settings = {"domains": ', "thinker": 1, "my": 1', "functions": bad}
    assert found("[f] y = my.f(x)", **settings) == [("LGR105", "error", "my::f/r (Requant)", "it lacks o_bits")]
    assert reasons("[f] y = my.f(x, x)", **(settings | {"functions": FUNCTION})) == [
        ("LGR106", "it has 2 inputs; the function takes 1")
    ]


def test_functions_have_an_opset_of_their_own():
    function = '<domain: "my", opset_import: ["": {}]> f (a) => (b) {{ [u] b = Upsample(a, a) }}'
    settings = {"domains": ', "my": 1', "opset": 12}
    assert found("[f] y = my.f(x)", functions=function.format(9), **settings) == []
    assert [rule for rule, *_ in found("[f] y = my.f(x)", functions=function.format(12), **settings)] == ["LGR101"]


def test_attributes_that_a_function_leaves_open_have_types_too():
    function = '<domain: "my", opset_import: ["": 12]> f <slope> (a) => (b) {{ b = LeakyRelu<alpha: {} = @slope>(a) }}'
    settings = {"domains": ', "my": 1'}
    assert found("[f] y = my.f<slope=0.5>(x)", functions=function.format("float"), **settings) == []
    assert reasons("[f] y = my.f<slope=1>(x)", functions=function.format("int"), **settings) == [
        ("LGR104", "the attribute 'alpha' is of the type INT, not FLOAT")
    ]


def test_outside_of_functions_attributes_have_values():
    assert reasons("[n] y = LeakyRelu<alpha: float = @slope>(x)") == [
        ("LGR104", "the attribute 'alpha' stands for one of a function, and the node is in none")
    ]


def test_an_opset_of_the_future_is_not_judged():
    (only,) = found("[n] y = Rilu(x)", opset=999)
    assert only[:3] == ("LGR108", "warning", "")
    assert "opset 999 is newer" in only[3]


def test_ops_that_an_opset_has_given_up_are_unknown():
    assert reasons("[n] y = Upsample(x, x)", opset=12) == [
        ("LGR101", "standard ONNX has given up Upsample in opset 12")
    ]
    assert found("[n] y = Upsample(x, x)", opset=9) == []


def test_empty_lists_matter_to_packers_only():
    body = "[n] y = Transpose<perm: ints = []>(x)"
    assert found(body, domains="") == []
    assert [rule for rule, *_ in found(f"{body} [q] q = thinker.Quant<data_bits=8, scale_x=1.0>(x)")] == ["LGR110"]
