# SPDX-License-Identifier: Apache-2.0
"""What torch does around a pass: autocast and torch.compile, which pause in it, and functions with a symbolic."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")
_NOT_COMPILED = (
    "a model quantized by linger runs as it is inside torch.compile, with the same integers. Leave fullgraph=True out, or "
    "compile what stands before and after the model"
)


def put_autocast_aside() -> tuple[str, ...]:
    """Switch autocast off; returns where it was on."""
    # one question instead of four, but it leaves mps out
    if not torch._C._is_any_autocast_enabled() and not torch.is_autocast_enabled("mps"):  # noqa: SLF001 - as torch.compile asks
        return ()
    found = tuple([device for device in _AUTOCAST_DEVICES if torch.is_autocast_enabled(device)])
    for device in found:
        torch.set_autocast_enabled(device, False)  # noqa: FBT003 - torch takes it by position only
    return found


def take_autocast_up(devices: tuple[str, ...]) -> None:
    """Switch autocast on again where it was."""
    for device in devices:
        torch.set_autocast_enabled(device, True)  # noqa: FBT003 - as above


@contextmanager
def full_precision() -> Iterator[None]:
    """Without autocast inside the block."""
    devices = put_autocast_aside()
    try:
        yield
    finally:
        take_autocast_up(devices)


_F = TypeVar("_F", bound=Callable[..., Any])


def not_traced(function: _F) -> _F:
    """Mark a function as one that torch's compiler calls instead of looking into it (`torch.compiler.disable` loads it)."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001 - the marks that it sets
    function._torchdynamo_disable_msg = _NOT_COMPILED  # type: ignore[attr-defined]  # noqa: SLF001
    return function


_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]  # a class method
_MODULE = nn.Module._call_impl.__code__  # noqa: SLF001 - only its code is compared


def function_with_symbolic() -> str:
    """The name of the torch.autograd.Function at work that writes nodes of its own into a file; empty where there is none.

    torch tells nobody which function is at work, so the frames of the module's forward are looked at. Ask only where
    `torch._C._is_fwd_grad_enabled()` says no, as it does in the forward of every such function.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _MODULE:
        if frame.f_code is _APPLY:
            function = frame.f_locals["cls"]
            return str(function.__name__) if hasattr(function, "symbolic") else ""
        frame = frame.f_back
    return ""
