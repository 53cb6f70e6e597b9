"""A model as it was."""

import onnx
import pytest
import torch
from torch import nn

import linger
from linger.quantization.core.quantized import PARTS
from linger.simulation import preserved
from tests.support.models import quantized, small_net


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


def test_passes_behind_it_are_the_users_own_again():
    model, x = small_net()
    with linger.Dumper() as dumper:
        dumper.analyse_layer_output(model)
        with preserved(model):
            model(x)
        output = model(x[:1])
    assert dumper.result.rows[-1].count == output.numel()


def test_float_model_has_no_runtime():
    model = nn.Linear(2, 2)
    with preserved(model) as runtime:
        assert runtime is None
        assert not model.training
    assert model.training


def test_an_edit_behind_torchs_back_reaches_every_export(tmp_path):
    x = torch.randn(4, 4096)
    model = quantized(nn.Sequential(nn.Linear(4096, 8)), x)
    column = 4096 // PARTS // 2
    for part in range(PARTS):  # whichever part the next ordinary pass would look at
        with torch.no_grad():
            model(x)
        weight = model[0].weight
        weight.data[3, part * 4096 // PARTS + column] = float(weight.detach().abs().max())
        linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare")
        stored = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(tmp_path / "net.onnx").graph.initializer}
        expected = torch.floor(weight.detach() * model[0].read("scale_w") + 0.5)
        assert torch.equal(torch.from_numpy(stored["0.weight"].astype("float32")), expected)
