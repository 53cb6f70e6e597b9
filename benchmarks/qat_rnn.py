# SPDX-License-Identifier: Apache-2.0
"""What training recurrent layers as integers costs: 50 steps, batch 8, one thread, all gates in fixed point.

Prints the ratio of a training step (forward, backward, optimizer) and of an exact evaluation to torch's float layer,
measured side by side; then that of the exported file to ONNX Runtime's own float op. The bars are those of a layer in one
direction on sequences of one length.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from interleaved import samples
from rows import Row, measured, parser, ratio_of, report
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import linger

STEPS = 50
SIZES = ((32, 64), (128, 128))
IN_RUNTIME = {(64, 1): 3.0, (64, 8): 3.0, (128, 1): 3.0, (128, 8): 3.0}
"""(hidden, batch) → the bar of a file's ratio."""

BARRED = ("standard", "Session")
"""What a bar in ONNX Runtime holds for: the standard form and linger.Session; the dialect form is shown beside them."""

BARS = {("LSTM", 64): 2.5, ("LSTM", 128): 2.0, ("GRU", 64): 0.9, ("GRU", 128): 0.9}
EVALUATION_BARS = {("LSTM", 64): 3.0}
LAYERS: dict[str, type[nn.RNNBase]] = {"LSTM": nn.LSTM, "GRU": nn.GRU}


class Floating(nn.Module):
    """Torch's layer, packed where there are lengths."""

    def __init__(self, kind: str, inputs: int, hidden: int, *, is_bidirectional: bool) -> None:
        super().__init__()
        self.layer = LAYERS[kind](inputs, hidden, bidirectional=is_bidirectional)

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """[T, B, I] to [T, B, D·H]."""
        if lengths is None:
            result: Tensor = self.layer(x)[0]
            return result
        packed = self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[0]
        return pad_packed_sequence(packed, total_length=len(x))[0]


def training_step(model: nn.Module, x: Tensor, lengths: Tensor | None, target: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x, lengths), target).backward()
        optimizer.step()

    return step


def evaluation(model: nn.Module, x: Tensor, lengths: Tensor | None) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            model(x, lengths)

    return run


def measure(
    kind: str, inputs: int, hidden: int, options: argparse.Namespace, *, bi: bool, has_lengths: bool
) -> list[Row]:
    """A training step and an exact evaluation."""
    x = torch.randn(STEPS, options.batch, inputs)
    lengths = torch.randint(STEPS // 2, STEPS + 1, (options.batch,)) if has_lengths else None
    if lengths is not None:
        lengths[0] = STEPS
    target = torch.randn(STEPS, options.batch, hidden * (1 + bi)) * 0.1
    models = {
        "float": Floating(kind, inputs, hidden, is_bidirectional=bi),
        "integers": linger.init(Floating(kind, inputs, hidden, is_bidirectional=bi)),
    }
    what = f"{kind}{' both directions' if bi else ''}{' lengths' if has_lengths else ''} {inputs}→{hidden}"
    place = ("", 0) if bi or has_lengths else (kind, hidden)
    steps = {name: training_step(model.train(), x, lengths, target) for name, model in models.items()}
    settings = {"base": "float", "rounds": options.rounds, "warm_up": 5}
    trained = measured(f"QAT step / float step, {what}", steps, bar=BARS.get(place), **settings)
    runs = {name: evaluation(model.eval(), x, lengths) for name, model in models.items()}
    claim = f"exact evaluation / float evaluation, {what}"
    return [trained, measured(claim, runs, bar=EVALUATION_BARS.get(place), **settings)]


def measure_file(kind: str, hidden: int, batch: int, folder: Path, options: argparse.Namespace) -> list[Row]:
    """The exported layer in ONNX Runtime against the float one, which torch exports as ONNX's own op."""
    x = torch.randn(STEPS, batch, hidden)
    model = Floating(kind, hidden, hidden, is_bidirectional=False).eval()
    paths = {name: folder / f"{kind}_{name}_{hidden}_{batch}.onnx" for name in ("float", "dialect", "standard")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of its exporter
        torch.onnx.export(model, (x, None), str(paths["float"]), opset_version=12, dynamo=False)
    quantized = linger.init(model)
    with linger.calibration():
        quantized(x, None)
    quantized(x, None)
    for form in ("dialect", "standard"):
        linger.onnx.export(quantized, (x, None), paths[form], form=form)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    sessions: dict[str, Any] = {
        name: onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        for name, path in paths.items()
    }
    sessions["Session"] = linger.Session(paths["dialect"], settings)
    runs = {
        name: (lambda session=session: session.run(None, {session.get_inputs()[0].name: x.numpy()}))
        for name, session in sessions.items()
    }
    times = samples(runs, rounds=options.rounds, warm_up=5)
    found = []
    for name in [n for n in runs if n != "float"]:
        claim = f"file / float file in ONNX Runtime, {kind} {hidden}, batch {batch}: {name}"
        bar = IN_RUNTIME[hidden, batch] if name in BARRED else None
        found.append(ratio_of(claim, times, name, base="float", bar=bar))
        print(found[-1], flush=True)
    return found


def rows(options: argparse.Namespace) -> list[Row]:
    """Layers in torch, then files."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = []
    for kind in LAYERS:
        for bi in (False, True):
            for has_lengths in (False, True):
                for inputs, hidden in SIZES:
                    found += measure(kind, inputs, hidden, options, bi=bi, has_lengths=has_lengths)
    linger.restore()
    with tempfile.TemporaryDirectory() as folder:
        for kind in LAYERS:
            for hidden, batch in IN_RUNTIME:
                found += measure_file(kind, hidden, batch, Path(folder), options)
    return found


if __name__ == "__main__":
    arguments = parser(__doc__, rounds=40)
    arguments.add_argument("--batch", type=int, default=8)
    report(rows, arguments)
