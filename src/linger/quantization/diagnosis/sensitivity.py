# SPDX-License-Identifier: Apache-2.0
"""sensitivity: which layers lose the most when they are quantized, and which of them need 16 bits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from torch import nn

from linger.analysis.batches import as_batches
from linger.constraint.limits import Widths
from linger.errors import UsageError, no_module
from linger.notation import MIXED, as_width, read_bits
from linger.progress import progress
from linger.quantization.core.observation import is_calibrating
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.diagnosis.call_watch import decibels
from linger.quantization.diagnosis.noise_bench import (
    ACTIVATIONS,
    BOTH,
    WEIGHTS,
    WIDE_BITS,
    FunctionFacts,
    LayerFacts,
    Measurements,
    NoiseBench,
    Trial,
    fingerprint,
    open_measurements,
)
from linger.quantization.setup.marking import checked_widths
from linger.records.table import Column, Result, bars_html

_MOST = 3.0
"""Weights or activations are named alone where their noise is so many times the other's."""

_COLUMNS = (
    Column("name", "layer"),
    Column("op", "op"),
    Column("widths", "bits"),
    Column("what", "noise of"),
    Column("sqnr_db", "SQNR dB", "{:.1f}"),
    Column("weights_db", "weights dB", "{:.1f}"),
    Column("activations_db", "activations dB", "{:.1f}"),
    Column("noise_share", "noise", "{:.1%}"),
    Column("parameters", "parameters", "{:,}"),
    Column("macs", "MACs", "{:,}"),
)


_FIRST = "linger.tune(model, data) tries every remedy that needs no labels. One by one: "
_LAST = "linger.find_bits(model, reference, data, goal=…) widens the fewest tensors."
_REMEDIES = {
    WEIGHTS: f"{_FIRST}linger.equalize before init; linger.calibration(weights='mse'), linger.correct_biases and "
    f"linger.round_weights after it; {_LAST}",
    ACTIVATIONS: f"{_FIRST}linger.equalize before init; linger.calibration(method='mse') and linger.choose_exponents after "
    f"it; {_LAST}",
    BOTH: f"{_FIRST}linger.equalize before init; linger.calibration(method='mse'), linger.correct_biases and "
    f"linger.choose_exponents after it; {_LAST}",
}


@dataclass(frozen=True)
class SensitivityRow:
    """One layer or function, quantized while everything else is float.

    Attributes:
        name: Its path in the model, "" if the layer is the whole model; of a function, the module's path and the op.
        op: The op that `linger.init` makes of it.
        widths: Bits of a layer's input, parameters and output, `8/8/8`; of a function's result, `8`.
        sqnr_db: 10·log10(Σ f²/Σ (f − q)²) at the model's output; ∞ if the output does not change.
        noise_share: Its part of the noise that all layers and functions make one by one, from 0 to 1.
        parameters: Numbers in its weights and bias.
        macs: Products that it computes for the first batch.
        what: What makes the noise: `weights`, `activations` (its output, and its input where it quantizes that itself), or
            `both`.
        weights_db, activations_db: The same ratio with only these as integers; None where there is nothing to tell apart.
    """

    name: str
    op: str
    widths: str
    sqnr_db: float
    noise_share: float
    parameters: int
    macs: int
    what: str = BOTH
    weights_db: float | None = None
    activations_db: float | None = None


