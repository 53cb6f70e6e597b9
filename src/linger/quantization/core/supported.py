# SPDX-License-Identifier: Apache-2.0
"""Which torch layers have an integer form, read from the ops."""

from __future__ import annotations

from functools import cache, reduce

import torch
from torch import nn

from linger.analysis.matcher import computes_like
from linger.constraint.normalize import NORMALIZED
from linger.dialect import Binding, Op, ops

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
