# SPDX-License-Identifier: Apache-2.0
"""Biases of recurrent layers: sums of gates step by step, corrections by hand, stacks, directions, lengths and cells."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import linger
from linger.tuning.bias_correction.correction import float_gates
from tests.support.tuning import Kind, ranges_of

LENGTHS = [3, 5, 4]


def cell_of(layer: Any, k: int, end: str) -> nn.RNNCellBase:
    """One direction of one layer as torch's own cell."""
    kind = nn.LSTMCell if isinstance(layer, nn.LSTM) else nn.GRUCell
    weights = {name: getattr(layer, f"{name}_l{k}{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    cell = kind(weights["weight_ih"].shape[1], layer.hidden_size)
    cell.load_state_dict(weights)
    return cell


def step_by_step(layer: Any, sequences: list[Tensor]) -> dict[str, Tensor]:
    """The means of the gates' sums, from single steps of single sequences."""
    found: dict[str, Tensor] = {}
    for k in range(layer.num_layers):
        outs: list[list[Tensor]] = []
        for end in ("", "_reverse"):
            cell, sums = cell_of(layer, k, end), []
            outs.append([])
            for sequence in sequences:
                state: Any = None
                h, made = torch.zeros(1, layer.hidden_size), []
                for x in sequence.flip(0) if end else sequence:
                    sums.append(sums_of(cell, x[None], h))
                    state = cell(x[None], state)
                    h = state[0] if isinstance(state, tuple) else state
                    made.append(h)
                outs[-1].append(torch.cat(made[::-1] if end else made))
            found[f"bias_ih_l{k}{end}"] = torch.cat(sums).mean(0)
        sequences = [torch.cat(both, 1) for both in zip(*outs, strict=True)]
    return found


def sums_of(cell: Any, x: Tensor, h: Tensor) -> Tensor:
    given, own = x @ cell.weight_ih.t() + cell.bias_ih, h @ cell.weight_hh.t() + cell.bias_hh
    if isinstance(cell, nn.LSTMCell):
        return given + own
    (r, z, n), (hr, hz, hn) = given.chunk(3, 1), own.chunk(3, 1)
    return torch.cat([r + hr, z + hz, n + torch.sigmoid(r + hr) * hn], 1)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_sums_are_those_of_single_steps(kind: type[nn.Module]) -> None:
    layer = kind(4, 3, num_layers=2, bidirectional=True)
    x = torch.randn(5, 3, 4)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    with torch.no_grad():
        found = dict(float_gates(layer, (packed,), {}))
        expected = step_by_step(layer, [x[:n, i] for i, n in enumerate(LENGTHS)])
        plain = dict(float_gates(layer, (x,), {}))
        expected_plain = step_by_step(layer, list(x.unbind(1)))
    for means, wanted, count in ((found, expected, sum(LENGTHS)), (plain, expected_plain, 15)):
        assert list(means) == ["bias_ih_l0", "bias_ih_l0_reverse", "bias_ih_l1", "bias_ih_l1_reverse"]
        for key, mean in means.items():
            assert mean.count == count
            assert mean.mean.float() == pytest.approx(wanted[key], abs=1e-5)  # float32 sums of a few numbers near 1


LARGEST, SMALL = 127 / 64, 2.0**-7  # the scale is 64, so 2^-7 = 0.5/64 is rounded up to 1/64
INPUT = torch.tensor([[0.0, 1.5], [0.0, 0.5]])


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_a_shift_worked_out_by_hand(kind: type[nn.RNNCellBase]) -> None:
    cell = kind(2, 1)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor([[LARGEST, SMALL]] * len(cell.weight_ih)))
        cell.weight_hh.fill_(0.5)
        cell.bias_ih.fill_(0.25)
        cell.bias_hh.zero_()
    model, reference = quantized(cell, INPUT)
    result = linger.correct_biases(model, reference, INPUT)
    # every gate is 2^-7·1 too large on average; the states are zero
    assert model.bias_ih.tolist() == [0.25 - 2.0**-7] * len(cell.bias_ih)
    assert not model.bias_hh.any()
    assert [change.name for change in result.changes] == ["bias_ih"]


def quantized(model: nn.Module, *inputs: Any) -> tuple[nn.Module, nn.Module]:
    reference = model.eval()
    made = linger.init(copy.deepcopy(model)).eval()
    with torch.no_grad(), linger.calibration():
        made(*inputs)
    return made, reference


class Reader(nn.Module):
    """A recurrent layer and a decision; cells are called step by step."""

    def __init__(self, layer: nn.Module, width: int, *, is_packed: bool = False) -> None:
        super().__init__()
        self.layer, self.last, self.is_packed = layer, nn.Linear(width, 3), is_packed

    def forward(self, x: Tensor) -> Tensor:
        if self.is_cell:
            return self.last(torch.stack(list(self.steps(x))))
        if self.is_packed:
            lengths = torch.tensor([6, 2, 4, 6])[: x.shape[1]]
            packed, _ = self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
            out, _ = nn.utils.rnn.pad_packed_sequence(packed)
        else:
            out, _ = self.layer(x)
        return self.last(out)

    is_cell = False

    def steps(self, x: Tensor) -> Iterator[Tensor]:
        state: Any = None
        for step in x:
            state = self.layer(step, state)
            yield state[0] if isinstance(state, tuple) else state


def cell_reader(kind: type[nn.Module]) -> Reader:
    made = Reader(kind(4, 5), 5)
    made.is_cell = True
    return made


NETS = {
    "LSTM": lambda: Reader(nn.LSTM(4, 5), 5),
    "GRU, two layers": lambda: Reader(nn.GRU(4, 5, num_layers=2), 5),
    "LSTM, both directions, lengths": lambda: Reader(nn.LSTM(4, 5, bidirectional=True), 10, is_packed=True),
    "GRU, batch first": lambda: Reader(nn.GRU(4, 5, batch_first=True, bidirectional=True), 10),
    "LSTM cell": lambda: cell_reader(nn.LSTMCell),
    "GRU cell": lambda: cell_reader(nn.GRUCell),
}


@pytest.mark.parametrize("name", NETS)
def test_coarse_weights_shift_the_gates_and_fine_ones_do_not(name: str) -> None:
    torch.manual_seed(0)
    source = NETS[name]()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.mul_(2)
    x = torch.rand(6, 4, 4) + 0.5
    reference = copy.deepcopy(source).eval()
    linger.quant_module(source, data_bits=16, parameter_bits=16, out_bits=16)
    model, _ = quantized(source, x)
    keys = [key for key, _ in source.named_parameters() if "bias_ih" in key]
    before = copy.deepcopy(model)
    for found in ranges_of(model).values():
        if found.kind is Kind.WEIGHT:
            found.choose(found.scale / 2**12)  # 4 bits
    result = linger.correct_biases(model, reference, x)
    assert result.after_db > result.before_db
    largest = {change.name: change.after for change in result.changes}
    assert set(keys) <= set(largest)
    assert all(not torch.equal(model.get_parameter(key), before.get_parameter(key)) for key in keys)
    # with 16 bits there is nothing to correct, or it is undone
    fine = {change.name: change.after for change in linger.correct_biases(before, reference, x).changes}
    assert all(fine[key] < 0.1 * largest[key] for key in keys if key in fine)


def test_a_layer_without_biases_is_left_alone_and_named() -> None:
    x = torch.rand(6, 4, 4)
    model, reference = quantized(Reader(nn.LSTM(4, 5, bias=False), 5), x)
    ranges_of(model)["last.w"].choose(8.0)  # something to correct behind it
    result = linger.correct_biases(model, reference, x)
    assert ("layer", "left alone: it has no bias") in [(change.name, change.what) for change in result.changes]
