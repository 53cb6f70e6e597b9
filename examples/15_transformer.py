# SPDX-License-Identifier: Apache-2.0
"""A Transformer as integers: two encoder layers on handwritten digits, each picture a sequence of its eight rows.

    python examples/15_transformer.py

torch's own nn.TransformerEncoder, unchanged: trained in float, quantized (calibration alone, then training as integers),
exported, and every integer of every op compared over the whole test set: torch simulation, numpy, stock ONNX Runtime. Writes
demo-output/transformer_0.onnx and so on; prints a table of accuracies and the integers that differ. Needs the extra `demo`.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from real_models.packages import need
from rich.console import Console
from torch import Tensor, nn

import linger
from linger.records.rich_table import table
from linger.workflow.demo import accuracy, evaluate

TEST_IMAGES = 540
BATCH = 64
ROWS, PIXELS = 8, 8


class RowTransformer(nn.Module):
    """Eight rows of eight pixels to ten digits."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(PIXELS, width)
        self.position = nn.Parameter(0.1 * torch.randn(1, ROWS, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(ROWS * width, 10)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.embed(rows) + self.position
        return self.head(self.encoder(x).flatten(1))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test set; the split is always the same."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    rows = (data.images / 16.0).astype(np.float32)
    split = train_test_split(rows, data.target, test_size=TEST_IMAGES, random_state=0, stratify=data.target)
    train_x, test_x, train_y, test_y = (torch.from_numpy(np.ascontiguousarray(part)) for part in split)
    return train_x, train_y.long(), test_x, test_y.long()


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, rate: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    steps = epochs * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), generator=generator).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            schedule.step()


def run_seed(seed: int, folder: Path, *, epochs: int, console: Console) -> tuple[list[float], linger.Verification]:
    """One seed from float to proof: the four accuracies and the verification."""
    train_x, train_y, test_x, test_y = digits()
    torch.manual_seed(seed)
    model = RowTransformer()
    train(model, train_x, train_y, epochs=epochs, rate=4e-3, seed=seed)
    in_float = evaluate(model, test_x, test_y)

    quantized = linger.init(copy.deepcopy(model))
    quantized.eval()
    with linger.calibration():
        for rows in train_x.split(BATCH)[:8]:
            quantized(rows)
    after_calibration = evaluate(quantized, test_x, test_y)
    if seed == 0:
        console.print(str(linger.coverage(quantized)))

    train(quantized, train_x, train_y, epochs=max(1, epochs // 5), rate=4e-4, seed=seed)
    after_training = evaluate(quantized, test_x, test_y)

    path = folder / f"transformer_{seed}.onnx"
    axes = {"rows": {0: "batch"}, "scores": {0: "batch"}}
    names = {"input_names": ["rows"], "output_names": ["scores"]}
    # opset 17: ONNX Runtime cannot run a float layer norm of an older one beside the integers
    linger.onnx.export(quantized, (test_x[:1],), path, dynamic_axes=axes, opset_version=17, **names)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])  # stock: no linger in it
    in_runtime = accuracy(session.run(None, {"rows": test_x.numpy()})[0], test_y)
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
    rows = [
        [str(seed), *(f"{a:.2f}" for a in accuracies), str(proof.differing)]
        for seed, (accuracies, proof) in enumerate(results)
    ]
    columns = ("seed", "float %", "PTQ int8 %", "QAT int8 %", "ONNX Runtime %", "integers that differ")
    console.print(table(f"digits as sequences, {TEST_IMAGES} test images", columns, rows))
    return 0 if all(proof.ok for _, proof in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
