"""Matrix products, layer norm, softmax and recurrent layers within the limits of a chip."""

import pytest

from tests.support.chip import WIDTHS, findings, node, only_finding

PRODUCT = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0, "data_bits": 8, "o_bits": 8}
SOFTMAX = {"data_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_o": 128.0}


def linear(inputs, *, columns, target="venus", **changes):
    return findings(node("LinearInt", "x, w", **WIDTHS | changes), target, inputs=inputs, w=(4, columns))


def softmax(inputs, target="venus", **attributes):
    return findings(node("SoftmaxInt", **SOFTMAX | attributes), target, inputs=inputs)


@pytest.mark.parametrize("target", ["venus", "arcs", "venusA"])
def test_ordinary_products_are_taken(target):
    assert linear("int8[1,100] x", columns=100, target=target) == []
    assert findings(node("BmmInt", "x, z", **PRODUCT), target, inputs="int8[2,9,20] x, int8[2,20,11] z") == []


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


def layer_norm(shape, count, target="venus", bits=8):
    attributes = WIDTHS | {"data_bits": bits, "parameter_bits": 16}
    return findings(node("LayerNormInt", "x, w", **attributes), target, inputs=f"int{bits}[{shape}] x", w=(count,))


def test_sums_of_a_layer_norm_in_32_bits():
    # 362²·128² = 2 147 024 896 < 2^31 = 2 147 483 648 < 363²·128² = 2 158 903 296
    assert layer_norm("1,5,362", 362) == []
    ((severity, text),) = layer_norm("1,5,363", 363)
    assert severity == "warning"
    assert "sums over 363 numbers may reach 2158903296, beyond the chip's 32-bit integers, which wrap" in text
    assert "Normalise over at most 362 numbers" in text
    assert layer_norm("1,5,363", 363, target="venusA") == []


def test_layer_norm_wants_three_axes():
    ((severity, text),) = [f for f in layer_norm("5,64", 64) if f[0] == "error"]
    assert severity == "error"
    assert "an input of 2 axes; the chip takes 3 or more. Add an axis" in text


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


RECURRENT = {"num_layers": 1, "batch_first": 1, "go_forward": 1}


def recurrent(inputs, target="venusA", *, op="LSTMInt", hidden=4, numbers=6, **changes):
    sizes = {"hidden_size": hidden, "input_size": numbers}
    return findings(node(op, **RECURRENT | sizes | changes), target, inputs=inputs)


@pytest.mark.parametrize("target", ["arcs", "venusA"])
@pytest.mark.parametrize("op", ["LSTMInt", "GRUInt"])
def test_one_sequence_of_as_many_steps_as_numbers_is_taken(op, target):
    assert recurrent("int8[1,6,6] x", target, op=op) == []


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
    ((severity, text),) = recurrent("int8[1,5,6] x", op="GRUInt")
    assert severity == "error"
    assert text == (
        "y (GRUInt): 5 steps of 6 numbers; the packer takes the one for the other. "
        "Use as many steps as each has numbers. No exact form is known."
    )
    ((severity, text),) = recurrent("int8[1,T,6] x")
    assert severity == "note"
    assert "a size is open, so the number of its sequences and steps could not be checked" in text


def test_sequences_come_one_at_a_time():
    ((severity, text),) = recurrent("int8[2,6,6] x")
    assert severity == "error"
    assert text == ("y (LSTMInt): 2 sequences at once, which the chip computes otherwise. Give it one at a time.")


@pytest.mark.parametrize(("steps", "hidden"), [(16, 12), (16, 16), (20, 24)])
def test_sizes_that_ran_on_venus_are_taken(steps, hidden):
    assert recurrent(f"int8[1,{steps},{steps}] x", "venus", hidden=hidden, numbers=steps) == []


def test_other_sizes_on_venus_are_refused_with_those_that_ran():
    ((severity, text),) = recurrent("int8[1,16,16] x", "venus", hidden=28, numbers=16)
    assert severity == "error"
    assert text == (
        "y (LSTMInt): 16 steps, 16 inputs and 28 hidden numbers, with which nobody has seen the right integers; venus was "
        "exact with 16 steps, 16 inputs, 12 hidden; 16 steps, 16 inputs, 16 hidden; 20 steps, 20 inputs, 24 hidden, and wrong "
        "with others. Use one of these sizes. No exact form is known."
    )
    assert recurrent("int8[1,16,16] x", hidden=28, numbers=16) == []
