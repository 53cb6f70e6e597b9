# SPDX-License-Identifier: Apache-2.0
"""sensitivity: which layers lose the most when they are quantised, and which of them need 16 bits."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from linger.analysis.batches import Batch, as_batches
from linger.analysis.result_table import Column, to_csv, to_json, to_rich, to_text, written
from linger.constraint.marks import Widths
from linger.errors import UsageError
from linger.progress import progress
from linger.quantization.core.calibrate import is_calibrating
from linger.quantization.core.statistics import QuantizedBase
from linger.quantization.diagnosis.noise_bench import WIDE_BITS, LayerFacts, NoiseBench, Trial
from linger.quantization.diagnosis.signal_noise import SignalNoise, decibels
from linger.quantization.setup.marking import checked_widths

if TYPE_CHECKING:
    from rich.table import Table


_KIND = "linger sensitivity, measurements so far"

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

    def __repr__(self) -> str:
        result = f"{self.quantised_db:.1f} dB" if self.target_db is None else f"{len(self.wide_layers)} need 16 bits"
        return f"Sensitivity({len(self.rows)} layers, {result})"

    def __str__(self) -> str:
        return "\n".join([self.summary(), to_text(_COLUMNS, self.rows), *self.lines])

    def __rich__(self) -> Table:
        return to_rich(self.summary(), _COLUMNS, self.rows)


def sensitivity(
    model: nn.Module,
    inputs: object,
    *,
    bits: int = 8,
    target_db: float | None = None,
    save_path: str | Path | None = None,
) -> Sensitivity:
    """Rank the layers of a float model by the noise that quantising each of them puts on the output.

    One layer at a time becomes integers (weights, input and output), is calibrated on the inputs and run on them,
    while everything else stays float; the noise is compared with the float model's output. Layers are those that
    `linger.init` would quantise; the marks of `disable_quant` and `quant_module` hold. The model is not changed.

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


def _check(model: object, target_db: object) -> None:
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
        noises[path] *= 4.0 ** -(WIDE_BITS - min(astuple(bench.layers[path].widths)))
        if decibels(signal, sum(noises.values())) >= target_db:
            return count
    return len(candidates)


def _rows(ranked: Sequence[str], bench: NoiseBench, found: Measurements, narrow: Trial) -> tuple[SensitivityRow, ...]:
    shares = _shares([found.alone[path].noise for path in ranked])
    return tuple(
        SensitivityRow(
            name=path,
            op=bench.layers[path].op,
            widths=str(bench.layers[path].widths),
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
    """The calls before `init` that make it build the model that was measured; wide layers first."""
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


@dataclass
class Measurements:
    """What has been measured, by layer and by set of wide layers; every addition is written to the file, if any."""

    fingerprint: str
    path: Path | None = None
    alone: dict[str, SignalNoise] = field(default_factory=dict)
    together: dict[tuple[str, ...], Trial] = field(default_factory=dict)

    @property
    def layers(self) -> set[str]:
        """The names of all layers that a measurement mentions."""
        measured = [name for wide, trial in self.together.items() for name in (*wide, *trial.macs)]
        return {*self.alone, *measured}

    def add_alone(self, name: str, powers: SignalNoise) -> None:
        """Remember one layer."""
        self.alone[name] = powers
        self.save()

    def add_together(self, wide: tuple[str, ...], trial: Trial) -> None:
        """Remember the whole model with these layers at 16 bits."""
        self.together[wide] = trial
        self.save()

    def save(self) -> None:
        """Write the file, all or nothing."""
        if self.path is None:
            return
        content = {
            "kind": _KIND,
            "fingerprint": self.fingerprint,
            "alone": {name: _pair(powers) for name, powers in self.alone.items()},
            "together": [
                {"wide": list(wide), "powers": _pair(trial.powers), "macs": trial.macs}
                for wide, trial in self.together.items()
            ],
        }
        written(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", self.path)


def open_measurements(path: str | Path | None, fingerprint: str, names: Iterable[str]) -> Measurements:
    """The measurements in the file of an earlier run; none if there is no file yet.

    Raises:
        UsageError: The file is damaged, or belongs to another model, other inputs or other widths. It stays untouched.
    """
    if path is None:
        return Measurements(fingerprint)
    place = Path(path)
    if not place.exists():
        made = Measurements(fingerprint, place)
        made.save()  # a folder that does not exist is better found now than after the first layer
        return made
    if not place.is_file():
        raise UsageError(f"{place}: measurements are read again, and this is no file. Give the name of a file.")
    try:
        return _parsed(json.loads(place.read_bytes()), place, fingerprint, frozenset(names))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{place}: the file cannot be read ({error.strerror or error}).") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"{place}: this is no file of an earlier sensitivity run, or it is damaged ({type(error).__name__}: {error}). "
            "It was left as it is. Give another save_path, or remove the file to start anew."
        ) from error


def _parsed(content: dict[str, Any], place: Path, fingerprint: str, names: frozenset[str]) -> Measurements:
    if content["kind"] != _KIND:
        raise ValueError(f"kind {content['kind']!r}")
    if content["fingerprint"] != fingerprint:
        raise UsageError(
            f"{place}: this file belongs to another model, other inputs, other bits or another version of linger. "
            "It was left as it is. Give another save_path, or remove the file to start anew."
        )
    alone = {name: _powers(pair) for name, pair in content["alone"].items()}
    together = {
        tuple(trial["wide"]): Trial(_powers(trial["powers"]), {name: int(n) for name, n in trial["macs"].items()})
        for trial in content["together"]
    }
    measurements = Measurements(fingerprint, place, alone, together)
    strange = measurements.layers - names
    if strange:
        raise ValueError(f"unknown layers {sorted(strange)}")
    return measurements


def _pair(powers: SignalNoise) -> list[str]:
    """Both powers, exactly, infinite ones too."""
    return [powers.signal.hex(), powers.noise.hex()]


def _powers(pair: Sequence[str]) -> SignalNoise:
    signal, noise = (float.fromhex(text) for text in pair)
    if not (signal >= 0 and noise >= 0):
        raise ValueError(f"powers {pair}")
    return SignalNoise(signal, noise)


def fingerprint(model: nn.Module, batches: Sequence[Batch], bits: int, layers: Mapping[str, LayerFacts]) -> str:
    """A number that differs for another model, other inputs, other widths or another linger.

    It does not see the code of `forward`.
    """
    digest = hashlib.sha256(repr((_KIND, _version(), bits, list(layers.values()))).encode())
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            digest.update(f"{kind} {name} ".encode())
            _take(digest, tensor)
    for batch in batches:
        digest.update(b"batch ")
        for leaf in tree_leaves(batch):
            _take(digest, leaf.data if isinstance(leaf, PackedSequence) else leaf)
    return digest.hexdigest()


def _version() -> str:
    try:
        return importlib.metadata.version("linger")
    except importlib.metadata.PackageNotFoundError:  # run from a folder of sources
        return "unknown"


def _take(digest: hashlib._Hash, value: object) -> None:
    """Count a tensor's type, shape and bits, a plain value, or the type of anything else."""
    if not isinstance(value, Tensor):
        is_plain = value is None or isinstance(value, (bool, int, float, complex, str, bytes))
        digest.update((repr(value) if is_plain else type(value).__qualname__).encode() + b" ")
        return
    plain = value.detach().cpu()
    plain = plain if plain.layout is torch.strided else plain.to_dense()
    digest.update(f"{plain.dtype} {tuple(plain.shape)} ".encode())
    digest.update(plain.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().data)
