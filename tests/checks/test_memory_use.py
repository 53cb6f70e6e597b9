"""Bytes, lifetimes and multiplications of small graphs, worked out by hand."""

import json

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import convert_dialect
from linger.checks.memory_use import amount, memory_use
from linger.graph.network import open_batch_axes
from tests.support.chip import SIGNAL, WIDTHS, WINDOW, model_of, node
from tests.support.lowering import known_tensors
from tests.support.onnx_text import BRANCH, content, parse

CONV = WIDTHS | WINDOW
UP = WIDTHS | {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 0, 0], "dilations": [1, 1], "group": 1,
               "output_padding": [0, 0]}  # fmt: skip
SUM = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0}
STEPS = {"input_size": 4, "hidden_size": 5, "go_forward": 1, "scale_i": 32.0, "scale_h": 128.0, "scale_iw": 64.0,
         "scale_hw": 64.0, "scale_o": 128.0, "data_bits": 8, "parameter_bits": 8, "o_bits": 8}  # fmt: skip
BIAS = np.zeros(4, np.int32)


def made(result, op, operands, **attributes):
    """A named node of the dialect that makes this tensor."""
    return f"[{result}] " + node(op, operands, **attributes).replace("y =", f"{result} =", 1)


def live(use):
    return [layer.live_bytes for layer in use.layers]


def test_a_convolution():
    use = memory_use(model_of(node("Conv2dInt", "x, w, b", **CONV), inputs="int8[1,3,8,8] x", w=(4, 3, 3, 3), b=BIAS))
    (layer,) = use.layers
    assert (layer.node, layer.op_type, layer.shapes) == ("y (Conv2dInt)", "Conv2dInt", ((1, 4, 8, 8),))
    assert (layer.input_bytes, layer.output_bytes, layer.live_bytes) == (192, 256, 448)
    assert (layer.weight_bytes, layer.macs) == (4 * 27 + 4 * 4, 256 * 27)
    assert (use.peak_bytes, use.peak_layer, use.weight_bytes, use.macs) == (448, 0, 124, 6912)
    assert not use.is_lower_bound


def test_a_channel_with_its_own_scale_takes_a_byte_more():
    attributes = CONV | {"exponents_w": [0, 1, 2, 3]}
    use = memory_use(
        model_of(node("Conv2dInt", "x, w, b", **attributes), inputs="int8[1,3,8,8] x", w=(4, 3, 3, 3), b=BIAS)
    )
    assert (use.layers[0].weight_bytes, use.weight_bytes) == (124 + 4, 124 + 4)


def test_groups_share_the_products():
    grouped = model_of(node("Conv2dInt", "x, w", **CONV | {"group": 2}), inputs="int8[1,4,8,8] x", w=(6, 2, 3, 3))
    assert memory_use(grouped).macs == 6 * 64 * 2 * 9


@pytest.mark.parametrize(
    ("body", "settings", "macs"),
    [
        (node("Conv1dInt", "x, w", **WIDTHS | SIGNAL), {"inputs": "int8[1,3,10] x", "w": (4, 3, 3)}, 4 * 10 * 3 * 3),
        (node("ConvTranspose2dInt", "x, w", **UP), {"inputs": "int8[1,4,3,3] x", "w": (4, 2, 3, 3)}, 36 * 2 * 9),
        (node("LinearInt", "x, w, b", **WIDTHS), {"inputs": "int8[5,12] x", "w": (4, 12), "b": BIAS}, 5 * 4 * 12),
        (node("BmmInt", "x, z", **SUM), {"inputs": "int8[2,3,4] x, int8[2,4,5] z"}, 2 * 3 * 5 * 4),
        ("y = Conv(x, w)", {"inputs": "float[1,3,8,8] x", "w": np.zeros((4, 3, 3, 3), np.float32)}, 4 * 36 * 27),
        ("y = Gemm<transA=1>(x, w)", {"inputs": "float[3,2] x", "w": np.zeros((3, 5), np.float32)}, 2 * 3 * 5),
        ("y = MatMul(x, z)", {"inputs": "float[7,2,3] x, float[3,5] z"}, 7 * 2 * 3 * 5),
        (
            "y = LSTM<hidden_size=5>(x, w, r)",
            {
                "inputs": "float[6,2,4] x",
                "w": np.zeros((1, 20, 4), np.float32),
                "r": np.zeros((1, 20, 5), np.float32),
            },
            6 * 2 * (80 + 100),
        ),
        (node("iqAdd", "x, x", **SUM), {}, 0),
    ],
    ids=["conv1d", "transposed", "linear", "bmm", "float-conv", "gemm", "matmul", "float-lstm", "sum"],
)
def test_multiplications(body, settings, macs):
    assert memory_use(model_of(body, **settings)).macs == macs


