"""A temporal convolutional network: causal padding, dilations, weight norm, residuals; it predicts a signal's next value."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class CausalConv1d(nn.Conv1d):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.left = (self.kernel_size[0] - 1) * self.dilation[0]

    def forward(self, x):
        return super().forward(F.pad(x, (self.left, 0)))


class TemporalBlock(nn.Module):
    def __init__(self, inputs, outputs, dilation):
        super().__init__()
        self.conv1 = weight_norm(CausalConv1d(inputs, outputs, 3, dilation=dilation))
        self.conv2 = weight_norm(CausalConv1d(outputs, outputs, 3, dilation=dilation))
        self.dropout = nn.Dropout(0.1)
        self.downsample = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x):
        out = self.dropout(F.relu(self.conv1(x)))
        out = self.dropout(F.relu(self.conv2(out)))
        res = x if self.downsample is None else self.downsample(x)
        return F.relu(out + res)


class TCN(nn.Module):
    def __init__(self, channels=(16, 16, 16)):
        super().__init__()
        sizes = (1, *channels)
        self.network = nn.Sequential(*[TemporalBlock(sizes[i], sizes[i + 1], 2**i) for i in range(len(channels))])
        self.linear = nn.Linear(channels[-1], 1)

    def forward(self, x):
        return self.linear(self.network(x).transpose(1, 2)).squeeze(-1)


def signals(count):
    t = torch.arange(49.0)
    frequency, phase = torch.rand(count, 1) * 0.3 + 0.1, torch.rand(count, 1) * 6.28
    return torch.sin(frequency * t + phase) + 0.05 * torch.randn(count, 49)


def make():
    torch.manual_seed(0)
    net = TCN()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(60):
        signal = signals(32)
        loss = F.mse_loss(net(signal[:, None, :-1]), signal[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def data():
    torch.manual_seed(1)
    return [signals(16)[:, None, :-1] for _ in range(16)]
