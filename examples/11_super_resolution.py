# SPDX-License-Identifier: Apache-2.0
"""Super-resolution before and after, in float and as integers, with a scale that is chosen at run time.

    python examples/11_super_resolution.py

Three convolutions, trained here on one photograph, add what bicubic enlargement leaves soft; another photograph judges them.
The float file (enlarge.onnx) is exported at 3× and run at 3× and 5×: the factor is one of its inputs, because the `symbolic` of
a `torch.autograd.Function` writes ONNX's Resize and leaves its scales open. The integer file (enlarge_int.onnx) holds the
convolutions, which follow the Resize, and is proven integer by integer. Saves small, bicubic, float, int8 and original side by
side (enlarged.png) and prints a table of PSNR in decibels, of what ONNX Runtime computed. Needs the extras `demo` and `report`.
"""

import argparse
import copy

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from real_models.packages import need
from rich.console import Console
from torch import Tensor, nn

import linger
from linger.records.rich_table import table

FACTORS = (3, 5)
DETAIL = (slice(90, 230), slice(200, 410))
"""The part of the photograph that the picture shows."""


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
    """Colors are planes of a batch; without biases, contrast does not matter."""

    def __init__(self) -> None:
        super().__init__()
        conv1, conv2, conv3 = (
            nn.Conv2d(i, o, k, padding=k // 2, bias=False) for i, o, k in ((1, 16, 5), (16, 16, 3), (16, 1, 3))
        )
        self.missing = nn.Sequential(conv1, nn.ReLU(), conv2, nn.ReLU(), conv3)
        nn.init.zeros_(conv3.weight)

    def forward(self, planes: Tensor, scales: Tensor) -> Tensor:
        large = Enlarge.apply(planes, scales)
        return large + self.missing(large)


def photograph(name: str) -> Tensor:
    from sklearn.datasets import load_sample_image

    pixels = load_sample_image(name)[:420, :630] / np.float32(255)
    return torch.from_numpy(pixels).permute(2, 0, 1)[:, None].contiguous()


def reduced(planes: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """A smaller picture, and the scales that undo it."""
    small = F.interpolate(planes, scale_factor=1 / factor, mode="bicubic", antialias=True).clamp(0, 1)
    return small, torch.tensor([1.0, 1.0, factor, factor])


def psnr(found: Tensor, truth: Tensor) -> float:
    return float(-10 * torch.log10(F.mse_loss(found.clamp(0, 1), truth)))


def train(model: nn.Module, planes: Tensor, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        corners = torch.stack([torch.randint(331, (4,)), torch.randint(541, (4,))], 1).tolist()
        patches = torch.stack([planes[(step + i) % 3, :, y : y + 90, x : x + 90] for i, (y, x) in enumerate(corners)])
        error = model(*reduced(patches, FACTORS[step % 2])) - patches
        error[..., 10:-10, 10:-10].square().mean().backward()  # not what a patch's border cannot know
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def quantized(model: SuperResolution, planes: Tensor) -> nn.Module:
    """The convolutions as integers, calibrated on the enlarged photograph that they were trained on."""
    made = linger.init(linger.trace_layers(copy.deepcopy(model.missing).eval(), planes))
    with linger.calibration(), torch.no_grad():
        for factor in FACTORS:
            made(Enlarge.apply(*reduced(planes, factor)))
    return made


def write(model: nn.Module, example: tuple[Tensor, ...], path: str, inputs: list[str], output: str) -> None:
    """Export with open sizes of pictures."""
    axes = {inputs[0]: [2, 3], output: [2, 3]}
    names = {"input_names": inputs, "output_names": [output]}
    linger.onnx.export(model, example, path, opset_version=11, dynamic_axes=axes, **names)


def run(path: str, **feeds: Tensor) -> Tensor:
    """What stock ONNX Runtime computes."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in feeds.items()})[0])


def draw(rows: dict[int, dict[str, Tensor]], truth: Tensor, path: str) -> None:
    """A detail, by factor from top to bottom and by method from left to right."""
    from matplotlib.figure import Figure

    shape = (len(rows), len(next(iter(rows.values()))))
    figure = Figure(figsize=(2.9 * shape[1], 2.25 * shape[0]), layout="constrained")
    for axes, (factor, pictures) in zip(figure.subplots(*shape), rows.items(), strict=True):
        for place, (name, planes) in zip(axes, pictures.items(), strict=True):
            place.imshow(planes[(slice(None), 0, *DETAIL)].clamp(0, 1).permute(1, 2, 0), interpolation="nearest")
            place.set_title(name if planes is truth else f"{name}, {psnr(planes, truth):.2f} dB", fontsize=10)
            place.set_xticks([])
            place.set_yticks([])
        axes[0].set_ylabel(f"{factor}×")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=700, help="of training")
    steps = parser.parse_args().steps
    need("sklearn", "PIL", "matplotlib")
    torch.set_num_threads(1)  # the same sums everywhere, and not slower at this size
    torch.manual_seed(0)
    model, seen, truth = SuperResolution(), photograph("china.jpg"), photograph("flower.jpg")
    train(model, seen, steps)
    as_integers = quantized(model, seen)
    write(model, reduced(truth, 3), "enlarge.onnx", ["planes", "scales"], "large")
    write(as_integers, (truth,), "enlarge_int.onnx", ["large"], "missing")

    rows, pictures = [], {}
    for factor in FACTORS:
        small, scales = reduced(truth, factor)
        bicubic = Enlarge.apply(small, scales)
        by_float = run("enlarge.onnx", planes=small, scales=scales)
        by_integers = bicubic + run("enlarge_int.onnx", large=bicubic)
        before = small.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
        shown = {"small": before, "bicubic": bicubic, "float": by_float, "int8": by_integers}
        pictures[factor] = shown | {"original": truth}
        rows.append([f"{factor}×", *(f"{psnr(planes, truth):.2f}" for planes in shown.values())])
    draw(pictures, truth, "enlarged.png")
    part = pictures[5]["bicubic"][(..., *DETAIL)]
    proof = linger.verify(as_integers, "enlarge_int.onnx", [(part,)])
    print(proof.summary())
    print("the pictures: enlarged.png")
    columns = ("factor", *pictures[3])[:-1]
    Console().print(table("PSNR in dB, unseen photograph", columns, rows))
    return 0 if proof.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
