"""Whether standard nodes have what they need."""

import onnx
import onnx_ir as ir
import pytest

from linger.errors import GraphError
from linger.graph import load
from linger.graph.files.soundness import REPORTABLE, node_flaws
from tests.support.hostile import plain
from tests.support.onnx_text import BRANCH, parse


def reasons(model):
    return [flaw.reason for flaw in node_flaws(model)]


def test_sound_nodes_have_no_flaws():
    assert reasons(parse(BRANCH)) == []
    assert (
        reasons(
            parse(
                "a = Clip <min: float = 0.0> (x) b = Clip(a, , w) y = Cast <to: int = 1> (b)", extra="<float w = {1}>"
            )
        )
        == []
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Cast(x)", "y (Cast) lacks to"),
        ('y = Cast <to: string = "float"> (x)', "y (Cast): to is a string, not a int"),
        ("y = Softmax <axis: float = 1.0> (x)", "y (Softmax): axis is a float, not a int"),
        ("y = Relu()", "y (Relu) lacks inputs; it needs 1"),
        ("y = Where(x)", "y (Where) lacks inputs; it needs 3"),
        ('y = Add("", x)', "y (Add) lacks inputs; it needs 2"),
    ],
)
def test_each_flaw_has_its_sentence(body, reason):
    assert reasons(parse(body)) == [reason]


def test_nodes_without_outputs_in_branches_and_functions_are_found():
    model = parse(BRANCH)
    branch = model.graph[2].attributes["then_branch"].as_graph()
    branch.append(ir.Node("", "Neg", [branch[0].inputs[0]], num_outputs=0, name="idle"))
    assert reasons(model) == ["idle (Neg) has no output"]
    text = '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[n] x) => (float[n] y) { y = my.f(x) } '
    text += '<domain: "my", opset_import: ["": 17]> f (a) => (b) { b = Cast(a) }'
    assert reasons(ir.from_proto(onnx.parser.parse_model(text))) == ["b (Cast) lacks to"]


def test_other_domains_and_unknown_names_are_not_judged():
    assert reasons(parse("a = my.Cast(x) y = Nothing(a)", domains=', "my": 1')) == []


def test_a_function_of_the_same_name_has_its_own_rules():
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Cast(x) } '
    text += '<domain: "", opset_import: ["": 17]> Cast (a) => (b) { b = Neg(a) }'
    assert reasons(ir.from_proto(onnx.parser.parse_model(text))) == []


def test_load_refuses_them_unless_they_are_reported():
    proto = plain("y = Cast(x)")
    with pytest.raises(GraphError, match=r"the model cannot be used: y \(Cast\) lacks to"):
        load(proto)
    assert load(proto, allowed=REPORTABLE).graph[0].op_type == "Cast"
