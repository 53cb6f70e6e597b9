# SPDX-License-Identifier: Apache-2.0
"""The float function that an op stands for, for the image of its error: on real inputs, by the op's own names.

An op that declares its real function (`@op.real`) needs no entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from linger.dialect import Op

Reals = Mapping[str, Any]
Settings = Mapping[str, Any]


def _convolution(x: Reals, a: Settings) -> Tensor:
    axes = len(a["kernel_shape"])
    run = (functional.conv1d, functional.conv2d)[axes - 1]
    return run(x["x"], x["w"], x["b"], a["strides"], a["pads"][:axes], a["dilations"], a["group"])


def _transposed(x: Reals, a: Settings) -> Tensor:
    settings = (a["strides"], a["pads"][:2], a["output_padding"], a["group"], a["dilations"])
    return functional.conv_transpose2d(x["x"], x["w"], x["b"], *settings)


def _per_channel(x: Reals, name: str) -> Tensor:
    return x[name].reshape(-1, *[1] * (x["x"].dim() - 2))


def _windows(x: Reals, one: float) -> Tensor:
    return x["rows"].T @ x["x"] @ x["columns"] / one


def _adaptive(x: Reals) -> Tensor:
    ones = torch.ones_like(x["x"])
    return _windows(x, 1.0) / (x["rows"].T @ ones @ x["columns"])


def _recurrent(kind: type[torch.nn.RNNBase]) -> Callable[[Reals, Settings], Tensor]:
    def run(x: Reals, a: Settings) -> Tensor:
        layer = kind(a["input_size"], a["hidden_size"], batch_first=bool(a["batch_first"]), dtype=torch.float64)
        names = {"weight_ih_l0": "w_ih", "weight_hh_l0": "w_hh", "bias_ih_l0": "b_ih", "bias_hh_l0": "b_hh"}
        layer.load_state_dict({ours: x[theirs] for ours, theirs in names.items()})
        with torch.no_grad():
            found: Tensor = layer(x["x"])[0]
        return found

    return run


_FUNCTIONS: dict[str, Callable[[Reals, Settings], Tensor]] = {
    "AvgPool2dInt": lambda x, a: functional.avg_pool2d(x["x"], a["kernel_shape"], a["strides"], a["pads"][:2]),
    "BatchNorm2dInt": lambda x, _: x["x"] * _per_channel(x, "w") + _per_channel(x, "b"),
    "BmmInt": lambda x, _: x["x"] @ x["y"],
    "Conv1dInt": _convolution,
    "Conv2dInt": _convolution,
    "ConvTranspose2dInt": _transposed,
    "GRUInt": _recurrent(torch.nn.GRU),
    "LSTMInt": _recurrent(torch.nn.LSTM),
    "LinearInt": lambda x, _: functional.linear(x["x"], x["w"], x["b"]),
    "Quant": lambda x, _: x["x"],
    "Requant": lambda x, _: x["x"],
    "iqAbs": lambda x, _: x["x"].abs(),
    "iqAdaptiveAvgPool": lambda x, _: _adaptive(x),
    "iqAdd": lambda x, _: x["x"] + x["y"],
    "iqClamp": lambda x, a: x["x"].clamp(a["min"], a["max"]),
    "iqDiv": lambda x, _: x["x"] / x["y"],  # infinite for a divisor of zero, where op.real gives 0
    "iqInterpolate": lambda x, _: _windows(x, 2.0**28),
    "iqMax": lambda x, _: torch.maximum(x["x"], x["y"]),
    "iqMin": lambda x, _: torch.minimum(x["x"], x["y"]),
    "iqMul": lambda x, _: x["x"] * x["y"],
    "iqPRelu": lambda x, _: torch.prelu(x["x"], x["w"]),
    "iqSub": lambda x, _: x["x"] - x["y"],
    "iqSubMax": lambda x, a: x["x"] - x["x"].amax(a["dim"], keepdim=True),
    "iqWhere": lambda x, _: torch.where(x["mask"] != 0, x["x"], x["y"]),
}

EXACT = {
    "Clip": "limits integers to integers",
    "Dequant": "divides an integer by a power of two, which float32 holds exactly up to 24 bits",
    "Gather": "hands on rows of integers",
    "MaxPool": "compares integers",
    "Relu": "compares integers",
    "ShuffleChannel": "moves integers",
    "iqCat": "moves integers, where all operands have the output's scale; else each is rounded once, as by Requant",
    "iqLargest": "compares integers",
    "iqPad": "moves integers",
}
"""Ops that round nothing, and why."""

_SCALES = {
    "x": ("scale_x",),
    "y": ("scale_y",),
    "w": ("scale_w",),
    "b": ("scale_x", "scale_w"),
    "w_ih": ("scale_iw",),
    "w_hh": ("scale_hw",),
    "b_ih": ("scale_i", "scale_iw"),
    "b_hh": ("scale_h", "scale_hw"),
}
_NORMALIZED = 2.0**10
"""Layer and group norms add their bias to Q10 times the weight."""


def real_inputs(op: Op, given: Mapping[str, Any], attributes: Settings) -> dict[str, Any]:
    """The real numbers that the integers of a node stand for; what has no scale stays as it is."""
    found = {}
    for name, array in given.items():
        scales = ("scale_i",) if name == "x" and "scale_i" in attributes else _SCALES.get(name, ())
        factor = _NORMALIZED * attributes["scale_w"] if op.normalizes and name == "b" else _product(scales, attributes)
        found[name] = (
            None if array is None else torch.from_numpy(array).double() / (1.0 if name in op.real_inputs else factor)
        )
    return found


def _product(scales: tuple[str, ...], attributes: Settings) -> float:
    factor = 1.0
    for name in scales:
        factor *= attributes.get(name, 1.0)
    return factor


def has_float(op: Op) -> bool:
    """Whether there is a float function to compare with."""
    return op.real_function is not None or op.name in _FUNCTIONS


def float_result(op: Op, reals: Reals, attributes: Settings) -> Tensor:
    """What the float function gives."""
    if op.name in _FUNCTIONS or op.real_function is None:
        return _FUNCTIONS[op.name](reals, attributes)
    found: Tensor = op.real_function(torch, *reals.values(), **attributes)
    return found
