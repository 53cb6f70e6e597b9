"""Arguments of an export, checked before anything runs."""

import io
import warnings

import onnx
import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from tests.support.models import quantized

X = torch.ones(1, 3)


def export(model=None, **options):
    target = io.BytesIO()
    linger.onnx.export(model or nn.Linear(3, 2), (X,), target, **options)
    return onnx.load_from_string(target.getvalue())


@pytest.fixture(scope="module")
def integers():
    return quantized(nn.Linear(3, 2), torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"aten": True}, ["aten"]),
        ({"aten": True, "export_raw_ir": True}, ["aten", "export_raw_ir"]),
        ({"example_outputs": 3, "_retain_param_name": False}, ["_retain_param_name", "example_outputs"]),
        ({"aten": False, "example_outputs": None}, []),
    ],
)
def test_each_removed_argument_in_use_gives_one_warning_at_the_call(given, named):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        linger.onnx.export(nn.Linear(3, 2), (X,), io.BytesIO(), **given)
    caught = [w for w in caught if "has no meaning in today's torch" in str(w.message)]
    assert [(w.category, w.filename) for w in caught] == [(DeprecationWarning, __file__)] * len(named)
    assert all(repr(name) in str(w.message) for name, w in zip(named, caught, strict=True))


def test_unknown_arguments_are_named_all_at_once():
    export(autograd_inlining=True)
    with pytest.raises(UsageError, match="unknown argument color, size"):
        export(color=1, size=2)


@pytest.mark.parametrize(
    ("options", "is_quantized", "message"),
    [
        ({"opset_version": 10}, True, r"opset 10 is not available for a quantized model\. Use 11 to 20\."),
        ({"opset_version": 8}, False, r"opset 8 is not available for a float model\. Use 9 to 20"),
        ({"opset_version": 21}, False, "Use 9 to 20"),
        (
            {"opset_version": 12, "dynamo": True},
            True,
            r"with dynamo=True\. Use 18 to 20\. Opset 12 exists with dynamo=False",
        ),
        ({"form": "other"}, True, r"no form 'other'\. Choose one of dialect, bare, standard, qdq"),
        ({"dynamic_axes": {"x": [0]}, "dynamic_shapes": {"x": {0: "n"}}}, True, "Give one of them"),
        ({"target": "venus"}, False, "target='venus' is for quantized models"),
        ({"target": "venus", "form": "qdq"}, True, "needs the form dialect or bare, which packers read, not 'qdq'"),
        ({"target": "venus", "is_update_dequant": False}, True, "whose file does not run"),
        ({"target": "venus", "export_params": False}, True, "needs weights in the file"),
    ],
)
def test_impossible_combination_names_the_possible_one(options, is_quantized, message, integers):
    with pytest.raises(UsageError, match=message):
        export(integers if is_quantized else None, **options)


@pytest.mark.parametrize("opset", range(9, 21))
def test_documented_opsets_are_accepted(opset):
    assert export(opset_version=opset).opset_import[0].version == opset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_names": ("a", "b")}, r"2 input names \(a, b\) for 1 input tensors"),
        ({"output_names": ("y", "z")}, "2 output names"),
        ({"input_names": ("a",), "output_names": ("a",)}, "a as the name of an input and of an output"),
        ({"input_names": ("a",), "dynamic_axes": {"b": [0]}}, "dynamic_axes for 'b', which is no input or output name"),
        ({"input_names": ("a",), "dynamic_axes": {"a": {4: "n"}}}, "dynamic axis 4 of 'a', which has 2 axes"),
        ({"output_names": ("y",), "dynamic_axes": {"y": [0, 2]}}, "dynamic axis 2 of 'y', which has 2 axes"),
    ],
)
def test_names_and_axes_must_fit(options, message):
    with pytest.raises(UsageError, match=message):
        export(**options)


def test_all_misfits_are_named_at_once():
    with pytest.raises(UsageError, match=r"2 input names.*2 output names.*repeat.*'q'"):
        export(input_names=("a", "b"), output_names=("y", "y"), dynamic_axes={"q": [0]})
