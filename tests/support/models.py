"""Small models that exercise every path of the pipeline."""

import torch
import torch.nn.functional as F
from torch import nn

import linger


class Block(nn.Module):
    """A residual block with an in-place ReLU that is used twice."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding="same", groups=2)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class SmallNet(nn.Module):
    """Every first op: Quant, conv, relu, add, mul, cat, clip, both pools, linear, moves, dropout."""

    def __init__(self, channels=8):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels)
        self.block = Block(channels)
        self.pool = nn.MaxPool2d(2)
        self.relu6 = nn.ReLU6()
        self.avg = nn.AvgPool2d(2)
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(2 * channels, 10)

    def forward(self, x):
        x = F.relu(self.bn(self.stem(x)))
        x = self.pool(self.block(x))
        gate = self.relu6(x * 0.5 + 1.0)
        x = torch.cat([self.avg(x), self.avg(gate * x)], dim=1)
        x = self.gap(x).flatten(1)
        return self.fc(self.drop(x))


def settle(model):
    """Give batch norms statistics and parameters that matter."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
    return model


def quantized(model, *arguments, batches=None):
    """Traced, replaced and calibrated, in evaluation mode."""
    model.eval()
    linger.trace_layers(model, *arguments)
    made = linger.init(model)
    with linger.calibration():
        for batch in batches or [arguments]:
            made(*batch)
    return made


def small_net(size=8):
    """A calibrated SmallNet and an input."""
    torch.manual_seed(7)
    x = torch.randn(6, 1, size, size)
    return quantized(settle(SmallNet()), x), x


class Traced(nn.Module):
    """A model with one float island between integer layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        return self.second(torch.sin(self.first(x)))
