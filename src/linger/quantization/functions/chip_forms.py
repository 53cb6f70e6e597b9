# SPDX-License-Identifier: Apache-2.0
"""What a chip computes exactly in the place of an op that it lacks, or computes otherwise: differences, limits, global pools.

x − y is x + y·(−1). A limit from 0 to a number is a Relu at a scale at which the integers end near that number. A global average
pool whose area is no power of two is two pools, 25×5 a 5×5 and a 5×1. All hold in every pass of a model that was quantized for such
a chip, so its file has the same numbers. Without a chip nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from torch import Tensor
from torch.nn.functional import avg_pool2d

from linger.dialect import Op, find_op
from linger.numeric.fixed import limits, scale_for
from linger.numeric.torch.quantize import Scale, largest_of
from linger.quantization.core.qtensor import QTensor, Real, compute, unwatched
from linger.quantization.core.quantized import integer_bound
from linger.quantization.core.runtime import Runtime
from linger.quantization.core.stored import ReadInterval
from linger.quantization.functions.constants import number_constant
from linger.quantization.functions.functional_layer import own_format
from linger.targets import Status, find_target

_DIFFERENCE, _SUM, _PRODUCT = "iqSub", "iqAdd", "iqMul"
_LIMIT, _RELU, _REQUANT = "Clip", "Relu", "Requant"
AVERAGE = "AvgPool2dInt"

_SHORT = 11
"""Windows up to this do not make small images large in the alignment of a chip, which grows with the stride."""


def is_sum(op: Op, target: str) -> bool:
    """Whether an op is a difference that a chip is not known to compute exactly."""
    return op.name == _DIFFERENCE and find_target(target).status_of(_DIFFERENCE) is not Status.EXACT


@cache
def sum_op() -> Op:
    """The sum of x and −y, with the range of the difference: a checkpoint fits with and without a chip."""
    return replace(find_op(_SUM), state_name=find_op(_DIFFERENCE).state_name)


@cache
def _stateless(op: Op) -> Op:
    """An op that has no range."""
    return replace(op, state_name=None)


def negated(y: QTensor, runtime: Runtime) -> QTensor:
    """−y at the scale of y. The smallest integer, −2^(bits−1), saturates to 2^(bits−1) − 1; all others are exact."""
    call, factor = runtime.begin(_stateless(find_op(_PRODUCT)), runtime.path), number_constant(-1.0, runtime)
    attributes = {"scale_x": y.scale, "scale_y": factor.scale, "scale_o": y.scale}
    if y.bits != call.op.default("o_bits"):
        attributes["o_bits"] = y.bits
    return compute(call, [y, factor], attributes, y.scale, y.bits, lambda: -y.content)


def pooled_twice(
    op: Op, settings: Mapping[str, Any], x: QTensor, runtime: Runtime
) -> tuple[QTensor, Mapping[str, Any]]:
    """The first of two pools and the settings of the second, where a chip computes a global average pool otherwise; else both.

    The averages over windows that lie side by side are at the scale of x; they have no range of their own.
    """
    kernel, area = settings["kernel_shape"], math.prod(x.shape[-2:])
    limits = find_target(str(runtime.target)).limits["windows"]
    largest, per_channel = cast(int, limits["divided_area"]), cast(int, limits.get("global_area", area))
    is_wrong = area & (area - 1) and ("spilled_bytes" in limits or area > min(largest, per_channel * x.shape[-3]))
    is_global = tuple(kernel) == tuple(x.shape[-2:]) and not any(settings["pads"])
    window = _first_window((kernel[0], kernel[1]), largest) if is_wrong and is_global else None
    if window is None:
        return x, settings
    attributes = {"kernel_shape": window, "strides": window, "pads": (0, 0, 0, 0), "ceil_mode": 0, **own_format(x)}
    call, rest = runtime.begin(_stateless(op), runtime.path), (kernel[0] // window[0], kernel[1] // window[1])
    first = compute(call, [x], attributes, x.scale, x.bits, lambda: avg_pool2d(x.content, window))
    return first, {**settings, "kernel_shape": rest, "strides": rest}


@cache
def _first_window(sides: tuple[int, int], largest: int) -> tuple[int, int] | None:
    """A short window that divides the sides and leaves few numbers for the second pool: at best as many as a power of two.

    >>> _first_window((25, 5), 127), _first_window((3, 32), 127), _first_window((13, 1), 127)
    ((5, 5), (3, 8), None)
    """
    (h, w), area = sides, math.prod(sides)
    windows = [(a, b) for a in range(1, h + 1) for b in range(1, w + 1) if h % a == w % b == 0]
    fitting = [(a, b) for a, b in windows if 1 < a * b < area and max(a * b, area // (a * b)) <= largest]

    def cost(window: tuple[int, int]) -> tuple[bool, bool, int, int]:
        rest = area // math.prod(window)
        return max(window) > _SHORT, rest & (rest - 1) != 0, rest, max(window)

    return min(fitting, key=cost, default=None)


def is_saturation(op: Op, settings: Mapping[str, Any], target: str) -> bool:
    """Whether an op is a limit from 0 to a number (ReLU6), and the chip has none."""
    is_limit = op.name == _LIMIT and settings["low"] == 0.0 < settings["high"]
    return is_limit and not find_target(target).takes(_LIMIT)


def saturate(x: QTensor, high: float, runtime: Runtime, real: Real | None) -> QTensor:
    """Limit numbers to 0 … `high` by a Relu: at the scale of that limit the integers end not far from it.

    Where the input has a coarser scale, a Requant comes first. `real` gives the numbers of the float network.
    """
    limit, origins = cast(float, integer_bound(high, x.bits)), x.origins
    source = cast(ReadInterval, origins[0].users) if origins else None
    least = scale_for(limit, x.bits) if math.isfinite(limit) else 0.0
    with unwatched([x]):
        result = _saturated(x, _Saturation(str(runtime.target), high, x.bits, least, x.scale, source), runtime, real)
    result.origins = tuple(origin.limited(0.0, limit) for origin in origins)
    return result


def _saturated(x: QTensor, end: _Saturation, runtime: Runtime, real: Real | None) -> QTensor:
    call, bits, scale = runtime.begin(find_op(_RELU), runtime.path), x.bits, largest_of([x.scale, end.least])
    # what coverage asks for the reason of a Relu; calibration counts what the float network cuts, and asks too
    calibration = call.now.calibration
    if calibration is not None:
        known = cast(_Saturation, calibration.judgments.setdefault((id(runtime), call.name), end))
        known.see(call.name, x, end.source)
        call.judged = known.reason
    elif not call.now.is_real:
        call.judged = end.reason
    is_coarse = isinstance(scale, Tensor) or x.scale < scale  # what is on a device is not looked at
    if is_coarse and end.least and not call.now.is_real:
        attributes = {"data_bits": bits, "o_bits": bits, "scale_x": x.scale, "scale_o": scale}
        x = compute(runtime.begin(find_op(_REQUANT), runtime.path), [x], attributes, scale, bits)
    result = compute(call, [x], {}, scale, bits, real)
    result.is_nonnegative = True
    return result


@dataclass
class _Saturation:
    """A Relu in the place of a limit.

    Attributes:
        chip: The chip that has no Clip.
        high: Where the float network cuts.
        bits: The width of the integers.
        least: The scale of the limit, and the coarsest that the Relu has.
        scale: That of its input, as it was seen last.
        source: The range which that scale follows from, as far as it is known: calibration may still change it.
        beyond: How many of the numbers seen in calibration the float network cuts.
        count: How many it has seen; None outside of calibration.
        name: Of the node, as calibration has seen it.
    """

    chip: str
    high: float
    bits: int
    least: float
    scale: Scale
    source: ReadInterval | None = None
    beyond: Tensor | int = 0
    count: int | None = None
    name: str = ""

    def see(self, name: str, x: QTensor, source: ReadInterval | None) -> None:
        """Count the numbers of another input."""
        self.name, self.scale, self.source = name, x.scale, self.source or source
        self.beyond = self.beyond + (x.content > self.high).sum()
        self.count = (self.count or 0) + x.content.numel()

    @property
    def _end(self) -> float:
        """Where the integers end."""
        scale = self.scale if self.source is None else self.source.range.scale
        return limits(self.bits)[1] / max(float(scale), self.least)

    @property
    def _share(self) -> str:
        """How many of the numbers seen the float network cuts."""
        return f"{100.0 * int(self.beyond) / self.count:.2g} %" if self.count else ""

    def reason(self) -> str:
        """What coverage says; nothing where no number is another one: none passes that the float network cuts."""
        if self._end <= self.high or (self.count is not None and int(self.beyond) == 0):
            return ""
        seen = f": {self._share} of the numbers seen lie beyond" if self._share else ""
        return f"{self.chip} has no Clip, so Relu stands for it and saturates at {self._end:.3g} instead of {self.high:g}{seen}"

    def finding(self) -> tuple[str, str] | None:
        """What calibration says: a sentence about all such places, and what it says of this one."""
        if not self.reason():
            return None
        what = "ReLU6" if self.high == 6.0 else f"a limit of {self.high:g}"
        finer, end = 2.0 ** (self.bits - 2) / self.least, limits(self.bits)[1] / self.least
        sentence = (
            f"{self.chip} has no Clip, so Relu stands for {what} and saturates at {end:.3g} instead of {self.high:g}. Of the "
            f"numbers seen, so many lie beyond {self.high:g}: {{places}}. It saturates at {end / 2.0:.3g} where calibration cuts the range "
            f'to that (method="mse" or "percentile"), or where the layer before is limited ahead of init, by linger.'
            f"normalize_module(layer, normalize_output_value={finer:g}) and linger.normalize_layers(model); fine-tuning follows either."
        )
        return sentence, f"{self.name} {self._share}"
