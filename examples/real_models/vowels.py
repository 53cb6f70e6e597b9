# SPDX-License-Identifier: Apache-2.0
"""Who says these vowels: nine speakers, an LSTM or a GRU over 7 to 29 frames of 12 cepstra (JapaneseVowels, aeon)."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from real_models.packages import folder_of
from real_models.proof import Outcome, linger, plain, prove, quantize, share_of_integers

CHANNELS = 12
SPEAKERS = 9
HIDDEN = 32
BATCH = 30

Part = tuple[Tensor, Tensor, Tensor]
"""Frames [takes, frames, 12], zeros at the end; lengths; speakers, from 0."""


class Speaker(nn.Module):
    """The last output of a recurrent layer, classified."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](CHANNELS, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, SPEAKERS)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        takes, frames = out.shape[:2]
        last = torch.arange(takes) * frames + lengths - 1
        return self.head(out.reshape(-1, HIDDEN).index_select(0, last))


def read(name: str) -> Part:
    """TRAIN (270 takes) or TEST (370), the longest first, as packing wants them."""
    file = folder_of("aeon") / "datasets" / "data" / "JapaneseVowels" / f"JapaneseVowels_{name}.ts"
    lines = file.read_text(encoding="utf-8").partition("@data")[2].split()
    takes, speakers = [], []
    for line in lines:
        *channels, speaker = line.split(":")
        takes.append(torch.tensor([[float(number) for number in channel.split(",")] for channel in channels]).T)
        speakers.append(int(speaker) - 1)
    order = sorted(range(len(takes)), key=lambda i: -len(takes[i]))
    lengths = torch.tensor([len(takes[i]) for i in order])
    frames = pad_sequence([takes[i] for i in order], batch_first=True)
    return frames, lengths, torch.tensor([speakers[i] for i in order])


def train(model: nn.Module, part: Part, *, epochs: int, rate: float, seed: int = 0) -> None:
    frames, lengths, speakers = part
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    steps = epochs * -(-len(frames) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for some in torch.randperm(len(frames), generator=generator).split(BATCH):
            chosen = some.sort().values  # the longest first
            optimizer.zero_grad()
            noisy = frames[chosen] + 0.05 * torch.randn(frames[chosen].shape, generator=generator)
            F.cross_entropy(model(noisy, lengths[chosen]), speakers[chosen]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, part: Part) -> float:
    frames, lengths, speakers = part
    model.eval()
    return 100 * float((plain(model(frames, lengths)).argmax(1) == speakers).float().mean())


def trained(kind: str, *, epochs: int = 30, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = Speaker(kind)
    train(model, read("TRAIN"), epochs=epochs, rate=1e-2, seed=seed)
    return model


def run(folder: Path, kind: str, *, epochs: int = 30, tuned: int = 5, proven_on: int = 370) -> Outcome:
    """Train in float, calibrate, train as integers, and judge on speech of the same people that nothing has seen."""
    learnt, judged = read("TRAIN"), read("TEST")
    model = trained(kind, epochs=epochs)
    frames, lengths, _ = learnt
    quantized = quantize(model, [(frames[:90], lengths[:90]), (frames[90:], lengths[90:])], can_fuse=False)
    after_calibration = accuracy(quantized, judged)
    tuned_model = copy.deepcopy(quantized)
    train(tuned_model, learnt, epochs=tuned, rate=1e-3)
    figures = {
        "takes": float(len(judged[0])),
        "float %": accuracy(model, judged),
        "calibrated %": after_calibration,
        "trained as integers %": accuracy(tuned_model, judged),
    }
    parts = zip(judged[0][:proven_on].split(BATCH), judged[1][:proven_on].split(BATCH), strict=True)
    batches = [(x, n) for x, n in parts]
    names = ["frames", "lengths"]
    axes = {"frames": {0: "batch", 1: "time"}, "lengths": {0: "batch"}}
    proof = prove(tuned_model, batches, folder / f"vowels_{kind}.onnx", names, dynamic_axes=axes)
    share = share_of_integers(model, tuned_model, batches[0])
    return Outcome(f"vowels, {kind.upper()}", figures, proof, linger.coverage(tuned_model), share)
