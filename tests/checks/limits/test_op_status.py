"""What a chip makes of single ops: some it does not know, some it computes otherwise, some nobody has tried."""

import pytest

from linger.checks import target_findings
from tests.support.chip import TARGETS, WIDTHS, WINDOW, findings, model_of, node, only_finding, read_target
from tests.support.onnx_text import parse

SUM = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0}
CURVE = {"scale_x": 16.0, "scale_o": 128.0}
AS_INTEGERS = "Let linger compute it on integers: quantize what it reads (linger.quant_tensor), or move it behind the first layer."


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_an_unknown_op_is_refused(target):
    severity, text = only_finding("y = Softplus(x)", target=target, inputs="float[1,4] x")
    assert severity == "error"
    assert text == (
        f"y (Softplus): {target}'s packer has no Softplus. No exact form is known. Compute it outside of the model."
    )


def test_sums_along_an_axis_have_a_remedy():
    severity, text = only_finding(node("iqSum", scale_x=16.0, scale_o=16.0, dims=1))
    assert severity == "error"
    assert "Replace the sum by an average pool" in text


def test_identities_are_what_linger_does_not_leave():
    severity, text = only_finding("y = Identity(x)")
    assert severity == "error"
    assert text == (
        "y (Identity): venus's packer has no Identity. Export with linger, which leaves no Identity in the middle of a graph."
    )


def test_gelu_exists_on_one_chip():
    body = node("QGelu", scale_x=16.0, scale_o=16.0)
    assert "Use ReLU. Other chips have it: venusA." in only_finding(body)[1]
    refused, unpacked = findings(body, "venusA")
    assert refused[0] == "error"
    assert "not tried: nobody has compared QGelu with what venusA computes. Use ReLU." in refused[1]
    assert unpacked[0] == "warning"
    assert "venusA runs QGelu, but the public packer does not know it" in unpacked[1]


@pytest.mark.parametrize(
    ("op", "target"),
    [("Sigmoid", "venus"), ("MaxPool", "venusA"), ("Sigmoid", "arcs"), ("Tanh", "arcs"), ("Tanh", "venusA")],
)
def test_ops_that_the_packer_lists_may_stop_it_on_real_numbers(op, target):
    window = "<kernel_shape=[2, 2]>" if op == "MaxPool" else ""
    severity, text = only_finding(f"y = {op}{window}(x)", target=target, inputs="float[1,8,8,8] x")
    assert severity == "error"
    assert text == f"y ({op}): {target}'s packer or engine stops at a float {op}. {AS_INTEGERS}"


@pytest.mark.parametrize("op", ["Add", "Mul", "Concat"])
@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_ops_of_two_floats_stop_the_packer(op, target):
    written = f"{op}<axis=1>" if op == "Concat" else op
    severity, text = only_finding(f"y = {written}(x, z)", target=target, inputs="float[1,8] x, float[1,8] z")
    assert severity == "error"
    assert text == f"y ({op}): {target}'s packer or engine stops at a float {op}. {AS_INTEGERS}"


def test_the_logarithm_of_a_float_softmax_is_refused_where_it_was_tried():
    body = "y = LogSoftmax<axis=1>(x)"
    for target in ("arcs", "venusA"):
        severity, text = only_finding(body, target=target, inputs="float[1,8] x")
        assert severity == "error"
        assert f"{target}'s packer or engine stops at a float LogSoftmax" in text
    assert findings(body, inputs="float[1,8] x") == []


@pytest.mark.parametrize("target", ["arcs", "venusA"])
def test_recurrent_ops_of_other_chips(target):
    window = {"num_layers": 1, "batch_first": 1, "go_forward": 1, "hidden_size": 4, "input_size": 6}
    severity, text = only_finding(node("LSTMInt", **window), target=target, inputs="int8[1,6,6] x")
    assert (severity, f"{target}'s packer or engine stops at LSTMInt" in text) == ("error", True)
    severity, text = only_finding(node("GRUInt", **window), target=target, inputs="int8[1,6,6] x")
    assert (severity, f"{target} runs GRUInt and was seen to compute something else" in text) == ("error", True)


