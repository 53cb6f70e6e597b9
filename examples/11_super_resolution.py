# SPDX-License-Identifier: Apache-2.0
"""Super-resolution whose scale is chosen at run time: exported at 3×, run at 3× and 5× in ONNX Runtime.

The factor is an input of the file: a `torch.autograd.Function` with a `symbolic` writes ONNX's Resize and leaves its
scales open. Three convolutions, trained here in about twenty seconds on one photograph, sharpen what Resize left soft;
they are judged on another photograph. Prints the PSNR and saves enlarged.png (and bicubic.png beside it):

    3x: bicubic 31.06 dB, network 31.38 dB; ONNX Runtime is within 1e-06 of torch
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

import linger

STEPS, PATCH, MARGIN = 600, 90, 10  # 90 is a multiple of both factors; what a patch's border lacks is not judged


class Enlarge(torch.autograd.Function):
    """Bicubic enlargement by [1, 1, vertical, horizontal]."""

    @staticmethod
    def symbolic(g, planes, scales):
        how = {"mode_s": "cubic", "cubic_coeff_a_f": -0.75, "coordinate_transformation_mode_s": "half_pixel"}
        return g.op("Resize", planes, g.op("Constant", value_t=torch.zeros(0)), scales, **how)

    @staticmethod
    def forward(ctx, planes, scales):  # noqa: ARG004 - nothing is kept for a backward pass
        return F.interpolate(planes, scale_factor=scales.tolist()[2:], mode="bicubic")


class SuperResolution(nn.Module):
    """Enlarge, then add what is missing. Colours are planes of a batch; without biases, contrast does not matter."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 24, 5), (24, 12, 3), (12, 1, 5))
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(i, o, k, padding=k // 2, bias=False) for i, o, k in sizes)
        nn.init.zeros_(self.conv3.weight)

    def forward(self, planes: Tensor, scales: Tensor) -> Tensor:
        large = Enlarge.apply(planes, scales)
        return large + self.conv3(F.relu(self.conv2(F.relu(self.conv1(large)))))


def photograph(name: str) -> Tensor:
    return (
        torch.from_numpy(load_sample_image(name)[:420, :630] / np.float32(255)).permute(2, 0, 1)[:, None].contiguous()
    )


def reduced(planes: Tensor, factor: int) -> Tensor:
    return F.interpolate(planes, scale_factor=1 / factor, mode="bicubic", antialias=True).clamp(0, 1)


def scales(factor: int) -> Tensor:
    return torch.tensor([1.0, 1.0, factor, factor])


def psnr(found: Tensor, truth: Tensor) -> float:
    return float(-10 * torch.log10(F.mse_loss(found.clamp(0, 1), truth)))


def train(model: nn.Module, planes: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    inner = slice(MARGIN, -MARGIN)
    for step in range(STEPS):
        at = zip(*(torch.randint(0, size - PATCH + 1, (4,)).tolist() for size in planes.shape[2:]), strict=True)
        patches = torch.stack([planes[i % 3, :, y : y + PATCH, x : x + PATCH] for i, (y, x) in enumerate(at, step)])
        factor = (3, 5)[step % 2]
        made = model(reduced(patches, factor), scales(factor))
        optimizer.zero_grad()
        F.mse_loss(made[..., inner, inner], patches[..., inner, inner]).backward()
        optimizer.step()
        schedule.step()


def save(planes: Tensor, path: str) -> None:
    pixels = (planes[:, 0].clamp(0, 1) * 255).round().to(torch.uint8)
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)


def main() -> None:
    torch.set_num_threads(1)  # the same sums in the same order everywhere, and not slower at this size
    torch.manual_seed(0)
    model, truth = SuperResolution(), photograph("flower.jpg")
    train(model, photograph("china.jpg"))
    names = {"input_names": ["planes", "scales"], "output_names": ["large"], "opset_version": 11}
    sizes = {0: "planes", 2: "height", 3: "width"}
    axes = {"planes": sizes, "large": sizes | {2: "large_height", 3: "large_width"}}
    linger.onnx.export(model, (reduced(truth, 3), scales(3)), "enlarge.onnx", dynamic_axes=axes, **names)
    session = onnxruntime.InferenceSession("enlarge.onnx", providers=["CPUExecutionProvider"])
    for factor in (3, 5):
        small = reduced(truth, factor)
        found = torch.from_numpy(session.run(None, {"planes": small.numpy(), "scales": scales(factor).numpy()})[0])
        with torch.no_grad():
            bicubic, error = Enlarge.apply(small, scales(factor)), (model(small, scales(factor)) - found).abs().max()
        print(f"{factor}x: bicubic {psnr(bicubic, truth):.2f} dB, network {psnr(found, truth):.2f} dB", end="; ")
        print(f"ONNX Runtime is within {error:.0e} of torch")
    save(bicubic, "bicubic.png")
    save(found, "enlarged.png")


if __name__ == "__main__":
    main()
