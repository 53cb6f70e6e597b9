"""Channel shuffles of quantized tensors under every name."""

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import channel_shuffle
from tests.support.wired import Wired, after, image, quantize

SHUFFLES = {
    "linger": lambda h: linger.channel_shuffle(h, 2),
    "torch": lambda h: torch.channel_shuffle(h, 2),
    "F": lambda h: F.channel_shuffle(h, 2),
    "by name": lambda h: torch.channel_shuffle(input=h, groups=2),
    "nn": nn.ChannelShuffle(2),
}


@pytest.mark.parametrize("function", SHUFFLES.values(), ids=SHUFFLES.keys())
def test_every_name_becomes_one_node(function, tmp_path):
    def forward(m, x):
        h = m.conv(x)
        return h.clone(), function(h)

    model = quantize(Wired(forward), image())
    h, y = model(image())
    assert (y.scale, y.bits) == (h.scale, h.bits)
    assert torch.equal(y.integers(), h.integers()[:, [0, 2, 1, 3]])
    assert not linger.coverage(model).float_ops
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    nodes = onnx.load(tmp_path / "net.onnx").graph.node
    assert sum(node.op_type == "ShuffleChannel" for node in nodes) == 1
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


@pytest.mark.parametrize("options", [{"form": "bare"}, {"dynamo": True}, {"opset_version": 11}], ids=str)
def test_every_kind_of_file(options, tmp_path):
    model = after(SHUFFLES["linger"])
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", **options)
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


def test_gradient_goes_back_to_its_channel():
    model = after(lambda h: linger.channel_shuffle(h, 2)[:, 1]).train()
    model(image()).sum().backward()
    assert [bool(g.abs().sum()) for g in model.conv.weight.grad] == [False, False, True, False]


def test_float_tensors_are_torchs_business():
    x = torch.randn(1, 4, 2)
    assert torch.equal(channel_shuffle(x, 2), torch.channel_shuffle(x, 2))
    with pytest.raises(RuntimeError, match="divisible"):
        channel_shuffle(x, 3)
