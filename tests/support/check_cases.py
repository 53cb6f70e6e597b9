"""For every rule of `linger check` the smallest model that breaks it, and the same with the fault repaired."""

from dataclasses import dataclass, field

import numpy as np
import onnx

from tests.support.chip import SIGNAL, WIDTHS, WINDOW, model_of

QUANT = "[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x)"
DEQUANT = "[d] y = thinker.Dequant<scale_o=16.0>(l)"
LINEAR = "data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=16.0"
PARAMETERS = "<int8[2,2] w = {64, 1, 1, 64}, int32[2] b = {1, 2}>"


@dataclass(frozen=True)
class Case:
    """A model that breaks a rule, and what is different in one that does not."""

    rule: str
    body: str
    repaired: str | None = None
    changes: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    target = None

    @property
    def bad(self):
        return text_model(self.body, **self.settings)

    @property
    def good(self):
        return text_model(self.body if self.repaired is None else self.repaired, **(self.settings | self.changes))


@dataclass(frozen=True)
class ChipCase:
    """The same for the limits of a chip, as `tests.support.chip` writes models."""

    rule: str
    body: str
    repaired: str | None = None
    settings: dict = field(default_factory=dict)
    changes: dict = field(default_factory=dict)
    target: str = "venus"

    @property
    def bad(self):
        return _made(self.body, self.settings)

    @property
    def good(self):
        return _made(self.body if self.repaired is None else self.repaired, self.settings | self.changes)


def _made(body, settings):
    """A model with one more constant, since a packer wants one; `k=None` leaves it out."""
    return model_of(body, **{name: value for name, value in ({"k": (1,)} | settings).items() if value is not None})


def text_model(body, *, inputs="float[2,2] x", outputs="float[2,2] y", extra="", domains=', "thinker": 1', opset=12,
               functions=""):  # fmt: skip
    """A ModelProto from ONNX text, as a file would hold it."""
    text = f'<ir_version: 8, opset_import: ["": {opset}{domains}]> g ({inputs}) => ({outputs}) {extra} {{ {body} }}'
    text += functions
    return onnx.parser.parse_model(text)


def linear(attributes=LINEAR, operands="q, w, b", before=QUANT, after=DEQUANT):
    """A fully connected layer between Quant and Dequant."""
    return f"{before} [l] l = thinker.LinearInt<{attributes}>({operands}) {after}"


def softmax(scale, before=None):
    """A softmax between Quant and Dequant."""
    quant = f"[q] q = thinker.Quant<data_bits=8, scale_x={scale}>(x)" if before is None else before
    given = f"dim=-1, data_bits=8, o_bits=8, scale_x={scale}, scale_o=128.0"
    return f"{quant} [s] l = thinker.SoftmaxInt<{given}>(q) [d] y = thinker.Dequant<scale_o=128.0>(l)"


def with_weights(**settings):
    return {"extra": PARAMETERS} | settings


def node(op, operands="x", **attributes):
    listed = ", ".join(f"{n}={_written(v)}" for n, v in attributes.items())
    return f"[n] y = thinker.{op}{f'<{listed}>' if listed else ''}({operands})"


def _written(value):
    return f'"{value}"' if isinstance(value, str) else str(value)


def _attributes(op, bad, good, operands="x", **common):
    return {"body": node(op, operands, **(common | bad)), "repaired": node(op, operands, **(common | good))}


STANDARD = {"domains": ""}
BRANCH = """[c] c = Constant<value = bool {{1}}>() [a] a = Neg(x)
  [i] y = If(c)<then_branch = t () => (float[2,2] p) {{ [k] {inner} = Abs(x) [o] p = Neg({inner}) }},
                else_branch = e () => (float[2,2] r) {{ [m] r = Abs(a) }}>"""

CALLS = """[q] q = thinker.Quant<data_bits=8, scale_x=16.0>(x) [p] p = thinker.Quant<data_bits=8, scale_x={scale}>(x)
  [f] y = my.f(q) [g] z = my.f(p)"""
FUNCTION = """<domain: "my", opset_import: ["": 12, "thinker": 1]> f (a) => (b) {
  [r] b = thinker.Requant<data_bits=8, o_bits=8, scale_x=16.0, scale_o=8.0>(a) }"""

