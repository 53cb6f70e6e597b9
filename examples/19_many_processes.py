# SPDX-License-Identifier: Apache-2.0
"""Training on many processes: 1, 2 and 4 of them give the same scales, the same calibrated file, and equal numbers everywhere.

    torchrun --nproc-per-node 2 examples/19_many_processes.py

or `python examples/19_many_processes.py`, which runs 1, 2 and 4 processes one after the other and compares them. A digits network
is trained in float once. Then every process calibrates it, and trains it as integers by DistributedDataParallel (gloo, CPU), on its
own part of each batch. Ranges and batch-norm statistics are those of all processes, so their digests are equal on all of them.
The calibrated file has the same bytes for any number of processes: its weights are those of the float network, and its scales follow
from all pictures. The trained files differ, as float networks trained like this do: each process normalizes its part of a batch by
that part's mean and variance, and gradients are added up in another order. Their scales, which are powers of two, seldom differ.
Writes digits_float.pt and, for each number of processes, two ONNX files into demo-output. Needs the extra `demo`.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from real_models.packages import need
from rich.console import Console
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import linger
from linger.records.rich_table import table
from linger.workflow.demo import BATCH, DigitsNet, accuracy_of_file, digits, evaluate, export_digits, train

LIMIT = timedelta(minutes=2)
"""How long a process waits for the others."""


@dataclass(frozen=True)
class Outcome:
    """What the first process found."""

    is_equal: bool
    scales: dict[str, float]
    calibrated_file: str
    trained_file: str
    calibrated: float
    trained: float
    in_runtime: float
    differing: int
    seconds: float


def make_float_model(options: argparse.Namespace) -> None:
    """Train in float, in one process, and keep the weights."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DigitsNet()
    train(model, *digits()[:2], epochs=options.epochs, rate=4e-3, seed=0)
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), options.folder / "digits_float.pt")


def own_parts(x: Tensor, y: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch: everybody shuffles alike and takes its part of each batch."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    for batch in order[: len(x) // BATCH * BATCH].split(BATCH):
        own = batch.chunk(dist.get_world_size())[dist.get_rank()]
        yield x[own], y[own]


def train_together(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> float:
    """Train as integers; returns the seconds of an epoch."""
    together = DistributedDataParallel(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4)
    begin = time.perf_counter()
    for epoch in range(epochs):
        for pictures, labels in own_parts(x, y, epoch):
            optimizer.zero_grad()
            F.cross_entropy(together(pictures), labels).backward()
            optimizer.step()
    return (time.perf_counter() - begin) / epochs


def digest(model: nn.Module) -> str:
    """Of all that a model holds: weights, ranges, scales, statistics."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def is_equal_everywhere(model: nn.Module) -> bool:
    everybody: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(everybody, digest(model))
    return len(set(everybody)) == 1


def work(options: argparse.Namespace) -> Outcome | None:
    """One process of a group: calibrate, train, and in the first process export and prove."""
    # of torch's own gradient of a convolution with one input channel: an axis of size 1 has any stride
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
    torch.set_num_threads(1)
    train_x, train_y, test_x, test_y = digits()
    test_x, test_y = test_x[: options.images], test_y[: options.images]
    model = DigitsNet()
    model.load_state_dict(torch.load(options.folder / "digits_float.pt"))
    model.drop = nn.Dropout(0.0)  # its random numbers would depend on the number of processes
    quantized = linger.init(linger.trace_layers(model, test_x[:1])).eval()
    with linger.calibration():  # each process on its own pictures; the scales are those of all
        for pictures, _ in list(own_parts(train_x, train_y, seed=0))[:8]:
            quantized(pictures)
    is_equal, calibrated = is_equal_everywhere(quantized), copy.deepcopy(quantized)
    seconds = train_together(quantized, train_x, train_y, max(1, options.epochs // 5))
    is_equal = is_equal_everywhere(quantized) and is_equal
    if dist.get_rank() != 0:
        return None

    paths = [options.folder / f"digits_{kind}_{dist.get_world_size()}.onnx" for kind in ("calibrated", "trained")]
    for each, path in zip((calibrated, quantized), paths, strict=True):
        evaluate(each, test_x[:1], test_y[:1])
        export_digits(each, test_x[:1], path)
    proofs = [
        linger.verify(each, p, list(test_x.split(90))) for each, p in zip((calibrated, quantized), paths, strict=True)
    ]
    return Outcome(
        is_equal,
        {name: float(value) for name, value in quantized.state_dict().items() if ".scale_" in name},
        *(hashlib.sha256(path.read_bytes()).hexdigest()[:8] for path in paths),
        evaluate(calibrated, test_x, test_y),
        evaluate(quantized, test_x, test_y),
        accuracy_of_file(paths[1], test_x, test_y),
        sum(proof.differing for proof in proofs) if all(proof.ok for proof in proofs) else -1,
        seconds,
    )


def work_as(rank: int, count: int, meeting: str, options: argparse.Namespace) -> Outcome | None:
    """One process of those that this example starts by itself."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=LIMIT)
    try:
        return work(options)
    finally:
        dist.destroy_process_group()


def start(count: int, options: argparse.Namespace) -> Outcome:
    """Run so many processes; they are forked from one that has imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "linger.pipeline", "numpy"])
    function = importlib.import_module(Path(__file__).stem).work_as  # under a name that the processes can import
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(count, context) as pool:
        meeting = str(Path(folder) / "meeting")
        found = [pool.submit(function, rank, count, meeting, options) for rank in range(count)]
        outcome, *_ = [each.result() for each in found]
    assert outcome is not None  # the first process has one
    return outcome


def show(outcomes: dict[int, Outcome], console: Console) -> bool:
    """Print both tables. Whether everything that must be equal is."""
    first = next(iter(outcomes.values()))
    same, exact = [], []
    for count, one in outcomes.items():
        equal = sum(one.scales[name] == scale for name, scale in first.scales.items())
        is_same = "yes" if one.calibrated_file == first.calibrated_file else "no"
        is_alone = len(outcomes) == 1  # torchrun runs one number of processes: there is nothing to compare with
        same.append(
            [
                str(count),
                "yes" if one.is_equal else "no",
                one.calibrated_file,
                "—" if is_alone else is_same,
                one.trained_file,
                "—" if is_alone else f"{equal} of {len(first.scales)}",
            ]
        )
        figures = (one.calibrated, one.trained, one.in_runtime, one.seconds)
        exact.append([str(count), *(f"{figure:.2f}" for figure in figures), str(one.differing)])
    columns = (
        "processes",
        "equal on all of them",
        "calibrated file",
        "as the first",
        "trained file",
        "its scales as the first",
    )
    console.print(table("what is equal", columns, same))
    columns = ("processes", "calibrated %", "trained %", "file %", "seconds per epoch", "integers that differ")
    console.print(table("accuracy and speed", columns, exact))
    return all(
        o.is_equal and o.differing == 0 and o.calibrated_file == first.calibrated_file for o in outcomes.values()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[1, 2, 4], help="without torchrun: how many to start"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=540, help="how many test pictures are judged and proven")
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="where the files go")
    options = parser.parse_args()
    need("sklearn")
    console = Console()
    if not dist.is_torchelastic_launched():
        make_float_model(options)
        return 0 if show({count: start(count, options) for count in options.processes}, console) else 1
    dist.init_process_group("gloo", timeout=LIMIT)
    if dist.get_rank() == 0:
        make_float_model(options)
    dist.barrier()
    outcome, count = work(options), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    return 0 if outcome is None or show({count: outcome}, console) else 1


if __name__ == "__main__":
    raise SystemExit(main())
