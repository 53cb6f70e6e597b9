"""ONNX Runtime as it is on x64 without VNNI, imitated: int8 between Q and DQ becomes u8×s8, pairs of products saturate."""

import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from linger import Session
from linger.runtime.reference_ops import STANDARD_OPS

CURES = ("session.qdqisint8allowed", "session.disable_quant_qdq")

TEXTBOOK = """<ir_version: 8, opset_import: ["": 13]> g (float[n,4] x) => (float[n,2] y)
<int8[4,2] w1 = {127, 1, 127, 2, 3, 3, 4, 4}, int8[2,2] w2 = {1, 0, 0, 1},
 float s = {0.0625}, float sw = {0.125}, float so = {4.0}, int8 z = {0}> {
  xq = QuantizeLinear(x, s, z)
  xd = DequantizeLinear(xq, s, z)
  w1d = DequantizeLinear(w1, sw, z)
  h = MatMul(xd, w1d)
  hq = QuantizeLinear(h, so, z)
  hd = DequantizeLinear(hq, so, z)
  w2d = DequantizeLinear(w2, sw, z)
  v = MatMul(hd, w2d)
  yq = QuantizeLinear(v, s, z)
  y = DequantizeLinear(yq, s, z)
}"""
"""Two layers as every tool writes them; only the first has weights beyond ±64."""


def pair_sums(data, weight):
    """Products of unsigned [m, k] and signed [k, n] bytes, as VPMADDUBSW and VPMADDWD add them.

    VPMADDUBSW multiplies unsigned by signed bytes, adds each product at an even place to its neighbor and saturates the sum
    to 16 bits; VPMADDWD, multiplying by ones, and VPADDD add these in 32 bits.
    """
    data, weight = data.astype(np.int64), weight.astype(np.int64)
    total = np.zeros((data.shape[0], weight.shape[1]), np.int64)
    for k in range(0, data.shape[1], 2):
        total += np.clip(data[:, k : k + 2] @ weight[k : k + 2], -(2**15), 2**15 - 1)
    return total


class SaturatingMatMul(OpRun):
    """Integers q (signed) and w: ONNX Runtime makes q + 128 of the signed data."""

    op_domain = "imitation"

    def _run(self, q, w, scale_q, scale_w):
        total = pair_sums(q.astype(np.int64) + 128, w) - 128 * w.astype(np.int64).sum(axis=0)
        return ((total * (scale_q * scale_w)).astype(np.float32),)


class ImitatedSession(Session):
    """A Session whose ONNX Runtime saturates."""

    cures = CURES

    def _open(self, proto):
        return _Inner(proto, is_cured=any(self._has(entry) for entry in self.cures))

    def _has(self, entry):
        try:
            return self._arguments["sess_options"].get_session_config_entry(entry) == "1"
        except RuntimeError:
            return False


class IncurableSession(ImitatedSession):
    """One whose results are wrong whatever is switched."""

    cures = ()


class _Inner:
    def __init__(self, proto, *, is_cured):
        self._outer = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        if not is_cured:
            _fuse(proto)
        self._evaluator = ReferenceEvaluator(proto, new_ops=[SaturatingMatMul, *STANDARD_OPS])

    def get_inputs(self):
        return self._outer.get_inputs()

    def get_outputs(self):
        return self._outer.get_outputs()

    def run(self, names, feeds, options=None):
        return self._evaluator.run(names, feeds)


def _fuse(proto):
    """As ONNX Runtime does: only where nothing between the data's Q and the result's Q is an output."""
    made_by = {o: n for n in proto.graph.node for o in n.output}
    watched = {o.name for o in proto.graph.output}
    quantized = {n.input[0]: n.output[0] for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    for node in proto.graph.node:
        sources = [made_by.get(name) for name in node.input]
        if node.op_type != "MatMul" or any(s is None or s.op_type != "DequantizeLinear" for s in sources):
            continue
        data, weight = sources
        inside = {data.input[0], data.output[0], node.output[0], quantized.get(node.output[0], node.output[0])}
        if not inside & watched:
            node.op_type, node.domain = "SaturatingMatMul", "imitation"
            node.input[:] = [data.input[0], weight.input[0], data.input[1], weight.input[1]]
    proto.opset_import.append(onnx.helper.make_opsetid("imitation", 1))
