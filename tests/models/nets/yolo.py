"""A small YOLO: CSP blocks, SPPF, a neck with two levels, boxes decoded inside the network."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, CLASSES = 64, 3


class Conv(nn.Module):
    def __init__(self, c1, c2, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class C2f(nn.Module):
    def __init__(self, c1, c2, n=1):
        super().__init__()
        self.c = c2 // 2
        self.cv1 = Conv(c1, 2 * self.c)
        self.cv2 = Conv((2 + n) * self.c, c2)
        self.m = nn.ModuleList(nn.Sequential(Conv(self.c, self.c, 3), Conv(self.c, self.c, 3)) for _ in range(n))

    def forward(self, x):
        y = list(self.cv1(x).chunk(2, 1))
        for m in self.m:
            y.append(y[-1] + m(y[-1]))
        return self.cv2(torch.cat(y, 1))


class SPPF(nn.Module):
    def __init__(self, c, k=5):
        super().__init__()
        self.cv1, self.cv2 = Conv(c, c // 2), Conv(c * 2, c)
        self.pool = nn.MaxPool2d(k, 1, k // 2)

    def forward(self, x):
        y = [self.cv1(x)]
        y.extend(self.pool(y[-1]) for _ in range(3))
        return self.cv2(torch.cat(y, 1))


class Detect(nn.Module):
    def __init__(self, channels, strides):
        super().__init__()
        self.strides = strides
        self.heads = nn.ModuleList(nn.Conv2d(c, 5 + CLASSES, 1) for c in channels)

    def forward(self, features):
        out = []
        for x, head, stride in zip(features, self.heads, self.strides, strict=True):
            y = head(x)
            h, w = y.shape[2:]
            y = y.flatten(2).transpose(1, 2)
            gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            grid = torch.stack([gx, gy], -1).reshape(1, -1, 2).to(y.dtype)
            xy = (y[..., :2].sigmoid() * 2 - 0.5 + grid) * stride
            wh = (y[..., 2:4].sigmoid() * 2) ** 2 * stride
            out.append(torch.cat([xy, wh, y[..., 4:].sigmoid()], -1))
        return torch.cat(out, 1)


class Yolo(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(Conv(3, 8, 3, 2), Conv(8, 16, 3, 2), C2f(16, 16))
        self.p4 = nn.Sequential(Conv(16, 32, 3, 2), C2f(32, 32))
        self.p5 = nn.Sequential(Conv(32, 32, 3, 2), SPPF(32))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.neck = C2f(64, 32)
        self.detect = Detect((32, 32), (8, 16))

    def forward(self, x):
        p4 = self.p4(self.stem(x))
        p5 = self.p5(p4)
        return self.detect([self.neck(torch.cat([self.up(p5), p4], 1)), p5])


def pictures(count):
    """One bright square on a dark ground; the box is center x, center y, width, height in pixels."""
    boxes = torch.stack(
        [torch.randint(12, 52, (count,)), torch.randint(12, 52, (count,)), *[torch.randint(8, 24, (count,))] * 2], 1
    )
    images = torch.rand(count, 3, SIZE, SIZE) * 0.2
    for image, (x, y, w, h) in zip(images, boxes.tolist(), strict=True):
        image[:, max(0, y - h // 2) : y + h // 2, max(0, x - w // 2) : x + w // 2] += 0.7
    return images, boxes.float()


def make():
    torch.manual_seed(0)
    net = Yolo()
    images, boxes = pictures(64)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for step in range(12):
        chosen = torch.arange(16) + step % 4 * 16
        found = net(images[chosen])
        near = ((found[..., :2] - boxes[chosen, None, :2]).abs().sum(-1)).argmin(1)
        best = found[torch.arange(16), near]
        wanted = torch.zeros(found.shape[:2]).scatter(1, near[:, None], 1.0)
        loss = nn.functional.l1_loss(best[:, :4], boxes[chosen]) / 8 + nn.functional.binary_cross_entropy(
            found[..., 4], wanted
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def data():
    torch.manual_seed(1)
    return DataLoader(TensorDataset(*pictures(80)), batch_size=16)
