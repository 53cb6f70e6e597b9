# SPDX-License-Identifier: Apache-2.0
"""Twice the size of a photograph: waifu2x's upconv7, six convolutions with LeakyReLU and one transposed convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from real_models.packages import folder_of, photograph
from real_models.proof import Outcome, linger, plain, prove, quantize, share_of_integers

CHANNELS = (3, 16, 32, 64, 128, 256, 256)
MARGIN = 7
"""Pixels around the picture that the convolutions use up."""

WIDE = {"data_bits": 16, "parameter_bits": 16, "out_bits": 16}
WIDTHS = {f"conv{i}": WIDE for i in range(1, 8)}
"""8 bits throughout lose 0.6 to 3.9 dB; 8-bit weights in the largest layer alone still 0.5 dB on some pictures."""


class UpConv7(nn.Module):
    """[n, 3, h + 14, w + 14], 0 to 1, to [n, 3, 2h, 2w]."""

    def __init__(self) -> None:
        super().__init__()
        for i, (inputs, outputs) in enumerate(pairwise(CHANNELS), 1):
            self.add_module(f"conv{i}", nn.Conv2d(inputs, outputs, 3))
        self.conv7 = nn.ConvTranspose2d(CHANNELS[-1], 3, 4, 2, 3, bias=False)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(1, 7):
            x = self.act(self.get_submodule(f"conv{i}")(x))
        return self.conv7(x)


def load() -> UpConv7:
    model = UpConv7()
    with np.load(folder_of("waifu2x") / "models" / "upconv7" / "anime_style_scale_rgb.npz") as weights:
        names = {"W": "weight", "b": "bias"}
        state = {f"{k.split('/')[0]}.{names[k.split('/')[1]]}": torch.from_numpy(weights[k]) for k in weights}
    model.load_state_dict(state)
    return model.eval()


def crops(name: str, side: int) -> tuple[Tensor, Tensor]:
    """The middle of a photograph at half its size, with margins, and as it is; both [1, 3, …], 0 to 1."""
    pixels = photograph(name)
    top, left = (pixels.shape[1] - side) // 2, (pixels.shape[2] - side) // 2
    whole = pixels[:, top : top + side, left : left + side]
    picture = Image.fromarray(whole.permute(1, 2, 0).to(torch.uint8).numpy())
    small = np.asarray(picture.resize((side // 2, side // 2), Image.Resampling.BICUBIC)).copy()
    small_tensor = torch.from_numpy(small).permute(2, 0, 1)[None].float() / 255
    return F.pad(small_tensor, (MARGIN,) * 4, mode="replicate"), whole[None] / 255


def psnr(found: Tensor, wanted: Tensor) -> float:
    return -10 * math.log10(float((found.clamp(0, 1) - wanted).square().mean()))


def run(
    folder: Path,
    *,
    calibrated_on: Sequence[str] = ("coffee", "cat", "motorcycle"),
    judged_on: Sequence[str] = ("astronaut", "temple", "flower"),
    side: int = 128,
    widths: dict[str, dict[str, int]] | None = None,
) -> Outcome:
    """Calibrate on some photographs, judge on others by what the picture loses against the float network's."""
    model = load()

    def prepare(made: nn.Module) -> None:
        for name, wish in (WIDTHS if widths is None else widths).items():
            linger.quant_module(made.get_submodule(name), **wish)

    quantized = quantize(model, [(crops(name, side)[0],) for name in calibrated_on], prepare=prepare)
    figures = {}
    for name in judged_on:
        small, whole = crops(name, side)
        with torch.no_grad():
            in_float = psnr(model(small), whole)
            figures[f"{name} dB lost"] = in_float - psnr(plain(quantized(small)), whole)
        figures[f"{name} dB"] = in_float
    tests = [(crops(name, side // 2)[0],) for name in judged_on]
    axes = {"picture": {0: "batch", 2: "height", 3: "width"}}
    proof = prove(quantized, tests, folder / "enlarger.onnx", ["picture"], dynamic_axes=axes)
    share = share_of_integers(model, quantized, tests[0])
    return Outcome("waifu2x upconv7", figures, proof, linger.coverage(quantized), share)
