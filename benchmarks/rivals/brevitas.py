# SPDX-License-Identifier: Apache-2.0
"""Brevitas: 8 bits, one power of two for each tensor, in ResNet-18 and in an LSTM whose every intermediate is quantized."""

from __future__ import annotations

import argparse
from importlib.metadata import version

import brevitas.nn as qnn
import torch
from brevitas.quant import (
    Int8ActPerTensorFixedPoint,
    Int8Bias,
    Int8WeightPerTensorFixedPoint,
    Uint8ActPerTensorFixedPoint,
)
from rows import LARGE_LSTM_STEP, LSTM_STEP, Row, measured, parser, report
from torch import Tensor, nn

from rivals.side_by_side import resnet_row, training_step

STEPS, BATCH = 50, 8
WEIGHTS = Int8WeightPerTensorFixedPoint


class Signed(Int8ActPerTensorFixedPoint):  # type: ignore[misc]  # brevitas has no types here
    """Activations whose scale is learned from the second step on; before that, a costly percentile finds it."""

    collect_stats_steps = 1


class Unsigned(Uint8ActPerTensorFixedPoint):  # type: ignore[misc]  # brevitas has no types here
    """The same behind ReLU and sigmoid."""

    collect_stats_steps = 1


def quantized_layer(layer: nn.Module, name: str) -> nn.Module | None:
    """Brevitas' layer in the place of a float one; None where the float one stays."""
    if isinstance(layer, nn.Conv2d):
        sizes = layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding
        return qnn.QuantConv2d(*sizes, bias=layer.bias is not None, weight_quant=WEIGHTS)
    if isinstance(layer, nn.Linear):
        return qnn.QuantLinear(
            layer.in_features, layer.out_features, bias=True, weight_quant=WEIGHTS, output_quant=Signed
        )
    if isinstance(layer, nn.ReLU):
        return qnn.QuantReLU(act_quant=Unsigned)
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        return nn.Sequential(layer, qnn.QuantIdentity(act_quant=Signed))
    if isinstance(layer, nn.BatchNorm2d) and not name.endswith("bn1"):  # no ReLU follows: a sum does
        return nn.Sequential(layer, qnn.QuantIdentity(act_quant=Signed))
    return None


def quantize(model: nn.Module, prefix: str = "") -> nn.Module:
    """Replace the layers of a model, inside too."""
    for name, child in list(model.named_children()):
        made = quantized_layer(child, f"{prefix}{name}")
        if made is None:
            quantize(child, f"{prefix}{name}.")
        else:
            setattr(model, name, made)
    return model


def prepare(model: nn.Module, x: Tensor) -> nn.Module:
    """Input, weights, outputs behind batch norm, sums behind ReLU, pool and linear."""
    made = nn.Sequential(qnn.QuantIdentity(act_quant=Signed), quantize(model)).train()
    made(x)
    return made


class Outputs(nn.Module):
    """The output sequence of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """[T, B, I] to [T, B, H]."""
        result: Tensor = self.layer(x)[0]
        return result


def lstm_row(claim: str, inputs: int, hidden: int, options: argparse.Namespace) -> Row:
    """The training step of an LSTM."""
    x, target = torch.randn(STEPS, BATCH, inputs), torch.randn(STEPS, BATCH, hidden) * 0.1
    layers = {
        "float": nn.LSTM(inputs, hidden),
        "brevitas": qnn.QuantLSTM(
            inputs,
            hidden,
            weight_quant=WEIGHTS,
            bias_quant=Int8Bias,
            io_quant=Signed,
            gate_acc_quant=Signed,
            sigmoid_quant=Unsigned,
            tanh_quant=Signed,
            cell_state_quant=Signed,
        ),
    }
    steps = {
        name: training_step(Outputs(layer).train(), x, target, nn.functional.mse_loss) for name, layer in layers.items()
    }
    detail = f"brevitas {version('brevitas')}"
    return measured(claim, steps, base="float", rounds=options.rounds, warm_up=3, detail=detail)


def rows(options: argparse.Namespace) -> list[Row]:
    return [
        resnet_row("brevitas", prepare, options),
        lstm_row(LSTM_STEP, 32, 64, options),
        lstm_row(LARGE_LSTM_STEP, 128, 128, options),
    ]


def main() -> None:
    report(rows, parser(__doc__, rounds=12))


if __name__ == "__main__":
    main()
