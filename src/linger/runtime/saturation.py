# SPDX-License-Identifier: Apache-2.0
"""Find out whether integer products of unsigned and signed bytes saturate on this CPU.

On x64 without VNNI a kernel adds two products u8×s8 in 16 bits: beyond ±32767 the sum saturates, silently. Weights
within ±64 are safe, since 2·255·64 = 32640.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

_DATA, _WEIGHT, _LENGTH = 255, 127, 64

_MATMUL = f"""<ir_version: 8, opset_import: ["": 13]>
matmul (uint8[8,{_LENGTH}] x) => (int32[8,32] y) <int64[2] s = {{{_LENGTH}, 32}}> {{
  w = ConstantOfShape<value = int8[1] {{{_WEIGHT}}}>(s)
  y = MatMulInteger(x, w)
}}"""
_CONV = f"""<ir_version: 8, opset_import: ["": 13]>
conv (uint8[1,{_LENGTH},4,4] x) => (int32[1,32,4,4] y) <int64[4] s = {{32, {_LENGTH}, 1, 1}}> {{
  w = ConstantOfShape<value = int8[1] {{{_WEIGHT}}}>(s)
  y = ConvInteger(x, w)
}}"""


@cache
def has_saturating_products() -> bool:
    """Whether ONNX Runtime, on this CPU, gives a wrong sum of products u8×s8; asked once per process.

    64 products 255·127 make 2 072 640. Where pairs of them saturate at 32767, 32 pairs make 1 048 544.
    """
    return any(_is_wrong(text) for text in (_MATMUL, _CONV))


def _is_wrong(text: str) -> bool:
    content = ir.to_proto(ir.from_onnx_text(text)).SerializeToString()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    shape = session.get_inputs()[0].shape
    found = session.run(None, {"x": np.full(shape, _DATA, np.uint8)})[0]
    return bool((found != _DATA * _WEIGHT * _LENGTH).any())
