# SPDX-License-Identifier: Apache-2.0
"""What training recurrent layers as integers costs: 50 steps, batch 8, one thread, all gates in fixed point.

Prints the ratio of a training step (forward, backward, optimiser) and of an exact evaluation to torch's float layer,
measured side by side, with quartiles; then that of the exported file to ONNX Runtime's own float LSTM. The bars are those of a
layer in one direction on sequences of one length.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import torch
from interleaved import medians
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import linger

STEPS = 50
SIZES = ((32, 64), (128, 128))
IN_RUNTIME = {(64, 8): 5.0, (128, 8): 3.0, (64, 1): None, (128, 1): None}
"""(hidden, batch) → the bar of a file's ratio."""

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


@dataclass(frozen=True)
class Row:
    """One claim: a median with its quartiles, and the bar that it has to keep, if any."""

    claim: str
    figure: float
    low: float
    high: float
    bar: float | None
    detail: str

    def __str__(self) -> str:
        verdict = (
            "" if self.bar is None else f" ({'within' if self.figure <= self.bar else 'ABOVE'} the bar {self.bar})"
        )
        return (
            f"{self.claim:52s} {self.figure:5.2f}{verdict}, quartiles {self.low:.2f} to {self.high:.2f}; {self.detail}"
        )


def compared(claim: str, variants: Mapping[str, Callable[[], None]], rounds: int, bar: float | None) -> Row:
    """The ratio of "integers" to "float", round by round, in process CPU time; each comes first in every other round."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    names, warm_up = list(variants), 5
    for turn in range(warm_up + rounds):
        for name in names if turn % 2 else reversed(names):
            begin = time.process_time()
            variants[name]()
            times[name].append(time.process_time() - begin)
    own, base = (times[name][warm_up:] for name in ("integers", "float"))
    low, middle, high = statistics.quantiles((a / b for a, b in zip(own, base, strict=True)), n=4, method="inclusive")
    milliseconds = [
        f"{name} {statistics.median(values) * 1e3:.2f} ms" for name, values in (("float", base), ("integers", own))
    ]
    return Row(claim, middle, low, high, bar, ", ".join(milliseconds))


def measure(
    kind: str, inputs: int, hidden: int, options: argparse.Namespace, *, bi: bool, has_lengths: bool
) -> list[Row]:
    """A training step and an exact evaluation of one layer."""
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
    trained = compared(f"QAT step / float step, {what}", steps, options.rounds, BARS.get(place))
    runs = {name: evaluation(model.eval(), x, lengths) for name, model in models.items()}
    claim = f"exact evaluation / float evaluation, {what}"
    return [trained, compared(claim, runs, options.rounds, EVALUATION_BARS.get(place))]


def measure_file(hidden: int, batch: int, folder: Path, options: argparse.Namespace) -> None:
    """The exported LSTM in ONNX Runtime against the float one, which torch exports as the LSTM op."""
    x = torch.randn(STEPS, batch, hidden)
    model = Floating("LSTM", hidden, hidden, is_bidirectional=False).eval()
    paths = {name: folder / f"{name}_{hidden}_{batch}.onnx" for name in ("float", "integers")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of its exporter
        torch.onnx.export(model, (x, None), str(paths["float"]), opset_version=12, dynamo=False)
    quantised = linger.init(model)
    with linger.calibration():
        quantised(x, None)
    quantised(x, None)
    linger.onnx.export(quantised, (x, None), paths["integers"])
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    sessions = {
        name: onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        for name, path in paths.items()
    }
    runs = {
        name: (lambda session=session: session.run(None, {session.get_inputs()[0].name: x.numpy()}))
        for name, session in sessions.items()
    }
    times = medians(runs, rounds=options.rounds, warm_up=5)
    ratio, bar = times["integers"] / times["float"], IN_RUNTIME[hidden, batch]
    verdict = "" if bar is None else f" ({'within' if ratio <= bar else 'ABOVE'} the bar {bar})"
    print(
        f"{f'ONNX Runtime LSTM {hidden}, batch {batch}':32s} float {times['float'] * 1e3:5.2f} ms, "
        f"integers {times['integers'] * 1e3:5.2f} ms, ratio {ratio:.2f}{verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for kind in LAYERS:
        for bi in (False, True):
            for has_lengths in (False, True):
                for inputs, hidden in SIZES:
                    print(*measure(kind, inputs, hidden, options, bi=bi, has_lengths=has_lengths), sep="\n")
    linger.restore()
    with tempfile.TemporaryDirectory() as folder:
        for hidden, batch in IN_RUNTIME:
            measure_file(hidden, batch, Path(folder), options)


if __name__ == "__main__":
    main()
