"""Op samples as arrays, and the four ways to compute an op."""

import zlib

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from linger.dialect import DOMAIN, Op, ops
from linger.graph.lowering.bodies import attach_functions, expand_dialect
from linger.numeric.fixed import limits, storage_bits
from linger.numeric.kernel import Draw, DrawReal, Sample
from linger.numeric.numpy_kernel import NumpyKernel
from linger.numeric.onnx.writer import make_attribute

OPSETS = (11, 12, 13, 15, 17, 18, 20)


def every_op():
    """The ops of the dialect, each with its variants for other chips."""
    return [found for op in ops().values() for found in (op, *op.variants.values())]


def title(op: Op) -> str:
    """Name of an op, with its chip if it has one of its own."""
    return op.name if op.platform is None else f"{op.name} on {op.platform}"


def every_sample():
    """(op, sample) of the whole dialect, with readable ids for parametrize."""
    pairs = [(op, sample) for op in every_op() for sample in op.samples]
    return {"argvalues": pairs, "ids": [f"{title(op)}: {sample.name}" for op, sample in pairs]}


def arrays(sample: Sample) -> list[np.ndarray | None]:
    """The sample's inputs; the first elements are the extremes, so that saturation is never left to chance."""
    generator = np.random.default_rng(zlib.crc32(sample.name.encode()))
    return [None if x is None else _array(x, generator) for x in sample.inputs]


def _array(x, generator):
    if isinstance(x, tuple):
        return np.asarray(x, np.int64)
    if isinstance(x, DrawReal):
        real = generator.normal(0, x.spread, x.shape).astype(np.float32)
        flat = real.reshape(-1)
        ties = np.round(flat[::2] * 16) / 16 + np.float32(1 / 32)  # halves at scale 16
        flat[::2] = ties
        return real
    assert isinstance(x, Draw)
    low, high = (0, 2**x.bits - 1) if x.is_unsigned else limits(x.bits)
    low, high = (low if x.low is None else x.low), (high if x.high is None else x.high)
    made = generator.integers(low, high + 1, x.shape)
    flat = made.reshape(-1)
    if flat.size > 2:
        flat[0], flat[-1] = low, high
    return made.astype(
        np.int64 if x.bits > 32 else f"{'u' if x.is_unsigned else ''}int{storage_bits(x.bits)}"
    )  # places, not data


def run_numpy(op: Op, inputs, attributes, kernel=None):
    """The reference."""
    return joined(op.body(kernel or NumpyKernel(), *op.arrange(inputs), **op.complete(attributes)))


def joined(results):
    """One array; several outputs as the numbers of all of them."""
    if not isinstance(results, (tuple, list)):
        return results
    return np.concatenate([np.asarray(r, np.float64).reshape(-1) for r in results]) if len(results) > 1 else results[0]


def run_torch(op: Op, inputs, attributes, kernel=None):
    """The body on float carriers, back as integers."""
    from linger.numeric.torch.kernel import TorchKernel  # the other ways run without torch

    carriers = [None if x is None else _carried(x) for x in inputs]
    result = op.body(kernel or TorchKernel(is_exact=True), *op.arrange(carriers), **op.complete(attributes))
    return joined([r.detach().numpy() for r in (result if isinstance(result, tuple) else (result,))])


def _carried(x):
    import torch

    from linger.numeric.torch.kernel import carrier

    tensor = torch.from_numpy(np.array(x))
    return tensor if tensor.is_floating_point() else tensor.to(carrier(8 * x.itemsize))


def single_node_model(op: Op, inputs, attributes, *, opset: int, constants=None) -> ir.Model:
    """A model of one dialect node; weights and biases are initializers."""
    if constants is None:
        weights = [i for i, n in enumerate(op.form(len(inputs))) if n.startswith(("w_", "b_"))] if op.forms else [1, 2]
        constants = frozenset(weights)
    names = [f"in{i}" for i in range(len(inputs))]
    values = [None if x is None else ir.Value(name=n) for n, x in zip(names, inputs, strict=True)]
    while values and values[-1] is None:
        values.pop()
    for value, x in zip(values, inputs, strict=False):
        value.type, value.shape = ir.TensorType(ir.tensor(x).dtype), _open_where_empty(x)
    is_constant = {i for i in constants if i < len(values) and op.inputs and not op.is_variadic}
    for i in is_constant:
        values[i].const_value = ir.tensor(inputs[i], name=names[i])
    chip = {} if op.platform is None else {"platform": op.platform}
    attrs = [make_attribute(n, v) for n, v in (dict(attributes) | chip).items()]
    node = ir.Node(DOMAIN, op.name, values, attributes=attrs, num_outputs=len(op.outputs), name="node")
    expected = op.body(NumpyKernel(), *op.arrange(inputs), **op.complete(attributes))
    for output, name, array in zip(
        node.outputs, op.outputs, expected if len(op.outputs) > 1 else [expected], strict=True
    ):
        output.name = f"out_{name}"
        output.type, output.shape = ir.TensorType(ir.tensor(array).dtype), _open_where_empty(array)
    graph = ir.Graph(
        [v for i, v in enumerate(values) if i not in is_constant],
        node.outputs,
        nodes=[node],
        initializers=[values[i] for i in sorted(is_constant)],
        opset_imports={"": opset, DOMAIN: 1},
        name="g",
    )
    return ir.Model(graph, ir_version=8)


def _open_where_empty(x):
    """A file that takes no rows is one whose number of rows is open: nobody declares a size of zero."""
    return ir.Shape([size or None for size in x.shape])


def run_model(model: ir.Model, inputs, *, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
    """Stock ONNX Runtime."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {i.name: inputs[int(i.name[2:])] for i in session.get_inputs()}
    return joined(session.run(None, feeds))


def run_function(op: Op, inputs, attributes, *, opset: int, **options):
    """The node with its function body, in stock ONNX Runtime."""
    model = single_node_model(op, inputs, attributes, opset=opset)
    attach_functions(model)
    return run_model(model, inputs, **options)


def run_expanded(op: Op, inputs, attributes, *, opset: int, **options):
    """The node expanded into standard ONNX, in stock ONNX Runtime."""
    model = single_node_model(op, inputs, attributes, opset=opset)
    expand_dialect(model)
    assert all(node.domain == "" for node in ir.traversal.RecursiveGraphIterator(model.graph))
    return run_model(model, inputs, **options)


def check(model: ir.Model) -> onnx.ModelProto:
    """The model after onnx's own full check."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto
