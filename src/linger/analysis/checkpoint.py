# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint, whatever holds them: a file, several files, a state_dict, a module.

Files are mapped, not read, and nothing in them is executed: what a pickle would run is refused.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from linger.analysis.magnitudes import Values
from linger.errors import UsageError, listing

Source = str | os.PathLike[str] | Mapping[str, Any] | nn.Module

_NUMPY_TYPES = frozenset(
    {torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool}
    | {torch.uint16, torch.uint32, torch.uint64}
)
"""Types that are read as they are."""

STORED_LIMITS = "linger_limits"
"""The entry of a state_dict's metadata with the limits of a layer's weight and bias."""

_TYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "BOOL": torch.bool,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
}
_DIRECT = {dtype: torch.empty(0, dtype=dtype).numpy().dtype for dtype in _NUMPY_TYPES}
"""The numpy type of a torch type, where there is one."""

_DROP_AFTER = 16 << 20
"""This many bytes that were read already may stay in memory."""

_STATE_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights", "params")
"""Keys under which training scripts keep the state_dict, the usual one first."""

_TRAINING_KEYS = re.compile(r"optim|sched|scaler|rng|ema_(opt|sched)|hyper|config|args", re.IGNORECASE)
"""Parts of a checkpoint that are about the training, not about the model."""

_OPAQUE = re.compile(r"torch\.(bits\w+|u?int[1-7]|float4\w+)")
"""Element types that torch can store but not convert."""


class TensorValues:
    """The numbers of a torch tensor. Narrow floats become float32, which holds each of them exactly."""

    def __init__(self, tensor: Tensor) -> None:
        dense = tensor.detach()
        self.implicit_zeros = 0
        if dense.layout is torch.sparse_coo:
            stored = dense.coalesce().values()  # no public way to read the values of a sparse tensor in pieces
            self.implicit_zeros, dense = dense.numel() - stored.numel(), stored
        elif dense.layout is not torch.strided:
            dense = dense.to_dense()
        if dense.is_quantized:
            dense = dense.dequantize()
        if dense.is_complex():
            dense = dense.abs()
        self._flat = dense.cpu().resolve_neg().reshape(-1)
        self.size = self._flat.numel()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Numbers start … stop−1."""
        piece = self._flat[start:stop]
        return (piece if piece.dtype in _NUMPY_TYPES else piece.float()).numpy()

    def release(self, start: int, stop: int) -> None:
        """Nothing to do: the memory belongs to the tensor."""


def dtype_text(dtype: torch.dtype) -> str:
    """An element type without `torch.`."""
    return str(dtype).removeprefix("torch.")


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as text.

    >>> shape_text((64, 3, 7, 7)), shape_text(())
    ('64×3×7×7', 'scalar')
    """
    return "×".join(str(int(size)) for size in shape) or "scalar"


@dataclass(frozen=True)
class Stored:
    """One tensor of a checkpoint, not read yet.

    Attributes:
        name: Its key.
        open: Gives its numbers, within the limit of the layer if that has one.
        note: Anything unusual.
        pair_limit: Of a convolution's weight, the limit that holds once the batch norm beside it is folded in.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    open: Callable[[], Values]
    note: str = ""
    pair_limit: float | None = None


def stored_tensors(source: Source) -> list[Stored]:
    """Every tensor of a checkpoint, in its order.

    Args:
        source: A path (`.pt`, `.pth`, `.safetensors`, `*.index.json` of a sharded checkpoint), a state_dict, a
            checkpoint that holds one (`{'state_dict': …}`), or a module.

    Raises:
        UsageError: It is none of these, a damaged file, a pickle that would run code, or holds no tensor.
    """
    try:
        where, tensors = _named_tensors(source)
    except OSError as error:
        raise UsageError(f"{source}: it cannot be read ({error.strerror or error}).") from error
    except RecursionError as error:
        raise UsageError("the checkpoint contains itself. Give the state_dict of a model.") from error
    if not tensors:
        raise UsageError(f"{where}: there is no tensor in it. Give a checkpoint that holds the weights of a model.")
    return tensors


def _named_tensors(source: Source) -> tuple[str, list[Stored]]:
    """The name of the checkpoint in messages, and its tensors."""
    if isinstance(source, nn.Module):
        return type(source).__name__, list(_from_mapping(source.state_dict()))
    if isinstance(source, Mapping):
        return "the state_dict", list(_from_mapping(_state_dict(source)))
    if isinstance(source, (str, os.PathLike)):
        return str(Path(source)), _from_file(Path(source))
    raise UsageError(
        f"a {type(source).__name__} is no checkpoint. Give a path, a state_dict (also inside a dictionary) or a module."
    )


def load_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file as a state_dict."""
    files = dict.fromkeys(read_index(path).values()) if path.suffix == ".json" else [path]
    return {k: v for file in files for k, v in _whole(file).items()}


