"""Functions written out where they are called."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.errors import GraphError
from tests.support.lowering import attach_functions
from tests.support.onnx_text import checked, parse, printed
from tests.support.passes import applied, body_of, computed, inline_functions, parsed

X = np.float32([-1, 2, 3])
HEAD = '<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x, bool c) => (float[n] y)'
SCALE = """<domain: "f", opset_import: ["": 17]> scale <k: int = 5> (x) => (y) {
  a = Constant<value_int: int = @k>()  b = Cast<to = 1>(a)  y = Mul(x, b) }"""
FEEDS = {"x": X, "c": np.array(True)}


def test_a_call_becomes_its_nodes_and_its_attributes_are_filled_in():
    model = parsed(f"{HEAD} {{ [one] a = f.scale<k = 2>(x)  b = f.scale(a)  y = Identity(b) }} {SCALE}")
    rows = applied(inline_functions, model, **FEEDS)
    assert rows == [
        ("one (scale)", "written out: it called f::scale"),
        ("b (scale)", "written out: it called f::scale"),
    ]
    assert printed(model) == [
        "one/a=Constant<value_int:int=2>()",
        "one/b=Cast<to:int=1>(one/a)",
        "a=Mul(x,one/b)",
        "b/a=Constant<value_int:int=5>()",
        "b/b=Cast<to:int=1>(b/a)",
        "b=Mul(a,b/b)",
        "y=Identity(b)",
    ]
    assert not model.functions
    checked(model)


def test_functions_in_functions_and_in_branches():
    model = parsed(
        f"""{HEAD} {{ a = f.twice(x)
          y = If(c)<then_branch = t () => (float[n] p) {{ p = f.twice(a) }}, else_branch = e () => (float[n] q) {{ q = Neg(a) }}> }}
        {SCALE}
        <domain: "f", opset_import: ["": 17, "f": 1]> twice (x) => (y) {{ a = f.scale<k = 2>(x)  y = f.scale<k = 3>(a) }}"""
    )
    assert len(applied(inline_functions, model, **FEEDS)) == 2
    assert not model.functions
    assert {n.domain for n in model.graph.all_nodes()} == {""}
    checked(model)


def test_branches_inside_functions_capture_the_functions_tensors():
    model = parsed(
        f"""{HEAD} {{ a = f.choose(x, c)  y = f.choose(a, c) }}
        <domain: "f", opset_import: ["": 17]> choose (x, c) => (y) {{
          a = Abs(x)
          y = If(c)<then_branch = t () => (float[n] p) {{ k = Neg(a)  p = Exp(k) }}, else_branch = e () => (float[n] q) {{ q = Neg(x) }}>
        }}"""
    )
    applied(inline_functions, model, **FEEDS)
    assert "k = Neg (a/a)" in body_of(model).replace("a/k", "k").replace('"', "")
    checked(model)


def test_outputs_that_are_inputs_repeated_or_outputs_of_the_model_keep_their_names():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y, float[n] z, float[n] w) { y, z, w = f.f(x) }
        <domain: "f", opset_import: ["": 17]> f (x) => (a, x, a) { a = Abs(x) }"""
    )
    applied(inline_functions, model)  # before, ONNX Runtime refuses it
    np.testing.assert_array_equal(computed(model, {"x": X}), [np.abs(X), X, np.abs(X)])
    assert [v.name for v in (*model.graph.inputs, *model.graph.outputs)] == ["x", "y", "z", "w"]
    assert printed(model) == ["y=Abs(x)", "z=Identity(x)", "w=Identity(y)"]


def test_inputs_and_outputs_that_are_left_out():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.f(x) }
        <domain: "f", opset_import: ["": 17]> f (x, low) => (y, z) { z = Clip(x, low)  y = Neg(z) }"""
    )
    applied(inline_functions, model)  # before, ONNX Runtime refuses it
    np.testing.assert_array_equal(computed(model, {"x": X})[0], -X)
    assert printed(model) == ["y/z=Clip(x,)", "y=Neg(y/z)"]


def test_attributes_without_a_value_are_left_out():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.f(x) }
        <domain: "f", opset_import: ["": 17]> f <a> (x) => (y) { y = Elu<alpha: float = @a>(x) }"""
    )
    applied(inline_functions, model)
    assert printed(model) == ["y=Elu(x)"]


