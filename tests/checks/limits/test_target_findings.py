"""A whole model before a chip: what ran on the engine is taken, and nothing is changed by looking."""

import pytest

from linger.checks import target_findings
from linger.graph import load
from tests.support.chip import TARGETS, model_of
from tests.support.golden import NETS, entries, model_path
from tests.support.onnx_text import content

OPTION = "venus's packer takes ConvTranspose2dInt (1 in this file) with -m params:share-mem only"
LARGE = "a window of 256 pixels may add up to 32768; above 32767 the chip's result is wrong"
WARNED = {"resnet_arcs": [("warning", LARGE)], "resnet_venus": [("warning", LARGE)]}


DOUBTED = ("layernorm_2d",)
"""A layer norm over two axes: exact in this vector and wrong in a network, so it is refused; flattened it is exact in both."""


SCRATCH = "the engine writes {} bytes of scratch, and venus's packer reserves {} for it and no more for another layer"
SHORT = {
    "layernorm_n128": (8 * 128, 4 * 128),
    "layernorm_n32": (8 * 32, 4 * 32),
    "layernorm_n64_const_row": (8 * 64, 4 * 64),
    "lstm_fwd": (40 * 12, 32 * 12),
    "lstm_h24": (40 * 24, 32 * 24),
    "lstm_rev": (40 * 16, 32 * 16),
}
"""Nodes alone, with the bytes that the engine writes and those that are reserved: exact in these vectors, where nothing live lies
behind, and wrong in networks."""


@pytest.mark.parametrize("entry", [e for e in entries() if e["case"] not in DOUBTED], ids=lambda entry: entry["case"])
def test_what_the_engine_packed_and_ran_is_taken(entry):
    found = target_findings(load(model_path(entry["case"])), TARGETS[entry.get("platform", "venus")])
    expected = [("warning", "LGR954", OPTION)] if entry["op"] == "ConvTranspose2dInt" else []
    if entry["case"] in SHORT:
        expected = [("error", "LGR928", SCRATCH.format(*SHORT[entry["case"]]))]
    assert [(f.severity, f.rule, f.reason) for f in found if f.severity != "note"] == expected


def test_every_node_that_lacks_scratch_is_a_vector():
    assert set(SHORT) <= {entry["case"] for entry in entries()}


@pytest.mark.parametrize("entry", entries(NETS), ids=lambda entry: entry["case"])
def test_a_network_that_the_engine_packed_and_ran_is_taken(entry):
    found = target_findings(load(model_path(entry["case"], NETS)), TARGETS[entry["chip"]])
    assert [(f.severity, f.reason) for f in found if f.severity != "note"] == WARNED.get(entry["case"], [])


def test_a_network_of_the_original_toolkit_is_taken(shared):
    model = load(shared / "golden" / "resnet18-12-regular.onnx")
    assert [(f.severity, str(f)) for f in target_findings(model, TARGETS["venus"])] == [
        ("note", "the file names no chip; the packer takes it for venus. Nothing is to be done.")
    ]


def test_all_findings_come_the_worst_first():
    window = "strides=[1, 1], pads=[0, 0, 0, 0], data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0"
    model = model_of(
        f"""a = thinker.AvgPool2dInt<kernel_shape=[16, 16], {window}>(x)
        b = thinker.SoftmaxInt<dim=-1, data_bits=8, o_bits=8, scale_x=16.0, scale_o=128.0>(a)
        c = thinker.Clip(b, low, high)
        d = thinker.AvgPool2dInt<kernel_shape=[13, 13], {window.replace("16.0", "128.0")}>(c)
        y = Softplus(d)""",
        inputs="int8[1,8,64,L] x",
        low=(),
        high=(),
    )
    found = target_findings(model, TARGETS["venus"])
    assert [(f.severity, f.node) for f in found] == [
        ("error", "c (Clip)"),
        ("error", "d (AvgPool2dInt)"),
        ("error", "y (Softplus)"),
        ("warning", "a (AvgPool2dInt)"),
        ("note", ""),
        ("note", ""),
        ("note", "a (AvgPool2dInt)"),
        ("note", "b (SoftmaxInt)"),
        ("note", "d (AvgPool2dInt)"),
    ]


