# SPDX-License-Identifier: Apache-2.0
"""Ranges and scales as buffers of a layer, and the one rule that turns a range into a scale."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from linger.errors import UsageError
from linger.numeric.fixed import scale_for
from linger.numeric.torch_quantize import max_abs
from linger.quantization.calibrate import is_calibrating
from linger.quantization.runtime import RUN_FIRST, is_exporting

_ZEROS = 2.0**-126
"""Range of a tensor that held nothing but zeros: seen, but negligible."""

MOMENTUM = 0.1
"""Weight of the newest batch in a running range during training."""


class QuantizedBase(nn.Module):
    """Buffers `running_<name>` (0 = never seen) and `scale_<name>`, read and written as Python floats."""

    is_layer = False
    """Whether it stands for a layer of the float model."""

    input_range = ""
    """Where the range of a layer's input comes from: "own" observation, "adopted" from a quantised input."""

    def __init__(self, names: tuple[str, ...], device: torch.device | None = None) -> None:
        super().__init__()
        self._known: dict[str, tuple[int, float]] = {}
        with torch.inference_mode(mode=False):  # a layer made in an inference pass can be trained later
            for name in names:
                self.register_buffer(f"running_{name}", torch.zeros(1, device=device))
                self.register_buffer(f"scale_{name}", torch.zeros(1, device=device))

    def read(self, name: str) -> float:
        """A buffer's value; the version counter tells when the tensor was written by someone else."""
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

    def write(self, name: str, value: float) -> None:
        """Set a buffer."""
        buffer = self._buffers[name]
        assert buffer is not None
        if self.read(name) != value:
            with torch.no_grad():
                buffer.fill_(value)
            self.read(name)

    def forget_known(self) -> None:
        """Read every buffer anew: other tensors stand in their places."""
        self._known.clear()

    @property
    def is_observing(self) -> bool:
        """Whether this pass changes the ranges."""
        return self.training or is_calibrating()

    def largest_range(self, name: str) -> float:  # noqa: ARG002 - for those that override it
        """What no range goes beyond, whatever is seen: a layer within limits has a finite one."""
        return math.inf

    def observe(self, name: str, x: Tensor, where: str, *, is_relu: bool = False) -> float:
        """Let a tensor widen the range `name`; returns the tensor's own maximum.

        Calibration keeps the largest value; training an exponential mean that starts at the first batch.
        """
        seen = over_all_processes(max_abs(x, is_relu=is_relu), x)
        if x.numel() or not math.isfinite(seen):
            self.widen(name, seen, where)
        return seen

    def widen(self, name: str, seen: float, where: str) -> None:
        """Let the largest magnitude of a tensor widen the range `name`."""
        if not math.isfinite(seen):
            raise UsageError(
                f"{where}: the tensor holds NaN or infinity, so no scale can be chosen. Check the input and the weights."
            )
        before = self.read(f"running_{name}")
        kept = min(seen, self.largest_range(name))
        if before <= _ZEROS:  # nothing but zeros so far: the first real batch sets the range
            after = kept
        elif is_calibrating():
            after = max(before, kept)
        else:
            after = (1 - MOMENTUM) * before + MOMENTUM * kept
        # float32 is what the buffer holds: the scale must not depend on who computed it
        self.write(f"running_{name}", float(torch.tensor(after, dtype=torch.float32)) or _ZEROS)

    def scale_of(self, name: str, bits: int, where: str, *, at_most: float = math.inf) -> float:
        """The scale of a range, not above `at_most`.

        Raises:
            UsageError: The range was never seen.
        """
        running = self.read(f"running_{name}")
        if running == 0.0:
            raise UsageError(self.missing_scale(where))
        # a checkpoint of a model without limits may hold a larger range
        scale = min(scale_for(min(running, self.largest_range(name)), bits), at_most)
        self.write(f"scale_{name}", scale)
        return scale

    def missing_scale(self, where: str) -> str:
        """The sentence for a layer without a scale."""
        return f"{where} has no scale yet. Run data through the model inside `with linger.calibration():`, or train it."

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # a checkpoint of an earlier stage has no ranges: what is here stays
        for name, buffer in self._buffers.items():
            is_range = f"scale_{name.partition('_')[2]}" in self._buffers  # running_mean of a batch norm is none
            if buffer is not None and name.startswith(("running_", "scale_")) and is_range:
                state_dict.setdefault(prefix + name, buffer.detach().clone())
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.forget_known()


def device_of(*modules: nn.Module) -> torch.device:
    """Where the first of these modules that holds a tensor has it; the CPU if none does."""
    tensors = (t for module in modules for t in (*module.parameters(), *module.buffers()))
    return next((t.device for t in tensors), torch.device("cpu"))


def over_all_processes(value: float, x: Tensor) -> float:
    """The largest value among the processes of a distributed training."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    everywhere = torch.tensor(value, device=x.device)
    distributed.all_reduce(everywhere, op=distributed.ReduceOp.MAX)
    return float(everywhere)
