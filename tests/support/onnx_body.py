"""A body written in the kernel vocabulary, interpreted by every kernel; no op and no function around it."""

import numpy as np
import onnx_ir as ir
import torch

from linger.numeric.numpy_kernel import NumpyKernel
from linger.numeric.onnx.kernel import OnnxKernel
from linger.numeric.onnx.writer import OnnxValue
from linger.numeric.torch.kernel import TorchKernel, carrier
from tests.support.comparison import assert_same
from tests.support.samples import run_model

OPSETS = (11, 12, 18)


def interpret_numpy(body, inputs):
    return body(NumpyKernel(), *inputs)


def interpret_torch(body, inputs):
    return body(TorchKernel(is_exact=True), *map(_carried, inputs)).numpy()


def _carried(x):
    tensor = torch.from_numpy(np.array(x))
    return tensor if tensor.is_floating_point() else tensor.to(carrier(8 * x.itemsize))


def onnx_model(body, inputs, *, opset, element_bits=8, constants=frozenset()) -> ir.Model:
    """The body as a graph of standard nodes; `constants` are the positions of inputs that become initializers."""
    kernel = OnnxKernel(opset=opset, element_bits=element_bits)
    values, arguments = [], []
    for position, x in enumerate(inputs):
        tensor = ir.tensor(np.asarray(x), name=f"in{position}")
        value = ir.Value(name=f"in{position}", type=ir.TensorType(tensor.dtype), shape=tensor.shape)
        known = np.asarray(x) if position in constants else None
        if known is not None:
            value.const_value = tensor
        values.append(value)
        arguments.append(OnnxValue(tensor.dtype, value, known))
    result = body(kernel, *arguments)
    made = kernel.materialize(result)
    made.type = ir.TensorType(result.dtype)
    graph = ir.Graph(
        [v for i, v in enumerate(values) if i not in constants],
        [made],
        nodes=kernel.nodes,
        initializers=[values[i] for i in sorted(constants)],
        opset_imports={"": opset},
        name="body",
    )
    return ir.Model(graph, ir_version=8)


def interpret_onnx(body, inputs, **options):
    return run_model(onnx_model(body, inputs, **options), inputs)


def assert_kernels_give(body, inputs, expected, *, opsets=OPSETS, **options):
    """numpy, torch and ONNX Runtime give the expected array, which none of them computed."""
    assert_same(interpret_numpy(body, inputs), expected)
    assert_same(interpret_torch(body, inputs), expected)
    for opset in opsets:
        assert_same(interpret_onnx(body, inputs, opset=opset, **options), expected)
