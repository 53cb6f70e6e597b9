"""Which nodes outputs and effects depend on."""

from linger.graph.core.liveness import makers, needed_nodes, with_makers
from tests.support.onnx_text import parse


def names(nodes):
    return {node.outputs[0].name for node in nodes}


def test_what_outputs_and_effects_depend_on_is_needed():
    model = parse("a = Abs(x)  y = Neg(a)  b = Exp(a)  c = Neg(b)  d = Sqrt(x)  e = own.Print(d)", domains=', "own": 1')
    needed = needed_nodes(model)
    assert names(needed) == {"a", "y", "d", "e"}
    last = next(node for node in model.graph if node.outputs[0].name == "c")
    assert names(with_makers(needed, [last])) == {"a", "y", "d", "e", "b", "c"}


def test_makers_of_tensors():
    model = parse("a = Abs(x)  y = Neg(a)")
    assert names(makers([*model.graph.inputs, None, *model.graph.outputs])) == {"y"}
