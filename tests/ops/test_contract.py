"""Every op × sample: numpy = torch = ONNX Runtime bit for bit, finite gradients, documented, checkable.

Agreement is not correctness: the numbers themselves are held to golden vectors in test_golden.py and to arithmetic
by hand in each op's own test.
"""

import inspect

import numpy as np
import onnxruntime as ort
import pytest
import torch

from tests.support.comparison import assert_same
from tests.support.ops import run_in_training
from tests.support.samples import (
    DOMAIN,
    OPSETS,
    arrays,
    attach_functions,
    check,
    every_op,
    every_sample,
    run_expanded,
    run_function,
    run_numpy,
    run_torch,
    single_node_model,
    title,
)


@pytest.mark.parametrize(("op", "sample"), **every_sample())
def test_torch_equals_numpy(op, sample):
    inputs = arrays(sample)
    assert_same(run_torch(op, inputs, sample.attributes), run_numpy(op, inputs, sample.attributes))


@pytest.mark.parametrize(("op", "sample"), **every_sample())
def test_onnx_runtime_equals_numpy(op, sample):
    inputs = arrays(sample)
    expected = run_numpy(op, inputs, sample.attributes)
    for opset in (11, 18):  # every opset in between: test_function_passes_the_checker_at_every_opset
        result = run_function(op, inputs, sample.attributes, opset=opset)
        assert result.dtype == expected.dtype
        assert_same(result, expected)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("op", every_op(), ids=title)
@pytest.mark.thin(every=2)
def test_function_passes_the_checker_at_every_opset(op, opset):
    sample = op.samples[0]
    inputs = arrays(sample)
    model = single_node_model(op, inputs, sample.attributes, opset=opset)
    attach_functions(model)
    check(model)
    assert_same(run_function(op, inputs, sample.attributes, opset=opset), run_numpy(op, inputs, sample.attributes))


@pytest.mark.parametrize(("op", "sample"), **every_sample())
@pytest.mark.thin(every=12)
def test_expansion_equals_numpy_at_every_optimization_level(op, sample):
    inputs = arrays(sample)
    expected = run_numpy(op, inputs, sample.attributes)
    levels = [ort.GraphOptimizationLevel.ORT_ENABLE_ALL]
    if sample in op.samples[:3]:
        levels.append(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    for level in levels:
        assert_same(run_expanded(op, inputs, sample.attributes, opset=12, level=level), expected)


def differentiable_samples():
    """All but those of recurrent ops: their gates are looked up in a table, and the gradient is their fast paths'."""
    pairs = [(op, sample) for op in every_op() for sample in op.samples if len(op.outputs) == 1]
    return {"argvalues": pairs, "ids": [f"{title(op)}: {sample.name}" for op, sample in pairs]}


@pytest.mark.parametrize(("op", "sample"), **differentiable_samples())
def test_gradients_are_finite(op, sample):
    inputs = [
        None if x is None else torch.from_numpy(np.array(x, dtype=np.float32)).requires_grad_() for x in arrays(sample)
    ]
    result = run_in_training(op, inputs, sample.attributes)
    result.sum().backward()
    for x in inputs:
        assert x is None or x.grad is None or torch.isfinite(x.grad).all()
    assert inputs[0].grad is not None


@pytest.mark.parametrize("op", every_op(), ids=title)
def test_op_is_documented_and_sampled(op):
    assert op.samples
    assert inspect.getdoc(op.body)
    assert inspect.getmodule(op.body).__doc__
    assert op.module.startswith("linger.ops.")
    assert DOMAIN == "thinker"


@pytest.mark.parametrize("op", every_op(), ids=title)
def test_a_width_that_a_node_does_not_name_is_8_bits(op):
    left_out = {a.name: a.default for a in op.attributes if a.name.endswith("_bits") and not a.is_required}
    assert left_out == dict.fromkeys(left_out, 8)


PRODUCTS = {"LinearInt", "Conv1dInt", "Conv2dInt", "ConvTranspose2dInt", "BmmInt"}
NUMBERED_ALONE = PRODUCTS | {"iqLeakyRelu", "iqMin", "iqWhere"}


@pytest.mark.parametrize("op", every_op(), ids=title)
def test_keys_of_checkpoints_keep_their_numbers(op):
    """Calls are numbered with those of other ops or by themselves; by other numbers a saved state would not find its ranges."""
    assert op.has_own_counter == (op.name in NUMBERED_ALONE)
