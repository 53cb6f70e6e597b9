"""Recurrent layers in Python's integers: what the fast cells are held to. And random layers to hold them with."""

from dataclasses import dataclass, field

import numpy as np
import torch

from linger.numeric.fixed import limits
from linger.numeric.torch.gates import Formats
from tests.support.paper_bodies import rounded, saturated, sigmoid_q7, tanh_q7


def exponent(scale: float) -> int:
    """The n of a scale 2^n."""
    mantissa, power = np.frexp(scale)
    assert mantissa == 0.5
    return int(power) - 1


@dataclass
class Layer:
    """A layer as integers, in nested lists of Python's integers: [direction][row][column]."""

    x: list
    """[T][B][I]"""
    w_ih: list
    w_hh: list
    b_ih: list | None
    b_hh: list | None
    formats: Formats
    lengths: list | None = None
    h0: list | None = None
    """[D][B][H]"""
    c0: list | None = None
    rows_per_gate: int = field(init=False)

    def __post_init__(self):
        self.rows_per_gate = len(self.w_hh[0][0])

    @property
    def directions(self) -> int:
        return len(self.w_ih)

    def gates(self, values, weights, biases, direction, *, of_input):
        """One projection, rounded to Q11: all rows."""
        f = self.formats
        scale = f.scale_i * f.scale_iw[direction] if of_input else f.scale_h * f.scale_hw[direction]
        biases = [0] * len(weights[direction]) if biases is None else biases[direction]
        sums = [
            sum(v * w for v, w in zip(values, row, strict=True)) + b
            for row, b in zip(weights[direction], biases, strict=True)
        ]
        return [rounded(v, exponent(scale) - 11) for v in sums]

    def split(self, rows):
        size = self.rows_per_gate
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def order(self, direction, sequence):
        """The steps of a sequence in the order in which a direction takes them."""
        steps = range(len(self.x) if self.lengths is None else self.lengths[sequence])
        return reversed(steps) if direction else steps


def lstm_step(layer, values, h, c, direction):
    """(h, c, Q14 of h)."""
    q_h, bits = exponent(layer.formats.scale_h), layer.formats.o_bits
    gi = layer.split(layer.gates(values, layer.w_ih, layer.b_ih, direction, of_input=True))
    gh = layer.split(layer.gates(h, layer.w_hh, layer.b_hh, direction, of_input=False))
    new_h, new_c, exact = [], [], []
    for j, cell in enumerate(c):
        i, f, o = (sigmoid_q7(gi[gate][j] + gh[gate][j]) for gate in (0, 1, 3))
        g = tanh_q7(gi[2][j] + gh[2][j])
        total = f * cell + i * g
        new_c.append(saturated(rounded(total, 7), 16))
        exact.append(o * tanh_q7(rounded(total, 3)))
        new_h.append(saturated(rounded(exact[-1], 14 - q_h), bits))
    return new_h, new_c, exact


def gru_step(layer, values, h, c, direction):
    """(h, nothing of importance, Q14 of h)."""
    q_h, bits = exponent(layer.formats.scale_h), layer.formats.o_bits
    gi = layer.split(layer.gates(values, layer.w_ih, layer.b_ih, direction, of_input=True))
    gh = layer.split(layer.gates(h, layer.w_hh, layer.b_hh, direction, of_input=False))
    new_h, exact = [], []
    for j, state in enumerate(h):
        r, z = (sigmoid_q7(gi[gate][j] + gh[gate][j]) for gate in (0, 1))
        n = tanh_q7(gi[2][j] + rounded(r * gh[2][j], 7))
        exact.append(n * 128 + z * (rounded(state, q_h - 7) - n))
        new_h.append(saturated(rounded(exact[-1], 14 - q_h), bits))
    return new_h, c, exact


def run_exactly(layer, step):
    """(out [T, B, D·H], h [D, B, H], c [D, B, H], largest |h| in Q14), the arrays int64."""
    size, batch = layer.rows_per_gate, len(layer.x[0])
    out = np.zeros((len(layer.x), batch, layer.directions * size), np.int64)
    final_h, final_c = np.zeros((2, layer.directions, batch, size), np.int64)
    largest = 0
    for direction in range(layer.directions):
        for b in range(batch):
            h = [0] * size if layer.h0 is None else layer.h0[direction][b]
            c = [0] * size if layer.c0 is None else layer.c0[direction][b]
            for t in layer.order(direction, b):
                h, c, exact = step(layer, layer.x[t][b], h, c, direction)
                out[t, b, direction * size : (direction + 1) * size] = h
                largest = max(largest, *(abs(v) for v in exact))
            final_h[direction, b], final_c[direction, b] = h, c
    return out, final_h, final_c, largest


