# SPDX-License-Identifier: Apache-2.0
"""What training as integers costs on two processes: DistributedDataParallel (gloo), CIFAR ResNet-18, one thread for each process.

A step of the float model and one of the integer model in turn, both processes at the same one. CPU time is the sum of both
processes, and has the bar; time on the wall is that of the slower one. Collectives are counted by torch's profiler: those of
the integer model's step beyond those of the float model's, which are DistributedDataParallel's own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cifar_resnet import ResNet18
from qat_step import training_step
from rows import Row, parser, ratio_of, report
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import linger

RANKS = 2
STEP_BAR = 1.15
WARM_UP = 2
Step = Callable[[], None]


def steps_of(options: argparse.Namespace) -> dict[str, Step]:
    """A training step of each model, on this process's own pictures."""
    torch.manual_seed(0)
    models: dict[str, nn.Module] = {name: ResNet18(width=options.width) for name in ("float", "integers")}
    torch.manual_seed(1 + dist.get_rank())
    x, target = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 100, (options.batch,))
    linger.init(linger.trace_layers(models["integers"], x[:1]))
    return {name: training_step(DistributedDataParallel(model.train()), x, target) for name, model in models.items()}


def times_of(steps: Mapping[str, Step], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each step in each round: of CPU, both processes together, and on the wall. The order rotates."""
    found: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in steps} for kind in ("CPU", "wall")}
    names = list(steps)
    for turn in range(WARM_UP + rounds):
        for name in names[turn % 2 :] + names[: turn % 2]:
            dist.barrier()
            cpu, wall = time.process_time(), time.perf_counter()
            steps[name]()
            spent = torch.tensor([time.process_time() - cpu, time.perf_counter() - wall], dtype=torch.float64)
            everybody = [torch.zeros_like(spent) for _ in range(RANKS)]
            dist.all_gather(everybody, spent)
            if turn >= WARM_UP:
                found["CPU"][name].append(float(sum(each[0] for each in everybody)))
                found["wall"][name].append(float(max(each[1] for each in everybody)))
    return found


def collectives_of(step: Step) -> int:
    """How often a step speaks to the other process."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    return sum(event.name.startswith("gloo:") for event in profiled.events() or ())


def _measure(rank: int, options: argparse.Namespace, meeting: str, results: Any) -> None:
    """One process; the first one hands everything over."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    steps = steps_of(options)
    times = times_of(steps, options.rounds)
    counts = {name: collectives_of(step) for name, step in steps.items()}
    if rank == 0:
        results.put((times, counts))
    dist.barrier()
    dist.destroy_process_group()


def rows(options: argparse.Namespace) -> list[Row]:
    results = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        multiprocessing.spawn(_measure, (options, meeting, results), nprocs=RANKS)
    times, counts = results.get()
    network = f"ResNet-18 (CIFAR), width {options.width}, batch {options.batch} on each of {RANKS} processes"
    claim = f"QAT step / float step, DistributedDataParallel, {network}"
    detail = f"{counts['float']} collectives of DistributedDataParallel"
    return [
        ratio_of(f"{claim}: CPU", times["CPU"], "integers", base="float", bar=STEP_BAR),
        ratio_of(f"{claim}: wall", times["wall"], "integers", base="float"),
        Row(
            f"collectives beyond those of the float step, {network}",
            counts["integers"] - counts["float"],
            1,
            detail=detail,
            unit="",
        ),
    ]


def main() -> None:
    arguments = parser(__doc__, rounds=12)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--width", type=int, default=64)
    report(rows, arguments)


if __name__ == "__main__":
    main()
