"""Nodes that move numbers, and the ends of a model, in the form that the packer reads."""

import numpy as np
import pytest

from tests.support.chip import findings, node, only_finding


@pytest.mark.parametrize("domain", ["", "thinker."])
def test_clip_is_refused_with_the_remedy(domain):
    severity, text = only_finding(f"y = {domain}Clip(x, low, high)", low=np.int8(0), high=np.int8(96))
    assert severity == "error"
    assert text == (
        "y (Clip): venus's packer cannot take Clip (ReLU6, clamp), and here it limits inside the range of the integers. "
        "Quantise the model for this chip, linger.init(model, target='venus'): a ReLU6 then is a Relu whose integers saturate, "
        "in training too. For other bounds no exact form is known."
    )


TURN = "y = Transpose<perm=[0, 2, 3, 1]>(x)"


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_four_axes_are_exchanged_with_the_batch_first(target):
    assert findings(TURN, target) == findings("y = Transpose<perm=[0, 1, 2, 3]>(x)", target) == []


def test_five_axes_are_not_exchanged():
    body, five = "y = Transpose<perm=[0, 2, 3, 1, 4]>(x)", "int8[1,2,3,4,5] x"
    for target in ("venus", "arcs"):
        severity, text = only_finding(body, target=target, inputs=five)
        assert severity == "error"
        assert (
            f"exchanges axes of a tensor of 5 axes; {target} has that for at most 4. Keep the order of axes, or merge"
            in text
        )
    assert findings(body, "venusA", inputs=five) == []


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
    assert "quantises to 16 bits; venus makes 8 bits whatever is asked for. Leave data_bits" in text


def padded(pads, value=0, target="venus"):
    return findings("y = thinker.iqPad(x, p, v)", target, p=np.array(pads), v=np.int8(value))


def test_borders_are_of_zeros_around_two_axes():
    assert padded([0, 0, 1, 1, 0, 0, 1, 1]) == []
    assert padded([0, 1, 1, 1, 0, 0, 1, 1]) == [
        ("error", "y (iqPad): pads 3 axes; the engine takes 2. Leave padding to the convolution behind (padding=).")
    ]
    assert padded([0, 0, 1, 1, 0, 0, 1, 1], value=3) == [
        ("error", "y (iqPad): a border of 3; the packer takes zeros. Pad with zeros. No exact form is known.")
    ]


def test_wide_integers_do_not_become_real_numbers():
    body = node("Dequant", scale_o=16.0)
    assert findings(body, inputs="int8[1,4] x") == []
    for bits in (16, 32):
        severity, text = only_finding(body, inputs=f"int{bits}[1,4] x")
        assert severity == "error"
        assert text == (
            f"y (Dequant): turns {bits}-bit integers into real numbers; venus's packer takes them for 8 bits. Export with "
            "is_input_quant=True: the file then ends in the integers themselves, which are exact."
        )


def test_widths_that_no_document_lists():
    severity, text = only_finding("y = Relu(x)", target="arcs", inputs="int16[1,4] x")
    assert severity == "warning"
    assert "works on 16-bit numbers; arcs is documented for 8, 32 bits" in text
    assert findings("y = Relu(x)", inputs="int16[1,4] x") == []
