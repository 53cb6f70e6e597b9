"""Equal weights become one; weights elsewhere are not even read."""

import numpy as np
import onnx_ir as ir

from tests.support.onnx_text import parse, printed
from tests.support.passes import applied, merge_initializers

X = np.float32([-1, 2, 3])


def test_equal_bits_of_equal_type_and_shape_become_one():
    model = parse(
        "a = Add(x, u)  b = Add(a, v)  c = Add(b, w)  d = Add(c, s)  y = Add(d, z)",
        extra="<float[1] u = {1}, float[1] v = {1}, float w = {1}, float[1] s = {0}, float[1] z = {-0.0}>",
    )
    assert applied(merge_initializers, model, x=X) == [("v", "initializer merged with u, which holds the same")]
    assert list(model.graph.initializers) == ["u", "w", "s", "z"]
    assert printed(model)[1] == "b=Add(a,u)"


def test_large_tensors_are_told_apart_by_their_last_number():
    model = parse("a = Add(x, u)  b = Add(a, v)  y = Add(b, w)", inputs="float[1000] x", outputs="float[1000] y")
    numbers = np.zeros(1000, np.float32)
    other = numbers.copy()
    other[-1] = 1
    for name, content in (("u", numbers), ("v", numbers.copy()), ("w", other)):
        value = ir.Value(name=name, const_value=ir.tensor(content, name=name))
        model.graph.register_initializer(value)
        for node in model.graph:
            for index, used in enumerate(node.inputs):
                if used.name == name:
                    node.replace_input_with(index, value)
    applied(merge_initializers, model, x=other)
    assert list(model.graph.initializers) == ["u", "w"]


def test_an_output_stays_and_takes_the_others():
    model = parse(
        "a = Add(x, u)  y = Add(a, v)", outputs="float[n] y, float[1] v", extra="<float[1] u = {1}, float[1] v = {1}>"
    )
    applied(merge_initializers, model, x=X)
    assert printed(model) == ["a=Add(x,v)", "y=Add(a,v)"]


def test_inputs_with_a_default_and_parameters_of_qdq_nodes_stay():
    model = parse(
        "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, t, k)  a = Add(d, u)  y = Add(a, v)",
        inputs="float[n] x, float[1] u",
        extra="<float s = {1}, float t = {1}, int8 z = {0}, int8 k = {0}, float[1] u = {1}, float[1] v = {1}>",
    )
    assert applied(merge_initializers, model) == []


def test_tensors_in_other_files_are_not_read():
    model = parse("a = Add(x, u)  y = Add(a, v)", extra="<float[1] u = {1}, float[1] v = {1}>")
    for value in model.graph.initializers.values():
        value.const_value = ir.ExternalTensor(
            "no/such/file", 0, 4, ir.DataType.FLOAT, shape=ir.Shape([1]), name=value.name
        )
    assert merge_initializers(model).rows() == []


def test_strings_too():
    model = parse("y = Neg(x)")
    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        tensor = ir.StringTensor([text.encode()], shape=ir.Shape([1]), name=name)
        model.graph.register_initializer(ir.Value(name=name, const_value=tensor))
    applied(merge_initializers, model)
    assert list(model.graph.initializers) == ["a", "c"]
