# SPDX-License-Identifier: Apache-2.0
"""Who makes a tensor and who reads it: through sums, pools, views and joins, and for tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.chip import add_wide_chip
from tests.support.noisy_layers import quantized_copy
from tests.support.tuning import BitModel, ChipWidths, Originals, Unit, peak_bytes_of, units_of, watch_flow


class Wires(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.left, self.right = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.stem(x)))
        y = self.left(x) + self.right(x)
        return self.fc(torch.cat([y, x], 1).flatten(1))


def units(model: nn.Module, x: Tensor) -> dict[str, Unit]:
    found = quantized_copy(model.eval(), x)
    return {unit.key: unit for unit in units_of(found, watch_flow(found, (x,)))}


def test_readers_are_found_behind_what_only_moves_numbers() -> None:
    found = units(Wires(), torch.randn(2, 2, 6, 6))
    sums = [key for key in found if "iqadd" in key]
    assert found["stem.o"].readers == ("left", "right", "fc")  # behind ReLU and the pool, and joined to the sum
    assert found[sums[0]].readers == ("fc",)
    assert (found[sums[0]].label, found[sums[0]].is_function) == ("iqAdd", True)
    assert found["left.o"].readers == found["right.o"].readers == ()
    assert found["left.o"].reading_ops >= {"iqAdd", "LinearInt"}  # the sum is as wide as its widest operand
    assert found["stem.x"].readers == ("stem",)
    assert found["fc.w"].size == 32 * 3
    assert found["stem.w"].macs == 2 * 4 * 4 * 4 * 18


def test_units_know_whether_their_layer_has_weights() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    found = units(model, torch.randn(2, 2, 6, 6))
    assert {key for key, unit in found.items() if unit.has_weights} == {"0.w", "0.o", "3.w", "3.o"}
    assert not found["1.o"].has_weights


class InPlace(Wires):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.left(x)
        y += x
        y = self.pool(torch.relu_(y))
        return self.fc(torch.cat([y, y], 1).flatten(1))


def test_a_sum_in_place_is_what_is_read_behind_it() -> None:
    found = units(InPlace(), torch.randn(2, 2, 6, 6))
    (sums,) = (unit for key, unit in found.items() if "iqadd" in key)
    assert sums.readers == ("fc",)
    assert sums.reading_ops >= {"MaxPool", "LinearInt"}
    assert not ChipWidths.of("venus").allows(sums, 16)  # its pools read 8 bits


def test_a_chip_that_reads_eight_bits_keeps_its_inputs_narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = units(Wires(), torch.randn(2, 2, 6, 6))
    venus, wide = ChipWidths.of("venus"), ChipWidths.of(add_wide_chip(monkeypatch, tmp_path))
    assert not any(venus.allows(unit, 16) for unit in found.values() if unit.key != "fc.o")
    assert venus.allows(found["fc.o"], 16)  # a matrix product may return 16 bits
    assert not ChipWidths.of("venusA").allows(found["stem.w"], 16)  # nobody has tried it
    assert wide.allows(found["stem.w"], 16)
    assert not wide.allows(found["stem.o"], 16)  # its convolutions read 8 bits
    assert all(ChipWidths.of(None).allows(unit, 16) for unit in found.values())


def test_a_pool_that_reads_eight_bits_gives_no_more() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    found = units(model, torch.randn(2, 2, 6, 6))
    assert not ChipWidths.of("venus").allows(found["1.o"], 16)
    assert ChipWidths.of(None).allows(found["1.o"], 16)


def test_rows_of_a_table_have_the_width_of_its_weights() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.Embedding(10, 4), nn.Linear(4, 2)

        def forward(self, words: Tensor) -> Tensor:
            return self.fc(self.table(words))

    model = Words().eval()
    linger.quant_module(model.table, type_modules=[nn.Embedding])
    found = units(model, torch.arange(6))
    assert found["table.w"].readers == ("fc",)
    assert "table.o" not in found


class Voice(nn.Module):
    """A recurrent layer, or a cell step by step, behind a linear layer or not."""

    def __init__(self, rnn: nn.Module, *, is_behind: bool = False) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.is_cell = isinstance(rnn, nn.RNNCellBase)
        self.rnn, self.first = rnn, nn.Linear(6, 6) if is_behind else nn.Identity()
        self.fc = nn.Linear(8 * (1 + getattr(rnn, "bidirectional", False)), 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        if not self.is_cell:
            return self.fc(self.rnn(x)[0][:, -1])
        states = None
        for step in x.unbind(1):
            states = self.rnn(step, states)
        return self.fc(states[0] if isinstance(states, tuple) else states)


SOUND = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
VOICES = {
    "LSTM": Voice(nn.LSTM(6, 8, batch_first=True)),
    "LSTM behind a layer": Voice(nn.LSTM(6, 8, batch_first=True), is_behind=True),
    "two layers": Voice(nn.LSTM(6, 8, num_layers=2, batch_first=True)),
    "both directions": Voice(nn.GRU(6, 8, bidirectional=True, batch_first=True)),
    "cell": Voice(nn.LSTMCell(6, 8), is_behind=True),
}


@pytest.mark.parametrize("name", VOICES)
def test_inputs_and_states_of_a_recurrent_layer_are_tensors_of_their_own(name: str) -> None:
    found = units(VOICES[name].eval(), SOUND)
    is_behind = isinstance(VOICES[name].first, nn.Linear)
    read = found["first.o" if is_behind else "rnn.i"]
    state = found["rnn.o_l1" if name == "two layers" else "rnn.o"]
    assert read.readers == ("rnn",)
    assert state.readers == ("fc",)  # a state that goes in again has the width of the output, not of the input
    layer = VOICES[name].rnn
    per_step = {kind: sum(p.numel() for n, p in layer.named_parameters() if kind in n) for kind in ("ih", "hh")}
    biases = {kind: sum(p.numel() for n, p in layer.named_parameters() if f"bias_{kind}" in n) for kind in per_step}
    assert read.macs == 5 * (per_step["ih"] - biases["ih"])
    assert state.macs == 5 * (per_step["hh"] - biases["hh"]) + 3 * VOICES[name].fc.in_features
    outputs = 2 if name in ("two layers", "both directions") else 1
    assert state.size == 5 * 8 * outputs


@pytest.mark.parametrize("chip", ["venus", "arcs", "venusA"])
def test_no_chip_is_known_to_have_wide_recurrent_layers(chip: str) -> None:
    found = units(VOICES["LSTM behind a layer"].eval(), SOUND)
    narrow = [unit.key for unit in found.values() if not ChipWidths.of(chip).allows(unit, 16)]
    assert {"first.o", "rnn.o", "rnn.w"} <= set(narrow)


class Turned(nn.Module):
    """Views, another order of the numbers, a part of them, joins, a curve with a Requant before it, and a product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(2, 4, 3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(x)).flatten(2).transpose(1, 2)[:, ::4]
        y = self.fc(torch.cat([y, y, y, y], 2))
        return torch.sigmoid(y) * y


