"""Matrix products, layer norm, softmax and recurrent layers within the limits of a chip."""

import numpy as np
import pytest

from tests.support.chip import WIDTHS, findings, node, only_finding

PRODUCT = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0, "data_bits": 8, "o_bits": 8}
SOFTMAX = {"data_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_o": 128.0}


def linear(inputs, *, columns, target="venus", **changes):
    return findings(node("LinearInt", "x, w", **WIDTHS | changes), target, inputs=inputs, w=(4, columns))


def softmax(inputs, target="venus", **attributes):
    return findings(node("SoftmaxInt", **SOFTMAX | attributes), target, inputs=inputs)


BMM = "int8[2,9,20] x, int8[2,20,11] z"


@pytest.mark.parametrize("target", ["venus", "arcs"])
def test_ordinary_products_are_taken(target):
    assert linear("int8[1,100] x", columns=100, target=target) == []
    assert linear("int8[7,100] x", columns=100, target=target) == []
    assert findings(node("BmmInt", "x, z", **PRODUCT), target, inputs=BMM) == []


@pytest.mark.parametrize("shape", ["1,100", "1,1,100", "100"])
def test_one_row_is_taken_by_venusA(shape):
    assert linear(f"int8[{shape}] x", columns=100, target="venusA") == []


@pytest.mark.parametrize(("shape", "rows"), [("2,100", "2"), ("1,2,100", "2"), ("1,n,100", "an open number of")])
def test_several_rows_are_computed_otherwise_by_venusA(shape, rows):
    found = [text for severity, text in linear(f"int8[{shape}] x", columns=100, target="venusA") if severity == "error"]
    assert found == [
        f"y (LinearInt): {rows} rows; venusA was seen to compute more than 1 otherwise. Give it one. No exact form is known."
    ]


def test_products_of_two_tensors_are_computed_otherwise_by_venusA():
    severity, text = only_finding(node("BmmInt", "x, z", **PRODUCT), target="venusA", inputs=BMM)
    assert (severity, "venusA runs BmmInt and was seen to compute something else" in text) == ("error", True)


def test_long_rows_do_not_fit():
    # four rows of 8 bits in eights: 4·16 384 = 65 536 is the last that fits
    assert linear("int8[1,16384] x", columns=16384) == linear("int8[1,20000] x", columns=20000, target="arcs") == []
    ((severity, text),) = linear("int8[1,16385] x", columns=16385)
    assert severity == "error"
    assert "16385 numbers in a row need 65568 bytes (the chip takes 4 rows at a time); venus has 64 KB" in text
    assert "Cut the rows into shorter ones" in text


def test_wide_rows_need_more():
    # four rows of 16 bits in pairs: 4·8193 → 8194·4·2 = 65 552
    found = linear("int16[1,8193] x", columns=8193, data_bits=16)
    assert [s for s, _ in found] == ["error"]
    assert "65552 bytes" in found[0][1]
    assert linear("int16[1,8192] x", columns=8192, data_bits=16) == []


def test_right_matrix_must_fit():
    inputs = "int8[1,4,200] x, int8[1,200,{}] z"
    assert findings(node("BmmInt", "x, z", **PRODUCT), inputs=inputs.format(160)) == []  # 32 000
    severity, text = only_finding(node("BmmInt", "x, z", **PRODUCT), inputs=inputs.format(164))  # 32 800
    assert severity == "error"
    assert "a right matrix of 200×164 needs 32800 bytes; venus has 32 KB. Cut its columns" in text


@pytest.mark.parametrize(
    ("target", "changes", "reason"),
    [
        pytest.param("venus", {"parameter_bits": 16}, "16-bit weights; venus has 4 or 8. Choose", id="weights"),
        pytest.param("arcs", {"parameter_bits": 4}, "4-bit weights; arcs has 8. Choose", id="weights of arcs"),
        pytest.param("venus", {"o_bits": 4}, "an output of 4 bits; venus has 8, 16 or 32. Choose", id="output"),
        pytest.param("arcs", {"o_bits": 16}, "an output of 16 bits; arcs has 8 or 32. Choose", id="arcs"),
    ],
)
def test_widths_of_products(target, changes, reason):
    ((severity, text),) = linear("int8[1,100] x", columns=100, target=target, **changes)
    assert severity == "error"
    assert reason in text


