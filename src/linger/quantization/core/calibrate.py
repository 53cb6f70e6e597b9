# SPDX-License-Identifier: Apache-2.0
"""Calibration: forward passes in real numbers that set the scales, by a method that may be changed later without data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from linger.errors import UsageError, listing
from linger.quantization.core.histogram import Histogram, histograms_of
from linger.quantization.core.method_plan import Plan, apply_ranges, find_ranges, uncounted
from linger.quantization.core.observation import CALIBRATION, Calibration
from linger.quantization.core.ranges import Kind, Range, kind_of, ranges_of
from linger.quantization.core.runtime import runtime_of
from linger.quantization.core.statistics import ZEROS, QuantizedBase


@contextmanager
def calibration(
    method: str = "max",
    *,
    inputs: str | None = None,
    weights: str | None = None,
    outputs: str | None = None,
    layers: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Forward passes inside this block set the scales of every quantised layer they reach.

    The model computes in real numbers meanwhile, so the ranges are those of the float network, for any number of batches in
    any order. Gradients are off. A second block adds to what the first one found. An error inside the block leaves all ranges
    as they were.

    Args:
        method: How a range follows from the numbers that were seen: "max" (nothing saturates), "percentile", "mse", "kl",
            "topk", or a method registered with `calibration_method`. An option follows a colon: "percentile:99.9".
        inputs: Another method for the ranges of inputs.
        weights: Another method for those of weights; what it finds is kept in the checkpoint. `max` as the method of
            everything leaves such choices alone; given here it removes them.
        outputs: Another method for those of outputs, functions included.
        layers: Methods of single layers, by path ("block.conv"), pattern ("block.*") or range ("block.conv.o").

    Warns at its end where no model ran, where data were all zero or constant, where an input left the device's format, and
    where a chip lets pass what the float network cuts (ReLU6).

    Raises:
        UsageError: A method or a layer is unknown; the data hold NaN.

    >>> import linger, torch
    >>> model = linger.init(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    >>> with linger.calibration("mse", layers={"0.x": "percentile:99.9"}):
    ...     _ = model(torch.rand(8, 4))
    """
    plan = Plan.read("calibration", method, inputs=inputs, weights=weights, outputs=outputs, layers=layers)
    with _block(plan) as seen:
        yield
    for sentence in seen.findings():
        warnings.warn(sentence, stacklevel=3)


@contextmanager
def collecting() -> Iterator[Calibration]:
    """`calibration()` without warnings, for passes that linger runs on its own account."""
    with _block(Plan.read("calibration", "max")) as seen:
        yield seen


def choose_ranges(
    model: nn.Module,
    method: str | None = None,
    *,
    inputs: str | None = None,
    weights: str | None = None,
    outputs: str | None = None,
    layers: Mapping[str, str] | None = None,
) -> None:
    """Find the ranges of a calibrated model by another method, from what calibration has counted: no data are needed.

    The arguments are those of `calibration`; what no method is given for stays as it is. Scales that follow from several
    ranges are those of the next pass.

    Args:
        model: The model, quantised and calibrated in this process: a checkpoint holds ranges, but no counts.
        method: The method of all ranges.
        inputs: That of inputs.
        weights: That of weights, which needs no calibration.
        outputs: That of outputs.
        layers: Those of single layers.

    Raises:
        UsageError: The model is not quantised, a method or a layer is unknown, nothing was counted for a range; the model
            is as it was.
    """
    plan = Plan.read("choose_ranges", method, inputs=inputs, weights=weights, outputs=outputs, layers=layers)
    ranges = _ranges(model, "choose_ranges")
    plan.check_patterns(ranges)
    missing = uncounted(ranges, plan)
    if missing:
        raise UsageError(
            f"choose_ranges: {listing(missing)}: nothing was counted for these ranges, because they come from a checkpoint or "
            "from training. Calibrate the model again in this process."
        )
    apply_ranges(ranges, find_ranges(ranges, plan, is_settled=False))


def merge_histograms(model: nn.Module, *others: nn.Module) -> None:
    """Add what calibration has counted in copies of a model, each on a shard of the data; then `choose_ranges` finds the ranges.

    Raises:
        UsageError: A model is not quantised, or is no copy: its ranges are others.
    """
    ranges = _ranges(model, "merge_histograms")
    for other in others:
        found = _ranges(other, "merge_histograms")
        different = sorted({*ranges} ^ {*found})
        if different:
            raise UsageError(
                f"merge_histograms: {listing(different)}: only one of two models has these ranges. Merge copies of one model "
                "that ran the same layers."
            )
        for key, own in ranges.items():
            theirs = found[key]
            counted = theirs.layer.histograms.get(theirs.name)
            if counted is not None:
                before = own.layer.histograms.get(own.name)
                own.layer.histograms[own.name] = counted if before is None else before.merged(counted)
                own.layer.join_use(own.name, theirs.layer)
    for path, layer in model.named_modules():
        merge = getattr(layer, "merge_decisions", None)
        if merge is not None:
            for other in others:
                merge(other.get_submodule(path))


