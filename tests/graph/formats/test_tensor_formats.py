"""Formats of tensors, what standard ops do, where numbers come from and which must be integers."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from linger.graph.core.tensor_types import integer_bits
from linger.graph.formats.tensor_formats import (
    REAL,
    UNKNOWN,
    Flow,
    can_run,
    home_of,
    moved_inputs,
    plain,
    quantized,
    required_integers,
    scan_states,
)
from linger.graph.qdq.qdq_node import bounds_of
from tests.support.dialect_text import quantizing
from tests.support.onnx_text import parse


@pytest.mark.parametrize(
    ("bits", "name"), [(1, "INT8"), (4, "INT8"), (8, "INT8"), (9, "INT16"), (16, "INT16"), (17, "INT32"), (32, "INT32")]
)
def test_the_type_follows_from_the_width(bits, name):
    assert quantized(2.0, bits).element.name == name


def test_quantized_is_not_the_same_as_integer():
    assert not plain(ir.DataType.INT8).is_quantized
    assert quantized(None, 8).is_quantized
    assert not quantized(None, 8).is_real
    assert REAL.is_real
    assert not UNKNOWN.is_real


def test_storage_of_types_that_are_no_quantized_numbers():
    assert [integer_bits(t) for t in (ir.DataType.INT16, ir.DataType.INT64, ir.DataType.FLOAT, None)] == [
        16,
        None,
        None,
        None,
    ]


def test_words_for_messages():
    assert str(quantized(16.0, 16)) == "int16 at scale 16"
    assert str(quantized(None, 8)) == "int8 at an unknown scale"
    assert str(plain(ir.DataType.INT64)) == "int64"


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


def value(model, name):
    flow = Flow.of(model)
    everything = [
        *model.graph.inputs,
        *(o for n in flow.nodes() for o in n.outputs),
        *(v for g in flow.graphs() for v in g.inputs),
    ]
    return next(v for v in everything if v.name == name)


def names(model, name):
    return [v.name for v in Flow.of(model).sources(value(model, name))]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Relu(x)", ["x"]),
        ("y = Concat<axis = 0>(x, x)", ["x", "x"]),
        ("c = Greater(x, x) y = Where(c, x, x)", ["x", "x"]),
        ("y = Exp(x)", []),
        ("q = Q16(x) y = DQ16(q)", ["q"]),
        ("q = Q16(x) y = thinker.Relu(q)", ["q"]),
        ("y = Q16(x)", []),
        ("y = other.Move(x)", []),
    ],
)
def test_a_node(body, expected):
    assert names(quantizing(body, domains=', "thinker": 1, "other": 1'), "y") == expected


def test_branches():
    model = quantizing(
        "c = Constant<value = bool {1}>() y = If(c)<then_branch = t () => (float[n] p) { p = Neg(x) }, "
        "else_branch = e () => (float[n] k) { k = Relu(x) }>"
    )
    assert names(model, "y") == ["p", "k"]
    assert names(model, "k") == ["x"]


LOOP = """c = Constant<value = bool {1}>() n = Constant<value = int64 {3}>()
  y, z = Loop(n, c, x)<body = b (int64 i, bool k, float[n] a) => (bool k2, float[n] a2, float[n] s)
  { k2 = Identity(k) a2 = Exp(a) s = Relu(a) }>"""


def test_loops_hand_on_and_collect():
    model = quantizing(LOOP, outputs="float[n] y, float[n] z")
    assert names(model, "y") == ["a2", "x"], "no iteration at all gives the first value"
    assert names(model, "z") == ["s"]
    assert names(model, "a") == ["x", "a2"]
    assert names(model, "i") == []


def test_scans_cut_and_collect():
    model = quantizing(
        "y, z = Scan<num_scan_inputs = 1, body = b (float[n] a, float[n] t) => (float[n] a2, float[n] s) "
        "{ a2 = Add(a, t) s = Relu(t) }>(x, x)",
        outputs="float[n] y, float[n] z",
    )
    assert names(model, "y") == ["a2", "x"]
    assert names(model, "z") == ["s"]
    assert names(model, "a") == ["x", "a2"]
    assert names(model, "t") == ["x"]


def test_users_functions_are_followed_both_ways():
    import onnx
    import onnx_ir as ir

    text = """<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[n] x) => (float[n] y) { y = my.f(x) }
    <domain: "my", opset_import: ["": 17]> f (a) => (b) { b = Relu(a) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert names(model, "y") == ["b"]
    assert names(model, "a") == ["x"]


def test_a_branch_may_list_a_tensor_of_the_graph_around_it():
    model = quantizing(
        "c = Constant<value = bool {1}>() r = Relu(x) y = If(c)<then_branch = t () => (float[n] p) { p = Neg(r) }, "
        "else_branch = e () => (float[n] r) { }>"
    )
    assert home_of(value(model, "r")) is model.graph


def test_what_a_scan_leaves_to_the_caller_of_its_function_is_not_known():
    import onnx_ir as ir

    node = ir.Node("", "Scan", [None, None], attributes=[ir.RefAttr("num_scan_inputs", "k", ir.AttributeType.INT)])
    assert scan_states(node) is None
    node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", 1)
    assert scan_states(node) == 1


def required(body, **arguments):
    model = quantizing(body, **arguments)
    found = required_integers(Flow.of(model))
    values = {v.name: v for v in [*model.graph.inputs, *(o for n in Flow.of(model).nodes() for o in n.outputs)]}
    return found, values


def test_integers_are_wanted_back_to_where_they_are_made():
    found, values = required("q = Q16(x) r = Relu(q) e = Exp(r) y = ADD16(r, r)")
    assert {v.name for v in found.tensors} == {"q", "r"}
    assert found.scale_of(values["q"]) == 16.0
    assert found.scale_of(values["e"]) is None


def test_readers_may_contradict_each_other():
    found, values = required("r = Relu(x) a = ADD16(r, r) y = ADD32(r, r)", inputs="int8[n] x")
    assert sorted(found.scales_of(values["x"])) == [16.0, 32.0]
    assert found.scale_of(values["x"]) is None


def test_a_dequant_is_heard_only_where_nobody_else_speaks():
    found, values = required("y = DQ8(x)", inputs="int8[n] x")
    assert found.scale_of(values["x"]) == 8.0
    found, values = required("d = DQ8(x) y = ADD16(x, x)", inputs="int8[n] x")
    assert found.scale_of(values["x"]) == 16.0
    assert found.scales_of(values["x"]) == [16.0]


def test_dequants_are_looked_through():
    found, _ = required("q = Q16(x) d = DQ16(q) e = DQ16(d) y = ADD16(e, e)")
    assert {v.name for v in found.tensors} == {"q", "d", "e"}