SCALES = "data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0"
MATRICES = "<int16[2,2] rows = {16384, 0, 0, 16384}, int16[2,2] columns = {16384, 0, 0, 16384}>"

GENERAL = [
    Case("LGR101", "[n] y = Rilu(x)", "[n] y = Relu(x)", settings=STANDARD),
    Case("LGR101", node("Quantt", data_bits=8, scale_x=1.0), node("Quant", data_bits=8, scale_x=1.0),
         settings={"outputs": "int8[2,2] y"}),
    Case("LGR101", "[n] y = linger.QAdded(x)", "[n] y = linger.Quant<data_bits=8, scale_x=16.0>(x)",
         settings={"domains": ', "linger": 1', "outputs": "int8[2,2] y"}),
    Case("LGR102", "[n] y = my.Relu(x)", "[n] y = Relu(x)", settings={"domains": ', "my": 1'}),
    Case("LGR103", "[n] y = Relu<alpha=0.5>(x)", "[n] y = LeakyRelu<alpha=0.5>(x)", settings=STANDARD),
    Case("LGR103", f"{QUANT} [d] y = thinker.Dequant<scale_o=16.0, scale_out=16.0>(q)",
         f"{QUANT} [d] y = thinker.Dequant<scale_o=16.0>(q)"),
    Case("LGR104", "[n] y = LeakyRelu<alpha=1>(x)", "[n] y = LeakyRelu<alpha=1.0>(x)", settings=STANDARD),
    Case("LGR104", f"{QUANT} [d] y = thinker.Dequant<scale_o=16>(q)",
         f"{QUANT} [d] y = thinker.Dequant<scale_o=16.0>(q)"),
    Case("LGR105", "[n] y = Cast(x)", "[n] y = Cast<to=1>(x)", settings=STANDARD),
    Case("LGR105", linear(LINEAR.replace("o_bits=8, ", "")), linear(), settings=with_weights()),
    Case("LGR106", "[n] y = Relu(x, x)", "[n] y = Relu(x)", settings=STANDARD),
    Case("LGR106", linear(operands="q"), linear(), settings=with_weights()),
    Case("LGR107", "[n] y = Relu(x)", settings=STANDARD | {"outputs": "y"}, changes={"outputs": "float[2,2] y"}),
    Case("LGR108", "[n] y = Relu(x) [m] z = my.Relu(x)", settings={"domains": ""}, changes={"domains": ', "my": 1'}),
    Case("LGR109", **_attributes("AvgPool2dInt", {"ceil_mode": 1}, {"ceil_mode": 0}, kernel_shape=[2, 2], strides=[2, 2],
                                 pads=[0, 0, 0, 0], data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0),
         settings={"inputs": "int8[1,1,4,4] x", "outputs": "int8[1,1,2,2] y"}),
    Case("LGR110", f"{QUANT} [s] l = Transpose<perm: ints = []>(q) {DEQUANT}", f"{QUANT} [s] l = Transpose(q) {DEQUANT}"),
    Case("LGR111", "[n] y = Add(x, z)", settings=STANDARD | {"inputs": "float[2,2] x, int8[2,2] z"},
         changes={"inputs": "float[2,2] x, float[2,2] z"}),
    Case("LGR112", "[n] y = Rilu(x)", "[n] y = Relu(x)", settings=STANDARD),
    Case("LGR201", "[n] y = Relu(z)", "[n] y = Relu(x)", settings=STANDARD),
    Case("LGR201", "[n] z = Relu(x)", "[n] y = Relu(x)", settings=STANDARD),
    Case("LGR202", BRANCH.format(inner="a"), BRANCH.format(inner="b"), settings=STANDARD),
    Case("LGR203", "[n] y = Neg(a) [m] a = Abs(x)", "[m] a = Abs(x) [n] y = Neg(a)", settings=STANDARD),
    Case("LGR204", "[m] a = Add(x, b) [k] b = Abs(a) [n] y = Neg(b)", "[m] a = Add(x, x) [k] b = Abs(a) [n] y = Neg(b)",
         settings=STANDARD),
    Case("LGR205", "[n] y = Neg(x) [m] z = Abs(x)", "[n] y = Neg(x)", settings=STANDARD),
    Case("LGR206", "[n] y = Neg(x)", "[n] y = Add(x, w)", settings=STANDARD | {"extra": "<float[1] w = {1}>"}),
    Case("LGR207", "[n] y = Neg(x)", "[n] y = Add(x, z)", settings=STANDARD | {"inputs": "float[2,2] x, float[2,2] z"}),
    Case("LGR208", f"{QUANT} [q] l = Relu(q) {DEQUANT}", f"{QUANT} [r] l = Relu(q) {DEQUANT}"),
    Case("LGR209", f"{QUANT} l = Relu(q) {DEQUANT}", f"{QUANT} [r] l = Relu(q) {DEQUANT}"),
    Case("LGR210", f"{QUANT} [r] Scaled = Relu(q) [d] y = thinker.Dequant<scale_o=16.0>(Scaled)",
         f"{QUANT} [r] l = Relu(q) {DEQUANT}"),
    Case("LGR211", "[n] y = Neg(x)", settings=STANDARD | {"inputs": "float[n,2] x", "outputs": "float[n,2] y"},
         changes={"inputs": "float[2,2] x"}),
    Case("LGR212", f"{QUANT} [r] l = Relu(q) {DEQUANT}", settings={"inputs": "float[?,2] x", "outputs": "float[?,2] y"},
         changes={"inputs": "float[n,2] x"}),
    Case("LGR213", "[n] y = Neg(x)", settings=STANDARD | {"outputs": "float[2,2] y, float[2,2] y"},
         changes={"outputs": "float[2,2] y"}),
    Case("LGR214", f"{QUANT} [i] l = thinker.iqInterpolate<{SCALES}>(q, rows, columns) {DEQUANT}",
         settings={"inputs": "float[1,1,h,2] x", "outputs": "float[1,1,2,2] y", "extra": MATRICES},
         changes={"inputs": "float[1,1,2,2] x"}),
    Case("LGR301", linear(), settings=with_weights(extra="<int16[2,2] w = {1, 1, 1, 1}, int32[2] b = {1, 2}>"),
         changes=with_weights()),
    Case("LGR301", linear(), settings=with_weights(extra="<int8[2,2] w = {64, 1, 1, 64}, int16[2] b = {1, 2}>"),
         changes=with_weights()),
    Case("LGR302", linear(LINEAR.replace("parameter_bits=8", "parameter_bits=4")),
         settings=with_weights(extra="<int8[2,2] w = {8, 1, 1, 7}, int32[2] b = {1, 2}>"),
         changes=with_weights(extra="<int8[2,2] w = {-8, 1, 1, 7}, int32[2] b = {1, 2}>")),
    Case("LGR303", linear(), settings=with_weights(extra="<int8[2,2] w = {64, 1, 1, 64}, int32[2] b = {1, 2}, float[2,2] q>"),
         changes=with_weights(extra="<int8[2,2] w = {64, 1, 1, 64}, int32[2] b = {1, 2}, int8[2,2] q>")),
    Case("LGR304", linear(operands="x, w, b", before=""), linear(), settings=with_weights()),
    Case("LGR304", linear(LINEAR.replace("data_bits=8", "data_bits=16")), linear(), settings=with_weights()),
    Case("LGR305", linear(LINEAR.replace("o_bits=8", "o_bits=33")), linear(), settings=with_weights()),
    Case("LGR306", linear(), settings=with_weights(extra="<int8[2,2] w = {64, 1, 1, 64}, int32[3] b = {1, 2, 3}>"),
         changes=with_weights()),
    Case("LGR307", CALLS.format(scale="32.0"), CALLS.format(scale="16.0"),
         settings={"domains": ', "thinker": 1, "my": 1', "outputs": "int8[2,2] y, int8[2,2] z", "functions": FUNCTION}),
    Case("LGR308", linear(), settings=with_weights(extra="<int8[2,2] w = {64, 1, 1}, int32[2] b = {1, 2}>"),
         changes=with_weights()),
    Case("LGR401", f"{QUANT} [d] y = thinker.Dequant<scale_o=-16.0>(q)", f"{QUANT} [d] y = thinker.Dequant<scale_o=16.0>(q)"),
    Case("LGR402", "[q] q = thinker.Quant<data_bits=8, scale_x=24.0>(x) [d] y = thinker.Dequant<scale_o=24.0>(q)",
         f"{QUANT} [d] y = thinker.Dequant<scale_o=16.0>(q)"),
    Case("LGR403", linear(LINEAR.replace("scale_x=16.0", "scale_x=8.0")), linear(), settings=with_weights()),
    Case("LGR404", linear(LINEAR.replace("scale_w=64.0", "scale_w=0.5")), linear(), settings=with_weights()),
    Case("LGR404", f"{QUANT} [a] l = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=32.0>(q, q) "
         "[d] y = thinker.Dequant<scale_o=32.0>(l)",
         f"{QUANT} [a] l = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=16.0>(q, q) {DEQUANT}"),
    Case("LGR405", "[q] q = thinker.Quant<data_bits=8, scale_x=0.5>(x) [d] y = thinker.Dequant<scale_o=0.5>(q)",
         f"{QUANT} [d] y = thinker.Dequant<scale_o=16.0>(q)"),
    Case("LGR406", "[q] q = thinker.Quant<data_bits=16, scale_x=16.0>(x) "
         "[s] l = thinker.iqSigmoid<scale_x=16.0, scale_o=16.0>(q) [d] y = thinker.Dequant<scale_o=16.0>(l)",
         "[q] q = thinker.Quant<data_bits=16, scale_x=16.0>(x) "
         "[s] l = thinker.iqSigmoid<scale_x=16.0, scale_o=128.0>(q) [d] y = thinker.Dequant<scale_o=128.0>(l)"),
    Case("LGR501", linear(), settings=with_weights(extra="<int8[2,2] w = {64, 1, 1, 64}, int32[2] b = {2147483647, 2}>"),
         changes=with_weights()),
    Case("LGR502", linear(), settings=with_weights(extra="<int8[2,2] w = {64, 1, 1, 64}, int32[2] b = {16777216, 2}>"),
         changes=with_weights()),
    Case("LGR503", linear(), settings=with_weights(extra="<int8[2,2] w = {64, 1, 1, 64}, int64[2] b = {2147483648, 2}>"),
         changes=with_weights()),
    Case("LGR504", linear(), settings=with_weights(extra="<int8[2,2] w = {64, 1, 1, 64}, int32[2] b = {-2147483648, 2}>"),
         changes=with_weights()),
    Case("LGR505", linear(), settings=with_weights(extra="<int8[2,2] w = {64, 1, 1, 64}, int32[2] b = {1, 20000}>"),
         changes=with_weights()),
    Case("LGR506", linear(), settings=with_weights(extra="<int8[2,2] w = {9, 1, 1, 9}, int32[2] b = {1, 2}>"),
         changes=with_weights()),
    Case("LGR507", softmax(1.0), softmax(2.0)),
    Case("LGR601", f"{QUANT} [n] y = Exp(q)", f"{QUANT} [d] l = thinker.Dequant<scale_o=16.0>(q) [n] y = Exp(l)"),
    Case("LGR601", f"{QUANT} [n] y = Relu(q)", f"{QUANT} [n] l = Relu(q) {DEQUANT}"),
    Case("LGR602", f"{QUANT} [d] l = thinker.Dequant<scale_o=16.0>(q) [e] k = thinker.Dequant<scale_o=16.0>(q) [n] y = Add(l, k)",
         f"{QUANT} [d] l = thinker.Dequant<scale_o=16.0>(q) [n] y = Add(l, l)"),
    Case("LGR603", f"{QUANT} [d] y = thinker.Dequant<scale_o=8.0>(q)", f"{QUANT} [d] y = thinker.Dequant<scale_o=16.0>(q)"),
    Case("LGR604", "[d] y = thinker.Dequant<scale_o=16.0>(x)", f"{QUANT} [d] y = thinker.Dequant<scale_o=16.0>(q)"),
    Case("LGR605", linear(before=f"{QUANT} [e] r = thinker.Dequant<scale_o=16.0>(q)", operands="r, w, b"), linear(),
         settings=with_weights()),
    Case("LGR701", "[q] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, z)",
         settings=STANDARD | {"opset": 13, "extra": "<float s = {0.5}, int8 z = {3}>"},
         changes={"extra": "<float s = {0.5}, int8 z = {0}>"}),
    Case("LGR703", "[q] q = QuantizeLinear(x, s, z) [d] d = DequantizeLinear(q, s, z) [v] v = DequantizeLinear(w, s, k)"
         " [p] p = MatMul(d, v) [r] r = QuantizeLinear(p, s, z) [e] y = DequantizeLinear(r, s, z)",
         settings=STANDARD | {"opset": 13, "extra": "<float s = {0.5}, int8 z = {0}, int8 k = {0}, int8[2,2] w = {65, 1, 1, 1}>"},
         changes={"extra": "<float s = {0.5}, int8 z = {0}, int8 k = {0}, int8[2,2] w = {64, 1, 1, 1}>"}),
    Case("LGR702", "[q] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, z)",
         settings=STANDARD | {"opset": 13, "extra": "<float s = {0.3}, int8 z = {0}>"},
         changes={"extra": "<float s = {0.5}, int8 z = {0}>"}),
]  # fmt: skip