@dataclass(frozen=True)
class Sensitivity(Result):
    """How much each layer's and function's quantization costs at the output of the model, the most damaging first.

    Attributes:
        rows: The layers and functions.
        bits: Width of the layers that `quant_module` has not marked; "w4a8" where weights have another.
        quantised_db: SQNR of the model with all layers quantized.
        target_db: The SQNR asked for.
        wide_layers: Layers that 16 bits were given to, most damaging first.
        reached_db: SQNR measured with these at 16 bits: at least the target, or the best there is. None without a target.
        lines: Python lines that choose the measured widths for a later `linger.init(model)`.
        predicted_db: What the noises of the rows, added up, predict for all layers quantized; compare `quantised_db`.
    """

    rows: tuple[SensitivityRow, ...]
    bits: int | str
    quantised_db: float
    target_db: float | None = None
    wide_layers: tuple[str, ...] = ()
    reached_db: float | None = None
    lines: tuple[str, ...] = ()
    predicted_db: float | None = None

    _columns, _row_type = _COLUMNS, SensitivityRow
    _fact_names = (
        *("bits", "quantised_db", "predicted_db", "remedy", "target_db", "is_reached", "reached_db", "wide_layers"),
        "lines",
    )

    @property
    def is_reached(self) -> bool:
        """Whether the target was measured; without a target there is nothing to miss."""
        return self.target_db is None or (self.reached_db is not None and self.reached_db >= self.target_db)

    def summary(self) -> str:
        """The result in one line."""
        worst = self.rows[0]
        unit = " bits" if isinstance(self.bits, int) else ""
        which = "" if worst.what == BOTH else f", {worst.what}"
        text = (
            f"{len(self.rows)} layers, {self.quantised_db:.1f} dB with all at {self.bits}{unit}"
            + ("" if self.predicted_db is None else f" ({self.predicted_db:.1f} dB predicted by their sum)")
            + f"; most damaging: {worst.name or 'the model'} ({worst.noise_share:.0%} of the noise{which})"
        )
        if self.target_db is None or self.reached_db is None:
            return text
        wide = f"{len(self.wide_layers)} of them raised to 16 bits"
        if self.is_reached:
            return f"{text}; {self.target_db:.1f} dB reached with {wide}: {self.reached_db:.1f} dB"
        return f"{text}; {self.target_db:.1f} dB cannot be reached: {self.reached_db:.1f} dB with {wide} is the best"

    @property
    def remedy(self) -> str:
        """What to do about the most damaging row, without labels and without more bits first."""
        worst = self.rows[0]
        return f"{worst.name or 'the model'}: {_REMEDIES[worst.what]}"

    def __repr__(self) -> str:
        result = f"{self.quantised_db:.1f} dB" if self.target_db is None else f"{len(self.wide_layers)} need 16 bits"
        return f"Sensitivity({len(self.rows)} layers, {result})"

    def _notes(self) -> list[str]:
        return [self.remedy, *self.lines]

    def _image(self) -> str:
        shares = [100.0 * row.noise_share for row in self.rows]
        return bars_html([row.name for row in self.rows], shares, "% of the noise", low_is_bad=False)


def sensitivity(
    model: nn.Module,
    inputs: object,
    *,
    bits: int | str = 8,
    target_db: float | None = None,
    save_path: str | Path | None = None,
) -> Sensitivity:
    """Rank the layers and functions of a float model by the noise that quantizing each of them puts on the output.

    One layer at a time becomes integers (weights, output, and input where it quantizes that itself), is calibrated on the
    inputs and run on them, while everything else stays float; then its weights alone, and its activations alone. Of a function
    (a sum, a softmax) the results are rounded. The noise is compared with the float model's output. Layers are those that
    `linger.init` would quantize; the marks of `disable_quant` and `quant_module` hold. The model is not changed.

    Args:
        model: A float model, as it is or after `trace_layers`.
        inputs: The arguments of a pass, or an iterable of such (page "Inputs"). All of it is kept in memory.
        bits: Width of every layer's input, parameters and output, or as in "w4a8", unless `quant_module` chose others.
        target_db: SQNR that the fully quantized model should reach. Layers get 16 bits, the most damaging first:
            as many as the sum of the single noises asks for, then, measured on the whole model, one more at a time.
        save_path: JSON file that every finished measurement is written to. A later call with the same model, inputs
            and bits goes on from there.

    Returns:
        The rows, the SQNR of the whole model, and with a target the layers that need 16 bits.

    Raises:
        UsageError: The model is quantized already or has no layer to quantize, there are no inputs, a width does not
            exist, or the file is damaged or belongs to something else (it is left as it is).
    """
    _check(model, target_db)
    widths = _widths(bits)
    with torch.random.fork_rng():  # also for inputs that shuffle themselves
        batches = list(as_batches(model, inputs, "sensitivity"))
        if not batches:
            raise UsageError("sensitivity: the inputs are empty. Give at least one batch.")
        bench = NoiseBench(model, batches, widths)
        if not bench.layers:
            raise UsageError(
                f"sensitivity: linger.init would quantize no layer of {type(model).__name__}. "
                "Check what linger.disable_quant was called with, and the layer types that linger supports."
            )
        key = "" if save_path is None else fingerprint(model, batches, widths, bench.layers)
        measured = open_measurements(save_path, key, bench.layers)
        narrow = _together(bench, measured, ())
        _measure(bench, measured, narrow)
        noises = _noises(measured)
        wide, reached = ((), None) if target_db is None else _widen(bench, measured, target_db)
    return Sensitivity(
        rows=_rows(noises, bench, measured, narrow),
        bits=widths.data if widths.data == widths.parameter else f"w{widths.parameter}a{widths.data}",
        quantised_db=narrow.powers.db,
        target_db=None if target_db is None else float(target_db),
        wide_layers=wide,
        reached_db=reached,
        lines=() if target_db is None else _lines(bench, wide),
        predicted_db=decibels(narrow.powers.signal, sum(noises.values())),
    )


