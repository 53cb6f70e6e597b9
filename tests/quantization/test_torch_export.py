"""A quantized model under torch.export: the second exporter must stay open."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import QTensor, init, trace_layers
from linger.errors import UsageError
from tests.support.models import SmallNet, settle
from tests.support.quantization import runtime_of


class Net(nn.Module):
    """Convolution, sum, relu, both pools, linear."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.pool = nn.AvgPool2d(2)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        h = F.relu(self.first(x))
        h = F.relu(self.second(h) + h)
        return self.fc(F.max_pool2d(self.pool(h), 3).flatten(1))


def calibrated(model, x):
    trace_layers(model.eval(), x)
    init(model)
    with linger.calibration():
        model(x)
    with torch.no_grad():
        return model(x).dequantize()


@pytest.mark.parametrize(
    ("make", "shape"),
    [(Net, (2, 3, 6, 6)), (lambda: settle(SmallNet()), (3, 1, 8, 8))],
    ids=["small", "every first op"],
)
def test_exported_program_gives_the_same_numbers(make, shape):
    torch.manual_seed(3)
    model, x = make(), torch.randn(shape)
    expected = calibrated(model, x)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    program = torch.export.export(model.eval(), (x,), strict=False)
    assert torch.equal(program.module()(x), expected)
    other = torch.randn(shape)
    with torch.no_grad():
        assert torch.equal(program.module()(other), model(other).dequantize())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert runtime_of(model).frames == []


def test_exported_program_returns_ordinary_tensors_and_changes_no_buffer():
    model, x = Net(), torch.randn(2, 3, 6, 6)
    calibrated(model, x)
    program = torch.export.export(model, (x,), strict=False)
    assert type(program.module()(x)) is torch.Tensor
    assert not program.graph_signature.buffers_to_mutate
    assert isinstance(model(x), QTensor)


def test_batch_size_may_stay_open():
    model, x = Net(), torch.randn(4, 3, 6, 6)
    calibrated(model, x)
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    program = torch.export.export(model, (x,), dynamic_shapes=shapes, strict=False)
    more = torch.randn(7, 3, 6, 6)
    with torch.no_grad():
        assert torch.equal(program.module()(more), model(more).dequantize())


def test_training_goes_on_afterwards():
    model, x = Net(), torch.randn(2, 3, 6, 6)
    calibrated(model, x)
    torch.export.export(model, (x,), strict=False)
    model.train()(x).sum().backward()
    assert model.first.weight.grad is not None


@pytest.mark.parametrize("is_loaded", [False, True], ids=["calibrated only", "just loaded"])
def test_a_model_that_never_evaluated_says_what_to_do(is_loaded):
    model, x = init(Net()).eval(), torch.randn(2, 3, 6, 6)
    with linger.calibration():
        model(x)
    if is_loaded:
        model.load_state_dict(model.state_dict())
    with pytest.raises(UsageError, match=r"Run model\.eval\(\) once under torch\.no_grad\(\) first"):
        torch.export.export(model, (x,), strict=False)
    with torch.no_grad():
        expected = model(x).dequantize()
    assert torch.equal(torch.export.export(model, (x,), strict=False).module()(x), expected)


@pytest.mark.parametrize("call", [torch.jit.trace, lambda model, _: torch.jit.script(model)], ids=["trace", "script"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_is_refused_in_one_sentence(call):
    model, x = Net(), torch.randn(2, 3, 6, 6)
    expected = calibrated(model, x)
    with pytest.raises(
        UsageError, match=r"^torch\.jit\.\w+: a quantized model is no TorchScript.* linger\.onnx\.export"
    ):
        call(model.eval(), x)
    with torch.no_grad():
        assert torch.equal(model(x).dequantize(), expected)


def test_every_attribute_of_a_quantized_model_can_be_asked_for():
    model = init(settle(SmallNet()))
    model.recurrent, model.norm = init(nn.Sequential(nn.LSTM(2, 2)))[0], init(nn.Sequential(nn.LayerNorm(2)))[0]
    for module in model.modules():
        inspect.getmembers(module)
        assert not hasattr(module, "no_such_attribute")
