# SPDX-License-Identifier: Apache-2.0
"""Training on several processes: the digits network in two halves, with the same ranges everywhere, and one proven file.

    torchrun --nproc-per-node 2 examples/19_many_processes.py

or, which starts the processes by itself, `python examples/19_many_processes.py`. Each process sees pictures of its own,
in float training, calibration and training as integers (DistributedDataParallel, gloo, CPU). The first table shows, by
digests, what is equal on all processes and when. Ranges and scales always are: linger takes the largest value that any process
saw, and weights are rounded with the batch-norm statistics of process 0, which DistributedDataParallel gives to everybody
before each pass. (It does so unless told `broadcast_buffers=False`; then weights that hold a batch norm would differ.) In
between, each process has learnt statistics of its own. Process 0 then writes demo-output/digits_processes.onnx and proves it;
the second table has the accuracies. Needs the extra `demo`.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import torch
import torch.distributed as dist
import torch.nn.functional as F
from real_models.packages import need
from rich.console import Console
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import linger
from linger.reporting.tables import table

digits_example = importlib.import_module("01_digits")
KINDS = {
    "ranges and scales": ("running_x", "running_w", "running_o", "scale_x", "scale_w", "scale_o"),
    "weights": ("weight", "bias"),
    "batch-norm statistics": ("running_mean", "running_var"),
}
Digests = list[dict[str, str]]


def join_the_others(options: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    """Become one of the processes. Without torchrun this one is the first, and starts the others; they are returned."""
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
        return []
    count, rank = options.processes, options.rank
    store = dist.TCPStore("127.0.0.1", options.port, count, is_master=rank == 0, wait_for_workers=False)
    command = [sys.executable, *sys.argv, "--port", str(store.port)]
    others = [subprocess.Popen([*command, "--rank", str(r)]) for r in range(1, count if rank == 0 else 0)]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
    return others


def own_part(x: Tensor, y: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch: everybody shuffles alike and takes other pictures, in batches that are as many everywhere."""
    order = torch.randperm(len(x), generator=generator)
    share = len(x) // dist.get_world_size()
    own = order[dist.get_rank() * share :][:share]
    for chosen in own.split(digits_example.BATCH // dist.get_world_size()):
        yield x[chosen], y[chosen]


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, rate: float) -> DistributedDataParallel:
    """Train on all processes; the model itself is trained, and returned in its wrapper."""
    together = DistributedDataParallel(model).train()
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - epoch / epochs)
        for pictures, labels in own_part(x, y, generator):
            optimizer.zero_grad()
            F.cross_entropy(together(pictures), labels).backward()
            optimizer.step()
    return together


def digests(model: nn.Module) -> Digests:
    """For every process, what the tensors of each kind hold, as eight digits."""
    found = {kind: hashlib.sha256() for kind in KINDS}
    for name, tensor in sorted(model.state_dict().items()):
        for kind, endings in KINDS.items():
            if name.rpartition(".")[2] in endings:
                found[kind].update(name.encode() + tensor.numpy().tobytes())
    everybody: Digests = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everybody, {kind: digest.hexdigest()[:8] for kind, digest in found.items()})
    return everybody


def rows_of(when: str, everybody: Digests) -> list[list[str]]:
    return [
        [when, kind, *(own[kind] for own in everybody), "yes" if len({own[kind] for own in everybody}) == 1 else "no"]
        for kind in KINDS
    ]


def run(options: argparse.Namespace) -> bool:
    """Everything, on every process; the first one prints. Whether the ranges are equal and the file is proven."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    console = Console(quiet=dist.get_rank() != 0)
    train_x, train_y, test_x, test_y = digits_example.digits()
    test_x, test_y = test_x[: options.images], test_y[: options.images]
    model = digits_example.DigitsNet()
    together = train(model, train_x, train_y, epochs=options.epochs, rate=4e-3)
    in_float = digits_example.evaluate(together, test_x, test_y)

    quantised = linger.init(linger.trace_layers(copy.deepcopy(model), test_x[:1])).eval()
    with linger.calibration():  # each process on its own pictures; the counts are added up at the end
        for pictures, _ in list(own_part(train_x, train_y, torch.Generator().manual_seed(1)))[:8]:
            quantised(pictures)
    steps = {"after calibration": digests(quantised)}
    calibrated = digits_example.evaluate(quantised, test_x, test_y)
    together = train(quantised, train_x, train_y, epochs=max(1, options.epochs // 5), rate=4e-4)
    steps["after training"] = digests(quantised)
    trained = digits_example.evaluate(together, test_x, test_y)  # its first pass brings the statistics of process 0
    steps["after the next pass"] = digests(quantised)
    columns = ("when", "what", *(f"process {rank}" for rank in range(dist.get_world_size())), "equal")
    rows = [row for when, everybody in steps.items() for row in rows_of(when, everybody)]
    console.print(table("digests of what every process holds", columns, rows))
    is_same = all(row[-1] == "yes" for row in rows if row[1] == "ranges and scales")
    if dist.get_rank() != 0:
        return is_same

    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "digits_processes.onnx"
    axes = {"image": {0: "batch"}, "scores": {0: "batch"}}
    names = {"input_names": ["image"], "output_names": ["scores"]}
    linger.onnx.export(quantised, (test_x[:1],), path, dynamic_axes=axes, **names)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    in_runtime = digits_example.accuracy(session.run(None, {"image": test_x.numpy()})[0], test_y)
    proof = linger.verify(quantised, path, list(test_x.split(90)))
    console.print(proof.summary())
    accuracies = [f"{a:.2f}" for a in (in_float, calibrated, trained, in_runtime)]
    columns = ("float %", "calibrated %", "trained as integers %", "ONNX Runtime %")
    console.print(table(f"digits, {len(test_x)} test images", columns, [accuracies]))
    return is_same and proof.ok


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2, help="how many to start; torchrun knows by itself")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=540, help="how many test pictures are judged and proven")
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="where the ONNX file goes")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # of torch's own gradient of a convolution with one input channel: an axis of size 1 has any stride
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
    need("sklearn")
    others = join_the_others(options)
    try:
        is_good = run(options)
        dist.barrier()
    except BaseException:
        for other in others:
            other.kill()
            other.wait()
        raise
    dist.destroy_process_group()
    return 0 if is_good and not any(other.wait() for other in others) else 1


if __name__ == "__main__":
    raise SystemExit(main())
