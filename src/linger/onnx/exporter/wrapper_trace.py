# SPDX-License-Identifier: Apache-2.0
"""Quantised tensors in a trace that records a torch.autograd.Function as one node.

Such a node may use nothing but its inputs, and its inputs are wrappers. So a wrapper gets a value of its own in the trace,
its real values, and whoever needs integers quantises these again. A Dequant and the Quant behind it go when the file is
assembled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from linger.dialect import find_op
from linger.errors import UnsupportedError
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Runtime

_WIDEST_EXACT = 16
"""Of more bits, real values in float32 and back are other integers."""

_trace: Any = torch._C  # noqa: SLF001 - torch has no public way to name a tensor of a trace


class WrapperTrace:
    """The announcer of a trace."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def announce(self, wrapper: QTensor, content: Tensor, scale: float | None) -> None:
        """The wrapper's value is a Dequant of its content."""
        if not _is_tracing():
            return
        real = content
        if scale is not None and not content.is_floating_point():
            name = self._runtime.unique_name(self._runtime.path, "Dequant")
            real = self._runtime.emit(find_op("Dequant"), [content], {"scale_o": scale}, name)
        _give(wrapper, _value(real))

    def real(self, wrapper: QTensor) -> Tensor:
        """An ordinary tensor that has the wrapper's value."""
        assert wrapper.scale is not None  # callers ask
        with _untraced():
            real: Tensor = wrapper.stored / wrapper.scale
        if _is_tracing():
            _give(real, _value(wrapper))
        return real

    def integers(self, wrapper: QTensor) -> Tensor:
        """A Quant of the wrapper's value."""
        if not _is_tracing():
            return wrapper.stored
        if wrapper.bits > _WIDEST_EXACT:
            raise UnsupportedError(
                f"{self._runtime.path or 'model'}: a torch.autograd.Function is exported beside a quantised tensor of "
                f"{wrapper.bits} bits, whose integers do not survive as real values. Give the layer an output of 8 or 16 "
                "bits (linger.quant_module), or write the function as torch functions."
            )
        attributes = {"data_bits": wrapper.bits, "scale_x": wrapper.scale}
        name = self._runtime.unique_name(self._runtime.path, "FunctionQuant")
        return self._runtime.emit(find_op("Quant"), [self.real(wrapper)], attributes, name)


def _is_tracing() -> bool:
    return bool(_trace._is_tracing())  # noqa: SLF001


def _value(tensor: Tensor) -> Any:
    with _trace.DisableTorchFunctionSubclass():
        return _trace._get_value_trace(tensor)  # noqa: SLF001


def _give(tensor: Tensor, value: Any) -> None:
    with _trace.DisableTorchFunctionSubclass():
        _trace._set_value_trace(tensor, value)  # noqa: SLF001


@contextmanager
def _untraced() -> Iterator[None]:
    """Computation that the trace does not see."""
    state = _trace._get_tracing_state()  # noqa: SLF001
    _trace._set_tracing_state(None)  # noqa: SLF001
    try:
        yield
    finally:
        _trace._set_tracing_state(state)  # noqa: SLF001
