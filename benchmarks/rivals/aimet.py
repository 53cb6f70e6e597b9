# SPDX-License-Identifier: Apache-2.0
"""AIMET: its simulated quantization with 8 bits, trained as it comes."""

from __future__ import annotations

import argparse

from aimet_torch.model_preparer import prepare_model
from aimet_torch.quantsim import QuantizationSimModel
from rows import Row, parser, report
from torch import Tensor, nn

from rivals.side_by_side import resnet_row


def prepare(model: nn.Module, x: Tensor) -> nn.Module:
    """Sums as modules, then quantizers on every input, weight and output, calibrated on one batch."""
    simulation = QuantizationSimModel(prepare_model(model.eval()), x, default_output_bw=8, default_param_bw=8)
    simulation.compute_encodings(lambda m: m(x))
    made: nn.Module = simulation.model
    return made.train()


def rows(options: argparse.Namespace) -> list[Row]:
    return [resnet_row("aimet-torch", prepare, options)]


def main() -> None:
    report(rows, parser(__doc__, rounds=12))


if __name__ == "__main__":
    main()
