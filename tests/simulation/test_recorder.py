"""What the simulation computed."""

import numpy as np
import pytest
import torch
from torch import nn

import linger
from linger import record
from linger.errors import UsageError
from tests.support.models import SmallNet, small_net
from tests.support.wired import Wired, image


def test_integers_inputs_and_outputs_are_recorded_in_order():
    model, x = small_net()
    (made,) = record(model, (x,))
    assert next(iter(made.integers)) == "stem.Quant"
    assert list(made.integers)[-1] == "fc.LinearInt"
    assert made.integers["stem.Conv2dInt"].dtype == np.int8
    np.testing.assert_array_equal(made.inputs[0], x.numpy())
    scale = model.fc.read("scale_o")
    np.testing.assert_array_equal(made.outputs[0], made.integers["fc.LinearInt"].astype(np.float32) / scale)


def test_relu_fused_in_evaluation_is_recorded_apart():
    model, x = small_net()
    (made,) = record(model, x)
    assert made.integers["stem.Conv2dInt"].min() < 0
    np.testing.assert_array_equal(made.integers["Relu"], np.maximum(made.integers["stem.Conv2dInt"], 0))


def test_float_model_is_refused():
    with pytest.raises(UsageError, match="not quantized"):
        next(iter(record(SmallNet(), (torch.ones(1, 1, 8, 8),))))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, *, shift, factor=1):
        return self.linear(x) + self.linear(shift) * factor


@pytest.fixture
def mixed(tmp_path):
    torch.manual_seed(1)
    x, shift = torch.randn(3, 4), torch.randn(3, 4)
    model = linger.init(Mixed().eval())
    with linger.calibration():
        model(x, shift=shift)
    return model, x, shift, tmp_path / "m.onnx"


def test_keywords_are_taken_as_the_export_takes_them(mixed):
    model, x, shift, path = mixed
    linger.onnx.export(model, (x,), path, kwargs={"shift": shift}, verify=True)
    spellings = {
        "kwargs": linger.verify(model, path, x, kwargs={"shift": shift}),
        "tuple": linger.verify(model, path, (x, {"shift": shift})),
        "dict": linger.verify(model, path, {"x": x, "shift": shift}),
        "batches": linger.verify(model, path, [(x, {"shift": shift}), {"x": -x, "shift": x}]),
    }
    assert {name: proof.ok for name, proof in spellings.items()} == dict.fromkeys(spellings, True)
    assert spellings["batches"].batches == 2


def test_a_proof_with_keywords_is_a_proof(mixed):
    model, x, shift, path = mixed
    linger.onnx.export(model, (x,), path, kwargs={"shift": shift})
    with torch.no_grad():
        model.linear.weight.neg_()
    assert not linger.verify(model, path, x, kwargs={"shift": shift}).ok


def test_a_tuple_of_batches_is_refused_with_the_spellings(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"forward\(x\) does not take 2 positional.*\[x1, x2\] are two batches"):
        linger.verify(model, tmp_path / "m.onnx", (x, x))


def test_two_arguments_for_a_file_with_one_input_are_refused_with_the_spellings(tmp_path):
    model = linger.init(Wired(lambda m, x, y=None: m.conv(x)))
    x = image()
    with linger.calibration():
        model(x)
    linger.onnx.export(model, (x,), tmp_path / "m.onnx", input_names=["image"])
    with pytest.raises(UsageError, match=r"has 1 inputs \(image\), 2 were given.*\[x1, x2\] are two batches"):
        linger.verify(model, tmp_path / "m.onnx", (x, x))
