# SPDX-License-Identifier: Apache-2.0
"""Quantizes one tensor or layer of a model or all of them, on copies of the model, and measures the noise at its output.

A layer stands as integers in a copy of the float model. A function stands in a copy of the quantized model that computes in real
numbers, and only its results are rounded as the device does: the noise of its operands is that of the layers before.

`Measurements` are kept in a file for a later run.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from linger.analysis.batches import Batch, float_tensors, fresh, run_batch, values_of
from linger.constraint.limits import QUANTIZATION, Widths
from linger.constraint.tracing import replace_everywhere
from linger.dialect import Op
from linger.errors import UsageError, listing
from linger.numeric.torch.quantize import fake_quantize
from linger.quantization.core.calibrate import collecting
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Operands, OpRecord, Runtime, runtime_of
from linger.quantization.diagnosis.call_watch import (
    SignalNoise,
    abandoned_on_error,
    range_of_function,
    sharing_copy,
    working_copy,
)
from linger.quantization.functions.dispatch import dispatch
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.setup.initialize import init
from linger.records.reading import As, one_of, parse_json, read
from linger.records.table import written
from linger.version import __version__

Layer = QuantLayer | QuantRecurrent

WIDE_BITS = 16
BOTH, WEIGHTS, ACTIVATIONS = "both", "weights", "activations"

_KIND = "linger sensitivity, measurements so far"
_FORM = 2
"""Raised whenever the file gets another form; files of an older one are refused as those of another linger."""

_KINDS = ("alone", "weights", "activations", "functions")


_DAMAGED = "this is no file of an earlier sensitivity run, or it is damaged"
_ELSEWHERE = "It was left as it is. Give another save_path, or remove the file to start anew."

_ROUNDS_INPUTS = ("Quant", "Requant")
_NO_FUNCTIONS = frozenset({"Requant", "Dequant"})


@dataclass(frozen=True)
class LayerFacts:
    """What `init` makes of one layer.

    Attributes:
        path: Its first name in the model.
        op: The op it becomes.
        widths: Bits of input, parameters and output: those that `quant_module` marked, else those asked for.
        by_itself: The widths that `init` gives it without further marks.
        parameters: Numbers in its weights and bias, a batch norm folded in.
    """

    path: str
    op: str
    widths: Widths
    by_itself: Widths
    parameters: int

    @property
    def wide(self) -> Widths:
        """At least 16 bits everywhere."""
        own = self.widths
        return Widths(max(own.data, WIDE_BITS), max(own.parameter, WIDE_BITS), max(own.output, WIDE_BITS))


@dataclass(frozen=True)
class FunctionFacts:
    """What a function of the quantized model rounds its results to.

    Attributes:
        name: The name of its first call in a pass: the module's path and the op.
        op: The op.
        bits, scale: The format of its results.
        calls: The names of all calls that share a range.
        layer: Path of the layer that it belongs to; empty for a function in a forward.
        macs: Products that it computes for the first batch.
    """

    name: str
    op: str
    bits: int
    scale: float
    calls: tuple[str, ...]
    layer: str = ""
    macs: int = 0


@dataclass(frozen=True)
class Trial:
    """One measurement of the whole model.

    Attributes:
        powers: At the output.
        macs: Products that each layer computes for the first batch.
        own_inputs: Layers that quantize their input themselves; the others read what another layer has rounded.
        functions: Functions that round, by name.
    """

    powers: SignalNoise
    macs: dict[str, int]
    own_inputs: frozenset[str] = frozenset()
    functions: dict[str, FunctionFacts] = field(default_factory=dict)


class NoiseBench:
    """Measures on copies; the model that was given is never run and never changed."""

    def __init__(self, model: nn.Module, batches: Sequence[Batch], widths: Widths) -> None:
        self._batches = batches
        # never run itself: every measurement starts from the same state
        self._model = working_copy(model, "sensitivity")
        self._template = init(sharing_copy(self._model))
        self.layers = {path: self._facts(path, layer, widths) for path, layer in _layers_of(self._template).items()}

    def _facts(self, path: str, layer: Layer, usual: Widths) -> LayerFacts:
        # also that of the convolution inside a fused pair
        choices = [QUANTIZATION.of(part) for part in self._model.get_submodule(path).modules()]
        is_chosen = any(choice is not None and choice.widths is not None for choice in choices)
        # the batch norm is folded away: it has no numbers of its own on the device
        parameters = sum(p.numel() for name, p in layer.named_parameters() if not name.startswith("bn."))
        return LayerFacts(path, layer.op_name, layer.widths if is_chosen else usual, layer.widths, parameters)

    def alone(self, path: str, what: str = BOTH, *, has_own_input: bool = True) -> SignalNoise:
        """This layer as integers, or only its weights or activations; everything else in float.

        What is not asked for gets 16 bits, which is nearly float, and so does an input that the layer does not quantize
        itself: its noise is that of the layer before.
        """
        source = _layers_of(self._template)[path]
        layer = sharing_copy(source, instead=[(source.runtime, Runtime(dispatch))])
        own, wide = self.layers[path].widths, self.layers[path].wide
        layer.widths = Widths(
            data=own.data if what != WEIGHTS and has_own_input else wide.data,
            parameter=own.parameter if what != ACTIVATIONS else wide.parameter,
            output=own.output if what != WEIGHTS else wide.output,
        )
        layer.register_forward_hook(lambda *call: tree_map(_real, call[-1]))  # all behind it computes in float
        model = sharing_copy(self._model)
        old = model.get_submodule(path)
        root = layer if old is model else model
        replace_everywhere(root, {old: layer})
        self._calibrate(root)
        return self._measure(root)

    def function(self, facts: FunctionFacts) -> SignalNoise:
        """The results of one function rounded; everything else in real numbers."""
        model = sharing_copy(self._calibrated[0])
        runtime = cast(Runtime, runtime_of(model))  # init made it

        def round_result(name: str, *rest: Any) -> None:
            """An observer that writes the rounded numbers over the real ones."""
            if name in facts.calls:
                content, is_unsigned = rest[-1].content, rest[-1].is_unsigned
                bits = facts.bits + is_unsigned
                content.copy_(fake_quantize(content.float(), facts.scale, bits, is_relu=is_unsigned).to(content.dtype))
                rest[-1].accept_write()

        runtime.stays_real = True
        runtime.observers.append(round_result)
        return self._measure(model)

    def together(self, wide: Collection[str] = ()) -> Trial:
        """The model as `init` quantizes it, with some layers at 16 bits."""
        if wide:
            model, ops = self._quantized(wide)
            return Trial(self._measure(model), self._macs(ops))
        calibrated, ops = self._calibrated
        model = sharing_copy(calibrated)
        runtime = cast(Runtime, runtime_of(model))
        watch = _FunctionWatch(runtime)
        runtime.observers.append(watch.observe)
        powers = self._measure(model)
        own_inputs = frozenset(record.where for record in ops if record.op in _ROUNDS_INPUTS)
        return Trial(powers, self._macs(ops), own_inputs & self.layers.keys(), watch.functions(ops))

    @cached_property
    def _calibrated(self) -> tuple[nn.Module, Sequence[OpRecord]]:
        """The quantized model, calibrated, and the ops of its first batch; it runs no more."""
        return self._quantized(())

    def _quantized(self, wide: Collection[str]) -> tuple[nn.Module, Sequence[OpRecord]]:
        model = sharing_copy(self._template)
        for path, layer in _layers_of(model).items():
            facts = self.layers[path]
            layer.widths = facts.wide if path in wide else facts.widths
        return model, self._calibrate(model)

    @cached_property
    def _reference(self) -> list[list[Tensor]]:
        outputs: list[list[Tensor]] = []
        model = sharing_copy(self._model)
        self._run(model, lambda *_: None)  # a model with state has then seen as much as a calibrated one
        self._run(model, lambda _, leaves: outputs.append(fresh(leaves)))
        if not any(leaf.numel() for leaves in outputs for leaf in leaves):
            raise UsageError(
                f"sensitivity: {type(self._model).__name__} returns no float tensor for these inputs, so there is "
                "no noise to measure. Give inputs with at least one element, to a model that returns numbers."
            )
        return outputs

    def _run(self, model: nn.Module, use: Callable[[int, list[Tensor]], None]) -> None:
        """Show the float outputs of every batch to `use`, with the batch's number."""
        # every run starts from the same random state, should the model draw numbers in evaluation
        with torch.random.fork_rng(), torch.no_grad(), abandoned_on_error(model):
            for number, batch in enumerate(self._batches):
                use(number, float_tensors(run_batch(model, fresh(batch))))

    def _calibrate(self, model: nn.Module) -> Sequence[OpRecord]:
        """Set the scales; returns the ops of the first batch."""
        self._reference  # noqa: B018 - a model that fails in float is refused as such, before it fails as a quantized one
        runtime = runtime_of(model)
        first: Sequence[OpRecord] = ()
        with torch.random.fork_rng(), collecting(), abandoned_on_error(model):
            for number, batch in enumerate(self._batches):
                run_batch(model, fresh(batch))
                if number == 0 and runtime is not None:
                    first = runtime.ops
        return first

    def _measure(self, model: nn.Module) -> SignalNoise:
        powers = SignalNoise()
        self._run(model, lambda number, leaves: powers.add_all(self._reference[number], leaves))
        return powers

    def _macs(self, ops: Sequence[OpRecord]) -> dict[str, int]:
        macs = dict.fromkeys(self.layers, 0)
        for record in ops:
            if record.where in macs:
                macs[record.where] += record.macs
        return macs


