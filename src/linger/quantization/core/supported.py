# SPDX-License-Identifier: Apache-2.0
"""What of a model can be quantized: the layers that have an integer form, read from the ops, and models that cannot be.

Weights that weight_norm computes are made plain parameters first: w = g·v/‖v‖, in a layer and in its checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, partial, reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.nn.utils import parametrize, remove_weight_norm
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from linger.analysis.trace import computes_like
from linger.constraint.normalize import NORMALIZED
from linger.dialect import Binding, Op, ops
from linger.errors import UsageError, listing
from linger.quantization.core.runtime import TorchFunction
from linger.settings import Switches

NO_INTEGER_FORM = "linger has no integer form for this function"
"""What coverage says of a function that no op stands for."""


@cache
def supported_types() -> dict[type[nn.Module], tuple[Op, Binding]]:
    """Layer type → op and the binding of its settings."""
    table: dict[type[nn.Module], tuple[Op, Binding]] = {}
    for op in ops().values():
        for path, binding in op.layers.items():
            table[reduce(getattr, path.split(".")[1:], torch)] = (op, binding)  # type: ignore[index]  # getattr walks modules
    return table


def op_for(layer: nn.Module) -> tuple[Op, Binding] | None:
    """The op of a layer's type or of its nearest supported ancestor."""
    table = supported_types()
    return next((table[kind] for kind in type(layer).__mro__ if kind in table), None)


def has_own_forward(layer: nn.Module) -> bool:
    """Whether a subclass computes something else than the supported layer it derives from, with or without limits."""
    known = (*supported_types(), *NORMALIZED.values())
    return not any(computes_like(layer, kind) for kind in type(layer).__mro__ if kind in known)


def holds_matrices(modules: Collection[nn.Module]) -> bool:
    """Whether a module of the user's own type has a parameter or buffer that may be the weight of a product."""
    return any(
        t is not None and t.dim() > 1 and t.is_floating_point()
        for module in modules
        if not type(module).__module__.startswith("torch.nn.modules.")
        for t in (*module._parameters.values(), *module._buffers.values())  # noqa: SLF001 - its own, not its children's
    )


def refuse_compiled(model: nn.Module) -> None:
    """Raise a `UsageError` with all compiled parts of a model: their traces hold the float layers."""
    compiled = []
    for path, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            name = path.replace("_orig_mod.", "").removesuffix("_orig_mod").rstrip(".")
            compiled.append(name or type(module).__name__)
    if compiled:
        raise UsageError(
            f"init: {listing(dict.fromkeys(compiled))} went through torch.compile, whose traces hold the float layers. Give "
            "init the model as it was before (compiled._orig_mod), and call torch.compile on what init returns, if at all."
        )


def refuse_empty(model: nn.Module) -> None:
    """Raise a `UsageError` with all tensors of a model that hold no numbers yet, on the meta device."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    empty = [name for name, t in state.items() if t.is_meta]
    if empty:
        raise UsageError(
            f"init: {listing(empty)} on the meta device hold no numbers. Give the model memory with "
            "model.to_empty(device=…), load its weights, then call init."
        )


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


# weight_norm, which torch has in two forms
Folded = dict[str, int]
"""Names of weights, and the axis that weight_norm left out of each norm (−1: none)."""


def fold_weight_norm(layer: nn.Module) -> Folded:
    """Make every weight that weight_norm computes a plain parameter of the same value; other parametrizations stay."""
    folded: Folded = {}
    for hook in list(layer._forward_pre_hooks.values()):  # noqa: SLF001 - where torch keeps the older form
        if isinstance(hook, WeightNorm):
            folded[hook.name] = hook.dim
            with torch.no_grad():
                setattr(layer, hook.name, hook.compute_weight(layer))  # as it is now, not as the last pass left it
            remove_weight_norm(layer, hook.name)
    if not parametrize.is_parametrized(layer):
        return folded
    lists: Any = layer.parametrizations
    if all(len(lists[name]) == 1 and isinstance(lists[name][0], _WeightNorm) for name in lists):
        folded |= {name: lists[name][0].dim for name in lists}
        weights = {
            name: nn.Parameter(getattr(layer, name).detach().clone(), requires_grad=lists[name].original1.requires_grad)
            for name in lists
        }
        # torch's own way would take the weight from the class, which copies of the layer share
        del layer._modules["parametrizations"]  # noqa: SLF001
        layer.__class__ = type(layer).__bases__[0]
        for name, weight in weights.items():
            setattr(layer, name, weight)
    return folded


def load_folded(layer: nn.Module, folded: Folded) -> None:
    """Let a layer load checkpoints of the model before its weights were folded."""
    if folded:
        layer.register_load_state_dict_pre_hook(partial(_fold_keys, folded))


def _fold_keys(folded: Folded, module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: object) -> None:
    """A module-level function, so that a model can be pickled; `conv.` is where a fused pair keeps its weight."""
    del module, rest
    for inner in ("", "conv."):
        for name, axis in folded.items():
            stem = f"{prefix}{inner}"
            older = (f"{stem}{name}_g", f"{stem}{name}_v")
            newer = tuple(f"{stem}parametrizations.{name}.original{i}" for i in (0, 1))
            for keys in (older, newer):
                if all(key in state_dict for key in keys):
                    g, v = (state_dict.pop(key) for key in keys)
                    state_dict[f"{stem}{name}"] = torch._weight_norm(v, g, axis)  # noqa: SLF001 - what both forms of torch compute
