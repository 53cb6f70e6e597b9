# SPDX-License-Identifier: Apache-2.0
"""What a quantised model is made of, so that parts of its calibration can be told from those of another one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from linger.errors import listing
from linger.quantization.core.kept.use import OWN_INPUT
from linger.quantization.core.sharding.partial import constants_of
from linger.quantization.core.statistics import QuantizedBase

_DIGITS = 16
_SETTINGS = ("geometry", "limited_to", "padding_mode", "batch_first")
_UNREAD = "num_batches_tracked"
"""Counts the steps of training; no pass of an evaluation reads it."""

_OF_RANGES = ("running", "scale", "chosen", "used", "threshold", "step", "bits")
"""What a layer keeps of each range: numbers, and parameters that follow them."""

Description = Mapping[str, tuple[str, str]]
"""Of each module by its path: digests of its kind, with settings, widths and sizes, and of its numbers."""


def describe(model: nn.Module) -> dict[str, tuple[str, str]]:
    """The description of a quantised model; its ranges, and the functions that passes have found, do not count."""
    with torch.no_grad():
        return {
            path: (_digest(*_kind(module)), _digest(*_numbers(module)))
            for path, module in model.named_modules()
            if not isinstance(module, QuantizedBase) or module.is_layer
        }


def differences(own: Description, other: Description) -> list[str]:
    """What another model has otherwise, as parts of a sentence; empty where it is the same model."""
    missing = [path or "the model itself" for path in own if path not in other]
    added = [path or "the model itself" for path in other if path not in own]
    common = [path for path in own if path in other]
    kinds = [path or "the model itself" for path in common if own[path][0] != other[path][0]]
    found = [
        f"{what} {listing(paths, limit=5)}"
        for what, paths in (("lacks", missing), ("also has", added), ("has other types, sizes or widths in", kinds))
        if paths
    ]
    if found:
        return found
    weights = [path or "the model itself" for path in common if own[path][1] != other[path][1]]
    return [f"has other weights or statistics in {listing(weights, limit=5)}"] if weights else []


def _digest(*parts: bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()[:_DIGITS]


def _kind(module: nn.Module) -> Iterator[bytes]:
    yield type(module).__name__.encode()
    if isinstance(module, QuantizedBase) or type(module).__module__.startswith("torch.nn."):
        yield module.extra_repr().encode()  # that of a user's own class may say anything
    for name in _SETTINGS if isinstance(module, QuantizedBase) else ():
        yield f"{name} {getattr(module, name, None)!r}".encode()
    for name, tensor in _tensors(module):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()


def _numbers(module: nn.Module) -> Iterator[bytes]:
    for name, tensor in _tensors(module):
        yield name.encode()
        if not hasattr(tensor, "full_tensor"):  # of a tensor that is spread over processes each has a part
            yield _bytes_of(tensor)


def _bytes_of(tensor: Tensor) -> bytes:
    plain: Any = tensor.detach().cpu().clone().reshape(-1)  # numpy would make the storage one that FSDP cannot free
    return bytes(plain.view(torch.uint8).numpy().tobytes())


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a module itself, but for those that calibration sets."""
    left_out = {_UNREAD, *constants_of(module)}
    if isinstance(module, QuantizedBase):
        left_out |= {f"{kind}_{name}" for name in module.range_names() for kind in _OF_RANGES} | {OWN_INPUT}
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if name not in left_out:
            yield name, tensor
