# SPDX-License-Identifier: Apache-2.0
"""What a sensitivity run found: a row per layer, and which layers need 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from linger.analysis.result_table import Column, to_csv, to_json, to_rich, to_text

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    Column("name", "layer"),
    Column("op", "op"),
    Column("widths", "bits"),
    Column("sqnr_db", "SQNR dB", "{:.1f}"),
    Column("noise_share", "noise", "{:.1%}"),
    Column("parameters", "parameters", "{:,}"),
    Column("macs", "MACs", "{:,}"),
)


@dataclass(frozen=True)
class SensitivityRow:
    """One layer, quantised while everything else is float.

    Attributes:
        name: Its path in the model; "" if the layer is the whole model.
        op: The op that `linger.init` makes of it.
        widths: Bits of its input, parameters and output, `8/8/8`.
        sqnr_db: 10·log10(Σ f²/Σ (f − q)²) at the model's output; ∞ if the output does not change.
        noise_share: Its part of the noise that all layers make one by one, from 0 to 1.
        parameters: Numbers in its weights and bias.
        macs: Products that it computes for the first batch.
    """

    name: str
    op: str
    widths: str
    sqnr_db: float
    noise_share: float
    parameters: int
    macs: int


@dataclass(frozen=True)
class Sensitivity:
    """How much each layer's quantisation costs at the output of the model, most damaging layer first.

    Attributes:
        rows: The layers.
        bits: Width of the layers that `quant_module` has not marked.
        quantised_db: SQNR of the model with all layers quantised.
        target_db: The SQNR asked for.
        wide_layers: Layers that 16 bits were given to, most damaging first.
        reached_db: SQNR measured with these at 16 bits: at least the target, or the best there is. None without a target.
        lines: Python lines that choose the measured widths for a later `linger.init(model)`.
    """

    rows: tuple[SensitivityRow, ...]
    bits: int
    quantised_db: float
    target_db: float | None = None
    wide_layers: tuple[str, ...] = ()
    reached_db: float | None = None
    lines: tuple[str, ...] = ()

    @property
    def is_reached(self) -> bool:
        """Whether the target was measured; without a target there is nothing to miss."""
        return self.target_db is None or (self.reached_db is not None and self.reached_db >= self.target_db)

    def summary(self) -> str:
        """The result in one line."""
        worst = self.rows[0]
        text = f"{len(self.rows)} layers, {self.quantised_db:.1f} dB with all at {self.bits} bits"
        text += f"; most damaging: {worst.name or 'the model'} ({worst.noise_share:.0%} of the noise)"
        if self.target_db is None or self.reached_db is None:
            return text
        wide = f"{len(self.wide_layers)} of them raised to 16 bits"
        if self.is_reached:
            return f"{text}; {self.target_db:.1f} dB reached with {wide}: {self.reached_db:.1f} dB"
        return f"{text}; {self.target_db:.1f} dB cannot be reached: {self.reached_db:.1f} dB with {wide} is the best"

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON text, also written to `path` if one is given; infinity is "inf"."""
        facts = {
            "bits": self.bits,
            "quantised_db": self.quantised_db,
            "target_db": self.target_db,
            "is_reached": self.is_reached,
            "reached_db": self.reached_db,
            "wide_layers": self.wide_layers,
            "lines": self.lines,
        }
        return to_json(facts, self.rows, path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The rows as CSV text, also written to `path` if one is given."""
        return to_csv(SensitivityRow, self.rows, path)

    def __str__(self) -> str:
        return "\n".join([self.summary(), to_text(_COLUMNS, self.rows), *self.lines])

    def __rich__(self) -> Table:
        return to_rich(self.summary(), _COLUMNS, self.rows)
