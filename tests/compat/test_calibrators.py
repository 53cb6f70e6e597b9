# SPDX-License-Identifier: Apache-2.0
"""Calibrators of linger 3.x find the ranges that methods of linger find."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import linger


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr("linger.quantization.core.methods._registry", {})


def ranges(method: str) -> list[float]:
    torch.manual_seed(0)
    model = linger.init(nn.Sequential(nn.Linear(4, 3))).eval()
    linger.restore()
    with linger.calibration(method):
        model(torch.randn(64, 4))
    return [float(model[0].running_x), float(model[0].running_o)]


def test_a_calibrator_that_sets_learning_data() -> None:
    @linger.register_calibrate_method("abs_max_of_3")
    def abs_max(quantizer: Any, tensor: torch.Tensor, bits: int) -> None:
        assert bits == 8
        quantizer.learning_data = torch.log2(tensor.abs().max())
        quantizer.is_calibrate.fill_(value=True)

    @linger.register_calibrate_method("in_place")
    def in_place(quantizer: Any, tensor: torch.Tensor, bits: int) -> None:
        quantizer.learning_data.data.copy_(torch.log2(tensor.abs().max()))

    # 2^log2(x) is x but for the last bits of float32
    assert ranges("abs_max_of_3") == pytest.approx(ranges("max"), rel=1e-6)
    assert ranges("in_place") == ranges("abs_max_of_3")


def test_a_calibrator_sees_numbers_that_stand_for_all() -> None:
    seen = []

    @linger.register_calibrate_method("counting")
    def counting(quantizer: Any, tensor: torch.Tensor, bits: int) -> float:
        seen.append((len(tensor), float(tensor.min()), float(tensor.max())))
        return 1.0

    # a method never finds more than the largest magnitude
    assert ranges("counting")[0] == 1.0
    x = torch.manual_seed(0) and torch.nn.Linear(4, 3) and torch.randn(64, 4)
    assert (256, float(x.min()), float(x.max())) in seen


def test_a_method_of_lingers_own_form_is_kept_as_it_is() -> None:
    @linger.register_calibrate_method("half")
    def half(bins: Any, bits: int, share: float = 0.5) -> float:
        return float(bins.largest * share)

    assert ranges("half:0.25") == [value / 4 for value in ranges("max")]


def test_one_that_finds_nothing_is_refused_and_no_name_twice() -> None:
    @linger.register_calibrate_method("nothing")
    def nothing(quantizer: Any, tensor: torch.Tensor, bits: int) -> None:
        """Forgets to set anything."""

    with pytest.raises(linger.UsageError, match=r"'nothing' found the range nan"):
        ranges("nothing")
    with pytest.raises(linger.UsageError, match="linger has a method 'max' of its own"):
        linger.register_calibrate_method("max")