def test_a_float_transpose_is_exact_where_the_packer_drops_the_ends():
    body, turned = "y = Transpose<perm=[0, 2, 3, 1]>(x)", "float[1,8,16,16] x"
    assert findings(body, inputs=turned) == [
        (
            "warning",
            "y (Transpose): venus computes something else for a float Transpose where the packer keeps the float ends. "
            "Pack without keeping them, as the packer does by default.",
        )
    ]
    assert findings(body) == findings(body, "arcs", inputs=turned) == []


def test_ops_that_are_computed_otherwise_are_refused():
    severity, text = only_finding(node("iqSub", "x, x", **SUM))
    assert severity == "error"
    assert text == (
        "y (iqSub): venus runs iqSub and was seen to compute something else. Quantize the model for this chip, "
        "linger.init(model, target='venus'): it then computes x + y·(−1), which is exact."
    )
    ((severity, text),) = findings("y = Relu(x)", inputs="float[1,4] x")
    assert severity == "error"
    assert text == f"y (Relu): venus runs float Relu and was seen to compute something else. {AS_INTEGERS}"
    assert findings("y = Relu(x)") == []


def test_arithmetic_of_venus_is_not_taken_elsewhere():
    assert findings(node("iqSigmoid", **CURVE, platform="arcs"), "arcs") == []
    severity, text = only_finding(node("iqSigmoid", **CURVE), target="arcs")
    assert severity == "error"
    assert text == (
        "y (iqSigmoid): the node computes as venus does, not as arcs. "
        "Quantize the model for this chip: linger.init(model, target='arcs')."
    )


def test_standard_nodes_name_no_chip():
    severity, text = only_finding('y = Relu<platform="arcs">(x)', target="arcs")
    assert severity == "error"
    assert text == (
        "y (Relu): a standard node with the attribute 'platform', at which the packer stops. "
        "Export again with linger.onnx.export(…, target='arcs'), which writes none."
    )
    assert findings(node("Relu", platform="arcs"), "arcs") == []


def untried(target, body=None, **model):
    body = body or node("iqVar", dim=2, scale_x=16.0, scale_o=16.0, platform=target)
    found = target_findings(model_of(body, w=(1,), **model), TARGETS[target])
    return [(f.severity, str(f)) for f in found]


def test_ops_that_nobody_has_compared_are_said():
    quotient = "c = Constant<value = int8 {4}>() " + node("iqDiv", "x, c", **SUM, platform="arcs")
    assert untried("arcs", quotient)[-1:] == [
        (
            "warning",
            "y (iqDiv): nobody has compared iqDiv with what arcs computes. Compare a few outputs on the chip.",
        )
    ]
    assert untried("arcs")[-1:] == [
        (
            "error",
            "y (iqVar): arcs runs iqVar and was seen to compute something else. No exact form is known. "
            "Compute it outside of the model.",
        )
    ]


def test_ops_that_nobody_has_compared_are_refused_by_venusA():
    assert untried("venusA")[-1:] == [
        (
            "error",
            "y (iqVar): not tried: nobody has compared iqVar with what venusA computes. No exact form is known. "
            "Compute it outside of the model.",
        )
    ]
    model = model_of(
        node("iqVar", dim=2, scale_x=16.0, scale_o=16.0, platform="venusA", quant_mode="floor_add"), w=(1,)
    )
    assert [f.rule for f in target_findings(model, TARGETS["venusA"])] == ["LGR904"]


def test_ops_on_real_numbers_are_compared_on_their_own():
    assert untried("venusA", "y = Relu(x)", inputs="float[1,4] x") == [
        (
            "error",
            f"y (Relu): not tried: nobody has compared float Relu with what venusA computes. {AS_INTEGERS}",
        )
    ]


