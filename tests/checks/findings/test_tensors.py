"""Constants whose content does not fit."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.support.check_cases import text_model
from tests.support.findings import findings_of, problem_of

KINDS = [
    onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT8, onnx.TensorProto.INT32, onnx.TensorProto.INT64,
    onnx.TensorProto.UINT8, onnx.TensorProto.UINT32, onnx.TensorProto.UINT64, onnx.TensorProto.BOOL,
    onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128,
    onnx.TensorProto.INT4, onnx.TensorProto.UINT4,
]  # fmt: skip


def read(proto):
    return ir.serde.TensorProtoTensor(proto)


@pytest.mark.parametrize("kind", KINDS, ids=[onnx.TensorProto.DataType.Name(kind) for kind in KINDS])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_what_onnx_writes_is_whole(kind, count):
    values = [1] * count
    assert problem_of(read(onnx.helper.make_tensor("t", kind, [count], values))) is None
    array = np.ones(count, onnx.helper.tensor_dtype_to_np_dtype(kind))
    assert problem_of(read(onnx.numpy_helper.from_array(array, "t"))) is None


def test_words_are_counted():
    words = onnx.helper.make_tensor("t", onnx.TensorProto.STRING, [2], [b"a", b"longer"])
    assert problem_of(read(words)) is None
    words.dims[0] = 3
    assert problem_of(read(words)) == "holds 2 numbers; 3 make its shape [3]"


def test_too_little_and_too_much():
    raw = onnx.numpy_helper.from_array(np.ones((2, 3), np.int16), "t")
    raw.dims[1] = 4
    assert problem_of(read(raw)) == "holds 12 bytes; 16 make its shape [2, 4]"
    listed = onnx.helper.make_tensor("t", onnx.TensorProto.INT8, [2], [1, 2])
    listed.dims[0] = 1
    assert problem_of(read(listed)) == "holds 2 numbers; 1 make its shape [1]"


def test_absurd_shapes_and_types():
    raw = onnx.numpy_helper.from_array(np.ones(1, np.int8), "t")
    raw.dims[0] = 10**15
    assert problem_of(read(raw)) == "holds 1 bytes; 1000000000000000 make its shape [1000000000000000]"
    raw.dims[0] = -1
    assert problem_of(read(raw)) == "has the shape [-1]"
    raw.data_type = onnx.TensorProto.UNDEFINED
    assert problem_of(read(raw)) == "has no element type"


def test_tensors_in_memory_are_what_they_are():
    assert problem_of(ir.tensor(np.ones(3))) is None


def test_initializers_and_constants_of_branches_are_looked_at():
    body = """[c] c = Constant<value = bool {1}>()
      [i] y = If(c)<then_branch = t () => (float[2,2] p) <float[1] w = {1}> { [k] k = Constant<value = float[2] {1, 2}>() [p] p = Add(k, w) },
                    else_branch = e () => (float[2,2] r) { [r] r = Neg(x) }>"""
    proto = text_model(body, domains="")
    branch = proto.graph.node[1].attribute[0].g
    branch.initializer[0].dims[0] = 7
    branch.node[0].attribute[0].t.dims[0] = 3
    assert [(f.node, f.tensor, f.reason) for f in findings_of("tensors", proto)] == [
        ("", "w", "the initializer 'i/then_branch/w' holds 1 numbers; 7 make its shape [7]"),
        (
            "i/then_branch/k (Constant)",
            "k",
            "the tensor in its attribute 'value' holds 2 numbers; 3 make its shape [3]",
        ),
    ]
