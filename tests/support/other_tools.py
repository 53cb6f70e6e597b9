"""Standard Q/DQ files as other tools write them."""

import random

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


SCALES = ((0.25, 3), (0.3, 0), (0.3, 3))
"""Few, so that equal ones meet."""


class RandomFile:
    """A Q/DQ file of random ops on tensors [1,4,4,4]: pairs, chains, islands, shared parameters, ends of either kind."""

    def __init__(self, seed, size):
        self.dice = random.Random(seed)
        self.kind = self.dice.choice(["int8", "uint8"])
        self.nodes, self.floats, self.integers, self.extra = [], ["x"], [], []
        self.parameters, self.origins = {}, {}
        for _ in range(size):
            self.dice.choice([self.quantize, self.quantize, self.dequantize, self.dequantize, self.operate])()
        self.dequantize()
        self.operate()

    def parameter(self, scale, zero):
        """Shared by chance."""
        name = self.parameters.get((scale, zero))
        if name is None or self.dice.random() < 0.5:
            name = self.parameters[scale, zero] = f"{len(self.extra)}"
            self.extra.append(f"float s{name} = {{{scale}}}, {self.kind} z{name} = {{{zero}}}")
        return f"s{name}, z{name}"

    def quantize(self):
        x = self._float()
        scale = self.origins.get(x) if self.dice.random() < 0.7 else None
        scale = scale or self.dice.choice(SCALES)
        self.integers.append((self._node(f"QuantizeLinear({x}, {self.parameter(*scale)})"), scale))

    def dequantize(self):
        if not self.integers:
            self.quantize()
        name, scale = self.dice.choice(self.integers[-3:])
        if self.dice.random() < 0.1:
            scale = self.dice.choice(SCALES)
        self.floats.append(self._node(f"DequantizeLinear({name}, {self.parameter(*scale)})"))
        self.origins[self.floats[-1]] = scale

    def operate(self):
        x, y = self._float(), self._float()
        op = self.dice.choice(
            [
                f"Relu({x})",
                f"Clip({x}, low, high)",
                f"Neg({x})",
                f"Transpose<perm = [0, 2, 3, 1]>({x})",
                f"Identity({x})",
                f"Add({x}, {y})",
                f"Where(mask, {x}, {y})",
                f"MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>({x})",
                f"DepthToSpace<blocksize = 1>({x})",
            ]
        )
        self.floats.append(self._node(op))
        self.origins[self.floats[-1]] = self.origins.get(x)

    def _float(self):
        return self.dice.choice(self.floats[-3:])

    def _node(self, text):
        name = f"t{len(self.nodes)}"
        self.nodes.append(f"{name} = {text}")
        return name

    def model(self):
        """The model; its nodes in any order."""
        ends = dict.fromkeys([self.floats[-1], *self.dice.choices(self.floats[1:], k=2)], "float")
        ends |= {name: self.kind for name, _ in self.dice.choices(self.integers, k=4)}
        self.dice.shuffle(self.nodes)
        fixed = ["float low = {-2.0}, float high = {5.1}, bool[4] mask = {1, 0, 0, 1}"]
        return parse(
            "  ".join(self.nodes),
            inputs="float[1,4,4,4] x",
            outputs=", ".join(f"{kind}[1,4,4,4] {name}" for name, kind in ends.items()),
            extra=f"<{', '.join(fixed + self.extra)}>",
        )


class RandomLayers(RandomFile):
    """The same with products of weights, as a network has them, and with branches that lead nowhere."""

    def operate(self):
        self.quantize()
        self.dequantize()
        (super().operate if self.dice.random() < 0.5 else self.multiply)()
        self.quantize()
        self.dequantize()

    def multiply(self):
        number = len(self.extra)
        kind = "int8" if self.kind == "int8" else self.dice.choice(["int8", "uint8"])
        low, high = (-128, 127) if kind == "int8" else (0, 255)
        shape, op = self.dice.choice([((4, 4, 3, 3), "Conv<pads = [1, 1, 1, 1]>"), ((4, 4), "MatMul")])
        numbers = ", ".join(str(self.dice.randint(low, high)) for _ in range(np.prod(shape)))
        self.extra.append(f"{kind}[{', '.join(map(str, shape))}] w{number} = {{{numbers}}}")
        self.extra.append(f"float sw{number} = {{0.01}}, {kind} zw{number} = {{0}}")
        weight = self._node(f"DequantizeLinear(w{number}, sw{number}, zw{number})")
        self.floats.append(self._node(f"{op}({self.floats[-1]}, {weight})"))
