"""Several tasks from a picture and a row of sensors: arguments by keyword, one optional, outputs in a dict."""

import torch
import torch.nn.functional as F
from torch import nn


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, 1),
            nn.BatchNorm2d(12),
            nn.Hardswish(),
            nn.Conv2d(12, 24, 3, 2, 1),
            nn.BatchNorm2d(24),
            nn.Hardswish(),
        )
        self.sensors = nn.Sequential(nn.Linear(6, 24), nn.ReLU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(48, 3), "angle": nn.Linear(48, 2), "alarm": nn.Linear(48, 1)})

    def forward(self, image, *, sensors=None, mask=None):
        x = self.backbone(image).mean(dim=(2, 3))
        if sensors is None:
            y = torch.zeros_like(x)
        else:
            if mask is not None:
                sensors = sensors * mask
            y = self.sensors(sensors)
        x = torch.cat([x, y], dim=-1)
        return {
            "kind": self.heads["kind"](x),
            "angle": torch.tanh(self.heads["angle"](x)),
            "alarm": torch.sigmoid(self.heads["alarm"](x)).squeeze(-1),
        }


def scenes(count):
    """The color is the kind, the sensors know the angle, and alarm is where both are high."""
    kind = torch.arange(count) % 3
    image = torch.rand(count, 3, 16, 16) * 0.4 + 0.6 * F.one_hot(kind, 3)[:, :, None, None]
    angle = torch.rand(count) * 3.14
    sensors = torch.stack([torch.cos(angle), torch.sin(angle), *torch.randn(4, count) * 0.3], -1)
    wanted = {"kind": kind, "angle": sensors[:, :2], "alarm": ((kind == 2) & (angle < 1.5)).float()}
    return image, sensors, wanted


def make():
    torch.manual_seed(0)
    net = MultiTask()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(40):
        image, sensors, wanted = scenes(64)
        found = net(image, sensors=sensors)
        loss = F.cross_entropy(found["kind"], wanted["kind"]) + F.mse_loss(found["angle"], wanted["angle"])
        loss = loss + F.binary_cross_entropy(found["alarm"], wanted["alarm"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def data():
    torch.manual_seed(1)
    image, sensors, _ = scenes(320)
    return {"image": image, "sensors": sensors}