@pytest.mark.parametrize(
    "body",
    [
        'y = my.Conv2dInt<kernel_shape = "abc">(x)',
        "y = my.MaxPool<kernel_shape = 3>(x)",
        "y = my.Unsqueeze<axes = 3>(x)",
        "y = my.LinearInt(x)",
    ],
)
@pytest.mark.parametrize("target", ["venus", "arcs"])
def test_nodes_of_other_domains_are_nobodys(body, target):
    model = parse(body, inputs="int8[1,8,16,16] x", outputs="y", domains=', "my": 1', opset=12)
    errors = [f for f in target_findings(model, TARGETS[target]) if f.rule == "LGR902"]
    assert [f.reason.startswith(f"{target}'s packer has no my::") for f in errors] == [True]


@pytest.mark.parametrize("kind", ["float", "float16", "double"])
def test_every_float_is_one(kind):
    ((severity, text),) = findings("y = Relu(x)", inputs=f"{kind}[1,8,4,4] x")
    assert (severity, "venus runs float Relu and was seen to compute something else" in text) == ("error", True)


EXPONENTS = {"exponents_w": [0, 1, 2, 0, 0, 0, 0, 3]}
UNSIGNED = {"o_unsigned": 1}


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
@pytest.mark.parametrize(
    ("extensions", "said"),
    [
        (EXPONENTS, "the attribute exponents_w"),
        (UNSIGNED, "the attribute o_unsigned"),
        (EXPONENTS | UNSIGNED, "the attribute exponents_w, the attribute o_unsigned"),
    ],
    ids=["channels", "unsigned", "both"],
)
def test_numbers_that_a_chip_does_not_have(extensions, said, target):
    body = node("Conv2dInt", "x, w", **WIDTHS, **WINDOW, **extensions)
    found = [f for f in target_findings(model_of(body, w=(8, 8, 3, 3)), TARGETS[target]) if f.rule == "LGR956"]
    assert [(f.severity, f.reason) for f in found] == [("error", f"{said}, of numbers that {target} does not have")]
    assert found[0].remedy == f"Quantize the model for this chip: linger.init(model, target='{target}')."


def test_defaults_of_numbers_and_real_bytes_are_no_extension():
    body = node("Conv2dInt", "x, w", **WIDTHS, **WINDOW, o_unsigned=0, exponents_w=0).replace("_w=0", "_w: ints=[]")
    assert "LGR956" not in [f.rule for f in target_findings(model_of(body, w=(8, 8, 3, 3)), TARGETS["arcs"])]
    floats = model_of("y = Cast<to = 1>(x)", inputs="uint8[1,8] x")
    assert "LGR956" not in [f.rule for f in target_findings(floats, TARGETS["arcs"])]


def test_a_program_is_asked_for_its_numbers_alone(tmp_path):
    body = node("Conv2dInt", "x, w", **WIDTHS, **WINDOW, **EXPONENTS, **UNSIGNED)
    model = model_of(body, w=(8, 8, 3, 3))
    assert target_findings(model, TARGETS["c"]) == target_findings(model, TARGETS["onnxruntime"]) == ()
    (tmp_path / "own.toml").write_text("is_chip = false\nper_channel = true\n")
    (found,) = target_findings(model, read_target(tmp_path / "own.toml"))
    assert (found.rule, found.reason) == ("LGR956", "the attribute o_unsigned, of numbers that own does not have")


def test_a_chip_reads_no_unsigned_bytes():
    body = node("Requant", data_bits=8, o_bits=8, scale_x=16.0, scale_o=8.0)
    for target, inputs, expected in (("arcs", "uint8", 1), ("arcs", "int8", 0), ("c", "uint8", 0)):
        found = target_findings(model_of(body, inputs=f"{inputs}[1,8] x"), TARGETS[target])
        reasons = [f.reason for f in found if f.rule == "LGR956"]
        assert reasons == ["unsigned bytes in x, of numbers that arcs does not have"] * expected
