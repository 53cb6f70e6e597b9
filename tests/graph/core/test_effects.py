"""What may be left out, and what may be computed once."""

import pytest

from linger.graph.core.effects import Effects
from tests.support.onnx_text import parse
from tests.support.passes import parsed


@pytest.mark.parametrize(
    ("node", "has_effect", "is_random"),
    [
        pytest.param("Abs(x)", False, False, id="standard"),
        pytest.param("thinker.Foo(x)", False, False, id="dialect"),
        pytest.param("thinker.n3.Foo(x)", False, False, id="dialect's sub-domain"),
        pytest.param("com.microsoft.Gelu(x)", False, False, id="ONNX Runtime's"),
        pytest.param("com.microsoft.BiasDropout(x)", False, True, id="ONNX Runtime's random"),
        pytest.param("RandomUniformLike(x)", False, True, id="random"),
        pytest.param("own.Foo(x)", True, True, id="unknown"),
    ],
)
def test_one_node(node, has_effect, is_random):
    model = parse(f"y = {node}", domains=', "own": 1, "thinker": 1, "thinker.n3": 1, "com.microsoft": 1')
    effects = Effects(model)
    assert effects.has_effect(model.graph.node(0)) is has_effect
    assert effects.is_random(model.graph.node(0)) is is_random


def test_functions_and_branches_are_looked_into():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[n] x, bool c) => (float[n] y) {
          a = f.calm(x)  b = f.wild(x)  d = f.self(x)
          y = If(c)<then_branch = t () => (float[n] p) { p = Neg(x) }, else_branch = e () => (float[n] q) { q = f.wild(x) }> }
        <domain: "f", opset_import: ["": 17]> calm (x) => (y) { y = Abs(x) }
        <domain: "f", opset_import: ["": 17, "f": 1]> wild (x) => (y) { a = f.calm(x)  y = Bernoulli(a) }
        <domain: "f", opset_import: ["": 17, "f": 1]> self (x) => (y) { y = f.self(x) }"""
    )
    effects = Effects(model)
    assert [effects.is_random(node) for node in model.graph] == [False, True, True, True]
    assert [effects.has_effect(node) for node in model.graph] == [False, False, True, False]
