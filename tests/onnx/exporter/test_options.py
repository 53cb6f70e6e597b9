"""Arguments of an export, checked before anything runs."""

import warnings

import pytest

from linger.errors import UsageError
from linger.onnx.exporter.forms import check_opset
from linger.onnx.exporter.options import ExportOptions, check_keywords, check_names, check_options, warn_about_removed


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"aten": True}, ["aten"]),
        ({"aten": True, "export_raw_ir": True}, ["aten", "export_raw_ir"]),
        ({"example_outputs": 3, "_retain_param_name": False}, ["example_outputs", "_retain_param_name"]),
        ({"aten": False, "example_outputs": None}, []),
    ],
)
def test_each_removed_argument_in_use_gives_one_warning(given, named):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about_removed(**given)
    assert [w.category for w in caught] == [DeprecationWarning] * len(named)
    assert all(repr(name) in str(w.message) for name, w in zip(named, caught, strict=True))


def test_unknown_arguments_are_named_all_at_once():
    check_keywords({"autograd_inlining": True})
    with pytest.raises(UsageError, match="unknown argument color, size"):
        check_keywords({"color": 1, "size": 2})


@pytest.mark.parametrize(
    ("options", "is_quantized", "message"),
    [
        ({"opset": 10}, True, r"opset 10 is not available for a quantized model\. Use 11 to 20"),
        ({"opset": 8}, False, r"opset 8 is not available for a float model\. Use 9 to 20"),
        ({"opset": 21}, False, "Use 9 to 20"),
        ({"opset": 12, "dynamo": True}, True, r"with dynamo=True\. Use 18 to 20\. Opset 12 exists with dynamo=False"),
        ({"form": "other"}, True, r"no form 'other'\. Choose one of dialect, bare, standard, qdq"),
        ({"dynamic_axes": {"x": [0]}, "dynamic_shapes": {"x": {0: "n"}}}, True, "Give one of them"),
    ],
)
def test_impossible_combination_names_the_possible_one(options, is_quantized, message):
    with pytest.raises(UsageError, match=message):
        check_options(ExportOptions(**options), is_quantized=is_quantized)


@pytest.mark.parametrize("opset", range(9, 21))
def test_documented_opsets_are_accepted(opset):
    check_options(ExportOptions(opset=opset), is_quantized=False)


def test_an_opset_alone_is_one_of_a_quantized_file():
    check_opset(11)
    with pytest.raises(UsageError, match=r"opset 10 is not available for a quantized model\. Use 11 to 20\."):
        check_opset(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_names": ("a", "b")}, r"2 input names \(a, b\) for 1 input tensors"),
        ({"output_names": ("y", "z")}, "2 output names"),
        ({"input_names": ("a",), "dynamic_axes": {"b": [0]}}, "dynamic_axes for 'b', which is no input or output name"),
        ({"input_names": ("a",), "dynamic_axes": {"a": {4: "n"}}}, "dynamic axis 4 of 'a', which has 4 axes"),
        ({"output_names": ("y",), "dynamic_axes": {"y": [0, 2]}}, "dynamic axis 2 of 'y', which has 2 axes"),
    ],
)
def test_names_and_axes_must_fit(options, message):
    with pytest.raises(UsageError, match=message):
        check_names(ExportOptions(**options), [4], [2])


def test_all_misfits_are_named_at_once():
    options = ExportOptions(input_names=("a", "b"), output_names=("y", "y"), dynamic_axes={"q": [0]})
    with pytest.raises(UsageError, match=r"2 input names.*2 output names.*repeat.*'q'"):
        check_names(options, [4], [2])
