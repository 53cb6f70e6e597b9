"""Sequences and states of recurrent layers."""

import torch

from linger import QTensor
from tests.support.quantization import Runtime, dispatch
from tests.support.quantized_layers import Sequences, at_end, each, full_lengths, joining, ordered, range_suffix


def sequences(lengths=None, *, is_batch_first=False):
    x = torch.arange(24.0).reshape(4, 3, 2)
    return Sequences(QTensor(x, 1.0, 8, Runtime(dispatch)), lengths, is_batch_first)


def test_names_of_the_first_layer_are_the_documented_ones():
    assert [range_suffix(k, back) for k in (0, 2) for back in (0, 1)] == ["", "_reverse", "_l2", "_l2_reverse"]


def test_one_or_both_states_are_changed_alike():
    assert each(1, lambda s: s + 1) == 2
    assert each((1, 5), lambda s: s + 1) == (2, 6)


def test_states_follow_an_order():
    state = torch.tensor([[[1.0], [2.0], [3.0]]])
    assert ordered(state, torch.tensor([2, 0, 1])).flatten().tolist() == [3.0, 1.0, 2.0]
    assert ordered(state, None) is state


def test_ends_of_sequences():
    given = sequences(torch.tensor([1, 4, 2]))
    x = given.x.content
    assert torch.equal(at_end(x, given, 0), torch.stack([x[0, 0], x[3, 1], x[1, 2]]))
    assert torch.equal(at_end(x, given, 1), x[0])  # backwards, the last step is the first item
    assert torch.equal(at_end(x, sequences(), 0), x[-1])
    swapped = sequences(is_batch_first=True)
    assert torch.equal(at_end(x, swapped, 0), x[:, -1])


def test_lengths_of_whole_sequences():
    assert full_lengths(sequences()).tolist() == [4, 4, 4]
    assert full_lengths(sequences(is_batch_first=True)).tolist() == [3, 3, 3, 3]


def test_joining_names_the_width_only_where_it_is_not_the_usual_one():
    parts = [QTensor(torch.zeros(1), 64.0, bits, Runtime(dispatch)) for bits in (8, 8)]
    assert joining(parts) == {"scale_x_0": 64.0, "scale_x_1": 64.0, "scale_o": 64.0, "dim": 2}
    wide = [QTensor(torch.zeros(1), 64.0, 16, Runtime(dispatch))] * 2
    assert joining(wide)["o_bits"] == 16