def _whole(path: Path) -> dict[str, Tensor]:
    stored_tensors(path)  # complains about everything that is wrong with the file
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    return {k: v for k, v in _state_dict(_load(path)).items() if isinstance(v, Tensor)}


def _from_file(path: Path) -> list[Stored]:
    if path.is_dir():
        inside = sorted(
            (p.name for p in path.iterdir() if p.suffix in (".pt", ".pth", ".bin", ".safetensors", ".json")),
            key=lambda name: (not name.endswith(".index.json"), natural_order(name)),
        )
        files = f" It holds {listing(inside, limit=5)}." if inside else ""
        raise UsageError(f"{path}: this is a folder. Give one checkpoint file.{files}")
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file.")
    if path.suffix == ".safetensors":
        return _mapped(path)
    return _from_shards(path) if path.suffix == ".json" else list(_from_mapping(_state_dict(_load(path))))


def _from_shards(index: Path) -> list[Stored]:
    """The tensors of a checkpoint that is spread over several files, in the order of its index."""
    shards = read_index(index)
    held = {shard: {s.name: s for s in _from_file(shard)} for shard in dict.fromkeys(shards.values())}
    missing = [name for name, shard in shards.items() if name not in held[shard]]
    if missing:
        raise UsageError(f"{index}: its files do not hold {listing(missing)}. Copy the checkpoint again.")
    return [held[shard][name] for name, shard in shards.items()]


def read_index(path: Path) -> dict[str, Path]:
    """The index of a checkpoint that is spread over several files: tensor name → file, in the order of the index.

    Raises:
        UsageError: No JSON, no index, a file that is missing or lies outside the index's folder.
    """
    table, folder = _weight_map(path), path.parent
    problems: tuple[tuple[Callable[[Path], bool], str], ...] = (
        # the name as written: a link beside the index may point anywhere, as in the hub's cache
        (lambda name: name.is_absolute() or ".." in name.parts, "refused: {} lies outside its folder."),
        (lambda name: name.suffix == ".json", "{} cannot hold tensors."),
        (lambda name: not (folder / name).is_file(), "{} is missing beside it. Copy the whole checkpoint."),
    )
    for is_wrong, problem in problems:
        wrong = [name for name in dict.fromkeys(table.values()) if is_wrong(Path(name))]
        if wrong:
            raise UsageError(f"{path}: {problem.format(listing(wrong))}")
    return {tensor: folder / name for tensor, name in table.items()}


def _weight_map(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: this is not JSON ({str(error)[:120]}). Copy the file again.") from error
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise UsageError(f"{path}: this JSON is no index of a checkpoint: there is no 'weight_map' of names to files.")
    return table


def _load(path: Path) -> Mapping[Any, Any]:
    """What `torch.save` wrote, without running anything."""
    refusal = _unreadable_archive(path)
    if refusal:
        raise UsageError(f"{path}: {refusal}")
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_harmless()):
            warnings.simplefilter("ignore")  # about torch's own classes, and about pickles that are refused anyway
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


