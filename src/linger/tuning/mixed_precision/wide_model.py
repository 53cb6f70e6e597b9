# SPDX-License-Identifier: Apache-2.0
"""A copy of a quantized model with 16 bits everywhere, which is nearly float, and single tensors of it as narrow as they are.

So the noise of one tensor is measured alone: what its width costs at the output while nothing else costs much.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast

from torch import nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.constraint.limits import Widths
from linger.quantization.core.calibrate import collecting
from linger.quantization.core.quantized import ranges_of
from linger.quantization.core.stored import Kind
from linger.quantization.diagnosis.call_watch import abandoned_on_error
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.tuning.mixed_precision.flow import Layer, input_range_of, layers_of
from linger.tuning.mixed_precision.units import WEIGHTS, WIDE_BITS, Originals, Unit
from linger.tuning.remedy import OutputError

_WIDE = Widths(WIDE_BITS, WIDE_BITS, WIDE_BITS)


class WideModel:
    """The copy; its parameters are the float model's, its ranges are observed anew."""

    def __init__(self, model: nn.Module, batches: Sequence[Batch], originals: Originals, units: Sequence[Unit]) -> None:
        self._originals = originals
        self._narrow = {path: layer.widths for path, layer in layers_of(model).items()}
        self._narrow_inputs = _input_ranges(model)
        self._narrow_ranges = {key: (one.save(), one.bits) for key, one in ranges_of(model).items()}
        self._copy = copy.deepcopy(model).eval()
        self._layers = layers_of(self._copy)
        free = [unit for unit in units if unit.is_function and not unit.is_fixed]
        self._functions = {unit.key: cast(FunctionalLayer, self._copy.get_submodule(unit.name)) for unit in free}
        self._widen_all()
        _forget(self._copy)
        with collecting(), abandoned_on_error(self._copy):
            for batch in batches:
                run_batch(self._copy, fresh(batch))
        self._ranges = ranges_of(self._copy)
        self._wide_inputs = _input_ranges(self._copy)
        self._wide_ranges = {key: one.save() for key, one in self._ranges.items()}

    def _widen_all(self) -> None:
        for path, layer in self._layers.items():
            self._originals.put(path, layer, is_original=True)
            layer.widths = replace(_WIDE, output=max(self._narrow[path].output, WIDE_BITS))
        for function in self._functions.values():
            function.out_bits = WIDE_BITS

    @property
    def reach(self) -> dict[str, float]:
        """The largest magnitude of every activation, by the key of its range."""
        return {key: one.largest for key, one in self._ranges.items() if one.kind is not Kind.WEIGHT}

    def error_with(self, units: Collection[Unit], error: OutputError) -> float:
        """The error at the output with these tensors as narrow as they are in the model, and everything else wide."""
        for unit in units:
            self._narrow_down(unit)
        try:
            with abandoned_on_error(self._copy):
                return error(self._copy)
        finally:
            self._widen_all()
            for path, layer in self._layers.items():
                _write_input_range(layer, self._wide_inputs[path])
            for key, saved in self._wide_ranges.items():
                self._ranges[key].restore(saved)

    def _narrow_down(self, unit: Unit) -> None:
        if unit.what == WEIGHTS:
            layer = self._layers[unit.name]
            layer.widths = replace(layer.widths, parameter=self._narrow[unit.name].parameter)
            self._originals.put(unit.name, layer, is_original=False)
            for key, one in self._ranges.items():
                if one.layer is layer and one.kind is Kind.WEIGHT:
                    self._take_range(key)
            return
        self._take_range(unit.key)
        if unit.key in self._functions:
            self._functions[unit.key].out_bits = self._narrow_ranges[unit.key][1]
        made = self._narrow_output(unit) if unit.is_output and unit.name in self._layers else WIDE_BITS
        for reader in unit.readers:
            if self._narrow[reader].data < made:  # the reader rounds once more, or is the one that quantizes it
                self._narrow_input(reader)

    def _narrow_output(self, unit: Unit) -> int:
        """Narrow what a layer makes; returns its width."""
        layer, own = self._layers[unit.name], self._narrow[unit.name]
        layer.widths = replace(layer.widths, output=own.output)
        if unit.has_weights:
            return own.output
        self._narrow_input(unit.name)
        return own.data

    def _narrow_input(self, path: str) -> None:
        layer = self._layers[path]
        layer.widths = replace(layer.widths, data=self._narrow[path].data)
        _write_input_range(layer, self._narrow_inputs[path])

    def _take_range(self, key: str) -> None:
        """The range that the model has."""
        if key in self._ranges and key in self._narrow_ranges:
            self._ranges[key].restore(self._narrow_ranges[key][0])


def _forget(model: nn.Module) -> None:
    """Make all ranges ones that were never seen, so that calibration starts anew."""
    for one in ranges_of(model).values():
        one.running.write(0.0)
        if one.kind is Kind.WEIGHT:
            one.choose_range(None)


def _input_ranges(model: nn.Module) -> dict[str, float]:
    """The range of each layer's input, its own or that of what it reads; 0 where it has none."""
    layers = layers_of(model)
    return {
        p: layer.read(f"running_{input_range_of(layer)}") if _has_input_range(layer) else 0.0
        for p, layer in layers.items()
    }


def _write_input_range(layer: Layer, largest: float) -> None:
    if _has_input_range(layer):
        layer.write(f"running_{input_range_of(layer)}", largest)


def _has_input_range(layer: Layer) -> bool:
    return f"running_{input_range_of(layer)}" in dict(layer.named_buffers(recurse=False))
