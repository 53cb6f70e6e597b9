"""The chip's name in the nodes of a file."""

from linger.graph.passes.chip_windows import name_platform
from tests.support.chip import model_of

BODY = """q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
a = thinker.Relu(q)
b = thinker.iqSigmoid<scale_x=16.0, scale_o=128.0>(a)
c = Reshape(b, s)
y = thinker.Dequant<scale_o=128.0>(c)"""


def test_nodes_that_compute_the_same_everywhere_are_named():
    model = model_of(BODY, inputs="float[4] x", s=(2,))
    changes = name_platform(model, "arcs")
    assert changes.rows() == [("q (Quant)", "is for arcs"), ("a (Relu)", "is for arcs")]
    named = [
        (n.op_type, *(n.attributes[a].as_string() for a in ("platform", "quant_mode")))
        for n in model.graph
        if "platform" in n.attributes
    ]
    assert named == [("Quant", "arcs", "floor_add"), ("Relu", "arcs", "floor_add")]


def test_the_second_time_nothing_happens():
    model = model_of(BODY, inputs="float[4] x", s=(2,))
    name_platform(model, "arcs")
    assert len(name_platform(model, "arcs")) == 0