@pytest.mark.parametrize(("op", "gates", "states"), [("LSTMInt", 4, 2), ("GRUInt", 3, 1)])
@pytest.mark.parametrize("batch_first", [0, 1])
def test_recurrent_layers(op, gates, states, batch_first):
    outputs = ", ".join(["y", "h", "c"][: 1 + states])
    body = node(op, "x, w, r, b, d", **STEPS, batch_first=batch_first).replace("y =", f"{outputs} =", 1)
    shape = "2,6,4" if batch_first else "6,2,4"
    rows = 5 * gates
    biases = dict.fromkeys("bd", np.zeros(rows, np.int32))
    (layer,) = memory_use(model_of(body, inputs=f"int8[{shape}] x", w=(rows, 4), r=(rows, 5), **biases)).layers
    assert layer.macs == 6 * 2 * (rows * 4 + rows * 5)
    assert layer.weight_bytes == rows * 9 + 2 * rows * 4
    assert layer.output_bytes == 6 * 2 * 5 + states * 2 * 5 * 4  # states are real numbers
    assert not layer.is_lower_bound


def test_the_tensor_of_a_skip_connection_stays_alive():
    body = "\n".join(
        [
            "[a] a = Relu(x)",
            made("b", "Conv2dInt", "a, w", **CONV),
            made("c", "Conv2dInt", "b, w", **CONV),
            made("y", "iqAdd", "c, a", **SUM),
        ]
    )
    use = memory_use(model_of(body, inputs="int8[1,8,4,4] x", w=(8, 8, 3, 3)))
    assert live(use) == [256, 256, 384, 384]  # x a, a b, a b c, a c y
    assert use.peak_layer == 2
    assert [(t.tensor, t.first, t.last) for t in use.lifetimes] == [
        ("x", 0, 0),
        ("a", 0, 3),
        ("b", 1, 2),
        ("c", 2, 3),
        ("y", 3, 3),
    ]
    assert [t.tensor for t in use.alive_at(2)] == ["a", "b", "c"]
    assert use.weight_bytes == 8 * 8 * 9  # two layers read them, and they are there once


@pytest.mark.parametrize(
    "view",
    ["Reshape(a, s)", "Flatten(a)", "Squeeze<axes=[0]>(a)", "Unsqueeze<axes=[0]>(a)", "Identity(a)"],
    ids=lambda view: view.partition("(")[0].partition("<")[0],
)
def test_a_view_lies_in_the_memory_of_its_input(view):
    body = f"[a] a = Relu(x) [v] v = {view} [y] y = Relu(v)"
    use = memory_use(model_of(body, inputs="int8[1,4,4] x", s=np.array([1, 16])))
    assert live(use) == [32, 16, 32]
    assert [layer.is_view for layer in use.layers] == [False, True, False]
    assert use.layers[1].note == "shares the memory of its input"
    assert (use.layers[1].input_bytes, use.layers[1].output_bytes) == (16, 16)
    assert use.weight_bytes == 0  # a shape is no weight
    assert [(t.tensor, t.first, t.last, t.views) for t in use.lifetimes] == [
        ("x", 0, 0, ()),
        ("a", 0, 2, ("v",)),
        ("y", 2, 2, ()),
    ]


def test_a_view_at_the_end_keeps_its_input():
    body = "[a] a = Relu(x) [y] y = Flatten(a) [b] b = Relu(x) [z] z = Relu(b)"
    use = memory_use(parse(body, inputs="int8[1,4] x", outputs="int8[1,4] y, int8[1,4] z", opset=14))
    assert live(use) == [8, 8, 12, 12]  # x a, x a, x a b, a b z
    assert [(t.tensor, t.last, t.is_output) for t in use.lifetimes][1] == ("a", 3, True)


