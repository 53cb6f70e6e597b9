# SPDX-License-Identifier: Apache-2.0
"""Fast twin of Conv1dInt: the product on real carriers; requantisation is `torch_quantize.fake_quantize`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from linger.numeric.torch.kernel import conv1d


def accumulate(x: Tensor, w: Tensor, b: Tensor | None, attributes: dict[str, Any]) -> Tensor:
    """X ∗ w + b."""
    return conv1d(
        x,
        w,
        b,
        strides=attributes["strides"],
        pads=attributes["pads"],
        dilations=attributes["dilations"],
        group=attributes["group"],
    )


CHANNEL_AXIS = -2  # a signal without a batch has its channels first
