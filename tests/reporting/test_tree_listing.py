"""A listing without the weights."""

import io

import pytest

import linger

pytestmark = pytest.mark.needs_torch


def test_weights_are_named_not_printed(capsys):
    import torch

    net = torch.nn.Linear(2, 2, bias=False)
    linger.onnx.export(net, (torch.zeros(1, 2),), io.BytesIO(), verbose=True, input_names=["x"], output_names=["y"])
    text = capsys.readouterr().out
    assert "y = MatMul (x, " in text
    assert "# 1 initializers" in text
    assert "float[2, 2]" in text
    assert "{" not in text.partition("# 1 initializers")[2]
