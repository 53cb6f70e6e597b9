"""What rounding explains."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.onnx.comparison import count_roundings, rounding_tolerance


def model(text):
    return ir.from_onnx_text(f'<ir_version: 8, opset_import: ["": 13, "f": 1]> {text}')


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) { y = Conv (x, w) }", 27),
        ("(float[1,3,8,8] x, float[3,4,2,2] w) => (float[1,4,9,9] y) { y = ConvTranspose (x, w) }", 12),
        ("(float[2,5] x, float[5,7] w) => (float[2,7] y) { y = MatMul (x, w) }", 5),
        ("(float[2,5] x, float[7,5] w) => (float[2,7] y) { y = Gemm <transB = 1> (x, w) }", 5),
        ("(float[2,5] x, float[5,7] w) => (float[2,7] y) { y = Gemm (x, w) }", 5),
        ("(float[2,5] x, float[5] w) => (float[2] y) { y = MatMul (x, w) }", 5),
        ("(float[1,4,6,6] x) => (float[1,4,1,1] y) { y = GlobalAveragePool (x) }", 36),
        ("(float[n,5] x, float[m,k] w) => (float[n,k] y) { y = MatMul (x, w) }", 1),
        ("(float[3] x) => (float[3] y) { a = Exp (x)  y = Neg (a) }", 2),
        ("(float[3] x) => (float[3] x) { }", 1),
    ],
    ids=["conv", "transposed", "matmul", "gemm_turned", "gemm", "vector", "pool", "open", "two_nodes", "nothing"],
)
def test_every_node_and_every_term_counts(body, expected):
    assert count_roundings(model(f"g {body}")) == expected


def test_nodes_inside_functions_and_branches_count():
    text = """g (float[3] x, bool c) => (float[3] y) {
        z = f.twice (x)
        y = If (c) <then_branch = a () => (float[3] p) { p = Neg (z) }, else_branch = b () => (float[3] q) { q = Abs (z) }>
    }
    <domain: "f", opset_import: ["": 13]> twice (a) => (b) { c = Add (a, a)  b = Identity (c) }"""
    assert count_roundings(model(text)) == 5  # two in the function, the If, one in each branch


def test_bound_grows_with_the_root_and_shrinks_with_the_type():
    assert rounding_tolerance(1, np.float32) == 16 * 2.0**-24
    assert rounding_tolerance(100, np.float32) == 160 * 2.0**-24
    assert rounding_tolerance(4, np.float64) == 32 * 2.0**-53
    assert rounding_tolerance(9, np.int32) == 0
    assert rounding_tolerance(9, np.bool_) == 0


def test_bound_holds_for_sums_in_another_order(draw):
    for terms in (10, 100, 1000):
        values = draw.standard_normal((200, terms)).astype(np.float32)
        one_way = np.cumsum(values, axis=1, dtype=np.float32)[:, -1]
        other_way = np.cumsum(values[:, ::-1], axis=1, dtype=np.float32)[:, -1]
        limit = rounding_tolerance(terms, np.float32) * np.abs(one_way).max()
        assert np.abs(one_way - other_way).max() <= limit