class _FunctionWatch:
    """An observer of a quantized model: collects the functions that round their results, and to what."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._functions: dict[str, FunctionFacts] = {}

    def observe(self, name: str, op: Op, operands: Operands, attributes: Mapping[str, object], result: QTensor) -> None:
        """Remember the format of one call."""
        del attributes
        frame = self._runtime.frame
        assert frame is not None  # ops are computed inside a module
        is_layer = isinstance(frame.module, QuantizedBase)
        if not _rounds(op, operands, result) or (is_layer and next(frame.module.parameters(), None) is not None):
            return
        key = frame.path if is_layer else range_of_function(op, frame) or name
        known = self._functions.get(key)
        calls = (name,) if known is None else tuple(dict.fromkeys((*known.calls, name)))
        layer = frame.path if is_layer else ""
        self._functions[key] = FunctionFacts(calls[0], op.name, result.bits, float(result.scale), calls, layer)

    def functions(self, ops: Sequence[OpRecord]) -> dict[str, FunctionFacts]:
        """The functions by name, with their products among the ops of the first batch."""
        macs: dict[str, int] = {}
        counts: Counter[str] = Counter()
        for record in ops:
            stem = f"{record.where}.{record.op}".lstrip(".")
            name = stem if not counts[stem] else f"{stem}_{counts[stem]}"
            counts[stem] += 1
            macs[name] = record.macs
        return {
            facts.name: replace(facts, macs=sum(macs.get(call, 0) for call in facts.calls))
            for facts in self._functions.values()
        }


def _rounds(op: Op, operands: Operands, result: QTensor) -> bool:
    """Whether an op rounds what it computes; others move numbers, or pick some at a scale that is no coarser."""
    if op.picks and all(o.scale <= result.scale for o in operands if isinstance(o, QTensor)):
        return False
    return op.name not in _NO_FUNCTIONS and (op.has_attribute("scale_o") or op.output_scale is not None)


def _layers_of(model: nn.Module) -> dict[str, Layer]:
    return {path: m for path, m in model.named_modules() if isinstance(m, (QuantLayer, QuantRecurrent))}


def _real(leaf: object) -> object:
    if isinstance(leaf, PackedSequence):
        return leaf._replace(data=unwrap(leaf.data))
    return unwrap(leaf)


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
        return Trial(self.powers, self.macs, self.own_inputs, {facts.name: facts for facts in self.functions})


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
        self.of(kind)[name] = powers
        self.save()

    def of(self, kind: str) -> dict[str, SignalNoise]:
        """The measurements of one kind, by name."""
        return cast("dict[str, SignalNoise]", getattr(self, kind))

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
            **{kind: {name: _pair(powers) for name, powers in self.of(kind).items()} for kind in _KINDS},
            "together": [
                {
                    "wide": list(wide),
                    "powers": _pair(trial.powers),
                    "macs": trial.macs,
                    "own_inputs": sorted(trial.own_inputs),
                    "functions": [asdict(facts) for facts in trial.functions.values()],
                }
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
        measurements = Measurements(fingerprint, place)
        measurements.save()  # a folder that does not exist is better found now than after the first layer
        return measurements
    saved = _read_saved(place, fingerprint)
    kinds = {kind: dict(getattr(saved, kind)) for kind in _KINDS}
    together = {trial.wide: trial.as_trial() for trial in saved.together}
    measurements = Measurements(fingerprint, place, **kinds, together=together)
    strange = measurements.layers - frozenset(names)
    if strange:
        raise UsageError(f"{place}: {_DAMAGED} (unknown layers {listing(sorted(strange))}). {_ELSEWHERE}")
    return measurements


def _read_saved(place: Path, fingerprint: str) -> _Saved:
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
    return read(_Saved, content, f"{place}: {_DAMAGED}", _ELSEWHERE)


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
