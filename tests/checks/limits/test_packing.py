"""What the packer reads, and in what form."""

import numpy as np
import pytest

from linger.checks.limits.target_findings import target_findings
from linger.targets import TARGETS
from tests.support.chip import findings, model_of, node, only_finding


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_an_unknown_op_is_refused(target):
    severity, text = only_finding("y = Softplus(x)", target=target, inputs="float[1,4] x")
    assert severity == "error"
    assert f"{target}'s packer has no Softplus. Keep it out of the file" in text


def test_sums_along_an_axis_have_a_remedy():
    severity, text = only_finding(node("iqSum", scale_x=16.0, scale_o=16.0, dims=1))
    assert severity == "error"
    assert "Replace the sum by an average pool" in text


def test_gelu_exists_on_one_chip():
    body = node("QGelu", scale_x=16.0, scale_o=16.0)
    assert "Use ReLU. Of the known chips only venusA has it." in only_finding(body)[1]
    severity, text = only_finding(body, target="venusA")
    assert severity == "warning"
    assert "venusA runs QGelu, but the public packer does not know it" in text


def test_nodes_for_another_chip_are_refused():
    body = node("Relu", platform="arcs")
    assert findings(body, "arcs") == []
    severity, text = only_finding(body)
    assert severity == "error"
    assert (
        "the node is for arcs, not for venus. Quantise the model for this chip: linger.init(model, target='venus')"
        in text
    )


def test_arithmetic_of_venus_is_not_taken_elsewhere():
    curve = {"scale_x": 16.0, "scale_o": 128.0}
    assert findings(node("iqSigmoid", **curve, platform="arcs"), "arcs") == []
    severity, text = only_finding(node("iqSigmoid", **curve), target="arcs")
    assert severity == "error"
    assert "the node computes as venus does, not as arcs. Quantise the model for this chip" in text


def test_ops_that_nobody_has_compared_are_said():
    norm = {"data_bits": 8, "parameter_bits": 16, "o_bits": 8, "scale_x": 16.0, "scale_w": 16.0, "scale_o": 16.0}
    (found,) = target_findings(model_of(node("LayerNormInt", "x, w", **norm), w=(16,)), TARGETS["arcs"])
    assert found.severity == "warning"
    assert "nobody has compared LayerNormInt with what arcs computes. Compare a few outputs" in str(found)


@pytest.mark.parametrize("domain", ["", "thinker."])
def test_clip_is_refused_with_the_remedy(domain):
    severity, text = only_finding(f"y = {domain}Clip(x, low, high)", low=np.int8(0), high=np.int8(96))
    assert severity == "error"
    assert "venus's packer cannot take Clip (ReLU6, clamp)" in text
    assert "linger.normalize_module(layer, normalize_output_value=4)" in text


def test_four_axes_are_not_exchanged_on_venus():
    body = "y = Transpose<perm=[0, 2, 3, 1]>(x)"
    severity, text = only_finding(body)
    assert severity == "error"
    assert "exchanges axes of a tensor of 4 axes; venus has that for at most 3. Merge axes" in text
    assert findings(body, "arcs") == []
    assert findings("y = Transpose<perm=[0, 1, 2, 3]>(x)") == []


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


def test_shapes_are_constants():
    assert findings("y = Reshape(x, a)", a=np.array([1, -1], np.int64)) == []
    assert findings("a = Constant<value = int64[2] {1, -1}>() y = Reshape(x, a)") == []
    assert findings("a = Constant<value_ints = [1, -1]>() y = Reshape(x, a)") == []
    assert findings("a = Shape(x) y = Reshape(x, a)") == []  # of fixed sizes: the packer computes it
    severity, text = only_finding("a = Shape(x) y = Reshape(x, a)", inputs="int8[1,8,h,16] x")
    assert severity == "error"
    assert "its shape or bounds are computed; the packer wants constants. Export with fixed sizes" in text


def test_slices_of_one_axis():
    one, two = ({"a": np.zeros(n, np.int64), "e": np.ones(n, np.int64), "k": np.arange(n)} for n in (1, 2))
    assert findings("y = Slice(x, a, e, k)", **one) == []
    severity, text = only_finding("y = Slice(x, a, e, k)", **two)
    assert severity == "error"
    assert "slices 2 axes at once; the packer takes 1. Slice one axis after the other" in text


def test_split_is_not_read():
    severity, text = only_finding("y, z = Split<axis=1>(x)")
    assert severity == "error"
    assert "attribute 'dims', which standard ONNX does not have. Slice the parts out" in text


def test_quant_makes_8_bits():
    body = node("Quant", data_bits=16, scale_x=16.0)
    severity, text = only_finding(body, inputs="float[1,4] x")
    assert severity == "error"
    assert "quantises to 16 bits; venus makes 8 bits whatever is asked for. Leave data_bits" in text


def test_widths_that_no_document_lists():
    severity, text = only_finding("y = Relu(x)", target="arcs", inputs="int16[1,4] x")
    assert severity == "warning"
    assert "works on 16-bit numbers; arcs is documented for 8, 32 bits" in text
    assert findings("y = Relu(x)", inputs="int16[1,4] x") == []


def whole(target="venus", **constants):
    found = target_findings(model_of("y = Relu(x)", **constants), TARGETS[target])
    return [(f.severity, f.node, str(f)) for f in found]


def test_a_graph_without_constants_is_refused():
    ((severity, node_name, text),) = whole()
    assert (severity, node_name) == ("error", "")
    assert text == "the graph holds no constants, and the packer refuses such a graph. Add a layer with weights."
    assert whole(a=(3,)) == []


def test_a_model_has_8_megabytes():
    assert whole(a=(8 * 1024 * 1024,)) == []
    ((severity, _, text),) = whole(a=(8 * 1024 * 1024 + 1,))
    assert severity == "error"
    assert "the parameters have 8388609 bytes; venus has room for 8388608 (8 MB). Use fewer" in text
