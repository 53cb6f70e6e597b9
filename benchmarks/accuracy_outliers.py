# SPDX-License-Identifier: Apache-2.0
"""What one wild value in the calibration data costs: a single pixel, 100 times the largest one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accuracy_columns import METHODS, calibrated
from networks import ENTRIES, Network
from networks.figures import join_outputs, sqnr_db

OUTLIERS = "outliers"
FACTOR = 100.0
NETWORKS = ("digits", "mnist-residual", "upconv7")


def with_outlier(network: Network) -> Network:
    """The same network with one value of its first batch 100 times as large as the largest."""
    first = network.tuning[0][0].clone()
    first.view(-1)[first.numel() // 2] = FACTOR * float(first.abs().max())
    return replace(network, tuning=[(first, *network.tuning[0][1:]), *network.tuning[1:]])


def measure_outliers(cells: Any, cache: Path, *, is_quick: bool) -> None:
    """For every method: output SQNR with clean data and with the outlier."""
    for name in NETWORKS:
        network = ENTRIES[name].load(name, cache, 0, is_quick=is_quick)
        with torch.no_grad():
            expected = join_outputs([_tuple(network.model(*batch)) for batch in network.judged])
        for method in ("max", *METHODS):
            try:
                found = {
                    kind: _sqnr(some, method, expected)
                    for kind, some in (("clean dB", network), ("with outlier dB", with_outlier(network)))
                }
            except TypeError as error:  # calibration of this linger takes no method
                print(f"{name}, outlier, {method}: {error}")
                continue
            found["cost dB"] = found["clean dB"] - found["with outlier dB"]
            cells.write(f"{OUTLIERS}-{name}", method, 0, {"figures": found})
            print(f"{name}, outlier, {method}: " + ", ".join(f"{k} {v:.2f}" for k, v in found.items()))


def _sqnr(network: Network, method: str, expected: tuple[torch.Tensor, ...]) -> float:
    model = calibrated(network, method=None if method == "max" else method)
    with torch.no_grad():
        found = join_outputs([_tuple(model(*batch)) for batch in network.judged])
    return sqnr_db(expected, found)


def _tuple(output: Any) -> tuple[torch.Tensor, ...]:
    several = output if isinstance(output, tuple) else (output,)
    return tuple(torch.from_numpy(t.detach().numpy()) for t in several)
