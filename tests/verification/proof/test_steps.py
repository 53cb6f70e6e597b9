"""Tensors that only a file has: a step to a recorded tensor is no difference, anything else is."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import linger

pytestmark = pytest.mark.needs_torch


@pytest.fixture
def exported(tmp_path):
    """A network of two linear layers, its file in memory, and an input."""
    torch.manual_seed(0)
    model = linger.init(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))).eval()
    x = torch.randn(1, 8)
    with linger.calibration():
        model(x)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare")
    return model, linger.graph.load(tmp_path / "net.onnx"), x


def identity(value, name):
    """A dialect node that changes no number of this input: iqMul by one."""
    one = ir.node("Constant", [], {"value": ir.tensor(np.array(64, np.int8))})
    one.outputs[0].name = f"{name}.one"
    scale = {"scale_x": 16.0, "scale_y": 64.0, "scale_o": 16.0}
    made = ir.node("iqMul", [value, one.outputs[0]], scale, domain="thinker", name=name)
    made.outputs[0].name, made.outputs[0].dtype = name, value.dtype
    return [one, made]


def test_a_step_in_front_of_a_recorded_tensor_is_none(exported):
    model, file, x = exported
    relu = next(node for node in file.graph if node.op_type == "Relu")
    nodes = identity(relu.inputs[0], "1.Relu.stage1")
    file.graph.insert_before(relu, nodes)
    relu.replace_input_with(0, nodes[-1].outputs[0])
    assert linger.verify(model, file, x).ok


@pytest.mark.parametrize("name", ["2.LinearInt.stage1", "0.LinearInt.stage1", "extra"])
def test_a_tensor_behind_it_is_a_difference(exported, name):
    model, file, x = exported
    dequant = next(node for node in file.graph if node.op_type == "Dequant")
    nodes = identity(dequant.inputs[0], name)
    file.graph.insert_before(dequant, nodes)
    dequant.replace_input_with(0, nodes[-1].outputs[0])
    proof = linger.verify(model, file, x)
    assert not proof.ok
    assert name in proof.summary()
