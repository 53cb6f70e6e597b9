"""Tensor types as text."""

import onnx_ir as ir
import pytest

from linger.errors import UsageError
from linger.graph.core.tensor_types import format_type, parse_types, type_of
from tests.support.onnx_text import parse

CASES = ["float[n,3]", "int8", "bool[]", "double[?,7]", "float16[batch_size,1,28,28]", "int64[0]"]


@pytest.mark.parametrize("text", CASES)
def test_text_and_type_are_each_others_inverse_and_mean_what_onnx_text_means(text):
    kind, shape = parse_types({"v": text})["v"]
    assert type_of(ir.Value(name="v", type=kind, shape=shape)) == text
    same = parse("y = Neg(x)", inputs=f"{text} x", outputs=f"{text} y").graph.inputs[0]
    assert type_of(same) == text
    assert same.dtype == kind.dtype


def test_spaces_do_not_matter():
    assert parse_types({"v": " float [ n , 3 ] "}) == parse_types({"v": "float[n,3]"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no tensor type"),
        ("float[n", "is no tensor type"),
        ("float(3)", "is no tensor type"),
        ("flot[3]", "there is no element type 'flot'. Known are float,"),
        ("float[-1]", "'-1' is no size"),
        ("float[3,]", "'' is no size"),
        ("float[3.5]", "'3.5' is no size"),
    ],
)
def test_what_is_no_type_is_one_sentence(text, message):
    with pytest.raises(UsageError, match=message):
        parse_types({"v": text})


def test_all_wrong_types_are_named():
    with pytest.raises(UsageError, match=r"a: 'x\[' is no tensor type.*c: 'no': there is no element type"):
        parse_types({"a": "x[", "b": "float", "c": "no"})


def test_an_unknown_element_type_is_a_question_mark():
    assert type_of(ir.Value(name="v", shape=ir.Shape([2]))) == "?[2]"
    assert format_type("int4", (2, None)) == "int4[2,?]"
