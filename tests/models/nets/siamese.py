"""A Siamese network: one encoder for two pictures, cosine similarity of the embeddings."""

import torch
import torch.nn.functional as F
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 16),
        )

    def forward(self, anchor, other):
        return F.cosine_similarity(self.encoder(anchor), self.encoder(other))


def pairs(count):
    """Pictures of noise with a ramp; the two of a pair have the same ramp in every second pair."""
    ramp = torch.linspace(-1, 1, 16)
    ramps = torch.stack([ramp[None].expand(16, 16), ramp[:, None].expand(16, 16), -ramp[None].expand(16, 16)])
    first = torch.randint(0, 3, (count,))
    same = torch.arange(count) % 2
    second = (first + (1 - same) * torch.randint(1, 3, (count,))) % 3
    left, right = (ramps[kind][:, None] + 0.3 * torch.randn(count, 1, 16, 16) for kind in (first, second))
    return left, right, same


def make():
    torch.manual_seed(0)
    net = Siamese()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(30):
        left, right, same = pairs(64)
        loss = F.mse_loss(net(left, right), same * 2.0 - 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def data():
    torch.manual_seed(1)
    left, right, _ = pairs(256)
    return left, right
