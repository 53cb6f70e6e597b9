"""What the simulation computed."""

import numpy as np
import pytest
import torch

from linger.errors import UsageError
from linger.onnx.recorder import as_batches, record
from tests.support.models import SmallNet, small_net


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


@pytest.mark.parametrize(
    ("given", "count"),
    [((1, 2), 1), (torch.ones(2), 1), ([torch.ones(2), (torch.ones(1),)], 2), (iter([torch.ones(1)] * 3), 3)],
    ids=["tuple", "tensor", "list", "iterator"],
)
def test_batches_come_in_every_form(given, count):
    batches = list(as_batches(given))
    assert len(batches) == count
    assert all(isinstance(b, tuple) for b in batches)


def test_float_model_is_refused():
    with pytest.raises(UsageError, match="not quantised"):
        next(iter(record(SmallNet(), (torch.ones(1, 1, 8, 8),))))
