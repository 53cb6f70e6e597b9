# SPDX-License-Identifier: Apache-2.0
"""Quantises one layer of a model or all of them, on copies of the model, and measures the noise at its output."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, float_tensors, fresh, run_batch
from linger.constraint.marks import QUANTIZATION, Widths
from linger.constraint.tracing import replace_everywhere
from linger.errors import UsageError
from linger.quantization.core.calibrate import collecting
from linger.quantization.core.qtensor import unwrap
from linger.quantization.core.runtime import OpRecord, Runtime, runtime_of
from linger.quantization.diagnosis.signal_noise import SignalNoise
from linger.quantization.functions.dispatch import dispatch
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.setup.initialize import init, quantized_layers

_Module = TypeVar("_Module", bound=nn.Module)

WIDE_BITS = 16


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
class Trial:
    """One measurement: powers at the output, and the products that each layer computes for the first batch."""

    powers: SignalNoise
    macs: dict[str, int]


class NoiseBench:
    """Measures on copies; the model that was given is never run and never changed."""

    def __init__(self, model: nn.Module, batches: Sequence[Batch], bits: int) -> None:
        self._batches = batches
        # never run itself: every measurement starts from the same state
        self._model = working_copy(model, "sensitivity")
        self._template = init(sharing_copy(self._model))
        self.layers = {path: self._facts(path, layer, bits) for path, layer in quantized_layers(self._template).items()}

    def _facts(self, path: str, layer: QuantLayer, bits: int) -> LayerFacts:
        module = self._model.get_submodule(path)
        choices = [
            QUANTIZATION.of(part) for part in module.modules()
        ]  # also that of the convolution inside a fused pair
        is_chosen = any(choice is not None and choice.widths is not None for choice in choices)
        # the batch norm is folded away: it has no numbers of its own on the device
        parameters = sum(p.numel() for name, p in layer.named_parameters() if not name.startswith("bn."))
        widths = layer.widths if is_chosen else Widths(bits, bits, bits)
        return LayerFacts(path, layer.op_name, widths, layer.widths, parameters)

    def alone(self, path: str) -> SignalNoise:
        """This layer as integers, its input and output too; everything else in float."""
        source = quantized_layers(self._template)[path]
        layer = sharing_copy(source, instead=[(source.runtime, Runtime(dispatch))])
        layer.widths = self.layers[path].widths
        layer.register_forward_hook(_give_real_values)
        model = sharing_copy(self._model)
        old = model.get_submodule(path)
        root = layer if old is model else model
        replace_everywhere(root, {old: layer})
        self._calibrate(root)
        return self._measure(root)

    def together(self, wide: Collection[str] = ()) -> Trial:
        """The model as `init` quantises it, with some layers at 16 bits."""
        model = sharing_copy(self._template)
        for path, layer in quantized_layers(model).items():
            facts = self.layers[path]
            layer.widths = facts.wide if path in wide else facts.widths
        macs = self._macs(self._calibrate(model))
        return Trial(self._measure(model), macs)

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
        with torch.random.fork_rng(), torch.no_grad():
            for number, batch in enumerate(self._batches):
                use(number, float_tensors(run_batch(model, fresh(batch))))

    def _calibrate(self, model: nn.Module) -> Sequence[OpRecord]:
        """Set the scales; returns the ops of the first batch."""
        self._reference  # noqa: B018 - a model that fails in float is refused as such, before it fails as a quantised one
        runtime = runtime_of(model)
        first: Sequence[OpRecord] = ()
        with torch.random.fork_rng(), collecting():
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


def _give_real_values(module: nn.Module, args: object, output: object) -> object:  # noqa: ARG001 - a hook's signature
    """Makes everything after a single quantised layer compute in float."""
    return unwrap(output)


def working_copy(model: nn.Module, who: str) -> nn.Module:
    """A copy in evaluation mode, with weights of its own.

    Every module gets a hook that does nothing: torch's fused transformer layers skip the layers inside them
    unless one of these has a hook, and a quantised model has.

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
