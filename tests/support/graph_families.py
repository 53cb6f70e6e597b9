"""The kinds of ops that random dialect graphs are made of: integers, movement, islands of floats."""

from collections.abc import Callable

import numpy as np

from tests.support.dialect_graphs import BOOL, FLOAT, INT64, INTEGER, NUMPY, Scope, Tensor

Family = Callable[[Scope], bool]
"""Adds something to a graph; False where nothing in sight suits it."""

INTEGERS: dict[str, Family] = {}
MOVEMENT: dict[str, Family] = {}
ISLANDS: dict[str, Family] = {}
LARGEST = 64
"""Tensors stay small: nothing grows beyond this many elements."""


def family(table: dict[str, Family]):
    def keep(function: Family) -> Family:
        table[function.__name__.strip("_").replace("_", " ")] = function
        return function

    return keep


def _weights(s: Scope, shape, bits: int = 8) -> str:
    values = [s.dice.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for _ in range(int(np.prod(shape)))]
    return s.world.constant(np.array(values, NUMPY[8 if bits < 8 else bits]).reshape(shape), "w")


def _reals(s: Scope, shape) -> str:
    values = [s.dice.choice([-1.5, -0.75, -0.3, 0.0, 0.4, 1.0, 2.25]) for _ in range(int(np.prod(shape)))]
    return s.world.constant(np.array(values, np.float32).reshape(shape), "c")


def _sizes(s: Scope, *numbers: int) -> str:
    return s.world.constant(np.array(numbers, np.int64), "n")


def _image(t: Tensor) -> bool:
    return t.size % 4 == 0


