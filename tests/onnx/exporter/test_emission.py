"""The torch op that becomes a dialect node."""

import json

import numpy as np
import pytest
import torch

from linger.onnx.exporter.emission import TraceEmitter
from tests.support.samples import arrays, every_sample, run_numpy


@pytest.mark.parametrize(("op", "sample"), **every_sample())
def test_op_computes_the_reference_integers(op, sample):
    inputs = [None if x is None else torch.from_numpy(np.array(x)) for x in arrays(sample)]
    emitter = TraceEmitter(is_dynamic=False)
    if len(op.outputs) > 1:
        results = emitter.call(op, inputs, sample.attributes, "node")
        found = np.concatenate([r.double().numpy().reshape(-1) for r in results])
    else:
        found = emitter.call(op, inputs, sample.attributes, "node")[0].numpy()
    expected = run_numpy(op, arrays(sample), sample.attributes)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_fake_tensors_get_shape_and_type_without_values():
    from torch._subclasses.fake_tensor import FakeTensorMode

    TraceEmitter(is_dynamic=False)
    call = {"op": "Quant", "platform": None, "attributes": {"data_bits": 16, "scale_x": 8.0}, "name": "q"}
    with FakeTensorMode():
        result = torch.ops.linger.call([torch.randn(2, 3)], json.dumps(call))
    assert (result.shape, result.dtype) == ((2, 3), torch.int16)
