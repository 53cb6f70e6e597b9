# SPDX-License-Identifier: Apache-2.0
"""torchao: the exported graph prepared for training with its quantizer for x86."""

from __future__ import annotations

import argparse

import torch
from rows import Row, parser, report
from torch import Tensor, nn
from torchao.quantization.pt2e import move_exported_model_to_train
from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)

from rivals.side_by_side import resnet_row


def prepare(model: nn.Module, x: Tensor) -> nn.Module:
    """Fake quantization in the graph, batch norm folded into the convolutions."""
    quantizer = X86InductorQuantizer()
    quantizer.set_global(get_default_x86_inductor_quantization_config(is_qat=True))
    made: nn.Module = prepare_qat_pt2e(torch.export.export(model.train(), (x,)).module(), quantizer)
    move_exported_model_to_train(made)
    made(x)
    return made


def rows(options: argparse.Namespace) -> list[Row]:
    return [resnet_row("torchao", prepare, options)]


def main() -> None:
    report(rows, parser(__doc__, rounds=12))


if __name__ == "__main__":
    main()
