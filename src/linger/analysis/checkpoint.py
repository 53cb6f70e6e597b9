# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint, whatever holds them: a file, several files, a state_dict, a module.

Files are mapped, not read, and nothing in them is executed: what a pickle would run is refused.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linger.analysis.safetensors_file import Entry, SafetensorsFile, natural_order
from linger.analysis.shards import read_index
from linger.analysis.values import TensorValues, Values, shape_text
from linger.errors import UsageError, listing

Source = str | os.PathLike[str] | Mapping[str, Any] | nn.Module

_STATE_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights", "params")
"""Where training scripts put the state_dict, the usual place first."""

_TRAINING_KEYS = re.compile(r"optim|sched|scaler|rng|ema_(opt|sched)|hyper|config|args", re.IGNORECASE)
"""Parts of a checkpoint that are about the training, not about the model."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a checkpoint, not read yet."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    open: Callable[[], Values]
    note: str = ""

    @property
    def shape_text(self) -> str:
        """Sizes as people write them."""
        return shape_text(self.shape)

    @property
    def dtype_text(self) -> str:
        """The element type without `torch.`."""
        return str(self.dtype).removeprefix("torch.")


def stored_tensors(source: Source) -> list[Stored]:
    """Every tensor of a checkpoint, in its order.

    Args:
        source: A path (`.pt`, `.pth`, `.safetensors`, `*.index.json` of a sharded checkpoint), a state_dict, a
            checkpoint that holds one (`{'state_dict': …}`), or a module.

    Raises:
        UsageError: Nothing of the kind, a damaged file, a pickle that would run code, no tensor at all.
    """
    if isinstance(source, nn.Module):
        found = list(_from_mapping(source.state_dict()))
        where = type(source).__name__
    elif isinstance(source, Mapping):
        found = list(_from_mapping(_state_dict(source)))
        where = "the state_dict"
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        found = _from_file(path)
        where = str(path)
    else:
        raise UsageError(
            f"a {type(source).__name__} is no checkpoint. Give a path, a state_dict (also inside a dictionary) or a module."
        )
    if not found:
        raise UsageError(f"{where}: there is no tensor in it. Give a checkpoint that holds the weights of a model.")
    return found


def _from_file(path: Path) -> list[Stored]:
    if path.is_dir():
        inside = sorted(
            (p.name for p in path.iterdir() if p.suffix in (".pt", ".pth", ".bin", ".safetensors", ".json")),
            key=lambda name: (not name.endswith(".index.json"), natural_order(name)),
        )
        hint = f" It holds {listing(inside, limit=5)}." if inside else ""
        raise UsageError(f"{path}: this is a folder. Give one checkpoint file.{hint}")
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file.")
    if path.suffix == ".json":
        shards = read_index(path)
        by_name = {s.name: s for shard in dict.fromkeys(shards.values()) for s in _from_file(shard)}
        missing = [name for name in shards if name not in by_name]
        if missing:
            raise UsageError(f"{path}: its files do not hold {listing(missing)}. Copy the checkpoint again.")
        return [by_name[name] for name in shards]
    if path.suffix == ".safetensors":
        file = SafetensorsFile(path)
        return [_mapped(file, entry) for entry in file.entries.values()]
    return list(_from_mapping(_state_dict(_load(path))))


def _mapped(file: SafetensorsFile, entry: Entry) -> Stored:
    return Stored(entry.name, entry.shape, entry.dtype, lambda: file.values(entry))


def _load(path: Path) -> Any:
    """What `torch.save` wrote, without running anything."""
    refusal = _unreadable_archive(path)
    if refusal:
        raise UsageError(f"{path}: {refusal}")
    try:
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
            loaded = torch.load(path, map_location="cpu", weights_only=True)  # the format before torch 1.6
    except Exception as error:  # torch raises whatever the damage leads to
        raise UsageError(f"{path}: {_why_not(error)}") from error
    if isinstance(loaded, Tensor):
        return {"tensor": loaded}
    if not isinstance(loaded, Mapping):
        raise UsageError(f"{path}: it holds a {type(loaded).__name__}, not a state_dict. Save model.state_dict().")
    return loaded


def _unreadable_archive(path: Path) -> str:
    """Why a zip archive is no checkpoint; empty if it may be one, or is no archive."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return ""
    try:
        with zipfile.ZipFile(path) as archive:
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                return "this is a TorchScript archive. Pass torch.jit.load(path) instead of the path."
    except zipfile.BadZipFile:
        return "the file ends early: its table of contents is missing. Copy it again."
    return ""


def _why_not(error: Exception) -> str:
    text = str(error)
    code = re.findall(r"GLOBAL ([A-Za-z_]\w*(?:\.\w+)+)", text)
    if code:
        return (
            f"refused: unpickling it would run code ({listing(dict.fromkeys(code))}), which linger never does. "
            "Save model.state_dict() and analyse that."
        )
    if isinstance(error, MemoryError):
        return "there is not enough memory to load it. Save it as .safetensors, which is read in pieces."
    reason = text.partition("WeightsUnpickler error:")[2] or text  # torch's advice comes first
    reason = reason.strip().partition("\n")[0][:160].rstrip(".") or type(error).__name__
    return f"this is not a whole torch checkpoint ({reason}). Save it again with torch.save, or copy it again."


def _state_dict(loaded: Mapping[Any, Any]) -> Mapping[str, Any]:
    """The part of a checkpoint that holds the model's tensors."""
    if any(_is_tensor(value) for value in loaded.values()):
        return loaded
    for key in _STATE_KEYS:
        inner = loaded.get(key)
        if isinstance(inner, nn.Module):
            return inner.state_dict()
        if isinstance(inner, Mapping) and inner:
            return _state_dict(inner)
    return {k: v for k, v in loaded.items() if not _TRAINING_KEYS.search(str(k))}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _from_mapping(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[Stored]:
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _from_mapping(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield from _from_mapping({str(i): v for i, v in enumerate(value)}, f"{name}.")
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            yield _of_tensor(name, torch.from_numpy(np.ascontiguousarray(value)))
        elif isinstance(value, Tensor):
            yield _of_tensor(name, value)


def _of_tensor(name: str, tensor: Tensor) -> Stored:
    if tensor.is_meta:
        empty = torch.empty(0)
        return Stored(
            name, tuple(tensor.shape), tensor.dtype, lambda: TensorValues(empty), "a meta tensor has no values"
        )
    return Stored(name, tuple(tensor.shape), tensor.dtype, lambda: TensorValues(tensor), _kind(tensor))


def _kind(tensor: Tensor) -> str:
    """What is unusual about a tensor."""
    if tensor.is_quantized:
        return "quantised; its real values are analysed"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')}; its zeros count too"
    return "complex; absolute values" if tensor.is_complex() else ""
