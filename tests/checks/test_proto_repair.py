"""Files that reading would refuse or lose something of."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from linger.checks import repair_proto
from linger.errors import GraphError
from linger.graph import load
from tests.support.onnx_text import printed
from tests.support.passes import body_of, computed, fix_versions

X = np.float32([-1, 2, 3])


def proto_of(body, *, inputs="float[n] x", outputs="float[n] y", extra="", functions=""):
    text = (
        f'<ir_version: 8, opset_import: ["": 17, "f": 1]> g ({inputs}) => ({outputs}) {extra} {{ {body} }} {functions}'
    )
    return onnx.parser.parse_model(text)


def repaired(proto):
    """The changes and the model; a second repair finds nothing, and ONNX Runtime takes it."""
    rows = repair_proto(proto).rows()
    again = onnx.ModelProto()
    again.CopyFrom(proto)
    assert repair_proto(again).rows() == []
    return rows, load(proto)


def test_a_sound_file_stays_as_it_is():
    proto = proto_of("a = Abs(x)  y = Neg(a)")
    before = proto.SerializeToString(deterministic=True)
    assert repair_proto(proto).rows() == []
    assert proto.SerializeToString(deterministic=True) == before


def test_of_two_versions_of_a_domain_the_last_counts_as_in_onnx_runtime():
    proto = proto_of("y = Softmax<axis = 0>(x)", inputs="float[1,4] x", outputs="float[1,4] y")
    del proto.opset_import[:]
    for domain, version in (("", 11), ("ai.onnx", 17), ("", 13)):
        proto.opset_import.add(domain=domain, version=version)
    expected = computed_proto(proto, np.zeros((1, 4), np.float32))
    rows, model = repaired(proto)
    assert dict(model.graph.opset_imports) == {"": 13}
    assert rows == [
        ("opset_import", "the standard domain: version 17 dropped for 13"),
        ("opset_import", "the standard domain: version 11 dropped for 13"),
    ]
    np.testing.assert_array_equal(computed(model, {"x": np.zeros((1, 4), np.float32)})[0], expected)
    assert expected.tolist() == [[1, 1, 1, 1]]  # from 13 on, axis 0 has one number; before, all four were one row


def computed_proto(proto, x):
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_a_model_without_any_opset_is_given_one_with_the_rule_for_versions():
    proto = proto_of("y = HardSwish(x)")
    del proto.opset_import[:]
    rows, model = repaired(proto)
    assert rows == [("opset_import", "there was none: an unknown version of the standard domain noted")]
    fix_versions(model)
    assert dict(model.graph.opset_imports) == {"": 14}


def test_of_two_initializers_the_last_counts_and_one_without_a_name_goes():
    proto = proto_of("y = Add(x, w)", extra="<float[1] w = {1}>")
    proto.graph.initializer.append(onnx.TensorProto(name="w", data_type=1, dims=[1], float_data=[5]))
    proto.graph.initializer.append(onnx.TensorProto(name="", data_type=1, dims=[1], float_data=[7]))
    expected = X + 5
    rows, model = repaired(proto)
    assert rows == [
        ("g", "initializer without a name dropped"),
        ("w", "one of several initializers w dropped for the last one"),
    ]
    np.testing.assert_array_equal(computed(model, {"x": X})[0], expected)


def test_a_second_definition_gets_a_name_and_the_one_user_after_it_follows():
    rows, model = repaired(proto_of("a = Abs(x)  a = Neg(a)  y = Exp(a)"))
    assert printed(model) == ["a=Abs(x)", "a_1=Neg(a)", "y=Exp(a_1)"]
    assert rows == [("a (Neg)", "its result is called a_1 now: a was made twice")]


def test_a_chain_of_definitions():
    _, model = repaired(proto_of("a = Abs(x)  a = Neg(a)  a = Exp(a)  y = Neg(a)"))
    assert printed(model) == ["a=Abs(x)", "a_1=Neg(a)", "a_2=Exp(a_1)", "y=Neg(a_2)"]


def test_an_output_keeps_its_name():
    _, model = repaired(proto_of("y = Abs(x)  y = Neg(y)  y = Exp(y)"))
    assert printed(model) == ["y_1=Abs(x)", "y_2=Neg(y_1)", "y=Exp(y_2)"]
    np.testing.assert_array_equal(computed(model, {"x": X * 0})[0], [1, 1, 1])


def test_an_input_keeps_its_name():
    _, model = repaired(proto_of("b = Neg(x)  x = Abs(b)  y = Exp(x)"))
    assert printed(model) == ["b=Neg(x)", "x_1=Abs(b)", "y=Exp(x_1)"]


def test_a_definition_that_nobody_uses_does_no_harm():
    _, model = repaired(proto_of("a = Abs(x)  y = Exp(a)  a = Neg(x)"))
    assert printed(model) == ["a=Abs(x)", "y=Exp(a)", "a_1=Neg(x)"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(
            "a = Abs(x)  a = Neg(a)  y = Add(a, a)",
            r"made by a \(Abs\) and by a \(Neg\), .* used by y \(Add\)",
            id="two uses after",
        ),
        pytest.param("a = Abs(x)  a = Neg(x)  y = Exp(a)", "nothing uses the first one", id="first never used"),
        pytest.param("y = Exp(a)  a = Abs(x)  b = Neg(a)  a = Neg(b)", r"y \(Exp\) uses it before", id="not in order"),
        pytest.param("y = Abs(x)  y = Neg(x)", "nothing uses the first one", id="an output made twice"),
        pytest.param("a, a = Split<axis = 0>(x)  y = Neg(a)", "nothing uses the first one", id="by one node"),
        pytest.param(
            "a = Abs(x)  y = If(c)<then_branch = t () => (float[n] p) { a = Neg(x)  p = Add(a, a) }, "
            "else_branch = e () => (float[n] q) { q = Exp(a) }>",
            r"cannot be told which of them is used by p \(Add\)",
            id="in a branch",
        ),
        pytest.param("y = Abs(x)  a = Neg(y)  y = Exp(a)  z = Neg(y)", "cannot be told", id="an output and a use"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(body, said):
    with pytest.raises(GraphError, match=said):
        repair_proto(proto_of(body, inputs="float[n] x, bool c" if "If(c)" in body else "float[n] x"))


def test_every_doubtful_tensor_is_named():
    with pytest.raises(GraphError, match=r"tensor a is made .*tensor b is made"):
        repair_proto(proto_of("a = Abs(x)  a = Neg(x)  b = Abs(a)  b = Neg(x)  y = Exp(b)"))


def test_inside_a_branch_what_stands_before_means_the_tensor_around():
    body = """a = Abs(x)
      y = If(c)<then_branch = t () => (float[n] p) { a = Neg(a)  p = Exp(a) },
                else_branch = e () => (float[n] q) { q = Exp(a) }>"""
    rows, model = repaired(proto_of(body, inputs="float[n] x, bool c"))
    assert rows == [("a (Neg)", "its result is called a_1 now: a was made twice")]
    assert "{ a_1 = Neg (a) p = Exp (a_1) }" in body_of(model)
    assert "{ q = Exp (a) }" in body_of(model)


def test_branches_beside_each_other_may_use_one_name():
    body = """y = If(c)<then_branch = t () => (float[n] p) { k = Neg(x)  p = Exp(k) },
                        else_branch = e () => (float[n] p) { k = Abs(x)  p = Add(k, k) }>"""
    assert repaired(proto_of(body, inputs="float[n] x, bool c"))[0] == []


def test_a_branch_that_hands_on_a_tensor_from_around_it_does_so_by_an_identity():
    body = """a = Abs(x)
      y = If(c)<then_branch = t () => (float[n] a) { }, else_branch = e () => (float[n] q) { q = Neg(a) }>"""
    rows, model = repaired(proto_of(body, inputs="float[n] x, bool c"))
    assert rows == [("a_1", "hands on a, which comes from around t")]
    np.testing.assert_array_equal(computed(model, {"x": X, "c": np.array(True)})[0], np.abs(X))


def test_functions_are_told_apart_too():
    function = '<domain: "f", opset_import: ["": 17]> f (x) => (y) { a = Abs(x)  a = Neg(a)  y = Exp(a) }'
    proto = proto_of("y = f.f(x)", functions=function)
    proto.functions.append(proto.functions[0])
    rows, model = repaired(proto)
    assert rows[0] == ("f::f", "second copy of the function dropped")
    assert [n.outputs[0].name for n in next(iter(model.functions.values()))] == ["a", "a_1", "y"]


def test_two_different_functions_or_two_inputs_of_one_name_are_refused():
    function = '<domain: "f", opset_import: ["": 17]> f (x) => (y) {{ y = {}(x) }}'
    proto = proto_of("y = f.f(x)", functions=function.format("Abs"), inputs="float[n] x, float[n] x")
    proto.functions.append(proto_of("y = f.f(x)", functions=function.format("Neg")).functions[0])
    with pytest.raises(GraphError, match=r"x: several inputs .*f::f: there are two different functions"):
        repair_proto(proto)


def test_reading_without_the_repair_would_refuse_or_lose():
    """Why this is done before reading: what onnx_ir makes of such files."""
    with pytest.raises(ir.serde.SerdeError):
        ir.from_proto(proto_of("a = Abs(x)  a = Neg(a)  y = Exp(a)"))
    body = "a = Abs(x)  y = If(c)<then_branch = t () => (float[n] p) { a = Neg(a)  p = Exp(a) }, else_branch = e () => (float[n] q) { q = Exp(a) }>"
    model = ir.from_proto(proto_of(body, inputs="float[n] x, bool c"))
    inner = model.graph.node(1).attributes["then_branch"].as_graph().node(0)
    assert inner.inputs[0] is inner.outputs[0]


def test_what_has_no_graph_is_left_to_the_reader():
    assert repair_proto(onnx.ModelProto()).rows() == []
    with pytest.raises(GraphError, match="the given bytes: this is no ONNX model: it has no graph"):
        load(b"", prepare=repair_proto)
