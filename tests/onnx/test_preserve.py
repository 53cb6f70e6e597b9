"""A model as it was."""

import pytest
import torch
from torch import nn

from linger.onnx.preserve import preserved
from tests.support.models import small_net


def test_everything_is_restored_after_an_error():
    model, x = small_net()
    model.train()
    model.pool.eval()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    runtime = model._linger_runtime

    def use_and_fail():
        with preserved(model):
            runtime.recorder = lambda name, integers: None
            model(x * 100)
            model.stem.running_o.fill_(77.0)
            torch.rand(3)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        use_and_fail()
    assert model.training
    assert not model.pool.training
    assert runtime.recorder is None
    assert runtime.frames == []
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in state.items())


def test_float_model_has_no_runtime():
    model = nn.Linear(2, 2)
    with preserved(model) as runtime:
        assert runtime is None
        assert not model.training
    assert model.training
