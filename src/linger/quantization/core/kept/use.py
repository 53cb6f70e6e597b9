# SPDX-License-Identifier: Apache-2.0
"""Which numbers of a range its users look at."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from linger.dialect import Interval
from linger.numeric.torch.scale import Scale, largest_of, smallest
from linger.quantization.core.observation import CALIBRATION, Calibration
from linger.quantization.core.surroundings import is_in_backward

EVERYTHING = (-math.inf, math.inf)
"""The interval of a tensor all of whose numbers are used."""

OWN_INPUT = "own_x"
"""Buffer of a layer whose input keeps a range of its own, though quantised inputs came, too."""

_OPEN = float(torch.finfo(torch.float32).max)
"""Stands for infinity in checkpoints: a mean of infinite numbers, as of weights over time, would be none."""


class Observed(Protocol):
    """A layer that keeps ranges (`linger.quantization.core.statistics.QuantizedBase`)."""

    def read(self, name: str) -> float:
        """The value of a buffer."""

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
        known: The interval used in all passes so far; None before the first.
        applied: The interval that the last pass observed by.
        last: The ends of the tensor that was observed last, and the range before it.
        is_shared: Whether the users of all processes decide, once they have told each other (`exchange`).
    """

    def __init__(self, layer: Observed, name: str) -> None:
        self.layer, self.name = layer, name
        self.known: Interval | None = None
        self.applied: Interval = EVERYTHING
        self.last: tuple[Scale, Scale, Scale] | None = None
        self.is_shared = False
        self._found: Interval | None = None
        self._seen: list[tuple[Scale, Scale]] = []
        self._before: Scale = 0.0
        self._block: weakref.ref[Calibration] | None = None
        self._held: Interval = EVERYTHING  # what the range holds now
        self._kept: Interval | None = None  # what checkpoints say
        self._is_settled = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a model has no pass in progress."""
        return self.__dict__ | {"last": None, "_found": None, "_seen": [], "_block": None}

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
        self.known = joined(found, self.known)
        if self.known != EVERYTHING or self._kept is not None:
            self._keep(self.known)

    def set(self, used: Interval | None) -> None:
        """Use these numbers, whatever was known before."""
        self.known, self._kept = None, None
        cast(nn.Module, self.layer)._buffers.pop(f"used_{self.name}", None)  # noqa: SLF001 - there may be none
        if used is not None:
            self.join(used)

    def load(self, kept: Tensor) -> None:
        """Use what a checkpoint says, so that training goes on as if it had not stopped."""
        low, high = (end if abs(end) < _OPEN else math.copysign(math.inf, end) for end in kept.tolist())
        self.known = low, high
        self._keep(self.known)

    def _keep(self, used: Interval) -> None:
        key, layer = f"used_{self.name}", cast(nn.Module, self.layer)
        if self._kept != used or key not in layer._buffers:  # noqa: SLF001 - hasattr takes longer
            ends = torch.tensor([min(max(end, -_OPEN), _OPEN) for end in used], dtype=torch.float64)
            _add_buffer(layer, key, ends.to(layer.get_buffer(f"running_{self.name}").device))
            self._kept = used


def joined(one: Interval, other: Interval | None) -> Interval:
    """The interval that holds both."""
    return one if other is None else (min(one[0], other[0]), max(one[1], other[1]))


# decisions that a checkpoint has only where they were taken
def keep_own_input(layer: nn.Module) -> None:
    """Let checkpoints say that the range of a layer's input is observed, though quantised inputs came, too."""
    if OWN_INPUT not in layer._buffers:  # noqa: SLF001 - as above
        _add_buffer(layer, OWN_INPUT, torch.ones_like(layer.get_buffer("running_x")))


def loads_own_input(layer: nn.Module, state_dict: dict[str, Any], prefix: str) -> bool:
    """Whether a checkpoint says so; the layer then does, too, and does not where it has other ranges."""
    is_own = prefix + OWN_INPUT in state_dict
    if is_own:
        keep_own_input(layer)
    elif prefix + "running_x" in state_dict:
        layer._buffers.pop(OWN_INPUT, None)  # noqa: SLF001 - there may be none
    elif OWN_INPUT in layer._buffers:  # noqa: SLF001 - as above
        state_dict[prefix + OWN_INPUT] = layer.get_buffer(OWN_INPUT)
    return is_own


def _add_buffer(layer: nn.Module, name: str, values: Tensor) -> None:
    with torch.inference_mode(mode=False):  # a layer that decides in an inference pass can be trained later
        layer.register_buffer(name, values.clone())
