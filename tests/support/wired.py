"""A model whose wiring is given by the test."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import linger
from linger.quantization.setup.initialize import init


class Wired(nn.Module):
    """The usual layers, joined by a function of the model and its inputs."""

    def __init__(self, forward: Callable[..., Any], channels: int = 4, *, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1, bias=bias)
        self.bn = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.bn2 = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, channels)
        self.relu = nn.ReLU()
        self.relu_in_place = nn.ReLU(inplace=True)
        self.run = forward

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


def image(batch: int = 2, seed: int = 1, spread: float = 1.0) -> torch.Tensor:
    """An input for Wired."""
    return spread * torch.randn(batch, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def quantize(model: nn.Module, *batches: Any) -> nn.Module:
    """The model quantized, calibrated with these batches (each one argument), in evaluation mode."""
    model = init(model).eval()
    with linger.calibration():
        for batch in batches:
            model(batch)
    return model


def after(function: Callable[..., Any], **options: Any) -> nn.Module:
    """A calibrated model that applies a function to the output of one quantized convolution."""
    return quantize(Wired(lambda m, x: function(m.conv(x)), **options), image())
