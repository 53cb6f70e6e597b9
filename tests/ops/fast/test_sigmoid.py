"""The real function behind iqSigmoid: its values and its gradient are torch's; the exact values are the body's."""

import numpy as np
import pytest
import torch

from tests.support.fast_paths import functional_fast_path
from tests.support.ops import find_op
from tests.support.samples import run_numpy

iq_sigmoid = find_op("iqSigmoid")

sigmoid_torch = functional_fast_path(iq_sigmoid)

EVERY_INT16 = np.arange(-32768, 32768).astype(np.int16)


def test_value_and_gradient_are_those_of_torch(draw):
    x = torch.from_numpy(draw.normal(size=50)).requires_grad_()
    y = sigmoid_torch.real_result([x])
    assert torch.equal(y, torch.sigmoid(x))
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach() * (1 - y.detach()))  # float64, the same formula in another order


@pytest.mark.parametrize("scale_x", [2.0**n for n in (-3, 5, 10, 11, 12, 13, 15, 20)])
def test_exact_values_are_those_of_the_body_for_every_input(scale_x):
    attributes = iq_sigmoid.complete({"scale_x": scale_x, "scale_o": 128.0})
    x = torch.from_numpy(EVERY_INT16.astype(np.float32)) / scale_x
    found = sigmoid_torch.exact_values([x], attributes)
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy() * 128, run_numpy(iq_sigmoid, [EVERY_INT16], attributes))


def test_table_of_an_inference_pass_serves_training_too():
    attributes = iq_sigmoid.complete({"scale_x": 2048.0, "scale_o": 64.0})  # a scale that no other test has
    with torch.inference_mode():
        sigmoid_torch.exact_values([torch.zeros(3)], attributes)
    assert not sigmoid_torch.exact_values([torch.zeros(3)], attributes).is_inference()


@pytest.mark.parametrize("scale_x", [2.0**n for n in (-3, 0, 4, 7, 27, 30)])
def test_exact_values_on_arcs_are_those_of_the_body_for_every_input(scale_x):
    every = np.arange(-128, 128).astype(np.int8)
    attributes = iq_sigmoid.variants["arcs"].complete({"scale_x": scale_x, "scale_o": 128.0})
    x = torch.from_numpy(every.astype(np.float32)) / scale_x
    found = functional_fast_path(iq_sigmoid.variants["arcs"]).exact_values([x], attributes)
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy() * 128, run_numpy(iq_sigmoid.variants["arcs"], [every], attributes))


def test_a_chip_that_takes_every_width_has_no_table():
    attributes = iq_sigmoid.variants["venusA"].complete({"scale_x": 16.0, "scale_o": 128.0})
    assert functional_fast_path(iq_sigmoid.variants["venusA"]).exact_values([torch.zeros(3)], attributes) is None
