"""Sums of weights, worked out by hand, in one piece and in many."""

import numpy as np
import onnx_ir as ir
import pytest

from linger.checks.findings import parameters as weight_sums
from linger.checks.findings.parameters import blocks, row_sums, transposed_sums
from linger.graph import load, save
from tests.graph.files.test_external_data import with_weights


def tensor(values, dtype=np.int8):
    return ir.tensor(np.asarray(values, dtype))


def test_rows_are_channels():
    found = row_sums(tensor([[1, -2, 3], [-128, 127, 0]]), 2)
    assert found.positive.tolist() == [[4], [127]]
    assert found.negative.tolist() == [[2], [128]]
    assert (found.low, found.high) == (-128, 127)


def test_a_number_per_channel():
    found = row_sums(tensor([5, -7]), 2)
    assert (found.positive.tolist(), found.negative.tolist()) == ([[5], [0]], [[0], [7]])


def test_sums_do_not_wrap():
    found = row_sums(tensor(np.full((1, 3), -(2**31)), np.int32), 1)
    assert found.negative.tolist() == [[3 * 2**31]]


def test_nothing_is_no_sum():
    found = row_sums(tensor(np.zeros((0, 4))), 0)
    assert found.positive.shape == (0, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11, 12, 100])
def test_blocks_of_any_size_are_the_whole(size):
    content = np.arange(12, dtype=np.int16).reshape(3, 4) - 6
    seen = np.zeros(3, np.int64)
    numbers = []
    for start, block in blocks(tensor(content, np.int16), 4, size):
        assert block.size <= max(size, 1)
        numbers += block.reshape(-1).tolist()
        seen[start : start + len(block)] += block.sum(axis=1)
    assert numbers == content.reshape(-1).tolist()
    assert seen.tolist() == content.sum(axis=1).tolist()


def test_long_rows_come_in_pieces_and_add_up(monkeypatch):
    content = np.array([[1, -2, 3, -4, 5], [6, 7, 8, 9, -10]], np.int8)
    whole = row_sums(tensor(content), 2)
    monkeypatch.setattr(weight_sums.blocks, "__defaults__", (2,))
    pieces = row_sums(tensor(content), 2)
    assert (whole.positive.tolist(), whole.negative.tolist()) == ([[9], [30]], [[6], [10]])
    assert (pieces.positive.tolist(), pieces.negative.tolist()) == (whole.positive.tolist(), whole.negative.tolist())


def test_taps_of_a_transposed_convolution_take_turns():
    # one input, one output, taps 0…3 along one axis, stride 2: an output pixel meets taps 0 and 2, or 1 and 3
    found = transposed_sums(tensor([[[1, 10, 2, -20]]]), group=1, strides=[2], dilations=[1])
    assert found.positive.tolist() == [[3, 10]]
    assert found.negative.tolist() == [[0, 20]]
    assert (found.low, found.high) == (-20, 10)


def test_without_a_stride_all_taps_meet():
    found = transposed_sums(tensor([[[1, 10, 2, -20]]]), group=1, strides=[1], dilations=[1])
    assert (found.positive.tolist(), found.negative.tolist()) == ([[13]], [[20]])


def test_spread_taps_may_all_fall_on_one_turn():
    # dilation 2, stride 2: all taps fall on even pixels
    found = transposed_sums(tensor([[[1, 10, 2, -20]]]), group=1, strides=[2], dilations=[2])
    assert found.positive.tolist() == [[13]]


def test_groups_of_a_transposed_convolution_have_channels_of_their_own():
    # [in 4, out/group 2, 1×1], 2 groups: inputs 0, 1 feed outputs 0, 1; inputs 2, 3 feed outputs 2, 3
    weight = np.array([[1, 2], [3, -4], [5, 6], [-7, 8]], np.int8).reshape(4, 2, 1, 1)
    found = transposed_sums(tensor(weight), group=2, strides=[1, 1], dilations=[1, 1])
    assert found.positive.tolist() == [[4], [2], [5], [14]]
    assert found.negative.tolist() == [[0], [4], [7], [0]]


def test_two_axes_have_the_product_of_turns():
    # taps 2×2, strides 2×2: every output pixel meets one tap
    found = transposed_sums(tensor([[[[1, 2], [3, 4]]]]), group=1, strides=[2, 2], dilations=[1, 1])
    assert found.positive.tolist() == [[1, 2, 3, 4]]


def test_external_weights_are_read_piece_by_piece(tmp_path, monkeypatch):
    content = (np.arange(3000) % 251 - 125).astype(np.int8).reshape(3, 1000)
    save(with_weights(np.zeros(2000, np.int8), content), tmp_path / "m.onnx", external_data=True)
    value = load(tmp_path / "m.onnx").graph.initializers["w1"]
    assert isinstance(value.const_value, ir.ExternalTensor)
    read = []
    monkeypatch.setattr(
        np, "fromfile", lambda file, kind, count, own=np.fromfile: read.append(count) or own(file, kind, count)
    )
    monkeypatch.setattr(weight_sums.blocks, "__defaults__", (300,))
    found = row_sums(value.const_value, 3)
    assert found.positive[:, 0].tolist() == np.maximum(content, 0).sum(axis=1, dtype=np.int64).tolist()
    assert (sum(read), max(read)) == (3000, 300)