def test_venus_multiplies_by_4_bit_weights():
    assert linear("int8[1,100] x", columns=100, parameter_bits=4) == []


def test_four_axes_are_too_many():
    ((severity, text),) = linear("int8[1,2,3,100] x", columns=100)
    assert severity == "error"
    assert text == (
        "y (LinearInt): an input of 4 axes; the packer takes 3. Flatten the leading axes before it: "
        "linger.onnx.export(…, target='venus') writes it so."
    )


def test_open_rows_are_said():
    found = linear("int8[1,K] x", columns=100)
    assert [s for s, _ in found] == ["note"]
    assert "the room for its left matrix" in found[0][1]


def reserving(body, numbers, inputs, rows=1):
    """A body behind a fully connected layer with a bias and so many outputs in each row; its inputs and constants."""
    before = f"[before] r = thinker.LinearInt<{', '.join(f'{n}={v}' for n, v in WIDTHS.items())}>(v, rw, rb) "
    constants = {"rw": (numbers, 8), "rb": np.zeros(numbers, np.int32)}
    return before + body, {"inputs": f"{inputs}, int8[1,{rows},8] v"} | constants


def layer_norm(shape, count, target="venus", bits=8, reserved=None, rows=1):
    attributes = WIDTHS | {"data_bits": bits, "parameter_bits": 16}
    body, inputs = node("LayerNormInt", "x, w", **attributes), f"int{bits}[{shape}] x"
    body, given = (body, {"inputs": inputs}) if reserved is None else reserving(body, reserved, inputs, rows)
    return findings(body, target, **given, w=(count,))


def test_sums_of_a_layer_norm_in_32_bits():
    # 362²·128² = 2 147 024 896 < 2^31 = 2 147 483 648 < 363²·128² = 2 158 903 296
    assert layer_norm("1,5,362", 362, reserved=724) == []
    ((severity, text),) = layer_norm("1,5,363", 363, reserved=726)
    assert severity == "warning"
    assert "sums over 363 numbers may reach 2158903296, beyond the chip's 32-bit integers, which wrap" in text
    assert "Normalize over at most 362 numbers" in text


@pytest.mark.parametrize("target", ["arcs", "venusA"])
def test_layer_norms_are_computed_otherwise_elsewhere(target):
    ((severity, text),) = layer_norm("1,5,363", 363, target=target)
    assert (severity, f"{target} runs LayerNormInt and was seen to compute something else" in text) == ("error", True)


def test_layer_norm_wants_three_axes():
    ((severity, text),) = layer_norm("5,64", 64, reserved=128)
    assert severity == "error"
    assert "an input of 2 axes; the chip takes 3 or more. Add an axis" in text


REMEDY = (
    "linger.onnx.export(…, target='venus') puts a layer before it that reserves enough, where it reads 8-bit integers of a fixed "
    "size. No exact form is known."
)


def test_a_layer_norm_writes_8_bytes_for_each_number():
    # 4 of them are reserved for it, and 4 for each result of a product with a bias
    assert layer_norm("1,5,64", 64) == [
        (
            "error",
            "y (LayerNormInt): the engine writes 512 bytes of scratch, and venus's packer reserves 256 for it and no more for "
            f"another layer. {REMEDY}",
        )
    ]
    assert layer_norm("1,5,64", 64, reserved=128) == layer_norm("1,5,64", 64, reserved=64, rows=2) == []
    assert [severity for severity, _ in layer_norm("1,5,64", 64, reserved=127)] == ["error"]


