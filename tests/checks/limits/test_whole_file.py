"""A file as a whole before a chip: the chip that it names, its dialect, its batch, its size."""

import numpy as np
import pytest

from linger.checks import target_findings
from tests.support.chip import TARGETS, WIDTHS, WINDOW, findings, model_of, node, only_finding

RELU = 'y = thinker.Relu<platform="venus">(x)'


def whole(target="venus", body=RELU, **model):
    found = target_findings(model_of(body, **model), TARGETS[target])
    return [(f.severity, f.node, f.rule, str(f)) for f in found]


def test_a_graph_without_constants_is_refused():
    text = "the graph holds no constants, and the packer refuses such a graph. Add a layer with weights."
    assert whole() == [("error", "", "LGR901", text)]
    assert whole(a=(3,)) == []


def test_a_model_has_8_megabytes():
    assert whole(a=(8 * 1024 * 1024,)) == []
    ((severity, _, rule, text),) = whole(a=(8 * 1024 * 1024 + 1,))
    assert (severity, rule) == ("error", "LGR901")
    assert "the parameters have 8388609 bytes; venus has room for 8388608 (8 MB). Use fewer" in text


def test_files_for_another_chip_are_refused():
    body = node("Relu", platform="arcs")
    assert findings(body, "arcs") == []
    severity, text = only_finding(body)
    assert severity == "error"
    assert text == (
        "the file is for arcs, not for venus: 1 of 1 nodes say so. "
        "Quantize the model for this chip: linger.init(model, target='venus')."
    )


def test_one_node_for_another_chip_is_enough():
    body = 'a = thinker.Relu<platform="venus">(x) b = thinker.Relu(a) y = thinker.Relu<platform="venusA">(b)'
    severity, text = only_finding(body)
    assert severity == "error"
    assert text.startswith("the file is for venusA, not for venus: 1 of 3 nodes say so. ")


def test_a_file_that_names_no_chip_is_for_the_default_one():
    text = "the file names no chip; the packer takes it for venus. Nothing is to be done."
    assert whole(body=node("Relu"), w=(1,)) == [("note", "", "LGR903", text)]
    assert whole(body="y = Relu(x)", w=(1,)) == []


def test_a_file_that_names_no_chip_is_refused_elsewhere():
    text = (
        "the file names no chip, so arcs's packer refuses it; others take it for venus. "
        "Quantize the model for this chip: linger.init(model, target='arcs')."
    )
    assert whole("arcs", node("Relu"), w=(1,)) == [("error", "", "LGR903", text)]


def test_venus_reads_the_older_dialect_only():
    attributes = 'quant_mode="floor_add", x_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0'
    newer = "y = linger.QAvgPool2d<kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0], platform={!r}, {}>(x)"
    body = newer.replace("{!r}", '"{}"')
    text = "venus's packer refuses files of the domain 'linger'. linger.convert_dialect(model, to='thinker') writes the older one."
    assert whole(body=body.format("venus", attributes), w=(1,)) == [("error", "", "LGR908", text)]
    assert whole("arcs", body.format("arcs", attributes), w=(1,)) == []
    untried = text.replace("venus's packer refuses", "venusA's packer was not tried with")
    assert ("error", "", "LGR908", untried) in whole("venusA", body.format("venusA", attributes), w=(1,))


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_an_open_batch_is_refused_with_the_option_of_the_packer(target):
    body = node("Relu", platform=target)
    found = whole(target, body, inputs="int8[n,4,8,8] x", w=(1,))
    assert [entry for entry in found if entry[2] == "LGR909"] == [
        (
            "error",
            "x",
            "LGR909",
            "x: the batch is open; the packer takes it with --dynamic_shape n=1:1 only. "
            f"Export with linger.onnx.export(…, target='{target}'), which fixes it to 1, or pack with --dynamic_shape n=1:1.",
        )
    ]


POOL = "{} = thinker.MaxPool<kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0]>({})"
NAMELESS = "the file names no chip"


def batch(body, **model):
    return [entry for entry in whole(body=body, w=(1,), **model) if NAMELESS not in entry[3]]


def test_layers_with_a_window_get_one_sample():
    assert batch(POOL.format("y", "x"), inputs="int8[2,4,8,8] x") == [
        (
            "error",
            "y (MaxPool)",
            "LGR909",
            "y (MaxPool): a batch of 2; venus computes one sample at a time. "
            "Export with one sample (args of the shape [1, …]), and join no samples along the first axis.",
        )
    ]
    assert batch(POOL.format("y", "x"), inputs="int8[1,4,8,8] x") == []


def test_several_samples_are_said_once_for_all_layers():
    body = " ".join(POOL.format(*names) for names in (("a", "x"), ("b", "a"), ("y", "b")))
    ((severity, where, rule, text),) = batch(body, inputs="int8[2,4,8,8] x")
    assert (severity, where, rule) == ("error", "a (MaxPool)", "LGR909")
    assert "a batch of 2, here and in 2 other layers; venus computes one sample at a time" in text


