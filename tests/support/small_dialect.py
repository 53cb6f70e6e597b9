"""A dialect model small enough to work out by hand, and ways to change it."""

import numpy as np
import onnx

TEXT = """<ir_version: 8, opset_import: ["": 12, "thinker": 1]>
g (float[n,2,1,3] x) => (float[n,2,1,3] y) {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  r = thinker.Relu(q)
  s = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=8.0>(q, r)
  y = thinker.Dequant<scale_o=8.0>(s)
}"""

X = np.array([[[[1.0, -1.0, 0.5]], [[2.0, 9.0, -0.25]]]], np.float32)
Q = np.array([[[[16, -16, 8]], [[32, 127, -4]]]], np.int8)  # 9·16 = 144 saturates
R = np.array([[[[16, 0, 8]], [[32, 127, 0]]]], np.int8)
# s = ⌊q/2 + ½⌋ + ⌊r/2 + ½⌋; 127/2 → 64, and 64 + 64 saturates at 127; −4/2 → −2
S = np.array([[[[16, -8, 8]], [[32, 127, -2]]]], np.int8)
Y = (S / 8).astype(np.float32)

TENSORS = {"x": X, "q": Q, "r": R, "s": S, "y": Y}


def model(*changes):
    """The model as a proto, after replacing pieces of its text: (old, new) pairs."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return onnx.parser.parse_model(text)
