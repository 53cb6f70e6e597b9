"""Recurrent cells step by step in torch, each rounding a straight-through function: where gradients are compared with.

Slow and plain, in float64: one sequence at a time, autograd does the rest.
"""

import numpy as np
import torch

from tests.support.paper_bodies import sigmoid_q7, tanh_q7
from tests.support.recurrent import tensors


class _Passed(torch.autograd.Function):
    """The first argument, with the gradient of the second."""

    @staticmethod
    def forward(ctx, value, real):
        return value

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient


class _Curve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, table, slope):
        ctx.slope = slope(x)
        values = [table(int(v)) / 128 for v in (x * 2048).flatten().tolist()]
        return torch.tensor(values, dtype=x.dtype).reshape(x.shape)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.slope, None, None


def on_grid(x, scale, bits):
    """Rounded half up and limited; the gradient passes both."""
    top = 2.0 ** (bits - 1)
    return _Passed.apply(torch.floor(x.detach() * scale + 0.5).clamp(-top, top - 1) / scale, x)


def sigmoid(x):
    return _Curve.apply(on_grid(x, 2048.0, 16), sigmoid_q7, lambda v: torch.sigmoid(v) * (1 - torch.sigmoid(v)))


def tanh(x):
    return _Curve.apply(on_grid(x, 2048.0, 16), tanh_q7, lambda v: 1 - torch.tanh(v) ** 2)


def lstm_cell(gi, gh, h, c, formats):
    i, f, g, o = (gi + gh).chunk(4)
    total = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return on_grid(sigmoid(o) * tanh(total), formats.scale_h, formats.o_bits), on_grid(total, 128.0, 16)


def gru_cell(gi, gh, h, c, formats):
    (i_r, i_z, i_n), (h_r, h_z, h_n) = gi.chunk(3), gh.chunk(3)
    r, z = sigmoid(i_r + h_r), sigmoid(i_z + h_z)
    n = tanh(i_n + on_grid(r * h_n, 2048.0, 48))
    return on_grid(n + z * (on_grid(h, 128.0, 48) - n), formats.scale_h, formats.o_bits), c


def run_slowly(cell, x, lengths, h0, c0, w_ih, w_hh, b_ih, b_hh, formats):
    """(out, h, c), as `run` gives them."""
    (steps, batch, _), (directions, _, hidden) = x.shape, w_hh.shape
    outs = [[[x.new_zeros(hidden)] * directions for _ in range(batch)] for _ in range(steps)]
    finals = [[None] * batch for _ in range(directions)]
    for d in range(directions):
        for b in range(batch):
            h = x.new_zeros(hidden) if h0 is None else h0[d, b]
            c = x.new_zeros(hidden) if c0 is None else c0[d, b]
            valid = range(steps if lengths is None else int(lengths[b]))
            for t in reversed(valid) if d else valid:
                gi, gh = w_ih[d] @ x[t, b], w_hh[d] @ h
                gi, gh = gi if b_ih is None else gi + b_ih[d], gh if b_hh is None else gh + b_hh[d]
                h, c = cell(on_grid(gi, 2048.0, 48), on_grid(gh, 2048.0, 48), h, c, formats)
                outs[t][b][d] = h
            finals[d][b] = (h, c)
    out = torch.stack([torch.stack([torch.cat(one) for one in row]) for row in outs])
    h, c = (torch.stack([torch.stack([pair[k] for pair in row]) for row in finals]) for k in (0, 1))
    return out, h, c


def gradients(run, arguments, weights):
    """Gradients of Σ weight·result for all real arguments of `run`, which returns (out, h, c) or (out, h)."""
    leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    results = run(*arguments)
    sum((r * w.to(r.dtype)).sum() for r, w in zip(results, weights, strict=False) if w is not None).backward()
    return results, [leaf.grad for leaf in leaves]


def assert_gradients_agree(run, cell, layer, *, has_cell, tolerance, dtype):
    """`run` in `dtype` has the gradients of the slow loop in float64, within tolerance times the largest of each tensor."""
    draw = np.random.default_rng(5)
    slow = tensors(layer, has_cell=True, dtype=torch.float64)
    fast = tensors(layer, has_cell=has_cell, dtype=dtype)
    (steps, batch, _), (directions, _, hidden) = slow[0].shape, slow[5].shape
    shapes = [(steps, batch, directions * hidden), *[(directions, batch, hidden)] * 2]
    weights = [torch.from_numpy(draw.normal(size=shape)) for shape in shapes]
    if not has_cell:
        weights[2] = None
        slow = (*slow[:3], None, *slow[4:])
    expected, wanted = gradients(lambda *a: run_slowly(cell, *a), slow, weights)
    results, found = gradients(lambda *a: run(*a, wants_reach=False)[: 2 + has_cell], fast, weights)
    for one, other in zip(results, expected, strict=False):
        assert torch.equal(one.double(), other)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one is not None
        assert (one.double() - other).abs().max() <= tolerance * other.abs().max()
        assert other.abs().max() > 0
