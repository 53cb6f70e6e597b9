# SPDX-License-Identifier: Apache-2.0
"""What a runtime asks of objects that other modules implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

from linger.dialect import Op


class Emitter(Protocol):
    """Writes dialect nodes instead of simulating them (implemented by the exporter)."""

    def call(
        self,
        op: Op,
        tensors: Sequence[Any],
        attributes: Mapping[str, Any],
        name: str,
        parameters: Mapping[str, str] | None = None,
        *,
        may_be_constant: bool = False,
    ) -> tuple[Tensor, ...]:
        """Emit one node and return its outputs. Tensors hold integers; a tuple is an int64 constant.

        `parameters` names initializers whose names do not follow from that of the node; `may_be_constant`: torch might compute it.
        """


_Wrapper = TypeVar("_Wrapper", contravariant=True)


class Announcer(Protocol[_Wrapper]):
    """Lets a trace follow quantized tensors into functions that it records as one node (implemented by the exporter)."""

    def announce(self, wrapper: _Wrapper, content: Tensor, scale: float | None) -> None:
        """A quantized tensor was made, or has got other content."""

    def real(self, wrapper: _Wrapper) -> Tensor:
        """Its real values, as the trace knows them here."""

    def integers(self, wrapper: _Wrapper) -> Tensor:
        """Its integers, as the trace knows them here."""


class Quantized(Protocol):
    """A tensor that is made of integers (`linger.quantization.core.qtensor.QTensor`)."""

    def integers(self) -> Tensor:
        """These integers."""


class Scaled(Protocol):
    """A layer that may wait for its scales (`linger.quantization.core.quantized.QuantizedBase`)."""

    path: str

    @property
    def lacks_scale(self) -> bool:
        """Whether a range was never seen."""


class UsedBy(Protocol):
    """A range that is told which of its numbers matter (`linger.quantization.core.stored.ReadInterval`)."""

    def use(self, low: float, high: float) -> None:
        """Somebody looks at the numbers between these two; what lies beyond counts as the nearer one."""

    def settle(self, *, is_complete: bool) -> None:
        """Every user of a pass is known."""
