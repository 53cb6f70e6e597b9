# SPDX-License-Identifier: Apache-2.0
"""What an export costs: linger's of the quantised CIFAR ResNet-18 against torch's tracing export of the float one.

Both in one run, interleaved, process CPU time, medians. The bar is 2.
"""

from __future__ import annotations

import argparse
import io
import warnings

import torch
from cifar_resnet import ResNet18
from interleaved import medians

import linger
from linger.onnx.exporter.tracing import torch_export

BAR = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 32)
    plain, quantised = ResNet18().eval(), ResNet18().eval()
    linger.init(linger.trace_layers(quantised, x))
    with linger.calibration():
        quantised(torch.randn(8, 3, 32, 32))

    def export_float() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch_export(plain, (x,), io.BytesIO(), dynamo=False, opset_version=12)

    def export_integers() -> None:
        linger.onnx.export(quantised, (x,), io.BytesIO(), opset_version=12)

    times = medians({"torch": export_float, "linger": export_integers}, rounds=options.rounds, warm_up=1)
    ratio = times["linger"] / times["torch"]
    verdict = "within" if ratio <= BAR else "ABOVE"
    print(f"torch float export {times['torch'] * 1e3:.0f} ms, linger quantised export {times['linger'] * 1e3:.0f} ms, ")
    print(f"ratio {ratio:.2f} ({verdict} the bar {BAR})")


if __name__ == "__main__":
    main()