def _chip(rule, op, bad, good, operands="x", common=None, **more):
    return ChipCase(rule, **_attributes(op, bad, good, operands, **(common or {})), **more)


CONV = {"w": (8, 8, 3, 3)}
POOL = {"strides": [1, 1], "pads": [0, 0, 0, 0], "data_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_o": 16.0}
SUM = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0}
BMM = SUM | {"data_bits": 8, "o_bits": 8}
SOFTMAX = {"data_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_o": 128.0}
MATRIX = {"inputs": "int8[2,64] x", "w": (8, 64)}
RECURRENT = {
    "input_size": 6, "hidden_size": 4, "batch_first": 0, "go_forward": 1, "scale_i": 16.0, "scale_h": 64.0,
    "scale_iw": 64.0, "scale_hw": 64.0, "scale_o": 64.0, "data_bits": 8, "parameter_bits": 8, "o_bits": 8,
}  # fmt: skip
GATES = {"inputs": "int8[7,2,6] x", "a": (16, 6), "c": (16, 4), "d": (16,), "e": (16,)}
SCALAR = "[c] c = Constant<value = int8 {{{}}}>() [n] y = thinker.{}<scale_x=16.0, scale_y=1.0, scale_o=16.0>(x, c)"
ONE_BY_ONE = {"kernel_shape": [1, 1], "pads": [0, 0, 0, 0]}
TRANSPOSED = WIDTHS | WINDOW | {"output_padding": [0, 0]}
SQUARE = RECURRENT | {"input_size": 16, "hidden_size": 16}
SQUARE_GATES = {"inputs": "int8[1,16,16] x", "a": (64, 16), "c": (64, 16), "d": (64,), "e": (64,)}
AVERAGE = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0], "scale_x": 16.0, "scale_o": 16.0}
NORM = node("LayerNormInt", "{}, s, t", **(WIDTHS | {"parameter_bits": 16}))
RESERVE = node("LinearInt", "x, w, b", **WIDTHS).replace("[n] y =", "[r] r =", 1)

