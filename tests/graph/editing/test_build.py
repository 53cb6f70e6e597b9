"""Models from scratch."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from linger import Session
from linger.errors import UsageError
from linger.graph import insert, new_model
from tests.support.onnx_text import checked, printed, run, type_of


def test_a_small_network_is_checked_and_runs(draw):
    weight, bias = draw.normal(size=(4, 3)).astype(np.float32), np.ones(4, np.float32)

    def network(g, x):
        hidden = g.Gemm(x, g.constant(weight, "fc.weight"), g.constant(bias, "fc.bias"), transB=1)
        return g.Softmax(g.Relu(hidden), axis=-1)

    model = new_model({"x": "float[n,3]"}, ["scores"], network, name="net")
    assert printed(model) == [
        "Gemm=Gemm<transB:int=1>(x,fc.weight,fc.bias)",
        "Relu=Relu(Gemm)",
        "scores=Softmax<axis:int=-1>(Relu)",
    ]
    assert type_of(model.graph.outputs[0]) == "float[n,4]"
    x = draw.normal(size=(5, 3)).astype(np.float32)
    hidden = np.exp(np.maximum(x @ weight.T + bias, 0))
    # two float32 sums of four terms and an exp: a few units in the last place
    np.testing.assert_allclose(run(model, x=x)[0], hidden / hidden.sum(1, keepdims=True), rtol=1e-5)


def test_several_inputs_and_outputs_keep_their_order():
    model = new_model(
        {"a": "float[n]", "b": "float[n]"}, ["sum", "difference"], lambda g, a, b: (g.Add(a, b), g.Sub(a, b))
    )
    got = run(model, a=np.float32([3, 4]), b=np.float32([1, 1]))
    assert [r.tolist() for r in got] == [[4, 5], [2, 3]]


@pytest.mark.parametrize(
    ("kind", "build", "expected"),
    [
        ("float[n]", lambda g, x: g.Mul(x, 2), "float"),
        ("double[n]", lambda g, x: g.Mul(x, 2.5), "double"),
        ("int64[n]", lambda g, x: g.Add(x, 1), "int64"),
        ("int8[n]", lambda g, x: g.Min(x, 1), "int8"),
        ("float[n]", lambda g, x: g.Reshape(x, [1, -1]), "int64"),
        ("float[n]", lambda g, x: g.Add(x, [1.0]), "float"),
        ("float[n]", lambda g, x: g.Clip(x, 0), "float"),
    ],
    ids=["int for float", "double", "int64", "int8", "shape", "list", "optional"],
)
def test_numbers_take_the_type_of_what_they_go_with(kind, build, expected):
    model = new_model({"x": kind}, ["y"], build)
    [constant] = model.graph.initializers.values()
    assert constant.dtype.name.lower() == expected
    checked(model)


def test_an_op_without_a_schema_takes_numbers_as_they_are():
    model = new_model(
        {"x": "float[n]"}, {"y": "float[n]"}, lambda g, x: g.op("Mine", x, 1, 0.5, _domain="my", _version=3)
    )
    assert [v.dtype for v in model.graph.initializers.values()] == [ir.DataType.INT64, ir.DataType.FLOAT]
    assert model.graph.opset_imports == {"": 17, "my": 3}


def test_attributes_take_the_kind_that_the_op_asks_for():
    def network(g, x):
        turned = g.Transpose(g.Elu(x, alpha=1), perm=np.array([1, 0]))
        return g.LeakyRelu(turned, alpha=np.float32(0.5))

    model = new_model({"x": "float[a,b]"}, ["y"], network)
    assert printed(model) == [
        "Elu=Elu<alpha:float=1>(x)", "Transpose=Transpose<perm:ints=[1,0]>(Elu)", "y=LeakyRelu<alpha:float=0.5>(Transpose)",
    ]  # fmt: skip
    checked(model)


def test_tensors_as_attributes_and_attributes_left_out():
    model = new_model({}, ["y"], lambda g: g.Constant(value=np.arange(3, dtype=np.int8), value_int=None))
    assert run(model)[0].tolist() == [0, 1, 2]


def test_an_input_or_a_tensor_returned_twice_gets_an_identity():
    def network(g, x):
        y = g.Neg(x)
        return x, y, y, g.constant(np.float32([1]))

    model = new_model({"x": "float[n]"}, ["p", "q", "r", "s"], network)
    assert printed(model) == ["q=Neg(x)", "p=Identity(x)", "r=Identity(q)", "s=Identity(constant)"]
    checked(model)


def test_a_declared_type_stands_where_none_follows():
    build = lambda g, x: g.op("Mine", x, _domain="my")  # noqa: E731
    assert type_of(new_model({"x": "float[n]"}, {"y": "int8[n]"}, build).graph.outputs[0]) == "int8[n]"
    with pytest.raises(UsageError, match=r"y: its type does not follow.*outputs=\{'y': 'float"):
        new_model({"x": "float[n]"}, ["y"], build)


def test_own_names_and_automatic_ones_do_not_meet():
    def network(g, x):
        a = g.Relu(x)  # would be called Relu, which is the name of an output
        b = g.Relu(a, _outputs=["mine"], _name="node")
        return g.Neg(b)

    model = new_model({"x": "float[n]"}, ["Relu"], network)
    assert printed(model) == ["Relu_=Relu(x)", "mine=Relu(Relu_)", "Relu=Neg(mine)"]
    assert model.graph[1].name == "node"
    checked(model)


def test_branches_see_what_is_around_them():
    def network(g, x, c):
        twice = g.Mul(x, 2.0)
        return g.If(c, then_branch=g.graph(lambda b: b.Add(twice, 1.0)), else_branch=g.graph(lambda b: twice))

    model = new_model({"x": "float[n]", "c": "bool"}, {"y": "float[n]"}, network)
    x = np.float32([1, 2])
    assert run(model, x=x, c=True)[0].tolist() == [3, 5]
    assert run(model, x=x, c=False)[0].tolist() == [2, 4]


def test_a_dialect_model_runs_in_a_session():
    def network(g, x):
        q = g.op("Quant", x, data_bits=8, scale_x=16.0, _domain="thinker")
        doubled = g.op("iqAdd", q, q, scale_x=16.0, scale_y=16.0, scale_o=8.0, _domain="thinker")
        return g.Dequant(doubled, scale_o=8.0, _domain="thinker")

    model = new_model({"x": "float[n]"}, {"y": "float[n]"}, network, opset={"": 12, "thinker": 1})
    assert Session(model).run(None, {"x": np.float32([1.0, -0.5])})[0].tolist() == [2.0, -1.0]


@pytest.mark.parametrize(("opset", "version"), [(11, 8), (18, 8), (20, 9), (22, 10), (24, 12)])
def test_the_ir_version_is_that_of_the_opset(opset, version):
    model = new_model({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(x), opset=opset)
    known = {row[2]: row[1] for row in reversed(onnx.helper.VERSION_TABLE)}
    assert model.ir_version == version == max(8, known[opset])
    run(model, x=np.float32([1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"x": "flat[n]"}, ["y"], lambda g, x: x), "x: 'flat.n.': there is no element type 'flat'"),
        (({"x": "float[n]"}, ["x"], lambda g, x: x), "x: two inputs or outputs have the same name"),
        (({"x": "float[n]"}, ["y", "y"], lambda g, x: x), "y: two inputs or outputs"),
        (({"x": "float[n]"}, ["y", "z"], lambda g, x: x), "returned 1 tensors for 2 outputs"),
        (({"x": "float[n]"}, ["y"], lambda g, x: 3), "returned int"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Rellu(x)), "Rellu: standard ONNX has no such op in opset 17. Is .*Relu"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Qqqqq(x)), "Give the domain of an op that is not standard"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(x, x)), "Relu: it takes 1 inputs, not 2"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Concat(x)), "it needs the attributes axis"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(x, _outputs=2)), "it has 1 outputs, not 2"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Add(x, np.zeros(1))), "must have one type, but x is float, .* is double"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(object())), "input 0 is object"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Relu("x")), "a new model has no tensors to name"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Elu(x, alpha=object())), "the attribute 'alpha' cannot be"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.relu(x)), "op types begin with a capital"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(g.Relu(x, _outputs=["y"]))), "y: another tensor has this name"),
        (({"x": "float[n]"}, {"y": "int8[n]"}, lambda g, x: g.Relu(x)), "it is declared as int8, but has type float"),
        (({"x": "float[2]"}, ["y"], lambda g, x: g.MatMul(x, np.ones((3, 1), np.float32))), "MatMul: it does not take the inputs x float.2."),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.constant(1, "x")), "tensor 'x': the name is in use"),
        (({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(x, _version=3)), "imports version 17 of domain '', not 3"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(arguments, message):
    with pytest.raises((UsageError, AttributeError), match=message):
        new_model(*arguments)


def test_a_model_without_a_standard_opset_has_no_standard_ops():
    with pytest.raises(UsageError, match="imports no standard opset"):
        new_model({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(x), opset={"thinker": 1})
    model = new_model({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(x, _version=17), opset={})
    assert (model.graph[0].op_type, model.graph.opset_imports) == ("Relu", {"": 17})


def test_nodes_of_a_failed_edit_are_no_users():
    model = new_model({"x": "float[n]"}, ["y"], lambda g, x: g.Relu(x))
    x = model.graph.inputs[0]

    def build(g, value):
        g.Add(g.Neg(value), value)
        assert len(x.uses()) == 3
        return g.NoSuchOp(value)

    with pytest.raises(UsageError, match="no such op"):
        insert(model, "x", build)
    assert [use.node.op_type for use in x.uses()] == ["Relu"]
