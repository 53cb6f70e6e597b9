# SPDX-License-Identifier: Apache-2.0
"""sensitivity: which layers lose the most when they are quantised, and which of them need 16 bits."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from linger.analysis.batches import as_batches
from linger.constraint.marks import Widths
from linger.errors import UsageError
from linger.progress import progress
from linger.quantization.core.calibrate import is_calibrating
from linger.quantization.core.statistics import QuantizedBase
from linger.quantization.diagnosis.noise_bench import WIDE_BITS, LayerFacts, NoiseBench, Trial
from linger.quantization.diagnosis.sensitivity_file import Measurements, fingerprint, open_measurements
from linger.quantization.diagnosis.sensitivity_result import Sensitivity, SensitivityRow
from linger.quantization.diagnosis.signal_noise import decibels
from linger.quantization.setup.marking import checked_widths


def sensitivity(
    model: nn.Module,
    inputs: Any,
    *,
    bits: int = 8,
    target_db: float | None = None,
    save_path: str | Path | None = None,
) -> Sensitivity:
    """Rank the layers of a float model by the noise that quantising each of them puts on the output.

    One layer at a time becomes integers (weights, input and output), is calibrated on the inputs and run on them,
    while everything else stays float; the noise is compared with the float model's output. Layers are those that
    `linger.init` would quantise; what `disable_quant` and `quant_module` were told holds. The model is not changed.

    Args:
        model: A float model, as it is or after `trace_layers`.
        inputs: A tensor, a tuple of arguments, or an iterable of either. All of it is kept in memory.
        bits: Width of every layer's input, parameters and output, unless `quant_module` chose others.
        target_db: SQNR that the fully quantised model should reach. Layers get 16 bits, the most damaging first:
            as many as the sum of the single noises asks for, then, measured on the whole model, one more at a time.
        save_path: JSON file that every finished measurement is written to. A later call with the same model, inputs
            and bits goes on from there.

    Returns:
        The rows, the SQNR of the whole model, and with a target the layers that need 16 bits.

    Raises:
        UsageError: The model is quantised already or has no layer to quantise, there are no inputs, a width does not
            exist, or the file is damaged or belongs to something else (it is left as it is).
    """
    _check(model, target_db)
    checked_widths(bits, bits, bits)
    with torch.random.fork_rng():  # also for inputs that shuffle themselves
        batches = list(as_batches(inputs))
        if not batches:
            raise UsageError("sensitivity: the inputs are empty. Give at least one batch.")
        bench = NoiseBench(model, batches, bits)
        if not bench.layers:
            raise UsageError(
                f"sensitivity: linger.init would quantise no layer of {type(model).__name__}. "
                "Check what linger.disable_quant was called with, and the layer types that linger supports."
            )
        key = "" if save_path is None else fingerprint(model, batches, bits, bench.layers)
        found = open_measurements(save_path, key, bench.layers)
        for path in progress([path for path in bench.layers if path not in found.alone], "sensitivity"):
            found.add_alone(path, bench.alone(path))
        ranked = sorted(bench.layers, key=lambda path: -found.alone[path].noise)
        narrow = _together(bench, found, ())
        wide: Sequence[str] = ()
        reached = None
        if target_db is not None:
            wide, reached = _widen(bench, found, ranked, target_db)
    return Sensitivity(
        rows=_rows(ranked, bench, found, narrow),
        bits=bits,
        quantised_db=narrow.powers.db,
        target_db=None if target_db is None else float(target_db),
        wide_layers=tuple(wide),
        reached_db=reached,
        lines=() if target_db is None else _lines(bench, wide),
    )


def _check(model: Any, target_db: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"sensitivity: a torch module is expected, not {type(model).__name__}.")
    if any(isinstance(module, QuantizedBase) for module in model.modules()):
        raise UsageError("sensitivity: this model is quantised already. Give the float model, before linger.init.")
    if is_calibrating():
        raise UsageError("sensitivity: call it outside `with linger.calibration():`, it calibrates by itself.")
    is_number = isinstance(target_db, (int, float)) and not isinstance(target_db, bool) and math.isfinite(target_db)
    if target_db is not None and not is_number:
        raise UsageError(f"sensitivity: target_db={target_db!r} is no number of decibels. Give for example 30.0.")


def _together(bench: NoiseBench, found: Measurements, wide: tuple[str, ...]) -> Trial:
    if wide not in found.together:
        found.add_together(wide, bench.together(wide))
    return found.together[wide]


def _widen(
    bench: NoiseBench, found: Measurements, ranked: Sequence[str], target_db: float
) -> tuple[tuple[str, ...], float]:
    """The layers to give 16 bits, and the SQNR measured with them; the best there is if the target is out of reach."""
    candidates = [path for path in ranked if bench.layers[path].wide != bench.layers[path].widths]
    best: tuple[str, ...] = ()
    best_db = _together(bench, found, ()).powers.db
    if best_db >= target_db or not candidates:
        return best, best_db
    first = _predicted_count(bench, found, candidates, target_db)
    for count in progress(range(first, len(candidates) + 1), f"sensitivity: {WIDE_BITS} bits"):
        wide = tuple(candidates[:count])
        db = _together(bench, found, wide).powers.db
        if db > best_db:
            best, best_db = wide, db
        if db >= target_db:
            break
    return best, best_db


def _predicted_count(bench: NoiseBench, found: Measurements, candidates: Sequence[str], target_db: float) -> int:
    """How many layers must be wide if noises simply add up, at least one; each bit more quarters a noise."""
    noises = {path: powers.noise for path, powers in found.alone.items()}
    signal = max(powers.signal for powers in found.alone.values())
    for count, path in enumerate(candidates, start=1):
        noises[path] *= 4.0 ** -(WIDE_BITS - _narrowest(bench.layers[path].widths))
        if decibels(signal, sum(noises.values())) >= target_db:
            return count
    return len(candidates)


def _narrowest(widths: Widths) -> int:
    return min(widths.data, widths.parameter, widths.output)


def _rows(ranked: Sequence[str], bench: NoiseBench, found: Measurements, narrow: Trial) -> tuple[SensitivityRow, ...]:
    shares = _shares([found.alone[path].noise for path in ranked])
    return tuple(
        SensitivityRow(
            name=path,
            op=bench.layers[path].op,
            widths=_text(bench.layers[path].widths),
            sqnr_db=found.alone[path].db,
            noise_share=share,
            parameters=bench.layers[path].parameters,
            macs=narrow.macs[path],
        )
        for path, share in zip(ranked, shares, strict=True)
    )


def _shares(noises: Sequence[float]) -> list[float]:
    """Parts of the sum; an infinite noise leaves nothing to the finite ones."""
    if math.inf in noises:
        noises = [float(noise == math.inf) for noise in noises]
    total = sum(noises)
    return [noise / total if total else 0.0 for noise in noises]


def _lines(bench: NoiseBench, wide: Sequence[str]) -> tuple[str, ...]:
    """What to tell `init`, so that it makes the model that was measured; wide layers first."""
    order = [*wide, *(path for path in bench.layers if path not in wide)]
    chosen = [
        (bench.layers[path], bench.layers[path].wide if path in wide else bench.layers[path].widths) for path in order
    ]
    return tuple(_line(layer, widths) for layer, widths in chosen if widths != layer.by_itself)


def _line(layer: LayerFacts, widths: Widths) -> str:
    name = json.dumps(layer.path, ensure_ascii=False)
    return (
        f"linger.quant_module(model.get_submodule({name}), "
        f"data_bits={widths.data}, parameter_bits={widths.parameter}, out_bits={widths.output})"
    )


def _text(widths: Widths) -> str:
    return f"{widths.data}/{widths.parameter}/{widths.output}"
