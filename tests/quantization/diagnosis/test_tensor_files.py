"""File names that stay in their folder, text that numpy reads back, and the documented names of an op's tensors."""

import numpy as np
import pytest
import torch

from linger import QTensor
from linger.errors import UsageError
from tests.support.diagnosis import Frozen, as_array, op_settings, op_tensors, write_tensors
from tests.support.quantization import Runtime, dispatch, find_op

# -- files ------------------------------------------------------------------------------------------------------


def test_text_has_a_number_per_line_and_npz_everything(tmp_path):
    x = np.array([[1.5, -0.25], [1e-7, 1 / 3]], np.float32)
    q = np.array([-128, 127], np.int8)
    write_tensors(tmp_path, "root.a", {".input": [x], ".q_outputs": [q]}, {"x": x, "q": q, "scale_x": 16.0})
    assert (tmp_path / "root.a.input").read_text() == "1.500000\n-0.250000\n0.000000\n0.333333\n"
    assert (tmp_path / "root.a.q_outputs").read_text() == "-128.000000\n127.000000\n"
    with np.load(tmp_path / "root.a.npz", allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["x"], x)
        assert (stored["q"].dtype, stored["scale_x"]) == (np.int8, 16.0)
    assert len(list(tmp_path.iterdir())) == 3


def test_text_is_what_numpy_would_write(tmp_path, draw):
    x = draw.standard_normal(40_000).astype(np.float32) * 10.0 ** draw.integers(-8, 8, 40_000)
    write_tensors(tmp_path, "ours", {"": [x.reshape(200, 200)]}, {})
    np.savetxt(tmp_path / "numpy", x, fmt="%.6f")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "numpy").read_bytes()


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.empty((0, 3)), ""),
        (np.array(2.0), "2.000000\n"),
        (np.array([True, False]), "1.000000\n0.000000\n"),
        (np.array([np.nan, -np.inf]), "nan\n-inf\n"),
        (np.array([1 + 2j], np.complex64), "1.000000\n2.000000\n"),
        (np.arange(6).reshape(2, 3).T, "0.000000\n3.000000\n1.000000\n4.000000\n2.000000\n5.000000\n"),
    ],
    ids=["empty", "scalar", "bool", "not finite", "complex", "transposed"],
)
def test_text_of_special_arrays(tmp_path, array, text):
    write_tensors(tmp_path, "a", {".x": [array]}, {"x": array})
    assert (tmp_path / "a.x").read_text() == text


def test_several_arrays_follow_one_another(tmp_path):
    write_tensors(tmp_path, "a", {"_x": [np.ones((1, 2)), np.zeros(1)]}, {})
    assert (tmp_path / "a_x").read_text() == "1.000000\n1.000000\n0.000000\n"


def test_a_file_that_cannot_be_written_leaves_none_changed(tmp_path):
    write_tensors(tmp_path, "a", {".x": [np.zeros(1)]}, {"x": np.zeros(1)})
    (tmp_path / "a.y").mkdir()
    with pytest.raises(UsageError, match="a folder"):
        write_tensors(tmp_path, "a", {".x": [np.ones(1)], ".y": [np.ones(1)]}, {"x": np.ones(1)})
    assert (tmp_path / "a.x").read_text() == "0.000000\n"


# -- arrays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float64, torch.int8, torch.int64, torch.uint8, torch.bool], ids=str
)
def test_arrays_keep_type_shape_and_values(dtype):
    tensor = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    made = as_array(tensor)
    assert f"torch.{made.dtype}" == str(dtype)
    np.testing.assert_array_equal(made, tensor.numpy())


def test_types_that_numpy_lacks_become_float32():
    made = as_array(torch.tensor([1.5, -3.0], dtype=torch.bfloat16))
    assert (made.dtype, made.tolist()) == (np.float32, [1.5, -3.0])
    assert as_array(torch.tensor([1.5]).to(torch.float8_e4m3fn)).tolist() == [1.5]


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag, torch.eye(2).to_sparse()],
    ids=["conjugate", "negative", "sparse"],
)
def test_views_of_other_kinds_are_resolved(tensor):
    np.testing.assert_array_equal(as_array(tensor), np.array(tensor.to_dense().tolist()))


