# SPDX-License-Identifier: Apache-2.0
"""Ways to find scales while a network is trained as integers: five networks × widths × methods, three seeds each.

    python benchmarks/qat_methods.py            # measures, and writes the section of docs/accuracy.md
    python benchmarks/qat_methods.py --methods "tqt, per channel" --widths W8A8 W4A8    # some of the cells
    python benchmarks/qat_methods.py --choose   # tries learning rates on data left out of training; the test data stay unseen

Every cell of a network and a seed begins with the same float network and sees the same batches in the same order. Figures are
kept in benchmarks/qat_methods.json, so that a page can be put together from several runs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from accuracy_page import spread
from qat_section import FLOAT, KEPT, LEARNED, PAGE, PER_CHANNEL, USUAL, Cells, section, write_section
from qat_tasks import TASKS, Task, train
from torch import nn

import linger

CACHE = Path.home() / ".cache" / "linger-accuracy" / "qat"
SEEDS = (0, 1, 2)
CHOICE_SEEDS = (100, 101)
CHOSEN_RATES = {"tqt": 0.01, "lsq": 0.0003}
"""Learning rates of learned scales, found by --choose among these:"""
TRIED_RATES = {"tqt": (0.003, 0.01, 0.03), "lsq": (0.0001, 0.0003, 0.001)}


@dataclass(frozen=True)
class Widths:
    """Bits of inputs, weights and outputs of layers."""

    data: int
    weights: int

    def __str__(self) -> str:
        return f"W{self.weights}A{self.data}"


WIDTHS = (Widths(8, 8), Widths(8, 4), Widths(4, 4))

Method = Callable[[Task, nn.Module, Widths, int, float], nn.Module]
"""Quantizes and trains: task, float network, widths, seed, learning rate of scales."""


def quantized(
    task: Task, model: nn.Module, widths: Widths, weights: str = "max", *, is_per_channel: bool = False
) -> nn.Module:
    """A copy of these widths, with ranges from training data; those of weights by a method of calibration."""
    made = copy.deepcopy(model)
    if task.is_fused:
        made = linger.trace_layers(made, *task.calibration[0])
    made = linger.quant_module(made, data_bits=widths.data, parameter_bits=widths.weights, out_bits=widths.data)
    made = linger.init(made, per_channel=is_per_channel or None).eval()
    with linger.calibration(weights=weights):
        for arguments in task.calibration:
            made(*arguments)
    return made


def calibrated(*, is_per_channel: bool = False) -> Method:
    """No training: the largest magnitudes, or for narrow weights the ranges of least squared error."""

    def run(task: Task, model: nn.Module, widths: Widths, seed: int, rate: float) -> nn.Module:
        del seed, rate
        return quantized(task, model, widths, "mse" if widths.weights < 8 else "max", is_per_channel=is_per_channel)

    return run


def steps_of(task: Task) -> int:
    """Steps of training as integers."""
    return task.epochs[1] * sum(1 for _ in task.batches(torch.Generator().manual_seed(0)))


def trained(task: Task, made: nn.Module, seed: int, scales: list[nn.Parameter], rate: float, **when: Any) -> nn.Module:
    """Train a quantized model; in the second half its batch norms keep their statistics."""
    schedule = linger.Schedule(made, freeze_batch_norms=steps_of(task) // 2 if task.is_fused else None, **when)
    learned = {id(scale) for scale in scales}
    own = [parameter for parameter in made.parameters() if id(parameter) not in learned]
    groups = [{"params": own, "lr": task.rate[1]}, *([{"params": scales, "lr": rate}] if scales else [])]
    train(made, task, seed, task.epochs[1], groups, schedule.step)
    return made


def running(weights: str, *, is_per_channel: bool = False) -> Method:
    """Ranges follow the data; those of weights their largest magnitude ("max"), or they stay as calibration found them."""

    def run(task: Task, model: nn.Module, widths: Widths, seed: int, rate: float) -> nn.Module:
        made = quantized(task, model, widths, weights, is_per_channel=is_per_channel)
        return trained(task, made, seed, [], rate)

    return run


def stepwise(task: Task, model: nn.Module, widths: Widths, seed: int, rate: float) -> nn.Module:
    """As `running`, with weights of 16 bits in the first sixth, then of 8 bits, in the last two thirds of 4."""
    made, steps = quantized(task, model, Widths(8, 16)), steps_of(task)
    last = f"{widths.data}/{widths.weights}/{widths.data}"
    return trained(task, made, seed, [], rate, widths={0: "8/16/8", steps // 6: "8/8/8", steps // 3: last})


def learned(method: str, *, is_per_channel: bool = False) -> Method:
    """Scales are parameters of the network."""

    def run(task: Task, model: nn.Module, widths: Widths, seed: int, rate: float) -> nn.Module:
        made = quantized(task, model, widths, "mse", is_per_channel=is_per_channel)
        return trained(task, made, seed, linger.learn_scales(made, method), rate)

    return run


METHODS: dict[str, Method] = {
    "calibrated": calibrated(),
    "running": running("max"),
    USUAL: running("mse"),
    "16 → 8 → 4": stepwise,
    **{method: learned(method) for method in LEARNED},
    f"calibrated{PER_CHANNEL}": calibrated(is_per_channel=True),
    f"{USUAL}{PER_CHANNEL}": running("mse", is_per_channel=True),
    **{f"{method}{PER_CHANNEL}": learned(method, is_per_channel=True) for method in LEARNED},
}


def rate_of(method: str) -> float:
    """The learning rate of a method's scales; that of one scale for each channel was not chosen anew."""
    return CHOSEN_RATES.get(method.removesuffix(PER_CHANNEL), 0.0)


