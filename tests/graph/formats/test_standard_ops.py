"""How standard ops treat integers: the table against ONNX Runtime itself."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from linger.graph.formats.tensor_formats import can_run, moved_inputs
from linger.graph.qdq.qdq_node import bounds_of
from tests.support.onnx_text import parse

TYPES = {"int8": ir.DataType.INT8, "int16": ir.DataType.INT16, "int32": ir.DataType.INT32}
BODIES = {
    "Reshape": "y = Reshape(x, s)",
    "Transpose": "y = Transpose(x)",
    "Pad": "y = Pad(x, p)",
    "Gather": "y = Gather<axis = 1>(x, k)",
    "Concat": "y = Concat<axis = 0>(x, x)",
    "Split": "y, z = Split<axis = 1>(x, h)",
    "Max": "y = Max(x, x)",
    "Where": "y = Where(m, x, x)",
    "DepthToSpace": "y = DepthToSpace<blocksize = 2>(x)",
    "Resize": 'y = Resize<mode = "nearest">(x, e, r)',
    "ReduceMax": "y = ReduceMax<axes = [1]>(x)",
    "ArgMax": "y = ArgMax<axis = 1>(x)",
    "TopK": "y, z = TopK(x, k)",
    "Expand": "y = Expand(x, s)",
}
EXTRA = """<int64[4] s = {1, 4, 2, 2}, int64[8] p = {0, 0, 1, 0, 0, 0, 0, 1}, int64[2] h = {2, 2}, bool[1] m = {1},
 float[4] r = {1.0, 1.0, 2.0, 2.0}, float[0] e = {}, int64[1] k = {1}>"""


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("op_type", BODIES)
def test_the_table_says_what_the_runtime_does(op_type, kind):
    model = parse(BODIES[op_type], inputs=f"{kind}[1,4,2,2] x", outputs="y", extra=EXTRA, opset=13)
    node = next(n for n in model.graph if n.op_type == op_type)
    try:
        session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
        session.run(None, {"x": np.ones((1, 4, 2, 2), kind)})
        does_run = True
    except Exception:  # noqa: BLE001 - ONNX Runtime's errors share no class
        does_run = False
    if op_type == "ArgMax" and kind == "int32":
        assert not can_run(node, TYPES[kind], 32, 13), "floats would tie where integers do not"
    else:
        assert can_run(node, TYPES[kind], int(kind[3:]), 13) == does_run


def first(body, **arguments):
    return next(iter(parse(body, **arguments).graph))


def test_only_nearest_neighbors_are_moved():
    assert moved_inputs(first('y = Resize<mode = "nearest">(x)')) == (0,)
    assert moved_inputs(first('y = Resize<mode = "linear">(x)')) == ()
    given = ir.Node("", "Resize", [None], attributes=[ir.RefAttr("mode", "m", ir.AttributeType.STRING)])
    assert moved_inputs(given) == ()


def test_real_bounds_in_attributes_are_no_integer_clip():
    assert moved_inputs(first("y = Clip(x)")) == (0,)
    assert moved_inputs(first("y = Clip<min: float = 0.0>(x)", opset=10)) == ()


def test_bounds_and_borders_are_beside_the_data():
    assert bounds_of(first("y = Clip(x, , x)", inputs="float[n] x")) == [2]
    assert bounds_of(first("y = Relu(x)")) == []


def test_indices_of_a_pool_are_not_for_integers():
    assert not can_run(first("y, i = MaxPool<kernel_shape = [1]>(x)", outputs="y"), ir.DataType.INT8, 8, 13)
