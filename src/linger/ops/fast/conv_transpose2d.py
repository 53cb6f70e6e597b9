# SPDX-License-Identifier: Apache-2.0
"""Fast twin of ConvTranspose2dInt: the product on real carriers; requantisation is `torch_quantize.fake_quantize`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from linger.numeric.torch.kernel import conv_transpose2d


def accumulate(x: Tensor, w: Tensor, b: Tensor | None, attributes: dict[str, Any]) -> Tensor:
    """X ∗ᵀ w + b."""
    return conv_transpose2d(
        x,
        w,
        b,
        strides=attributes["strides"],
        pads=attributes["pads"],
        output_padding=attributes["output_padding"],
        dilations=attributes["dilations"],
        group=attributes["group"],
    )


CHANNEL_AXIS = -3  # a picture without a batch has its channels first
