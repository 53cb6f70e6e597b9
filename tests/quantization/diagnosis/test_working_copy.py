"""Copies of a model that leave it alone."""

import pytest
import torch
from torch import nn

from linger.errors import UsageError
from tests.support.diagnosis import sharing_copy, working_copy


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_a_working_copy_is_in_evaluation_and_has_its_own_tensors():
    model = net().train()
    made = working_copy(model, "test")
    assert not any(module.training for module in made.modules())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    with torch.no_grad():
        made[0].weight.zero_()
    assert model[0].weight.abs().sum() > 0


def test_layers_inside_torchs_fused_transformer_run_one_by_one():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    ran = []
    made = working_copy(model, "test")
    made.linear1.register_forward_hook(lambda *_: ran.append("linear1"))
    alone = working_copy(model, "test")
    alone.linear1.forward = lambda x: ran.append("forward") or nn.functional.linear(x, model.linear1.weight)
    with torch.no_grad():
        made(torch.ones(1, 2, 8))
        alone(torch.ones(1, 2, 8))
    assert ran == ["linear1", "forward"]


def test_a_model_that_cannot_be_copied_is_named():
    model = net()
    model.graph = model[0].weight * 2
    with pytest.raises(UsageError, match=r"test: a copy of Sequential cannot be made \(RuntimeError: "):
        working_copy(model, "test")


def test_a_sharing_copy_has_the_same_parameters_and_its_own_buffers_and_modules():
    model = net()
    made = sharing_copy(model)
    assert made[0] is not model[0]
    assert made[0].weight is model[0].weight
    assert made[1].running_mean is not model[1].running_mean
    assert torch.equal(made[1].running_mean, model[1].running_mean)


def test_an_object_can_be_replaced_in_the_copy():
    model = net()
    model.note, model[0].note = (shared := ["old"]), shared
    new = ["new"]
    made = sharing_copy(model, instead=[(shared, new)])
    assert made.note is made[0].note is new
    assert model.note == ["old"]
