# SPDX-License-Identifier: Apache-2.0
"""Wishes for single modules, kept on the modules themselves until `normalize_layers` reads them."""

from __future__ import annotations

from torch import nn

from linger.constraint.limits import Limits
from linger.errors import UsageError

_WISH = "_linger_normalize_wish"

QUANTIZED = "_linger_is_quantized"
"""Attribute of every module of a model that `init` has quantised."""


def wish_of(module: nn.Module) -> Limits | None:
    """What a user asked for this module (perhaps no limits at all); None if nothing was asked."""
    found: Limits | None = module.__dict__.get(_WISH)
    return found


def keep_wish(module: nn.Module, wish: Limits) -> None:
    """Remember a wish; a later one replaces it."""
    module.__dict__[_WISH] = wish


def refuse_quantized(model: nn.Module, function: str) -> None:
    """Complain about a model that is quantised, as a whole or in parts.

    Raises:
        UsageError: `init` came first.
    """
    if any(QUANTIZED in module.__dict__ for module in model.modules()):
        raise UsageError(
            f"{function}: {type(model).__name__} is quantised already, and this step works on the float model. "
            "Call trace_layers, then normalize_layers, then init."
        )
