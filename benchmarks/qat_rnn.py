# SPDX-License-Identifier: Apache-2.0
"""What training recurrent layers as integers costs: 50 steps, batch 8, one thread, all gates in fixed point.

Prints the ratio of a training step (forward, backward, optimiser) and of an exact evaluation to torch's float layer,
measured side by side. The bars are for the training step of a layer in one direction on sequences of one length.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from interleaved import medians
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from linger.numeric.fixed import scale_for
from linger.numeric.torch_gates import Formats
from linger.numeric.torch_quantize import fake_quantize, max_abs, round_weight
from linger.ops import gru_torch, lstm_torch

STEPS = 50
SIZES = ((32, 64), (128, 128))
BARS = {("LSTM", 64): 4.0, ("LSTM", 128): 3.0, ("GRU", 64): 1.5, ("GRU", 128): 1.5}
LAYERS: dict[str, type[nn.RNNBase]] = {"LSTM": nn.LSTM, "GRU": nn.GRU}
CELLS = {"LSTM": lstm_torch, "GRU": gru_torch}


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


class FixedPoint(nn.Module):
    """The same layer as integers: input, weights and biases rounded anew in every step."""

    def __init__(self, kind: str, inputs: int, hidden: int, *, is_bidirectional: bool) -> None:
        super().__init__()
        self.layer = LAYERS[kind](inputs, hidden, bidirectional=is_bidirectional)
        self.run = CELLS[kind].run
        self.has_cell = kind == "LSTM"
        self.suffixes = ("", "_reverse") if is_bidirectional else ("",)

    def rounded(self, name: str, bias: str, scale: float) -> tuple[Tensor, Tensor, tuple[float, ...]]:
        """Weights and biases of all directions with the scales of the weights."""
        weights, biases, scales = [], [], []
        for suffix in self.suffixes:
            w, scale_w = round_weight(getattr(self.layer, name + suffix), None, lambda largest: scale_for(largest, 8))
            weights.append(w / scale_w)
            biases.append(fake_quantize(getattr(self.layer, bias + suffix), scale * scale_w, 32, can_saturate=False))
            scales.append(scale_w)
        return torch.stack(weights), torch.stack(biases), tuple(scales)

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """[T, B, I] to [T, B, D·H]."""
        scale_i, scale_h = scale_for(max_abs(x), 8), 128.0
        x = fake_quantize(x, scale_i, 8)
        w_ih, b_ih, scale_iw = self.rounded("weight_ih_l0", "bias_ih_l0", scale_i)
        w_hh, b_hh, scale_hw = self.rounded("weight_hh_l0", "bias_hh_l0", scale_h)
        states = (None, None) if self.has_cell else (None,)
        formats = Formats(scale_i, scale_h, scale_iw, scale_hw)
        result = self.run(x, lengths, *states, w_ih, w_hh, b_ih, b_hh, formats, wants_reach=self.training)
        return result.out


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


def measure(kind: str, inputs: int, hidden: int, options: argparse.Namespace, *, bi: bool, has_lengths: bool) -> None:
    x = torch.randn(STEPS, options.batch, inputs)
    lengths = torch.randint(STEPS // 2, STEPS + 1, (options.batch,)) if has_lengths else None
    if lengths is not None:
        lengths[0] = STEPS
    target = torch.randn(STEPS, options.batch, hidden * (1 + bi)) * 0.1
    models = {
        "float": Floating(kind, inputs, hidden, is_bidirectional=bi),
        "integers": FixedPoint(kind, inputs, hidden, is_bidirectional=bi),
    }
    steps = {name: training_step(model.train(), x, lengths, target) for name, model in models.items()}
    trained = medians(steps, rounds=options.rounds, warm_up=5)
    runs = {name: evaluation(model.eval(), x, lengths) for name, model in models.items()}
    evaluated = medians(runs, rounds=options.rounds, warm_up=5)
    is_plain = not (bi or has_lengths)
    what = f"{kind}{' both directions' if bi else ''}{' lengths' if has_lengths else ''} {inputs}→{hidden}"
    ratios = [times["integers"] / times["float"] for times in (trained, evaluated)]
    bar = BARS[kind, hidden] if is_plain else None
    verdict = "" if bar is None else f" ({'within' if ratios[0] <= bar else 'ABOVE'} the bar {bar})"
    print(
        f"{what:32s} training step: float {trained['float'] * 1e3:5.2f} ms, integers {trained['integers'] * 1e3:5.2f} ms, "
        f"ratio {ratios[0]:.2f}{verdict}; exact evaluation: ratio {ratios[1]:.2f}"
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
                    measure(kind, inputs, hidden, options, bi=bi, has_lengths=has_lengths)


if __name__ == "__main__":
    main()
