# SPDX-License-Identifier: Apache-2.0
"""Inputs for a file: as given (arrays, .npz), or made up from a seed; cut to the batch size that the file has."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.verification.array_files import load_arrays
from linger.verification.tensor_facts import inputs_of

Array = NDArray[Any]
Feed = dict[str, Array]
Inputs = Any
"""A path of an .npz or .npy file, an array, a mapping from names to arrays, or a list of such feeds."""

_OPEN_SIZE = 2
_LARGEST_INPUT = 2**28
"""Numbers; a file that declares more is damaged, or its user has real inputs."""

_SPREAD = 3.0
"""The range of a Quant is three standard deviations: nearly all integers occur, and a few saturate."""


def given_feeds(inputs: Inputs, model: ir.Model) -> list[Feed]:
    """One feed per batch from whatever the caller has.

    Raises:
        UsageError: A file that cannot be read, or arrays that are not the model's inputs; all of them are named.
    """
    batches = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if not batches:
        raise UsageError("inputs: the list is empty. Give at least one feed, or leave inputs out.")
    feeds = [_feed(batch, model, f"inputs[{i}]" if len(batches) > 1 else "inputs") for i, batch in enumerate(batches)]
    return [part for feed in feeds for part in cut(feed, model)]


def fitted(feed: Feed, model: ir.Model, where: str) -> Feed:
    """A feed in the types of the model's inputs: float64 becomes float32, and so on, as long as no integer changes.

    Raises:
        UsageError: Types or fixed sizes that do not fit; all of them are named.
    """
    made, wrong = {}, []
    for value in inputs_of(model):
        array = feed[value.name or ""]
        kind = _kind(value)
        cast = array if kind is None else array.astype(kind, casting="unsafe")
        is_exact = kind is None or (kind.kind == "f" and array.dtype.kind in "iuf") or bool((cast == array).all())
        if not is_exact or not _fits(value, array.shape, feed, model):
            given = f"{array.dtype}{list(array.shape)}"
            wrong.append(f"{value.name} is {given}, expected {_type_text(value)}{_shape_text(value)}")
        made[value.name or ""] = cast
    if wrong:
        raise UsageError(f"{where}: {listing(wrong)}.")
    return made


def _fits(value: ir.Value, given: tuple[int, ...], feed: Feed, model: ir.Model) -> bool:
    """Whether fixed sizes are as they should be; the first may be a multiple, see `cut`."""
    if value.shape is None:
        return True
    if len(value.shape) != len(given):
        return False
    return batch_parts(feed, model) > 1 or tuple(_sizes(value, given)) == given


def generated_feeds(model: ir.Model, *, seed: int, batches: int) -> list[Feed]:
    """Random inputs; open sizes become 2. A float input spreads over the range of the Quant behind it.

    Raises:
        UsageError: An input of a type, or without a number of axes, for which none can be made up; all are named.
    """
    wrong = [
        f"{value.name} ({_type_text(value)}{_shape_text(value)})"
        for value in inputs_of(model)
        if _kind(value) is None or value.shape is None or math.prod(_made_up_sizes(value)) > _LARGEST_INPUT
    ]
    if wrong:
        raise UsageError(f"no values can be made up for the inputs {listing(wrong)}. Give inputs.")
    generator = np.random.default_rng(seed)
    return [{v.name or "": _made_up(v, generator) for v in inputs_of(model)} for _ in range(batches)]


def cut(feed: Feed, model: ir.Model) -> list[Feed]:
    """A feed of several of the file's batches, one by one: 16 pictures for a file that takes one are 16 feeds."""
    parts = batch_parts(feed, model)
    if parts == 1:
        return [feed]
    pieces = {name: np.split(array, parts) for name, array in feed.items()}
    return [{name: split[i] for name, split in pieces.items()} for i in range(parts)]


