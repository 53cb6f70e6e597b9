# SPDX-License-Identifier: Apache-2.0
"""NVIDIA ModelOpt: its default int8 settings, which quantize inputs and weights of layers, no sums and no outputs."""

from __future__ import annotations

import argparse

import modelopt.torch.quantization as mtq
from rows import Row, parser, report
from torch import Tensor, nn

from rivals.side_by_side import resnet_row


def prepare(model: nn.Module, x: Tensor) -> nn.Module:
    """Quantizers in front of every layer, calibrated on one batch."""
    made: nn.Module = mtq.quantize(model, mtq.INT8_DEFAULT_CFG, lambda m: m(x))
    return made.train()


def rows(options: argparse.Namespace) -> list[Row]:
    return [resnet_row("nvidia-modelopt", prepare, options)]


def main() -> None:
    report(rows, parser(__doc__, rounds=12))


if __name__ == "__main__":
    main()