def _ranges(model: nn.Module, where: str) -> dict[str, Range]:
    if runtime_of(model) is None:
        raise UsageError(f"{where}: {type(model).__name__} is not quantised. Give the model that linger.init returned.")
    return ranges_of(model)


# one block
@dataclass
class _Backup:
    """The ranges of every model that ran in a block, as they were before."""

    models: list[nn.Module] = field(default_factory=list)
    _layers: dict[QuantizedBase, tuple[dict[str, Tensor | None], dict[str, Any]]] = field(default_factory=dict)

    def keep(self, model: nn.Module) -> None:
        """Copy what a pass of this model may change."""
        if any(model is known for known in self.models):
            return
        self.models.append(model)
        for layer in model.modules():
            if isinstance(layer, QuantizedBase) and layer not in self._layers:
                buffers = {name: None if b is None else b.detach().clone() for name, b in layer._buffers.items()}  # noqa: SLF001 - by name, with None
                others = {"histograms": dict(layer.histograms), "bits_of": dict(layer.bits_of)}
                self._layers[layer] = buffers, others | {"input_range": layer.input_range}

    def restore(self) -> None:
        """Undo what passes have changed; layers of functions that they made are removed."""
        for layer, (buffers, others) in self._layers.items():
            layer._buffers.clear()  # noqa: SLF001 - setattr would ask for a registration again
            layer._buffers.update(buffers)  # noqa: SLF001 - as above
            layer.__dict__.update(others)
            layer.forget_known()
        for model in self.models:
            for module in list(model.modules()):
                for name, child in list(module.named_children()):
                    if isinstance(child, QuantizedBase) and child not in self._layers:
                        delattr(module, name)

    def ranges_before(self, wanted: list[tuple[QuantizedBase, str]]) -> list[float]:
        """Ranges as they were; 0 where there was none. A device is asked once."""
        found = [self._layers.get(layer, ({}, {}))[0].get(f"running_{name}") for layer, name in wanted]
        present = [buffer for buffer in found if buffer is not None]
        values = iter(torch.cat([b.reshape(1).to(present[0].device) for b in present]).tolist() if present else [])
        numbers = [0.0 if buffer is None else float(next(values)) for buffer in found]
        return [number if math.isfinite(number) and number > ZEROS else 0.0 for number in numbers]


@contextmanager
def _block(plan: Plan) -> Iterator[Calibration]:
    backup, around = _Backup(), CALIBRATION.get()
    made = Calibration(begin=backup.keep)
    token = CALIBRATION.set(made)
    try:
        try:
            with torch.no_grad():
                yield made
        finally:
            CALIBRATION.reset(token)
            if around is not None:
                around.passes += made.passes
        _settle(made, plan, backup)
    except BaseException:
        backup.restore()
        raise


def _settle(seen: Calibration, plan: Plan, backup: _Backup) -> None:
    """Keep what was counted with the layers, and find the ranges by their methods."""
    _keep_counts(seen, backup)
    ranges: dict[str, Range] = {}
    for model in backup.models:
        ranges |= ranges_of(model)
    if seen.passes:
        plan.check_patterns(ranges)
    apply_ranges(ranges, find_ranges(ranges, plan, is_settled=True))
    for each in seen.counted:
        if isinstance(each.layer, QuantizedBase):
            each.layer.restart_learning(each.name)


def _keep_counts(seen: Calibration, backup: _Backup) -> None:
    counted = [(each, each.layer) for each in seen.counted if isinstance(each.layer, QuantizedBase)]
    histograms = histograms_of([each.counter for each, _ in counted])
    wrong = [
        f"{layer.path}.{each.name}" for (each, layer), h in zip(counted, histograms, strict=True) if not h.is_finite
    ]
    if wrong:
        raise UsageError(
            f"calibration: {listing(wrong)}: the data or the weights hold NaN or infinity, so no scale can be chosen. "
            "Check both; all ranges are as they were."
        )
    new = [(layer, each.name) for each, layer in counted if each.name not in layer.histograms]
    earlier = dict(zip(((id(layer), name) for layer, name in new), backup.ranges_before(new), strict=True))
    for (each, layer), histogram in zip(counted, histograms, strict=True):
        layer.histograms[each.name] = _added(layer, each.name, histogram, earlier.get((id(layer), each.name), 0.0))


def _added(layer: QuantizedBase, name: str, histogram: Histogram, earlier: float) -> Histogram:
    before = layer.histograms.get(name)
    if kind_of(name) is Kind.WEIGHT:
        return histogram  # of all of them
    return replace(histogram, earlier=earlier) if before is None else before.merged(histogram)
