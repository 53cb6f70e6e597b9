# SPDX-License-Identifier: Apache-2.0
"""Plant mistakes in the source, one at a time, and show that `make test-fast` catches each.

    python tools/source_faults.py            # every fault, each in a copy of the repository; several minutes
    python tools/source_faults.py rounding   # the faults whose name contains a word

A fault is a line of the source and a wrong one in its place. A test checks that each line occurs exactly once, so that the list
cannot go stale.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
COPIED = ("src", "tests", "tools", "docs", "examples", "benchmarks")


@dataclass(frozen=True)
class Fault:
    """A mistake: in the file `path` of src/linger, `wrong` stands in the place of `right`."""

    name: str
    path: str
    right: str
    wrong: str


FAULTS = (
    Fault("rounding of every op", "numeric/blocks.py", "return k.floor(k.add(x, k.like(0.5, x)))", "return k.floor(x)"),
    Fault(
        "saturation of every op",
        "numeric/blocks.py",
        "k.sub(k.scalar(0.0), half_range), k.sub(half_range, k.scalar(1.0))",
        "k.sub(k.scalar(0.0), half_range), half_range",
    ),
    Fault(
        "rounding in training",
        "numeric/torch/quantize.py",
        "result: Tensor = (x * scale).add_(0.5).floor_()",
        "result: Tensor = (x * scale).round_()",
    ),
    Fault(
        "an activation's scale",
        "quantization/core/ranges.py",
        "scale = min(scale_for(min(running, limit), room), at_most)",
        "scale = scale_for(min(running, limit), room)",
    ),
    Fault(
        "the bias of a batch norm",
        "constraint/conv_bn.py",
        "offset = -mean if bias is None else bias - mean",
        "offset = -mean",
    ),
    Fault(
        "running statistics",
        "constraint/conv_bn.py",
        "learn(module, mean_u, var / (divisor * divisor))",
        "learn(module, mean_u, var / divisor)",
    ),
    Fault(
        "frozen biases",
        "quantization/core/quantized.py",
        "rounded = round_bias(bias, scale_x * scale_w)",
        "rounded = round_bias(bias, scale_w)",
    ),
    Fault(
        "comparison of integers",
        "verification/proof/comparison.py",
        "            self._compare(name, batch)\n",
        "            pass\n",
    ),
    Fault(
        "a Dequant's scale",
        "graph/passes/dequants.py",
        'node.attributes["scale_o"] = ir.AttrFloat32("scale_o", scale)',
        "pass",
    ),
    Fault(
        "Dequants of real numbers",
        "graph/passes/dequants.py",
        "    for node in found.of_reals:\n",
        "    for node in []:\n",
    ),
    Fault(
        "a second walk for loops", "graph/formats/propagation.py", "        if book.is_settled:\n", "        if True:\n"
    ),
    Fault(
        "refusal of hostile models",
        "graph/files/model_io.py",
        "        refuse(found, GIVEN_MODEL, allowed=allowed)\n",
        "",
    ),
    Fault("a chip's number", "targets/venus.toml", "input_bytes = 65_536", "input_bytes = 655_360"),
    Fault("half-written files", "files.py", "        stack.callback(_remove, staged)\n", ""),
    Fault(
        "tuning: factors inverted",
        "tuning/equalization/weights.py",
        "rows, columns = factors_of(layer.rows, factors), factors_of(layer.columns, factors)",
        "columns, rows = factors_of(layer.rows, factors), factors_of(layer.columns, factors)",
    ),
    Fault(
        "tuning: biases not scaled",
        "tuning/equalization/weights.py",
        "                _multiply(state[name], rows)\n",
        "                pass\n",
    ),
    Fault(
        "tuning: sign of a bias",
        "tuning/bias_correction/correction.py",
        "_Shift()).add(call, expected.mean - means.mean, means.count)",
        "_Shift()).add(call, means.mean - expected.mean, means.count)",
    ),
    Fault(
        "tuning: held-out data leaked into tuning",
        "tuning/held_out.py",
        "        first, second = len(rows) - last - middle, len(rows) - last\n",
        "        first, second = len(rows), len(rows) - last\n",
    ),
    Fault(
        "tuning: held-out batches leaked into tuning",
        "tuning/held_out.py",
        "return [b for i, b in enumerate(batches) if i not in held], [batches[i] for i in sorted(held)]",
        "return list(batches), [batches[i] for i in sorted(held)]",
    ),
    Fault(
        "tuning: a step kept that hurts",
        "tuning/autotune/search.py",
        "    if not gain > 0:\n",
        "    if False:\n",
    ),
    Fault(
        "tuning: a lucky sample decides",
        "tuning/autotune/search.py",
        "    if not score.is_clearly_below(before, care):\n",
        "    if False:\n",
    ),
    Fault(
        "tuning: harm to what steps learn from",
        "tuning/autotune/search.py",
        "score.harm(before) > (0.0 if is_cut else _SURE_DB)",
        "score.harm(before) > math.inf",
    ),
    Fault(
        "tuning: the reporting data leaked into choosing",
        "tuning/autotune/search.py",
        "OutputError(reference, parts.whole(parts.choosing))\n",
        "OutputError(reference, (*parts.choosing, *parts.reported))\n",
    ),
    Fault(
        "tuning: headroom switched off",
        "tuning/autotune/search.py",
        "        if least.db - after.db > allowed:\n",
        "        if False:\n",
    ),
    Fault(
        "tuning: exponents kept that hurt",
        "tuning/exponents.py",
        "        if error < self.error * (1 - _LEAST_GAIN):\n",
        "        if True:\n",
    ),
    Fault(
        "tuning: distillation judged by the data that it saw",
        "tuning/distillation.py",
        "for part in (batches, held, learned))",
        "for part in (batches, learned, learned))",
    ),
)


def plant(fault: Fault, source: Path) -> None:
    """Write the wrong line into the tree `source` (a copy of src/linger)."""
    file = source / fault.path
    text = file.read_text(encoding="utf-8")
    if text.count(fault.right) != 1:
        raise SystemExit(f"{fault.path}: {fault.right!r} occurs {text.count(fault.right)} times, not once.")
    file.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")


def first_failure(fault: Fault | None) -> str | None:
    """The first test of `make test-fast` that fails with this fault, or without any; None where all pass."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in REPOSITORY.iterdir():
            if file.is_file() and not file.name.startswith("."):
                shutil.copy(file, copy)
        if fault is not None:
            plant(fault, copy / "src" / "linger")
        shared = os.environ.get("LINGER_SHARED", str(REPOSITORY.parent / "shared"))
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "LINGER_SHARED": shared}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "-x",
            "-m",
            "not slow",
            "--fast",
            "-k",
            "not can_be_planted",  # it would see every fault
            "-p",
            "no:randomly",
        ]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1, 2) or bool(failures) != (done.returncode != 0):
        raise SystemExit(f"pytest failed in another way:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failures[0].split(" - ")[0] if failures else None


def main(words: list[str]) -> int:
    """Plant the faults whose name contains one of the words; 1 if one of them goes unnoticed."""
    without = first_failure(None)
    if without is not None:
        raise SystemExit(f"Without a fault, {without}: nothing can be shown.")
    chosen = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    missed = 0
    for fault in chosen:
        failure = first_failure(fault)
        missed += failure is None
        print(f"{fault.name}: {failure or 'MISSED'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults are caught")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