def test_scratch_is_reserved_by_products_with_a_bias_only():
    body = f"r = thinker.LinearInt<{', '.join(f'{n}={v}' for n, v in WIDTHS.items())}>(v, rw) "
    body += node("LayerNormInt", "x, w", **WIDTHS | {"parameter_bits": 16})
    ((severity, text),) = findings(body, inputs="int8[1,5,64] x, int8[1,1,8] v", rw=(999, 8), w=(64,))
    assert (severity, "the engine writes 512 bytes of scratch" in text) == ("error", True)


def test_scratch_that_is_reserved_for_a_larger_layer_serves_a_smaller_one():
    norm = node("LayerNormInt", "{}, {}", **WIDTHS | {"parameter_bits": 16})
    body = norm.format("x", "w").replace("y =", "a =", 1) + " " + norm.format("z", "v")
    found = findings(body, inputs="int8[1,5,64] x, int8[1,5,32] z", w=(64,), v=(32,))
    assert [text.partition(":")[0] for _, text in found] == ["a (LayerNormInt)"]


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax_over_the_last_axis(axis):
    assert softmax("int8[3,300] x", dim=axis) == []


def test_softmax_over_another_axis():
    ((severity, text),) = softmax("int8[3,4,5] x", dim=1)
    assert severity == "error"
    assert "softmax along axis 1; venus takes the last axis only, as -1. Move that axis to the end" in text


def test_arcs_looks_for_the_axis_elsewhere_and_misreads_positive_ones():
    assert softmax("int8[3,300] x", "arcs", dim=-1, axis=-1, platform="arcs") == []
    ((severity, text),) = softmax("int8[3,300] x", "arcs", dim=-1, platform="arcs")
    assert severity == "error"
    assert "arcs reads the axis of softmax from the attribute 'axis', which is missing" in text
    assert "linger.init(model, target='arcs')" in text
    ((severity, text),) = softmax("int8[3,4,300] x", "arcs", dim=-1, axis=2, platform="arcs")
    assert severity == "error"
    assert "softmax along axis 2; arcs takes the last axis only, as -1. Move that axis to the end" in text


def test_softmax_of_venusA_is_of_two_axes():
    given = {"dim": -1, "axis": -1, "platform": "venusA"}
    assert softmax("int8[3,300] x", "venusA", **given) == []
    assert softmax("int8[1,3,300] x", "venusA", **given) == [
        (
            "error",
            "y (SoftmaxInt): softmax of a tensor of 3 axes; venusA was seen to be exact on 2 only. "
            "Flatten the leading axes before it. No exact form is known.",
        )
    ]
    assert softmax("int8[1,3,300] x", "arcs", **given | {"platform": "arcs"}) == []


def test_where_a_chip_has_no_form_of_its_own_nothing_exact_is_known():
    body = node("LogSoftmaxInt", **SOFTMAX, dim=-1, platform="arcs")
    severity, text = only_finding(body, target="arcs", inputs="int8[3,300] x")
    assert severity == "error"
    assert text == (
        "y (LogSoftmaxInt): arcs reads the axis of softmax from the attribute 'axis', which is missing. "
        "No exact form is known. Leave it out of the model: its largest input decides anyway."
    )


def test_softmax_of_long_rows():
    assert softmax("int8[3,2048] x", dim=-1) == []
    ((severity, text),) = softmax("int8[3,2049] x", dim=-1)
    assert severity == "error"
    assert text == (
        "y (SoftmaxInt): rows of 2049 numbers; venus has softmax for at most 2048. Use shorter rows. No exact form is known."
    )
    assert softmax("int8[3,L] x", dim=-1)[0][0] == "note"


RECURRENT = {
    "num_layers": 1, "batch_first": 1, "go_forward": 1, "data_bits": 8, "parameter_bits": 8, "o_bits": 8,
    "scale_i": 16.0, "scale_h": 64.0, "scale_iw": 64.0, "scale_hw": 64.0, "scale_o": 64.0,
}  # fmt: skip


