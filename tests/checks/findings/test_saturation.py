"""Which products saturate on x64 without VNNI: as ONNX Runtime's optimised graph has them."""

import pytest

from linger.checks.findings.node_places import CheckedModel
from linger.checks.findings.qdq import saturation_findings
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
    found = list(saturation_findings(CheckedModel.of(model)))
    assert [(f.rule, f.node) for f in found] == ([("LGR703", "p (MatMul)")] if is_found else [])


@pytest.mark.parametrize(("kind", "count"), [("uint8", 1), ("int8", 0)])
def test_integer_products_of_the_file_itself(kind, count):
    model = parse("y = MatMulInteger(x, w)", inputs=f"{kind}[2,2] x, int8[2,2] w", outputs="int32[2,2] y")
    found = list(saturation_findings(CheckedModel.of(model)))
    assert len(found) == count
    assert all("VNNI" in f.reason and "reduce_range" in f.remedy for f in found)
