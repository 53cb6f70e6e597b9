# SPDX-License-Identifier: Apache-2.0
"""The measurements of a sensitivity run, which a file keeps for a later one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from linger.analysis.batches import Batch, values_of
from linger.constraint.limits import Widths
from linger.errors import UsageError, listing
from linger.quantization.diagnosis.noise_bench import FunctionFacts, LayerFacts, SignalNoise, Trial
from linger.records.reading import As, one_of, parse_json, read
from linger.records.table import written
from linger.version import __version__

_KIND = "linger sensitivity, measurements so far"
_FORM = 2
"""Raised whenever the file gets another form; files of an older one are refused as those of another linger."""

_KINDS = ("alone", "weights", "activations", "functions")


_DAMAGED = "this is no file of an earlier sensitivity run, or it is damaged"
_ELSEWHERE = "It was left as it is. Give another save_path, or remove the file to start anew."


def _powers(pair: Sequence[str]) -> SignalNoise:
    signal, noise = (float.fromhex(text) for text in pair)
    if not (signal >= 0 and noise >= 0):
        raise ValueError
    return SignalNoise(signal, noise)


_Powers = Annotated[SignalNoise, As(_powers, "two powers")]


@dataclass(frozen=True)
class _SavedTrial:
    """A `Trial` as the file has it, with the wide layers."""

    wide: tuple[str, ...]
    powers: _Powers
    macs: dict[str, int]
    own_inputs: frozenset[str]
    functions: tuple[FunctionFacts, ...]

    def as_trial(self) -> Trial:
        """The trial."""
        return Trial(self.powers, self.macs, self.own_inputs, {found.name: found for found in self.functions})


@dataclass(frozen=True)
class _Saved:
    """The file."""

    kind: Annotated[str, one_of([_KIND])]
    fingerprint: str
    alone: Mapping[str, _Powers]
    weights: Mapping[str, _Powers]
    activations: Mapping[str, _Powers]
    functions: Mapping[str, _Powers]
    together: tuple[_SavedTrial, ...]


@dataclass
class Measurements:
    """What has been measured; every addition is written to the file, if any.

    Attributes:
        fingerprint: Of the model, the inputs and the widths.
        path: The file.
        alone: Each layer as integers, everything else float.
        weights, activations: Only its weights, only its activations.
        functions: The result of each function.
        together: All layers, by the set of wide ones.
    """

    fingerprint: str
    path: Path | None = None
    alone: dict[str, SignalNoise] = field(default_factory=dict)
    weights: dict[str, SignalNoise] = field(default_factory=dict)
    activations: dict[str, SignalNoise] = field(default_factory=dict)
    functions: dict[str, SignalNoise] = field(default_factory=dict)
    together: dict[tuple[str, ...], Trial] = field(default_factory=dict)

    @property
    def layers(self) -> set[str]:
        """The names of all layers that a measurement mentions."""
        measured = [name for wide, trial in self.together.items() for name in (*wide, *trial.macs)]
        return {*self.alone, *self.weights, *self.activations, *measured}

    def add(self, kind: str, name: str, powers: SignalNoise) -> None:
        """Remember one measurement of a layer (`alone`, `weights`, `activations`) or of one of the `functions`."""
        self._of(kind)[name] = powers
        self.save()

    def has(self, kind: str, name: str) -> bool:
        """Whether something was measured."""
        return name in self._of(kind)

    def _of(self, kind: str) -> dict[str, SignalNoise]:
        by_kind = {
            "alone": self.alone,
            "weights": self.weights,
            "activations": self.activations,
            "functions": self.functions,
        }
        return by_kind[kind]

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
            **{kind: {name: _pair(powers) for name, powers in self._of(kind).items()} for kind in _KINDS},
            "together": [_as_plain(wide, trial) for wide, trial in self.together.items()],
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
        content = parse_json(place.read_bytes())
    except OSError as error:
        raise UsageError(f"{place}: the file cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise UsageError(f"{place}: {_DAMAGED} (it is no JSON: {error}). {_ELSEWHERE}") from error
    if isinstance(content, dict) and content.get("kind") == _KIND and content.get("fingerprint") != fingerprint:
        raise UsageError(
            f"{place}: this file belongs to another model, other inputs, other bits or another version of linger. {_ELSEWHERE}"
        )
    saved = read(_Saved, content, f"{place}: {_DAMAGED}", _ELSEWHERE)
    kinds = {kind: dict(getattr(saved, kind)) for kind in _KINDS}
    together = {trial.wide: trial.as_trial() for trial in saved.together}
    measurements = Measurements(fingerprint, place, **kinds, together=together)
    strange = measurements.layers - frozenset(names)
    if strange:
        raise UsageError(f"{place}: {_DAMAGED} (unknown layers {listing(sorted(strange))}). {_ELSEWHERE}")
    return measurements


def _as_plain(wide: Sequence[str], trial: Trial) -> dict[str, Any]:
    functions = [asdict(facts) for facts in trial.functions.values()]
    own = sorted(trial.own_inputs)
    return {
        "wide": list(wide),
        "powers": _pair(trial.powers),
        "macs": trial.macs,
        "own_inputs": own,
        "functions": functions,
    }


def _pair(powers: SignalNoise) -> list[str]:
    """Both powers, exactly, infinite ones too."""
    return [powers.signal.hex(), powers.noise.hex()]


def fingerprint(model: nn.Module, batches: Sequence[Batch], widths: Widths, layers: Mapping[str, LayerFacts]) -> str:
    """A number that differs for another model, other inputs, other widths or another linger.

    It does not see the code of `forward`.
    """
    digest = hashlib.sha256(repr((_KIND, _FORM, __version__, widths, list(layers.values()))).encode())
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            digest.update(f"{kind} {name} ".encode())
            _take(digest, tensor)
    for batch in batches:
        digest.update(b"batch ")
        for leaf in tree_leaves(values_of(batch)):
            _take(digest, leaf.data if isinstance(leaf, PackedSequence) else leaf)
    return digest.hexdigest()


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
