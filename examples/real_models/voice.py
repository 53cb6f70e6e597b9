# SPDX-License-Identifier: Apache-2.0
"""Does anybody speak: silero-vad, four convolutions, an LSTM cell that remembers, and one decision every 32 ms.

The front end, the magnitude of a short Fourier transform, is a square root and has no integer form: it is kept outside.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from real_models.packages import conversation, folder_of
from real_models.proof import Outcome, linger, plain, prove, quantize, share_of_integers

CHUNK = 512
CONTEXT = 64
"""Samples of the chunk before that each chunk begins with."""

STATE = 128
SPEECH = 0.5
"""Somebody speaks from this probability on."""

Batch = tuple[Tensor, Tensor, Tensor]
"""Spectrum, hidden state, cell state."""


class Detector(nn.Module):
    """One chunk's spectrum [1, 129, 4] and the state before, to a probability [1, 1] and the state after."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        self.encoder = nn.ModuleList(nn.Conv1d(i, o, 3, stride, 1) for i, o, stride in shapes)
        self.rnn = nn.LSTMCell(STATE, STATE)
        self.decoder = nn.Conv1d(STATE, 1, 1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for conv in self.encoder:
            x = F.relu(conv(x))
        h, c = self.rnn(x.squeeze(-1), (h, c))
        y = torch.sigmoid(self.decoder(F.relu(h).unsqueeze(-1)))
        return y.flatten(1), h, c


def original() -> torch.jit.ScriptModule:
    """The network as it is shipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package ships nothing newer
        return torch.jit.load(folder_of("silero_vad") / "data" / "silero_vad.jit")


def load() -> tuple[Detector, Tensor]:
    """The network for 16 kHz, and the filters of its front end."""
    weights = {k.removeprefix("_model."): v for k, v in original().state_dict().items() if k.startswith("_model.")}
    model = Detector()
    names = {f"encoder.{i}.": f"encoder.{i}.reparam_conv." for i in range(4)}
    names |= {"rnn.": "decoder.rnn.", "decoder.": "decoder.decoder.2."}
    state = {}
    for name in model.state_dict():
        prefix = next(p for p in names if name.startswith(p))
        state[name] = weights[names[prefix] + name.removeprefix(prefix)]
    model.load_state_dict(state)
    return model.eval(), weights["stft.forward_basis_buffer"]


def spectra(sound: Tensor, filters: Tensor) -> Tensor:
    """The magnitude [chunks, 129, 4] of every chunk with its context."""
    count = len(sound) // CHUNK
    chunks = F.pad(sound[: count * CHUNK], (CONTEXT, 0)).unfold(0, CHUNK + CONTEXT, CHUNK)
    parts = F.conv1d(F.pad(chunks, (0, 64), mode="reflect")[:, None], filters, stride=128)
    real, imaginary = parts.chunk(2, dim=1)
    return (real.square() + imaginary.square()).sqrt()


@torch.no_grad()
def stream(model: nn.Module, spectrum: Tensor) -> tuple[Tensor, list[Batch]]:
    """The probability of every chunk, the state carried on, and the inputs of every step."""
    h = c = torch.zeros(1, STATE)
    found, steps = [], []
    for chunk in spectrum:
        steps.append((chunk[None], h, c))
        y, h, c = (plain(t) for t in model(*steps[-1]))
        found.append(y)
    return torch.cat(found)[:, 0], steps


def widen(model: nn.Module) -> None:
    """At 8 bits the detector is deaf: single weights stretch the range of the encoder's layers (linger.advise)."""
    linger.quant_module(model.get_submodule("encoder"), data_bits=16, parameter_bits=16, out_bits=16)


def run(folder: Path, *, seconds: float = 30.0, proven_on: int = 60) -> Outcome:
    """Calibrate on what the float network sees in the first ten seconds, judge on the whole conversation."""
    model, filters = load()
    spectrum = spectra(conversation()[: int(seconds * 16000)], filters)
    expected, steps = stream(model, spectrum)
    calibration = [tuple(torch.cat(part) for part in zip(*group, strict=True)) for group in groups(steps[:310], 62)]
    quantized = quantize(model, calibration, prepare=widen)
    found, steps = stream(quantized, spectrum)
    figures = {
        "chunks": float(len(expected)),
        "with speech": float((expected >= SPEECH).sum()),
        "same decision %": 100 * float(((expected >= SPEECH) == (found >= SPEECH)).float().mean()),
        "probability off by, mean": float((expected - found).abs().mean()),
    }
    every = max(1, len(steps) // proven_on)
    names = ["spectrum", "h", "c"]
    proof = prove(quantized, steps[every // 2 :: every], folder / "voice.onnx", names, dynamic_axes=None)  # one voice
    share = share_of_integers(model, quantized, steps[0])
    return Outcome("silero-vad", figures, proof, linger.coverage(quantized), share)


def groups(items: list[Batch], size: int) -> list[list[Batch]]:
    """Parts of equal size."""
    return [items[i : i + size] for i in range(0, len(items), size)]