def test_a_view_of_weights_is_weights():
    body = "[v] v = Reshape(w, s) [y] y = MatMul(x, v)"
    use = memory_use(model_of(body, inputs="float[1,6] x", w=np.zeros(24, np.float32), s=np.array([6, 4])))
    assert [(layer.live_bytes, layer.weight_bytes) for layer in use.layers] == [(24, 96), (24 + 16, 96)]
    assert use.weight_bytes == 96


def test_real_numbers_at_the_ends():
    body = f"""[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
        {made("c", "Conv2dInt", "q, w", **CONV)}
        [d] y = thinker.Dequant<scale_o=16.0>(c)"""
    use = memory_use(model_of(body, inputs="float[1,3,8,8] x", w=(4, 3, 3, 3)))
    assert live(use) == [192 * 4 + 192, 192 + 256, 256 + 256 * 4]
    assert [(t.tensor, t.is_float, t.is_input, t.is_output) for t in use.lifetimes] == [
        ("x", True, True, False),
        ("q", False, False, False),
        ("c", False, False, False),
        ("y", True, False, True),
    ]


@pytest.mark.parametrize(("bits", "size"), [(8, 1), (16, 2), (32, 4)])
def test_widths_of_tensors(bits, size):
    use = memory_use(model_of(node("Conv2dInt", "x, w", **CONV | {"o_bits": bits}), w=(4, 8, 3, 3)))
    assert use.layers[0].output_bytes == 4 * 256 * size


def test_an_input_is_alive_until_its_last_reader_and_an_output_to_the_end():
    body = "[a] a = Relu(x) [b] b = Relu(z) [c] c = Relu(b) [d] d = Relu(c)"
    use = memory_use(
        parse(
            body, inputs="int8[1,8] x, int8[1,16] z, int8[1,99] unused", outputs="int8[1,8] a, int8[1,16] d", opset=14
        )
    )
    assert live(use) == [8 + 16 + 8, 16 + 16 + 8, 16 + 16 + 8, 16 + 16 + 8]
    assert "unused" not in [t.tensor for t in use.lifetimes]


def test_a_result_that_nobody_reads_is_alive_while_its_layer_runs():
    body = "[a] y, rest = Split<axis=1>(x) [b] z = Relu(y)"
    use = memory_use(parse(body, inputs="int8[1,8] x", outputs="int8[1,4] z", opset=17))
    assert live(use) == [16, 8]


def test_an_input_that_is_read_twice_counts_once():
    (layer,) = memory_use(model_of(node("iqAdd", "x, x", **SUM), inputs="int8[1,8] x")).layers
    assert (layer.input_bytes, layer.live_bytes) == (8, 16)


@pytest.mark.parametrize(
    ("weights", "size"),
    [(np.zeros((4, 6), np.int8), 24), (np.zeros((4, 6), np.int16), 48), (np.zeros((4, 6), ml_dtypes.int4), 12)],
    ids=["int8", "int16", "int4"],
)
def test_weights_count_as_they_are_stored(weights, size):
    model = model_of(node("LinearInt", "x, w", **WIDTHS), inputs="int8[1,6] x", w=np.zeros((4, 6), np.int8))
    value = model.graph.initializers["w"]
    value.const_value = ir.tensor(weights, name="w")
    value.dtype = value.const_value.dtype
    assert memory_use(model).weight_bytes == size


def test_constants_of_nodes_are_weights_too():
    body = "[k] k = Constant<value = int8[4] {1, 2, 3, 4}>() [y] y = thinker.iqMul<scale_x=1.0, scale_y=1.0, scale_o=1.0>(x, k)"
    use = memory_use(model_of(body, inputs="int8[1,4] x"))
    assert [(layer.node, layer.weight_bytes) for layer in use.layers] == [("y (iqMul)", 4)]


def test_what_nobody_needs_has_no_row():
    assert [layer.node for layer in memory_use(model_of("[n] y = Relu(x) [m] z = Relu(x)")).layers] == ["n (Relu)"]


def test_arithmetic_on_fixed_shapes_has_no_row():
    body = """s = Shape(x) i = Constant<value = int64[1] {0}>() n = Gather(s, i) m = Constant<value = int64[1] {-1}>()
        t = Concat<axis=0>(n, m) [r] r = Reshape(x, t) [y] y = Relu(r)"""
    use = memory_use(model_of(body, inputs="int8[batch,4,4] x"))
    assert [(layer.node, layer.shape) for layer in use.layers] == [("r (Reshape)", "1×16"), ("y (Relu)", "1×16")]
    assert live(use) == [16, 32]


