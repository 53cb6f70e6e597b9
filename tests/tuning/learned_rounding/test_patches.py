# SPDX-License-Identifier: Apache-2.0
"""Patches times rows of weights are the layer itself, in integers, for every kind of product."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from linger.quantization.core.supported import supported_types
from linger.tuning.learned_rounding.rounding import from_rows, input_rows, output_rows, positions, to_rows

LAYERS = {
    "linear": (nn.Linear(5, 3, bias=False), (2, 4, 5)),
    "conv2d": (
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False),
        (2, 4, 7, 9),
    ),
    "same": (nn.Conv2d(2, 3, (2, 4), padding="same", bias=False), (2, 2, 5, 6)),
    "depthwise": (nn.Conv2d(3, 6, 3, padding=1, groups=3, bias=False), (1, 3, 4, 5)),
    "no batch": (nn.Conv2d(2, 3, 3, bias=False), (2, 5, 6)),
    "conv1d": (nn.Conv1d(4, 2, 3, stride=2, padding=1, bias=False), (3, 4, 8)),
    "transposed": (nn.ConvTranspose2d(4, 6, (4, 3), (2, 3), (1, 2), (1, 1), groups=2, bias=False), (2, 4, 3, 5)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch then copies its input
@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS)
def test_rows_make_the_product(layer: nn.Module, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)

    def integers(*size: int) -> Tensor:
        return torch.randint(-9, 10, size, generator=generator).float()

    weight, x = integers(*layer.weight.shape), integers(*shape)
    layer.weight.data.copy_(weight)
    y = layer(x).detach()
    op, bind = supported_types()[type(layer)]
    geometry = bind(layer)
    groups, is_transposed = geometry.get("group", 1), op.is_transposed
    count = y.numel() // y.shape[-1 - op.window_axes]
    picks = torch.randperm(count, generator=generator)[: count - 1]
    rows = input_rows(op, x, geometry, picks, positions(op, y))
    matrix = to_rows(weight, groups, is_transposed=is_transposed)
    found = torch.einsum("pgk,gok->pgo", rows, matrix).reshape(len(picks), -1)
    assert torch.equal(found, output_rows(op, y, picks))
    assert torch.equal(from_rows(matrix, weight, is_transposed=is_transposed), weight)
