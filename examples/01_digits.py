# SPDX-License-Identifier: Apache-2.0
"""From float to a proven integer file: a residual CNN on handwritten digits, three seeds.

    python examples/01_digits.py

Trains in float, quantizes (calibration alone, then training as integers), exports ONNX, and compares every integer of
every layer over the whole test set: torch simulation, numpy reference, stock ONNX Runtime. Writes demo-output/digits_0.onnx
and so on; prints a table of accuracies and the integers that differ. Needs the extra `demo`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from real_models.packages import need
from rich.console import Console

import linger
from linger.records.rich_table import table
from linger.workflow.demo import (
    BATCH,
    TEST_IMAGES,
    DigitsNet,
    accuracy,
    accuracy_of_file,
    calibrated,
    digits,
    evaluate,
    export_digits,
    train,
)

__all__ = ["DigitsNet", "accuracy", "digits", "evaluate", "train"]  # other examples take them from here


def run_seed(seed: int, folder: Path, *, epochs: int, console: Console) -> tuple[list[float], linger.Verification]:
    """One seed from float to proof: the four accuracies and the verification."""
    train_x, train_y, test_x, test_y = digits()
    torch.manual_seed(seed)
    model = DigitsNet()
    train(model, train_x, train_y, epochs=epochs, rate=4e-3, seed=seed)
    in_float = evaluate(model, test_x, test_y)

    quantized = calibrated(model, train_x[: 8 * BATCH])
    after_calibration = evaluate(quantized, test_x, test_y)

    train(quantized, train_x, train_y, epochs=max(1, epochs // 5), rate=4e-4, seed=seed)
    after_training = evaluate(quantized, test_x, test_y)
    if seed == 0:
        console.print(str(linger.coverage(quantized)))

    path = folder / f"digits_{seed}.onnx"
    export_digits(quantized, test_x[:1], path)
    in_runtime = accuracy_of_file(path, test_x, test_y)  # stock: no linger in it
    proof = linger.verify(quantized, path, list(test_x.split(90)))
    return [in_float, after_calibration, after_training, in_runtime], proof


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="where the ONNX files go")
    options = parser.parse_args()
    need("sklearn")
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # layers this small run no faster on two, and much slower where others use the machine
    console = Console()
    results = [run_seed(s, options.folder, epochs=options.epochs, console=console) for s in range(options.seeds)]

    for seed, (_, proof) in enumerate(results):
        console.print(f"seed {seed}: {proof.summary()}")
        for row in proof.narrow:
            console.print(f"  proves little: {row.name} took only {row.distinct} distinct values")
    rows = [
        [str(seed), *(f"{a:.2f}" for a in accuracies), str(proof.differing)]
        for seed, (accuracies, proof) in enumerate(results)
    ]
    means = np.mean([accuracies for accuracies, _ in results], axis=0)
    rows.append(["mean", *(f"{a:.2f}" for a in means), ""])
    columns = ("seed", "float %", "PTQ int8 %", "QAT int8 %", "ONNX Runtime %", "integers that differ")
    console.print(table(f"digits, {TEST_IMAGES} test images", columns, rows))
    return 0 if all(proof.ok for _, proof in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
