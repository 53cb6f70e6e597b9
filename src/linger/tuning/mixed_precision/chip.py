# SPDX-License-Identifier: Apache-2.0
"""Which widths a tensor may get on a chip, by the limits that `linger.check` would hold its file to."""

from __future__ import annotations

from dataclasses import dataclass

from linger.checks.limits.products import OperandLimits, PackingLimits, ProductLimits
from linger.checks.limits.windows import WindowLimits
from linger.dialect import Op, find_op
from linger.targets import Target, find_target
from linger.tuning.mixed_precision.units import WEIGHTS, Unit

_USUAL_BITS = 8


@dataclass(frozen=True)
class ChipWidths:
    """The widths of one chip; without a chip every width is allowed."""

    target: Target | None = None

    @classmethod
    def of(cls, name: str | None) -> ChipWidths:
        """Those of a chip by its name.

        Raises:
            UsageError: There is no such chip.
        """
        return cls(None if name is None else find_target(name))

    def allows(self, unit: Unit, bits: int) -> bool:
        """Whether a tensor may have this width: where it is made, and in every op that reads it."""
        if self.target is None or bits == unit.bits:
            return True
        ops = [find_op(name) for name in sorted(unit.reading_ops)]
        if unit.what == WEIGHTS:
            return bits in self._product(find_op(unit.op)).weight_bits and all(self.reads(op, bits) for op in ops)
        return self._makes(unit, bits) and all(self.reads(op, bits) for op in ops)

    @property
    def _windows(self) -> WindowLimits:
        assert self.target is not None  # asked with a chip only
        return self.target.table("windows", WindowLimits)

    def _product(self, op: Op) -> WindowLimits | ProductLimits:
        assert self.target is not None
        is_window = "window-width" in op.chip_limits
        return self._windows if is_window else self.target.table("products", ProductLimits)

    def _makes(self, unit: Unit, bits: int) -> bool:
        assert self.target is not None
        packing = self.target.table("packing", PackingLimits)
        if not unit.is_output:
            return bits == packing.quant_bits
        op = find_op(unit.op)
        if bits not in packing.data_bits:
            return False
        if op.is_transposed:
            return bits in self._windows.transposed_output_bits
        if op.weight_axes is None:
            return unit.is_function or self.reads(op, bits)  # a pool gives the width that it takes
        return bits in self._product(op).output_bits

    def reads(self, op: Op, bits: int) -> bool:
        """Whether an op takes an input of this width."""
        assert self.target is not None
        limits, operands = op.chip_limits, self.target.table("operands", OperandLimits)
        curve = operands.packed_curve_bits.get(op.name, operands.curve_bits)
        refusals = (
            ("window-width" in limits or "pool" in limits) and bits > self._windows.data_bits,
            "join" in limits and operands.mixed_join_bits is not None and bits > operands.mixed_join_bits,
            "curve" in limits and curve not in (None, bits),
            "layer-norm" in limits and bits > _USUAL_BITS,
        )
        return not any(refusals)
