"""Order, makers, scales and widths as the file gives them."""

import onnx_ir as ir
import pytest

from linger.graph.core.nodes import required_inputs
from linger.verification.devices.file_runner import inner_tensor_count, tensor_facts
from tests.support.onnx_text import BRANCH, parse
from tests.support.small_dialect import model


def facts(body, **more):
    return tensor_facts(parse(body, domains=', "thinker": 1', **more))


def test_a_dialect_graph():
    found = tensor_facts(ir.from_proto(model()))
    assert [(f.name, f.op_type, f.order, f.scale, f.bits) for f in found.values()] == [
        ("x", "Input", 0, None, None),
        ("q", "Quant", 1, 16.0, 8),
        ("r", "Relu", 2, 16.0, 8),
        ("s", "iqAdd", 3, 8.0, 8),
        ("y", "Dequant", 4, 8.0, None),
    ]


@pytest.mark.parametrize("move", ["Transpose<perm=[0]>(d)", "Identity(d)", "Flatten(d)"])
def test_moved_floats_keep_the_scale_of_their_dequant(move):
    found = facts(f"""
      q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
      d = thinker.Dequant<scale_o=16.0>(q)
      y = {move}
    """)
    assert found["y"].scale == 16.0


def test_computed_floats_have_no_scale():
    found = facts("""
      q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
      d = thinker.Dequant<scale_o=16.0>(q)
      y = Exp(d)
    """)
    assert found["y"].scale is None


def test_a_dequant_is_what_its_attribute_says_even_if_its_input_is_not():
    found = facts("q = thinker.Quant<data_bits=8, scale_x=16.0>(x) y = thinker.Dequant<scale_o=4.0>(q)")
    assert (found["q"].scale, found["y"].scale) == (16.0, 4.0)


def test_standard_dequantization():
    found = facts(
        "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)", extra="<float s = {0.0625}, int8 z = {0}>"
    )
    assert found["y"].scale == 16.0


def test_an_integer_input_has_the_scale_that_is_expected_of_it():
    found = facts("y = thinker.Requant<data_bits=8, o_bits=16, scale_x=16.0, scale_o=32.0>(x)", inputs="int8[n] x")
    assert found["x"].scale == 16.0


def test_initializers_among_the_inputs_need_no_feed():
    found = parse("y = Add(x, w)", inputs="float[n] x, float[1] w", extra="<float[1] w = {1.0}>")
    assert [v.name for v in required_inputs(found)] == ["x"]


def test_tensors_inside_branches_are_counted():
    assert inner_tensor_count(parse(BRANCH)) == 3
    assert inner_tensor_count(parse("y = Exp(x)")) == 0
