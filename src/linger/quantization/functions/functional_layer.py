# SPDX-License-Identifier: Apache-2.0
"""The range and scale of a functional op's output: a child of the module whose forward uses the op."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from linger.dialect import Op, ops
from linger.errors import UsageError
from linger.quantization.core.runtime import Frame
from linger.quantization.core.statistics import QuantizedBase
from linger.quantization.functions.parameters import Kept

KEY_PREFIX = "_linger_round_tensor_"
"""State_dict name of every functional layer begins with this."""

INPUT_KEY = "iq_tensor_quant_"
"""What follows the prefix in the name of a range that belongs to a quantised input."""

_BELOW_MAX = "below_max"


@dataclass(frozen=True)
class Beyond:
    """An input that left the device's format, which ends at ±`end`: the ends of what was seen, or of a running range."""

    low: float
    high: float
    end: float
    is_seen: bool = True

    def __str__(self) -> str:
        seen = f"its input ran from {self.low:g} to {self.high:g}"
        range_ = seen if self.is_seen else f"the running range of its input needs a format of ±{self.high:g}"
        return f"{range_}, and the device's format ends at ±{self.end:g}"

    def joined(self, other: Beyond | None) -> Beyond:
        """Both together; what was seen counts more than a running range."""
        if other is None or self.is_seen != other.is_seen:
            return self if other is None or self.is_seen else other
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))


class FunctionalLayer(QuantizedBase):
    """Range and scale of one functional op's output, kept as a child of the module whose forward uses it.

    `key` is the op's state name and a number. An op that wants its input at a width of its own also has a range for it;
    a product has those of a layer; the quantiser of an input has that input's alone.
    """

    def __init__(self, key: str = "", device: torch.device | None = None) -> None:
        op = _ops_by_state_name().get(key.rpartition("_")[0])
        if key.startswith(INPUT_KEY):
            names: tuple[str, ...] = ("x",)
        elif op is not None and "w" in op.inputs and key.startswith("function_"):
            names = ("x", "w", "o")
        else:
            names = ("o",) if op is None or op.input_bits is None else ("x", "o")
        super().__init__(names, device)
        self.parameter: Kept | None = None
        self.frozen: Any = None  # integer parameters of a norm, made in the last pass; no part of a checkpoint
        self.beyond: Beyond | None = None  # what was seen beyond the device's format; no part of a checkpoint

    @property
    def subtracts_max(self) -> bool:
        """Whether the largest number of each row is subtracted from the input of this softmax."""
        return _BELOW_MAX in self._buffers

    def subtract_max(self, *, is_wanted: bool) -> None:
        """Decide it; a checkpoint has the buffer where it is so."""
        if not is_wanted:
            self._buffers.pop(_BELOW_MAX, None)
        elif not self.subtracts_max:
            with torch.inference_mode(mode=False):
                self.register_buffer(_BELOW_MAX, torch.ones_like(self.get_buffer("running_o")))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if prefix + "running_o" in state_dict:  # else it is a checkpoint of an earlier stage, which decides nothing
            self.subtract_max(is_wanted=prefix + _BELOW_MAX in state_dict)
        elif self.subtracts_max:
            state_dict.setdefault(prefix + _BELOW_MAX, self._buffers[_BELOW_MAX])
        # older checkpoints of products also hold the last scalar operand and the input's range
        for name in ("y", "running_x", "scale_x", "running_y", "scale_y", "scale_local_o"):
            if name not in self._buffers:
                state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


@cache
def _ops_by_state_name() -> dict[str, Op]:
    return {op.state_name: op for op in ops().values() if op.state_name is not None}


def functional_layer(frame: Frame, key: str, where: str, device: torch.device) -> FunctionalLayer:
    """The module's functional layer of this name, made on first use in a pass that may change the model."""
    child = KEY_PREFIX + key
    found = frame.module._modules.get(child)  # noqa: SLF001 - getattr would hide an AttributeError of the module
    if isinstance(found, FunctionalLayer):
        return found
    made = FunctionalLayer(key, device).train(frame.module.training)
    if not made.is_observing:
        raise UsageError(made.missing_scale(where))
    frame.module.add_module(child, made)
    return made
