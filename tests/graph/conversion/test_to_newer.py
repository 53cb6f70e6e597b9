"""Nodes of the older dialect, written in the newer one."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import convert_dialect
from linger.errors import UnsupportedError
from tests.support.newer_text import OLDER_NAMES, computed, described, parse, types

QUANT = 'platform_quant="luna_quant"'
CONV = (
    'castor_mode="luna", data_bits=8, dilations=[1,1], group=1, kernel_shape=[1,1], o_bits=8, pads=[0,0,0,0], '
    f"parameter_bits=8, {QUANT}, scale_o=16.0, scale_w=64.0, scale_x=32.0, strides=[1,1]"
)
ADD = f'mode="Non_t710_mode", {QUANT}, scale_o=16.0, scale_x=16.0, scale_y=32.0'


def attributes(model, index=0):
    node = list(model.graph)[index]
    return {name: attribute.value for name, attribute in node.attributes.items()}


def test_attributes_of_a_convolution():
    model = parse(
        f"y = thinker.Conv2dInt<{CONV}>(x, w)", "int8[1,1,2,2] x", "int8[1,1,2,2] y", extra="<int8[1,1,1,1] w={3}>"
    )
    done = convert_dialect(model, "linger")
    assert types(done.model) == [("linger", "QConv2d")]
    assert attributes(done.model) == {
        "dilations": (1, 1),
        "group": 1,
        "kernel_shape": (1, 1),
        "o_bits": 8,
        "pads": (0, 0, 0, 0),
        "platform": "venus",
        "quant_mode": "floor_add",
        "scale_o": 16.0,
        "scale_w": 64.0,
        "scale_x": 32.0,
        "strides": (1, 1),
        "w_bits": 8,
        "x_bits": 8,
    }
    assert done.model.graph.opset_imports == {"": 17, "linger": 1}
    assert done.changes.rows() == [("y (Conv2dInt)", "became QConv2d")]


def test_attributes_at_the_ends_of_a_file():
    body = f"q = thinker.Quant<data_bits=8, scale_x=16.0, {QUANT}>(x) y = thinker.Dequant<scale_o=16.0>(q)"
    done = convert_dialect(parse(body, "float[2] x", "float[2] y"), "linger").model
    assert attributes(done) == {"data_bits": 8, "scale_x": 16.0, "zero_point": 0, "platform": "venus"}
    assert attributes(done, 1) == {"scale_o": 16.0}


def test_widths_that_older_nodes_do_not_say_come_from_their_tensors():
    body = f"""wide = thinker.Requant<data_bits=8, o_bits=16, scale_x=16.0, scale_o=16.0>(x)  r = Relu(wide)
      y = thinker.iqAdd<{ADD}>(r, x)"""
    done = convert_dialect(parse(body, "int8[2] x", "int8[2] y"), "linger", partial=True).model
    found = attributes(done, 2)
    assert (found["x_bits"], found["y_bits"], found["o_bits"]) == (16, 8, 8)


def test_parts_of_a_join_say_their_widths():
    node = f"thinker.iqCat<dim=0, {QUANT}, scale_o=8.0, scale_x_0=16.0, scale_x_1=8.0>(x, z)"
    done = convert_dialect(parse(f"y = {node}", "int8[2] x, int16[2] z", "int8[4] y"), "linger").model
    found = attributes(done)
    assert (found["x_0_bits"], found["x_1_bits"], found["axis"], found["scale_x_1"]) == (8, 16, 0, 8.0)
    assert "dim" not in found


@pytest.mark.parametrize(
    ("shapes", "name"),
    [(("1,2,3", "1,3,2"), "QBmm"), (("2,3", "3,2"), "QMatmul"), (("1,1,2,3", "1,1,3,2"), "QMatmul")],
    ids=["three axes", "two", "four"],
)
def test_products_of_tensors(shapes, name):
    node = f"y = thinker.BmmInt<{QUANT}, scale_o=8.0, scale_x=16.0, scale_y=8.0>(x, z)"
    model = parse(node, f"int8[{shapes[0]}] x, int8[{shapes[1]}] z", "int8[n] y")
    assert types(convert_dialect(model, "linger").model) == [("linger", name)]


def test_a_pool_says_its_divisor():
    node = f"thinker.AvgPool2dInt<ceil_mode=0, data_bits=8, kernel_shape=[2,2], o_bits=8, pads=[0,0,0,0], {QUANT}, scale_o=16.0, scale_x=16.0, strides=[2,2]>(x)"
    found = attributes(convert_dialect(parse(f"y = {node}", "int8[1,1,2,2] x", "int8[1,1,1,1] y"), "linger").model)
    assert (found["count_include_pad"], found["divisor_override"], found["ceil_mode"]) == (1, -1, 0)


WIDEN = "w = thinker.Requant<data_bits=8, o_bits=16, scale_o=4096.0, scale_x=16.0>(x)"
CURVE = f'castor_mode="luna", {QUANT}, scale_o=128.0, scale_x=4096.0'


def test_a_requant_that_widens_goes_with_its_curve():
    body = f"{WIDEN} y = thinker.iqSigmoid<{CURVE}>(w) z = thinker.iqTanh<{CURVE}>(w)"
    model = parse(body, "int8[2] x", "int8[2] y, int8[2] z")
    done = convert_dialect(model, "linger")
    assert types(done.model) == [("linger", "QSigmoid"), ("linger", "QTanh")]
    assert attributes(done.model) == {
        "o_bits": 8,
        "platform": "venus",
        "quant_mode": "floor_add",
        "scale_o": 128.0,
        "scale_x": 16.0,
        "x_bits": 8,
    }
    # σ(0) = ½, tanh ½ = 59/128: the same numbers with and without the Requant
    assert computed(done.model, x=np.array([0, 8], np.int8))["z"] == [0, 59]
    assert computed(model, x=np.array([0, 8], np.int8)) == computed(done.model, x=np.array([0, 8], np.int8))


@pytest.mark.parametrize(
    "body",
    [
        f"{WIDEN.replace('4096.0', '8192.0')} y = thinker.iqSigmoid<{CURVE.replace('4096.0', '8192.0')}>(w)",
        f"{WIDEN} r = Relu(w) y = thinker.iqSigmoid<{CURVE}>(w)",
        "y = thinker.Requant<data_bits=8, o_bits=8, scale_o=8.0, scale_x=16.0>(x)",
    ],
    ids=["saturates", "used elsewhere", "alone"],
)
def test_other_requants_are_refused(body):
    check_refused(body, "int8[2] y")


def test_an_absurd_width_is_refused():
    body = f"{WIDEN.replace('o_bits=16', 'o_bits=1099511627776')} y = thinker.iqSigmoid<{CURVE}>(w)"
    with pytest.raises(UnsupportedError, match="'o_bits' is 1099511627776, not a width"):
        convert_dialect(parse(body, "int8[2] x", "int8[2] y"), "linger")


def test_a_requant_that_is_an_output_is_refused():
    check_refused(f"{WIDEN} y = thinker.iqSigmoid<{CURVE}>(w)", "int8[2] y, int16[2] w")


def check_refused(body, outputs):
    with pytest.raises(UnsupportedError, match=r"\(Requant\).*widens the input"):
        convert_dialect(parse(body, "int8[2] x", outputs), "linger")


def test_running_statistics_go():
    product = f"data_bits=8, parameter_bits=8, o_bits=8, {QUANT}, scale_o=16.0, scale_w=64.0, scale_x=16.0"
    weights = "<int8[2] w={3,2}, int32[2] b={4,-2}, float[2] m={0,0}, float[2] v={1,1}>"
    node = f"y = thinker.BatchNorm2dInt<{product}>(x, w, b, m, v)"
    graph = convert_dialect(parse(node, "int8[1,2,1,1] x", "int8[1,2,1,1] y", extra=weights), "linger").model.graph
    assert [value.name for value in graph[0].inputs] == ["x", "w", "b"]
    assert sorted(graph.initializers) == ["b", "w"]


def test_real_operands_are_refused():
    model = parse(f"c = Constant<value = float {{0.5}}>() y = thinker.iqAdd<{ADD}>(x, c)", "int8[2] x", "int8[2] y")
    done = ir.from_proto(model)
    done.graph[0].outputs[0].dtype = ir.DataType.FLOAT
    with pytest.raises(UnsupportedError, match="its input 1 is real"):
        convert_dialect(done, "linger")


def test_integer_ops_of_the_dialect_become_standard():
    body = "a = thinker.Relu(x) b = thinker.MaxPool<kernel_shape=[1,2], strides=[1,2], index_type=3>(a) y = thinker.Clip(b, x, x)"
    done = convert_dialect(parse(body, "int8[1,1,1,2] x", "int8[n] y"), "linger").model
    assert types(done) == [("", "Relu"), ("", "MaxPool"), ("", "Clip")]
    assert sorted(attributes(done, 1)) == ["kernel_shape", "strides"]
    assert done.graph.opset_imports == {"": 17}


def test_the_chip_of_a_node_stays():
    node = (
        f'thinker.iqMul<{QUANT}, platform="arcs", quant_mode="floor_add", scale_o=8.0, scale_x=16.0, scale_y=8.0>(x, x)'
    )
    model = parse(f"y = {node}", "int8[2] x", "int8[2] y")
    done = convert_dialect(model, "linger").model
    assert attributes(done)["platform"] == "arcs"
    back = convert_dialect(done, "thinker").model
    assert described(back)[0] == described(model)[0]


WITHOUT = sorted(
    set(OLDER_NAMES)
    - {"AvgPool2dInt", "BatchNorm2dInt", "BmmInt", "Clip", "Conv1dInt", "Conv2dInt", "ConvTranspose2dInt", "Dequant"}
    - {"GRUInt", "Gather", "LSTMInt", "LinearInt", "MaxPool", "Quant", "Relu", "SoftmaxInt", "iqAdd", "iqCat", "iqGelu"}
    - {"iqMul", "iqSigmoid", "iqSwish", "iqTanh"}
)


@pytest.mark.parametrize("name", [*WITHOUT, "NoSuchOp"])
def test_every_op_without_an_equivalent_is_refused_by_name(name):
    model = parse(f"y = thinker.{name}(x)", "int8[2] x", "int8[2] y")
    with pytest.raises(UnsupportedError, match=rf"y \({name}\)"):
        convert_dialect(model, "linger")


def test_what_is_missing_is_said():
    with pytest.raises(UnsupportedError, match="it lacks data_bits, parameter_bits"):
        convert_dialect(parse("y = thinker.LinearInt(x, x)", "int8[2] x", "int8[2] y"), "linger")
    with pytest.raises(UnsupportedError, match="its first input is missing"):
        convert_dialect(parse(f"y = thinker.iqAdd<{ADD}>()", "int8[2] x", "int8[2] y"), "linger")
    rows = "y = thinker.Gather<scale_w=16.0, scale_o=8.0, parameter_bits=8, o_bits=8>(x, i)"
    with pytest.raises(UnsupportedError, match="another scale or width than its table"):
        convert_dialect(parse(rows, "int8[2,2] x, int64[1] i", "int8[1,2] y"), "linger")
    for op in ("Requant", "iqSigmoid"):
        idle = parse(f"y = thinker.iqAdd<{ADD}>(x, x) z = thinker.{op}(x)", "int8[2] x", "int8[2] y")
        del idle.graph.node[1].output[:]
        with pytest.raises(UnsupportedError, match=r"it has no output\. Remove it"):
            convert_dialect(idle, "linger")
    with pytest.raises(UnsupportedError, match=r"y \(MaxPool\): it lacks kernel_shape"):
        convert_dialect(parse("y = thinker.MaxPool(x)", "int8[2] x", "int8[2] y"), "linger")
    with pytest.raises(UnsupportedError, match="'x' holds texts, not integers"):
        convert_dialect(parse(f"y = thinker.iqAdd<{ADD}>(x, x)", "string[2] x", "int8[2] y"), "linger")


def test_every_newer_op_is_reached_or_has_a_reason():
    assert len(WITHOUT) == len(OLDER_NAMES) - 23


def test_widths_of_joined_tensors_are_followed_out_of_branches():
    wide = "thinker.Quant<data_bits=32, scale_x=16.0>"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 13, "thinker": 1]> g (float[1,4] x, bool c) => (float[2,4] y) {{
        q = If(c)<then_branch = t () => (int32[1,4] p) {{ p = {wide}(x) }}, else_branch = e () => (int32[1,4] k) {{ k = {wide}(x) }}>
        j = thinker.iqCat<scale_x_0=16.0, scale_x_1=16.0, scale_o=16.0, dim=0, o_bits=32>(q, q)
        y = thinker.Dequant<scale_o=16.0>(j) }}"""
    )
    made = convert_dialect(model, "linger").model
    cat = next(node for node in made.graph if node.op_type == "QCat")
    assert [cat.attributes[f"x_{i}_bits"].as_int() for i in range(2)] == [32, 32]
