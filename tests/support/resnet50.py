"""ResNet-50 in plain torch, with the names of the documented log: conv1, bn1, relu, maxpool, layer1.0.conv1 … fc."""

import torch
from torch import nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and first stride of the four stages."""

EXPANSION = 4


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions with one ReLU that is used three times."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet50(nn.Module):
    """The standard architecture; weights are random."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        for number, (width, blocks, stride) in enumerate(STAGES, start=1):
            parts = [
                Bottleneck(inputs if i == 0 else EXPANSION * width, width, stride if i == 0 else 1)
                for i in range(blocks)
            ]
            setattr(self, f"layer{number}", nn.Sequential(*parts))
            inputs = EXPANSION * width
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet50() -> ResNet50:
    """Under the name that documents call it by."""
    return ResNet50()