def test_domains_that_only_a_function_knew_are_imported():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.f(x) }
        <domain: "f", opset_import: ["": 17, "com.microsoft": 1]> f (x) => (y) { y = com.microsoft.Gelu(x) }"""
    )
    applied(inline_functions, model, x=X)
    assert model.graph.opset_imports["com.microsoft"] == 1


@pytest.mark.parametrize(
    ("op", "is_kept"), [pytest.param("Softmax", True, id="changed at 13"), pytest.param("Tanh", False, id="the same")]
)
def test_a_function_for_another_opset_stays_if_its_ops_changed(op, is_kept):
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) {{ y = f.f(x) }}
        <domain: "f", opset_import: ["": {11 if is_kept else 13}]> f (x) => (y) {{ y = {op}(x) }}"""
    )
    applied(inline_functions, model)
    assert bool(model.functions) is is_kept


def test_the_dialects_functions_stay_unless_asked_for():
    model = parse(
        "q = thinker.Quant<data_bits = 8, scale_x = 16.0>(x)  y = thinker.Dequant<scale_o = 16.0>(q)",
        domains=', "thinker": 1',
        opset=13,
    )
    attach_functions(model)
    assert applied(inline_functions, model, x=X) == []
    assert len(applied(lambda m: inline_functions(m, dialect=True), model, x=X)) == 2
    assert not model.functions


def test_a_function_that_calls_itself_is_named():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) { y = f.a(x) }
        <domain: "f", opset_import: ["": 17, "f": 1]> a (x) => (y) { y = f.b(x) }
        <domain: "f", opset_import: ["": 17, "f": 1]> b (x) => (y) { y = f.a(x) }"""
    )
    with pytest.raises(GraphError, match="the function f::a calls itself: f::a → f::b → f::a"):
        inline_functions(model)


def test_functions_that_would_fill_the_memory_are_refused():
    doubling = "\n".join(
        f'<domain: "f", opset_import: ["": 17, "f": 1]> d{i} (x) => (y) {{ a = f.d{i - 1}(x)  y = f.d{i - 1}(a) }}'
        for i in range(1, 40)
    )
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x) => (float[n] y) {{ y = f.d39(x) }}
        <domain: "f", opset_import: ["": 17]> d0 (x) => (y) {{ y = Neg(x) }}
        {doubling}"""
    )
    # n(i) = 2 + 2·n(i - 1) from n(0) = 1 on: n(39) = 3·2^39 - 2
    with pytest.raises(GraphError, match=r"written out, have 1649267441662 nodes; at most 2000000 are taken"):
        inline_functions(model)


def test_names_that_are_taken_get_a_number():
    model = parsed(f"{HEAD} {{ a = f.scale(x)  b = Neg(a)  y = Add(a, b) }} {SCALE}")
    model.graph.node(1).outputs[0].name = "a/a"
    model.graph.node(1).name = "a/Cast"
    applied(inline_functions, model, **FEEDS)
    assert printed(model)[:2] == ["a/a_1=Constant<value_int:int=5>()", "a/b=Cast<to:int=1>(a/a_1)"]
    assert len({n.name for n in model.graph if n.name}) == 4


def test_types_of_the_call_are_kept():
    model = parsed(f"{HEAD} {{ a = f.scale(x)  y = Neg(a) }} {SCALE}")
    model.graph.node(0).outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    inline_functions(model)
    assert model.graph.node(2).outputs[0].dtype == ir.DataType.FLOAT


def test_imports_of_functions_come_in_the_order_of_the_calls():
    calls = "  ".join(f"a{i + 1} = f.f{i}(a{i})" for i in range(8))
    functions = "\n".join(
        f'<domain: "f", opset_import: ["": 17, "own{i}": 1]> f{i} (x) => (y) {{ y = own{i}.Foo(x) }}' for i in range(8)
    )
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] a0) => (float[n] a8) {{ {calls} }}
        {functions}"""
    )
    inline_functions(model)
    assert list(model.graph.opset_imports) == ["", "f", *(f"own{i}" for i in range(8))]
