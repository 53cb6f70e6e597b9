# SPDX-License-Identifier: Apache-2.0
"""Quantizes one tensor or layer of a model or all of them, on copies of the model, and measures the noise at its output.

A layer stands as integers in a copy of the float model. A function stands in a copy of the quantized model that computes in real
numbers, and only its results are rounded as the device does: the noise of its operands is that of the layers before.

Signal and noise powers of tensors that should be equal, summed in float64 over any number of batches.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from linger.analysis.batches import Batch, float_tensors, fresh, run_batch
from linger.constraint.limits import QUANTIZATION, Widths
from linger.constraint.tracing import replace_everywhere
from linger.dialect import Op
from linger.errors import UsageError
from linger.numeric.torch.quantize import fake_quantize
from linger.quantization.core.calibrate import collecting
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Frame, Operands, OpRecord, Runtime, runtime_of
from linger.quantization.functions.dispatch import dispatch
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.setup.initialize import init


@dataclass
class SignalNoise:
    """Σ f² and Σ (f − q)²."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, reference: Tensor, other: Tensor) -> None:
        """Count one pair of tensors of the same shape."""
        f = as_real(reference)
        self.signal += power(f)
        self.noise += squared_error(f, as_real(other))

    def add_all(self, references: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        """Count pairs of tensors.

        Raises:
            UsageError: There are not as many of one as of the other, or their shapes differ.
        """
        found = mismatch(references, others)
        if found is not None:
            raise UsageError(f"{found}. Compare results of the same computation.")
        for reference, other in zip(references, others, strict=True):
            self.add(reference, other)

    @property
    def db(self) -> float:
        """10·log10(signal/noise)."""
        return decibels(self.signal, self.noise)


def decibels(signal: float, noise: float) -> float:
    """10·log10(signal/noise); ∞ without noise, −∞ for noise without a signal.

    >>> decibels(100.0, 1.0), decibels(0.0, 0.0), decibels(0.0, 1.0)
    (20.0, inf, -inf)
    """
    if noise == 0:
        return math.inf
    if signal == 0 or noise == math.inf:
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


def power(values: Tensor) -> float:
    """Σ v² over what is finite; `values` is float64 and flat."""
    return inner_product(values, values)


def inner_product(first: Tensor, second: Tensor) -> float:
    """Σ f·q over what is finite in both flat float64 tensors."""
    total = float(torch.dot(first, second))
    if math.isfinite(total):
        return total
    is_finite = first.isfinite() & second.isfinite()
    return float(torch.dot(first[is_finite], second[is_finite]))


def squared_error(reference: Tensor, other: Tensor) -> float:
    """Σ (f − q)² of flat float64 tensors; NaN and infinity are no error where both have the same."""
    difference = reference - other
    total = float(torch.dot(difference, difference))
    if math.isfinite(total):
        return total
    is_same = (reference == other) | (reference.isnan() & other.isnan())
    difference = difference.masked_fill(is_same, 0.0)
    return float(torch.dot(difference, difference)) if bool(difference.isfinite().all()) else math.inf


def as_real(tensor: Tensor) -> Tensor:
    """The values, flat, in float64; a quantized tensor's are q/scale, a complex one's are both parts."""
    plain = tensor.dequantize() if isinstance(tensor, QTensor) else tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.detach().double().reshape(-1)


def mismatch(references: Sequence[Tensor], others: Sequence[Tensor]) -> str | None:
    """How two lists of tensors differ in number or shape; None if they do not."""
    first, second = ([tuple(t.shape) for t in tensors] for tensors in (references, others))
    return None if first == second else f"shapes {first} in the float model, {second} in the quantized one"


_Module = TypeVar("_Module", bound=nn.Module)

Layer = QuantLayer | QuantRecurrent

WIDE_BITS = 16
BOTH, WEIGHTS, ACTIVATIONS = "both", "weights", "activations"

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
        module = self._model.get_submodule(path)
        choices = [
            QUANTIZATION.of(part) for part in module.modules()
        ]  # also that of the convolution inside a fused pair
        is_chosen = any(choice is not None and choice.widths is not None for choice in choices)
        # the batch norm is folded away: it has no numbers of its own on the device
        parameters = sum(p.numel() for name, p in layer.named_parameters() if not name.startswith("bn."))
        widths = layer.widths if is_chosen else usual
        return LayerFacts(path, layer.op_name, widths, layer.widths, parameters)

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
        layer.register_forward_hook(_give_real_values)
        model = sharing_copy(self._model)
        old = model.get_submodule(path)
        root = layer if old is model else model
        replace_everywhere(root, {old: layer})
        self._calibrate(root)
        return self._measure(root)

    def function(self, facts: FunctionFacts) -> SignalNoise:
        """The results of one function rounded; everything else in real numbers."""
        model = sharing_copy(self._calibrated[0])
        runtime = runtime_of(model)
        assert runtime is not None  # init made it
        runtime.stays_real = True
        runtime.observers.append(partial(_round_result, facts))
        return self._measure(model)

    def together(self, wide: Collection[str] = ()) -> Trial:
        """The model as `init` quantizes it, with some layers at 16 bits."""
        if wide:
            model, ops = self._quantized(wide)
            return Trial(self._measure(model), self._macs(ops))
        calibrated, ops = self._calibrated
        model = sharing_copy(calibrated)
        runtime = runtime_of(model)
        assert runtime is not None
        watch = FunctionWatch(runtime)
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


class FunctionWatch:
    """An observer of a quantized model: collects the functions that round their results, and to what."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._found: dict[str, FunctionFacts] = {}

    def observe(self, name: str, op: Op, operands: Operands, attributes: Mapping[str, object], result: QTensor) -> None:
        """Remember the format of one call."""
        del attributes
        frame = self._runtime.frame
        assert frame is not None  # ops are computed inside a module
        module = frame.module
        is_layer = isinstance(module, QuantizedBase)
        if not _rounds(op, operands, result) or (is_layer and has_weights(module)):
            return
        key = frame.path if is_layer else range_of_function(op, frame) or name
        known = self._found.get(key)
        calls = (name,) if known is None else tuple(dict.fromkeys((*known.calls, name)))
        layer = frame.path if is_layer else ""
        self._found[key] = FunctionFacts(calls[0], op.name, result.bits, float(result.scale), calls, layer)

    def functions(self, ops: Sequence[OpRecord]) -> dict[str, FunctionFacts]:
        """The functions by name, with their products among the ops of the first batch."""
        macs: dict[str, int] = {}
        counts: Counter[str] = Counter()
        for record in ops:
            stem = f"{record.where}.{record.op}".lstrip(".")
            name = stem if not counts[stem] else f"{stem}_{counts[stem]}"
            counts[stem] += 1
            macs[name] = record.macs
        found = [replace(facts, macs=sum(macs.get(call, 0) for call in facts.calls)) for facts in self._found.values()]
        return {facts.name: facts for facts in found}


def range_of_function(op: Op, frame: Frame) -> str | None:
    """The path of the functional layer that keeps the range of an op that was just computed; None if it has none."""
    if op.state_name is None:
        return None
    child = f"{KEY_PREFIX}{op.state_name}_{frame.indices[op.name if op.has_own_counter else ''] - 1}"
    layer = frame.module._modules.get(child)  # noqa: SLF001 - getattr would hide an AttributeError of the module
    return f"{frame.path}.{child}".lstrip(".") if isinstance(layer, FunctionalLayer) else None


def has_weights(layer: nn.Module) -> bool:
    """Whether a layer has parameters of its own."""
    return any(True for _ in layer.parameters())


def _rounds(op: Op, operands: Operands, result: QTensor) -> bool:
    """Whether an op rounds what it computes; others move numbers, or pick some at a scale that is no coarser."""
    if op.picks and all(o.scale <= result.scale for o in operands if isinstance(o, QTensor)):
        return False
    return op.name not in _NO_FUNCTIONS and (op.has_attribute("scale_o") or op.output_scale is not None)


def _round_result(
    facts: FunctionFacts, name: str, op: Op, operands: Operands, attributes: Mapping[str, object], result: QTensor
) -> None:
    """An observer that writes the rounded numbers over the real ones."""
    del op, operands, attributes
    if name in facts.calls:
        content = result.content
        content.copy_(fake_quantize(content.float(), facts.scale, facts.bits).to(content.dtype))
        result.accept_write()


@contextmanager
def abandoned_on_error(model: nn.Module) -> Iterator[None]:
    """End the pass of a quantized model that an error or an interruption stopped: what watched it must not stay at work."""
    try:
        yield
    except BaseException:
        runtime = runtime_of(model)
        if runtime is not None:
            runtime.abandon()
        raise


def _layers_of(model: nn.Module) -> dict[str, Layer]:
    return {path: m for path, m in model.named_modules() if isinstance(m, (QuantLayer, QuantRecurrent))}


def _give_real_values(module: nn.Module, args: object, output: object) -> object:  # noqa: ARG001 - a hook's signature
    """Makes everything after a single quantized layer compute in float."""
    return tree_map(_real, output)


def _real(leaf: object) -> object:
    if isinstance(leaf, PackedSequence):
        return leaf._replace(data=unwrap(leaf.data))
    return unwrap(leaf)


def working_copy(model: nn.Module, who: str) -> nn.Module:
    """A copy in evaluation mode, with weights of its own.

    Every module gets a hook that does nothing: torch's fused transformer layers skip the layers inside them
    unless one of these has a hook, and a quantized model has.

    Raises:
        UsageError: The model holds something that cannot be copied.
    """
    try:
        made = copy.deepcopy(model)
    except Exception as error:
        raise UsageError(
            f"{who}: a copy of {type(model).__name__} cannot be made ({type(error).__name__}: {error}). Remove what "
            "copy.deepcopy does not copy: open files, generators, tensors that carry a gradient graph."
        ) from error
    made.eval()
    for module in made.modules():
        module.register_forward_pre_hook(_do_nothing)
    return made


def sharing_copy(module: _Module, *, instead: Sequence[tuple[object, object]] = ()) -> _Module:
    """A copy whose parameters are the same objects; everything else, buffers too, is its own.

    Args:
        module: What to copy.
        instead: Pairs of an object inside it and its replacement in the copy.
    """
    memo: dict[int, object] = {id(parameter): parameter for parameter in module.parameters()}
    memo |= {id(old): new for old, new in instead}
    return copy.deepcopy(module, memo)


def _do_nothing(module: nn.Module, args: object) -> None:
    """A forward pre-hook."""