def test_arrays_are_copies():
    tensor = torch.ones(2, requires_grad=True)
    made = as_array(tensor)
    with torch.no_grad():
        tensor.zero_()
    assert made.tolist() == [1.0, 1.0]


# -- ops --------------------------------------------------------------------------------------------------------


def quantized(values, scale=4.0, bits=8):
    return QTensor(torch.tensor(values) / scale, scale, bits, Runtime(dispatch))


X, Y = quantized([4.0, -8.0]), quantized([1.0, 2.0], 2.0, 16)


def test_names_of_one_operand():
    found = op_tensors(find_op("Relu"), [X], Y)
    assert {key: array.tolist() for key, array in found.items()} == {
        "input": [1.0, -2.0],
        "outputs": [0.5, 1.0],
        "q_input": [4, -8],
        "q_outputs": [1, 2],
    }
    assert (found["q_input"].dtype, found["q_outputs"].dtype) == (np.int8, np.int16)


def test_names_of_several_operands():
    found = op_tensors(find_op("iqCat"), [X, Y, X], Y)
    inputs = ["input1", "input2", "input3"]
    assert set(found) == {*inputs, *(f"q_{name}" for name in inputs), "outputs", "q_outputs"}
    assert found["q_input2"].tolist() == [1, 2]


def parameters(bias):
    integers = torch.tensor([[3, -5]], dtype=torch.int8)
    bias_integers = None if bias is None else (bias * 16).to(torch.int32)
    return Frozen(integers / 4.0, bias, integers, bias_integers, 4.0)


def test_names_of_a_layer_with_weights():
    found = op_tensors(find_op("LinearInt"), [X, parameters(torch.tensor([0.5], dtype=torch.float64))], Y)
    assert [key for key in found if key.startswith("q_")] == ["q_input", "q_weights", "q_bias", "q_outputs"]
    assert found["weights"].tolist() == [[0.75, -1.25]]
    assert found["q_weights"].tolist() == [[3, -5]]
    assert (found["bias"].tolist(), found["q_bias"].tolist(), found["q_bias"].dtype) == ([0.5], [8], np.int32)
    assert "bias" not in op_tensors(find_op("LinearInt"), [X, parameters(None)], Y)


def test_the_input_of_quant_is_real():
    found = op_tensors(find_op("Quant"), [torch.tensor([0.3])], X)
    assert set(found) == {"input", "outputs", "q_outputs"}


def test_settings_are_the_attributes_of_the_node():
    attributes = {"data_bits": 8, "parameter_bits": 4, "o_bits": 16, "scale_x": 4.0, "scale_w": 8.0, "scale_o": 2.0}
    found = op_settings(find_op("LinearInt"), [X, parameters(None)], attributes, Y)
    assert {key: found[key] for key in attributes} == attributes
    assert found["platform_quant"] == "luna_quant"


def test_ops_that_keep_the_scale_get_it_from_their_tensors():
    found = op_settings(find_op("Relu"), [X], {}, Y)
    assert found == {"scale_x": 4.0, "data_bits": 8, "scale_o": 2.0, "o_bits": 16}


def test_constants_of_a_node_are_settings():
    clip, operands = find_op("Clip"), [X, quantized(0.0), quantized(24.0)]
    assert set(op_tensors(clip, operands, X)) == {"input", "q_input", "outputs", "q_outputs"}
    found = op_settings(clip, operands, {}, X)
    assert (found["q_low"], found["q_high"], found["data_bits"]) == (0, 24, 8)


def test_bits_of_several_operands_are_a_list():
    attributes = {"dim": 0, "scale_x_0": 4.0, "scale_x_1": 2.0, "scale_o": 2.0}
    found = op_settings(find_op("iqCat"), [X, Y], attributes, Y)
    assert found["data_bits"] == [8, 16]
    assert (found["scale_x_0"], found["scale_x_1"]) == (4.0, 2.0)
