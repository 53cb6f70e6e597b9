# SPDX-License-Identifier: Apache-2.0
"""What a layer-by-layer comparison found: a row per call of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linger.analysis.result_table import Column, to_csv, to_json, to_rich, to_text

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    Column("name", "layer"),
    Column("call", "call", "{:d}"),
    Column("op", "op"),
    Column("input_db", "input dB", "{:.1f}"),
    Column("sqnr_db", "SQNR dB", "{:.1f}"),
    Column("born_db", "born dB", "{:.1f}"),
    Column("passed_db", "passed dB", "{:.1f}"),
    Column("verdict", "error"),
    Column("cosine", "cosine", "{:.6f}"),
    Column("max_lsb", "max LSB", "{:.1f}"),
)


@dataclass(frozen=True)
class LayerRow:
    """One call of one layer. Every number of decibels is a signal-to-noise ratio: small is bad, ∞ is no error.

    Attributes:
        name: The layer's path.
        call: Which of its calls in a forward pass, from 0.
        op: The op it runs as, or the type of a layer that stayed float.
        input_db: What arrives against what arrives in the float model.
        sqnr_db: Its output against the float model's.
        born_db: The error that it makes itself: its output against the float layer on the same, quantised, input.
        passed_db: The error that it hands on: the float layer on the quantised input against that on the float input.
        verdict: "born" or "passed" if that error's power is more than twice the other's, "both" if neither is,
            "none" if both are below float32 rounding.
        cosine: Of the angle between both outputs.
        max_lsb: Largest |f − q|·scale, in units of the last bit; None where the output is float.
    """

    name: str
    call: int
    op: str
    input_db: float
    sqnr_db: float
    born_db: float
    passed_db: float
    verdict: str
    cosine: float
    max_lsb: float | None


@dataclass(frozen=True)
class LayerComparison:
    """A quantised model against its float model, layer by layer in the order of the calls.

    Attributes:
        rows: The layers.
        unmatched: Paths (with their call, from the second on) that ran in one of the models only.
        output_db: SQNR at the output of the model.
    """

    rows: tuple[LayerRow, ...]
    unmatched: tuple[str, ...]
    output_db: float

    def worst(self, n: int = 5) -> tuple[LayerRow, ...]:
        """The rows that are furthest from the float model."""
        return tuple(sorted(self.rows, key=lambda row: row.sqnr_db)[:n])

    def born(self) -> tuple[LayerRow, ...]:
        """The rows where an error is born, alone or besides one that was passed on, largest first."""
        return tuple(sorted((r for r in self.rows if r.verdict in ("born", "both")), key=lambda row: row.born_db))

    def summary(self) -> str:
        """The result in one line."""
        text = f"{self.output_db:.1f} dB at the output, {len(self.rows)} calls of layers"
        born = self.born()
        if born:
            text += f"; most error is born in {born[0].name or 'the model'} ({born[0].born_db:.1f} dB)"
        if self.unmatched:
            text += f"; {len(self.unmatched)} without a counterpart"
        return text

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON text, also written to `path` if one is given; infinity is "inf"."""
        return to_json({"output_db": self.output_db, "unmatched": self.unmatched}, self.rows, path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The rows as CSV text, also written to `path` if one is given."""
        return to_csv(LayerRow, self.rows, path)

    def __str__(self) -> str:
        lines = [self.summary(), to_text(_COLUMNS, self.rows)]
        return "\n".join(lines + [f"without a counterpart: {name}" for name in self.unmatched])

    def __rich__(self) -> Table:
        return to_rich(self.summary(), _COLUMNS, self.rows)
