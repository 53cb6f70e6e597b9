# SPDX-License-Identifier: Apache-2.0
"""What a deployment meets and the tuning data did not show: other lighting, other ink, other loudness, another microphone.

Each shift takes judged data to legal data of the same kind: pixels stay in 0 … 1, sound in −1 … 1, a picture of a digit stays that
digit. The float network answers on the same shifted data: what is measured is quantization, not the float network's robustness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

Shift = Callable[[Tensor], Tensor]

LIGHT: Mapping[str, Shift] = {
    "dark": lambda pixels: 0.3 * pixels,
    "bright": lambda pixels: (1.6 * pixels).clamp(max=1),
    "hazy": lambda pixels: 0.35 + 0.4 * pixels,
    "steep": lambda pixels: pixels**2.2,
}
"""Of pixels 0 … 1: a room in the evening, an exposure that burns out, haze or a weak contrast, a display's curve not undone."""


def _thick(ink: Tensor) -> Tensor:
    wide = functional.max_pool2d(ink, 2, 1, padding=1)[..., : ink.shape[-2], : ink.shape[-1]]
    return (ink + wide) / 2


def _thin(ink: Tensor) -> Tensor:
    narrow = -functional.max_pool2d(functional.pad(-ink, (0, 1, 0, 1)), 2, 1)
    return (ink + narrow) / 2


INK: Mapping[str, Shift] = {
    "pale": lambda ink: 0.5 * ink,
    "thick": _thick,
    "thin": _thin,
    "grey paper": lambda ink: 0.1 + 0.9 * ink,
}
"""Of pictures of ink 0 … 1 on nothing: a hard pencil, a broad one and a fine one (half of a pixel's ink more or less
on one side of a stroke), paper that is not white. Inverted contrast is left out: no network here was trained to read it."""


def _noisy(sound: Tensor) -> Tensor:
    noise = torch.randn(sound.shape, generator=torch.Generator().manual_seed(0))
    return (sound + sound.square().mean().sqrt() * 10 ** (-15 / 20) * noise).clamp(-1, 1)


def _telephone(sound: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(sound)
    hertz = torch.fft.rfftfreq(sound.shape[-1], 1 / 16000)
    return torch.fft.irfft(spectrum * ((hertz > 300) & (hertz < 3400)), sound.shape[-1]).clamp(-1, 1)


SOUND: Mapping[str, Shift] = {
    "quiet": lambda sound: 0.1 * sound,
    "loud": lambda sound: (4 * sound).clamp(-1, 1),
    "noisy": _noisy,
    "telephone": _telephone,
}
"""Of sound −1 … 1 at 16 kHz: 20 dB softer, 12 dB louder and clipped, white noise 15 dB below it, the band of a telephone."""


def overdriven(sound: Tensor) -> Tensor:
    """The same sound by a microphone that clips everything above a fifth of the largest sample."""
    return (5 * sound / sound.abs().max()).clamp(-1, 1)


def higher_voice(sound: Tensor) -> Tensor:
    """The same speech a quarter faster and higher: a smaller speaker."""
    length = int(sound.shape[-1] * 0.8)
    return functional.interpolate(sound[None, None], size=length, mode="linear")[0, 0]


def microphone(cepstra: Tensor) -> Tensor:
    """Cepstra [takes, frames, coefficients] through another microphone: a filter adds a constant to every coefficient.

    The constant has half of each coefficient's deviation, with signs drawn once. Padding, which is zero, stays.
    """
    is_speech = cepstra.abs().sum(2, keepdim=True) > 0
    spread = cepstra[is_speech[..., 0]].std(0)
    signs = torch.randint(0, 2, spread.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return torch.where(is_speech, cepstra + 0.5 * signs * spread, cepstra)


def in_noise(cepstra: Tensor) -> Tensor:
    """Cepstra of speech in noise, which flattens the spectrum: all coefficients shrink."""
    return 0.6 * cepstra


CEPSTRA: Mapping[str, Shift] = {"other microphone": microphone, "in noise": in_noise}
