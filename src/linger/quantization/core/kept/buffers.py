# SPDX-License-Identifier: Apache-2.0
"""Ranges and scales as buffers of a module, read and written as numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting

from linger.errors import UsageError
from linger.numeric.fixed import as_float32
from linger.numeric.torch.scale import Scale
from linger.quantization.core.kept.learned import WIDTH
from linger.quantization.core.observation import CALIBRATION
from linger.quantization.core.runtime import RUN_FIRST


class RangeBuffers(nn.Module):
    """Buffers `running_<name>` (0 = never seen) and `scale_<name>`, read and written as Python floats.

    A pass that changes the ranges of a model on another device leaves them there, because reading one would stall the
    device: scales are tensors without axes then, and numbers on the CPU.
    """

    def __init__(self, names: tuple[str, ...], device: torch.device | None = None) -> None:
        super().__init__()
        self._known: dict[str, tuple[int, float]] = {}
        with torch.inference_mode(mode=False):  # a layer made in an inference pass can be trained later
            for name in names:
                self.register_buffer(f"running_{name}", torch.zeros(1, device=device))
                self.register_buffer(f"scale_{name}", torch.zeros(1, device=device))

    def read(self, name: str) -> float:
        """A buffer's value, read again only where its version counter shows that other code has written it."""
        buffer = self._buffers[name]
        assert buffer is not None  # buffers of this class are never None
        known = self._known.get(name)
        if is_exporting():
            if known is None:
                raise UsageError(RUN_FIRST)
            return known[1]  # a traced buffer has no value
        if known is None or known[0] != buffer._version:  # noqa: SLF001 - torch's public name is missing
            known = (buffer._version, float(buffer))  # noqa: SLF001
            self._known[name] = known
        return known[1]

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
            self._known[name] = (buffer._version, as_float32(value))  # noqa: SLF001

    def _last_known(self, name: str) -> float | None:
        """A buffer's value as far as it is known without reading the device."""
        if is_exporting():
            return self.read(name)
        buffer, known = self._buffers[name], self._known.get(name)
        assert buffer is not None
        return known[1] if known is not None and known[0] == buffer._version else None  # noqa: SLF001

    def forget_known(self) -> None:
        """Discard the values that were read before: the buffers have been replaced."""
        self._known.clear()

    def is_range(self, name: str) -> bool:
        """Whether a buffer belongs to a range; running_mean of a batch norm does not."""
        return (
            name.startswith(("running_", "scale_", "chosen_", "used_", WIDTH))
            and f"scale_{name.partition('_')[2]}" in self._buffers
        )

    def range_names(self) -> list[str]:
        """The names of its ranges."""
        found = [key for key in self._buffers if key.startswith("running_") and self.is_range(key)]
        return [key.removeprefix("running_") for key in found]

    @property
    def is_observing(self) -> bool:
        """Whether this pass changes the ranges."""
        return self.training or CALIBRATION.get() is not None
