"""Types and shapes of every tensor, and wrong ones put right."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.errors import GraphError
from linger.graph.core.tensor_types import type_of
from tests.support.onnx_text import checked, content, parse
from tests.support.passes import applied, complete_types, parsed


def types(model):
    return {o.name: type_of(o) for node in model.graph.all_nodes() for o in node.outputs}


def test_tensors_without_a_type_get_one():
    model = parse("a = Transpose(x)  b = Shape(a)  y = Cast<to = 6>(a)", inputs="float[2,n] x", outputs="int32[n,2] y")
    assert applied(complete_types, model) == [("g", "types or shapes added: 2")]
    assert types(model) == {"a": "float[n,2]", "b": "int64[2]", "y": "int32[n,2]"}
    checked(model)


def test_a_wrong_declaration_is_corrected_and_what_follows_from_it():
    model = parse("a = Abs(x)  b = Neg(a)  y = Exp(b)", inputs="float[3] x", outputs="float[3] y")
    first = model.graph.node(0).outputs[0]
    first.type, first.shape = ir.TensorType(ir.DataType.INT8), ir.Shape([4, 4])
    assert applied(complete_types, model) == [
        ("a", "declared as int8[4,4], corrected to float[3]"),
        ("g", "types or shapes added: 1"),
    ]
    assert types(model) == {"a": "float[3]", "b": "float[3]", "y": "float[3]"}


@pytest.mark.parametrize(
    ("declared", "now"),
    [
        pytest.param("int8[3]", "float[3]", id="type"),
        pytest.param("float[4]", "float[3]", id="size"),
        pytest.param("float[1,3]", "float[3]", id="number of axes"),
    ],
)
def test_an_output_that_contradicts_its_nodes_is_corrected(declared, now):
    model = parse("y = Neg(x)", inputs="float[3] x", outputs=f"{declared} y")
    assert complete_types(model).rows() == [("y", f"declared as {declared}, corrected to {now}")]
    assert complete_types(model).rows() == []
    checked(model)


def test_an_open_size_of_an_output_stays_open_and_a_declared_one_stays():
    model = parse(
        "a = NonZero(x)  y = Neg(x)  z = Cast<to = 1>(a)", inputs="float[3] x", outputs="float[m] y, float[1,k] z"
    )
    node = model.graph.node(0)
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([None, 7])
    applied(complete_types, model)
    assert types(model) == {"a": "int64[1,7]", "y": "float[m]", "z": "float[1,k]"}


def test_branches_and_bodies():
    model = parse(
        """a = Abs(x)
           b = If(c)<then_branch = t () => (int8[9] p) { k = Neg(a)  p = Exp(k) },
                     else_branch = e () => (float[n] q) { k = Cast<to = 6>(a)  q = Cast<to = 1>(k) }>
           y = Neg(b)""",
        inputs="float[3] x, bool c",
        outputs="float[3] y",
    )
    rows = applied(complete_types, model)
    assert ("p", "declared as int8[9], corrected to float[3]") in rows
    branches = model.graph.node(1).attributes
    assert [type_of(n.outputs[0]) for n in branches["then_branch"].as_graph()] == ["float[3]", "float[3]"]
    assert [type_of(n.outputs[0]) for n in branches["else_branch"].as_graph()] == ["int32[3]", "float[3]"]
    assert types(model)["b"] == "float[3]"


def test_dialect_nodes_are_looked_through():
    model = parse(
        """q = thinker.Quant<data_bits = 8, scale_x = 16.0>(x)  r = Reshape(q, s)
           p = thinker.Requant<data_bits = 8, o_bits = 16, scale_x = 16.0, scale_o = 4.0>(r)
           y = thinker.Dequant<scale_o = 4.0>(p)""",
        inputs="float[2,3] x",
        outputs="float[6] y",
        extra="<int64[1] s = {-1}>",
        domains=', "thinker": 1',
    )
    model.graph.node(2).outputs[0].type = ir.TensorType(ir.DataType.INT8)
    rows = applied(complete_types, model)
    assert types(model) == {"q": "int8[2,3]", "r": "int8[6]", "p": "int16[6]", "y": "float[6]"}
    assert rows[0] == ("p", "declared as int8[], corrected to int16[6]")
    assert not model.functions


def test_functions_are_looked_through():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[2,3] x) => (float[3,2] y) { a = f.turn(x)  y = Neg(a) }
        <domain: "f", opset_import: ["": 17]> turn (x) => (y) { y = Transpose(x) }"""
    )
    applied(complete_types, model, x=np.float32([[1, 2, 3], [4, 5, 6]]))
    assert types(model) == {"a": "float[3,2]", "y": "float[3,2]"}


def test_what_is_declared_of_ops_that_nobody_knows_stays_and_counts():
    model = parse("a = own.F(x)  b = Neg(a)  c = thinker.NoSuchOp(b)  y = Neg(c)", domains=', "own": 1, "thinker": 1')
    value = model.graph.node(0).outputs[0]
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([5])
    applied(complete_types, model)
    assert types(model) == {"a": "float[5]", "b": "float[5]", "c": "?[]", "y": "float[n]"}


def test_large_weights_are_not_touched():
    model = parse("y = Add(x, w)", inputs="float[1000] x", outputs="float[1000] y")
    value = ir.Value(
        name="w", const_value=ir.ExternalTensor("gone", 0, 4000, ir.DataType.FLOAT, shape=ir.Shape([1000]), name="w")
    )
    model.graph.register_initializer(value)
    model.graph.node(0).replace_input_with(1, value)
    assert applied(complete_types, model) == []
    assert isinstance(value.const_value, ir.ExternalTensor)
    assert value.const_value.location == "gone"


def test_a_file_that_contradicts_itself_keeps_what_can_be_known():
    model = parse("a = Add(x, z)  y = Neg(a)", inputs="float[3] x, int8[4] z", outputs="float[3] y")
    before = content(model)
    complete_types(model)
    assert complete_types(model).rows() == []
    assert content(model) != before  # the element type of `a` follows from its first input


def test_a_shape_without_a_type_is_not_written_down():
    """A Quant without a scale, the type of whose result nobody knows: a file would lose the shape again."""
    model = parse(
        "q = thinker.Quant<data_bits=8>(x)  s = Constant<value_ints=[3, 2]>()  r = Reshape(q, s)  y = Abs(r)",
        inputs="float[2,3] x",
        outputs="float[3,2] y, float[2,3] q",
        domains=', "thinker": 1',
    )
    complete_types(model)
    assert model.graph.node(2).outputs[0].shape is None
    model.graph.node(2).outputs[0].type = ir.TensorType(ir.DataType.INT8)
    complete_types(model)
    assert list(model.graph.node(2).outputs[0].shape) == [3, 2]


UNSORTED = {
    "a node": "y = Neg(q)  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)",
    "a branch": """q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
        y = If(c) <then_branch = t () => (float[3] a) { a = Abs(late) }, else_branch = e () => (float[3] b) { b = Neg(x) }>
        late = thinker.Dequant<scale_o=16.0>(q)""",
}


@pytest.mark.parametrize("body", UNSORTED.values(), ids=UNSORTED)
def test_nodes_out_of_order_are_refused(body):
    """Also where only a branch reads what a later node makes: onnx_ir cannot copy such a model."""
    model = parse(body, inputs="float[3] x, bool c", outputs="float[3] y", domains=', "thinker": 1')
    before = content(model)
    with pytest.raises(GraphError, match="sort_nodes"):
        complete_types(model)
    assert content(model) == before
