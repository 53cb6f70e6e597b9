# SPDX-License-Identifier: Apache-2.0
"""Where a range keeps its numbers: buffers of a module, read and written as Python numbers; and what a module must offer for it."""

from __future__ import annotations

import math
import re
import weakref
from enum import Enum
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting

from linger.dialect import Interval
from linger.errors import UsageError
from linger.numeric.fixed import as_float32
from linger.numeric.torch.quantize import Scale, largest_of, magnitude_within, smallest
from linger.quantization.core.observation import Calibration
from linger.quantization.core.runtime import RUN_FIRST, Pass


class Kind(Enum):
    """What a range belongs to."""

    INPUT = "input"
    WEIGHT = "weight"
    OUTPUT = "output"


_KINDS = (
    (re.compile(r"(w|iw|hw)(_l\d+)?(_reverse)?"), Kind.WEIGHT),
    (re.compile(r"(x|i)(_l\d+)?"), Kind.INPUT),
    (re.compile(r"o(_l\d+)?"), Kind.OUTPUT),
)
"""The ranges that can be chosen; the others of a recurrent layer follow from these."""


def kind_of(name: str) -> Kind | None:
    """What the range of this name belongs to; None where it follows from others."""
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), None)


class NotFiniteError(UsageError):
    """A tensor of this process holds NaN or infinity; the other processes will say so too."""


def not_finite(where: str) -> str:
    """The message for a tensor without a largest number."""
    return f"{where}: the tensor holds NaN or infinity, so no scale can be chosen. Check the input and the weights."


class RangeHolder(nn.Module):
    """What a range asks of the module that holds its buffers (`linger.quantization.core.quantized.QuantizedBase`)."""

    is_layer = False
    """Whether it stands for a layer of the float model."""

    path = ""
    """Where it stands in the model."""

    holds_ranges = False
    """Whether ranges that are known stay as they are in training."""

    input_range = ""
    """Where the range of its input comes from: "own" observation, "adopted" from a quantized input, "stale" until then."""

    stored: dict[str, Stored]
    """Its buffers by name, those of other code left out."""

    def read(self, key: str) -> Any:
        """The number in a buffer, or the list of its numbers."""
        return self.stored[key].read()

    def write(self, key: str, value: Any) -> None:
        """Set a buffer."""
        self.stored[key].write(value)

    @property
    def is_shared(self) -> bool:
        """Whether several calls of one pass had the range of its output, so that it is not used."""
        return False

    @property
    def largest_output(self) -> float:
        """The upper bound of the range of its output; a layer within limits has a finite one."""
        return math.inf

    def missing_scale(self, where: str) -> str:
        """The message for a layer without a scale."""
        return f"{where} has no scale yet. Run data through the model inside `with linger.calibration():`, or train it."


