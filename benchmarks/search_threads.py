# SPDX-License-Identifier: Apache-2.0
"""What choosing its threads gives a search: the network of the start page, tuned with 20 trials, against all of torch's threads.

The variants take turns in one process. A network this small gains nothing from a second thread, which spins while it waits.
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

import torch
from rows import Row, parser, ratio_of, report
from torch import nn

import linger

CHOICE = "linger.tuning.autotune.tune.fitting_threads"
ALL, CHOSEN = "all threads", "chosen"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    ).eval()


def rows(options: argparse.Namespace) -> list[Row]:
    if torch.get_num_threads() == 1:
        torch.set_num_threads(2)  # where the environment has chosen already
    net, pictures = network(), list(torch.randn(478, 1, 8, 8).split(32))
    every = torch.get_num_threads()

    def all_threads() -> None:
        with mock.patch(CHOICE, return_value=every):
            linger.tune(net, pictures, budget="20 trials")

    variants = {ALL: all_threads, CHOSEN: lambda: linger.tune(net, pictures, budget="20 trials")}
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    wall: dict[str, list[float]] = {name: [] for name in variants}
    all_threads()  # what is loaded on first use counts for nobody
    for turn in range(options.rounds):
        for name in (ALL, CHOSEN) if turn % 2 else (CHOSEN, ALL):
            begun, began = time.process_time(), time.perf_counter()
            variants[name]()
            cpu[name].append(time.process_time() - begun)
            wall[name].append(time.perf_counter() - began)
    claim = f"search of the start page's network, chosen threads / all {every} of torch"
    return [
        ratio_of(f"{claim}, CPU time", cpu, CHOSEN, base=ALL),
        ratio_of(f"{claim}, on the wall", wall, CHOSEN, base=ALL),
    ]


def main() -> None:
    report(rows, parser(__doc__, rounds=5))


if __name__ == "__main__":
    main()
