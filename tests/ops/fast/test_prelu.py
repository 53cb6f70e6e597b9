"""The fast path of iqPRelu gives the body's integers."""

import numpy as np
import pytest
import torch

from tests.support.comparison import assert_same
from tests.support.fast_paths import by_name, functional_fast_path, real_carrier, reference
from tests.support.ops import find_op

iq_prelu = find_op("iqPRelu")

prelu_torch = functional_fast_path(iq_prelu)


def by_fast_path(inputs, attributes, *, has_product):
    full = iq_prelu.complete(attributes)
    operands = [real_carrier(inputs[0], full["scale_x"]), real_carrier(inputs[1], full["scale_w"])]
    product = prelu_torch.real_result(operands, (), (full["o_bits"], 16)) if has_product else None
    result = prelu_torch.evaluate(product, operands, full, can_saturate=True)
    return (result.double() * full["scale_o"]).numpy()


@pytest.mark.parametrize("has_product", [True, False])
@pytest.mark.parametrize("sample", **by_name(iq_prelu))
def test_fast_path_equals_the_body(sample, has_product):
    inputs, expected = reference(iq_prelu, sample)
    assert_same(by_fast_path(inputs, sample.attributes, has_product=has_product), expected)


def test_products_of_sixteen_bits_are_exact():
    x = np.arange(-32768, 0, 7).astype(np.int16).reshape(1, 1, -1)
    attributes = {"scale_x": 1024.0, "scale_w": 2.0**15, "scale_o": 1024.0, "o_bits": 16}
    w = np.array([32767], np.int16)
    exact = np.floor(x.astype(object) * 32767 / 32768 + 0.5)  # Python integers over a power of two
    assert_same(by_fast_path([x, w], attributes, has_product=False), exact.astype(np.float64))


def test_gradient_is_torchs_where_nothing_saturates():
    x, w = torch.tensor([[-1.5, 2.0], [-0.25, -3.0]]).requires_grad_(), torch.tensor([0.25, 1.5]).requires_grad_()
    attributes = iq_prelu.complete({"scale_x": 16.0, "scale_w": 2.0**14, "scale_o": 16.0})
    prelu_torch.evaluate(None, [x, w], attributes, can_saturate=True).sum().backward()
    assert x.grad.tolist() == [[0.25, 1.0], [0.25, 1.5]]
    assert w.grad.tolist() == [-1.75, -3.0]
