# SPDX-License-Identifier: Apache-2.0
"""Integers are carried in float32 and float64: torch.autocast, which would round them to 16 bits, is put aside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from linger.errors import UsageError, listing

_DEVICES = ("cpu", "cuda", "xpu", "mps")


def put_autocast_aside() -> tuple[str, ...]:
    """Switch autocast off; returns where it was on."""
    found = tuple(device for device in _DEVICES if torch.is_autocast_enabled(device))
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


def refuse_empty(model: nn.Module) -> None:
    """Refuse a model that has no numbers yet.

    Raises:
        UsageError: It is so, naming the tensors.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    empty = [name for name, t in state.items() if t.is_meta]
    if empty:
        raise UsageError(
            f"init: {listing(empty)} on the meta device hold no numbers. Give the model memory with "
            "model.to_empty(device=…), load its weights, then call init."
        )
