# SPDX-License-Identifier: Apache-2.0
"""Integer weights whose product with given inputs comes closest to given outputs, from second moments of the data.

The error of a column is passed on to the columns behind it, as GPTQ does (Frantar and others, 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch
from linger.analysis.trace import Trace
from linger.quantization.core.runtime import runtime_of
from linger.quantization.diagnosis.call_watch import decibels
from linger.tuning.remedy import Change


class Enough(BaseException):
    """The call that was waited for has happened; the rest of the pass need not run. No code of a model catches it."""


@dataclass(frozen=True)
class Pair:
    """Both models, batches to learn from and to judge by, and how many positions of a layer's output are looked at."""

    model: nn.Module
    reference: nn.Module
    learned: Sequence[Batch]
    held: Sequence[Batch]
    positions: int
    seed: int

    def draws(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, int, torch.Generator]]:
        """Batches with the number of positions to draw from each, and a generator that draws the same ones again."""
        count = max(1, self.positions // len(batches))
        for number, batch in enumerate(batches):
            seed = self.seed * 1_000_003 + 2 * number + (batches is self.held)
            yield batch, count, torch.Generator().manual_seed(seed)

    def observe(
        self,
        observer: Callable[..., None],
        batch: Batch,
        before: Mapping[nn.Module, Callable[..., None]] | None = None,
        after: Mapping[nn.Module, Callable[..., object]] | None = None,
    ) -> None:
        """Show every op of a pass of the quantized model to an observer, and calls of modules to hooks, until one raises `Enough`."""
        runtime = runtime_of(self.model)
        assert runtime is not None  # a remedy has asked
        with Trace(self.model) as trace, suppress(Enough):
            for module, hook in (before or {}).items():
                trace.before([module], hook)
            for module, changing in (after or {}).items():
                trace.after([module], changing)
            trace.observe(runtime.observers, observer)
            trace.run(batch)


_BLOCK = 64
"""Columns after which a change is passed on to all later ones, by one product of matrices."""

_SWEEPS = 10
"""Rounds of single steps; each one can only improve the sum of squares."""

_DAMPINGS = (1.0, 0.1, 0.01, 0.001)
"""How much weights are held back toward what they were, the strongest first; the held-out data choose."""

_SHARE = 0.8
"""The strongest that has this share of the best one's gain is taken: other data differ more than held-out ones do."""

_ROUNDING_DAMPING = 0.1
"""Part of the inputs' mean power that is added to each input's, so that few data do not decide alone."""


class Moments:
    """Sums over positions: of inputs x [groups, taps], outputs y [groups, channels] and their products, in float64."""

    def __init__(self, groups: int, channels: int, taps: int) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(groups, *shape, dtype=torch.float64)

        self.count = 0
        self.x, self.xx = zeros(taps), zeros(taps, taps)
        self.y, self.yy, self.yx = zeros(channels), zeros(channels), zeros(channels, taps)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Count rows: inputs [positions, groups, taps] and outputs [positions, groups, channels]."""
        left, right = x.transpose(0, 1), y.transpose(0, 1)
        self.count += len(x)
        self.x += left.sum(1).double()
        self.y += right.sum(1).double()
        self.yy += right.double().square().sum(1)
        self.xx += left.mT @ left
        self.yx += right.mT @ left

    def times(self, factor: Tensor) -> Moments:
        """Those of outputs times a factor for each channel, [groups, channels]."""
        other = copy(self)
        other.y, other.yy, other.yx = self.y * factor, self.yy * factor**2, self.yx * factor[:, :, None]
        return other

    def centered(self) -> tuple[Tensor, Tensor]:
        """Products of inputs, and of outputs with inputs, around their means: what is left to the weights beside a bias."""
        x, y = self.x[:, :, None], self.y[:, :, None]
        return self.xx - x @ x.mT / self.count, self.yx - y @ x.mT / self.count

    def bias_for(self, weight: Tensor) -> Tensor:
        """The best bias beside these weights, [groups, channels]."""
        return (self.y - (weight @ self.x[:, :, None]).squeeze(2)) / self.count

    def error(self, weight: Tensor, bias: Tensor) -> Tensor:
        """The sum of squares that is left with a weight [groups, channels, taps] and a bias, [groups, channels]."""
        linear = ((weight @ self.xx) * weight - 2 * weight * self.yx).sum(2)
        total = (weight @ self.x[:, :, None]).squeeze(2)
        return self.yy + linear + bias * (2 * total - 2 * self.y + self.count * bias)


def damped(matrix: Tensor, damping: float) -> Tensor:
    """A matrix with a part of its mean diagonal element added to each of them; never singular."""
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    more = damping * diagonal.mean(-1, keepdim=True)
    more = more.masked_fill(more <= 0, 1.0)  # inputs that are always zero
    return matrix + torch.diag_embed(more.expand_as(diagonal))


def refit(xx: Tensor, yx: Tensor, start: Tensor, damping: float) -> Tensor:
    """Real weights of least squares, held back toward `start`."""
    matrix = damped(xx, damping)
    difference = yx - start @ xx
    return start + torch.cholesky_solve(difference.mT, torch.linalg.cholesky(matrix)).mT


def nearest_integers(xx: Tensor, target: Tensor, bound: Tensor) -> Tensor:
    """Integers Q within ±bound [taps] that make (Q − target)·xx·(Q − target)ᵀ small, row by row.

    Columns are rounded one after the other, the largest first; what rounding a column costs is made up for by those that are
    not yet rounded. Then single steps follow, as long as one improves.
    """
    matrix = damped(xx, _ROUNDING_DAMPING)
    order = matrix.diagonal(dim1=-2, dim2=-1).mean(0).argsort(descending=True)
    back = order.argsort()
    matrix, target, bound = matrix[:, order][:, :, order], target[:, :, order], bound[order]
    integers = _compensated(matrix, target, bound)
    return _descended(matrix, target, integers, bound)[:, :, back]


def _compensated(matrix: Tensor, target: Tensor, bound: Tensor) -> Tensor:
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
    factor = torch.linalg.cholesky(inverse, upper=True)
    rest, taps = target.clone(), target.shape[2]
    for first in range(0, taps, _BLOCK):
        block = slice(first, min(first + _BLOCK, taps))
        part, own = rest[:, :, block], factor[:, block, block]
        errors = torch.zeros_like(part)
        for k in range(part.shape[2]):
            rounded = (part[:, :, k] + 0.5).floor().clamp(-bound[first + k], bound[first + k])
            errors[:, :, k] = (part[:, :, k] - rounded) / own[:, k, k, None]
            part[:, :, k + 1 :] -= errors[:, :, k, None] * own[:, None, k, k + 1 :]
            part[:, :, k] = rounded
        rest[:, :, block.stop :] -= errors @ factor[:, block, block.stop :]
    return rest


def _descended(matrix: Tensor, target: Tensor, start: Tensor, bound: Tensor) -> Tensor:
    """The integers after single steps, each the best for its column while the others stay."""
    integers, taps = start.clone(), start.shape[2]
    slope = (integers - target) @ matrix
    for _ in range(_SWEEPS):
        is_changed = False
        for first in range(0, taps, _BLOCK):
            block = slice(first, min(first + _BLOCK, taps))
            steps = _steps_of_block(matrix[:, block, block], slope[:, :, block], integers[:, :, block], bound[block])
            if bool(steps.any()):
                is_changed = True
                integers[:, :, block] += steps
                slope += steps @ matrix[:, block]
        if not is_changed:
            break
    return integers


def _steps_of_block(matrix: Tensor, slope: Tensor, integers: Tensor, bound: Tensor) -> Tensor:
    slope, steps = slope.clone(), torch.zeros_like(slope)
    for k in range(slope.shape[2]):
        best = (-slope[:, :, k] / matrix[:, k, k, None]).round()
        best = (integers[:, :, k] + best).clamp(-bound[k], bound[k]) - integers[:, :, k]
        steps[:, :, k] = best
        slope[:, :, k + 1 :] += best[:, :, None] * matrix[:, None, k, k + 1 :]
    return steps


@dataclass(frozen=True)
class Grid:
    """The weights of a layer as rows, and the grid that they are rounded to."""

    start: Tensor  # real weights, [groups, channels, taps]
    integers: Tensor  # what they are rounded to now
    bias: Tensor  # the real bias as it is rounded now, [groups, channels]
    step: Tensor  # distance of neighbors on the grid, [taps]
    bound: Tensor  # largest integer, [taps]
    has_bias: bool = True  # whether the bias can be changed


@dataclass(frozen=True)
class Fit:
    """Integers and bias that were chosen, which channels differ from before, and the error on the held-out data."""

    integers: Tensor
    bias: Tensor
    is_new: Tensor
    before: float
    after: float


def fit_integers(grid: Grid, learned: Moments, held: Moments) -> Fit:
    """The best integers for data that were learned from; channel by channel kept only if the held-out data agree."""
    xx, yx = (
        learned.centered() if grid.has_bias else (learned.xx, learned.yx - grid.bias[:, :, None] * learned.x[:, None])
    )
    xx, yx = xx * grid.step[:, None] * grid.step, yx * grid.step

    def bias_for(weight: Tensor) -> Tensor:
        return learned.bias_for(weight * grid.step) if grid.has_bias else grid.bias

    def error(weight: Tensor) -> Tensor:
        return held.error(weight * grid.step, bias_for(weight))

    start = grid.start / grid.step
    refits = [start, *(refit(xx, yx, start, damping) for damping in _DAMPINGS)]
    totals = [float(error(weight).sum()) for weight in refits]
    enough = totals[0] - _SHARE * (totals[0] - min(totals))
    target = next(weight for weight, total in zip(refits, totals, strict=True) if total <= enough)
    rounded = nearest_integers(xx, target, grid.bound)
    candidates = [(grid.integers, grid.bias), *((q, bias_for(q)) for q in (grid.integers, rounded))]
    errors = torch.stack([held.error(q * grid.step, b) for q, b in candidates])
    best = errors.argmin(0)  # the first among equals: what was there
    integers = torch.stack([q for q, _ in candidates]).gather(0, best[None, :, :, None].expand(1, *rounded.shape))[0]
    bias = torch.stack([b for _, b in candidates]).gather(0, best[None])[0]
    after = float(errors.gather(0, best[None]).sum())
    return Fit(integers, bias, best > 0, float(errors[0].sum()), after)


def change_of(name: str, grid: Grid, fit: Fit, held: Moments) -> Change:
    """What a fit changed, with the layer's error on the held-out data."""
    share = float((fit.integers != grid.integers).double().mean())
    what = f"{100 * share:.0f} % of its weights rounded otherwise; its error in dB"
    signal = float(held.yy.sum())
    before, after = max(0.0, fit.before), max(0.0, fit.after)  # with 16 bits the sums that they differ by cancel
    return Change(name, what, decibels(signal, before), decibels(signal, after))
