"""The one redirect."""

import onnx
import torch
from torch import nn

import linger

torch_export = torch.onnx.export  # before anything redirects it


def test_init_redirects_and_restore_undoes_it(tmp_path):
    assert torch.onnx.export is torch_export
    model = linger.init(nn.Sequential(nn.Linear(3, 2)))
    assert torch.onnx.export is linger.onnx.export
    with linger.calibration():
        model(torch.randn(4, 3))
    torch.onnx.export(model, torch.randn(1, 3), tmp_path / "m.onnx", opset_version=11)
    assert [n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node] == ["Quant", "LinearInt", "Dequant"]
    linger.restore()
    assert torch.onnx.export is torch_export


def test_redirect_without_a_model_keeps_the_opset_asked_for(tmp_path):
    linger.redirect()
    torch.onnx.export(nn.Linear(3, 2), torch.randn(1, 3), str(tmp_path / "m.onnx"), opset_version=11)
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == 11
    linger.restore()
    linger.restore()
    assert torch.onnx.export is torch_export