def _harmless() -> list[Any]:
    """What pickles of numpy's numbers and arrays refer to: an accuracy beside the weights is often one. They only hold data."""
    array = np.zeros(1)
    dtypes = [type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"]
    return [np.ndarray, np.dtype, array.__reduce__()[0], array[0].__reduce__()[0], *dict.fromkeys(dtypes)]


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
    reason = reason.strip().partition("\n")[0][:160].rstrip(".")
    reason = reason if " " in reason else type(error).__name__  # a lone word or number says nothing
    return f"this is not a whole torch checkpoint ({reason}). Save it again with torch.save, or copy it again."


def _state_dict(loaded: Mapping[Any, Any]) -> Mapping[str, Any]:
    """The part of a checkpoint that holds the model's tensors."""
    for key in _STATE_KEYS:
        inner = loaded.get(key)
        if isinstance(inner, nn.Module):
            return inner.state_dict()
        if isinstance(inner, Mapping) and any(_from_mapping(inner)):
            return _state_dict(inner)
    of_model = OrderedDict(
        (k, v) for k, v in loaded.items() if isinstance(v, (Tensor, np.ndarray)) or not _TRAINING_KEYS.search(str(k))
    )
    vars(of_model).update(getattr(loaded, "__dict__", {}))  # torch keeps what it knows of the layers there
    return of_model


def _from_mapping(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[Stored]:
    limit_of = _limits_in(mapping)
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _from_mapping(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield from _from_mapping({str(i): v for i, v in enumerate(value)}, f"{name}.")
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            # it may be read-only, in the other byte order, or wider than torch's types
            widest = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(value.dtype.kind, value.dtype)
            native = min(value.dtype, widest, key=lambda dtype: dtype.itemsize).newbyteorder("=")
            yield _of_tensor(name, torch.from_numpy(np.require(value, native, ["C", "W"])))
        elif isinstance(value, Tensor):
            yield _within(_of_tensor(name, value), value, *limit_of(str(key)))


def _limits_in(mapping: Mapping[str, Any]) -> Callable[[str], tuple[float | None, float | None]]:
    """Tells the limit of a tensor's own layer, and that of the pair of a convolution and a batch norm that it belongs to."""
    told = getattr(mapping, "_metadata", None)
    layers = told if isinstance(told, Mapping) else {}

    def limit(path: str, kind: str) -> float | None:
        limits = (layers.get(path) or {}).get(STORED_LIMITS, {})
        return limits.get(kind) if f"{path}.running_var" not in mapping else None  # a batch norm limits other numbers

    def limits(key: str) -> tuple[float | None, float | None]:
        path, _, leaf = key.rpartition(".")
        is_in_pair = leaf == "weight" and path.endswith(".conv")
        pair = limit(path.removesuffix(".conv"), "weight") if is_in_pair else None
        return limit(path, "bias" if "bias" in leaf else "weight"), pair

    return limits if layers else lambda _: (None, None)


def _within(stored: Stored, tensor: Tensor, limit: float | None, pair_limit: float | None) -> Stored:
    """The tensor as a layer with limits computes with it."""
    if limit is None or stored.note or not tensor.is_floating_point():
        return replace(stored, pair_limit=pair_limit)
    note = f"within its limit of ±{limit:g}, as the layer computes with it"
    return replace(stored, open=lambda: TensorValues(tensor.clamp(-limit, limit)), note=note, pair_limit=pair_limit)


def _of_tensor(name: str, tensor: Tensor) -> Stored:
    if is_lazy(tensor):
        missing = "no values yet: run the model once"
    elif tensor.is_meta:
        missing = "a meta tensor has no values"
    else:
        missing = "torch cannot read values of this type" if _OPAQUE.fullmatch(str(tensor.dtype)) else ""
    if missing:
        shape = (0,) if is_lazy(tensor) else tuple(tensor.shape)
        return Stored(name, shape, tensor.dtype, lambda: TensorValues(torch.empty(0)), missing)
    note = "complex; absolute values" if tensor.is_complex() else ""
    if tensor.is_quantized:
        note = "quantized; its real values are analyzed"
    elif tensor.layout is not torch.strided:
        note = f"{str(tensor.layout).removeprefix('torch.')}; its zeros count too"
    return Stored(name, tuple(tensor.shape), tensor.dtype, lambda: TensorValues(tensor), note)


class _MappedValues:
    """The numbers of one tensor in a file that is mapped into memory: a view of it."""

    implicit_zeros = 0

    def __init__(self, mapped: mmap.mmap, dtype: torch.dtype, start: int, stop: int) -> None:
        self._map, self._dtype, self._start = mapped, dtype, start
        self._width = dtype.itemsize
        self.size = (stop - start) // self._width
        self._released = start

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Numbers start … stop−1, without a copy where the type is one of numpy's."""
        count = (stop - start) * self._width
        raw = np.frombuffer(self._map, np.uint8, count, self._start + start * self._width)
        direct = _DIRECT.get(self._dtype)
        if direct is not None:
            return raw.view(direct)
        return TensorValues(torch.from_numpy(raw.copy()).view(self._dtype)).read(0, stop - start)

    def release(self, start: int, stop: int) -> None:
        """Give back the memory of what was read; the system keeps the file in its cache."""
        begin, end = (self._start + place * self._width for place in (start, stop))
        self._released = min(begin, self._released)  # begin is less in a second pass
        if (end - self._released >= _DROP_AFTER or stop == self.size) and hasattr(mmap, "MADV_DONTNEED"):
            first = self._released // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, first, end - first)
            self._released = end


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that reads numbers as numbers.

    >>> sorted(["layer.10", "layer.2"], key=natural_order)
    ['layer.2', 'layer.10']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def _mapped(path: Path) -> list[Stored]:
    """The tensors of a safetensors file by name, layer 2 before layer 10: the file does not keep the model's order."""
    try:
        with safe_open(path, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: this is not a whole safetensors file ({error}). Copy it again.") from error
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header.pop("__metadata__", None)
    unknown = sorted({f"{v['dtype']} ({name})" for name, v in header.items() if v["dtype"] not in _TYPES})
    if unknown:
        raise UsageError(f"{path}: unknown element types {', '.join(unknown)}. Convert these tensors first.")
    tensors = []
    for name, place in sorted(header.items(), key=lambda item: natural_order(item[0])):
        dtype = _TYPES[place["dtype"]]
        start, stop = (8 + length + offset for offset in place["data_offsets"])
        tensors.append(Stored(name, tuple(place["shape"]), dtype, partial(_MappedValues, mapped, dtype, start, stop)))
    return tensors
