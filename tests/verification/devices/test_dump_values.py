"""Numbers of a dump, read as they are meant."""

import numpy as np
import pytest

from linger.errors import UsageError
from linger.verification.devices.dump_values import DumpTensor, prepare

Q = np.int8([[16, -8, 32]])


def prepared(array, tensor=Q, scale=16.0, **more):
    dump = DumpTensor("t", np.asarray(array), "t.file", **more)
    return prepare(dump, dump.array, tensor, "conv", scale)


@pytest.mark.parametrize(("values", "much"), [([1, 2], "short"), ([1, 2, 3, 4], "long")])
def test_too_short_and_too_long(values, much):
    with pytest.raises(UsageError, match=rf"t\.file: it is too {much}: {len(values)} numbers; conv has 3 \(1x3\)"):
        prepared(np.int8(values))


def test_flat_numbers_take_the_shape():
    array, notes = prepared(np.int64([16, -8, 32]), is_text=True, has_shape=False)
    assert (array.tolist(), array.dtype, notes) == (Q.tolist(), np.int8, [])


def test_whole_numbers_beyond_the_type_stay_as_they_are():
    array, _ = prepared(np.int64([16, -8, 300]), is_text=True)
    assert array.tolist() == [[16, -8, 300]]


def test_other_shapes_are_noted():
    tensor = np.zeros((1, 2, 3, 4), np.int8)
    _, notes = prepared(np.zeros((1, 3, 4, 2), np.int8), tensor)
    assert notes == [
        "sizes 1x3x4x2 read one after the other as 1x2x3x4; if the channels come last, say layout NHWC in a manifest"
    ]
    assert prepared(np.zeros((4, 6), np.int8), tensor)[1] == ["sizes 4x6 read one after the other as 1x2x3x4"]
    assert prepared(np.zeros((2, 3, 4), np.int8), tensor)[1] == []


def test_whole_floats_are_integers_if_those_fit_better():
    array, notes = prepared(np.float64([16, -8, 31]))
    assert (array.tolist(), notes) == ([[16, -8, 31]], [])


def test_whole_floats_are_real_values_if_those_fit_better():
    array, notes = prepared(np.float64([1.0, 3.0, 2.0]))  # times 16: 16, 48, 32
    assert array.dtype.kind == "f"
    assert notes == ["read as real values"]


def test_fractions_are_real_values():
    array, notes = prepared(np.float64([1.0, -0.5, 2.0]))
    assert ((array * 16).tolist(), notes) == (Q.tolist(), ["read as real values"])


def test_fractions_without_a_scale():
    assert prepared(np.float64([1.0, -0.5, 2.0]), scale=None)[1] == ["the scale is not known"]
    assert prepared(np.float64([16.0, -8.0, 32.0]), scale=None)[0].dtype.kind == "i"


def test_printed_decimals_stand_for_what_they_were():
    # 1/128 = 0.0078125 prints as 0.007812 with six decimals
    tensor = np.int8([1, 127, -128])
    printed = np.float64([0.007812, 0.992188, -1.000000])
    array, notes = prepared(printed, tensor, 128.0, is_text=True, decimals=6)
    assert ((array * 128).tolist(), notes) == ([1, 127, -128], ["printed with 6 decimals", "read as real values"])


def test_printed_decimals_hide_no_lsb():
    tensor = np.int8([1, 127, -128])
    array, _ = prepared(np.float64([0.015625, 0.992188, -1.000000]), tensor, 128.0, is_text=True, decimals=6)
    assert ((array * 128) != tensor).tolist() == [True, False, False]


def test_too_few_decimals_are_said():
    array, notes = prepared(np.float64([1.1, -0.5, 2.0]), is_text=True, decimals=1)  # 0.05·16 = 0.8 LSB
    assert notes == ["1 decimals are too few to tell neighbors apart", "read as real values"]
    assert (array * 16 != Q).tolist() == [[True, False, False]]


def test_text_for_a_float_tensor_is_of_its_type():
    tensor = np.float32([0.1, 0.7])
    array, _ = prepared(np.float64([0.1, 0.7]), tensor, None, is_text=True)
    assert array.dtype == np.float32
    assert np.array_equal(array, tensor)


def test_six_decimals_of_a_float_without_a_scale():
    tensor = np.float32([1 / 3, 2.0])
    array, notes = prepared(np.float64([0.333333, 2.000001]), tensor, None, is_text=True, decimals=6)
    assert (array == tensor).tolist() == [True, False]
    assert notes == ["printed with 6 decimals"]


def test_few_decimals_of_a_float_without_a_scale_are_taken_as_they_are():
    assert prepared(np.float64([0.3, 2.0]), np.float32([0.33, 2.0]), None, is_text=True, decimals=1)[0][
        0
    ] == np.float32(0.3)


def test_a_text_of_integers_for_a_float_tensor():
    tensor = np.float32([1.0, -0.5, 2.0])
    array, notes = prepared(np.int64([16, -8, 31]), tensor, is_text=True)
    assert (array.tolist(), array.dtype.kind, notes) == ([16, -8, 31], "i", ["read as integers"])
    array, notes = prepared(np.int64([1, -1, 2]), tensor, is_text=True)
    assert (array.tolist(), array.dtype, notes) == ([1.0, -1.0, 2.0], np.float32, [])
