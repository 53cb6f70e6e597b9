# SPDX-License-Identifier: Apache-2.0
"""Finding faces: the three networks of MTCNN (facenet-pytorch), convolutions with PReLU and pooling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from real_models.packages import folder_of, photograph
from real_models.proof import Outcome, linger, plain, prove, quantize, share_of_integers

SIZES = {"pnet": 12, "rnet": 24, "onet": 48}
"""Side of the picture that gives one answer."""

THRESHOLDS = {"pnet": 0.6, "rnet": 0.7, "onet": 0.7}
"""A face from this probability on."""


class Proposal(nn.Module):
    """Every 12×12 window of a picture: is it a face, and how far is the face's frame from the window's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.softmax4_1 = nn.Conv2d(32, 2, 1), nn.Softmax(dim=1)
        self.conv4_2 = nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.softmax4_1(self.conv4_1(x)), self.conv4_2(x)


class Refinement(nn.Module):
    """24×24 pictures: face or not, and the frame."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.softmax5_1 = nn.Linear(128, 2), nn.Softmax(dim=1)
        self.dense5_2 = nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu4(self.dense4(x))
        return self.softmax5_1(self.dense5_1(x)), self.dense5_2(x)


class Output(nn.Module):
    """48×48 pictures: face or not, the frame, and five points of the face."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 32, 3), nn.PReLU(32)
        self.conv2, self.prelu2 = nn.Conv2d(32, 64, 3), nn.PReLU(64)
        self.conv3, self.prelu3 = nn.Conv2d(64, 64, 3), nn.PReLU(64)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.pool, self.pool3 = nn.MaxPool2d(3, 2, ceil_mode=True), nn.MaxPool2d(2, 2, ceil_mode=True)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.softmax6_1 = nn.Linear(256, 2), nn.Softmax(dim=1)
        self.dense6_2 = nn.Linear(256, 4)
        self.dense6_3 = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.conv4(x)).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu5(self.dense5(x))
        return self.softmax6_1(self.dense6_1(x)), self.dense6_2(x), self.dense6_3(x)


NETWORKS: dict[str, type[nn.Module]] = {"pnet": Proposal, "rnet": Refinement, "onet": Output}


def load(name: str) -> nn.Module:
    model = NETWORKS[name]()
    model.load_state_dict(torch.load(folder_of("facenet_pytorch") / "data" / f"{name}.pt", weights_only=True))
    return model.eval()


def windows(size: int) -> Tensor:
    """Squares of a photograph of an astronaut, many around her face, and small portraits; (rgb − 127.5)/128."""
    pixels = photograph("astronaut")
    places = [
        (top, left, side)
        for side in (96, 128, 160, 224)
        for top in range(0, 512 - side + 1, side // 3)
        for left in range(0, 512 - side + 1, side // 3)
    ]
    places += [  # her face is around row 120, column 220
        (max(0, 120 - side // 2 + shift), 220 - side // 2 - shift, side)
        for side in range(100, 180, 12)
        for shift in (-12, 0, 12)
    ]
    squares = [pixels[:, top : top + side, left : left + side] for top, left, side in places]
    made = torch.cat([F.interpolate(square[None], (size, size), mode="area") for square in squares])
    portraits = torch.from_numpy(np.load(folder_of("skimage") / "data" / "lfw_subset.npy")).float()
    grey = F.interpolate(portraits[:, None] * 255, (size, size), mode="bilinear").expand(-1, 3, -1, -1)
    return (torch.cat([made, grey]) - 127.5) / 128


def run(folder: Path, name: str, *, every: int = 1, proven_on: int = 16) -> Outcome:
    """Calibrate on every fourth window, judge on the others."""
    model, pictures = load(name), windows(SIZES[name])
    chosen = torch.arange(len(pictures)) % 4 == 0
    quantized = quantize(model, [(part,) for part in pictures[chosen].split(64)])
    test = pictures[~chosen][::every]
    with torch.no_grad():
        expected = model(test)
        found = [plain(part) for part in quantized(test)]
    threshold = THRESHOLDS[name]
    faces, found_faces = (part[0].flatten(1)[:, 1] >= threshold for part in (expected, found))
    deltas = (expected[1] - found[1]).flatten(1)[faces & found_faces].abs()
    figures = {
        "windows": float(len(test)),
        "faces": float(faces.sum()),
        "same decision %": 100 * float((faces == found_faces).float().mean()),
        "frame off by, mean": float(deltas.mean()),
        "frame off by, most": float(deltas.max()),
    }
    proof = prove(quantized, [(part,) for part in test[:proven_on].split(8)], folder / f"{name}.onnx", ["picture"])
    share = share_of_integers(model, quantized, (test[:1],))
    return Outcome(f"MTCNN {name}", figures, proof, linger.coverage(quantized), share)
