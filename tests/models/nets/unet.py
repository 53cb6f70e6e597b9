"""A U-Net for segmentation: double convolutions, skips, transposed convolutions, padding where sizes differ."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class DoubleConv(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, inputs // 2, 2, stride=2)
        self.conv = DoubleConv(inputs, outputs)

    def forward(self, x, skip):
        x = self.up(x)
        dy, dx = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    def __init__(self, classes=2):
        super().__init__()
        self.inc = DoubleConv(1, 8)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(8, 16))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(16, 32))
        self.up1, self.up2 = Up(32, 16), Up(16, 8)
        self.outc = nn.Conv2d(8, classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        return self.outc(self.up2(self.up1(x3, x2), x1))


def discs(count):
    """A bright disc in noise; its pixels are class 1. 26 pixels are no multiple of four."""
    y, x = torch.meshgrid(torch.arange(26.0), torch.arange(26.0), indexing="ij")
    center, radius = torch.rand(count, 2, 1, 1) * 14 + 6, torch.rand(count, 1, 1) * 4 + 3
    mask = (x - center[:, 0]) ** 2 + (y - center[:, 1]) ** 2 < radius**2
    return mask[:, None] + 0.3 * torch.randn(count, 1, 26, 26), mask.long()


def make():
    torch.manual_seed(0)
    net = UNet()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(30):
        images, masks = discs(16)
        optimizer.zero_grad()
        F.cross_entropy(net(images), masks).backward()
        optimizer.step()
    return net.eval()


def data():
    torch.manual_seed(1)
    return DataLoader(TensorDataset(*discs(256)), batch_size=16)