CHIPS = [
    ChipCase("LGR901", "[n] y = Relu(x)", "[n] y = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=16.0>(x, z)",
             settings={"k": None}, changes={"z": (1, 8, 16, 16)}),
    ChipCase("LGR902", "[n] y = Softplus(x)", "[n] y = Relu(x)", {"inputs": "float[2] x"}),
    _chip("LGR903", "Relu", {}, {"platform": "arcs", "quant_mode": "floor_add"}, target="arcs"),
    ChipCase("LGR903", node("Relu", platform="arcs"), node("Relu", platform="venus")),
    ChipCase("LGR904", SCALAR.format(4, "iqDiv"), SCALAR.format(4, "iqMul"), target="arcs"),
    ChipCase("LGR904", node("iqVar", dim=2, scale_x=16.0, scale_o=16.0), node("Relu"), target="venusA"),
    ChipCase("LGR905", node("Relu"), settings={"inputs": "int16[2,4] x"}, changes={"inputs": "int8[2,4] x"}, target="arcs"),
    _chip("LGR906", "iqAdd", {"scale_o": 32.0}, {"scale_o": 16.0}, "x, x", SUM),
    ChipCase("LGR907", node("iqSub", "x, x", **SUM), node("iqAdd", "x, x", **SUM)),
    ChipCase("LGR908", node("QAvgPool2d", x_bits=8, o_bits=8, **AVERAGE).replace("thinker.", "linger."),
             node("AvgPool2dInt", data_bits=8, o_bits=8, **AVERAGE)),
    ChipCase("LGR909", node("MaxPool", kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0]),
             settings={"inputs": "int8[2,8,16,16] x"}, changes={"inputs": "int8[1,8,16,16] x"}),
    ChipCase("LGR910", '[n] y = Relu<platform="arcs">(x)', node("Relu", platform="arcs"), target="arcs"),
    _chip("LGR911", "Conv2dInt", {"strides": [3, 3]}, {"strides": [1, 1]}, "x, w", WIDTHS | WINDOW, settings=CONV),
    _chip("LGR912", "Conv2dInt", {"o_bits": 16}, {"o_bits": 8}, "x, w", WIDTHS | WINDOW, settings=CONV),
    ChipCase("LGR913", node("Conv1dInt", "x, w", **(WIDTHS | SIGNAL | {"group": 8})),
             node("Conv1dInt", "x, w", **(WIDTHS | SIGNAL)),
             settings={"inputs": "int8[1,8,16] x", "w": (8, 1, 3)}, changes={"w": (8, 8, 3)}),
    ChipCase("LGR914", node("ConvTranspose2dInt", "x, w, b", **(TRANSPOSED | ONE_BY_ONE)),
             settings={"inputs": "int8[1,256,8,8] x", "w": (256, 256, 1, 1), "b": np.zeros(256, np.int32)},
             changes={"w": (256, 8, 1, 1), "b": np.zeros(8, np.int32)}),
    _chip("LGR915", "AvgPool2dInt", {"kernel_shape": [13, 13]}, {"kernel_shape": [4, 4]}, common=POOL),
    ChipCase("LGR916", node("MaxPool", kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 0, 0]),
             settings={"inputs": "int16[1,8,16,16] x"}, changes={"inputs": "int8[1,8,16,16] x"}),
    _chip("LGR917", "MaxPool", {"strides": [3, 3]}, {"strides": [2, 2]}, common={"kernel_shape": [2, 2], "pads": [0, 0, 0, 0]}),
    _chip("LGR918", "Conv2dInt", {"group": 4, "pads": [1, 1, 1, 1]}, {"group": 4, "pads": [0, 0, 0, 0]}, "x, w",
          WIDTHS | WINDOW, settings={"w": (8, 2, 3, 3)}),
    ChipCase("LGR919", node("ConvTranspose2dInt", "x, w", **TRANSPOSED), node("ConvTranspose2dInt", "x, w, b", **TRANSPOSED),
             settings=CONV, changes={"b": np.zeros(8, np.int32)}),
    ChipCase("LGR921", node("LinearInt", "x, w", **WIDTHS), settings={"inputs": "int8[2,20000] x", "w": (2, 20000)},
             changes={"inputs": "int8[2,64] x", "w": (2, 64)}),
    ChipCase("LGR922", node("BmmInt", "x, z", **BMM), settings={"inputs": "int8[1,4,256] x, int8[1,256,256] z"},
             changes={"inputs": "int8[1,4,16] x, int8[1,16,16] z"}),
    _chip("LGR923", "LinearInt", {"o_bits": 4}, {"o_bits": 8}, "x, w", WIDTHS, settings=MATRIX),
    ChipCase("LGR924", node("LinearInt", "x, w", **WIDTHS), settings={"inputs": "int8[1,1,2,64] x", "w": (8, 64)},
             changes={"inputs": "int8[2,64] x"}),
    ChipCase("LGR925", node("LayerNormInt", "x, w, b", **(WIDTHS | {"parameter_bits": 16})),
             settings={"inputs": "int8[1,2,400] x", "w": (400,), "b": (400,)},
             changes={"inputs": "int8[1,2,8] x", "w": (8,), "b": (8,)}),
    _chip("LGR926", "SoftmaxInt", {"dim": 0}, {"dim": -1}, common=SOFTMAX, settings={"inputs": "int8[2,64] x"}),
    _chip("LGR927", "LSTMInt", {"batch_first": 0}, {"batch_first": 1}, "x, a, c, d, e", SQUARE, settings=SQUARE_GATES),
    ChipCase("LGR928", NORM.format("x"), f"{RESERVE} {NORM.format('r')}",
             settings={"inputs": "int8[1,2,8] x", "s": (8,), "t": (8,), "w": (8, 8), "b": np.zeros(8, np.int32)}),
    ChipCase("LGR931", node("iqAdd", "x, z", **SUM), settings={"inputs": "int8[1,8,16,16] x, int8[1,1,1,16] z"},
             changes={"inputs": "int8[1,8,16,16] x, int8[1,8,16,16] z"}),
    ChipCase("LGR932", node("iqMul", "x, z", **SUM), settings={"inputs": "int8[1,8,16,16] x, int8[1,1,1,16] z"},
             changes={"inputs": "int8[1,8,16,16] x, int8[1,8,16,16] z"}),
    ChipCase("LGR933", SCALAR.format(3, "iqDiv"), SCALAR.format(4, "iqDiv")),
    ChipCase("LGR934", node("iqCat", "x, x", dim=1, scale_x_0=16.0, scale_x_1=16.0, scale_o=8.0),
             node("iqCat", "x, x", dim=1, scale_x_0=16.0, scale_x_1=16.0, scale_o=16.0),
             settings={"inputs": "int16[1,8] x"}),
    ChipCase("LGR935", node("iqSigmoid", scale_x=16.0, scale_o=128.0), settings={"inputs": "int8[2,4] x"},
             changes={"inputs": "int16[2,4] x"}),
    _chip("LGR936", "iqVar", {"dim": 1}, {"dim": 2}, common={"scale_x": 16.0, "scale_o": 16.0}),
    ChipCase("LGR941", node("Clip", "x, low, high"), node("Relu"), settings={"low": (), "high": ()}),
    ChipCase("LGR942", "[n] y = Transpose<perm=[1, 2, 3, 0]>(x)", "[n] y = Transpose<perm=[0, 2, 3, 1]>(x)"),
    ChipCase("LGR943", "[n] y = Squeeze(x, k)", "[n] y = Squeeze<axes=[0]>(x)", settings={"opset": 13}, changes={"opset": 12}),
    ChipCase("LGR944", "[s] s = Shape(x) [n] y = Reshape(x, s)", settings={"inputs": "int8[1,8,h,16] x"},
             changes={"inputs": "int8[1,8,16,16] x"}),
    ChipCase("LGR945", "[n] y = Slice(x, b, e, a)",
             settings={"b": [0, 0], "e": [1, 1], "a": [0, 1]}, changes={"b": [0], "e": [1], "a": [0]}),
    ChipCase("LGR946", "[n] y, z = Split<axis=1>(x)", "[n] y = Relu(x)"),
    _chip("LGR947", "Quant", {"data_bits": 16}, {"data_bits": 8}, common={"scale_x": 16.0},
          settings={"inputs": "float[2,2] x"}),
    ChipCase("LGR949", node("iqPad", "x, p, v"), settings={"p": np.array([0, 1, 1, 1] * 2), "v": np.int8(0)},
             changes={"p": np.array([0, 0, 1, 1] * 2)}),
    ChipCase("LGR950", node("Dequant", scale_o=16.0), settings={"inputs": "int16[2,4] x"}, changes={"inputs": "int8[2,4] x"}),
    ChipCase("LGR951", node("Relu"), settings={"inputs": "int8[1,64,64,80] x"}, changes={"inputs": "int8[1,64,64,64] x"}),
    ChipCase("LGR952", node("LinearInt", "x, w", **(WIDTHS | {"platform": "arcs"})), target="arcs",
             settings={"inputs": "int8[1,2048] x", "w": (256, 2048)}, changes={"w": (128, 2048)}),
    _chip("LGR953", "iqSigmoid", {}, {"platform": "arcs"}, common={"scale_x": 16.0, "scale_o": 128.0}, target="arcs"),
    ChipCase("LGR954", node("ConvTranspose2dInt", "x, w, b", **TRANSPOSED), node("Conv2dInt", "x, w, b", **WIDTHS, **WINDOW),
             settings=CONV | {"b": np.zeros(8, np.int32)}),
    ChipCase("LGR955", f"{RESERVE} {node('LinearInt', 'r, w, c', **WIDTHS)}", f"{RESERVE} {node('LinearInt', 'r, w, b', **WIDTHS)}",
             settings={"inputs": "int8[1,2,8] x", "w": (8, 8), "b": np.zeros(8, np.int32), "c": np.zeros(8, np.int32)}),
    ChipCase("LGR956", node("LinearInt", "x, w", **WIDTHS, exponents_w=[0] * 7 + [1]), node("LinearInt", "x, w", **WIDTHS),
             settings={"inputs": "int8[1,8] x", "w": (8, 8)}),
]  # fmt: skip
