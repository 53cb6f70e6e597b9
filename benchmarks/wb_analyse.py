# SPDX-License-Identifier: Apache-2.0
"""What the analysis of a 1 GB checkpoint costs, against the definition that sorts and against one plain pass.

All three read the same safetensors file in one run, the analysis and the plain pass interleaved. The numbers of the analysis and
of the definition are compared with equality. Peak memory is that of a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from interleaved import samples
from rows import Row, parser, ratio_of, report, spread_of
from safetensors import safe_open
from safetensors.torch import save_file

import linger

SORT_BAR, PLAIN_BAR, MEMORY_BAR = 0.05, 4.0, 600
# not getrusage: its maximum begins with that of the process that started this one
_PEAK = """
import sys
import linger
linger.wb_analyse(sys.argv[1], None)
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM")))
"""


def build(path: Path, megabytes: int) -> None:
    """Tensors as networks have them: a large table, convolutions and projections, some with heavy tails, biases."""
    generator = torch.Generator().manual_seed(0)
    left = megabytes * 2**20 // 4
    tensors: dict[str, torch.Tensor] = {}
    shapes = [(32768, 1024), (4096, 1024), (1024, 4096), (512, 512, 3, 3), (1024,), (256, 128, 3, 3), (64, 3, 7, 7)]
    layer = 0
    while left > 0:
        for shape in shapes:
            x = torch.randn(shape, generator=generator) * 0.05
            if layer % 3 == 1:
                x = x.pow(3) * 400  # heavy tails
            tensors[f"layer{layer}.weight"] = x
            left -= x.numel()
            layer += 1
            if left <= 0:
                break
        shapes = shapes[1:] if len(shapes) == 7 else shapes
    save_file(tensors, path)


def by_sorting(path: Path) -> dict[str, tuple[float, float, float]]:
    """The documented definition, word for word; the mean in double precision."""
    found = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a dictionary
            a = file.get_tensor(name).abs().flatten().sort().values
            mean = a.double().mean().float()
            found[name] = (mean.item(), a[-1].item(), a[int(len(a) * 0.99) - 1].item())
    return found


def plain_pass(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a dictionary
            a = file.get_tensor(name).abs()
            a.max()
            a.mean()


def rows(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        build(path, options.megabytes)
        variants = {"linger": lambda: linger.wb_analyse(path, None), "plain": lambda: plain_pass(path)}
        times = samples(variants, rounds=options.rounds, warm_up=1)
        begin = time.process_time()
        expected = by_sorting(path)
        sorting = time.process_time() - begin
        found = {row.name: (row.mean, row.max, row.dynamic) for row in linger.wb_analyse(path, None).rows}
        peak = int(subprocess.run([sys.executable, "-c", _PEAK, path], capture_output=True, check=True).stdout)
        size = path.stat().st_size / 2**20
    differing = sum(found[name] != numbers for name, numbers in expected.items())
    same = f"{differing} of {len(expected)} tensors' numbers differ"
    what = f"wb_analyse of a checkpoint of {size:.0f} MB"
    return [
        spread_of(
            f"{what} / sorting",
            [t / sorting for t in times["linger"]],
            bar=SORT_BAR,
            detail=f"sorting {sorting:.1f} s; {same}",
        ),
        ratio_of(f"{what} / one plain pass", times, "linger", base="plain", bar=PLAIN_BAR),
        Row(f"{what}: peak memory", peak, MEMORY_BAR, unit="MB"),
    ]


def main() -> None:
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("--megabytes", type=int, default=1024)
    report(rows, arguments)


if __name__ == "__main__":
    main()
