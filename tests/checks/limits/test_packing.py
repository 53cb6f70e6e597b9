"""Nodes that move numbers, and the ends of a model, in the form that the packer reads."""

import numpy as np
import pytest

from linger.checks import target_findings
from tests.support.chip import TARGETS, findings, model_of, node, only_finding


@pytest.mark.parametrize("domain", ["", "thinker."])
def test_clip_is_refused_with_the_remedy(domain):
    severity, text = only_finding(f"y = {domain}Clip(x, low, high)", low=np.int8(0), high=np.int8(96))
    assert severity == "error"
    assert text == (
        "y (Clip): venus's packer cannot take Clip (ReLU6, clamp), and here it limits inside the range of the integers. "
        "Quantize the model for this chip, linger.init(model, target='venus'): a ReLU6 then is a Relu whose integers saturate, "
        "in training too. For other bounds no exact form is known."
    )


TURN = "y = Transpose<perm=[0, 2, 3, 1]>(x)"


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_four_axes_are_exchanged_with_the_batch_first(target):
    assert findings(TURN, target) == findings("y = Transpose<perm=[0, 1, 2, 3]>(x)", target) == []


def test_five_axes_are_not_exchanged():
    body, five = "y = Transpose<perm=[0, 2, 3, 1, 4]>(x)", "int8[1,2,3,4,5] x"
    for target in ("venus", "arcs", "venusA"):
        severity, text = only_finding(body, target=target, inputs=five)
        assert severity == "error"
        assert (
            f"exchanges axes of a tensor of 5 axes; {target} has that for at most 4. Keep the order of axes, or merge"
            in text
        )


def test_the_first_of_four_axes_stays():
    body = "y = Transpose<perm=[1, 0, 2, 3]>(x)"
    severity, text = only_finding(body)
    assert severity == "error"
    assert text == (
        "y (Transpose): moves the first axis of a tensor of four axes; venus leaves that in place. Keep the batch first."
    )
    assert findings(body, "arcs") == []


def test_four_axes_must_fit():
    assert findings(TURN, inputs="int8[1,16,64,64] x") == []
    severity, text = only_finding(TURN, inputs="int8[1,16,66,66] x")
    assert severity == "error"
    assert "exchanges axes of a tensor of 69696 bytes; venus has room for 64 KB. Cut the tensor" in text
    assert "69696" in only_finding(TURN, inputs="int16[1,8,66,66] x")[1]
    assert only_finding(TURN, inputs="int8[1,16,H,64] x")[0] == "note"
    assert findings(TURN, "arcs", inputs="int8[1,16,66,66] x") == []


def test_planes_of_three_axes_must_fit():
    body = "y = Transpose<perm=[0, 2, 1]>(x)"
    assert findings(body, inputs="int8[1,256,256] x") == []
    severity, text = only_finding(body, inputs="int8[1,256,257] x")
    assert severity == "error"
    assert "planes of 65792 bytes; venus has 64 KB. Cut the tensor" in text
    assert "65792" in only_finding(body, inputs="int16[1,128,257] x")[1]
    assert only_finding(body, inputs="int8[1,L,256] x")[0] == "note"


def turned(order, shape, target="venus", kind="int8"):
    return findings(f"y = Transpose<perm={[int(axis) for axis in order]}>(x)", target, inputs=f"{kind}[{shape}] x")


@pytest.mark.parametrize(
    ("target", "order", "shape", "longer", "size"),
    [
        pytest.param("venus", "0132", "1,16,80,70", "1,16,80,71", 90880, id="venus-0132"),
        pytest.param("venus", "0213", "1,16,66,66", "1,16,66,67", 70752, id="venus-0213"),
        pytest.param("venus", "102", "1,300,300", "1,300,301", 90300, id="venus-102"),
        pytest.param("arcs", "102", "1,300,300", "1,300,301", 90300, id="arcs-102"),
        pytest.param("arcs", "021", "1,260,260", "1,260,261", 67860, id="arcs-021"),
    ],
)
def test_orders_in_which_larger_tensors_were_exact(target, order, shape, longer, size):
    assert turned(order, shape, target) == []
    ((severity, text),) = turned(order, longer, target)
    assert severity == "error"
    assert f"exchanges axes of {'planes' if len(order) == 3 else 'a tensor'} of {size} bytes; {target} has " in text


