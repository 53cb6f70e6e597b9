# SPDX-License-Identifier: Apache-2.0
"""What the examples of this folder share, and what has nothing to do with a trainer: the digits, and the proof at the end."""

from pathlib import Path

from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import linger
from linger.workflow.demo import DigitsNet, accuracy_of_file, digits, evaluate, export_digits

__all__ = ["BATCH", "DigitsNet", "picture", "prove", "training_data"]
BATCH = 64


def training_data():
    """Pictures and labels in shuffled batches."""
    pictures, labels, _, _ = digits()
    return DataLoader(TensorDataset(pictures, labels), BATCH, shuffle=True)


def picture():
    """One picture, for the trace of the network."""
    return digits()[0][:1]


def prove(model: nn.Module, path: str) -> None:
    """Export a trained model, compare every integer of the file with it, and say how good it is."""
    _, _, pictures, labels = digits()
    in_torch = evaluate(model, pictures, labels)
    export_digits(model, pictures[:1], Path(path))
    in_file = accuracy_of_file(Path(path), pictures, labels)
    print(f"{in_torch:.2f} % of {len(pictures)} test images; the file in ONNX Runtime: {in_file:.2f} %")
    proof = linger.verify(model, path, list(pictures.split(90)))
    print(proof.summary())
    if not proof.ok:
        raise SystemExit(1)
