# SPDX-License-Identifier: Apache-2.0
"""A range that an optimizer learns: a parameter of its layer, from which the range follows.

The parameter is the binary logarithm of the range ("tqt") or the step of the grid ("lsq"), whose sign does not count: an
optimizer may well overshoot zero where steps are small. Nothing else knows about it: the range is written where running statistics would write it, and the one rule turns it into a scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting

from linger.errors import UsageError
from linger.numeric.fixed import as_float32, limits
from linger.numeric.torch.learned import Grid, learn_grid
from linger.numeric.torch.scale import Scale, scale_for_range, smallest
from linger.quantization.core.observation import CALIBRATION

PREFIXES = {"tqt": "threshold_", "lsq": "step_"}
"""Method → what the name of the parameter begins with; the name of the range follows."""

WIDTH = "bits_"
"""What the name of the buffer begins with that holds the width a step belongs to."""

_LARGEST = 2.0**100
_SMALLEST = 2.0**-100
"""Ranges stay between these two: far from those that count as zero, and within float32."""

_USUAL_BITS = 8

_MIDDLE = 0.5
"""Of the ranges that give one scale, in powers of two: as far from the next scale as from the one before."""


class Learning(Protocol):
    """A layer that keeps ranges (`linger.quantization.core.statistics.QuantizedBase`)."""

    path: str
    bits_of: dict[str, int]
    learned: dict[str, LearnedRange]

    @property
    def is_observing(self) -> bool:
        """Whether this pass changes the ranges."""

    def read(self, name: str) -> float:
        """The value of a buffer."""

    def value(self, name: str) -> Scale:
        """The same; a tensor where this pass leaves ranges on a device."""

    def write(self, name: str, value: Scale) -> None:
        """Set a buffer."""

    def choose_range(self, name: str, largest: Scale | None) -> None:
        """Choose the range of weights."""

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter."""

    def register_buffer(self, name: str, tensor: Tensor | None) -> None:
        """Add a buffer."""

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:  # noqa: FBT001, FBT002 - torch's signature
        """Its buffers by name."""

    def get_buffer(self, target: str) -> Tensor:
        """A buffer."""

    def bound_of(self, name: str) -> Scale:
        """The finest scale that the device's format allowed when the range was last used."""

    def __delattr__(self, name: str) -> None:
        """Remove a parameter or a buffer."""


