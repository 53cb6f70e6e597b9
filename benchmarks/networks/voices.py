# SPDX-License-Identifier: Apache-2.0
"""The detector silero-vad over whole streams: tuned on a conversation, judged on announcements by other speakers.

The announcements are Debian's packages asterisk-core-sounds-*-wav, fetched by name.
"""

from __future__ import annotations

import shutil
import subprocess
import wave
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from real_models import voice
from real_models.packages import SOUND_RATE, conversation
from scipy.signal import resample_poly
from torch import Tensor, nn
from torch.nn import functional

from networks import Figures, Network, Outputs, Shifted, Unobtainable
from networks.figures import percent
from networks.shifts import SOUND

LANGUAGES = ("en", "fr", "es", "it", "ru")
PAUSE = 0.6
"""Seconds between two announcements."""

SHORTEST = 1.5
"""Seconds; shorter announcements are left out."""

SEGMENT = 16
"""Chunks of a piece that is tuned on: half a second."""


class Stream(nn.Module):
    """The detector over [streams, chunks, 129, 4], its state carried from chunk to chunk by an LSTM with the cell's weights.

    With one chunk it is the network that a device runs every 32 ms.
    """

    def __init__(self, detector: voice.Detector) -> None:
        super().__init__()
        self.encoder, self.decoder = detector.encoder, detector.decoder
        self.rnn = nn.LSTM(voice.STATE, voice.STATE, batch_first=True)
        self.rnn.load_state_dict({f"{name}_l0": value for name, value in detector.rnn.state_dict().items()})

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The probability of every chunk [streams, chunks], and the state after the last; states are [1, streams, 128]."""
        streams, chunks = x.shape[:2]
        x = x.flatten(0, 1)
        for conv in self.encoder:
            x = functional.relu(conv(x))
        x, (h, c) = self.rnn(x.reshape(streams, chunks, voice.STATE), (h, c))
        x = functional.relu(x).reshape(streams * chunks, voice.STATE, 1)
        return torch.sigmoid(self.decoder(x)).reshape(streams, chunks), h, c


def announcements(language: str, cache: Path, seconds: float) -> Tensor:
    """Announcements of one speaker with pauses between them, 16 kHz, −1 to 1."""
    folder = _unpacked(f"asterisk-core-sounds-{language}-wav", cache)
    files = sorted(folder.rglob("*.wav"))
    order = np.random.default_rng(0).permutation(len(files))
    found: list[np.ndarray] = []
    while sum(map(len, found)) < seconds * SOUND_RATE:
        sound = _sound(files[order[0]])
        order = order[1:]
        if len(sound) >= SHORTEST * SOUND_RATE:
            found += [sound, np.zeros(int(PAUSE * SOUND_RATE), np.float32)]
    return torch.from_numpy(np.concatenate(found)[: int(seconds * SOUND_RATE)])


def _sound(path: Path) -> np.ndarray:
    with wave.open(str(path)) as sound:
        rate = sound.getframerate()
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float32) / 32768
    return resample_poly(samples, SOUND_RATE, rate).astype(np.float32)


def _unpacked(package: str, cache: Path) -> Path:
    """The content of a Debian package, fetched where it is not there yet."""
    folder = cache / package
    if folder.exists():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unobtainable(f"{package} is a Debian package, and apt-get is not there to fetch it")
    cache.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["apt-get", "download", package], cwd=cache, capture_output=True, text=True, check=False)
    files = sorted(cache.glob(f"{package}_*.deb"))
    if not files:
        raise Unobtainable(f"apt-get cannot fetch {package}: {done.stderr.strip().splitlines()[-1:]}")
    unfinished = cache / f"{package}.part"
    subprocess.run(["dpkg-deb", "-x", str(files[-1]), str(unfinished)], check=True)
    unfinished.rename(folder)
    return folder


def load(name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
    """The network; half a minute of each speaker, or ten seconds of two where it must be quick."""
    del name, seed
    detector, filters = voice.load()
    model = Stream(detector).eval()
    languages, seconds = (LANGUAGES[:2], 10.0) if is_quick else (LANGUAGES, 30.0)
    zeros = torch.zeros(1, len(languages), voice.STATE)
    sounds = [announcements(language, cache, seconds) for language in languages]

    def streams(some: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return torch.stack([voice.spectra(sound, filters) for sound in some]), zeros, zeros

    judged = streams(sounds)

    def figures(expected: Outputs, found: Outputs) -> Figures:
        wanted, given = expected[0] >= voice.SPEECH, found[0] >= voice.SPEECH
        each = {f"same decision, {key} %": percent(wanted[i] == given[i]) for i, key in enumerate(languages)}
        return {
            "chunks": float(wanted.numel()),
            "with speech": float(wanted.sum()),
            "same decision %": percent(wanted == given),
            "same decision, worst voice %": min(each.values()),
            **each,
        }

    shifted = {name: Shifted([streams(map(shift, sounds))], figures) for name, shift in SOUND.items()}
    steps = _steps(model, judged)
    names = ["spectrum", "h", "c"]
    pieces = tuning_pieces(model, filters)
    return Network(model, pieces, [judged], figures, names, steps[40:60], shifted=shifted, is_stepwise=True)


def tuning_pieces(model: nn.Module, filters: Tensor) -> list[tuple[Tensor, ...]]:
    """The conversation in pieces of half a second, each with the float network's state at its beginning.

    One piece is one batch: states have their streams along the second axis, so batches of several are no rows side by side.
    """
    spectrum = voice.spectra(conversation(), filters)
    h = c = torch.zeros(1, 1, voice.STATE)
    pieces = []
    for piece in spectrum.split(SEGMENT):
        if len(piece) == SEGMENT:
            pieces.append((piece[None], h, c))
            with torch.no_grad():
                _, h, c = model(piece[None], h, c)
    mixed = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0)).tolist()
    return [pieces[i] for i in mixed]


def _steps(model: nn.Module, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """The inputs of the first single steps of the first stream."""
    x, h, c = batch[0][:1], batch[1][:, :1], batch[2][:, :1]
    found = []
    for i in range(min(60, x.shape[1])):
        found.append((x[:, i : i + 1], h, c))
        with torch.no_grad():
            _, h, c = model(*found[-1])
    return found