def recurrent(inputs, target="venus", *, op="LSTMInt", hidden=4, numbers=6, reserved=None, rows=1, **changes):
    """Findings about a recurrent layer, as a rule with enough scratch; `reserved`: results of a product in each row."""
    gates = (4 if op == "LSTMInt" else 3) * hidden
    body = node(op, "x, a, c, d, e", **RECURRENT | {"hidden_size": hidden, "input_size": numbers} | changes)
    body = body.replace("y =", "y, last, cell =" if op == "LSTMInt" else "y, last =", 1)
    body, given = reserving(body, 10 * hidden if reserved is None else reserved, inputs, rows)
    biases = {name: np.zeros(gates, np.int32) for name in "de"}
    return findings(body, target, **given, a=(gates, numbers), c=(gates, hidden), **biases)


def test_one_sequence_of_as_many_steps_as_numbers_is_taken():
    assert recurrent("int8[1,6,6] x") == []


def test_recurrent_layers_are_single():
    ((severity, text),) = recurrent("int8[1,6,6] x", num_layers=2)
    assert severity == "error"
    assert text == "y (LSTMInt): 2 layers in one node; the chip has 1. Use one recurrent module per layer."


def test_the_batch_comes_first():
    ((severity, text),) = recurrent("int8[1,6,6] x", batch_first=0)
    assert severity == "error"
    assert text == (
        "y (LSTMInt): batch_first=False, with which the packer gives another shape. "
        "Build the layer with batch_first=True, and as many steps as each step has numbers."
    )


def test_steps_and_numbers_are_mistaken_for_each_other():
    ((severity, text),) = recurrent("int8[1,5,6] x")
    assert severity == "error"
    assert text == (
        "y (LSTMInt): 5 steps of 6 numbers; the packer takes the one for the other. "
        "Use as many steps as each has numbers. No exact form is known."
    )
    ((severity, text),) = recurrent("int8[1,T,6] x")
    assert severity == "note"
    assert "a size is open, so the number of its sequences and steps could not be checked" in text


def test_sequences_come_one_at_a_time():
    ((severity, text),) = recurrent("int8[2,6,6] x")
    assert severity == "error"
    assert text == ("y (LSTMInt): 2 sequences at once, which the chip computes otherwise. Give it one at a time.")


def test_a_gru_is_computed_otherwise_whatever_its_sizes():
    differs, steps = recurrent("int8[1,5,6] x", op="GRUInt")
    assert "venus runs GRUInt and was seen to compute something else" in differs[1]
    assert "5 steps of 6 numbers; the packer takes the one for the other" in steps[1]
    assert recurrent("int8[1,6,6] x", op="GRUInt") == [differs]


@pytest.mark.parametrize(
    ("steps", "hidden"),
    [(8, 4), (8, 8), (10, 10), (12, 12), (16, 8), (16, 12), (16, 16), (16, 28), (20, 24), (32, 16), (32, 64), (64, 64)],
)
def test_any_size_of_an_lstm_is_taken_behind_a_product_that_reserves_enough(steps, hidden):
    sizes = {"hidden": hidden, "numbers": steps}
    assert recurrent(f"int8[1,{steps},{steps}] x", **sizes) == []
    assert recurrent(f"int8[1,{steps},{steps}] x", **sizes, reserved=5 * hidden, rows=2) == []
    assert recurrent(f"int8[1,{steps},{steps}] x", **sizes, reserved=10 * hidden - 1) == [
        (
            "error",
            f"y (LSTMInt): the engine writes {40 * hidden} bytes of scratch, and venus's packer reserves {32 * hidden} for it "
            f"and no more for another layer. {REMEDY}",
        )
    ]


def test_an_lstm_alone_has_too_little_scratch():
    body = node("LSTMInt", **RECURRENT | {"hidden_size": 16, "input_size": 16})
    severity, text = only_finding(body, inputs="int8[1,16,16] x")
    assert severity == "error"
    assert "the engine writes 640 bytes of scratch, and venus's packer reserves 512 for it" in text
