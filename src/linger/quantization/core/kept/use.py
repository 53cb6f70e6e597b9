# SPDX-License-Identifier: Apache-2.0
"""Which numbers of a range its users look at."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from linger.dialect import Interval
from linger.numeric.torch.scale import Scale, largest_of, smallest
from linger.quantization.core.kept.buffers import OPEN, absent
from linger.quantization.core.observation import CALIBRATION, Calibration
from linger.quantization.core.surroundings import is_in_backward

EVERYTHING = (-math.inf, math.inf)
"""The interval of a tensor all of whose numbers are used."""


class Observed(Protocol):
    """A layer that keeps ranges (`linger.quantization.core.statistics.QuantizedBase`)."""

    def read(self, name: str) -> float:
        """The value of a buffer."""

    def known_use(self, name: str) -> Interval | None:
        """The numbers of a range that are used, as its buffer says it."""

    def write_all(self, name: str, values: Sequence[float]) -> None:
        """Set a buffer."""

    def observe_again(
        self,
        name: str,
        before: Scale,
        seen: Sequence[tuple[Scale, Scale]],
        interval: Interval,
        *,
        is_calibrating: bool,
    ) -> None:
        """Set a range to what it would be, had the tensors since `before` been observed by this interval."""


class RangeUse:
    """Which numbers of a range its users look at; the others may saturate.

    The users run after the range is observed, so they are known when a pass has ended. Then the range is brought down to
    what is used. It is never narrower than any pass has asked for.

    Attributes:
        applied: The interval that the last pass observed by.
        last: The ends of the tensor that was observed last, and the range before it.
        is_shared: Whether the users of all processes decide, once they have told each other (`exchange`).
    """

    def __init__(self, layer: Observed, name: str) -> None:
        self.layer, self.name = layer, name
        self.applied: Interval = EVERYTHING
        self.last: tuple[Scale, Scale, Scale] | None = None
        self.is_shared = False
        self._found: Interval | None = None
        self._seen: list[tuple[Scale, Scale]] = []
        self._before: Scale = 0.0
        self._block: weakref.ref[Calibration] | None = None
        self._held: Interval = EVERYTHING  # what the range holds now
        self._is_settled = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a model has no pass in progress."""
        return self.__dict__ | {"last": None, "_found": None, "_seen": [], "_block": None}

    @property
    def known(self) -> Interval | None:
        """The interval used in all passes so far; None before the first."""
        return self.layer.known_use(self.name)

    @property
    def is_open(self) -> bool:
        """Whether users can still change the range: not once everything is used, nor when a checkpoint runs again."""
        return self.known != EVERYTHING and not is_in_backward()

    def apply(self) -> Interval:
        """The interval to observe by: that of the first run where a checkpoint runs again."""
        if not is_in_backward():
            self.applied = self._held = self.known or EVERYTHING
            self.is_shared = False
        return self.applied

    def watch(self) -> None:
        """Wait for the users of the tensor that was observed last, with those before it of this pass or calibration."""
        if self.last is None:
            self._seen = []  # observed as a whole: what came before it is not to be taken back
            return
        (low, high, before), self.last = self.last, None
        block = CALIBRATION.get()
        is_same = (None if self._block is None else self._block()) is block
        if self._seen and is_same and block is not None:
            old_low, old_high = self._seen[0]
            self._seen = [(smallest([low, old_low]), largest_of([high, old_high]))]
            return
        if self._is_settled or not is_same:
            self._seen, self._is_settled = [], False
            self._block = None if block is None else weakref.ref(block)
        if not self._seen:
            self._before = before
        self._seen.append((low, high))

    def use(self, low: float, high: float) -> None:
        """Somebody looks at the numbers between these two; zero always counts."""
        found = self._found or (0.0, 0.0)
        self._found = min(found[0], low), max(found[1], high)

    def settle(self, *, is_complete: bool) -> None:
        """Bring the range down to what was used; the users of an incomplete pass are forgotten."""
        if self.is_shared and is_complete:
            return
        found, self._found, self._is_settled = self._found, None, True
        if found is None or not is_complete:
            return
        self.join(found)
        used = self.known or found
        if used != self._held:
            self._held = used
            self.layer.observe_again(self.name, self._before, self._seen, used, is_calibrating=self._block is not None)

    @property
    def so_far(self) -> Interval | None:
        """What is used as far as this process knows, in this pass and before; None where it knows nothing."""
        return self.known if self._found is None else joined(self._found, self.known)

    def forget(self) -> None:
        """The users of this pass have been told."""
        self._found, self.is_shared = None, False

    def join(self, found: Interval) -> None:
        """Use these numbers, too, from now on; checkpoints say so, unless everything was used from the first pass on."""
        known = self.known
        used = joined(found, known)
        if used != known:
            end = math.inf if known is None and used == EVERYTHING else OPEN
            self._write(max(used[0], -end), min(used[1], end))

    def set(self, used: Interval | None) -> None:
        """Use these numbers, whatever was known before."""
        self._write(*[absent(self._key)] * 2)
        if used is not None:
            self.join(used)

    def _write(self, low: float, high: float) -> None:
        self.layer.write_all(self._key, (low, high))

    @property
    def _key(self) -> str:
        return f"used_{self.name}"


def joined(one: Interval, other: Interval | None) -> Interval:
    """The interval that holds both."""
    return one if other is None else (min(one[0], other[0]), max(one[1], other[1]))