def _widths(bits: int | str) -> Widths:
    """The widths of all layers: 4, 8 or 16, or other ones for weights."""
    width = as_width(bits)
    if not isinstance(width, str):
        return checked_widths(width, width, width)
    if width.strip().lower() == MIXED:
        raise UsageError(
            f'sensitivity: bits={bits!r}: every layer is measured at the same widths. Use 4, 8, 16 or "w4a8" here, and '
            'linger.tune(model, data, bits="mixed") for mixed widths.'
        )
    read = read_bits(width, "sensitivity")
    return Widths(read.data, read.weights, read.data)


def _check(model: object, target_db: object) -> None:
    if not isinstance(model, nn.Module):
        raise no_module("sensitivity", model)
    if any(isinstance(module, QuantizedBase) for module in model.modules()):
        raise UsageError("sensitivity: this model is quantized already. Give the float model, before linger.init.")
    if is_calibrating():
        raise UsageError("sensitivity: call it outside `with linger.calibration():`, it calibrates by itself.")
    is_number = isinstance(target_db, (int, float)) and not isinstance(target_db, bool) and math.isfinite(target_db)
    if target_db is not None and not is_number:
        raise UsageError(f"sensitivity: target_db={target_db!r} is no number of decibels. Give for example 30.0.")


def _measure(bench: NoiseBench, measured: Measurements, narrow: Trial) -> None:
    """Every layer, its weights, its activations and every function alone, as far as the file has not got them."""
    missing = [job for job in _jobs(bench, narrow) if job[1] not in measured.of(job[0])]
    for kind, name, function in progress(missing, "sensitivity"):
        if function is not None:
            powers = bench.function(function)
        else:
            powers = bench.alone(name, BOTH if kind == "alone" else kind, has_own_input=name in narrow.own_inputs)
        measured.add(kind, name, powers)


def _jobs(bench: NoiseBench, narrow: Trial) -> Iterator[tuple[str, str, FunctionFacts | None]]:
    """The measurements: of what kind, the layer's or function's name, and the function that stands for it, if one does.

    A layer without weights that reads what others rounded is its result: that is as wide as what it reads.
    """
    by_layer = {facts.layer: facts for facts in narrow.functions.values() if facts.layer}
    for path, layer in bench.layers.items():
        yield "alone", path, None if path in narrow.own_inputs else by_layer.get(path)
        if layer.parameters and layer.wide != layer.widths:
            yield from ((kind, path, None) for kind in (WEIGHTS, ACTIVATIONS))
    yield from (("functions", name, facts) for name, facts in narrow.functions.items() if not facts.layer)


def _noises(measured: Measurements) -> dict[tuple[str, str], float]:
    """The noise of every row, by the kind of the measurement and the name."""
    kinds = ("alone", "functions")
    return {(kind, name): powers.noise for kind in kinds for name, powers in measured.of(kind).items()}


