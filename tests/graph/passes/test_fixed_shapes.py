"""Shapes that are computed from fixed sizes become constants."""

import onnx
import onnx_ir as ir
import pytest

from linger.graph.passes.constants import fix_shapes


def fixed(text):
    model = ir.from_proto(onnx.parser.parse_model(text))
    count = len(fix_shapes(model))
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return count, {n.op_type: n for n in model.graph}


def test_every_kind_of_shape_arithmetic_by_hand():
    # of (2, 12): 12 / 4 = 3, 2 · 3 = 6, so (6, -1)
    count, nodes = fixed(
        """<ir_version: 8, opset_import: ["": 15]> g (float[2,12] x) => (float[a,b] y) {
            s = Shape(x)
            last = Shape<start = 1>(x)
            four = Constant<value = int64[1] {4}>()
            three = Div(last, four)
            zero = Constant<value = int64[1] {0}>()
            two = Gather(s, zero)
            six = Mul(two, three)
            minus = Constant<value = int64[1] {-1}>()
            wanted = Concat<axis = 0>(six, minus)
            y = Reshape(x, wanted)
        }"""
    )
    assert count == 1
    assert set(nodes) == {"Constant", "Reshape"}
    assert nodes["Reshape"].inputs[1].producer().attributes["value"].as_tensor().numpy().tolist() == [6, -1]


def test_numbers_that_are_no_shape_stay():
    count, nodes = fixed(
        """<ir_version: 8, opset_import: ["": 15]> g (float[2,n] x) => (float[2,n] y, int64[2] z) {
            a = Constant<value = float[1] {2.0}>()
            b = Constant<value = float[1] {3.0}>()
            c = Mul(a, b)
            y = Mul(x, c)
            z = Shape(x)
        }"""
    )
    assert count == 0
    assert set(nodes) == {"Constant", "Mul", "Shape"}


@pytest.mark.parametrize(
    "making",
    [
        "n = Constant<value = int64[2] {1000000000, 1000000000}>() big = ConstantOfShape(n)",
        "n = Constant<value = int64[2] {1000000000, 1000000000}>() o = Constant<value = int64[1] {1}>() big = Expand(o, n)",
        "a = Constant<value = int64 {0}>() e = Constant<value = int64 {1000000000000}>() s = Constant<value = int64 {1}>() "
        "big = Range(a, e, s)",
        "a = Constant<value = int64 {0}>() s = Constant<value = int64 {0}>() big = Range(a, a, s)",
        "a = Constant<value = int64[2] {1, 2}>() b = Constant<value = int64[3] {1, 2, 3}>() big = Add(a, b)",
    ],
    ids=["huge tensor", "huge expansion", "long range", "endless range", "shapes that do not fit"],
)
def test_what_cannot_be_a_shape_is_left_alone(making):
    text = f'<ir_version: 8, opset_import: ["": 15]> g (float[n] x) => (float[m] y) {{ {making} y = Reshape(x, big) }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert len(fix_shapes(model)) == 0


def test_a_name_that_is_taken_is_not_taken_again():
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 15]> g (float[2,12] x) => (float[a,b] y, float[c,d] z) {
            s = Shape(x)
            y = Reshape(x, s)
            other = Relu(x)
            z = Reshape(other, s)
        }"""
    )
    (relu,) = (node for node in model.graph if node.op_type == "Relu")
    relu.outputs[0].name = "s.fixed"
    assert len(fix_shapes(model)) == 1
    assert list(model.graph)[-1].inputs[1].name == "s.fixed_1"


def test_a_chain_of_reshapes_needs_one_inference(monkeypatch):
    from linger.graph.passes import constants as fixed_shapes

    asked = []
    known = fixed_shapes.known_tensors
    monkeypatch.setattr(fixed_shapes, "known_tensors", lambda model: asked.append(1) or known(model))
    constants = "zero = Constant<value = int64[1] {0}>() minus = Constant<value = int64[1] {-1}>()"
    parts = [
        f"s{i} = Shape(x{i}) n{i} = Gather(s{i}, zero) w{i} = Concat<axis = 0>(n{i}, minus) x{i + 1} = Reshape(x{i}, w{i})"
        for i in range(20)
    ]
    text = f'<ir_version: 8, opset_import: ["": 15]> g (float[2,12] x0) => (float[a,b] x20) {{ {constants} {" ".join(parts)} }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert len(fix_shapes(model)) == 20
    assert len(asked) <= 2


def test_a_division_by_zero_is_no_shape():
    text = """<ir_version: 8, opset_import: ["": 15]> g (float[n] x) => (float[m] y) {
        a = Constant<value = int64[1] {4}>() b = Constant<value = int64[1] {0}>() s = Div(a, b) y = Reshape(x, s)
    }"""
    assert len(fix_shapes(ir.from_proto(onnx.parser.parse_model(text)))) == 0


BRANCHES = """<ir_version: 8, opset_import: ["": 15]> g (float[{batch},3] x) => (float[a,b] y) {
    s = Shape(x)
    zero = Constant<value = int64 {0}>()
    one = Constant<value = int64 {1}>()
    size = Gather(s, zero)
    is_one = Equal(size, one)
    h = If (is_one) <
        then_branch = t () => (r) { m = Neg(x) r = Relu(m) },
        else_branch = e () => (r) { r = Identity(x) }
    >
    y = If (is_one) <
        then_branch = u () => (r) { m = Neg(h) r = Abs(m) },
        else_branch = f () => (r) { r = Identity(h) }
    >
}"""


def test_the_branch_that_a_size_decides_takes_the_place_of_its_if():
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    for batch, kinds in ((1, {"Neg", "Relu", "Abs", "Identity"}), (2, {"Identity"})):
        model = ir.from_proto(onnx.parser.parse_model(BRANCHES.replace("{batch}", str(batch))))
        x = {"x": np.array([[1.0, -2.0, 3.0]] * batch, np.float32)}
        before = ReferenceEvaluator(ir.to_proto(model)).run(None, x)
        fix_shapes(model)
        after = ir.to_proto(model)
        onnx.checker.check_model(after, full_check=True)
        assert {n.op_type for n in model.graph} - {"Constant"} == kinds
        assert [o.name for o in after.graph.output] == ["y"]
        np.testing.assert_array_equal(ReferenceEvaluator(after).run(None, x), before)
    open_size = ir.from_proto(onnx.parser.parse_model(BRANCHES.replace("{batch}", "n")))
    assert len(fix_shapes(open_size)) == 0
    assert "If" in {n.op_type for n in open_size.graph}
