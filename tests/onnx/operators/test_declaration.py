"""What can be declared, and what a declaration makes of a call."""

import pytest
import torch

from linger.errors import UnsupportedError, UsageError
from linger.onnx.operators.bodies import ArgumentMap
from linger.onnx.operators.declaration import declare, read_source
from tests.support.custom_ops import SCALE_BODY, UNSHIFTED_BODY, Doubling, register_scale

IDENTITY = "op (x) => (y) { y = Identity (x) }"


@pytest.fixture(autouse=True)
def _scale_op():
    library = register_scale()
    yield
    library._destroy()


def made(source="mylib::scale", to="custom::op", *, inputs=None, attributes=None, body=None, opset=None):
    arguments = ArgumentMap(None if inputs is None else tuple(inputs), attributes)
    return declare(source, to, arguments, body=body, opset=opset)


def call(declaration, **given):
    (signature,) = declaration.signatures()
    values = dict.fromkeys(signature.kinds) | dict(signature.defaults) | given
    return declaration.translate(signature, values, read=lambda v: v, is_value=lambda v: isinstance(v, str))


@torch.library.custom_op("mylib2::own", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("aten::asinh", "aten::asinh"),
        ("aten::add.Tensor", "aten::add.Tensor"),
        (torch.ops.aten.asinh, "aten::asinh"),
        (torch.ops.aten.asinh.default, "aten::asinh"),
        (torch.ops.aten.add.Tensor, "aten::add.Tensor"),
        (own, "mylib2::own"),
        (Doubling, Doubling),
    ],
    ids=["name", "overload_name", "packet", "default", "overload", "custom_op", "autograd"],
)
def test_torch_op_may_be_named_in_many_ways(source, name):
    assert read_source(source) == name


@pytest.mark.parametrize(
    "source", ["asinh", torch.asinh, 3, "aten:asinh"], ids=["short", "function", "number", "colon"]
)
def test_what_is_no_torch_op_is_refused(source):
    with pytest.raises(UsageError, match=r"is no torch op\. .*torch\.library\.custom_op"):
        read_source(source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "custom:op"}, r"'custom:op' is no ONNX op"),
        ({"to": "NoSuchOp"}, r"ONNX has no op 'NoSuchOp'\. Write 'domain::NoSuchOp'"),
        ({"to": "thinker::op"}, r"the domain 'thinker' is taken"),
        ({"to": "aten::op"}, r"the domain 'aten' is taken"),
        ({"source": "aten::no_such_op"}, r"torch has no op 'aten::no_such_op'"),
        ({"inputs": ["x", "y"]}, r"there is no argument y\. The torch op is mylib::scale\(x, shift, factor"),
        ({"attributes": {"a": ["power", "strength"]}}, r"there is no argument strength"),
        ({"to": "Mul"}, r"ONNX's Mul has no attribute factor, power, .* only none"),
        ({"to": "LeakyRelu", "attributes": {"slope": "factor"}}, r"has no attribute slope, only alpha"),
        ({"to": "Mul", "attributes": {}, "body": IDENTITY}, r"ONNX defines what Mul computes"),
        (
            {"body": "op (x, z) => (y) { y = Add (x, z) }", "inputs": ["x"]},
            r"the body takes \(x, z\), the node has \(x\)",
        ),
        ({"body": "op (shift, x, z) => (y) { y = Add (x, shift) }"}, r"the node has \(x, shift\)"),
        ({"body": "op <strength> (x, shift) => (y) { y = Add (x, shift) }"}, r"the body's attribute strength"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        made(**options)


def test_op_that_is_loaded_later_can_be_declared():
    declaration = made("laterlib::op", body=IDENTITY)
    assert declaration.signatures() == []
    library = torch.library.Library("laterlib", "DEF")
    library.define("op(Tensor x) -> Tensor")
    found = [dict(s.kinds) for s in declaration.signatures()]
    library._destroy()
    assert found == [{"x": "tensor"}]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"source": "aten::asinh", "to": "Asinh"}, 9),
        ({"source": "aten::asinh", "to": "ai.onnx::Asinh"}, 9),
        ({"source": "aten::gelu", "to": "Gelu"}, 20),
        ({}, 9),
        ({"opset": 12}, 12),
        ({"body": SCALE_BODY}, 9),
        ({"body": f'<domain: "d", opset_import: ["": 15]>{SCALE_BODY}', "opset": 12}, 15),
    ],
    ids=["standard", "full_domain", "late", "own", "asked", "any", "body"],
)
def test_first_opset_is_where_the_op_begins(options, expected):
    assert made(**options).first_opset == expected


def test_call_gives_inputs_in_order_and_attributes():
    found = call(made(), x="x", shift="s", power=3)
    assert (found.domain, found.name, found.inputs) == ("custom", "op", ["x", "s"])
    assert {a.name: a.value for a in found.attributes}["power"] == 3
    assert call(made(inputs=["shift", "x"]), x="x", shift="s").inputs == ["s", "x"]


def test_missing_tensor_is_left_out_at_the_end_and_kept_in_the_middle():
    assert call(made(), x="x").inputs == ["x"]
    assert call(made(inputs=["shift", "x"]), x="x").inputs == [None, "x"]


def test_missing_tensor_chooses_the_body_without_it():
    declaration = made(body=[SCALE_BODY, UNSHIFTED_BODY])
    found = call(declaration, x="x")
    assert (found.domain, found.inputs) == ("custom.without_shift", ["x"])
    assert declaration.function("custom.without_shift", 13).domain == "custom.without_shift"
    assert call(declaration, x="x", shift="s").domain == "custom"
    assert declaration.function("elsewhere", 13) is None
    with pytest.raises(UnsupportedError, match=r"shift of mylib::scale is None in this call, and every body needs it"):
        call(made(body=SCALE_BODY), x="x")


def test_autograd_function_shows_its_tensors_only_when_called():
    declaration = made(Doubling, body=IDENTITY)
    found = call(declaration, x="x", times=2, offsets=[1.0])
    assert found.inputs == ["x"]
    assert [(a.name, a.type.name) for a in found.attributes] == [("times", "INT"), ("offsets", "FLOATS")]
    assert declaration.output_count(declaration.signatures()[0]) == 1
    with pytest.raises(UnsupportedError, match=r"the body takes 1 inputs, this call of Doubling has 2"):
        call(declaration, x="x", times="t")
