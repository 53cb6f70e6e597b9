"""What inference says, whatever is declared."""

import onnx_ir as ir

from linger.graph.passes.declared_types import inferred_types, keyed_graphs
from tests.support.onnx_text import content, parse


def test_declarations_are_not_believed_and_the_model_stays():
    model = parse("a = Abs(x)  y = Neg(a)", inputs="float[3] x", outputs="int8[7,7] y")
    model.graph.node(0).outputs[0].type = ir.TensorType(ir.DataType.BOOL)
    before = content(model)
    found = inferred_types(model)
    assert {name: (t.type.dtype.name, list(t.shape)) for (_, name), t in found.items()} == {
        "a": ("FLOAT", [3]),
        "y": ("FLOAT", [3]),
    }
    assert content(model) == before


def test_sizes_that_inference_makes_up_are_open():
    model = parse("a = NonZero(x)  y = Cast<to = 1>(a)", inputs="float[3] x", outputs="float[1,k] y")
    shape = inferred_types(model)[(), "a"].shape
    assert shape[0] == 1
    assert shape[1].value is None


def test_graphs_are_told_apart_by_where_they_lie():
    model = parse(
        """y = If(c)<then_branch = t () => (float[n] p) { p = Neg(x) },
                     else_branch = e () => (float[n] p) { q = Cast<to = 3>(x)  p = Cast<to = 1>(q) }>""",
        inputs="float[3] x, bool c",
        outputs="float[3] y",
    )
    keys = [key for key, _ in keyed_graphs(model.graph)]
    assert keys == [(), (("y", "then_branch"),), (("y", "else_branch"),)]
    found = inferred_types(model)
    assert found[keys[2], "q"].type.dtype == ir.DataType.INT8
    assert list(found[keys[1], "p"].shape) == [3]


def test_element_types_remain_where_no_shape_follows():
    model = parse(
        "a = own.F(x)  b = thinker.NoSuchOp(a)  c = Cast<to = 3>(b)  y = Cast<to = 1>(c)",
        domains=', "own": 1, "thinker": 1',
    )
    found = inferred_types(model)
    assert found[(), "c"].type.dtype == ir.DataType.INT8
    assert ((), "b") not in found


def test_nodes_of_the_newer_dialect_are_looked_through():
    body = "q = linger.Quant<data_bits=8, scale_x=16.0>(x)  s = linger.Squeeze<axes=[0]>(q)  y = linger.Dequant<scale_o=16.0>(s)"
    found = inferred_types(parse(body, inputs="float[1,3] x", outputs="float[3] y", domains=', "linger": 1'))
    assert {name: (found[(), name].type.dtype.name, list(found[(), name].shape)) for name in ("q", "s", "y")} == {
        "q": ("INT8", [1, 3]),
        "s": ("INT8", [3]),
        "y": ("FLOAT", [3]),
    }


def test_elements_that_inference_leaves_undefined_are_unknown():
    """The zero point, and so the type of q, comes from an op that nobody knows; the shape is that of x."""
    model = parse(
        "z = com.Thing(x)  q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s)",
        inputs="float[3] x, float s",
        outputs="float[3] y",
        domains=', "com": 1',
    )
    found = inferred_types(model)[(), "q"]
    assert (found.type, list(found.shape)) == (None, [3])


def test_a_name_that_standard_onnx_does_not_have_is_not_guessed_at():
    model = parse(
        "a = iqAdd(x, b)  y = Cast<to = 1>(a)",
        inputs="float[3] x, int8[3] b",
        outputs="float[3] y",
        extra="<int8[3] a>",
    )
    assert inferred_types(model)[(), "a"].type.dtype == ir.DataType.INT8  # as it is declared
    model.graph.node(0).outputs[0].type = None
    assert ((), "a") not in inferred_types(model)


def test_a_sequence_is_not_taken_for_a_tensor():
    """A scalar cannot be split, so inference fails; what is split is a sequence all the same."""
    model = parse(
        "p = SplitToSequence<axis = 0>(x)  y = ConcatFromSequence<axis = 0>(p)", inputs="float x", outputs="float[n] y"
    )
    assert ((), "p") not in inferred_types(model)


def test_what_the_ops_only_suggest_is_not_sure():
    """A Quant without a scale has no body to look through; what its other attributes say is still a hint."""
    model = parse("q = thinker.Quant<data_bits=8>(x)  y = thinker.Dequant<scale_o=16.0>(q)  z = Neg(x)",
                  inputs="float[3] x", outputs="float[3] y, float[3] z", domains=', "thinker": 1')  # fmt: skip
    found = inferred_types(model)
    assert found[(), "z"].is_sure
    assert not any(entry.is_sure for (_, name), entry in found.items() if name in "qy")