IMAGE = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(1))
NETS = {
    **{name: (net, SOUND) for name, net in VOICES.items()},
    **{kind.__name__: (kind(), IMAGE) for kind in (Wires, InPlace, Turned)},
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.thin(every=2)
def test_memory_is_that_of_the_exported_file(name: str, tmp_path: Path) -> None:
    net, x = NETS[name]
    model = quantized_copy(net.eval(), x)
    flow = watch_flow(model, (x,))
    every = [unit for unit in units_of(model, flow) if unit.what == "activations" or unit.macs]  # those that run
    bits = BitModel(model, every, flow, {}, Originals(model, net))
    narrow = None
    for choice in ({}, dict.fromkeys(every, 16), *({unit: 16} for unit in every[::3])):
        bits.apply(choice)
        linger.onnx.export(model, (x,), tmp_path / "net.onnx")
        use = linger.memory(tmp_path / "net.onnx")
        integers = [sum(t.bytes or 0 for t in use.alive_at(i) if not t.is_float) for i in range(len(use.layers))]
        cost = bits.cost(choice)
        assert cost.peak_bytes == peak_bytes_of(model, (x,)) == max(integers)
        narrow = narrow or (cost.weight_bytes, use.weight_bytes)
        assert cost.weight_bytes - narrow[0] == use.weight_bytes - narrow[1]  # the file counts biases, too
