"""Names that follow modules."""

import onnx
import pytest
import torch
from torch import nn

import linger
from tests.support.models import quantized, small_net


class Named(nn.Module):
    """A dict input, a float op in a sub-module, a module called twice."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Softplus())
        self.last = nn.Linear(4, 2)

    def forward(self, batch):
        return self.last(self.inside(self.inside(batch["features"])))


@pytest.fixture
def exported(tmp_path):
    batch = {"features": torch.randn(3, 4)}
    model = quantized(Named(), batch)
    linger.onnx.export(model, (batch, {}), tmp_path / "net.onnx", form="bare")
    return onnx.load(tmp_path / "net.onnx")


def test_node_names_are_module_paths(exported):
    names = [n.name for n in exported.graph.node]
    assert "inside.0.LinearInt" in names
    assert "inside.0.LinearInt_1" in names
    assert "last.LinearInt" in names
    assert sum("inside" in n and n.endswith(("Softplus", "Softplus_1")) for n in names) == 2
    assert len(set(names)) == len(names)
    assert not any("model" in n for n in names)


def test_initializers_and_inputs_have_the_users_names(exported):
    assert {i.name for i in exported.graph.initializer} >= {"inside.0.weight", "last.weight", "last.bias"}
    assert [i.name for i in exported.graph.input] == ["batch.features"]


def test_scope_can_be_switched_off(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", is_scoped_info=False, form="bare")
    names = [n.name for n in onnx.load(tmp_path / "net.onnx").graph.node]
    assert names[0] == "Quant_0"
    assert len(set(names)) == len(names)
