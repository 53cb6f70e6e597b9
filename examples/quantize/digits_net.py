# SPDX-License-Identifier: Apache-2.0
"""A user's own file: a small network for handwritten digits, and the data to quantize it with.

    linger quantize digits_net.py:make_net --data digits_net.py:data

`make_net` trains for a few seconds; a file of yours would load the weights that you have trained. `data` gives pictures with
their labels that the training has not seen. Needs scikit-learn (extra `demo`).
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

TRAINED_ON = 1200
EPOCHS = 8


class DigitsNet(nn.Module):
    """8×8 grey pictures to ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 4, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Scores of the ten digits."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(image))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


def digits() -> tuple[Tensor, Tensor]:
    """All pictures, 0 to 1, and the digits that they show."""
    found = load_digits()
    pictures = torch.from_numpy((found.images / 16).astype(np.float32))[:, None]
    return pictures, torch.from_numpy(found.target)


def make_net() -> nn.Module:
    """The network, trained on the first 1200 pictures."""
    torch.manual_seed(0)
    pictures, labels = digits()
    model = DigitsNet()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(TRAINED_ON).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(pictures[chosen]), labels[chosen]).backward()
            optimizer.step()
    return model.eval()


def data() -> tuple[Tensor, Tensor]:
    """The other 597 pictures and their labels."""
    pictures, labels = digits()
    return pictures[TRAINED_ON:], labels[TRAINED_ON:]
