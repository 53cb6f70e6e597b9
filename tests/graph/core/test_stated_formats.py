"""What dialect nodes state about their tensors, in both dialects, and what they do not state."""

import onnx_ir as ir
import pytest

from linger.graph.core.dialects import StatedFormat, is_dequant, stated_formats
from tests.support.dialect_text import quantizing

BOTH = ', "thinker": 1, "linger": 1'


def node(body, **arguments):
    return list(quantizing(body, domains=BOTH, **arguments).graph)[-1]


def test_a_product_states_input_weight_and_output():
    found = stated_formats(
        node(
            "y = thinker.LinearInt <data_bits: int = 8, parameter_bits: int = 4, o_bits: int = 16, scale_x: float = 16.0, "
            "scale_w: float = 64.0, scale_o: float = 32.0> (x, w, b)",
            inputs="int8[1,4] x, int8[2,4] w, int32[2] b",
        )
    )
    assert found.integers == {0: StatedFormat(16.0, 8, "scale_x"), 1: StatedFormat(64.0, 4, "scale_w")}
    assert found.outputs == (StatedFormat(32.0, 16, "scale_o"),)
    assert (found.reals, found.kept) == (frozenset(), None)


def test_states_of_an_lstm_are_real_and_so_are_its_later_outputs():
    found = stated_formats(
        node(
            "y, h1, c1 = thinker.LSTMInt <scale_i: float = 16.0, scale_iw: float = 32.0, scale_hw: float = 64.0, "
            "scale_o: float = 8.0, data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8> (x, l, h, c, wi, wh, bi, bh)",
            inputs="int8[n] x, int64[1] l, float[1] h, float[1] c, int8[1] wi, int8[1] wh, int32[1] bi, int32[1] bh",
        )
    )
    assert {i: c.scale for i, c in found.integers.items()} == {0: 16.0, 4: 32.0, 5: 64.0}
    assert found.reals == {2, 3}
    assert found.outputs == (StatedFormat(8.0, 8, "scale_o"), None, None)


def test_joined_tensors_have_a_scale_each():
    found = stated_formats(
        node(
            "y = thinker.iqCat <scale_x_0: float = 4.0, scale_x_1: float = 8.0, scale_o: float = 4.0, dim: int = 0> (x, x)"
        )
    )
    assert {i: c.scale for i, c in found.integers.items()} == {0: 4.0, 1: 8.0}
    assert found.outputs == (StatedFormat(4.0, 8, "scale_o"),)


@pytest.mark.parametrize("op", ["Relu", "MaxPool <kernel_shape: ints = [1]>", "ShuffleChannel <groups: int = 1>"])
def test_ops_that_move_numbers_keep_what_comes_in(op):
    assert stated_formats(node(f"y = thinker.{op}(x)")).kept == 0


def test_the_newer_dialect_states_widths_under_other_names():
    found = stated_formats(
        node(
            "y = linger.QAdd <x_bits: int = 8, y_bits: int = 16, o_bits: int = 16, scale_x: float = 2.0, scale_y: float = 4.0, "
            "scale_o: float = 2.0> (x, x)"
        )
    )
    assert found.integers == {0: StatedFormat(2.0, 8, "scale_x"), 1: StatedFormat(4.0, 16, "scale_y")}
    assert found.outputs == (StatedFormat(2.0, 16, "scale_o"),)


@pytest.mark.parametrize(
    "wrong", ['scale_o: string = "8"', "scale_o: float = 0.0", "scale_o: float = -4.0", "other: int = 1"]
)
def test_what_is_wrong_is_not_stated_and_nothing_fails(wrong):
    found = stated_formats(node(f"y = thinker.LinearInt <{wrong}> (x)"))
    assert found.outputs == (StatedFormat(None, None, "scale_o"),)
    assert found.integers == {0: StatedFormat(None, None, "scale_x")}


def test_infinite_scales_are_no_scales():
    made = ir.Node("thinker", "Quant", [], [ir.AttrFloat32("scale_x", float("inf")), ir.AttrInt64("data_bits", 99)])
    assert stated_formats(made).outputs == (StatedFormat(None, None, "scale_x"),)


def test_a_curve_has_the_scale_that_its_device_fixes():
    assert stated_formats(node("y = thinker.iqSigmoid <scale_x: float = 2048.0> (x)")).outputs == (
        StatedFormat(128.0, 8, "scale_o"),
    )


def test_dequants_of_both_dialects():
    assert is_dequant(node("y = thinker.Dequant <scale_o: float = 8.0> (x)"))
    assert is_dequant(node("y = linger.Dequant <scale_o: float = 8.0> (x)"))
    assert not is_dequant(ir.Node("other", "Dequant", []))
    assert not is_dequant(None)
    assert not is_dequant(ir.Node("thinker", "Dequant", [], num_outputs=1))
    assert not is_dequant(ir.Node("thinker", "Dequant", [ir.Value()], num_outputs=0))


@pytest.mark.parametrize("op", ["Squeeze <axes: ints = [0]>", "QMaxPool2d <kernel_shape: ints = [1, 1]>"])
def test_newer_ops_that_move_numbers_keep_what_comes_in(op):
    assert stated_formats(node(f"y = linger.{op}(x)")).kept == 0


def test_a_newer_table_gives_its_rows_its_scale():
    found = stated_formats(
        node("y = linger.Gather <scale_w: float = 8.0, w_bits: int = 4> (x, i)", inputs="int8[2] x, int64[1] i")
    )
    assert found.integers == {0: StatedFormat(8.0, 4, "scale_w")}
    assert found.outputs == (StatedFormat(8.0, 4, "scale_w"),)


def test_states_of_a_newer_lstm_are_integers():
    found = stated_formats(
        node(
            "y, h1, c1 = linger.QLSTM <scale_x: float = 16.0, scale_h: float = 128.0, scale_c: float = 32768.0, "
            "scale_iw: float = 32.0, scale_hw: float = 64.0, scale_o: float = 128.0, x_bits: int = 8, w_bits: int = 4, "
            "o_bits: int = 8> (x, h, c, wi, wh, bi, bh)",
            inputs="int8[n] x, int8[1] h, int32[1] c, int8[1] wi, int8[1] wh, int32[1] bi, int32[1] bh",
        )
    )
    assert {i: (c.scale, c.bits) for i, c in found.integers.items()} == {
        0: (16.0, 8),
        1: (128.0, 8),
        2: (32768.0, 32),
        3: (32.0, 4),
        4: (64.0, 4),
    }
    assert found.outputs == (StatedFormat(128.0, 8, "scale_o"), None, None)
