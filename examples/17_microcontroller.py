# SPDX-License-Identifier: Apache-2.0
"""From training to a microcontroller: the digits network as C, every tensor proven on an emulated Cortex-M4.

    python examples/17_microcontroller.py

Trains in float, tunes to 8 bits without labels, exports ONNX, writes C, compiles it for the core and runs the test pictures
in an emulator. Writes microcontroller-output/digits.onnx and the C beside it; prints how many of all numbers differ from the file,
and a table: accuracy, RAM, flash, instructions for one picture. Needs the extra `demo`, and the compiler and the emulator of the core (Debian: gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm).
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import numpy as np
import torch
from real_models.packages import need
from rich.console import Console

import linger
from linger.errors import LingerError
from linger.records.rich_table import table

digits_example = importlib.import_module("01_digits")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cortex-m4", help="cortex-m0, cortex-m55, rv32imac, host, …")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--images", type=int, default=540, help="how many test pictures the core computes")
    parser.add_argument("--budget", default="20 s", help="CPU time for tuning")
    parser.add_argument("--folder", type=Path, default=Path("microcontroller-output"))
    options = parser.parse_args()
    need("sklearn")
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    train_x, train_y, test_x, test_y = digits_example.digits()
    torch.manual_seed(0)
    model = digits_example.DigitsNet()
    digits_example.train(model, train_x, train_y, epochs=options.epochs, rate=4e-3, seed=0)
    rows = [["float", f"{digits_example.evaluate(model, test_x, test_y):.2f} % of {len(test_x)}"]]

    tuned, result = linger.tune(model.eval(), list(train_x[:512].split(64)), budget=options.budget)
    rows.append(["8 bits", f"{digits_example.evaluate(tuned, test_x, test_y):.2f} % of {len(test_x)}"])
    print(f"signal to noise, calibrated: {result.plain_db:.1f} dB; tuned: {result.after_db:.1f} dB")

    path = options.folder / "digits.onnx"
    linger.onnx.export(tuned, (test_x[:1],), path, input_names=["image"], output_names=["scores"])
    folder = linger.c.export(path, options.folder / "c", overwrite=True)
    pictures = [{"image": picture.numpy()} for picture in test_x[: options.images].split(1)]
    try:
        with linger.c.build(folder, target=options.target) as program:
            proof = linger.c.prove(program, path, pictures)
            scores = np.concatenate([made["scores"] for made in program.run_many(pictures)])
            right = digits_example.accuracy(scores, test_y[: options.images])
            rows.append([f"on {options.target}", f"{right:.2f} % of {len(pictures)}"])
            rows += costs(program, pictures[0], folder, options.target)
    except LingerError as error:
        print(error)
        return 2
    print(proof.summary())
    Console().print(table("the digits network", ("what", "figure"), rows))
    return 0 if proof.ok else 1


def costs(program: linger.c.Program, feed: dict[str, np.ndarray], folder: Path, target: str) -> list[list[str]]:
    """What the program needs on the core."""
    size = program.size()
    weights = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["weight_bytes"]
    rows = [
        ["flash", f"{size.flash:,} bytes"],
        ["of them weights", f"{weights:,} bytes"],
        ["RAM", f"{size.ram:,} bytes"],
    ]
    if target != "host":
        rows.append(["stack", f"{program.stack(feed):,} bytes"])
        rows.append(["instructions for one picture", f"{program.instructions(feed):,}"])
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