def test_rows_of_matrices_are_no_batch():
    for shape in ("int8[2,4] x", "int8[2,4,8] x", "int8 x"):
        assert whole(inputs=shape, w=(1,)) == []


def test_options_of_the_packer_are_said_once_for_all_nodes():
    window = "kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0], dilations=[1, 1], output_padding=[0, 0], group=1"
    widths = "data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=16.0, scale_o=16.0"
    double = '{} = thinker.ConvTranspose2dInt<platform="{}", quant_mode="floor_add", {}>({}, w, b)'
    body = " ".join(double.format(y, "{0}", f"{window}, {widths}", x) for y, x in (("a", "x"), ("y", "a")))
    constants = {"w": (8, 8, 2, 2), "b": (8,)}
    text = (
        "venus's packer takes ConvTranspose2dInt (2 in this file) with -m params:share-mem only. "
        "Pack it with: tpacker … -m params:share-mem"
    )
    assert whole(body=body.format("venus"), **constants) == [("warning", "", "LGR954", text)]
    assert whole("arcs", body.format("arcs"), **constants) == []


PARAMETERS = {"w": (8, 8), "v": (8, 8), "b": np.zeros(8, np.int32), "c": np.zeros(8, np.int32)}


def shared(first, second, target="venus", op="LinearInt", inputs="int8[1,8] x", **changes):
    """What is said of parameters of two layers, one behind the other."""
    attributes = (
        WIDTHS | (WINDOW if op == "Conv2dInt" else {}) | ({"parameter_bits": 16} if op == "LayerNormInt" else {})
    )
    a, b = (node(op, operands, **attributes) for operands in (f"x, {first}", f"a, {second}"))
    body = f"[a] {a.replace('y =', 'a =', 1)} [n] {b}"
    found = whole(target, body, inputs=inputs, **PARAMETERS | changes)
    return [(severity, where, text) for severity, where, rule, text in found if rule == "LGR955"]


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
@pytest.mark.parametrize(
    ("first", "second", "name"), [("w, b", "w, c", "w"), ("w, b", "v, b", "b")], ids=["weight", "bias"]
)
def test_nodes_do_not_share_a_part_of_their_parameters(first, second, name, target):
    assert shared(first, second, target) == [
        (
            "error",
            "n (LinearInt)",
            f"n (LinearInt): shares {name} with a (LinearInt), and not all of its parameters; the packer copies weight and bias of "
            "a node as one block, so the engine reads other numbers. "
            f"linger repair --target {target} gives every node its own, as linger.onnx.export(…, target='{target}') does; "
            "or pack with: tpacker … --dma_prefetch False",
        )
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("w, b", "w, b", id="all"),
        pytest.param("w, b", "v, c", id="nothing"),
        pytest.param("w", "w", id="without biases"),
    ],
)
def test_nodes_that_share_all_of_their_parameters_or_nothing_are_taken(first, second):
    assert shared(first, second) == []


@pytest.mark.parametrize(
    ("op", "inputs", "changes"),
    [
        pytest.param("Conv2dInt", "int8[1,8,4,4] x", {"w": (8, 8, 3, 3)}, id="convolution"),
        pytest.param("LayerNormInt", "int8[1,2,8] x", {"w": np.zeros(8, np.int16)}, id="norm"),
    ],
)
def test_other_layers_do_not_share_either(op, inputs, changes):
    ((severity, where, text),) = shared("w, b", "w, c", op=op, inputs=inputs, **changes)
    assert (severity, where) == ("error", f"n ({op})")
    assert f"shares w with a ({op})" in text
    assert shared("w, b", "w, b", op=op, inputs=inputs, **changes) == []


def test_every_node_that_shares_is_named():
    linear = node("LinearInt", "{}", **WIDTHS)
    body = " ".join(
        f"[{y}] {linear.format(operands).replace('y =', f'{y} =', 1)}"
        for y, operands in (("a", "x, w, b"), ("b1", "a, w, c"), ("y", "b1, v, c"))
    )
    found = [entry for entry in whole(body=body, inputs="int8[1,8] x", **PARAMETERS) if entry[2] == "LGR955"]
    assert [(where, text.partition(",")[0].partition("shares ")[2]) for _, where, _, text in found] == [
        ("b1 (LinearInt)", "w with a (LinearInt)"),
        ("y (LinearInt)", "c with b1 (LinearInt)"),
    ]


def test_parameters_that_are_inputs_of_the_graph_are_not_copied_as_a_block():
    body = "[a] a = {} [n] y = {}".format(
        *(node("LinearInt", operands, **WIDTHS).removeprefix("y = ") for operands in ("x, w, b", "a, w, c"))
    )
    model = {name: PARAMETERS[name] for name in "bc"}
    found = whole(body=body, inputs="int8[1,8] x, int8[8,8] w", **model)
    assert [entry for entry in found if entry[2] == "LGR955"] == []
