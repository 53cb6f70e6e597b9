# SPDX-License-Identifier: Apache-2.0
"""The windows of pools along one axis, and chains of small windows that see together what one large window sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, product
from operator import mul

from linger.numeric.fixed import ceil_pads

_MOST_STAGES = 4


@dataclass(frozen=True)
class Windows:
    """Windows of `kernel` pixels that lie `stride` pixels apart; `pads` are put before and behind the axis."""

    kernel: int
    stride: int = 1
    pads: tuple[int, int] = (0, 0)
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Pixels from the first to the last that a window sees."""
        return self.dilation * (self.kernel - 1) + 1

    def count(self, size: int) -> int:
        """How many windows fit on so many pixels."""
        return (size + sum(self.pads) - self.reach) // self.stride + 1

    def ceil_count(self, size: int) -> int:
        """The same where the last window may hang over the end."""
        begin, end = self.pads
        end = ceil_pads(
            (size,) * 2, (self.kernel,) * 2, (self.stride,) * 2, (begin, begin, end, end), (self.dilation,) * 2
        )[2]
        return (size + begin + end - self.reach) // self.stride + 1

    def seen(self, pixels: Sequence[int]) -> list[int]:
        """What every window sees, a set of bits, where each pixel stands for such a set; padding adds nothing."""
        results = []
        for index in range(self.count(len(pixels))):
            start, total = index * self.stride - self.pads[0], 0
            for pixel in pixels[max(start, 0) : max(start + self.kernel, 0)]:
                total |= pixel
            results.append(total)
        return results


def equal_chain(whole: Windows, size: int, largest: int) -> tuple[Windows, ...] | None:
    """The shortest chain of small windows in which every result sees the same pixels as that of the one large window.

    No kernel is larger than `largest` or smaller than its stride, and no padding larger than half of its kernel: frameworks
    ask for that. Padding is even where that of the whole is. Strides are powers of two if they can be.

    Returns:
        At most four stages, one where the whole keeps to this; None where there is no such chain, or the taps are spread.

    >>> [(stage.kernel, stage.stride, stage.pads) for stage in equal_chain(Windows(13, 1, (6, 6)), 20, 5)]
    [(5, 1, (2, 2)), (5, 1, (2, 2)), (5, 1, (2, 2))]
    """
    if whole.dilation != 1 or whole.count(size) < 1:
        return None
    pixels = [1 << index for index in range(size)]
    expected = whole.seen(pixels)
    every = range(largest, 0, -1)  # large strides first: they leave less to do
    for strides, length in product(([n for n in every if n & (n - 1) == 0], every), range(1, _MOST_STAGES + 1)):
        for stages in _sized(whole, length, largest, strides, is_free=len(expected) == 1):
            for chain in _padded(whole, stages):
                if reduce(lambda seen, stage: stage.seen(seen), chain, pixels) == expected:
                    return chain
    return None


def _sized(
    whole: Windows, length: int, largest: int, strides: Sequence[int], *, is_free: bool
) -> Iterator[tuple[Windows, ...]]:
    """Chains whose windows, without padding, have the kernel of the whole, and its stride unless that is free."""
    if length > 1:
        for first, behind in _cut(whole, largest, strides, is_free=is_free):
            others = _sized(behind, length - 1, largest, strides, is_free=is_free)
            yield from ((first, *rest) for rest in others)
    elif whole.kernel <= largest:
        free = (1, whole.kernel) if is_free else (whole.stride,)
        yield from ((Windows(whole.kernel, stride),) for stride in free if stride <= whole.kernel)


def _cut(whole: Windows, largest: int, strides: Sequence[int], *, is_free: bool) -> Iterator[tuple[Windows, Windows]]:
    """First stages, and what is left behind each: kernel k and stride s, then k' and s', are k + (k'−1)·s and s·s'."""
    for stride in strides:
        if whole.stride % stride and not is_free:
            continue
        for kernel in range(max(stride, 2), min(largest, whole.kernel - 1) + 1):
            steps, rest = divmod(whole.kernel - kernel, stride)
            if rest == 0:
                yield Windows(kernel, stride), Windows(steps + 1, whole.stride // stride)


def _padded(whole: Windows, stages: tuple[Windows, ...]) -> Iterator[tuple[Windows, ...]]:
    """The stages with padding that starts the windows where those of the whole start."""
    halves = [range(stage.kernel // 2 + 1) for stage in stages]
    is_even = whole.pads[0] == whole.pads[1]
    steps = list(accumulate((stage.stride for stage in stages[:-1]), mul, initial=1))
    for begins in product(*halves):
        if sum(map(mul, begins, steps)) != whole.pads[0]:  # where the first window of the chain starts before the axis
            continue
        for ends in [begins] if is_even else product(*halves):
            pads = zip(begins, ends, strict=True)
            yield tuple(Windows(s.kernel, s.stride, pair) for s, pair in zip(stages, pads, strict=True))
