"""Standard Q/DQ files as other tools write them."""

import numpy as np

from tests.support.onnx_text import parse

BYTES = np.arange(-128, 128, dtype=np.int8)
EVERY = {
    "int8": BYTES,
    "uint8": np.arange(256).astype(np.uint8),
    "int16": np.arange(-(2**15), 2**15).astype(np.int16),
    "uint16": np.arange(2**16).astype(np.uint16),
}
"""Every integer of a type."""


def between(body, *, kind="int8", shape="[256]", out="[m]", scale="0.3", zero="3", again=None, opset=21, extra=""):
    """`x` (integers) → DQ → `f` → the body → `g` → Q → `y` (integers); `again` is another scale for the second."""
    both = (
        f"<float s = {{{scale}}}, {kind} z = {{{zero}}}, float t = {{{again or scale}}}, {kind} k = {{{zero}}}{extra}>"
    )
    text = f"f = DequantizeLinear(x, s, z)  {body}  y = QuantizeLinear(g, t, k)"
    return parse(text, inputs=f"{kind}{shape} x", outputs=f"{kind}{out} y", extra=both, opset=opset)