def random_layer(draw, *, gates, sizes, formats, gain=1.0, bias=2.0, has_bias=True, has_lengths=False, has_state=False):
    """Integers of a layer of `sizes` = (T, B, I, H, D).

    `gain` shrinks the weights, 1 means their whole range; `bias` is the reach of the biases as a real number.
    """
    steps, batch, inputs, hidden, directions = sizes

    def whole(shape, bits, share=1.0):
        low, high = limits(bits)
        return draw.integers(int(low * share), int(high * share) + 1, shape).tolist()

    biases = []
    for scale, scales_w in ((formats.scale_i, formats.scale_iw), (formats.scale_h, formats.scale_hw)):
        reach = [max(1, min(2**31 - 1, int(bias * scale * scale_w))) for scale_w in scales_w]
        biases.append([draw.integers(-top, top + 1, gates * hidden).tolist() for top in reach])
    return Layer(
        x=whole((steps, batch, inputs), formats.data_bits),
        w_ih=whole((directions, gates * hidden, inputs), formats.parameter_bits, gain),
        w_hh=whole((directions, gates * hidden, hidden), formats.parameter_bits, gain),
        b_ih=biases[0] if has_bias else None,
        b_hh=biases[1] if has_bias else None,
        formats=formats,
        lengths=draw.integers(1, steps + 1, batch).tolist() if has_lengths else None,
        h0=whole((directions, batch, hidden), formats.o_bits) if has_state else None,
        c0=whole((directions, batch, hidden), 16) if has_state else None,
    )


def tensors(layer, *, has_cell, dtype=torch.float32):
    """The positional arguments of `run`: real values."""
    f = layer.formats

    def real(values, scales, kind=dtype):
        if values is None:
            return None
        whole = torch.tensor(values, dtype=torch.float64)
        scales = torch.tensor(scales, dtype=torch.float64).reshape(-1, *[1] * (whole.dim() - 1))
        return (whole / scales).to(kind)

    lengths = None if layer.lengths is None else torch.tensor(layer.lengths)
    states = [real(layer.h0, f.scale_h), *([real(layer.c0, 128.0)] if has_cell else [])]
    wide = torch.float64
    biases = [
        real(layer.b_ih, [f.scale_i * s for s in f.scale_iw], wide),
        real(layer.b_hh, [f.scale_h * s for s in f.scale_hw], wide),
    ]
    weights = [real(layer.w_ih, f.scale_iw), real(layer.w_hh, f.scale_hw)]
    return real(layer.x, f.scale_i), lengths, *states, *weights, *biases, f


def random_formats(draw, directions, *, data_bits, parameter_bits, o_bits):
    """Scales from left shifts to more digits than the widths can use."""

    def scale(low, high):
        return 2.0 ** int(draw.integers(low, high))

    return Formats(
        scale_i=scale(0, data_bits + 3),
        scale_h=scale(-1, o_bits + 3),
        scale_iw=tuple(scale(1, parameter_bits + 3) for _ in range(directions)),
        scale_hw=tuple(scale(1, parameter_bits + 3) for _ in range(directions)),
        data_bits=data_bits,
        parameter_bits=parameter_bits,
        o_bits=o_bits,
    )


def random_case(draw, *, gates):
    """A small layer of any kind: widths, scales, gains, directions, lengths, state."""
    directions = int(draw.integers(1, 3))
    widths = {name: int(draw.choice([4, 8, 16])) for name in ("data_bits", "parameter_bits", "o_bits")}
    return random_layer(
        draw,
        gates=gates,
        sizes=(*(int(draw.integers(1, high)) for high in (7, 4, 6, 6)), directions),
        formats=random_formats(draw, directions, **widths),
        gain=float(draw.choice([0.05, 0.3, 1.0])),
        bias=float(draw.choice([0.5, 8.0, 200.0])),
        has_bias=draw.random() < 0.7,
        has_lengths=draw.random() < 0.5,
        has_state=draw.random() < 0.5,
    )


def whole_outputs(result, formats):
    """The tensors of a result as integers."""
    scales = {"out": formats.scale_h, "h": formats.scale_h, "c": 128.0}
    arrays = {n: getattr(result, n).detach().double().numpy() * s for n, s in scales.items() if hasattr(result, n)}
    assert all((array == np.floor(array)).all() for array in arrays.values())
    return {name: array.astype(np.int64) for name, array in arrays.items()}


def there(run):
    """`run` with its scales as they are on a device: tensors that nobody looks at."""

    def scale(value):
        return torch.tensor(value, dtype=torch.float64)

    def run_there(*arguments, **settings):
        *rest, f = arguments
        weights = (tuple(map(scale, scales)) for scales in (f.scale_iw, f.scale_hw))
        bits = (f.data_bits, f.parameter_bits, f.o_bits)
        return run(*rest, Formats(scale(f.scale_i), scale(f.scale_h), *weights, *bits), **settings)

    return run_there


def assert_exact(run, layer, step):
    """`run` gives the integers, with and without gradients, and how far the state reached."""
    has_cell = step is lstm_step
    out, h, c, largest = run_exactly(layer, step)
    expected = {"out": out, "h": h, **({"c": c} if has_cell else {})}
    for needs_gradient in (False, True):
        arguments = tensors(layer, has_cell=has_cell)
        arguments[0].requires_grad_(needs_gradient)
        result = run(*arguments, wants_reach=True)
        found = whole_outputs(result, layer.formats)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert result.reach == largest / 2**14
        assert result.out.requires_grad == needs_gradient
