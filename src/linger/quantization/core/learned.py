# SPDX-License-Identifier: Apache-2.0
"""A range that an optimizer learns: a parameter of its layer, from which the range follows.

The parameter is the binary logarithm of the range ("tqt": Jain and others, Trained Quantization Thresholds, 2020) or the step of the
grid ("lsq": Esser and others, Learned Step Size Quantization, 2020), whose sign does not count: an optimizer may well overshoot zero
where steps are small. Nothing else knows about it: the range is written where running statistics would write it, and the one rule
turns it into a scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from linger.errors import UsageError
from linger.numeric.fixed import as_float32, limits
from linger.numeric.torch.quantize import Grid, Scale, learn_grid, scale_for_range, smallest
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Pass
from linger.quantization.core.stored import Stored

PREFIXES = {"tqt": "threshold_", "lsq": "step_"}
"""Method → what the name of the parameter begins with; the name of the range follows."""

_LARGEST = 2.0**100
_SMALLEST = 2.0**-100  # ranges stay between these two: far from those that count as zero, and within float32
_USUAL_BITS = 8

_MIDDLE = 0.5  # of the ranges that give one scale, in powers of two: as far from the next scale as from the one before


class _LearnedRange:
    """The parameter of one learned range.

    Attributes:
        range: The range.
        method: "tqt" or "lsq".
        key: The name of the parameter.
    """

    def __init__(self, range_: Range, method: str, bits: int) -> None:
        self.range, self.method = range_, method
        self.key = PREFIXES[method] + range_.name
        self._bits = bits
        self._known: tuple[int, int] | None = None  # the parameter on a device that the range was last written for
        self._width: Stored | None = None
        layer, device = range_.layer, range_.running.buffer.device
        with torch.inference_mode(mode=False):
            # one axis, because torch's sharding takes no parameter without
            count = 1 if range_.rows is None or range_.chosen is None else range_.chosen.buffer.numel()
            layer.register_parameter(self.key, nn.Parameter(torch.zeros(count, device=device)))
        if method == "lsq":
            self._width = Stored(layer, f"bits_{range_.name}", device)
            self._width.write(float(bits))

    @property
    def parameter(self) -> nn.Parameter:
        """What the optimizer learns."""
        return cast(nn.Parameter, getattr(self.range.layer, self.key))

    def remove(self) -> None:
        """Take the parameter from the layer; the range stays."""
        self.follow(Pass.here())
        layer = self.range.layer
        delattr(layer, self.key)
        if self._width is not None:
            delattr(layer, self._width.key)
            del layer.stored[self._width.key]
        self.range.learned = None

    def keep_type(self, data: Tensor) -> None:
        """Give the parameter these numbers again where it was converted to another type."""
        parameter = self.parameter
        if parameter.dtype != data.dtype:
            parameter.data = data.to(parameter.device)

    # from the range to the parameter
    def begin(self) -> None:
        """Set the parameter to the middle of those that give the present scale, and the range to what it then is."""
        bits = (self._bits if self.range.width is None else self.range.width) + self.range.room - self.range.bits
        bound = math.inf if self.range.bound is None else self.range.bound
        self.range.learned = None  # the range as it is, not as the parameter has it
        present = torch.tensor(present_range(self.range)) if self.range.rows is not None else self._source.read()
        self.range.learned = self
        scale = torch.as_tensor(smallest([scale_for_range(present, bits), bound]), dtype=torch.float64)
        with torch.no_grad():
            if self._width is not None:
                self._width.write(float(bits))
                self.parameter.copy_(2.0**-_MIDDLE / scale)
            else:
                self.parameter.copy_(torch.log2(limits(bits)[1] / scale) - _MIDDLE)
        self.follow(Pass.here())

    def change_width(self, bits: int) -> None:
        """Let a step be that of another width, so that its gradient is, too; the range stays."""
        if self._width is None:
            return
        before = self._top
        self._width.write(float(bits))
        with torch.no_grad():
            self.parameter.mul_(before / self._top)

    # from the parameter to the range
    def follow(self, now: Pass) -> None:
        """Let the range be what the parameter says; a `UsageError` where that is no number."""
        # calibration looks for a range of its own; a trace must not read, and follows a pass with these values
        if now.calibration is not None or now.is_exporting or torch._C._is_tracing():  # noqa: SLF001 - torch.jit hides it from mypy
            return
        parameter = self.parameter.detach()
        if hasattr(parameter, "full_tensor"):  # sharded; whole only while a pass runs
            return
        if parameter.is_cpu and self.range.rows is None:
            self._write(self._range(float(parameter)))
            return
        self._follow_there(parameter, now)

    def _follow_there(self, parameter: Tensor, now: Pass) -> None:
        """The same of a parameter on a device, which training does not read, or with a number for each channel."""
        known = None if self.range.observes(now) else (parameter.data_ptr(), parameter._version)  # noqa: SLF001 - torch's public name is missing
        if known is None or known != self._known:
            for value in [] if known is None else parameter.tolist():
                self._range(value)  # an evaluation names what is no number
            self._known = known
            self._write(self._range_there(parameter))

    def _write(self, largest: Scale) -> None:
        if self.range.is_of_weights:
            self.range.choose_range(largest)
        else:
            self.range.running.write(largest)

    def _range(self, value: float) -> float:
        if not math.isfinite(value):
            where = f"{self.range.layer.path}.{self.range.name}".lstrip(".")
            raise UsageError(
                f"{where}: the learned {self.key} is {value}, so no scale can be chosen. Lower the learning rate, or "
                "limit the gradients."
            )
        if self.method == "tqt":
            return as_float32(2.0 ** min(max(value, math.log2(_SMALLEST)), math.log2(_LARGEST)))
        return as_float32(min(max(abs(value) * self._top, _SMALLEST), _LARGEST))

    def _range_there(self, value: Tensor) -> Tensor:
        """The same on a device, whose values are not read; what is no number stays so, and an evaluation finds it."""
        number = value.double().squeeze(0)
        largest = torch.exp2(number) if self.method == "tqt" else number.abs() * self._top
        return largest.clamp(_SMALLEST, _LARGEST).masked_fill(~number.isfinite(), math.nan)

    @property
    def _top(self) -> int:
        """The largest integer of the width that the step belongs to."""
        assert self._width is not None  # a step has one
        return limits(int(self._width.read()))[1]

    @property
    def _source(self) -> Stored:
        """Where the range is; weights whose range was not chosen have that of the largest."""
        chosen = self.range.chosen
        return chosen if chosen is not None and self.range.is_chosen else self.range.running

    # gradients
    def attach(
        self,
        rounded: Tensor,
        real: Tensor,
        scale: Scale,
        bits: int,
        now: Pass,
        *,
        factor: Tensor | None = None,
        **how: Any,
    ) -> Tensor:
        """`learn_grid` of a tensor that was rounded by this range; `how` are fields of its `Grid`."""
        rows = self.range.rows
        reach = self.range.value(now, self._source) if rows is None else self._range_there(self.parameter.detach())
        unbounded = scale_for_range(reach, bits)
        per_step: Scale = 1.0
        if self.method == "lsq":
            size, is_negative = self._top / limits(bits)[1], self.parameter.detach() < 0.0
            per_step = size * (1.0 - 2.0 * is_negative) if isinstance(scale, Tensor) else -size if is_negative else size
        # each process has its part of the batch, but all of the weights
        is_split = now.is_shared and not self.range.is_of_weights
        count = torch.distributed.get_world_size() if is_split else 1
        grid = Grid(scale, bits, unbounded, self.method == "tqt", per_step, processes=count, rows=rows, **how)
        return learn_grid(rounded, self.parameter, real, grid, factor)


def present_range(range_: Range) -> float | tuple[float, ...]:
    """The range that weights are rounded for now, or those of their channels."""
    chosen, rows = range_.chosen_range(), range_.real_rows
    if chosen is None:
        return range_.largest if rows is None else tuple(rows.abs().amax(1).tolist())
    return chosen


def learn_range(range_: Range, method: str | None, bits: int) -> None:
    """Learn a range by a method, from its present scale on; None: it follows the data again, from where it is."""
    known = range_.learned
    if (None if known is None else known.method) == method:
        return
    if isinstance(known, _LearnedRange):
        known.remove()
    if method is not None:
        range_.learned = _LearnedRange(range_, method, bits)
        range_.learned.begin()


def load_learned(ranges: Iterable[Range], state_dict: dict[str, Any], prefix: str) -> list[Range]:
    """Learn the ranges that a checkpoint has parameters for; returns those that begin at its ranges, as it has none.

    A checkpoint of an earlier stage has no ranges: what is here stays.
    """
    begun = []
    for range_ in ranges:
        _make_room(range_, state_dict, prefix)
        for method, start in PREFIXES.items():
            if range_.learned is None and f"{prefix}{start}{range_.name}" in state_dict:
                range_.learned = _LearnedRange(range_, method, range_.width or _USUAL_BITS)
        known = range_.learned
        if known is not None and prefix + known.key not in state_dict:
            state_dict[prefix + known.key] = known.parameter.detach().clone()
            if prefix + range_.running.key in state_dict:
                begun.append(range_)
    return begun


def _make_room(range_: Range, state_dict: dict[str, Any], prefix: str) -> None:
    """Add the buffers that a checkpoint has for a range: its sign, and the scales of channels of a function that no pass has run."""
    if range_.users.unsigned is None and f"{prefix}unsigned_{range_.name}" in state_dict:
        range_.users.add_unsigned()
    scale = state_dict.get(prefix + range_.stored_scale.key)
    if scale is not None and range_.is_of_weights and not range_.layer.is_layer:
        range_.split(scale.numel(), None)
        range_.is_loaded_whole = scale.numel() == 1 and bool(scale)
