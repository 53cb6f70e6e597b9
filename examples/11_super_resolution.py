# SPDX-License-Identifier: Apache-2.0
"""Super-resolution whose scale is chosen at run time: exported at 3×, run at 3× and 5× in ONNX Runtime.

The factor is an input of the file: the `symbolic` of a `torch.autograd.Function` writes ONNX's Resize and leaves its
scales open. Three convolutions, trained here on one photograph, judged on another, add what Resize leaves soft.
Prints the PSNR, in decibels, and saves the picture (enlarged.png):

    3x: bicubic 31.06, network 31.30; ONNX Runtime is within 2e-05 of torch
"""

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

import linger


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
    """Colours are planes of a batch; without biases, contrast does not matter."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 16, 5), (16, 16, 3), (16, 1, 3))
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(i, o, k, padding=k // 2, bias=False) for i, o, k in sizes)
        nn.init.zeros_(self.conv3.weight)

    def forward(self, planes: Tensor, scales: Tensor) -> Tensor:
        large = Enlarge.apply(planes, scales)
        return large + self.conv3(F.relu(self.conv2(F.relu(self.conv1(large)))))


def photograph(name: str) -> Tensor:
    pixels = load_sample_image(name)[:420, :630] / np.float32(255)
    return torch.from_numpy(pixels).permute(2, 0, 1)[:, None].contiguous()


def reduced(planes: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """A smaller picture, and the scales that undo it."""
    small = F.interpolate(planes, scale_factor=1 / factor, mode="bicubic", antialias=True).clamp(0, 1)
    return small, torch.tensor([1.0, 1.0, factor, factor])


def psnr(found: Tensor, truth: Tensor) -> float:
    return float(-10 * torch.log10(F.mse_loss(found.clamp(0, 1), truth)))


def train(model: nn.Module, planes: Tensor, steps: int = 700) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        corners = torch.stack([torch.randint(331, (4,)), torch.randint(541, (4,))], 1).tolist()
        patches = torch.stack([planes[(step + i) % 3, :, y : y + 90, x : x + 90] for i, (y, x) in enumerate(corners)])
        error = model(*reduced(patches, (3, 5)[step % 2])) - patches
        error[..., 10:-10, 10:-10].square().mean().backward()  # not what a patch's border cannot know
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def main() -> None:
    torch.set_num_threads(1)  # the same sums everywhere, and not slower at this size
    torch.manual_seed(0)
    model, truth = SuperResolution(), photograph("flower.jpg")
    train(model, photograph("china.jpg"))
    axes = {"planes": [2, 3], "large": [2, 3]}
    names = {"input_names": ["planes", "scales"], "output_names": ["large"]}
    linger.onnx.export(model, reduced(truth, 3), "enlarge.onnx", opset_version=11, dynamic_axes=axes, **names)
    session = onnxruntime.InferenceSession("enlarge.onnx", providers=["CPUExecutionProvider"])
    for factor in (3, 5):
        small, scales = reduced(truth, factor)
        large = torch.from_numpy(session.run(None, {"planes": small.numpy(), "scales": scales.numpy()})[0])
        with torch.no_grad():
            bicubic, distance = Enlarge.apply(small, scales), float((model(small, scales) - large).abs().max())
        print(f"{factor}x: bicubic {psnr(bicubic, truth):.2f}, network {psnr(large, truth):.2f};", end=" ")
        print(f"ONNX Runtime is within {distance:.0e} of torch")
    pixels = (large[:, 0].clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save("enlarged.png")


if __name__ == "__main__":
    main()
