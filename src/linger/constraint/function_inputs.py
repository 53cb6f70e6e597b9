# SPDX-License-Identifier: Apache-2.0
"""Inputs of functions whose format on the device ends early, as a float model feeds them: softmax ±64, GELU and SiLU ±16."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linger.analysis.advice import Item
from linger.dialect import Op, ops


@cache
def _functions() -> dict[Any, Op]:
    """Every torch function with such a format."""
    found = [op for op in ops().values() if op.input_end is not None]
    return {reduce(getattr, path.split(".")[1:], torch): op for op in found for path in op.functions}


class FunctionInputs(TorchFunctionMode):
    """While it is active, notes the range of what such functions get, by the module at work."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._running: list[str] = []
        self._seen: dict[tuple[str, str], tuple[Op, float, float]] = {}
        self._hooks = ExitStack()
        for path, module in model.named_modules():
            self._hooks.callback(module.register_forward_pre_hook(lambda *_, p=path: self._running.append(p)).remove)
            self._hooks.callback(module.register_forward_hook(lambda *_: self._leave(), always_call=True).remove)

    def _leave(self) -> None:
        self._running.pop()

    def __exit__(self, *error: Any) -> None:
        """No hook stays."""
        super().__exit__(*error)
        self._hooks.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function; look at its input if its format ends early."""
        op = _functions().get(func)
        x = args[0] if args else (kwargs or {}).get("input")
        if op is not None and isinstance(x, Tensor) and x.numel():
            values = x.detach()
            rows = values.amax(-1) if op.last_axis is not None and x.dim() else values  # a masked score is none
            key = (self._running[-1] if self._running else "", func.__name__)
            _, low, high = self._seen.get(key, (op, 0.0, 0.0))
            self._seen[key] = (op, min(low, float(rows.min())), max(high, float(rows.max())))
        return func(*args, **(kwargs or {}))

    def items(self) -> list[Item]:
        """One item for each function whose input left the device's format."""
        return [
            _item(path, name, op, low, high)
            for (path, name), (op, low, high) in self._seen.items()
            if op.input_end is not None and (high > op.input_end or (op.last_axis is not None and -low > op.input_end))
        ]


def _item(path: str, name: str, op: Op, low: float, high: float) -> Item:
    end = f"±{op.input_end:g}"
    what_to_do = (
        "calibration then subtracts the largest number of each row first, which keeps every decision but no chip has; limit "
        f"the layer before it to {end} and train on to do without"
        if op.last_axis is not None
        else f"limit the layer before it to {end} and train on, or keep the function in float"
    )
    sentence = f"its input reaches {max(high, -low):.3g}, and the device reads it in a format that ends at {end}: {what_to_do}."
    largest = max(high, -low)
    return Item(
        f"{path}.{name}".lstrip("."), path, "input", largest, largest, 1.0, is_beyond_format=True, advice=sentence
    )
