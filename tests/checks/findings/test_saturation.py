"""Which products saturate on x64 without VNNI: as ONNX Runtime's optimized graph has them."""

import onnx
import onnx_ir as ir
import pytest

from tests.support.findings import findings_of
from tests.support.kernels import mixed_products
from tests.support.onnx_text import parse

LAYER = "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  v = DequantizeLinear(w, s, k)  p = MatMul(d, v)"
BEHIND = "r = QuantizeLinear(p, s, z)  y = DequantizeLinear(r, s, z)"


def layer(body=f"{LAYER}  {BEHIND}", kind="int8", weights="int8", largest=127):
    numbers = f"{kind} z = {{0}}, {weights} k = {{0}}, {weights}[2,2] w = {{{largest}, 1, 1, 2}}"
    extra = f"<float s = {{0.5}}, {numbers}, float t = {{0.25}}, int8 m = {{-128}}>"
    return parse(body, inputs="float[n,2] x", outputs="float[n,2] y", extra=extra)


@pytest.mark.parametrize(
    ("model", "is_found"),
    [
        pytest.param(layer(), True, id="int8"),
        pytest.param(layer(kind="uint8"), True, id="uint8"),
        pytest.param(layer(largest=64), False, id="weights within 64"),
        pytest.param(layer(kind="uint8", weights="uint8"), False, id="unsigned weights"),
        pytest.param(
            layer(f"{LAYER}  r = QuantizeLinear(p, s, m)  y = DequantizeLinear(r, s, z)"),
            False,
            id="zero points differ",
        ),
        pytest.param(layer("v = DequantizeLinear(w, s, k)  y = MatMul(x, v)"), False, id="float data"),
    ],
)
def test_findings_are_the_kernels_that_onnx_runtime_chooses(model, is_found):
    assert bool(mixed_products(model, "ENABLE_ALL")) == is_found
    found = findings_of("saturation", model)
    assert [(f.rule, f.node) for f in found] == ([("LGR703", "p (MatMul)")] if is_found else [])


@pytest.mark.parametrize(("kind", "count"), [("uint8", 1), ("int8", 0)])
def test_integer_products_of_the_file_itself(kind, count):
    model = parse("y = MatMulInteger(x, w)", inputs=f"{kind}[2,2] x, int8[2,2] w", outputs="int32[2,2] y")
    found = findings_of("saturation", model)
    assert len(found) == count
    assert all("VNNI" in f.reason and "reduce_range" in f.remedy for f in found)


@pytest.mark.parametrize(
    ("before", "count"),
    [
        pytest.param("d = Clip(x, , small)", 0, id="limited to 127"),
        pytest.param("d = Clip(x, , large)", 1, id="limited to 128"),
        pytest.param("d = Clip(x, small)", 1, id="not limited above"),
        pytest.param(
            "a = Clip(x, , small)  b = Transpose<perm = [0, 1]>(a)  d = Concat<axis = 0>(b, a)", 0, id="moved"
        ),
        pytest.param("a = Clip(x, , small)  d = Concat<axis = 0>(x, a)", 1, id="joined with other data"),
        pytest.param("i = Cast<to = 6>(x)  d = GatherElements<axis = 0>(table, i)", 0, id="by a table"),
    ],
)
def test_data_that_cannot_saturate(before, count):
    """2·127·128 = 32512 fits in 16 bits, 2·128·128 = 32768 does not."""
    extra = "<uint8 small = {127}, uint8 large = {128}, int8[2,2] w = {-128, -128, 127, 1}, uint8[2,2] table = {0, 127, 3, 4}>"
    model = parse(f"{before}  y = MatMulInteger(d, w)", inputs="uint8[2,2] x", outputs="int32[n,2] y", extra=extra)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))
    assert len(findings_of("saturation", model)) == count
    assert len(mixed_products(model, "ENABLE_ALL")) == count
