# SPDX-License-Identifier: Apache-2.0
"""Calibration: forward passes in real numbers that set the scales, by a method that may be changed later without data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from linger.errors import UsageError, listing
from linger.quantization.core.calibration_exchange import Counts, Group
from linger.quantization.core.methods import Plan, apply_ranges, find_ranges, uncounted
from linger.quantization.core.observation import CALIBRATION, Calibration, Histogram, histograms_of
from linger.quantization.core.quantized import Backup, quantized_ranges, ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.stored import Kind


@contextmanager
def calibration(
    method: str | None = None,
    *,
    inputs: str | None = None,
    weights: str | None = None,
    outputs: str | None = None,
    layers: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Forward passes inside this block set the scales of every quantized layer they reach.

    The model computes in real numbers meanwhile, so the ranges are those of the float network, for any number of batches in
    any order. Gradients are off. A second block adds to what the first one found. An error inside the block leaves all ranges
    as they were.

    In a process group (torch.distributed) each process runs its own data, and at the end of the block all of them exchange
    what was counted: every one has the ranges of all data, and rank 0 gives the warnings. Every process needs the block.

    Args:
        method: How a range follows from the numbers that were seen: "max" (nothing saturates), "percentile", "mse", "kl",
            "topk", or a method registered with `calibration_method`. An option follows a colon: "percentile:99.9". None:
            "max", or, where no method at all is given, those of the model's configuration.
        inputs: Another method for the ranges of inputs.
        weights: Another method for those of weights; what it finds is kept in the checkpoint. `max` as the method of
            everything leaves such choices alone; given here it removes them.
        outputs: Another method for those of outputs, functions included.
        layers: Methods of single layers, by path ("block.conv"), pattern ("block.*") or range ("block.conv.o").

    Warns at its end where no model ran, where data were all zero or constant, where an input left the device's format, and
    where a chip lets pass what the float network cuts (ReLU6).

    Raises:
        UsageError: A method or a layer is unknown; the data hold NaN; a process of the group has failed, had no data, has
            another model or does not come within the group's time limit.

    >>> import linger, torch
    >>> model = linger.init(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    >>> with linger.calibration("mse", layers={"0.x": "percentile:99.9"}):
    ...     _ = model(torch.rand(8, 4))
    """
    is_open = all(given is None for given in (method, inputs, weights, outputs))
    method = "max" if method is None else method
    plan = Plan.read("calibration", method, inputs=inputs, weights=weights, outputs=outputs, layers=layers)
    plan = replace(plan, is_open=is_open)
    with _block(plan, Group.around(plan)) as seen:
        yield
    for sentence in seen.findings():
        warnings.warn(sentence, stacklevel=3)


@contextmanager
def local_calibration() -> Iterator[None]:
    """`calibration()` of this process alone, whatever group it belongs to, for functions that only look at their own data."""
    with _block(replace(Plan.read("calibration", "max"), is_open=True), None) as seen:
        yield
    for sentence in seen.findings():
        warnings.warn(sentence, stacklevel=3)


@contextmanager
def collecting() -> Iterator[Calibration]:
    """`calibration()` without warnings and of this process alone, for passes that linger runs on its own account."""
    with _block(Plan.read("calibration", "max"), None) as seen:
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
        model: The model, quantized and calibrated in this process: a checkpoint holds ranges, but no counts.
        method: The method of all ranges.
        inputs: That of inputs.
        weights: That of weights, which needs no calibration.
        outputs: That of outputs.
        layers: Those of single layers.

    Raises:
        UsageError: The model is not quantized, a method or a layer is unknown, nothing was counted for a range; the model
            is as it was.
    """
    plan = Plan.read("choose_ranges", method, inputs=inputs, weights=weights, outputs=outputs, layers=layers)
    ranges = quantized_ranges(model, "choose_ranges")
    plan.check_patterns(ranges)
    missing = uncounted(ranges, plan)
    if missing:
        raise UsageError(
            f"choose_ranges: {listing(missing)}: nothing was counted for these ranges, because they come from a checkpoint or "
            "from training. Calibrate the model again in this process."
        )
    apply_ranges(ranges, find_ranges(ranges, plan, is_settled=False))


# one block
@contextmanager
def _block(plan: Plan, group: Group | None) -> Iterator[Calibration]:
    around = CALIBRATION.get()
    backup = Backup() if group is None else Backup(first_seen=group.begin)
    made = Calibration(begin=backup.keep)
    try:
        with nullcontext() if group is None else group.told():
            token = CALIBRATION.set(made)
            try:
                with torch.no_grad():
                    yield made
            finally:
                CALIBRATION.reset(token)
                if around is not None:
                    around.passes += made.passes
            counts = _counts(made, backup)
            parts = None if group is None else group.collect(made, counts)
        if group is not None and parts is not None:
            counts = group.merge(made, parts)
        _settle(made, plan, backup, counts)
    except BaseException:
        backup.restore()
        raise


def _counts(seen: Calibration, backup: Backup) -> Counts:
    """What was counted in the block, with the ranges before it.

    Raises:
        UsageError: There is NaN or infinity in it.
    """
    counted = [(each.range, each.counter) for each in seen.counted if isinstance(each.range, Range)]
    histograms = histograms_of([counter for _, counter in counted])
    wrong = [f"{r.layer.path}.{r.name}" for (r, _), h in zip(counted, histograms, strict=True) if not h.is_finite]
    if wrong:
        raise UsageError(
            f"calibration: {listing(wrong)}: the data or the weights hold NaN or infinity, so no scale can be chosen. "
            "Check both; all ranges are as they were."
        )
    earlier = backup.ranges_before([found for found, _ in counted])
    return [
        (found, replace(histogram, earlier=before))
        for (found, _), histogram, before in zip(counted, histograms, earlier, strict=True)
    ]


def _settle(seen: Calibration, plan: Plan, backup: Backup, counts: Counts) -> None:
    """Keep what was counted with the layers, and find the ranges by their methods."""
    for found, histogram in counts:
        found.histogram = _added(found, histogram)
    for found, _ in counts:  # before anything looks at the ranges, which follow their parameters again
        found.restart_learning()
    ranges: dict[str, Range] = {}
    for model in backup.models:
        ranges |= ranges_of(model)
    if seen.passes:
        plan.check_patterns(ranges)
    apply_ranges(ranges, find_ranges(ranges, plan, is_settled=True))


def _added(found: Range, histogram: Histogram) -> Histogram:
    before = found.histogram
    if found.kind is Kind.WEIGHT:
        return replace(histogram, earlier=0.0)  # of all of them
    # what an earlier block has counted says more than the range that it left
    return histogram if before is None else before.merged(replace(histogram, earlier=0.0))