def test_looking_changes_nothing():
    model = load(model_path("net_cnn"))
    before = content(model)
    target_findings(model, TARGETS["arcs"])
    assert content(model) == before


def test_ops_that_linger_does_not_know_are_still_judged():
    model = model_of("a = thinker.NoSuchOp(x) y = thinker.Clip(a, low, high)", low=(), high=())
    found = target_findings(model, TARGETS["venus"])
    assert [f.node for f in found if f.severity == "error"] == ["a (NoSuchOp)", "y (Clip)"]
    assert [f.rule for f in found if f.severity != "error"] == ["LGR903", "LGR951"]


def test_nodes_of_branches_are_judged():
    model = model_of(
        """c = Constant<value = bool {1}>()
        y = If(c)<then_branch = t () => (p) { p = Softplus(x) }, else_branch = e () => (q) { q = Neg(x) }>""",
        inputs="float[4] x",
    )
    assert {"y/then_branch/p (Softplus)", "y/else_branch/q (Neg)"} <= {
        f.node for f in target_findings(model, TARGETS["venus"])
    }


def test_newer_names_are_judged_as_the_ops_that_the_packer_takes_them_for():
    pool = 'platform="venus", quant_mode="floor_add", x_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0'
    model = model_of(
        f"""a = linger.QAvgPool2d<kernel_shape=[13, 13], strides=[1, 1], pads=[0, 0, 0, 0], {pool}>(x)
        b = linger.QGlobalAveragePool2d<{pool}>(x)
        c = linger.QGLU<dim=1, {pool}>(x)
        d = linger.QGelu<{pool}>(x)
        y = Concat(a, b, c, d)""",
        inputs="int8[1,8,16,16] x",
        w=(1,),
    )
    before = content(model)
    found = [(f.severity, f.node, f.reason) for f in target_findings(model, TARGETS["venus"])]
    assert ("error", "", "venus's packer refuses files of the domain 'linger'") in found
    assert ("error", "b (QGlobalAveragePool2d)", "venus's packer does not know the name QGlobalAveragePool2d") in found
    assert ("error", "c (QGLU)", "venus's packer has no QGLU") in found
    assert [text for text in found if text[1].startswith("d ")] == [
        ("error", "d (iqGelu)", "venus's packer has no iqGelu")
    ]
    assert any(node == "a (AvgPool2dInt)" and "a window of 169 pixels" in reason for _, node, reason in found)
    assert content(model) == before


def test_an_error_is_said_at_every_node_that_has_it():
    model = model_of(
        "a = thinker.Clip(x, low, high) b = thinker.Clip(a, low, high) c = Softplus(b) y = Softplus(c)", low=(), high=()
    )
    errors = [(f.node, f.reason) for f in target_findings(model, TARGETS["venus"]) if f.severity == "error"]
    assert [node for node, _ in errors] == ["a (Clip)", "b (Clip)", "c (Softplus)", "y (Softplus)"]
    assert errors[0][1] == errors[1][1]
    assert errors[2][1] == errors[3][1]


def test_an_op_that_nobody_has_compared_is_said_once():
    scales = "scale_x=16.0, scale_y=16.0, scale_o=16.0"
    quotient = f"a = thinker.iqDiv<{scales}>(x, k) b = thinker.iqDiv<{scales}>(a, k)"
    model = model_of(f"k = Constant<value = int8 {{4}}>() {quotient} c = Shape(b) y = Shape(c)")
    found = [f for f in target_findings(model, TARGETS["arcs"]) if "nobody has compared" in f.reason]
    assert [(f.rule, f.node) for f in found] == [("LGR904", "a (iqDiv)"), ("LGR904", "c (Shape)")]


def test_an_op_that_nobody_has_compared_is_refused_once():
    var = "thinker.iqVar<data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0>"
    model = model_of(f"a = {var}(x) b = {var}(a) c = Shape(b) y = Shape(c)")
    found = [f for f in target_findings(model, TARGETS["venusA"]) if "nobody has compared" in f.reason]
    assert [(f.severity, f.rule, f.node) for f in found] == [
        ("error", "LGR904", "a (iqVar)"),
        ("error", "LGR904", "c (Shape)"),
    ]
