"""Names, initializers and shapes of the finished file."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import linger
from tests.support.models import quantized, small_net


class SharedUnderTwoScales(nn.Module):
    """One layer called with inputs of different scales needs two biases."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.cat([self.fc(x), self.fc(torch.relu(self.fc(x)))], dim=1)


def test_bias_that_depends_on_the_call_gets_a_number(tmp_path):
    x = torch.randn(16, 4) * 0.05  # much finer than what the layer returns
    model = quantized(SharedUnderTwoScales(), x)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare")
    names = [i.name for i in onnx.load(tmp_path / "net.onnx").graph.initializer]
    assert names.count("fc.weight") == 1
    assert {"fc.bias", "fc.bias_1"} <= set(names)
    assert linger.verify(model, tmp_path / "net.onnx", (x,)).ok


def test_every_tensor_of_a_static_file_has_a_shape(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", input_names=["x"], output_names=["y"])
    proto = onnx.load(tmp_path / "net.onnx")
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.value_info}
    assert shapes["stem.Conv2dInt"] == [6, 8, 8, 8]
    made = {o for n in proto.graph.node for o in n.output} - {"y"}
    assert made <= set(shapes)


def test_dynamic_axes_keep_the_users_names_only(tmp_path):
    model, x = small_net()
    axes = {"x": {0: "batch"}, "y": {0: "batch"}}
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", input_names=["x"], output_names=["y"], dynamic_axes=axes)
    proto = onnx.load(tmp_path / "net.onnx")
    output = proto.graph.output[0].type.tensor_type.shape.dim
    assert output[0].dim_param == "batch"
    assert output[1].dim_value == 10 or not output[1].dim_param


@pytest.mark.parametrize("form", ["dialect", "bare", "standard"])
def test_producer_is_named(tmp_path, form):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form=form)
    proto = onnx.load(tmp_path / "net.onnx")
    assert (proto.producer_name, proto.producer_version) == ("linger", linger.__version__)


def test_float_weights_do_not_travel_along(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", form="bare")
    proto = onnx.load(tmp_path / "net.onnx")
    assert all(onnx.numpy_helper.to_array(i).dtype != np.float32 for i in proto.graph.initializer)