def differing(task: Task, model: nn.Module) -> int:
    """How many integers of the exported file differ from the model's on two batches of training data."""
    batches = [arguments for arguments, _ in task.batches(torch.Generator().manual_seed(0))][:2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        linger.onnx.export(model, batches[0], path)
        return linger.verify(model, path, batches[:1]).differing


def step_cost(task: Task, model: nn.Module, widths: Widths, method: str) -> float:
    """CPU time of a training step over that of the float network, interleaved, median."""
    batches = [batch for batch, _ in zip(task.batches(torch.Generator().manual_seed(0)), range(6), strict=False)]
    made = quantized(task, model, widths, "mse", is_per_channel=method.endswith(PER_CHANNEL))
    if (learns := method.removesuffix(PER_CHANNEL)) in LEARNED:
        linger.learn_scales(made, learns)
    models = {"float": copy.deepcopy(model).train(), "integers": made.train()}
    taken: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(5):
        for (arguments, target), (name, one) in product(batches, models.items()):
            began = time.process_time()
            task.loss(one(*arguments), target).backward()
            taken[name].append(time.process_time() - began)
    return statistics.median(taken["integers"]) / statistics.median(taken["float"])


def measure(task: Task, widths: Widths, method: str, seeds: tuple[int, ...], cache: Path, rate: float) -> list[float]:
    """The figure of each seed."""
    found = []
    for seed in seeds:
        torch.manual_seed(seed)
        found.append(task.judge(METHODS[method](task, task.float_model(seed, cache), widths, seed, rate)))
    return found


def asked(options: argparse.Namespace) -> list[Widths]:
    """The widths that were asked for."""
    return [widths for widths in WIDTHS if str(widths) in options.widths]


def choose(options: argparse.Namespace) -> None:
    """Print what each learning rate of learned scales gives on data that were left out of training."""
    for name in options.tasks:
        task = TASKS[name](CACHE, is_choice=True)
        in_float = [task.judge(task.float_model(seed, CACHE / "choice")) for seed in CHOICE_SEEDS]
        print(f"{task.title}: float {spread(in_float)}", flush=True)
        for widths, method in product(asked(options), options.methods):
            for rate in TRIED_RATES.get(method.removesuffix(PER_CHANNEL), (0.0,)):
                found = measure(task, widths, method, CHOICE_SEEDS, CACHE / "choice", rate)
                print(f"  {widths} {method} {rate:g}: {spread(found)}", flush=True)


def measure_all(options: argparse.Namespace) -> None:
    """Measure the cells that were asked for, keep them, and write the section."""
    cells = Cells.read(KEPT)
    for name in options.tasks:
        task = TASKS[name](CACHE, is_choice=False)
        models = {seed: task.float_model(seed, CACHE) for seed in SEEDS}
        cells.put(task.title, task.unit, FLOAT, "", [task.judge(model) for model in models.values()])
        for widths, method in product(asked(options), options.methods):
            if method == "16 → 8 → 4" and widths.weights == 8:
                continue
            found = measure(task, widths, method, SEEDS, CACHE, rate_of(method))
            is_trained = not method.startswith("calibrated")
            cost = step_cost(task, models[0], widths, method) if is_trained else None
            made = METHODS[method](task, models[0], widths, 0, rate_of(method))
            facts = {"cost": cost, "differing": differing(task, made)}
            cells.put(task.title, task.unit, str(widths), method, found, **facts)
            print(f"{task.title}, {widths}, {method}: {spread(found)}, step ×{cost or 0:.2f}", flush=True)
            cells.write(KEPT)
    write_section(section(cells, [str(w) for w in WIDTHS], list(METHODS)), PAGE)


def main() -> None:
    """Measure or choose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--widths", nargs="+", choices=[str(w) for w in WIDTHS], default=[str(w) for w in WIDTHS])
    parser.add_argument("--choose", action="store_true", help="try learning rates; nothing is written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    (choose if options.choose else measure_all)(options)


if __name__ == "__main__":
    main()
