"""A small dialect file and what it computes, worked out by hand."""

import numpy as np

from linger import Recording

TEXT = """<ir_version: 6, opset_import: ["": 11, "thinker": 1]>
g (float[n,3] x) => (float[n,3] y) {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  r = Relu(q)
  y = thinker.Dequant<scale_o=16.0>(r)
}"""

X = np.array([[1.0, -1.0, 0.5]], np.float32)
Q = np.array([[16, -16, 8]], np.int8)
R = np.array([[16, 0, 8]], np.int8)
Y = np.array([[1.0, 0.0, 0.5]], np.float32)


def recording(**changes) -> Recording:
    """The file's recording for X, with some parts replaced."""
    return Recording(**({"inputs": [X], "outputs": [Y], "integers": {"q": Q, "r": R}} | changes))
