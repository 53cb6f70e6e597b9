"""Arguments of torch ops as inputs and attributes."""

import onnx_ir as ir
import pytest
import torch

from linger.errors import UnsupportedError, UsageError
from linger.onnx.operators.bodies import (
    UNKNOWN,
    ArgumentMap,
    TorchSignature,
    choose,
    signature_of_function,
    signatures_of,
)
from tests.support.custom_ops import Doubling, register_scale


@pytest.fixture
def scale():
    library = register_scale()
    (signature,) = signatures_of("mylib::scale")
    yield signature
    library._destroy()


def same(value):
    return value


def written(wanted, signature, given):
    """The attributes by name: numbers, strings, lists."""
    return {
        a.name: list(a.value) if isinstance(a.value, tuple) else a.value
        for a in wanted.attributes_of(signature, given, same)
    }


def test_schema_tells_what_each_argument_holds(scale):
    assert dict(scale.kinds) == {
        "x": "tensor",
        "shift": "tensor",
        "factor": "float",
        "power": "int",
        "is_odd": "bool",
        "sizes": "int",
        "levels": "float",
        "mode": "str",
        "axis": "int",
        "dtype": "",
    }
    assert scale.defaults["factor"] == 2.0
    assert scale.output_count == 1


def test_overloads_that_do_not_make_tensors_do_not_count():
    assert [s.name for s in signatures_of("aten::asinh")] == ["aten::asinh"]
    assert [s.name for s in signatures_of("aten::add")] == ["aten::add.Tensor", "aten::add.Scalar"]
    assert [s.name for s in signatures_of("aten::add.Tensor")] == ["aten::add.Tensor"]


def test_unknown_op_has_no_signature():
    assert signatures_of("aten::no_such_op") == []
    assert signatures_of("nolib::scale") == []
    assert signatures_of("aten::add.no_such_overload") == []


def test_forward_of_an_autograd_function_is_its_signature():
    found = signature_of_function(Doubling)
    assert dict(found.kinds) == {"x": UNKNOWN, "times": UNKNOWN, "offsets": UNKNOWN}
    assert found.defaults == {"offsets": ()}


def test_autograd_function_with_setup_context_has_no_context_argument():
    class Modern(torch.autograd.Function):
        @staticmethod
        def forward(x, power):
            return x**power

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    assert list(signature_of_function(Modern).kinds) == ["x", "power"]


def test_what_a_call_gives_as_value_is_a_tensor():
    found = signature_of_function(Doubling).resolve(
        {"x": "value", "times": 2, "offsets": ()}, lambda v: isinstance(v, str)
    )
    assert dict(found.kinds) == {"x": "tensor", "times": "number", "offsets": "number"}


def test_default_map_takes_tensors_as_inputs_and_the_rest_as_attributes(scale):
    everything = ArgumentMap(None, None)
    assert everything.input_names(scale) == ("x", "shift")
    assert list(everything.attribute_sources(scale)) == [
        "factor",
        "power",
        "is_odd",
        "sizes",
        "levels",
        "mode",
        "axis",
    ]
    with_input = ArgumentMap(("x", "factor"), None)
    assert "factor" not in with_input.attribute_sources(scale)


def test_attributes_are_numbers_strings_and_lists(scale):
    given = {"factor": 3, "power": 2, "is_odd": True, "sizes": (4, 5), "levels": [1, 2.5], "mode": "m", "axis": None}
    found = written(ArgumentMap(None, None), scale, given)
    assert found == {"factor": 3.0, "power": 2, "is_odd": 1, "sizes": [4, 5], "levels": [1.0, 2.5], "mode": "m"}
    assert isinstance(found["factor"], float)
    assert isinstance(found["is_odd"], int)
    assert not isinstance(found["is_odd"], bool)


def test_attribute_may_be_renamed_joined_or_constant(scale):
    sources = {
        "gain": "factor",
        "pair": ["power", "axis"],
        "alpha": 0.5,
        "pads": [0, 1],
        "coordinates": b"half_pixel",
        "flag": True,
        "none": [],
    }
    wanted = ArgumentMap(("x",), sources)
    assert wanted.named() == ["x", "factor", "power", "axis"]
    given = {"factor": 2.0, "power": 3, "axis": 1}
    assert written(wanted, scale, given) == {
        "gain": 2.0,
        "pair": [3, 1],
        "alpha": 0.5,
        "pads": [0, 1],
        "coordinates": "half_pixel",
        "flag": 1,
        "none": [],
    }
    assert "pair" not in written(wanted, scale, given | {"axis": None})


def test_attribute_that_is_computed_is_refused(scale):
    def read(value):
        raise UnsupportedError("computed")

    with pytest.raises(UnsupportedError, match=r"mylib::scale: argument 'power' is computed while the model runs"):
        ArgumentMap(None, {"power": "power"}).attributes_of(scale, {"power": object()}, read)


@pytest.mark.parametrize("value", [[[1], [2]], {"a": 1}, torch.float32], ids=["nested", "dict", "dtype"])
def test_what_onnx_has_no_attribute_for_is_refused(scale, value):
    with pytest.raises(
        UsageError, match=r"attribute 'power' cannot be .* An attribute is a number, a string or a list"
    ):
        ArgumentMap(None, {"power": "power"}).attributes_of(scale, {"power": value}, same)


def test_tensor_becomes_a_list(scale):
    assert written(ArgumentMap(None, {"power": "power"}), scale, {"power": torch.tensor([1, 2])}) == {"power": [1, 2]}


def test_empty_list_has_the_kind_of_its_argument(scale):
    wanted = ArgumentMap(None, {"levels": "levels", "sizes": "sizes"})
    levels, sizes = wanted.attributes_of(scale, {"levels": [], "sizes": []}, same)
    assert (levels.type, sizes.type) == (ir.AttributeType.FLOATS, ir.AttributeType.INTS)


def test_signature_is_chosen_by_the_number_of_arguments():
    one, two = TorchSignature("f.one", {"x": "tensor"}), TorchSignature("f.two", {"x": "tensor", "y": "tensor"})
    assert choose("f", [one, two], 2) is two
    with pytest.raises(UnsupportedError, match=r"f: called with 3 arguments; .* f.one\(x\), f.two\(x, y\)"):
        choose("f", [one, two], 3)
