"""Function bodies: read, chosen and fitted to an opset."""

import onnx
import pytest
from onnxscript import FLOAT, opset14, script
from onnxscript import opset15 as op
from onnxscript.values import Opset

from linger.errors import UsageError
from linger.onnx.operators.bodies import read_bodies, select

TWICE = "twice (x) => (y) { y = Add (x, x) }"
SUM = "total (x) => (y) { y = ReduceSum <axes = [1]> (x) }"
SOFT = "soft (x) => (y) { y = Softmax (x) }"


def at(opset, text):
    return f'<domain: "any", opset_import: ["": {opset}]>\n{text}'


def read(*texts):
    return read_bodies(list(texts), "custom::op")


def test_text_without_a_header_is_for_every_opset():
    (body,) = read_bodies(f"# a comment first\n\n  # and another\n{TWICE}", "custom::op")
    assert body.written_for is None
    assert body.inputs == ("x",)
    for opset in (9, 13, 20):
        function = body.named("custom", "op").at(opset)
        assert (function.domain, function.name) == ("custom", "op")
        assert [(i.domain, i.version) for i in function.opset_import] == [("", opset)]


def test_header_says_the_opset_and_other_domains_stay():
    text = f'<domain: "any", opset_import: ["other": 3, "": 13]> {TWICE}'
    (body,) = read(text)
    assert body.written_for == 13
    function = body.at(17)
    assert [(i.domain, i.version) for i in function.opset_import] == [("", 17), ("other", 3)]


def test_function_proto_and_onnxscript_are_read():
    helper_domain = Opset("my.helpers", 1)

    @script(helper_domain, default_opset=op)
    def double(x: FLOAT):
        return op.Add(x, x)

    @script(helper_domain, default_opset=op)
    def quadruple(x: FLOAT, times: int = 2):
        return double(double(x))

    from_proto, from_script = read_bodies([onnx.parser.parse_function(at(13, TWICE)), quadruple], "custom::op")
    assert (from_proto.written_for, from_script.written_for) == (13, 15)
    assert from_script.required_attributes == []
    function = from_script.at(18)
    assert [n.op_type for n in function.node] == ["Add", "Add"]  # a file holds one function per op
    assert [(i.domain, i.version) for i in function.opset_import] == [("", 18)]


def test_functions_inside_functions_keep_their_values_apart():
    helper_domain = Opset("my.helpers", 1)

    @script(helper_domain, default_opset=op)
    def inner(x: FLOAT, y: FLOAT):
        return (x + y) * (x - y) + (x + x)

    @script(helper_domain, default_opset=op)
    def middle(x: FLOAT, y: FLOAT):
        return inner(x + y, x - y) * inner(x * y, y * y)

    @script(helper_domain, default_opset=op)
    def outer(x: FLOAT, y: FLOAT):
        return middle(x, y) + middle(y, x) + (x + y)

    (body,) = read_bodies(outer, "custom::op")
    made = [name for node in body.at(15).node for name in node.output]
    assert len(set(made)) == len(made)


def test_functions_written_for_different_opsets_do_not_mix():
    helper_domain = Opset("my.helpers", 1)

    @script(helper_domain, default_opset=opset14)
    def double(x: FLOAT):
        return opset14.Add(x, x)

    @script(helper_domain, default_opset=op)
    def negative(x: FLOAT):
        return op.Neg(double(x))

    with pytest.raises(UsageError, match=r"written for opsets \[14, 15\]\. Use one opset"):
        read_bodies(negative, "custom::op")


def test_attribute_without_a_default_is_required():
    (body,) = read("scale <alpha, beta: float = 1.0> (x) => (y) { y = LeakyRelu <alpha: float = @alpha> (x) }")
    assert body.required_attributes == ["alpha"]


def test_what_is_no_function_is_refused():
    with pytest.raises(UsageError, match=r"custom::op: the body is not a function in ONNX text: .*"):
        read("this is not ONNX")
    with pytest.raises(UsageError, match=r"a body is ONNX text, an onnxscript function or a FunctionProto, not int"):
        read_bodies(3, "custom::op")


def test_body_of_a_later_opset_names_the_opset_to_use():
    (body,) = read(at(15, TWICE))
    with pytest.raises(UsageError, match=r"written for opset 15 and the model has opset 12\. .*opset_version=15"):
        body.at(12)


@pytest.mark.parametrize("text", [SUM, at(12, SUM)], ids=["no_opset", "opset_12"])
def test_body_whose_ops_take_other_attributes_is_refused(text):
    (body,) = read(text)
    assert body.at(12)
    with pytest.raises(UsageError, match=r"custom::op: the body is not valid at opset 13: .*axes.*ReduceSum"):
        body.at(13)


def test_body_whose_ops_mean_something_else_is_refused():
    (body,) = read(at(12, SOFT))
    assert body.at(12)
    with pytest.raises(UsageError, match=r"written for opset 12, and Softmax computes something else at opset 13"):
        body.at(13)
    assert read(SOFT)[0].at(13)  # no opset named: taken as meant for the one in use
    assert read(at(13, SOFT))[0].at(20)


def test_change_of_meaning_inside_a_branch_is_found():
    text = """soft (x, c) => (y) {
      y = If (c) <then_branch = a () => (float[n] p) { p = Softmax (x) },
                  else_branch = b () => (float[n] q) { q = Identity (x) }>
    }"""
    with pytest.raises(UsageError, match="Softmax"):
        read(at(11, text))[0].at(17)


def test_body_for_the_opset_is_chosen():
    any_opset, at12, at13 = read(TWICE, at(12, TWICE), at(13, TWICE))
    bodies = [at13, any_opset, at12]
    assert select(bodies, 9) is any_opset
    assert select(bodies, 12) is at12
    assert select(bodies, 20) is at13
    assert select([at13, at12], 11) is at12  # none fits: the error names the nearest
