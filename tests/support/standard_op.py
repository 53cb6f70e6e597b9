"""One node of the standard domain, computed by the numpy reference and by ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime as ort

from linger.runtime.reference import Reference
from linger.runtime.session import make_session_options


def by_reference(op_type, inputs, *, opset, outputs=1, **attributes):
    """What the numpy reference makes of a node; ONNX Runtime must agree up to float rounding.

    The first input is fed, the others are constants; None leaves one out.
    """
    model = _model(op_type, inputs, opset, outputs, attributes)
    feeds = {"i0": np.asarray(inputs[0])}
    found = Reference(model).run(feeds)
    session = ort.InferenceSession(
        model.SerializeToString(), make_session_options(), providers=["CPUExecutionProvider"]
    )
    for name, array in zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True):
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        # sums of at most a hundred float32 products of numbers around 1: 100 · 2⁻²⁴ · 10 is below 1e-4
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    return found["o0"] if outputs == 1 else tuple(found[f"o{i}"] for i in range(outputs))


def _model(op_type, inputs, opset, outputs, attributes):
    names = ["" if a is None else f"i{k}" for k, a in enumerate(inputs)]
    made = [f"o{k}" for k in range(outputs)]
    x = np.asarray(inputs[0])
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, names, made, name="node", **attributes)],
        "g",
        [onnx.helper.make_tensor_value_info("i0", kind, x.shape)],
        [onnx.helper.make_empty_tensor_value_info(name) for name in made],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in list(zip(names, inputs, strict=True))[1:] if n],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 20 else 10)
