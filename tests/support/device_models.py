"""Small models that together use every layer and every kind of function that has an integer form."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import linger


class Between(nn.Module):
    """A convolution (with its batch norm) before a function or a layer, and a fully connected layer after it."""

    def __init__(self, use: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        for name, part in parts.items():
            setattr(self, name, part)
        self.use = use
        self.end = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.use(self, self.bn(self.conv(x)))
        return self.end(y.flatten(1))


def image(batch: int = 4, seed: int = 1) -> Tensor:
    """An input for every model here."""
    return torch.randn(batch, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def _layer(layer: nn.Module) -> Between:
    return Between(lambda m, y: m.layer(y), layer=layer)


def _rows(m: Any, y: Tensor) -> Tensor:
    """[batch, channel, row, column] as a sequence of 6 steps of 24 features."""
    return y.permute(0, 2, 1, 3).flatten(2)


def _packed(m: Any, y: Tensor) -> Tensor:
    packed = pack_padded_sequence(_rows(m, y), torch.tensor([6, 5, 3, 1]), batch_first=True)
    return pad_packed_sequence(m.layer(packed)[0], batch_first=True)[0]


def _cell(m: Any, y: Tensor) -> Tensor:
    h = c = None
    for step in _rows(m, y).unbind(1):
        h, c = m.layer(step, None if h is None else (h, c))
    return h


def _states(m: Any, y: Tensor) -> Tensor:
    """Both directions from an initial state, and the last states alone."""
    rows = _rows(m, y)
    return m.layer(rows, rows[:, :2, :5].transpose(0, 1).contiguous())[1].transpose(0, 1)


def _attention(m: Any, y: Tensor) -> Tensor:
    rows = _rows(m, y)
    return m.layer(rows, rows, rows, need_weights=False)[0]


def _masked_scores(m: Any, y: Tensor) -> Tensor:
    mask = torch.ones(6, 6, dtype=torch.bool, device=y.device).triu(1)
    return torch.softmax(y.masked_fill(mask, -math.inf), -1)


def _added_mask(m: Any, y: Tensor) -> Tensor:
    mask = torch.zeros(6, 6, device=y.device)
    return torch.softmax(y + mask.masked_fill(torch.ones_like(mask).triu(1) > 0, -math.inf), -1)


class WithTable(nn.Module):
    """Rows of an embedding, looked up by the largest pixels of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.table = linger.quant_module(nn.Embedding(9, 4))
        self.end = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        index = (x.flatten(1)[:, :5].abs() * 3.0).clamp(max=8.0).long()
        return self.end(self.table(index)).flatten(1)


def _layers() -> dict[str, Callable[[], nn.Module]]:
    return {
        "Conv2d, bn": lambda: Between(lambda m, y: y),
        "Conv2d, bn, relu": lambda: Between(lambda m, y: F.relu(y)),
        "Conv2d, folded bn": lambda: _layer(linger.NormalizeConvBN2d(4, 4, 3)),
        "Conv2d, bn, limits": lambda: _layer(
            linger.NormalizeConvBN2d(4, 4, 3, normalize_weight=0.25, normalize_bias=0.5, normalize_data=8)
        ),
        "Conv1d": lambda: Between(lambda m, y: m.layer(_rows(m, y)), layer=nn.Conv1d(6, 4, 3, padding=1)),
        "ConvTranspose2d": lambda: _layer(nn.ConvTranspose2d(4, 2, 3, stride=2)),
        "Linear": lambda: _layer(nn.Linear(6, 4)),
        "Embedding": WithTable,
        "AvgPool2d": lambda: _layer(nn.AvgPool2d(3)),
        "AdaptiveAvgPool2d": lambda: _layer(nn.AdaptiveAvgPool2d(4)),
        "MaxPool2d": lambda: _layer(nn.MaxPool2d(2)),
        "ReLU6": lambda: _layer(nn.ReLU6()),
        "LeakyReLU": lambda: _layer(nn.LeakyReLU(0.1)),
        "PReLU": lambda: _layer(nn.PReLU(4)),
        "BatchNorm2d alone": lambda: Between(lambda m, y: m.layer(F.relu(y)), layer=nn.BatchNorm2d(4)),
        "BatchNorm2d, cumulative": lambda: _layer(nn.BatchNorm2d(4, momentum=None)),
        "LayerNorm": lambda: _layer(nn.LayerNorm(6)),
        "GroupNorm": lambda: _layer(nn.GroupNorm(2, 4)),
        "InstanceNorm2d": lambda: _layer(nn.InstanceNorm2d(4, affine=True)),
        "LSTM": lambda: Between(lambda m, y: m.layer(_rows(m, y))[0], layer=nn.LSTM(24, 5, batch_first=True)),
        "LSTM, packed, both ways": lambda: Between(_packed, layer=nn.LSTM(24, 5, batch_first=True, bidirectional=True)),
        "GRU, two layers": lambda: Between(
            lambda m, y: m.layer(_rows(m, y))[0], layer=nn.GRU(24, 5, 2, batch_first=True)
        ),
        "GRU, both ways, states": lambda: Between(_states, layer=nn.GRU(24, 5, batch_first=True, bidirectional=True)),
        "LSTMCell": lambda: Between(_cell, layer=nn.LSTMCell(24, 5)),
        "MultiheadAttention": lambda: Between(_attention, layer=nn.MultiheadAttention(24, 2, batch_first=True)),
        "Dropout": lambda: _layer(nn.Dropout(0.0)),
        "Hardswish": lambda: _layer(nn.Hardswish()),
        "SiLU": lambda: _layer(nn.SiLU()),
    }