class Stored:
    """A buffer of a module, read and written as numbers: read again only where torch has counted another write.

    A buffer may be absent from checkpoints as long as it says nothing; it exists from the beginning all the same, because torch
    pairs the buffers of a model and of its average (`torch.optim.swa_utils`) by their order.

    Attributes:
        absent: What it holds while it says nothing: of a mean with a number, as over time, nothing may be left of it.
        of: Of one that may be absent, the buffer whose presence in a checkpoint shows that it is; None: it then stays as it is.
    """

    def __init__(
        self,
        holder: RangeHolder,
        key: str,
        device: torch.device | None = None,
        *,
        size: int = 1,
        dtype: torch.dtype = torch.float32,
        absent: float = 0.0,
        of: str | None = None,
        is_optional: bool = False,
    ) -> None:
        self.holder, self.key, self.absent, self.of, self.is_optional = holder, key, absent, of, is_optional
        with torch.inference_mode(mode=False):  # a layer made in an inference pass can be trained later
            buffer = torch.full((size,), absent, dtype=dtype, device=device)
        holder.register_buffer(key, buffer, persistent=not is_optional)
        holder.stored[key] = self
        self._known: tuple[int, Any] | None = None  # the version that was read or written, and its numbers
        if is_optional:
            self.note([absent] * size if size > 1 else absent)

    def __getstate__(self) -> dict[str, Any]:
        """A copy reads its buffer anew: its version begins again."""
        return self.__dict__ | {"_known": None}

    @property
    def buffer(self) -> Tensor:
        """The tensor."""
        buffer = self.holder._buffers[self.key]  # noqa: SLF001 - get_buffer takes ten times as long
        assert buffer is not None  # ours never are
        return buffer

    def note(self, numbers: Any) -> Any:
        """Remember the numbers that the buffer has now."""
        self._known = self.buffer._version, numbers  # noqa: SLF001 - torch's public name is missing
        return numbers

    def forget(self) -> None:
        """Read the buffer anew: another one has its place."""
        self._known = None

    @property
    def last_known(self) -> Any:
        """Its numbers as far as they are known without reading a device; None where they are not."""
        buffer, known = self.buffer, self._known
        is_known = known is not None and not buffer.is_meta and known[0] == buffer._version  # noqa: SLF001 - as above
        return known[1] if known is not None and is_known else None

    def read(self) -> Any:
        """Its number, or the list of its numbers where it holds several.

        Raises:
            UsageError: torch.export follows the pass, and none before it has read the buffer.
        """
        buffer, known = self.holder._buffers[self.key], self._known  # noqa: SLF001 - as above
        assert buffer is not None
        if type(buffer) is not Tensor and is_exporting():  # a traced buffer has no value
            if known is None:
                raise UsageError(RUN_FIRST)
            return known[1]
        if known is None or known[0] != buffer._version:  # noqa: SLF001 - as above
            return self.note(buffer.tolist() if buffer.numel() > 1 else float(buffer))
        return known[1]

    def write(self, value: Any) -> None:
        """Set its number, or all of its numbers."""
        buffer = self.buffer
        if isinstance(value, Tensor):
            with torch.no_grad():
                buffer.copy_(value)
        elif isinstance(value, tuple):
            buffer.copy_(torch.tensor(value, dtype=buffer.dtype))
            self.note(list(value))
        elif (self.read() if buffer.is_cpu else self.last_known) != value:
            buffer.fill_(value)
            self.note(as_float32(value))

    def value(self, *, stays_there: bool) -> Scale:
        """Its number: a tensor without axes where it stays on a device."""
        if stays_there and not self.buffer.is_cpu:
            return self.buffer.detach().double().squeeze(0)
        return self.read()

    @property
    def is_said(self) -> bool:
        """Whether it says something."""
        if self.buffer.is_meta:
            return False
        numbers = self.read()
        first = numbers[0] if isinstance(numbers, list) else numbers
        return math.isfinite(first) and first != self.absent


class Ends(NamedTuple):
    """What a pass has seen of a range: lowest and highest number, and whether the range was never seen before."""

    low: Scale
    high: Scale
    is_new: Any


class Learned(Protocol):
    """A parameter that a range follows (`linger.quantization.core.learned.LearnedRange`)."""

    method: str
    key: str

    @property
    def parameter(self) -> nn.Parameter:
        """What the optimizer learns."""

    def begin(self) -> None:
        """Begin at the present scale."""

    def follow(self, now: Pass) -> None:
        """Let the range be what the parameter says."""

    def change_width(self, bits: int) -> None:
        """Let a step be that of another width."""

    def keep_type(self, data: Tensor) -> None:
        """Give the parameter these numbers again where it was converted to another type."""

    def attach(self, rounded: Tensor, real: Tensor, scale: Scale, bits: int, now: Pass, **how: Any) -> Tensor:
        """Lead the gradient of a rounded tensor to the parameter."""


EVERYTHING = (-math.inf, math.inf)
"""The interval of a tensor all of whose numbers are used."""

_OPEN = float(torch.finfo(torch.float32).max)
"""Stands for infinity in checkpoints: a mean of infinite numbers, as of weights over time, would be none."""


class Observed(Protocol):
    """The range (`linger.quantization.core.ranges.Range`)."""

    layer: RangeHolder
    used: Stored | None
    running: Stored

    @property
    def known_use(self) -> Interval | None:
        """The interval in its buffer."""

    @property
    def scale(self) -> float:
        """Its scale."""

    def widened(self, before: Scale, seen: Scale, *, is_calibrating: bool) -> Scale:
        """It with one more tensor."""

    def follow_running(self) -> None:
        """Find the scale again, in the format that it was last used for."""


