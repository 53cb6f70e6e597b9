# SPDX-License-Identifier: Apache-2.0
"""Which switch of a model a torch function obeys, and the reason that coverage shows where it is off."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.quantization.core.runtime import TorchFunction
from linger.settings import Switches

SETTERS = {
    "add": "SetIQTensorAdd",
    "mul": "SetIQTensorMul",
    "div": "SetIQTensorDiv",
    "sum": "SetIQTensorSum",
    "cat": "SetIQTensorCat",
    "clamp": "SetIQTensorClamp",
    "sigmoid": "SetIQTensorSigmoid",
    "tanh": "SetIQTensorTanh",
    "softmax": "SetIQTensorSoftmax",
    "log_softmax": "SetIQTensorLogSoftmax",
    "var": "SetIQTensorVar",
    "linear": "SetFunctionLinearQuant",
    "bmm": "SetFunctionBmmQuant",
    "channel_shuffle": "SetFunctionChannelShuffleQuant",
}
"""Switch → the documented setter."""

_NAMES = {
    "add": ("add", "__add__", "__radd__", "__iadd__"),
    "mul": ("mul", "multiply", "__mul__", "__rmul__", "__imul__"),
    "div": ("div", "divide", "true_divide", "reciprocal", "__truediv__", "__div__", "__rtruediv__", "__itruediv__"),
    "sum": ("sum",),
    "cat": ("cat", "concat", "concatenate"),
    "clamp": ("clamp", "clip", "clamp_min", "clamp_max"),
    "sigmoid": ("sigmoid", "expit"),
    "tanh": ("tanh",),
    "softmax": ("softmax",),
    "log_softmax": ("log_softmax",),
    "var": ("var", "std"),
}
"""Switch → the functions that obey it, in place (`add_`) too, wherever torch has them."""

_PLACES = (torch, Tensor, F, torch.special)

SWITCHES: dict[TorchFunction, tuple[str, ...]] = {
    **{
        getattr(place, spelling): (switch,)
        for switch, names in _NAMES.items()
        for name in names
        for spelling in (name, f"{name}_")
        for place in _PLACES
        if hasattr(place, spelling)
    },
    F.linear: ("linear",),
    F.scaled_dot_product_attention: ("bmm", "mul", "softmax"),
    F.multi_head_attention_forward: ("linear", "bmm", "mul", "softmax"),
}
"""Function → every switch that must be on; half an attention in float would have no integers to mask."""


SHUFFLES = frozenset({torch.channel_shuffle, torch.native_channel_shuffle, F.channel_shuffle})
"""Functions that only move numbers: switched off, they do so by reshapes, and nothing becomes float."""


def why_off(func: TorchFunction, switches: Switches) -> str | None:
    """Why a function stays float in this model; None where its switches are on."""
    return next((reason_of(s) for s in SWITCHES.get(func, ()) if not getattr(switches, s)), None)


def reason_of(switch: str) -> str:
    """What coverage says of a function whose switch is off."""
    return f"switched off by {SETTERS[switch]}(False)"