def test_other_orders_of_larger_tensors_are_refused():
    for order, shape in (("0231", "1,16,66,66"), ("021", "1,260,260"), ("0312", "1,16,80,70")):
        ((severity, text),) = turned(order, shape)
        assert (severity, "Cut the tensor into parts" in text) == ("error", True)


def test_larger_tensors_in_orders_that_were_exact_count_in_bytes():
    assert turned("0132", "1,8,80,70", kind="int16") == []
    assert "90880 bytes" in turned("0132", "1,8,80,71", kind="int16")[0][1]
    assert "planes of 90000 bytes" in turned("102", "2,300,300")[0][1]


@pytest.mark.parametrize("order", ["0132", "0231", "0312", "0123"])
def test_orders_of_venusA(order):
    assert turned(order, "1,8,16,12", "venusA") == []


@pytest.mark.parametrize("order", ["0213", "0321", "1023", "021", "102", "10"])
def test_other_orders_of_venusA_are_refused(order):
    assert turned(order, ",".join("1345"[: len(order)]), "venusA") == [
        (
            "error",
            f"y (Transpose): the order {order} of axes, which venusA was seen to compute otherwise, or nobody has tried. "
            "Use one of 0132, 0231, 0312, with the batch first. No exact form is known.",
        )
    ]


def test_axes_are_an_attribute():
    assert findings("y = Squeeze<axes=[0]>(x)") == []
    severity, text = only_finding("y = Squeeze(x, a)", opset=13, a=np.array([0], np.int64))
    assert severity == "error"
    assert "its axes are an input, which the packer does not read. Export with opset_version=12" in text


@pytest.mark.parametrize("op", ["Squeeze", "Unsqueeze"])
def test_axes_are_counted_from_the_front(op):
    severity, text = only_finding(f"y = {op}<axes=[-1]>(x)", inputs="int8[1,8,1] x")
    assert severity == "error"
    assert text == (
        f"y ({op}): its axis -1 is counted from the end; the packer takes axes that are counted from the front. Write the "
        "positive axis, as in x.unsqueeze(2): linger.onnx.export(…, target='venus') writes it so."
    )
    assert findings(f"y = {op}<axes=[2]>(x)", inputs="int8[1,8,1] x") == []


def test_shapes_are_constants():
    assert findings("y = Reshape(x, a)", a=np.array([1, -1], np.int64)) == []
    assert findings("a = Constant<value = int64[2] {1, -1}>() y = Reshape(x, a)") == []
    assert findings("a = Constant<value_ints = [1, -1]>() y = Reshape(x, a)") == []
    assert findings("a = Shape(x) y = Reshape(x, a)") == []  # of fixed sizes: the packer computes it
    severity, text = only_finding("a = Shape(x) y = Reshape(x, a)", inputs="int8[1,8,h,16] x")
    assert severity == "error"
    assert text == (
        "y (Reshape): its shape or bounds are computed; the packer wants constants. Export without dynamic_axes or with "
        "target=…, so that every size is fixed and the shape a constant."
    )


def test_slices_of_one_axis():
    one, two = ({"a": np.zeros(n, np.int64), "e": np.ones(n, np.int64), "k": np.arange(n)} for n in (1, 2))
    assert findings("y = Slice(x, a, e, k)", **one) == []
    severity, text = only_finding("y = Slice(x, a, e, k)", **two)
    assert severity == "error"
    assert "slices 2 axes at once; the packer takes 1. Slice one axis after the other" in text


def test_steps_of_slices_are_not_taken():
    bounds = {"a": np.array([0]), "e": np.array([8]), "k": np.array([2])}
    assert findings("y = Slice(x, a, e, k, s)", **bounds, s=np.array([1])) == []
    severity, text = only_finding("y = Slice(x, a, e, k, s)", **bounds, s=np.array([2]))
    assert severity == "error"
    assert text == (
        "y (Slice): steps by 2; the engine takes every number. No exact form is known. "
        "A convolution that reads it can step itself (stride=2)."
    )


