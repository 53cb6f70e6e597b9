"""Types, shapes and ranges of weights and biases."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.checks.findings import parameters as module
from tests.support.check_cases import GATES, RECURRENT, node
from tests.support.chip import SIGNAL, WIDTHS, WINDOW, model_of
from tests.support.findings import findings_of


def found(body, **constants):
    return [(f.rule, f.tensor, f.reason) for f in findings_of("numbers", model_of(body, **constants))]


def rules(body, **constants):
    return [rule for rule, _, _ in found(body, **constants)]


def filled(*shape, dtype=np.int8):
    """Weights that use their range, so that no note is in the way."""
    return np.full(shape, 100, dtype)


def zeros(*shape):
    return np.zeros(shape, np.int32)


LINEAR = node("LinearInt", "x, w, b", **WIDTHS)


@pytest.mark.parametrize(
    ("bits", "stored", "is_right"),
    [(4, np.int8, True), (8, np.int8, True), (8, np.int16, False), (9, np.int16, True), (16, np.int16, True),
     (16, np.int32, False), (17, np.int32, True), (32, np.int32, True), (8, np.float32, False)],
)  # fmt: skip
def test_the_type_follows_from_the_width(bits, stored, is_right):
    body = node("LinearInt", "x, w, b", **(WIDTHS | {"parameter_bits": bits}))
    assert ("LGR301" in rules(body, w=np.full((2, 4), 7, stored), b=zeros(2))) == (not is_right)


def test_what_is_wrong_with_a_type_is_told():
    assert found(LINEAR, w=filled(2, 4, dtype=np.int16), b=zeros(2)) == [
        ("LGR301", "w", "'w' is stored as INT16; expected INT8 for 8 bits")
    ]
    assert found(LINEAR, w=filled(2, 4), b=np.zeros(2, np.float32)) == [
        ("LGR301", "b", "'b' is stored as FLOAT; expected INT32 for a bias")
    ]


@pytest.mark.parametrize(("values", "is_right"), [([-8, 7], True), ([-9, 7], False), ([-8, 8], False)])
def test_four_bits_hold_minus_eight_to_seven(values, is_right):
    body = node("LinearInt", "x, w, b", **(WIDTHS | {"parameter_bits": 4, "scale_o": 1024.0}))
    found_rules = rules(body, w=np.array([values], np.int8), b=zeros(1))
    assert ("LGR302" in found_rules) == (not is_right)


def test_the_number_outside_is_told():
    body = node("LinearInt", "x, w, b", **(WIDTHS | {"parameter_bits": 4, "scale_o": 1024.0}))
    assert found(body, w=np.array([[3, -100]], np.int8), b=zeros(1)) == [
        ("LGR302", "w", "'w' holds -100; 4 bits hold -8 to 7")
    ]


def test_a_bias_outside_of_int32():
    assert found(LINEAR, w=filled(2, 4), b=np.array([5, -(2**31) - 1]))[1] == (
        "LGR503",
        "b",
        "'b' has -2147483649 at channel 1; int32 ends at 2147483647",
    )
    assert rules(LINEAR, w=filled(2, 4), b=np.array([5, -(2**31)])) == ["LGR301"]


CONV, TRANSPOSED = (
    node("Conv2dInt", "x, w, b", **(WIDTHS | WINDOW)),
    node("ConvTranspose2dInt", "x, w, b", **(WIDTHS | WINDOW | {"output_padding": [0, 0], "group": 2})),
)


@pytest.mark.parametrize(
    ("body", "weight", "bias", "expected"),
    [
        (LINEAR, (2, 4), (3,), "'b' has the shape [3]; expected [2], one number per channel of the weight"),
        (LINEAR, (2, 4), (2, 1), "'b' has the shape [2, 1]; expected [2], one number per channel of the weight"),
        (LINEAR, (2, 4, 1), (2,), "'w' has the shape [2, 4, 1]; expected 2 axes"),
        (CONV, (8, 8, 3, 5), (8,), "'w' has the shape [8, 8, 3, 5]; expected the window [3, 3] of kernel_shape"),
        (CONV, (8, 8, 3), (8,), "'w' has the shape [8, 8, 3]; expected 4 axes"),
        (TRANSPOSED, (8, 3, 3, 3), (8,), "'b' has the shape [8]; expected [6], one number per channel of the weight"),
        (TRANSPOSED, (7, 3, 3, 3), (6,), "'w' has the shape [7, 3, 3, 3]; expected a first axis that its 2 groups divide"),
    ],
)  # fmt: skip
def test_shapes_fit_each_other(body, weight, bias, expected):
    assert [(rule, reason) for rule, _, reason in found(body, w=filled(*weight), b=zeros(*bias))] == [
        ("LGR306", expected)
    ]


@pytest.mark.parametrize("op", ["Conv2dInt", "ConvTranspose2dInt"])
@pytest.mark.parametrize("name", ["strides", "dilations"])
def test_windows_have_one_step_per_axis(op, name):
    body = node(op, "x, w, b", **(WIDTHS | WINDOW | {"output_padding": [0, 0]} | {name: [1]}))
    ((rule, _, reason),) = found(body, w=filled(8, 8, 3, 3), b=zeros(8))
    assert (rule, reason) == ("LGR306", f"{name} and kernel_shape have different lengths")


def test_right_shapes_are_no_finding():
    assert rules(LINEAR, w=filled(2, 4), b=zeros(2)) == []
    assert rules(CONV, w=filled(8, 8, 3, 3), b=zeros(8)) == []
    assert rules(TRANSPOSED, w=filled(8, 3, 3, 3), b=zeros(6)) == []
    assert rules(node("Conv1dInt", "x, w, b", **(WIDTHS | SIGNAL)), w=filled(8, 8, 3), b=zeros(8)) == []
    assert rules(node("BatchNorm2dInt", "x, w, b, m, v", **WIDTHS), w=filled(8), b=zeros(8), m=(8,), v=(8,)) == []


def test_a_layer_norm_has_its_own_scale_of_bias_and_no_accumulator():
    body = node("LayerNormInt", "x, w, b", **(WIDTHS | {"parameter_bits": 16}))
    assert rules(body, w=np.full(8, 32767, np.int16), b=np.full(8, 2**31 - 1, np.int32)) == []


def test_both_products_of_a_recurrent_layer_are_looked_at():
    body = node("LSTMInt", "x, a, c, d, e", **RECURRENT)
    large = np.full(16, 2**31 - 5, np.int32)
    plain = GATES | {"d": zeros(16), "e": zeros(16)}
    assert rules(body, **plain) == []
    assert rules(body, **(plain | {"a": filled(16, 6), "d": large})) == ["LGR501"]
    assert rules(body, **(plain | {"c": filled(16, 4), "e": large})) == ["LGR501"]


def test_what_a_recurrent_layer_feeds_back_has_the_width_of_its_output():
    # c is [16, 4] of 100: 400·128 = 51200 for 8 bits, 400·32768 = 13107200 for 16
    plain = GATES | {"inputs": "int16[7,2,6] x", "c": filled(16, 4), "d": zeros(16)}
    body = node("LSTMInt", "x, a, c, d, e", **(RECURRENT | {"data_bits": 16}))
    assert rules(body, **(plain | {"e": np.full(16, 2**31 - 1 - 51200, np.int32)})) == ["LGR502"]
    assert rules(body, **(plain | {"e": np.full(16, 2**31 - 51200, np.int32)})) == ["LGR501"]


def test_weights_in_constant_nodes_count():
    body = "[c] w = Constant<value = int16[1,2] {1, 2}>() " + node("LinearInt", "x, w", **WIDTHS)
    assert rules(body, k=(1,)) == ["LGR301"]


def test_weights_that_are_computed_are_not_known():
    assert rules("[c] w = Neg(k) " + node("LinearInt", "x, w, b", **WIDTHS), k=(2, 4), b=zeros(2)) == []


def test_a_shared_weight_is_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(module, "row_sums", lambda *a, own=module.row_sums: read.append(a) or own(*a))
    one, two = LINEAR, LINEAR.replace("[n] y", "[m] z")
    assert rules(f"{one} {two}", w=filled(2, 4), b=zeros(2)) == []
    assert len(read) == 1


@pytest.mark.parametrize("attribute", ["data_bits", "parameter_bits", "o_bits"])
@pytest.mark.parametrize("bits", [0, 1, 33, -8])
def test_widths_that_no_integer_has(attribute, bits):
    body = node("LinearInt", "x, w, b", **(WIDTHS | {attribute: bits}))
    assert found(body, w=filled(2, 4), b=zeros(2)) == [("LGR305", "", f"{attribute} = {bits}: no width")]


def test_nodes_may_be_left_out():
    whole = model_of(LINEAR, w=filled(2, 4, dtype=np.int16), b=zeros(2))
    assert findings_of("numbers", whole, skip={"n (LinearInt)"}) == []


def test_other_peoples_nodes_are_left_alone():
    model = model_of("[n] y = Gemm(x, w)", inputs="float[2,2] x", w=np.ones((2, 2), np.float32))
    assert isinstance(model, ir.Model)
    assert findings_of("numbers", model) == []


def test_groups_are_those_of_a_window():
    body = node("LinearInt", "x, w, b", **(WIDTHS | {"group": 3}))
    assert "LGR306" not in rules(body, w=filled(2, 4), b=zeros(2))