def batch_parts(feed: Feed, model: ir.Model) -> int:
    """How many batches of the file's fixed size a feed holds; 1 where that is not plain."""
    found = set()
    for value in inputs_of(model):
        size, array = _first_size(value), feed.get(value.name or "")
        if array is None or size is None or value.shape is None or array.ndim != len(value.shape):
            return 1
        if array.shape[0] % size or array.shape[1:] != tuple(_sizes(value, array.shape))[1:]:
            return 1
        found.add(array.shape[0] // size)
    return found.pop() if len(found) == 1 and 0 not in found else 1


def _sizes(value: ir.Value, given: tuple[int, ...]) -> list[int]:
    """The sizes of an input, open ones as given."""
    assert value.shape is not None  # the caller has looked
    return [d if isinstance(d, int) else n for d, n in zip(value.shape, given, strict=True)]


def _first_size(value: ir.Value) -> int | None:
    shape = value.shape
    return shape[0] if shape is not None and len(shape) and isinstance(shape[0], int) and shape[0] else None


def _feed(batch: Any, model: ir.Model, where: str) -> Feed:
    names = [value.name or "" for value in inputs_of(model)]
    found = _named(batch, names, where)
    if isinstance(batch, (str, os.PathLike)):
        where = str(batch)
    missing = [name for name in names if name not in found]
    if missing and len(found) == len(names):
        return fitted(dict(zip(names, found.values(), strict=True)), model, where)  # other names, but one for each
    if missing:
        raise UsageError(
            f"{where}: it lacks {listing(missing)} and has {listing(found) or 'nothing'}. "
            f"The model's inputs are {listing(names)}."
        )
    return fitted({name: found[name] for name in names}, model, where)


def _named(batch: Any, names: Sequence[str], where: str) -> dict[str, Array]:
    if isinstance(batch, (str, os.PathLike)):
        return load_arrays(Path(batch), "with the model's inputs")
    if isinstance(batch, Mapping):
        found = {str(name): np.asarray(array) for name, array in batch.items()}
    elif isinstance(batch, (list, tuple)):
        found = {f"{where}[{i}]": np.asarray(array) for i, array in enumerate(batch)}
    else:
        found = {names[0] if len(names) == 1 else where: np.asarray(batch)}
    wrong = [f"{name} ({array.dtype})" for name, array in found.items() if array.dtype.kind not in "iufb"]
    if wrong:
        raise UsageError(f"{where}: these are no arrays of numbers: {listing(wrong)}. Give numpy arrays.")
    return found


def _kind(value: ir.Value) -> np.dtype[Any] | None:
    if value.dtype is None or value.dtype == ir.DataType.STRING:
        return None
    kind = value.dtype.numpy()
    return kind if kind.kind in "iufb" else None


def _type_text(value: ir.Value) -> str:
    return "no type" if value.dtype is None else "open rank" if value.shape is None else value.dtype.name.lower()


def _shape_text(value: ir.Value) -> str:
    return "" if value.shape is None else f"[{', '.join(str(d) if isinstance(d, int) else '?' for d in value.shape)}]"


def _made_up_sizes(value: ir.Value) -> list[int]:
    assert value.shape is not None  # the caller has looked
    return [d if isinstance(d, int) and d >= 0 else _OPEN_SIZE for d in value.shape]


def _made_up(value: ir.Value, generator: np.random.Generator) -> Array:
    kind = _kind(value)
    assert kind is not None  # generated_feeds has looked
    shape = _made_up_sizes(value)
    if kind.kind == "f":
        return (generator.standard_normal(shape) * _deviation(value)).astype(kind)
    if kind.kind == "b":
        return generator.integers(0, 2, shape).astype(kind)
    if kind.itemsize <= 2:  # 8 and 16 bits are quantised tensors: the whole range
        ends = np.iinfo(kind)
        return generator.integers(ends.min, ends.max + 1, shape).astype(kind)
    return generator.integers(1, 3, shape).astype(kind)  # indices and lengths: small ones fit most often


def _deviation(value: ir.Value) -> float:
    for node in value.consumers():
        scale, bits = node.attributes.get("scale_x"), node.attributes.get("data_bits")
        if node.op_type == "Quant" and scale is not None and scale.as_float() > 0:
            width = 8 if bits is None else bits.as_int()
            return float(2.0 ** (width - 1) / scale.as_float() / _SPREAD)
    return 1.0
