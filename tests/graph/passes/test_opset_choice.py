"""The lowest version that has all ops as they are used."""

import onnx
import pytest

from linger.errors import GraphError
from linger.graph.passes.well_formed import lowest_opset
from tests.support.onnx_text import parse


def nodes(body, **settings):
    return list(parse(body, **settings).graph)


def test_no_nodes_need_no_more_than_any_runtime_takes():
    assert lowest_opset([], "") == 7


@pytest.mark.parametrize(
    ("body", "version"),
    [
        pytest.param("y = Clip<min = 0.0>(x)", 7, id="bounds as attributes"),
        pytest.param("y = Clip(x, x)", 11, id="bounds as inputs"),
        pytest.param("y = Softmax<axis = 0>(x)", 7, id="meant otherwise from 13 on, but written alike"),
        pytest.param("y, z = Split<num_outputs = 2>(x)", 18, id="new attribute"),
        pytest.param("y = DequantizeLinear(x, s)", 10, id="new op"),
    ],
)
def test_forms(body, version):
    inputs = "int8[n] x, float s" if "Dequantize" in body else "float[n] x"
    found = lowest_opset(nodes(body, inputs=inputs), "")
    assert found == version
    for node in nodes(body, inputs=inputs):
        assert onnx.defs.get_schema(node.op_type, found).name == node.op_type


def test_other_domains_of_onnx():
    assert lowest_opset(nodes("y = ai.onnx.ml.Scaler(x)", domains=', "ai.onnx.ml": 3'), "ai.onnx.ml") == 1


def test_what_fits_nowhere_is_named():
    with pytest.raises(GraphError, match=r"y \(NoSuchOp\) would not fit"):
        lowest_opset(nodes("y = NoSuchOp(x)"), "")


def test_an_op_without_an_attribute_that_it_must_have_fits_nowhere():
    with pytest.raises(GraphError, match=r"y \(Concat\) would not fit"):
        lowest_opset(nodes("y = Concat(x, x)"), "")
