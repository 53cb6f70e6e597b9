# SPDX-License-Identifier: Apache-2.0
"""Which ops of a model run as integers and which stayed float, with the reason and the share of the work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from linger.errors import UsageError
from linger.quantization.core.runtime import OpRecord, runtime_of
from linger.records.table import Column, Result

_COLUMNS = (
    Column("where", "layer"),
    Column("op", "op"),
    Column("runs_as", "runs as"),
    Column("macs", "MACs", "{:,d}"),
    Column("percent", "share %", "{:.1f}"),
    Column("reason", "reason"),
)


@dataclass(frozen=True)
class CoverageRow:
    """One op of a forward pass.

    Attributes:
        where: Path of the module; empty for the model itself.
        op: The op of the dialect, or the torch function that stayed float.
        runs_as: "integer" or "float".
        reason: Why it stayed float; of an integer op, that its input leaves the device's format, or that it stands for an op
            that the chip does not have and gives other numbers.
        macs: Multiply-accumulates of convolutions and matrix products; 0 for everything else.
        share: Of all multiply-accumulates of the pass, 0 to 1.
    """

    where: str
    op: str
    runs_as: str
    reason: str
    macs: int
    share: float

    @property
    def percent(self) -> float:
        """The share in percent."""
        return 100.0 * self.share


@dataclass(frozen=True, repr=False)
class Coverage(Result):
    """The ops of one forward pass, in the order of execution."""

    ops: tuple[OpRecord, ...]

    _columns, _row_type, _fact_names = _COLUMNS, CoverageRow, ("macs", "integer_share")

    def _rows(self) -> tuple[CoverageRow, ...]:
        return self.table()

    @property
    def float_ops(self) -> tuple[OpRecord, ...]:
        """What stayed float."""
        return tuple(o for o in self.ops if not o.is_integer)

    @property
    def integer_ops(self) -> tuple[OpRecord, ...]:
        """What runs as integers."""
        return tuple(o for o in self.ops if o.is_integer)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the pass: those of convolutions and matrix products, integer or float."""
        return sum(o.macs for o in self.ops)

    @property
    def integer_share(self) -> float:
        """Share of the multiply-accumulates that run as integers, 0 to 1; 1 where there are none at all."""
        return sum(o.macs for o in self.integer_ops) / self.macs if self.macs else 1.0

    def rows(self) -> list[tuple[str, str, str, str, int, float]]:
        """(where, op, integer or float, reason, MACs, share of the MACs), in the order of execution."""
        return [(r.where, r.op, r.runs_as, r.reason, r.macs, r.share) for r in self.table()]

    def table(self) -> tuple[CoverageRow, ...]:
        """The rows with names."""
        total = self.macs or 1
        kinds = {True: "integer", False: "float"}
        return tuple(
            CoverageRow(o.where, o.op, kinds[o.is_integer], o.reason, o.macs, o.macs / total) for o in self.ops
        )

    def summary(self) -> str:
        """The result in one line."""
        counts = f"{len(self.integer_ops)} ops as integers, {len(self.float_ops)} in float"
        return f"{counts}; {_percent(self.integer_share)} of the multiplications as integers" if self.macs else counts

    def __str__(self) -> str:
        lines = [self.summary()]
        for row in self.table():
            if row.runs_as == "integer" and row.reason:
                lines.append(f"  {row.where or 'model'}: {row.op}: {row.reason}")
            elif row.runs_as == "float":
                share = f" ({_percent(row.share)} of the multiplications)" if row.macs else ""
                lines.append(f"  {row.where or 'model'}: {row.op} stays float{share}: {row.reason}")
        return "\n".join(lines)


def _percent(share: float) -> str:
    """One decimal, rounded down: only the whole is 100 %, and only nothing is 0 %."""
    if 0 < share < 0.001:
        return "less than 0.1 %"
    return "100 %" if share == 1.0 else f"{math.floor(share * 1000) / 10:.1f} %"


def coverage(model: nn.Module) -> Coverage:
    """What a quantised model computes as integers, and what it does not, with the reasons and the share of the work.

    Describes the last calibration pass, which sees every op; if the model was never calibrated, the last forward pass,
    which does not see float ops that no quantised tensor reaches.

    Raises:
        UsageError: The model is not quantised, or has not run yet.
    """
    runtime = runtime_of(model)
    if runtime is None:
        raise UsageError("coverage: this model is not quantised. Call linger.init(model) first.")
    if not runtime.ops:
        raise UsageError("coverage: the model has not run yet. Run one forward pass first.")
    judged = (op if op.judged is None else op._replace(reason=op.judged(), judged=None) for op in runtime.ops)
    return Coverage(tuple(judged))
