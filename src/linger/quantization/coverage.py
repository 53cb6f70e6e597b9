# SPDX-License-Identifier: Apache-2.0
"""Which ops of a model run as integers and which stayed float, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from linger.errors import UsageError
from linger.quantization.initialize import runtime_of
from linger.quantization.runtime import OpRecord


@dataclass(frozen=True)
class Coverage:
    """The ops of one forward pass, in the order of execution."""

    ops: tuple[OpRecord, ...]

    @property
    def float_ops(self) -> tuple[OpRecord, ...]:
        """What stayed float."""
        return tuple(o for o in self.ops if not o.is_integer)

    @property
    def integer_ops(self) -> tuple[OpRecord, ...]:
        """What runs as integers."""
        return tuple(o for o in self.ops if o.is_integer)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(where, op, integer or float, reason), in the order of execution."""
        return [(o.where, o.op, "integer" if o.is_integer else "float", o.reason) for o in self.ops]

    def __str__(self) -> str:
        lines = [f"{len(self.integer_ops)} ops as integers, {len(self.float_ops)} in float"]
        lines += [f"  {o.where or 'model'}: {o.op} stays float: {o.reason}" for o in self.float_ops]
        return "\n".join(lines)


def coverage(model: nn.Module) -> Coverage:
    """What a quantised model computes as integers, and what it does not, with the reasons.

    Tells of the last calibration pass, which sees every op; of the last forward pass, if the model was never
    calibrated (then float ops that no quantised tensor reaches are not seen).

    Raises:
        UsageError: The model is not quantised, or has not run yet.
    """
    runtime = runtime_of(model)
    if runtime is None:
        raise UsageError("coverage: this model is not quantised. Call linger.init(model) first.")
    if not runtime.ops:
        raise UsageError("coverage: the model has not run yet. Run one forward pass first.")
    return Coverage(tuple(runtime.ops))