class ReadInterval:
    """Which numbers of a range its users read; the others may saturate.

    The users run after the range is observed, so they are known when a pass has ended. Then the range is brought down to
    what is used. It is never narrower than any pass has asked for.

    Attributes:
        range: The range.
        applied: The interval that the last pass observed by.
        held: The interval whose numbers the range holds now.
        last: The ends of the tensor that was observed last, and the range before it.
        waits: Whether the users of all processes decide, once they have told each other (`exchange`).
    """

    def __init__(self, range_: Observed) -> None:
        self.range = range_
        self.applied: Interval = EVERYTHING
        self.held: Interval = EVERYTHING
        self.last: tuple[Scale, Scale, Scale] | None = None
        self.waits = False
        self._read: Interval | None = None
        self._tensors: list[tuple[Scale, Scale]] = []
        self._before: Scale = 0.0
        self._block: weakref.ref[Calibration] | None = None
        self._is_settled = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a model has no pass in progress."""
        return self.__dict__ | {"last": None, "_read": None, "_tensors": [], "_block": None}

    def watch(self, block: Calibration | None) -> None:
        """Expect users of the tensor that was observed last, and of those before it in this pass or calibration block."""
        if self.last is None:
            self._tensors = []  # observed as a whole: what came before it is not to be taken back
            return
        (low, high, before), self.last = self.last, None
        is_same = (None if self._block is None else self._block()) is block
        if self._tensors and is_same and block is not None:
            old_low, old_high = self._tensors[0]
            self._tensors = [(smallest([low, old_low]), largest_of([high, old_high]))]
            return
        if self._is_settled or not is_same:
            self._tensors, self._is_settled = [], False
            self._block = None if block is None else weakref.ref(block)
        if not self._tensors:
            self._before = before
        self._tensors.append((low, high))

    def use(self, low: float, high: float) -> None:
        """A user reads the numbers between these two; zero always counts."""
        found = self._read or (0.0, 0.0)
        self._read = min(found[0], low), max(found[1], high)

    def settle(self, *, is_complete: bool) -> None:
        """Bring the range down to what was used; the users of an incomplete pass are forgotten."""
        if self.waits and is_complete:
            return
        found, self._read, self._is_settled = self._read, None, True
        if found is None or not is_complete:
            return
        self.join(found)
        used = self.range.known_use or found
        if used == self.held:
            return
        self.held = used
        if self._tensors and not self.range.layer.is_shared:
            self._observe_again(used)

    def _observe_again(self, interval: Interval) -> None:
        """Set the range to what it would be, had the tensors of the pass or block been observed by this interval."""
        running, is_calibrating = self._before, self._block is not None
        for low, high in self._tensors:
            running = self.range.widened(running, magnitude_within(low, high, interval), is_calibrating=is_calibrating)
        self.range.running.write(running)
        self.range.follow_running()

    @property
    def so_far(self) -> Interval | None:
        """What is used as far as this process knows, in this pass and before; None where it knows nothing."""
        return self.range.known_use if self._read is None else _joined(self._read, self.range.known_use)

    def forget(self) -> None:
        """The users of this pass have been told."""
        self._read, self.waits = None, False

    def join(self, found: Interval) -> None:
        """Use these numbers, too, from now on; checkpoints say so, unless everything was used from the first pass on."""
        known, stored = self.range.known_use, self.range.used
        used = _joined(found, known)
        if used != known and stored is not None:
            end = math.inf if known is None and used == EVERYTHING else _OPEN
            stored.write((max(used[0], -end), min(used[1], end)))

    def set(self, used: Interval | None) -> None:
        """Use these numbers, whatever was known before."""
        if self.range.used is not None:
            self.range.used.write((math.inf, math.inf))
        if used is not None:
            self.join(used)


def _joined(one: Interval, other: Interval | None) -> Interval:
    """The interval that holds both."""
    return one if other is None else (min(one[0], other[0]), max(one[1], other[1]))
