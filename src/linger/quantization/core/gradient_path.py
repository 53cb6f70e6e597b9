# SPDX-License-Identifier: Apache-2.0
"""The place of a wrapper tensor in torch's gradient graph, for those who ask torch's C++ side instead of a function.

A `torch.autograd.Function` and a reentrant checkpoint look at the wrapper alone, never at what it wraps. So the wrapper
stands in the graph behind its content, and a wrapper that they return hands its own place on to its content.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Wrapped(torch.autograd.Function):
    """A wrapper, made by `make`, whose gradient is its content's."""

    @staticmethod
    def forward(ctx: Any, content: Tensor, make: Any) -> Tensor:
        """The wrapper."""
        ctx.kind = content.dtype
        made: Tensor = make()
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The wrapper's gradient, in the type of the content."""
        return gradients[0].to(ctx.kind), None


class _Rewrapped(torch.autograd.Function):
    """A wrapper that has got other content."""

    @staticmethod
    def forward(ctx: Any, wrapper: Tensor, content: Tensor) -> Tensor:
        """The same wrapper."""
        ctx.kind = content.dtype
        ctx.mark_dirty(wrapper)
        return wrapper

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The wrapper's gradient, in the type of the content."""
        return None, gradients[0].to(ctx.kind)


class _Unwrapped(torch.autograd.Function):
    """Content whose gradient is its wrapper's."""

    @staticmethod
    def forward(ctx: Any, wrapper: Tensor, content: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        """A copy: the content itself may be a view of something that is not in the graph."""
        return content.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004
        """The content's gradient, in the wrapper's type."""
        return gradients[0].float(), None


def has_place(wrapper: Tensor) -> bool:
    """Whether the wrapper itself, not its content, is in the graph."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the wrapper's function would ask the content
        return wrapper.requires_grad


def lacks_place(content: Tensor, wrapper: Tensor) -> bool:
    """Whether a wrapper has a place that its content does not know: another function has returned it, or written to it."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        if wrapper.grad_fn is None:
            return False
        is_own = getattr(wrapper.grad_fn, "_forward_cls", None) in (Wrapped, _Rewrapped)
        return not (is_own and content.requires_grad)


def content_behind(wrapper: Tensor, content: Tensor) -> Tensor:
    """The content, in the graph behind its wrapper."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        behind: Tensor = _Unwrapped.apply(wrapper, content)
    return behind


def follow(wrapper: Tensor, content: Tensor) -> None:
    """Let a wrapper stand where its new content stands. What was saved of it for a gradient is out of date."""
    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():  # noqa: SLF001
        if not wrapper.is_inference():
            torch.autograd.graph.increment_version(wrapper)
        if wrapper.requires_grad:
            wrapper.detach_()
        if content.requires_grad:
            _Rewrapped.apply(wrapper, content)
