# SPDX-License-Identifier: Apache-2.0
"""Folds weight_norm, which torch has in two forms: w = g·v/‖v‖ becomes the weight, in a layer and in its checkpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, remove_weight_norm
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

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
                    state_dict[f"{stem}{name}"] = _weight(v, g, axis)


def _weight(v: Tensor, g: Tensor, axis: int) -> Tensor:
    return torch._weight_norm(v, g, axis)  # noqa: SLF001 - what both forms of torch compute
