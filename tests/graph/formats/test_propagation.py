"""Types, scales and widths through whole models; contradictions are findings."""

import onnx_ir as ir
import pytest

from linger.errors import GraphError, UsageError
from linger.graph.formats.propagation import propagate
from tests.support.dialect_text import quantizing
from tests.support.onnx_text import parse


def facts(model):
    return {v.name: str(f) for v, f in propagate(model).facts.items()}


def needs(model, **arguments):
    return sorted(f"{use} <- {use.value.name}" for use in propagate(model, **arguments).missing)


def test_every_tensor_of_a_small_network():
    model = quantizing(
        "q = Q16(x) r = Relu(q) a = ADD16(q, r) w = thinker.Requant <data_bits: int = 8, o_bits: int = 16, scale_x: float = 16.0, "
        "scale_o: float = 2048.0> (a) s = thinker.iqSigmoid <scale_x: float = 2048.0, scale_o: float = 128.0> (w) i = ArgMax(s) "
        "h = Shape(s) y = DQ128(s)"
    )
    assert facts(model) == {
        "x": "float32", "q": "int8 at scale 16", "r": "int8 at scale 16", "a": "int8 at scale 16", "w": "int16 at scale 2048",
        "s": "int8 at scale 128", "i": "int64", "h": "int64", "y": "float32",
    }  # fmt: skip
    found = propagate(model)
    assert not found.findings
    assert not found.missing


def test_integer_arithmetic_that_is_no_quantization_is_left_alone():
    model = quantizing("s = Shape(x) t = Cast<to = 6>(s) u = Add(t, t) v = Cast<to = 7>(u) q = Q16(x) y = DQ16(q)")
    assert not propagate(model).missing
    assert facts(model)["u"] == "int32"


@pytest.mark.parametrize(
    ("outputs", "declared", "expected"),
    [
        ("declared", "float", True), ("declared", "int8", False), ("float", "int8", True), ("integer", "float", False),
    ],
)  # fmt: skip
def test_outputs_follow_the_policy(outputs, declared, expected):
    model = quantizing("q = Q16(x) y = Relu(q)", outputs=f"{declared}[n] y")
    assert needs(model, outputs=outputs) == (["output 'y' <- y"] if expected else [])


def test_an_output_without_a_type_becomes_real():
    assert needs(quantizing("y = Q16(x)", outputs="y")) == ["output 'y' <- y"]


def test_unsorted_nodes_are_refused_by_name():
    model = parse("y = Exp(r) r = Relu(x)")
    with pytest.raises(GraphError, match=r"y \(Exp\): it stands before r \(Relu\)"):
        propagate(model)


def test_nothing_is_changed():
    model = quantizing("q = Q16(x) d = DQ8(q) y = Exp(q)", outputs="float[n] y")
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    propagate(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match=r"'int' means nothing\. Choose one of declared, float, integer"):
        propagate(quantizing("y = Q16(x)"), outputs="int")
