"""Function bodies and their variants."""

import pytest

from linger.dialect import find_op
from linger.graph.lowering.bodies import build_function


@pytest.mark.parametrize(
    ("name", "arity", "bits", "domain"),
    [
        ("Relu", 1, 8, "thinker"),
        ("Relu", 1, 16, "thinker.i16"),
        ("iqCat", 2, 8, "thinker"),
        ("iqCat", 3, 8, "thinker.n3"),
        ("iqCat", 3, 16, "thinker.n3"),
        ("iqAdd", 2, 16, "thinker"),
        ("Conv2dInt", 3, 16, "thinker.i16"),
    ],
)
def test_signature_variants_live_in_sub_domains(name, arity, bits, domain):
    function, _ = build_function(find_op(name), opset=12, arity=arity, element_bits=bits)
    assert (function.domain, function.name) == (domain, name)
    assert len(function.inputs) == arity


def test_body_uses_standard_ops_only_and_declares_every_attribute():
    function, derived = build_function(find_op("Conv2dInt"), opset=12, arity=3, element_bits=8)
    assert {node.domain for node in function.all_nodes()} == {""}
    assert {"scale_x", "pads", "o_bits", "o_dtype"} <= set(function.attributes)
    assert set(derived) == {"o_dtype"}


def test_pooling_needs_numbers_that_onnx_cannot_compute():
    _, derived = build_function(find_op("AvgPool2dInt"), opset=12, arity=1, element_bits=8)
    assert set(derived) == {
        "window_area",
        "window_area_low",
        "window_reciprocal",
        "window_reciprocal_low",
        "o_dtype",
    }
