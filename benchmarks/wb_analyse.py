# SPDX-License-Identifier: Apache-2.0
"""What the analysis of a 1 GB checkpoint costs, against the definition that sorts and against one plain pass.

All three read the same safetensors file in one run; process CPU time, the analysis and the plain pass interleaved,
medians. The numbers of the analysis and of the definition are compared with equality. Peak memory is that of a process of
its own. Bars: at least 20 times less CPU time than sorting, peak memory below 600 MB, aim below 4 plain passes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from interleaved import medians
from safetensors import safe_open
from safetensors.torch import save_file

import linger

SORT_BAR, PLAIN_AIM, MEMORY_BAR = 20.0, 4.0, 600
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        build(path, options.megabytes)
        times = medians(
            {"linger": lambda: linger.wb_analyse(path, None), "plain": lambda: plain_pass(path)},
            rounds=options.rounds,
            warm_up=1,
        )
        begin = time.process_time()
        expected = by_sorting(path)
        sorting = time.process_time() - begin
        rows = linger.wb_analyse(path, None).rows
        found = {row.name: (row.mean, row.max, row.dynamic) for row in rows}
        peak = int(subprocess.run([sys.executable, "-c", _PEAK, path], capture_output=True, check=True).stdout)
        size = path.stat().st_size / 2**20
    differing = sum(found[name] != numbers for name, numbers in expected.items())
    ratio, passes = sorting / times["linger"], times["linger"] / times["plain"]
    print(f"{size:.0f} MB, {len(rows)} tensors: sorting {sorting:.1f} s, linger {times['linger']:.2f} s of CPU time")
    print(f"{ratio:.0f} times less than sorting ({_verdict(ratio >= SORT_BAR)} the bar {SORT_BAR:.0f})")
    print(
        f"{passes:.2f} plain passes of {times['plain']:.2f} s ({_verdict(passes < PLAIN_AIM)} the aim {PLAIN_AIM:.0f})"
    )
    print(
        f"{differing} of {len(expected)} rows differ; peak memory {peak} MB ({_verdict(peak < MEMORY_BAR)} {MEMORY_BAR})"
    )


def _verdict(is_met: bool) -> str:  # noqa: FBT001 - a word for a yes or no
    return "within" if is_met else "NOT within"


if __name__ == "__main__":
    main()
