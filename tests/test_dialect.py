"""An op's schema is its signature."""

import copy
import pickle

import pytest

from linger import dialect
from linger.checks.limits.target_findings import TARGET_RULES
from linger.dialect import find_op, op, ops
from linger.errors import UnsupportedError, UsageError
from linger.targets import TARGETS

FIRST_OPS = {
    "Quant",
    "Dequant",
    "Requant",
    "Conv1dInt",
    "Conv2dInt",
    "ConvTranspose2dInt",
    "LinearInt",
    "BatchNorm2dInt",
    "LayerNormInt",
    "Gather",
    "AvgPool2dInt",
    "MaxPool",
    "Relu",
    "Clip",
    "iqAdd",
    "iqMul",
    "iqDiv",
    "iqSum",
    "iqMean",
    "iqVar",
    "iqCat",
}


def test_first_ops_are_discovered():
    assert set(ops()) >= FIRST_OPS


def test_schema_of_a_convolution_is_read_from_its_body():
    conv = find_op("Conv2dInt")
    assert conv.inputs == ("x", "w", "b")
    assert conv.optional_inputs == {"b"}
    kinds = {a.name: a.kind for a in conv.attributes}
    assert (kinds["pads"], kinds["scale_x"], kinds["group"], kinds["castor_mode"]) == ("ints", "float", "int", "str")


def test_cat_takes_any_number_of_inputs_and_scales():
    cat = find_op("iqCat")
    assert cat.is_variadic
    assert cat.complete({"scale_o": 1.0, "dim": 1, "scale_x_0": 2.0, "scale_x_1": 4.0})["scale_x_1"] == 4.0
    assert not find_op("iqAdd").is_variadic_attribute("scale_x_0")


def test_all_missing_and_unknown_attributes_are_named():
    with pytest.raises(UsageError, match="lacks o_bits, scale_x, scale_o and does not know color"):
        find_op("Requant").complete({"data_bits": 8, "color": 1})


def test_unknown_op_lists_the_known_ones():
    with pytest.raises(UnsupportedError, match=r"iqFoo: .*Conv2dInt"):
        find_op("iqFoo")


def test_two_files_cannot_define_one_op():
    def impostor(k, x):
        return x

    impostor.__module__ = "elsewhere"
    ops()  # the real one is defined first, whatever ran before
    before = dict(dialect._registry)
    with pytest.raises(UsageError, match=r"already defined in linger\.ops\.relu"):
        op("Relu")(impostor)
    assert dialect._registry == before


def test_a_variant_has_the_name_and_its_own_schema():
    sigmoid = find_op("iqSigmoid")
    arcs = sigmoid.variants["arcs"]
    assert (arcs.name, arcs.platform, arcs.input_bits) == ("iqSigmoid", "arcs", 8)
    assert arcs.functions is sigmoid.functions
    assert arcs.state_name == sigmoid.state_name
    assert {a.name for a in arcs.attributes} - {a.name for a in sigmoid.attributes} == {"platform", "quant_mode"}
    assert arcs.body is not sigmoid.body


def test_variants_are_found_by_chip():
    sigmoid, relu = find_op("iqSigmoid"), find_op("Relu")
    assert find_op("iqSigmoid", "arcs") is sigmoid.for_platform("arcs") is sigmoid.variants["arcs"]
    assert find_op("iqSigmoid", "venus") is sigmoid.for_platform(None) is sigmoid
    assert find_op("Relu", "arcs") is relu


def test_a_variant_is_itself_after_a_copy():
    arcs = find_op("SoftmaxInt", "arcs")
    assert copy.deepcopy(arcs) is arcs
    assert pickle.loads(pickle.dumps(arcs)) is arcs
    assert pickle.loads(pickle.dumps(find_op("SoftmaxInt"))) is find_op("SoftmaxInt")


def test_chips_with_variants_are_known_chips():
    assert {chip for found in ops().values() for chip in found.variants} <= set(TARGETS)


def test_limits_that_an_op_names_are_those_of_a_rule():
    named = {f"target-{limit}" for found in ops().values() for limit in found.chip_limits}
    assert named <= {rule.name for rule in TARGET_RULES}


def test_what_an_op_file_says_of_other_names_fits_its_schema():
    for found in ops().values():
        assert {*found.repeats, *found.repeats.values()} <= {a.name for a in found.attributes}
        assert {*found.real_inputs, *found.unread_inputs, *found.sized_inputs} <= set(found.inputs)
        assert (found.window_axes > 0) == found.has_attribute("kernel_shape")
        assert found.weight_axes is None or {"w", "w_ih"} & set(found.inputs)


def test_channels_follow_from_the_weight():
    assert find_op("Conv2dInt").output_channels([6, 2, 3, 3], 2) == 6
    assert find_op("ConvTranspose2dInt").output_channels([4, 3, 3, 3], 2) == 6
