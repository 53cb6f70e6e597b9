"""Versions of domains and of the format."""

import numpy as np
import onnx
import onnx.helper
import onnx_ir as ir
import pytest

from linger.errors import GraphError
from tests.support.onnx_text import parse
from tests.support.passes import applied, computed, fix_versions, parsed

X = np.float32([-1, 2, 3])


def model_with(imports, body="y = Neg(x)", ir_version=8):
    model = parse(body)
    model.graph.opset_imports.clear()
    model.graph.opset_imports.update(imports)
    model.ir_version = ir_version
    return model


def test_a_sound_file_stays():
    assert applied(fix_versions, parse("y = Neg(x)"), x=X) == []


@pytest.mark.parametrize(
    ("body", "lowest"),
    [
        pytest.param("y = Neg(x)", 7, id="old ops"),
        pytest.param("s = Constant<value = int64[1] {1}>()  y = Expand(x, s)", 8, id="new op"),
        pytest.param("s = Constant<value = int64[1] {0}>()  y = ReduceSum(x, s)", 13, id="attribute became an input"),
        pytest.param("y = ReduceSum<axes = [0]>(x)", 7, id="attribute"),
        pytest.param("y = Gelu(x)", 20, id="recent op"),
        pytest.param("y = Hardmax<axis = 0>(x)  z = HardSwish(y)", 14, id="the latest decides"),
    ],
)
def test_a_missing_opset_is_the_lowest_that_has_all_ops_as_used(body, lowest):
    model = model_with({"thinker": 1}, body)
    rows = applied(fix_versions, model)
    assert dict(model.graph.opset_imports) == {"thinker": 1, "": lowest}
    assert ("opset_import", f"version of the standard domain was missing and is {lowest} now") in rows


def test_element_types_decide_too():
    model = parse("y = Relu(x)", inputs="int8[n] x", outputs="int8[n] y")
    model.graph.opset_imports[""] = 0
    applied(fix_versions, model)
    assert model.graph.opset_imports[""] == 14


def test_no_version_for_all_ops_is_an_error_that_names_them():
    model = model_with({}, 'a = Upsample<mode = "nearest", scales = [1.0]>(x)  y = Gelu(a)')
    with pytest.raises(GraphError, match=r"no version has all of its ops as they are used: .*\(Upsample|Gelu\)"):
        fix_versions(model)


def test_version_zero_and_missing_domains_are_filled_and_unused_ones_stay():
    model = model_with({"": 17, "thinker": 0, "nobody": 3}, "a = thinker.Foo(x)  y = com.microsoft.Gelu(a)")
    assert applied(fix_versions, model) == [
        ("opset_import", "version of com.microsoft was missing and is 1 now"),
        ("opset_import", "version of thinker was 0 and is 1 now"),
    ]
    assert dict(model.graph.opset_imports) == {"": 17, "thinker": 1, "nobody": 3, "com.microsoft": 1}


@pytest.mark.parametrize(
    ("imports", "kept"),
    [pytest.param({"ai.onnx": 13}, 13, id="alone"), pytest.param({"": 17, "ai.onnx": 13}, 17, id="both")],
)
def test_ai_onnx_is_the_standard_domain(imports, kept):
    model = model_with(imports)
    assert applied(fix_versions, model, **({"x": X} if "" in imports else {})) == [
        ("opset_import", f"'ai.onnx' is the standard domain; its version is {kept}")
    ]
    assert dict(model.graph.opset_imports) == {"": kept}


def test_functions_import_what_they_use_at_the_versions_of_the_model():
    model = parsed(
        """<ir_version: 8, opset_import: ["": 13, "f": 1]> g (float[n] x) => (float[n] y) { y = f.a(x) }
        <domain: "f", opset_import: ["": 13, "nobody": 2]> a (x) => (y) { y = f.b(x) }
        <domain: "f", opset_import: ["": 13]> b (x) => (y) { y = Neg(x) }"""
    )
    outer, inner = model.functions.values()
    del inner.opset_imports[""]
    applied(fix_versions, model)
    assert dict(outer.opset_imports) == {"": 13, "nobody": 2, "f": 1}
    assert dict(inner.opset_imports) == {"": 13}
    np.testing.assert_array_equal(computed(model, {"x": X})[0], -X)


def test_functions_need_version_8_of_the_format():
    model = parsed(
        """<ir_version: 7, opset_import: ["": 13, "f": 1]> g (float[n] x) => (float[n] y) { y = f.b(x) }
        <domain: "f", opset_import: ["": 13]> b (x) => (y) { y = Neg(x) }"""
    )
    assert applied(fix_versions, model) == [("ir_version", "raised from 7 to 8")]


def test_initializers_that_are_no_inputs_need_version_4():
    model = parse("y = Add(x, w)", extra="<float[1] w = {1}>", opset=7)
    model.ir_version = 3
    assert applied(fix_versions, model) == [("ir_version", "raised from 3 to 4")]
    model = parse("y = Add(x, w)", inputs="float[n] x, float[1] w", extra="<float[1] w = {1}>", opset=7)
    model.ir_version = 3
    assert applied(fix_versions, model) == []


def test_types_of_four_bits_need_version_10():
    model = parse("y = Neg(x)")
    model.graph.inputs.append(ir.Value(name="q", type=ir.TensorType(ir.DataType.INT4), shape=ir.Shape([2])))
    assert applied(fix_versions, model) == [("ir_version", "raised from 8 to 10")]


@pytest.mark.parametrize("opset", sorted({row[2] for row in onnx.helper.VERSION_TABLE if row[2] >= 7}))
def test_the_format_is_as_new_as_onnx_says_of_the_opset(opset):
    expected = min(row[1] for row in onnx.helper.VERSION_TABLE if row[2] == opset)
    model = model_with({"": opset}, ir_version=3)
    fix_versions(model)
    assert model.ir_version == expected
