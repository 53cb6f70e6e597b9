# SPDX-License-Identifier: Apache-2.0
"""Copies of a model to try things on, so that the model itself is never changed, whatever happens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from linger.errors import UsageError


def working_copy(model: nn.Module, who: str) -> nn.Module:
    """A copy in evaluation mode, with weights of its own.

    Every module gets a hook that does nothing: torch's fused transformer layers skip the layers inside them
    unless one of these has a hook, and a quantised model has.

    Raises:
        UsageError: The model holds something that cannot be copied.
    """
    try:
        made = copy.deepcopy(model)
    except Exception as error:
        raise UsageError(
            f"{who}: a copy of {type(model).__name__} cannot be made ({type(error).__name__}: {error}). Remove what "
            "copy.deepcopy does not copy: open files, generators, tensors that carry a gradient graph."
        ) from error
    made.eval()
    for module in made.modules():
        module.register_forward_pre_hook(_do_nothing)
    return made


def sharing_copy(module: nn.Module, *, instead: Sequence[tuple[Any, Any]] = ()) -> Any:
    """A copy whose parameters are the same objects; everything else, buffers too, is its own.

    Args:
        module: What to copy.
        instead: Pairs of an object inside it and what stands in its place in the copy.
    """
    memo = {id(parameter): parameter for parameter in module.parameters()}
    memo |= {id(old): new for old, new in instead}
    return copy.deepcopy(module, memo)


def _do_nothing(module: nn.Module, args: Any) -> None:
    """A forward pre-hook."""