class LearnedRange:
    """One learned range of a layer.

    Attributes:
        method: "tqt" or "lsq".
        key: The name of the parameter.
    """

    def __init__(self, layer: Learning, name: str, method: str, bits: int) -> None:
        self.layer, self.name, self.method = layer, name, method
        self.key = PREFIXES[method] + name
        self._bits = bits
        self._known: tuple[int, int] | None = None  # the parameter on a device that the range was last written for
        like = layer.get_buffer(f"running_{name}")
        with torch.inference_mode(mode=False):
            # one axis, because torch's sharding takes no parameter without
            layer.register_parameter(self.key, nn.Parameter(torch.zeros(1, device=like.device)))
            if method == "lsq":
                layer.register_buffer(WIDTH + name, torch.full((1,), float(bits), device=like.device))

    @property
    def parameter(self) -> nn.Parameter:
        """What the optimizer learns."""
        found: nn.Parameter = getattr(self.layer, self.key)
        return found

    @property
    def _where(self) -> str:
        return f"{self.layer.path}.{self.name}".lstrip(".")

    def remove(self) -> None:
        """Take the parameter from the layer; the range stays."""
        self.follow()
        delattr(self.layer, self.key)
        if self.method == "lsq":
            delattr(self.layer, WIDTH + self.name)

    def keep_type(self, data: Tensor) -> None:
        """Give the parameter these numbers again where it was converted to another type."""
        parameter = self.parameter
        if parameter.dtype != data.dtype:
            parameter.data = data.to(parameter.device)

    # from the range to the parameter
    def begin(self) -> None:
        """Set the parameter to the middle of those that give the present scale, and the range to what it then is."""
        layer, bits = self.layer, self.layer.bits_of.get(self.name, self._bits)
        scale = float(smallest([scale_for_range(layer.read(self._buffer), bits), layer.bound_of(self.name)]))
        with torch.no_grad():
            if self.method == "lsq":
                layer.write(WIDTH + self.name, float(bits))
                self.parameter.fill_(2.0**-_MIDDLE / scale)
            else:
                self.parameter.fill_(math.log2(limits(bits)[1] / scale) - _MIDDLE)
        self.follow()

    def change_width(self, bits: int) -> None:
        """Let a step be that of another width, so that its gradient is, too; the range stays."""
        if self.method != "lsq":
            return
        before = self._top
        self.layer.write(WIDTH + self.name, float(bits))
        with torch.no_grad():
            self.parameter.mul_(before / self._top)

    # from the parameter to the range
    def follow(self) -> None:
        """Let the range be what the parameter says.

        Raises:
            UsageError: The parameter is no number.
        """
        # calibration looks for a range of its own; a trace must not read, and follows a pass with these values
        if CALIBRATION.get() is not None or is_exporting() or torch._C._is_tracing():  # noqa: SLF001 - torch.jit hides it from mypy
            return
        parameter = self.parameter.detach()
        if hasattr(parameter, "full_tensor"):  # sharded; whole only while a pass runs
            return
        if parameter.is_cpu:
            self._write(self._range(float(parameter)))
            return
        known = None if self.layer.is_observing else (parameter.data_ptr(), parameter._version)  # noqa: SLF001 - torch's public name is missing
        if known is None or known != self._known:
            if known is not None:
                self._range(float(parameter))  # an evaluation may read it, and names what is no number
            self._known = known
            self._write(self._range_there(parameter))

    def _write(self, largest: Scale) -> None:
        if "w" in self.name.partition("_")[0]:  # w, iw, hw
            self.layer.choose_range(self.name, largest)
        else:
            self.layer.write(f"running_{self.name}", largest)

    def _range(self, value: float) -> float:
        if not math.isfinite(value):
            raise UsageError(
                f"{self._where}: the learned {self.key} is {value}, so no scale can be chosen. Lower the learning rate, or "
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
        return limits(int(self.layer.read(WIDTH + self.name)))[1]

    # gradients
    def attach(
        self, rounded: Tensor, real: Tensor, scale: Scale, bits: int, *, factor: Tensor | None = None, **how: Any
    ) -> Tensor:
        """`learn_grid` of a tensor that was rounded by this range; `how` are fields of its `Grid`."""
        wanted = scale_for_range(self.layer.value(self._buffer), bits)
        per_step: Scale = 1.0
        if self.method == "lsq":
            size, is_negative = self._top / limits(bits)[1], self.parameter.detach() < 0.0
            per_step = size * (1.0 - 2.0 * is_negative) if isinstance(scale, Tensor) else -size if is_negative else size
        grid = Grid(scale, bits, wanted, self.method == "tqt", per_step, **how)
        return learn_grid(rounded, self.parameter, real, grid, factor)

    @property
    def _buffer(self) -> str:
        """The buffer that holds the range; weights whose range was not chosen have that of the largest."""
        chosen = f"chosen_{self.name}"
        return chosen if hasattr(self.layer, chosen) else f"running_{self.name}"


def learn_range(layer: Learning, name: str, method: str | None, bits: int) -> None:
    """Learn a range by a method, from its present scale on; None: it follows the data again, from where it is."""
    known = layer.learned.get(name)
    if (None if known is None else known.method) == method:
        return
    if known is not None:
        known.remove()
        del layer.learned[name]
    if method is not None:
        made = layer.learned[name] = LearnedRange(layer, name, method, bits)
        made.begin()


def load_learned(layer: Learning, state_dict: dict[str, Any], prefix: str) -> list[LearnedRange]:
    """Learn the ranges that a checkpoint has parameters for; returns those that begin at its ranges, as it has none.

    A checkpoint of an earlier stage has no ranges: what is here stays.
    """
    for name, method, bits in _parameters_in(layer, state_dict, prefix):
        known = layer.learned.get(name)
        if known is None or known.method != method:
            if known is not None:
                known.remove()
            layer.learned[name] = LearnedRange(layer, name, method, bits)
    missing = [each for each in layer.learned.values() if prefix + each.key not in state_dict]
    for each in missing:
        state_dict[prefix + each.key] = each.parameter.detach().clone()
    return [each for each in missing if f"{prefix}running_{each.name}" in state_dict]


def _parameters_in(layer: Learning, state_dict: dict[str, Any], prefix: str) -> list[tuple[str, str, int]]:
    """The ranges that a checkpoint has parameters for, with their methods and widths."""
    names = [
        key.removeprefix("running_") for key, _ in layer.named_buffers(recurse=False) if key.startswith("running_")
    ]
    return [
        (name, method, layer.bits_of.get(name, _USUAL_BITS))
        for name in names
        for method, start in PREFIXES.items()
        if f"{prefix}{start}{name}" in state_dict
    ]