def _functions() -> dict[str, Callable[..., Tensor]]:
    return {
        "add": lambda m, y: y + F.relu(y),
        "add a number": lambda m, y: y + 0.3,
        "sub": lambda m, y: F.relu(y) - y,
        "mul": lambda m, y: y * F.relu(y),
        "mul a number": lambda m, y: y * 0.7,
        "div": lambda m, y: y / (F.relu(y) + 1.0),
        "minimum": lambda m, y: torch.minimum(y, y * 0.5),
        "maximum": lambda m, y: torch.maximum(y, y * 0.5),
        "abs": lambda m, y: y.abs(),
        "clamp": lambda m, y: y.clamp(-0.5, 0.7),
        "relu6": lambda m, y: F.relu6(y),
        "leaky_relu": lambda m, y: F.leaky_relu(y, 0.2),
        "sigmoid": lambda m, y: torch.sigmoid(y),
        "tanh": lambda m, y: torch.tanh(y),
        "gelu": lambda m, y: F.gelu(y),
        "silu": lambda m, y: F.silu(y),
        "hardswish": lambda m, y: F.hardswish(y),
        "hardsigmoid": lambda m, y: F.hardsigmoid(y),
        "softmax": lambda m, y: torch.softmax(y, 1),
        "log_softmax": lambda m, y: torch.log_softmax(y, -1),
        "mean": lambda m, y: y.mean((2, 3)),
        "sum": lambda m, y: y.sum(1),
        "var": lambda m, y: y.var(-1),
        "cat": lambda m, y: torch.cat([y, F.relu(y)], 1),
        "stack, split": lambda m, y: torch.stack(y.split(2, 1), 1),
        "matmul": lambda m, y: y @ y.transpose(2, 3),
        "attention": lambda m, y: F.scaled_dot_product_attention(y, y, y),
        "masked scores": _masked_scores,
        "added mask": _added_mask,
        "masked with a number": lambda m, y: y.masked_fill(y > 0.5, 0.25),
        "where": lambda m, y: torch.where(y > 0.2, y, y * 0.5),
        "pad": lambda m, y: F.pad(y, (1, 0, 2, 1), value=0.5),
        "interpolate": lambda m, y: F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False),
        "nearest": lambda m, y: F.interpolate(y, scale_factor=2),
        "avg_pool2d": lambda m, y: F.avg_pool2d(y, 2),
        "max_pool2d": lambda m, y: F.max_pool2d(y, 3, 2, 1),
        "layer_norm": lambda m, y: F.layer_norm(y, (6,)),
        "group_norm": lambda m, y: F.group_norm(y, 2),
        "linear of a parameter": lambda m, y: F.linear(y, m.own),
        "a parameter times": lambda m, y: y * m.own,
        "pixel_shuffle": lambda m, y: F.pixel_shuffle(y, 2),
        "a float island": lambda m, y: m.second(torch.sin(y)),
    }


def _with_parameter(use: Callable[..., Tensor]) -> Between:
    model = Between(use, second=nn.Linear(6, 6))
    model.own = nn.Parameter(torch.randn(6, 6))
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{f"layer {name}": make for name, make in _layers().items()},
    **{f"function {name}": lambda use=use: _with_parameter(use) for name, use in _functions().items()},
}


def make_model(name: str) -> nn.Module:
    """A model of `MODELS` with seeded weights, its sizes known."""
    torch.manual_seed(5)
    model = MODELS[name]().eval()
    with torch.no_grad():
        model(image())
    return model
