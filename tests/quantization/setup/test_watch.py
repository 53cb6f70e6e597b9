"""Float computations inside a quantized model that no quantized tensor takes part in."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import linger
from linger import init
from tests.support.quantization import runtime_of
from tests.support.wired import Wired, image, quantize


def float_ops(model):
    return [(op.where, op.op) for op in linger.coverage(model).float_ops]


def test_computation_on_floats_is_noted_with_its_place():
    class Front(nn.Module):
        def forward(self, x):
            return torch.tanh(x) * 2

    model = quantize(nn.Sequential(Front(), nn.Conv2d(3, 4, 3)), image())
    assert float_ops(model) == [("0", "tanh"), ("0", "mul")]
    assert {op.reason for op in linger.coverage(model).float_ops} == {
        "its inputs are float tensors; linger.quant_tensor quantizes them"
    }


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda m, x: m.conv(x.flip(0)), id="moving"),
        pytest.param(lambda m, x: m.conv(x if x.shape[0] > 0 and x.dtype == torch.float32 else x + 1), id="looking"),
        pytest.param(lambda m, x: m.conv(x) if (x > 0).any() else x, id="comparing"),
        pytest.param(lambda m, x: F.relu(m.conv(x)), id="quantized tensors"),
    ],
)
def test_what_computes_no_floats_is_not_noted(forward):
    assert float_ops(quantize(Wired(forward), image())) == []


def test_inside_of_a_quantized_layer_is_not_noted():
    model = quantize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), nn.ReLU6()), image())
    assert float_ops(model) == []


def test_nothing_outside_the_model_is_noted():
    model = init(Wired(lambda m, x: m.conv(x))).eval()
    with linger.calibration():
        model(torch.exp(image()))
        torch.exp(image())
    assert float_ops(model) == []


class Counting(TorchFunctionMode):
    """Another mode of the user's, around the model."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_the_watch_ends_with_the_pass():
    model = init(Wired(lambda m, x: m.conv(x))).eval()
    with Counting() as counting:
        with linger.calibration():
            model(image())
        before = counting.count
        torch.zeros(1).exp()
        assert counting.count > before  # the user's mode is still on top
    assert torch._C._len_torch_function_stack() == 0


def test_the_watch_ends_with_an_error():
    def forward(m, x):
        h = m.conv(x)
        if x.shape[0] == 1:
            raise RuntimeError("stop")
        return h

    model = quantize(Wired(forward), image())
    with pytest.raises(RuntimeError, match="stop"), linger.calibration():
        model(image(batch=1))
    assert torch._C._len_torch_function_stack() == 0
    assert runtime_of(model).frame is None
    with linger.calibration():
        model(image())
    assert [op.op for op in linger.coverage(model).integer_ops] == ["Quant", "Conv2dInt"]
