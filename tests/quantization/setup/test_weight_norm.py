"""weight_norm in both of torch's forms: folded at init, in the layer and in checkpoints."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import weight_norm as older_weight_norm

import linger
from linger import init
from tests.support.quantization import QuantLayer, QuantRecurrent
from tests.support.wired import quantize

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")

FORMS = {"older": older_weight_norm, "newer": parametrizations.weight_norm}
each_form = pytest.mark.parametrize("normed", FORMS.values(), ids=FORMS)


def net(normed, dim=0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 2, 1))
    for index in (0, 3):
        model[index] = normed(model[index], dim=dim)
        key = "weight_g" if normed is older_weight_norm else "parametrizations.weight.original0"
        model[index].get_parameter(key).data.mul_(1.7)  # no longer the norm that it was made from
    return model.eval()


def signal():
    return torch.randn(4, 3, 9, generator=torch.Generator().manual_seed(1))


@each_form
@pytest.mark.parametrize("dim", [0, None], ids=["by channel", "whole"])
def test_the_weight_becomes_a_parameter_and_the_layer_integer(normed, dim, tmp_path):
    model = net(normed, dim)
    with torch.no_grad():
        model(signal())
    weights = [model[i].weight.detach().clone() for i in (0, 3)]
    quantized = quantize(model, signal())
    assert [type(quantized[i]) for i in (0, 3)] == [QuantLayer] * 2
    assert all(torch.equal(quantized[i].weight, w) for i, w in zip((0, 3), weights, strict=True))
    assert linger.coverage(quantized).integer_share == 1.0
    linger.onnx.export(quantized, (signal(),), tmp_path / "m.onnx")
    assert linger.verify(quantized, tmp_path / "m.onnx", (signal(),)).ok
    assert pickle.loads(pickle.dumps(quantized.state_dict())).keys() == quantized.state_dict().keys()


@each_form
def test_checkpoints_of_the_float_model_load_afterwards(normed):
    source = net(normed)
    source(signal())  # the older form computes its weight in a pass
    expected = [source[i].weight.detach().clone() for i in (0, 3)]
    model = init(nn.Sequential(*(normed(m) if isinstance(m, nn.Conv1d) else m for m in copy.deepcopy(plain()))))
    missing, unexpected = model.load_state_dict(source.state_dict(), strict=False)
    assert (missing, unexpected) == ([], [])
    for i, weight in zip((0, 3), expected, strict=True):
        assert torch.allclose(model[i].weight, weight, rtol=1e-6, atol=0)


def plain():
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 2, 1))


def test_a_fused_pair_and_its_checkpoint():
    model = net(parametrizations.weight_norm)
    state = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        weight = model[0].weight.clone()
    linger.trace_layers(model, signal())
    quantized = init(model)
    assert torch.equal(quantized[0].weight, weight)
    with torch.no_grad():
        quantized[0].weight.zero_()
    quantized.load_state_dict(state)
    assert torch.allclose(quantized[0].weight, weight, rtol=1e-6, atol=0)


@each_form
def test_a_copy_of_the_model_keeps_its_own(normed):
    model = net(normed)
    with torch.no_grad():  # torch copies the older form only where its weight has no graph
        expected = model(signal())
        quantize(copy.deepcopy(model), signal())
        assert torch.equal(model(signal()), expected)


def test_recurrent_layers():
    lstm = parametrizations.weight_norm(nn.LSTM(3, 4), "weight_hh_l0")
    made = init(nn.Sequential(lstm))
    assert isinstance(made[0], QuantRecurrent)


def test_other_parametrizations_stay_float_with_a_reason():
    model = nn.Sequential(nn.Linear(4, 4), parametrizations.spectral_norm(nn.Linear(4, 4)))
    quantized = quantize(model.eval(), torch.randn(3, 4))
    (row,) = linger.coverage(quantized).float_ops
    assert (row.where, row.op) == ("1", "linear")
    assert "computed from others (a parametrization, spectral_norm, pruning)" in row.reason
