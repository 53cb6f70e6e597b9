# SPDX-License-Identifier: Apache-2.0
"""The inside of tuning that its tests look at: sessions and their steps, held-out data, errors, ranges, channels.

This is the one place that knows where the package keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from linger.quantization.core.calibrate import real_copy
from linger.quantization.core.quantized import QuantizedBase, ranges_of
from linger.quantization.core.runtime import runtime_of
from linger.quantization.core.stored import Kind
from linger.tuning.autotune import tune as front
from linger.tuning.autotune.result import Budget, Step, TuneStep, fitting_threads, on_threads
from linger.tuning.autotune.search import (
    FOLDED,
    HEADROOM,
    PLAIN,
    Judge,
    NothingToDoError,
    Score,
    Search,
    Trial,
    below_plain,
    gap_of,
    is_better,
    objection,
    t_quantile,
    unpaid,
)
from linger.tuning.autotune.steps import EQUALIZED, STEPS, TOGETHER, quantized, start_of
from linger.tuning.autotune.tune import repeatable
from linger.tuning.equalization.equalize import Chains
from linger.tuning.equalization.rules import RULES
from linger.tuning.equalization.watching import Clip, watch_channels
from linger.tuning.equalization.weights import absorb, apply_factors, apply_limits, limited_modules
from linger.tuning.held_out import Parts, read_interval, shifted, split, split_data
from linger.tuning.mixed_precision.goals import checked_metric, read_goal
from linger.tuning.mixed_precision.units import (
    BitModel,
    ChipWidths,
    Originals,
    Unit,
    layers_of,
    peak_bytes_of,
    units_of,
    watch_flow,
)
from linger.tuning.remedy import OutputError, error_db

__all__ = [
    "EQUALIZED",
    "FOLDED",
    "HEADROOM",
    "PLAIN",
    "STEPS",
    "TOGETHER",
    "BitModel",
    "Chains",
    "ChipWidths",
    "Judge",
    "Kind",
    "NothingToDoError",
    "Originals",
    "OutputError",
    "Parts",
    "QuantizedBase",
    "Score",
    "Search",
    "Step",
    "Trial",
    "TuneStep",
    "Unit",
    "absorb",
    "apply_factors",
    "apply_limits",
    "below_plain",
    "chains_of",
    "checked_metric",
    "error_db",
    "fitting_threads",
    "front",
    "gap_of",
    "is_better",
    "layers_of",
    "objection",
    "on_threads",
    "peak_bytes_of",
    "quantized",
    "ranges_of",
    "read_budget",
    "read_goal",
    "read_interval",
    "real_copy",
    "repeatable",
    "runtime_of",
    "session_of",
    "shifted",
    "split",
    "split_data",
    "start_of",
    "t_quantile",
    "units_of",
    "unpaid",
    "watch_flow",
]

read_budget = Budget.read


def session_of(reference: nn.Module, parts: Parts, steps: object = None) -> Search:
    """A search over these data that knows some steps, and has an hour."""
    return Search(parts, Judge(reference, parts), read_budget("1 h"), steps or {})  # type: ignore[arg-type]


def chains_of(
    model: nn.Module, batches: Sequence[tuple[Tensor, ...]], *, has_limits: bool = True
) -> tuple[Chains, list[Clip]]:
    """The channels of a float model that may have factors, and the limits that become those of single channels."""
    watch = watch_channels(model, batches, RULES)
    limited = limited_modules(watch, has_limits=has_limits)
    return Chains(watch, model, limited), limited
