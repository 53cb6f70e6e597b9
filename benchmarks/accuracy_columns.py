# SPDX-License-Identifier: Apache-2.0
"""The columns of the accuracy benchmark: each a way from a float model to a quantized one, on the tuning data alone.

Plain calibration and tuning each come in three number systems: one scale for each tensor, one for each output channel of weights, and
that with 0 … 255 for activations that are never negative.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial

from networks import SHORT, SMALL, Network
from torch import nn

import linger

WIDE_GOAL = "20 dB"
WIDE_TRIALS = 100
Way = Callable[[Network, int], nn.Module]
"""Network and seed to quantized model."""


NUMBERS: Mapping[str, Mapping[str, bool]] = {
    "": {},
    "per channel": {"per_channel": True},
    "per channel unsigned": {"per_channel": True, "unsigned": True},
}
"""Number systems: what is behind the name of a column, and the arguments."""


def numbered(column: str, numbers: str) -> str:
    """The name of a column in a number system."""
    return f"{column} {numbers}".rstrip()


def fused(network: Network) -> nn.Module:
    """A copy of the float model whose batch norms are joined to their convolutions."""
    made = copy.deepcopy(network.model).eval()
    if network.can_fuse:
        linger.trace_layers(made, *network.tuning[0])
    return made


def calibrated(
    network: Network, seed: int = 0, *, model: nn.Module | None = None, method: str | None = None, numbers: str = ""
) -> nn.Module:
    """Plain calibration, by the largest magnitude or another method."""
    del seed
    made = linger.init(fused(network) if model is None else model, **NUMBERS[numbers]).eval()
    options = {} if method is None else {"method": method}
    with linger.calibration(**options):
        for batch in network.tuning:
            made(*batch)
    return made


def equalized(network: Network, seed: int) -> nn.Module:
    """Equalized in float, then plain calibration."""
    model = fused(network)
    linger.equalize(model, list(network.tuning))
    return calibrated(network, seed, model=model)


def widened(network: Network, seed: int) -> nn.Module:
    """Plain calibration, then as few 16-bit tensors as give 20 dB at the output."""
    del seed
    made = calibrated(network)
    reference = copy.deepcopy(network.model)
    linger.find_bits(made, reference, list(network.tuning), goal=WIDE_GOAL, bits=(8, 16), max_trials=WIDE_TRIALS)
    return made


def remedied(network: Network, seed: int, *, remedy: str) -> nn.Module:
    """Plain calibration, then one remedy that works on the quantized model."""
    made = calibrated(network)
    options = {"seed": seed} if remedy in SEEDED else {}
    getattr(linger, remedy)(made, copy.deepcopy(network.model), list(network.tuning), **options)
    return made


def tuned(network: Network, seed: int, *, bits: str, numbers: str = "") -> nn.Module:
    """The one call. No chip has the finer number systems, so they are tuned for none."""
    options = dict(NUMBERS[numbers])
    if network.goal is not None and bits == "mixed":
        options["goal"] = network.goal
    model, result = linger.tune(
        copy.deepcopy(network.model),
        list(network.tuning),
        budget=network.budget if bits == "mixed" or network.budget == SMALL else SHORT,
        bits=bits,
        target=None if numbers else network.target,
        seed=seed,
        **options,
    )
    print(result, flush=True)
    return model


SEEDED = ("distill", "round_weights")

METHODS = ("percentile", "mse", "kl", "topk")
REMEDIES = ("correct_biases", "choose_exponents", "round_weights", "distill")

COLUMNS: dict[str, Way] = {
    "max": calibrated,
    **{method: partial(calibrated, method=method) for method in METHODS},
    "equalize": equalized,
    **{remedy: partial(remedied, remedy=remedy) for remedy in REMEDIES},
    "find_bits": widened,
    "tune": partial(tuned, bits="8"),
    "tune mixed": partial(tuned, bits="mixed"),
    **{numbered("max", numbers): partial(calibrated, numbers=numbers) for numbers in NUMBERS if numbers},
    **{numbered("tune", numbers): partial(tuned, bits="8", numbers=numbers) for numbers in NUMBERS if numbers},
}
"""By name, in the order of the page. The column of ONNX Runtime is apart: it makes a file, not a model."""

PAIRS = {numbered("max", numbers): numbered("tune", numbers) for numbers in NUMBERS}
"""The column of tuning by that of plain calibration in the same number system."""

RANDOM = (*SEEDED, *PAIRS.values(), "tune mixed")
"""Columns in which a seed plays a part."""

RUNTIME = "ONNX Runtime static"
NEEDED = {"equalize": "equalize", "find_bits": "find_bits", "tune": "tune", "tune mixed": "tune"} | {
    name: name for name in REMEDIES
}
"""Columns that need a public name of linger."""


def lacks(column: str) -> str | None:
    """What a column needs and this linger does not have."""
    if name := next((needed for key, needed in NEEDED.items() if key == column and not hasattr(linger, needed)), None):
        return f"linger.{name}"
    of_numbers = [numbers for numbers in NUMBERS if numbers and column == numbered("tune", numbers)]
    known = inspect.signature(linger.tune).parameters
    missing = [argument for numbers in of_numbers for argument in NUMBERS[numbers] if argument not in known]
    return f"linger.tune(…, {missing[0]}=…)" if missing else None
