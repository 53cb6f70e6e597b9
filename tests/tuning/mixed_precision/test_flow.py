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
from tests.support.tuning import ChipWidths, Unit, units_of, watch_flow


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
