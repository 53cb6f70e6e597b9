# SPDX-License-Identifier: Apache-2.0
"""The layer classes of linger 1.x answer isinstance; its lists of types can be given to `init`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import linger


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.act, self.pool = nn.Conv2d(1, 4, 3), nn.ReLU6(), nn.AvgPool2d(2)
        self.lstm, self.head = nn.LSTM(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.act(self.conv(x))).flatten(2).transpose(1, 2)
        h = self.lstm(y)[0]
        return torch.sigmoid(self.head(torch.bmm(h, h.transpose(1, 2)) @ h + h))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    model = linger.init(Net()).eval()
    with linger.calibration():
        model(torch.rand(2, 1, 6, 6))
    linger.restore()
    return model


@pytest.mark.parametrize(
    ("path", "name"),
    [("conv", "Conv2dInt"), ("act", "ReLU6Int"), ("pool", "AvgPool2dInt"), ("lstm", "LSTMInt"), ("head", "LinearInt")],
    ids=str,
)
def test_a_layer_is_of_its_class_and_of_no_other(net: nn.Module, path: str, name: str) -> None:
    layer = net.get_submodule(path)
    fitting = [kind.__name__ for kind in linger.SupportQuantedIntModules if isinstance(layer, kind)]
    assert fitting == [name]
    assert isinstance(layer, linger.SupportQuantedIntModules)
    assert not isinstance(Net().get_submodule(path), linger.SupportQuantedIntModules)


def test_functions_have_classes_too(net: nn.Module) -> None:
    kinds = (linger.BmmInt, linger.iqAddLayer, linger.iqSigmoidLayer, linger.iqMulLayer)
    found = [sum(isinstance(module, kind) for module in net.modules()) for kind in kinds]
    assert found == [2, 1, 1, 0]


@pytest.mark.parametrize("name", [n for n in linger.__all__ if n.endswith(("Int", "Layer"))])
def test_a_class_that_is_called_says_what_to_write(name: str) -> None:
    kind = getattr(linger, name)
    with pytest.raises(linger.UsageError, match=rf"{name}: quantized layers are made by linger.init. Write \w"):
        kind(3, 4, data_bits=8)
    assert name not in dir(linger)


def test_lists_of_types_can_be_given_to_the_functions() -> None:
    by_list = linger.init(Net(), quant_modules=linger.DefaultQuantIntXOP)
    usual = linger.init(Net())
    linger.restore()
    assert str(by_list) == str(usual)
    everything = linger.init(
        nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4)), quant_modules=linger.SupportQuantTorchModules
    )
    linger.restore()
    assert isinstance(everything[0], linger.EmbeddingInt)
    assert isinstance(everything[1], linger.LayerNormInt)
    limited = linger.normalize_layers(Net(), normalize_modules=linger.DefaultNormalizeIntXModule)
    assert str(limited) == str(linger.normalize_layers(Net()))
    both = linger.normalize_layers(
        nn.Sequential(nn.Embedding(4, 4)), normalize_modules=linger.SupportNormalizeTorchModules
    )
    assert isinstance(both[0], linger.NormalizeEmbedding)


def test_a_pair_has_the_names_of_both() -> None:
    assert linger.ConvBN1d is linger.CConvBN1d is linger.NormalizeConvBN1d
    pair = linger.ConvBN2d(1, 4, 3, stride=2, eps=1e-3)
    assert (pair.conv.stride, pair.bn.eps) == ((2, 2), 1e-3)
