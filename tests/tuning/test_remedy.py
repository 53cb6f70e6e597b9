# SPDX-License-Identifier: Apache-2.0
"""Bad input of a remedy is named before anything changes, and what fails leaves the model as it was."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from torch import nn

import linger
from linger import Remedy
from linger.tuning.remedy import Change, checked_data, require_float, require_pair, undone_on_error


@pytest.fixture
def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    reference = copy.deepcopy(model)
    made = linger.init(model).eval()
    with linger.calibration():
        made(torch.randn(8, 4))
    return made, reference


def test_data_are_batches_of_finite_numbers() -> None:
    assert len(checked_data("tune", None, [torch.ones(1), torch.ones(1)])) == 2
    with pytest.raises(linger.UsageError, match="tune: the data are empty"):
        checked_data("tune", None, [])
    with pytest.raises(linger.UsageError, match="batch 1 holds NaN"):
        checked_data("tune", None, [torch.ones(2), torch.tensor([math.nan, 1.0])])


def test_models_are_checked(pair: tuple[nn.Module, nn.Module]) -> None:
    model, reference = pair
    require_pair("distill", model, reference)
    require_float("equalize", reference)
    with pytest.raises(linger.UsageError, match="quantized already"):
        require_float("equalize", model)
    with pytest.raises(linger.UsageError, match="the model is not quantized"):
        require_pair("distill", reference, reference)
    other = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with pytest.raises(linger.UsageError, match="the reference has no layer 0, 2 of that shape"):
        require_pair("distill", model, other)
    with pytest.raises(linger.UsageError, match="has no scale yet"):
        require_pair("distill", linger.init(copy.deepcopy(reference)), reference)


def test_what_fails_leaves_the_model_as_it_was(pair: tuple[nn.Module, nn.Module]) -> None:
    model, _ = pair
    x = torch.randn(5, 4)
    before = model(x).dequantize().clone()

    def break_off() -> None:
        with undone_on_error("distill", model.train()):
            model[0].weight.data.zero_()
            model[2].ranges["w"].choose_range(0.5)
            model.eval()
            raise ZeroDivisionError("by zero")

    with pytest.raises(linger.UsageError, match=r"distill: ZeroDivisionError: by zero\. The model is as it was"):
        break_off()
    assert model.training
    assert torch.equal(model.eval()(x).dequantize(), before)


def test_a_result_can_be_shown_and_written() -> None:
    made = Remedy("distill", 10.0, 20.0, (Change("a.w", "scale", 16.0, 32.0),), trials=3)
    assert made.summary() == "distill: 10.0 dB before, 20.0 dB after, 1 changes after 3 trials"
    assert "a.w" in str(made)
    assert json.loads(made.to_json())["after_db"] == 20.0
