# SPDX-License-Identifier: Apache-2.0
"""What an export costs: linger's of the quantized CIFAR ResNet-18 against torch's tracing export of the float one."""

from __future__ import annotations

import argparse
import io
import warnings

import torch
from cifar_resnet import ResNet18
from rows import Row, measured, parser, report

import linger
from linger.onnx.exporter.tracing import torch_export

BAR = 2.0


def rows(options: argparse.Namespace) -> list[Row]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 32)
    plain, quantized = ResNet18().eval(), ResNet18().eval()
    linger.init(linger.trace_layers(quantized, x))
    with linger.calibration():
        quantized(torch.randn(8, 3, 32, 32))

    def export_float() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch_export(plain, (x,), io.BytesIO(), dynamo=False, opset_version=12)

    def export_integers() -> None:
        linger.onnx.export(quantized, (x,), io.BytesIO(), opset_version=12)

    variants = {"torch": export_float, "linger": export_integers}
    claim = "export of the quantized ResNet-18 (CIFAR) / torch's export of the float one"
    return [measured(claim, variants, base="torch", rounds=options.rounds, warm_up=1, bar=BAR)]


def main() -> None:
    report(rows, parser(__doc__, rounds=9))


if __name__ == "__main__":
    main()