def _as_image(s: Scope, t: Tensor) -> Tensor:
    return s.reshaped(t, (1, t.size // 4, 2, 2))


def _out_bits(s: Scope) -> int:
    return s.dice.choice([8, 8, 8, 16, 32])


# integers


@family(INTEGERS)
def quant(s: Scope) -> bool:
    x = s.pick(lambda t: t.element == FLOAT)
    if x is not None:
        s.quantize(x, s.dice.choice([8, 8, 16, 32]))
    return x is not None


@family(INTEGERS)
def linear(s: Scope) -> bool:
    x = s.a_quantized(most_bits=16, wanted=lambda t: 1 <= len(t.shape) <= 3)
    if x is None:
        return False
    bits, width = _out_bits(s), s.dice.choice([x.shape[-1], 4])
    operands = [x, _weights(s, (width, x.shape[-1]), 4)]
    if s.dice.random() < 0.6:
        operands.append(s.world.constant(np.array([s.dice.randint(-900, 900) for _ in range(width)], np.int32), "b"))
    y = s.quantized((*x.shape[:-1], width), s.scale(bits), bits)
    scales = {"scale_x": x.scale, "scale_w": 8.0, "scale_o": y.scale}
    s.dialect("LinearInt", operands, y, data_bits=x.bits, parameter_bits=8, o_bits=bits, **scales)
    return True


@family(INTEGERS)
def convolution(s: Scope) -> bool:
    x = s.a_quantized(most_bits=16, wanted=_image)
    if x is None:
        return False
    x = _as_image(s, x)
    bits, channels = s.dice.choice([8, 8, 16]), x.shape[1]
    y = s.quantized(x.shape, s.scale(bits), bits)
    settings = {"dilations": [1, 1], "group": 1, "kernel_shape": [1, 1], "pads": [0, 0, 0, 0], "strides": [1, 1]}
    s.dialect(
        "Conv2dInt",
        [x, _weights(s, (channels, channels, 1, 1), 4)],
        y,
        data_bits=x.bits,
        parameter_bits=8,
        o_bits=bits,
        scale_x=x.scale,
        scale_w=16.0,
        scale_o=y.scale,
        **settings,
    )
    return True


@family(INTEGERS)
def residual(s: Scope) -> bool:
    x = s.a_quantized(most_bits=16)
    y = s.pick(lambda t: x is not None and t.is_quantized and t.bits <= 16 and t.shape == x.shape)
    if x is None or y is None:
        return False
    bits = _out_bits(s)
    out = s.quantized(x.shape, s.scale(bits), bits)
    op_type = s.dice.choice(["iqAdd", "iqAdd", "iqSub", "iqMul", "iqMax"])
    scales = {"scale_x": x.scale, "scale_y": y.scale, "scale_o": out.scale}
    operand = y if op_type != "iqMul" or s.dice.random() < 0.5 else s.world.constant(np.int8(s.dice.randint(-9, 9)))
    s.dialect(op_type, [x, operand], out, **scales, **({} if bits == 8 else {"o_bits": bits}))
    return True


@family(INTEGERS)
def joined(s: Scope) -> bool:
    x = s.a_quantized(wanted=lambda t: t.shape and t.size <= LARGEST // 4)
    if x is None:
        return False
    parts = [x, *[s.pick(lambda t: t.is_quantized and t.shape == x.shape) for _ in range(s.dice.randint(1, 2))]]
    axis, bits = s.dice.randrange(len(x.shape)), s.dice.choice([8, 16])
    shape = tuple(n * len(parts) if i == axis else n for i, n in enumerate(x.shape))
    out = s.quantized(shape, s.scale(bits), bits)
    scales = {f"scale_x_{i}": p.scale for i, p in enumerate(parts)}
    s.dialect("iqCat", parts, out, scale_o=out.scale, dim=axis, o_bits=bits, **scales)
    return True


@family(INTEGERS)
def requant(s: Scope) -> bool:
    x = s.a_quantized()
    if x is None:
        return False
    bits = s.dice.choice([8, 16, 32])
    s.requant(x, s.scale(bits), bits)
    return True


@family(INTEGERS)
def integer_relu(s: Scope) -> bool:
    x = s.a_quantized()
    if x is not None:
        s.node("Relu", [x], [s.like(x, x.shape)])
    return x is not None


@family(INTEGERS)
def integer_pool(s: Scope) -> bool:
    x = s.a_quantized(most_bits=16, wanted=_image)
    if x is not None:
        x = _as_image(s, x)
        shape = (*x.shape[:2], 1, 1)
        s.node("MaxPool", [x], [s.like(x, shape)], kernel_shape=[2, 2], strides=[2, 2])
    return x is not None


@family(INTEGERS)
def integer_clip(s: Scope) -> bool:
    x = s.a_quantized(most_bits=8)
    if x is not None:
        bounds = [s.world.constant(np.array(v, NUMPY[x.bits]), "bound") for v in (-5, 90)]
        s.node("Clip", [x, *bounds], [s.like(x, x.shape)])
    return x is not None


@family(INTEGERS)
def average(s: Scope) -> bool:
    x = s.a_quantized(most_bits=8, wanted=_image)
    if x is None:
        return False
    x = _as_image(s, x)
    y = s.quantized((*x.shape[:2], 1, 1), x.scale, 8)
    settings = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0], "ceil_mode": 0}
    s.dialect("AvgPool2dInt", [x], y, data_bits=8, o_bits=8, scale_x=x.scale, scale_o=x.scale, **settings)
    return True


@family(INTEGERS)
def curve(s: Scope) -> bool:
    """The table ops want 16 bits, so there is a Requant before them."""
    x = s.a_quantized(most_bits=16)
    if x is None:
        return False
    wide = s.requant(x, 2048.0, 16)
    s.dialect(
        s.dice.choice(["iqSigmoid", "iqTanh"]), [wide], s.quantized(x.shape, 128.0, 8), scale_x=2048.0, scale_o=128.0
    )
    return True


@family(INTEGERS)
def normalizer(s: Scope) -> bool:
    x = s.a_quantized(most_bits=8, wanted=lambda t: len(t.shape) >= 2)
    if x is not None:
        y = s.quantized(x.shape, 128.0, 8)
        s.dialect("SoftmaxInt", [x], y, dim=len(x.shape) - 1, data_bits=8, o_bits=8, scale_x=x.scale, scale_o=128.0)
    return x is not None


@family(INTEGERS)
def shuffled_channels(s: Scope) -> bool:
    x = s.a_quantized(most_bits=16, wanted=lambda t: t.size % 8 == 0)
    if x is not None:
        x = _as_image(s, x)
        s.dialect("ShuffleChannel", [x], s.like(x, x.shape), groups=2)
    return x is not None


@family(INTEGERS)
def lookup(s: Scope) -> bool:
    """An embedding: the scale is that of the table."""
    table = _weights(s, (3, 4))
    y = s.quantized((2, 4), 32.0, 8)
    s.dialect("Gather", [table, _sizes(s, 2, 0)], y, scale_w=32.0, scale_o=32.0, parameter_bits=8, o_bits=8)
    return True


@family(INTEGERS)
def plain_product(s: Scope) -> bool:
    """A standard op that takes integers only; what it gives is no quantized tensor."""
    x = s.a_quantized(most_bits=8, wanted=lambda t: len(t.shape) == 2 and t.bits == 8)
    if x is not None:
        y = Tensor(s.world.name("p"), INTEGER[32], (x.shape[0], 2))
        s.node("MatMulInteger", [x, _weights(s, (x.shape[1], 2))], [y])
    return x is not None


@family(INTEGERS)
def standard_dequantize(s: Scope) -> bool:
    """The standard's own Dequant beside the dialect's; onnx's reference has none for these opsets."""
    x = None if s.world.is_exact else s.a_quantized(most_bits=8, wanted=lambda t: t.bits == 8 and t.root is None)
    if x is not None:
        s.node("DequantizeLinear", [x, s.world.constant(np.float32(1 / x.scale))], [s.reals(x.shape)])
    return x is not None


@family(INTEGERS)
def recurrent(s: Scope) -> bool:
    """A layer that takes integers and a real state, and gives both."""
    x = s.a_quantized(most_bits=8, wanted=lambda t: t.bits == 8 and t.root is None and t.size == 8)
    h = None if x is None else s.a_float(lambda t: t.size == 4)
    if x is None or h is None:
        return False
    x, h = s.reshaped(x, (2, 2, 2)), s.reshaped(h, (1, 2, 2))
    weights = [_weights(s, (6, 2), 6), _weights(s, (6, 2), 6), *[s.world.constant(np.zeros(6, np.int32))] * 2]
    outputs = [s.quantized((2, 2, 2), 64.0, 8), s.reals((1, 2, 2))]
    scales = {"scale_i": x.scale, "scale_h": 64.0, "scale_iw": 32.0, "scale_hw": 32.0, "scale_o": 64.0}
    sizes = {"input_size": 2, "hidden_size": 2, "num_layers": 1, "batch_first": 1, "go_forward": 1}
    bits = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
    inputs = [x, _sizes(s, 2, 1), h, *weights]
    s.node("GRUInt_Is8_Is64_If32", inputs, outputs, domain="thinker", **scales, **sizes, **bits)
    return True


# movement and selection, of floats and of integers


def _any(s: Scope, wanted=lambda t: True) -> Tensor | None:
    return s.pick(lambda t: (t.element == FLOAT or t.is_quantized) and t.shape and wanted(t))


def _narrow_or_float(t: Tensor) -> bool:
    """What ONNX Runtime selects among: it has no int16 for every op."""
    return t.bits != 16


@family(MOVEMENT)
def reshape(s: Scope) -> bool:
    x = _any(s, lambda t: t.size % 2 == 0)
    if x is not None:
        s.reshaped(x, s.dice.choice([(x.size // 2, 2), (2, x.size // 2), (1, x.size)]))
    return x is not None


@family(MOVEMENT)
def reshape_by_shape(s: Scope) -> bool:
    """Sizes that are computed: integers without a scale, which nobody may touch."""
    x = _any(s)
    other = s.pick(lambda t: x is not None and t.size == x.size and (t.element == FLOAT or t.is_quantized))
    if x is None or other is None:
        return False
    sizes = s.node("Shape", [other], [Tensor(s.world.name("n"), INT64, (len(other.shape),))])
    doubled = s.node("Add", [sizes, sizes], [Tensor(s.world.name("n"), INT64, sizes.shape)])
    halved = s.node("Div", [doubled, _sizes(s, 2)], [Tensor(s.world.name("n"), INT64, sizes.shape)])
    s.node("Reshape", [x, halved], [s.like(x, other.shape)])
    return True


@family(MOVEMENT)
def transpose(s: Scope) -> bool:
    x = _any(s, lambda t: len(t.shape) >= 2)
    if x is not None:
        order = list(range(len(x.shape)))
        s.dice.shuffle(order)
        s.node("Transpose", [x], [s.like(x, tuple(x.shape[i] for i in order))], perm=order)
    return x is not None


@family(MOVEMENT)
def axes(s: Scope) -> bool:
    x = _any(s, lambda t: len(t.shape) <= 3)
    if x is None:
        return False
    shape = (1, *x.shape)
    if s.world.opset < 13:
        s.node("Unsqueeze", [x], [s.like(x, shape)], axes=[0])
    else:
        s.node("Unsqueeze", [x, _sizes(s, 0)], [s.like(x, shape)])
    return True


@family(MOVEMENT)
def cut(s: Scope) -> bool:
    x = _any(s, lambda t: t.shape[-1] >= 2)
    if x is not None:
        last = len(x.shape) - 1
        bounds = [_sizes(s, 0), _sizes(s, x.shape[-1] // 2), _sizes(s, last)]
        s.node("Slice", [x, *bounds], [s.like(x, (*x.shape[:-1], x.shape[-1] // 2))])
    return x is not None


@family(MOVEMENT)
def halves(s: Scope) -> bool:
    x = _any(s, lambda t: t.shape[-1] == 4)
    if x is None:
        return False
    outputs = [s.like(x, (*x.shape[:-1], 2)) for _ in range(2)]
    if s.world.opset < 13:
        s.node("Split", [x], outputs, axis=-1, split=[2, 2])
    else:
        s.node("Split", [x, _sizes(s, 2, 2)], outputs, axis=-1)
    return True


def _partner(s: Scope, x: Tensor) -> Tensor | None:
    """Something of the same shape and format, itself at worst."""
    return s.pick(lambda t: (t.shape, t.format, t.element) == (x.shape, x.format, x.element))


def _selected(s: Scope, x: Tensor, *others: Tensor, shape=None) -> Tensor:
    """What selection among tensors of one format gives; it has a root only where all have that one."""
    parts = (x, *others)
    made = s.like(x, shape or x.shape)
    root = x.root if len({p.root for p in parts}) == 1 else None
    return Tensor(
        made.name, made.element, made.shape, made.scale, made.bits, root, frozenset().union(*(p.origins for p in parts))
    )


@family(MOVEMENT)
def concat(s: Scope) -> bool:
    x = _any(s, lambda t: t.size <= LARGEST // 4 and t.root is None)
    y = None if x is None else _partner(s, x)
    if x is None or y is None or y.root is not None:
        return False
    s.node("Concat", [x, y], [_selected(s, x, y, shape=(x.shape[0] * 2, *x.shape[1:]))], axis=0)
    return True


@family(MOVEMENT)
def where(s: Scope) -> bool:
    x = _any(s, lambda t: _narrow_or_float(t) and t.root is None)
    y = None if x is None else _partner(s, x)
    if x is None or y is None or y.root is not None:
        return False
    mask = s.world.constant(np.array([i % 3 == 0 for i in range(x.shape[-1])]), "mask")
    s.node("Where", [mask, x, y], [_selected(s, x, y)])
    return True


@family(MOVEMENT)
def extreme(s: Scope) -> bool:
    has_integers = s.world.opset >= 13
    x = _any(s, lambda t: (t.element == FLOAT or (has_integers and _narrow_or_float(t))) and t.root is None)
    y = None if x is None else _partner(s, x)
    if x is None or y is None or y.root is not None:
        return False
    s.node(s.dice.choice(["Max", "Min"]), [x, y], [_selected(s, x, y)])
    return True


@family(MOVEMENT)
def gather(s: Scope) -> bool:
    x = _any(s)
    if x is not None:
        chosen = _sizes(s, *[s.dice.randrange(x.shape[0]) for _ in range(2)])
        s.node("Gather", [x, chosen], [s.like(x, (2, *x.shape[1:]))], axis=0)
    return x is not None


@family(MOVEMENT)
def spread(s: Scope) -> bool:
    x = _any(s, lambda t: t.size <= LARGEST // 4)
    if x is None:
        return False
    if s.dice.random() < 0.5:
        s.node("Expand", [x, _sizes(s, 2, *x.shape)], [s.like(x, (2, *x.shape))])
    else:
        s.node("Tile", [x, _sizes(s, 2, *[1] * (len(x.shape) - 1))], [s.like(x, (x.shape[0] * 2, *x.shape[1:]))])
    return True


@family(MOVEMENT)
def border(s: Scope) -> bool:
    x = _any(s, lambda t: _narrow_or_float(t) and t.size <= LARGEST // 4)
    if x is not None:
        pads = [0] * (2 * len(x.shape))
        pads[-1] = 1
        s.node("Pad", [x, _sizes(s, *pads)], [s.like(x, (*x.shape[:-1], x.shape[-1] + 1))])
    return x is not None


@family(MOVEMENT)
def largest_index(s: Scope) -> bool:
    x = _any(s, lambda t: t.bits in (None, 8))  # wide integers that differ may be equal as float32
    if x is not None:
        shape = (*x.shape[:-1], 1)
        s.node("ArgMax", [x], [Tensor(s.world.name("i"), INT64, shape)], axis=len(x.shape) - 1)
    return x is not None


@family(MOVEMENT)
def integer_mask(s: Scope) -> bool:
    """Integers compared with an integer: neither side has to be a real number."""
    x = s.a_quantized()
    y = s.pick(lambda t: x is not None and t.shape == x.shape and t.element == FLOAT)
    if x is None or y is None:
        return False
    bound = s.world.constant(np.array(0, NUMPY[x.bits]))
    mask = s.node("Equal", [x, bound], [Tensor(s.world.name("b"), BOOL, x.shape)])
    s.node("Where", [mask, y, s.world.constant(np.float32(0.5))], [s.reals(y.shape)])
    return True


# islands of floats


def _unary(name: str, op_type: str, *, since: int = 11, is_exact: bool = False, **attributes) -> None:
    def build(s: Scope) -> bool:
        x = s.a_float(lambda t: len(t.shape) >= 2) if s.world.opset >= since and is_exact >= s.world.is_exact else None
        if x is not None:
            s.node(op_type, [x], [s.reals(x.shape)], **attributes)
        return x is not None

    ISLANDS[name] = build


_unary("sigmoid", "Sigmoid")
_unary("tanh", "Tanh")
_unary("softmax", "Softmax", axis=1)
_unary("hard swish", "HardSwish", since=14)
_unary("hard sigmoid", "HardSigmoid")
_unary("leaky relu", "LeakyRelu", alpha=0.25, is_exact=True)
_unary("negation", "Neg", is_exact=True)
_unary("magnitude", "Abs", is_exact=True)
_unary("sign", "Sign", is_exact=True)


@family(ISLANDS)
def binary(s: Scope) -> bool:
    x = s.a_float()
    y = None if x is None else s.a_float(lambda t: t.shape == x.shape)
    if x is None or y is None:
        return False
    operands = [x, y] if s.dice.random() < 0.7 else [x, _reals(s, (x.shape[-1:]))]
    s.node(s.dice.choice(["Add", "Sub", "Mul"]), operands, [s.reals(x.shape)])
    return True


@family(ISLANDS)
def matrix_product(s: Scope) -> bool:
    x = None if s.world.is_exact else s.a_float(lambda t: len(t.shape) == 2)
    if x is None:
        return False
    if s.dice.random() < 0.5:
        s.node("MatMul", [x, _reals(s, (x.shape[1], 4))], [s.reals((x.shape[0], 4))])
    else:
        operands = [x, _reals(s, (x.shape[1], 2)), *([_reals(s, (2,))] if s.dice.random() < 0.5 else [])]
        s.node("Gemm", operands, [s.reals((x.shape[0], 2))], alpha=0.5)
    return True


@family(ISLANDS)
def product_of_two(s: Scope) -> bool:
    """Both operands may be quantized, and neither is a constant."""
    x = None if s.world.is_exact else s.a_float(lambda t: len(t.shape) == 2 and t.size <= 16)
    y = None if x is None else s.a_float(lambda t: t.shape == x.shape)
    if x is None or y is None:
        return False
    turned = s.node("Transpose", [y], [s.like(y, y.shape[::-1])], perm=[1, 0])
    s.node("MatMul", [x, turned], [s.reals((x.shape[0], x.shape[0]))])
    return True


@family(ISLANDS)
def resize(s: Scope) -> bool:
    """An optional input that is left empty."""
    x = s.a_float(lambda t: _image(t) and t.size <= LARGEST // 4) if s.world.opset >= 13 else None
    if x is None:
        return False
    x = _as_image(s, x)
    factors = s.world.constant(np.array([1, 1, 2, 2], np.float32))
    s.node("Resize", [x, "", factors], [s.reals((*x.shape[:2], 4, 4), x.origins)], mode="nearest")
    return True


@family(ISLANDS)
def batch_norm(s: Scope) -> bool:
    x = None if s.world.is_exact else s.a_float(_image)
    if x is None:
        return False
    x = _as_image(s, x)
    channels = x.shape[1]
    spread = s.world.constant(np.full(channels, 0.7, np.float32))
    parts = [x, _reals(s, (channels,)), _reals(s, (channels,)), _reals(s, (channels,)), spread]
    s.node("BatchNormalization", parts, [s.reals(x.shape)])
    return True


@family(ISLANDS)
def limits(s: Scope) -> bool:
    """A Clip with float bounds, the lower one left out now and then."""
    x = s.a_float()
    if x is not None:
        low = "" if s.dice.random() < 0.4 else s.world.constant(np.float32(-0.5))
        s.node("Clip", [x, low, s.world.constant(np.float32(1.25))], [s.reals(x.shape)])
    return x is not None


@family(ISLANDS)
def choice(s: Scope) -> bool:
    x = s.a_float()
    y = None if x is None else s.a_float(lambda t: t.shape == x.shape)
    if x is None or y is None:
        return False
    mask = s.node("Greater", [x, y], [Tensor(s.world.name("b"), BOOL, x.shape)])
    s.node("Where", [mask, x, s.world.constant(np.float32(0.25))], [s.reals(x.shape)])
    return True


@family(ISLANDS)
def mean(s: Scope) -> bool:
    x = None if s.world.is_exact else s.a_float(lambda t: len(t.shape) >= 2)
    if x is None:
        return False
    shape = (*x.shape[:-1], 1)
    if s.world.opset < 18:
        s.node("ReduceMean", [x], [s.reals(shape)], axes=[-1])
    else:
        s.node("ReduceMean", [x, _sizes(s, -1)], [s.reals(shape)])
    return True


@family(ISLANDS)
def float_movement(s: Scope) -> bool:
    """A real number that is moved or selected before something computes with it."""
    x = s.a_float(lambda t: len(t.shape) >= 1 and t.shape[-1] >= 1)
    if x is None:
        return False
    moved = s.node("Relu", [x], [s.reals(x.shape, x.origins)])
    flat = s.node("Flatten", [moved], [s.reals((1, x.size), x.origins)], axis=0)
    s.node("Neg", [flat], [s.reals(flat.shape)])
    return True


@family(ISLANDS)
def cast(s: Scope) -> bool:
    """A Cast takes integers as they are: nobody can tell that real numbers were meant."""
    x = s.a_float()
    if x is None:
        return False
    s.world.exposed |= x.origins
    double = s.node("Cast", [x], [Tensor(s.world.name("d"), 11, x.shape)], to=11)
    s.node("Cast", [double], [s.reals(x.shape)], to=FLOAT)
    return True
