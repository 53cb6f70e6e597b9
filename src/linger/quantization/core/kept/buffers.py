# SPDX-License-Identifier: Apache-2.0
"""Ranges and scales as buffers of a module, read and written as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting

from linger.dialect import Interval
from linger.errors import UsageError
from linger.numeric.fixed import as_float32
from linger.numeric.torch.scale import Scale
from linger.quantization.core.kept.learned import WIDTH, is_of_weights
from linger.quantization.core.observation import CALIBRATION
from linger.quantization.core.runtime import RUN_FIRST

OPEN = float(torch.finfo(torch.float32).max)
"""Stands for infinity in checkpoints: a mean of infinite numbers, as of weights over time, would be none."""

_FAR = 2.0**64
"""An end of an interval beyond it is open, also as a mean of ends of which one was."""


def absent(name: str) -> float:
    """What a buffer holds that says nothing: of a mean with a number, as over time, nothing may be left of it."""
    return math.inf if name.startswith(("chosen_", "used_")) else 0.0


class RangeBuffers(nn.Module):
    """Buffers `running_<name>` (0 = never seen) and `scale_<name>`, read and written as Python floats.

    A pass that changes the ranges of a model on another device leaves them there, because reading one would stall the
    device: scales are tensors without axes then, and numbers on the CPU.

    What is found or decided later has its buffer from the beginning, too, because torch pairs the buffers of a model and of
    its average (`torch.optim.swa_utils`) by their order: `chosen_<name>` of weights, `used_<name>` of all others, and those
    that subclasses add. As long as one says nothing it holds `absent(name)`, and checkpoints do not have it.
    """

    def __init__(self, names: tuple[str, ...], device: torch.device | None = None) -> None:
        super().__init__()
        self._known: dict[str, tuple[int, Any]] = {}  # versions of buffers, and their values; None: there, but not read
        self._optional: dict[str, str | None] = {}  # buffers that may be absent, and whose range shows that they are
        with torch.inference_mode(mode=False):  # a layer made in an inference pass can be trained later
            for name in names:
                self.register_buffer(f"running_{name}", torch.zeros(1, device=device))
                self.register_buffer(f"scale_{name}", torch.zeros(1, device=device))
        for name in names:
            if is_of_weights(name):
                self.add_optional(f"chosen_{name}", name)
            else:
                self.add_optional(f"used_{name}", name, size=2, dtype=torch.float64)

    def add_optional(self, key: str, of: str | None, *, size: int = 1, dtype: torch.dtype = torch.float32) -> None:
        """Add a buffer that may be absent; a checkpoint that has the range `of`, and not the buffer, says that it is."""
        with torch.inference_mode(mode=False):  # as above
            home = next(b.device for b in self.buffers(recurse=False))
            self.register_buffer(key, torch.full((size,), absent(key), dtype=dtype, device=home), persistent=False)
        self._remember(key, absent(key) if size == 1 else [absent(key)] * size)
        self._optional[key] = None if of is None else f"running_{of}"

    def __getstate__(self) -> dict[str, Any]:
        """A copy reads its buffers anew: their versions begin again."""
        return self.__dict__ | {"_known": {}}

    def read(self, name: str) -> float:
        """A buffer's value, read again only where its version counter shows that other code has written it."""
        buffer = self._buffers[name]
        assert buffer is not None  # buffers of this class are never None
        known = self._known.get(name)
        if is_exporting():
            if known is None:
                raise UsageError(RUN_FIRST)
        # a traced buffer has no value
        elif known is None or known[0] != buffer._version or known[1] is None:  # noqa: SLF001 - torch's public name is missing
            known = self._remember(name, float(buffer))
        value: float = known[1]
        return value

    def read_all(self, name: str) -> list[float]:
        """The values of a buffer that holds several."""
        buffer, known = self._buffers[name], self._known.get(name)
        assert buffer is not None
        if known is None or (known[0] != buffer._version and not is_exporting()):  # noqa: SLF001 - as above
            known = self._remember(name, buffer.tolist())
        values: list[float] = known[1]
        return values

    def write_all(self, name: str, values: Sequence[float]) -> None:
        """Set a buffer that holds several values."""
        buffer = self._buffers[name]
        assert buffer is not None
        buffer.copy_(torch.tensor(values, dtype=buffer.dtype))
        self._remember(name, list(values))

    def _remember(self, name: str, value: Any) -> tuple[int, Any]:
        """Note the value that a buffer has now."""
        known = self._known[name] = self._buffers[name]._version, value  # type: ignore[union-attr]  # noqa: SLF001 - as above
        return known

    def known_values(self) -> dict[str, Any]:
        """The values of buffers as far as they are known without reading them."""
        found = {name: (self._buffers.get(name), known) for name, known in self._known.items()}
        held = {name: (b, k) for name, (b, k) in found.items() if b is not None and not b.is_meta}
        return {name: value for name, (b, (version, value)) in held.items() if b._version == version}  # noqa: SLF001 - as in read

    def put_buffers(self, buffers: Mapping[str, Tensor | None], known: Mapping[str, Any]) -> None:
        """Put other tensors, whose values are known as far as said, in the place of buffers."""
        self._buffers.update(buffers)
        self._known.clear()
        for name, value in known.items():
            self._remember(name, value)

    def value(self, name: str) -> Scale:
        """A buffer's value: a number, or where this pass leaves ranges on a device, a tensor without axes."""
        buffer = self._buffers[name]
        assert buffer is not None
        stays_there = not buffer.is_cpu and self.is_observing
        return buffer.detach().double().squeeze(0) if stays_there else self.read(name)

    def write(self, name: str, value: Scale) -> None:
        """Set a buffer."""
        buffer = self._buffers[name]
        assert buffer is not None
        if isinstance(value, Tensor):
            with torch.no_grad():
                buffer.copy_(value)
        elif (self.read(name) if buffer.is_cpu else self._last_known(name)) != value:
            buffer.fill_(value)
            self._remember(name, as_float32(value))

    def _last_known(self, name: str) -> float | None:
        """A buffer's value as far as it is known without reading the device."""
        if is_exporting():
            return self.read(name)
        buffer, known = self._buffers[name], self._known.get(name)
        assert buffer is not None
        return known[1] if known is not None and known[0] == buffer._version else None  # noqa: SLF001 - as in read

    def forget_known(self) -> None:
        """Discard the values that were read before: the buffers have been replaced."""
        self._known.clear()

    # buffers that may be absent
    @property
    def optional_names(self) -> frozenset[str]:
        """The names of these buffers."""
        return frozenset(self._optional)

    def known_use(self, name: str) -> Interval | None:
        """The lowest and highest number of a range that its users look at; None where no pass has shown it yet."""
        low, high = self.read_all(f"used_{name}") if f"used_{name}" in self._buffers else (math.inf, math.inf)
        if math.isnan(low) or low == math.inf:
            return None
        return (low if low > -_FAR else -math.inf, high if high < _FAR else math.inf)

    def is_chosen(self, name: str) -> bool:
        """Whether the range of weights was chosen, whatever their largest magnitude is."""
        key = f"chosen_{name}"
        buffer = self._buffers.get(key)
        if buffer is None:
            return False
        return self._known.get(key) == (buffer._version, None) or math.isfinite(self.read(key))  # noqa: SLF001 - as in read

    def choose_range(self, name: str, largest: Scale | None) -> None:
        """Choose the range of weights, or with None follow their largest magnitude; a checkpoint has the buffer only then."""
        key = f"chosen_{name}"
        self.write(key, absent(key) if largest is None else largest)
        if isinstance(largest, Tensor):
            self._remember(key, None)

    def _is_present(self, name: str) -> bool:
        buffer = self._buffers[name]
        assert buffer is not None
        if buffer.is_meta:
            return False
        first = self.read(name) if buffer.numel() == 1 else self.read_all(name)[0]
        return math.isfinite(first) and first != absent(name)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001 - torch's signature
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._optional:
            if self._is_present(name):
                buffer = self.get_buffer(name)
                destination[prefix + name] = buffer if keep_vars else buffer.detach()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        given = {name for name in self._optional if prefix + name in state_dict}
        cleared = [name for name, of in self._optional.items() if of is not None and prefix + of in state_dict]
        # a checkpoint of an earlier stage has no ranges: what is here stays
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._optional and self.is_range(name):
                state_dict.setdefault(prefix + name, buffer.detach().clone())
        self._non_persistent_buffers_set -= given  # torch loads these as it does all others
        try:
            super()._load_from_state_dict(state_dict, prefix, *rest)
        finally:
            self._non_persistent_buffers_set |= given
        home = next(b.device for b in self.buffers(recurse=False))
        for name in self._optional.keys() - given:
            buffer = self.get_buffer(name)
            if buffer.device != home:  # those of a model without storage got that of the checkpoint
                self._buffers[name] = torch.full_like(buffer, absent(name), device=home)
            elif name in cleared:
                buffer.fill_(absent(name))
        self.forget_known()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's signature
        """Keep ranges in float32 where a model is moved or converted: a scale may be too large for 16 bits."""
        before, known = dict(self._buffers), self.known_values()
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            now = self._buffers[name]
            if buffer is None or now is None:
                continue
            if name in self._optional:  # also where `to_empty` gives storage to a model that had none
                is_new = buffer.is_meta and not now.is_meta
                self._buffers[name] = torch.full_like(now, absent(name)) if is_new else buffer.to(now.device)
            elif self.is_range(name) and now.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(now.device)
        self.put_buffers({}, known)
        return self

    def is_range(self, name: str) -> bool:
        """Whether a buffer belongs to a range; running_mean of a batch norm does not."""
        return name.startswith(("running_", "scale_", WIDTH)) and f"scale_{name.partition('_')[2]}" in self._buffers

    def range_names(self) -> list[str]:
        """The names of its ranges."""
        found = [key for key in self._buffers if key.startswith("running_") and self.is_range(key)]
        return [key.removeprefix("running_") for key in found]

    @property
    def is_observing(self) -> bool:
        """Whether this pass changes the ranges."""
        return self.training or CALIBRATION.get() is not None