def test_arithmetic_on_open_shapes_has_no_row_either():
    body = """s = Shape(x) two = Constant<value = int64[1] {2}>() half = Div(s, two)
        [z] z = ConstantOfShape<value = float[1] {0}>(s) [e] e = Expand(k, half) [y] y = Add(x, z) [q] q = Relu(e)"""
    use = memory_use(
        parse(body, inputs="float[a,b] x", extra="<float[1] k = {1}>", outputs="float[a,b] y, float[c,d] q")
    )
    assert [layer.op_type for layer in use.layers] == ["ConstantOfShape", "Expand", "Add", "Relu"]


def test_the_open_batch_axis_is_counted_as_one():
    body = "[f] f = Reshape(x, s) [y] y = Relu(f)"
    open_batch = memory_use(model_of(body, inputs="int8[images,4,4] x", s=np.array([-1, 8])))
    assert open_batch.layers[1].shapes == ((2, 8),)
    assert live(open_batch) == [16, 32]
    assert (open_batch.batch_axes, open_batch.is_lower_bound) == (("images",), False)
    assert "Counted as 1: the open batch axis images." in open_batch.summary()


def test_the_name_of_the_batch_axis_means_it_elsewhere_too():
    use = memory_use(
        parse("[y] y = Add(x, z)", inputs="float[n,1,8] x, float[3,n,8] z", outputs="float[3,n,8] y", opset=17)
    )
    assert live(use) == [4 * (8 + 24 + 24)]


def test_batch_axes_without_a_name():
    model = parse("[y] y = Add(x, z)", inputs="float[?,8] x, float[?,8] z", outputs="y")
    assert open_batch_axes(model) == ("batch",)
    assert memory_use(model).peak_bytes == 96
    assert open_batch_axes(parse("y = Relu(x)", inputs="float x", outputs="y")) == ()


def test_open_sizes_make_lower_bounds():
    body = f"[a] a = Relu(x) {made('b', 'Conv2dInt', 'a, w', **CONV)} [p] p = GlobalMaxPool(b) [y] y = Flatten(p)"
    use = memory_use(model_of(body, inputs="int8[1,8,h,w] x", w=(4, 8, 3, 3)))
    assert [layer.is_lower_bound for layer in use.layers] == [True, True, True, False]
    assert use.layers[1].note == "size not known: a, b"
    assert use.layers[1].shape == "1×4×?×?"
    assert use.layers[1].macs == 0
    assert live(use) == [0, 0, 4, 4]
    assert use.is_lower_bound
    assert [layer.has_all_macs for layer in use.layers] == [True, False, True, True]
    assert "at least 4 bytes of tensors" in use.summary()
    assert "at least 0 multiply-accumulates" in use.summary()
    assert "lower bounds: 3 layers could not be counted in full" in use.summary()


def test_the_inside_of_branches_is_not_counted():
    use = memory_use(parse(BRANCH, inputs="float[4] x", outputs="float[4] y"))
    layer = next(layer for layer in use.layers if layer.op_type == "If")
    assert (layer.note, layer.is_lower_bound) == ("what is inside is not counted", True)
    assert layer.live_bytes == 32  # a, which the branches read, and y


def test_functions_of_the_user_are_not_looked_into():
    text = """<ir_version: 8, opset_import: ["": 17, "mine": 1]> g (float[4] x) => (float[4] y) { y = mine.twice(x) }
        <domain: "mine", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }"""
    (layer,) = memory_use(ir.from_proto(onnx.parser.parse_model(text))).layers
    assert (layer.note, layer.live_bytes) == ("what is inside is not counted", 32)


def test_the_newer_dialect_counts_as_the_older():
    body = f"[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) {made('y', 'LinearInt', 'q, w', **WIDTHS)}"
    older = model_of(body, inputs="float[n,6] x", w=(4, 6))
    newer = convert_dialect(older, "linger").model
    assert "QLinear" in [n.op_type for n in newer.graph]
    assert memory_use(newer).rows() == memory_use(older).rows()


