# SPDX-License-Identifier: Apache-2.0
"""The result of a search for bit widths, as people and programs read it."""

from __future__ import annotations

from dataclasses import dataclass

from linger.records.table import Column, Result
from linger.tuning.mixed_precision.units import Cost
from linger.tuning.remedy import Change

_COLUMNS = (
    Column("name", "layer"),
    Column("op", "op"),
    Column("what", "what"),
    Column("before", "before", "{} bits"),
    Column("after", "after", "{} bits"),
    Column("alone_db", "alone", "{:.1f} dB"),
    Column("noise_share", "noise", "{:.1%}"),
    Column("numbers", "numbers", "{:,}"),
    Column("macs", "MACs", "{:,}"),
)


@dataclass(frozen=True)
class BitRow:
    """One tensor.

    Attributes:
        name: Path of the layer or function.
        op: Its op.
        what: `weights` or `activations`.
        before, after: Its width.
        alone_db: Signal to noise at the output with only this tensor as narrow as it was; None where a group of tensors
            was found harmless and its members were not measured one by one.
        noise_share: Its part of the noise of all tensors one by one.
        numbers: How many numbers it holds; of activations for the first batch.
        macs: Products of the first batch that read it.
    """

    name: str
    op: str
    what: str
    before: int
    after: int
    alone_db: float | None
    noise_share: float
    numbers: int
    macs: int


@dataclass(frozen=True)
class BitWidths(Result):
    """The widths that `find_bits` chose.

    Attributes:
        goal: What was asked for.
        before, after: The figure of the goal.
        is_reached: Whether the goal was measured with the widths chosen.
        before_db, after_db: Signal to noise at the outputs on the data given.
        predicted_db: What the noises of the single tensors, added up, predict for the model as it was.
        rows: Every tensor, the noisiest first.
        cost_before, cost_after: Bytes and products.
        trials: Models that were measured.
        lines: Calls that choose the same widths for a later `linger.init(model)`.
    """

    goal: str
    before: float
    after: float
    is_reached: bool
    before_db: float
    after_db: float
    predicted_db: float
    rows: tuple[BitRow, ...]
    cost_before: Cost
    cost_after: Cost
    trials: int
    lines: tuple[str, ...] = ()
    name: str = "find_bits"

    _columns, _row_type = _COLUMNS, BitRow

    @property
    def changed(self) -> tuple[BitRow, ...]:
        """The tensors that got another width."""
        return tuple(row for row in self.rows if row.before != row.after)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The same, as every remedy lists its changes."""
        return tuple(Change(row.name, f"bits of {row.what}", row.before, row.after) for row in self.changed)

    def summary(self) -> str:
        """The result in one line."""
        wide = [row for row in self.changed if row.after > row.before]
        narrow = len(self.changed) - len(wide)
        text = f"{self.goal} {'reached' if self.is_reached else 'cannot be reached; the best there is'}: "
        text += f"{self.before:.4g} before, {self.after:.4g} after ({self.before_db:.1f} → {self.after_db:.1f} dB); "
        weights = sum(row.what == "weights" for row in wide)
        text += f"{weights} weights and {len(wide) - weights} activations widened"
        text += f", {narrow} narrowed" if narrow else ""
        before, after = self.cost_before, self.cost_after
        return (
            f"{text}; weights {before.weight_bytes:,} → {after.weight_bytes:,} bytes, activations "
            f"{before.activation_bytes:,} → {after.activation_bytes:,}, {_share(after)} of the products wide; "
            f"{self.trials} trials"
        )

    def _notes(self) -> tuple[str, ...]:
        return self.lines

    def __repr__(self) -> str:
        state = "reached" if self.is_reached else "not reached"
        return f"BitWidths({self.goal} {state}, {len(self.changed)} of {len(self.rows)} tensors changed)"


def _share(cost: Cost) -> str:
    return f"{cost.wide_macs / cost.macs:.0%}" if cost.macs else "0%"