def _together(bench: NoiseBench, measured: Measurements, wide: tuple[str, ...]) -> Trial:
    if wide not in measured.together:
        measured.add_together(wide, bench.together(wide))
    return measured.together[wide]


def _widen(bench: NoiseBench, measured: Measurements, target_db: float) -> tuple[tuple[str, ...], float]:
    """The layers to give 16 bits, and the SQNR measured with them; the best there is if the target is out of reach."""
    ranked = sorted(bench.layers, key=lambda path: -measured.alone[path].noise)
    candidates = [path for path in ranked if bench.layers[path].wide != bench.layers[path].widths]
    best: tuple[str, ...] = ()
    best_db = _together(bench, measured, ()).powers.db
    if best_db >= target_db or not candidates:
        return best, best_db
    first = _predicted_count(bench, measured, candidates, target_db)
    for count in progress(range(first, len(candidates) + 1), f"sensitivity: {WIDE_BITS} bits"):
        wide = tuple(candidates[:count])
        db = _together(bench, measured, wide).powers.db
        if db > best_db:
            best, best_db = wide, db
        if db >= target_db:
            break
    return best, best_db


def _predicted_count(bench: NoiseBench, measured: Measurements, candidates: Sequence[str], target_db: float) -> int:
    """How many layers must be wide if noises simply add up, at least one; each bit more quarters a noise."""
    noises = _noises(measured)
    signal = max(powers.signal for powers in measured.alone.values())
    for count, path in enumerate(candidates, start=1):
        noises["alone", path] *= 4.0 ** -(WIDE_BITS - min(astuple(bench.layers[path].widths)))
        if decibels(signal, sum(noises.values())) >= target_db:
            return count
    return len(candidates)


def _rows(
    noises: dict[tuple[str, str], float], bench: NoiseBench, measured: Measurements, narrow: Trial
) -> tuple[SensitivityRow, ...]:
    ranked, rows = sorted(noises, key=lambda key: -noises[key]), []
    if math.inf in noises.values():  # an infinite noise leaves nothing to the finite ones
        noises = {key: float(noise == math.inf) for key, noise in noises.items()}
    total = sum(noises[key] for key in ranked)
    for kind, name in ranked:
        share = noises[kind, name] / total if total else 0.0
        if kind == "alone":
            rows.append(_layer_row(bench.layers[name], share, measured, narrow))
        else:
            facts, db = narrow.functions[name], measured.functions[name].db
            rows.append(SensitivityRow(name, facts.op, str(facts.bits), db, share, 0, facts.macs, ACTIVATIONS))
    return tuple(rows)


def _layer_row(layer: LayerFacts, share: float, measured: Measurements, narrow: Trial) -> SensitivityRow:
    path, what = layer.path, BOTH if layer.parameters else ACTIVATIONS
    weights, activations = measured.weights.get(path), measured.activations.get(path)
    facts = (path, layer.op, str(layer.widths), measured.alone[path].db, share, layer.parameters, narrow.macs[path])
    if weights is None or activations is None:
        return SensitivityRow(*facts, what)
    if layer.parameters and weights.noise != activations.noise:
        if weights.noise >= _MOST * activations.noise:
            what = WEIGHTS
        elif activations.noise >= _MOST * weights.noise:
            what = ACTIVATIONS
    return SensitivityRow(*facts, what, weights.db, activations.db)


def _lines(bench: NoiseBench, wide: Sequence[str]) -> tuple[str, ...]:
    """The calls before `init` that make it build the model that was measured; wide layers first."""
    lines = []
    for path in (*wide, *(path for path in bench.layers if path not in wide)):
        layer = bench.layers[path]
        widths = layer.wide if path in wide else layer.widths
        if widths != layer.by_itself:
            lines.append(
                f"linger.quant_module(model.get_submodule({json.dumps(path, ensure_ascii=False)}), "
                f"data_bits={widths.data}, parameter_bits={widths.parameter}, out_bits={widths.output})"
            )
    return tuple(lines)