def test_tensors_that_are_known_already():
    model = model_of("[a] a = Relu(x) [y] y = Flatten(a)", inputs="int8[1,8] x")
    assert memory_use(model, known_tensors(model)) == memory_use(model)
    batched = model_of("[a] a = Relu(x) [y] y = Flatten(a)", inputs="int8[n,8] x")
    assert memory_use(batched, known_tensors(batched)).peak_bytes == 16


def test_wrong_attributes_leave_what_the_file_declares():
    body = node("LSTMInt", "x, w, r, b, d", batch_first="no").replace("y =", "y, h, c =", 1)
    biases = dict.fromkeys("bd", np.zeros(20, np.int32))
    use = memory_use(model_of(body, inputs="int8[2,6,4] x", w=(20, 4), r=(20, 5), **biases))
    assert use.is_lower_bound
    assert use.layers[0].macs == 6 * 2 * (80 + 100)


def test_the_model_stays_as_it_is():
    model = model_of("[a] a = Relu(x) [y] y = Reshape(a, s)", inputs="int8[n,4,4] x", s=np.array([-1, 16]))
    before = content(model)
    memory_use(model)
    assert content(model) == before


def test_a_result_as_text_and_as_json():
    use = memory_use(model_of("[a] a = Relu(x) [y] y = Flatten(a)", inputs="int8[1,8,16] x"))
    assert repr(use) == "MemoryUse(2 layers, 256 bytes of tensors at one time, 0 bytes of weights, 0 MACs)"
    assert use.rows()[1] == ("y (Flatten)", "1×128", 128, 0, 0, "shares the memory of its input")
    assert str(use).splitlines()[-1] == use.summary()
    assert use.summary() == (
        "the model: 256 bytes of tensors alive at one time, at a (Relu); 0 bytes of weights; 0 multiply-accumulates."
    )
    read = json.loads(use.to_json())
    assert (read["format"], read["version"], read["peak_bytes"], read["peak_node"]) == (
        "linger-memory",
        1,
        256,
        "a (Relu)",
    )
    assert read["rows"][1]["shapes"] == [[1, 128]]
    assert read["lifetimes"][1]["views"] == ["y"]


def test_a_graph_without_layers():
    use = memory_use(parse("", inputs="float[2] x", outputs="float[2] x"))
    assert (use.layers, use.peak_layer, use.peak_bytes, use.macs) == ((), None, 0, 0)
    assert use.summary().startswith("the model: 0 bytes of tensors alive at one time; ")


def test_amounts():
    assert [amount(size) for size in (0, 1023, 1536)] == ["0 bytes", "1023 bytes", "1,536 bytes (1.5 KB)"]


@pytest.mark.needs_torch
def test_the_multiplications_are_those_of_coverage(tmp_path):
    import torch
    from torch import nn

    import linger

    net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2), nn.Flatten(),
                        nn.Linear(32, 5))  # fmt: skip
    net = linger.init(net).eval()
    with linger.calibration():
        net(torch.randn(1, 1, 8, 8))
    linger.onnx.export(net, (torch.randn(1, 1, 8, 8),), tmp_path / "net.onnx")
    assert linger.memory(tmp_path / "net.onnx").macs == linger.coverage(net).macs == 4 * 9 * 9 + 36 * 2 * 4 + 32 * 5


def test_a_relu_that_alone_reads_a_convolution_lies_in_its_memory():
    # 4 · 16 · 16 = 1024 bytes in, 8 · 16 · 16 = 2048 bytes out
    convolution = node("Conv2dInt", "x, w", **WIDTHS, **WINDOW).replace("y = ", "a = ")
    shapes = {"inputs": "int8[1,4,16,16] x", "w": (8, 4, 3, 3)}
    assert memory_use(model_of(f"{convolution} y = Relu(a)", **shapes)).peak_bytes == 1024 + 2048
    # a second reader keeps the result of the convolution alive, beside that of the Relu and its own of 8 · 8 · 8 bytes
    pool = "b = MaxPool<kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0]>(a)"
    model = model_of(f"{convolution} y = Relu(a) {pool}", **shapes)
    model.graph.outputs.append(next(n for n in model.graph if n.op_type == "MaxPool").outputs[0])
    assert memory_use(model).peak_bytes == 2048 + 2048 + 512
