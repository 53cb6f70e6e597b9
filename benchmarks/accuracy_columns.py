# SPDX-License-Identifier: Apache-2.0
"""The columns of the accuracy benchmark: each a way from a float model to a quantized one, on the tuning data alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

from networks import Network
from torch import nn

import linger

WIDE_GOAL = "20 dB"
WIDE_TRIALS = 100
Way = Callable[[Network, int], nn.Module]
"""Network and seed to quantized model."""


def fused(network: Network) -> nn.Module:
    """A copy of the float model whose batch norms are joined to their convolutions."""
    made = copy.deepcopy(network.model).eval()
    if network.can_fuse:
        linger.trace_layers(made, *network.tuning[0])
    return made


def calibrated(
    network: Network, seed: int = 0, *, model: nn.Module | None = None, method: str | None = None
) -> nn.Module:
    """Plain calibration, by the largest magnitude or another method."""
    del seed
    made = linger.init(fused(network) if model is None else model).eval()
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


def tuned(network: Network, seed: int, *, bits: str) -> nn.Module:
    """The one call."""
    options = {} if network.goal is None or bits == "8" else {"goal": network.goal}
    model, result = linger.tune(
        copy.deepcopy(network.model),
        list(network.tuning),
        budget=network.budget,
        bits=bits,
        target=network.target,
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
}
"""By name, in the order of the page. The column of ONNX Runtime is apart: it makes a file, not a model."""

RANDOM = (*SEEDED, "tune", "tune mixed")
"""Columns in which a seed plays a part."""

RUNTIME = "ONNX Runtime static"
NEEDED = {"equalize": "equalize", "find_bits": "find_bits", "tune": "tune", "tune mixed": "tune"} | {
    name: name for name in REMEDIES
}
"""Columns that need a public name of linger."""