def test_split_is_not_read():
    severity, text = only_finding("y, z = Split<axis=1>(x)")
    assert severity == "error"
    assert "attribute 'dims', which standard ONNX does not have. Slice the parts out" in text


def test_quant_makes_8_bits():
    body = node("Quant", data_bits=16, scale_x=16.0)
    severity, text = only_finding(body, inputs="float[1,4] x")
    assert severity == "error"
    assert "quantizes to 16 bits; venus makes 8 bits whatever is asked for. Leave data_bits" in text


def padded(pads, value=0, target="venus", shape="1,8,16,16"):
    inputs = f"int8[{shape}] x"
    return findings("y = thinker.iqPad(x, p, v)", target, inputs=inputs, p=np.array(pads), v=np.int8(value))


def test_borders_are_of_zeros_around_two_axes():
    assert padded([0, 0, 1, 1, 0, 0, 1, 1]) == []
    assert padded([0, 1, 1, 1, 0, 0, 1, 1]) == [
        ("error", "y (iqPad): pads 3 axes; the engine takes 2. Leave padding to the convolution behind (padding=).")
    ]
    assert padded([0, 0, 1, 1, 0, 0, 1, 1], value=3) == [
        ("error", "y (iqPad): a border of 3; the packer takes zeros. Pad with zeros. No exact form is known.")
    ]


@pytest.mark.parametrize(
    ("pads", "shape", "axes"), [([0, 0, 1, 0, 0, 1], "1,8,30", 3), ([0, 1, 0, 1], "8,30", 2)], ids=["three", "two"]
)
def test_borders_are_of_tensors_of_four_axes(pads, shape, axes):
    assert padded(pads, shape=shape) == [
        (
            "error",
            f"y (iqPad): pads a tensor of {axes} axes; the engine takes 4. Add axes of size 1 before it: "
            "linger.onnx.export(…, target='venus') writes it so.",
        )
    ]


def test_borders_of_tensors_of_four_axes_may_have_open_sizes():
    assert padded([0, 0, 1, 1, 0, 0, 1, 1], shape="1,8,H,16") == []


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
@pytest.mark.parametrize("bits", [16, 32])
def test_wide_integers_at_the_end_become_real_numbers_where_ends_are_kept(bits, target):
    body, inputs = node("Dequant", scale_o=16.0), f"int{bits}[1,4] x"
    found = [
        each for each in findings(body, target, inputs=inputs) if "Dequant" in each[1] and "documented" not in each[1]
    ]
    assert found == [
        (
            "warning",
            f"y (Dequant): turns {bits}-bit integers into real numbers; {target}'s packer takes them for 8 bits where it keeps "
            "the float ends. Pack without keeping them, or export with is_input_quant=True: the file then ends in integers, "
            "which are exact.",
        )
    ]


@pytest.mark.parametrize("bits", [16, 32])
def test_wide_integers_in_the_middle_do_not_become_real_numbers(bits):
    body = "d = thinker.Dequant<scale_o=16.0>(x) y = thinker.Quant<data_bits=8, scale_x=16.0>(d)"
    severity, text = only_finding(body, inputs=f"int{bits}[1,4] x")
    assert severity == "error"
    assert f"d (Dequant): turns {bits}-bit integers into real numbers; venus's packer takes them for 8 bits. " in text
    assert findings(body, inputs="int8[1,4] x") == findings(node("Dequant", scale_o=16.0), inputs="int8[1,4] x") == []


def test_wide_integers_that_an_output_and_a_node_read_are_refused():
    model = model_of(
        "y = thinker.Dequant<scale_o=16.0>(x) z = thinker.Quant<data_bits=8, scale_x=16.0>(y)", inputs="int16[1,4] x"
    )
    found = [f for f in target_findings(model, TARGETS["venus"]) if f.rule == "LGR950"]
    assert [(f.severity, f.node) for f in found] == [("error", "y (Dequant)")]


def test_widths_that_no_document_lists():
    severity, text = only_finding("y = Relu(x)", target="arcs", inputs="int16[1,4] x")
    assert severity == "warning"
    assert "works on 16-bit numbers; arcs is documented for 8, 32 bits" in text
    assert findings("y = Relu(x)", inputs="int16[1,4] x") == []
