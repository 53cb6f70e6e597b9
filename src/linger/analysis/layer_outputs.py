# SPDX-License-Identifier: Apache-2.0
"""The outputs of the layers of a model: hooks on its leaves, and statistics per call, gathered over forward passes.

No tensor is kept. Count, mean and maximum of |x| are exact. The 0.99 order statistic is exact for one pass; over several it
comes from a histogram of the magnitudes' leading bits: the exponent and the first 8 bits of the mantissa (of a float32, its upper
16 bits without the sign). What is reported is the largest number of the bin that holds the rank, limited by the maximum: never
below the true order statistic and at most 2^-8 of it above (among subnormal float32 numbers, at most 2^-134).
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial, reduce
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.utils.hooks import RemovableHandle

from linger.analysis.batches import float_tensors, tensors_of
from linger.analysis.checkpoint import TensorValues, dtype_text, shape_text
from linger.analysis.magnitudes import (
    Array,
    Magnitudes,
    Values,
    exact_sum,
    finite_magnitudes,
    is_floating,
    measure,
    nearest,
    rank_from_above,
    read_blocks,
)
from linger.analysis.result import LONG_HEADER, Analysis, Row
from linger.errors import UsageError, listing

Kind = Literal["single", "double", "integer"]

_KEPT_BITS = 8  # of the mantissa
_DROPPED: Mapping[Kind, int] = {"single": 23 - _KEPT_BITS, "double": 52 - _KEPT_BITS, "integer": 52 - _KEPT_BITS}
"""How many low bits a bin ignores. An integer belongs to the bin of the float64 that begins with the same bits."""

_SMALL = 4096
"""Up to this size sorting is faster than a table of all bins."""

_SINGLE_BINS = 1 << 16
_HIDDEN_BIT = 1 << 23
_SINGLE_UNIT = Fraction(2) ** -149
"""Every float32 is a multiple of it."""

_DOUBLE_DIGITS = 53
_BEYOND_DOUBLE = np.uint64((1 << (64 - _DOUBLE_DIGITS)) - 1)
"""The low bits of a uint64 that a float64 may be unable to hold."""

ROOT = "root"
"""Name of the model itself; its layers are `root.<path>`."""

TITLE = "layer outputs"

Predicate = Callable[[nn.Module], bool]
ToReal = Callable[[nn.Module, Tensor], Tensor]
"""The real values of a tensor that a layer has returned."""

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that hold others and are never called."""

_NAMES_SHOWN = 6


def root_name(path: str) -> str:
    """`root.<path>`.

    >>> root_name("layer1.0.conv1"), root_name("")
    ('root.layer1.0.conv1', 'root')
    """
    return f"{ROOT}.{path}" if path else ROOT


def leaf_layers(model: nn.Module, *, is_whole: Predicate, is_helper: Predicate) -> dict[str, nn.Module]:
    """The layers that a model consists of, by `root.<path>`; a shared one has several names.

    A leaf has no parts, or counts as one layer with them: by `is_whole`, and torch's attention. Helpers are no parts:
    those of `is_helper`, and parametrizations. Scripted modules take no hooks, so none of them is a leaf.
    """
    leaves: dict[str, nn.Module] = {}
    closed = ""  # how the names begin that are skipped; a parent comes before its parts
    for path, module in model.named_modules(remove_duplicate=False):
        name = root_name(path)
        if closed and name.startswith(closed):
            continue
        is_skipped = is_helper(module) or isinstance(module, (ParametrizationList, torch.jit.ScriptModule))
        is_leaf = not is_skipped and _is_leaf(module, is_whole, is_helper)
        closed = f"{name}." if is_skipped or is_leaf else ""
        if is_leaf and not isinstance(module, _LISTS):
            leaves[name] = module
    return leaves


def _is_leaf(module: nn.Module, is_whole: Predicate, is_helper: Predicate) -> bool:
    parametrizations = module.parametrizations if is_parametrized(module) else None
    parts = [child for child in module.children() if child is not parametrizations and not is_helper(child)]
    return not parts or is_whole(module) or isinstance(module, nn.MultiheadAttention)


def compiled_pattern(method: str, match_pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """The regular expression that a call was given.

    Raises:
        UsageError: It is not a regular expression.
    """
    try:
        return re.compile(match_pattern)
    except (re.error, TypeError) as error:
        raise UsageError(
            f"{method}: match_pattern={match_pattern!r} is no regular expression ({error}). "
            "Give one that fits names such as 'root.layer1.0.conv1'; '.*' fits all."
        ) from error


def matching_layers(method: str, layers: Mapping[str, nn.Module], pattern: re.Pattern[str]) -> dict[nn.Module, str]:
    """The layers whose name fits from its start; a shared one under its first name that does.

    Raises:
        UsageError: There is none.
    """
    matches: dict[nn.Module, str] = {}
    for name, module in layers.items():
        if pattern.match(name):
            matches.setdefault(module, name)
    if not matches:
        raise UsageError(f"{method}: {no_match(pattern, layers)}")
    return matches


def no_match(pattern: re.Pattern[str], names: Collection[str]) -> str:
    """The sentence for a pattern that fits none of the names."""
    return (
        f"match_pattern={pattern.pattern!r} matches none of the {len(names)} layers, which are called "
        f"{listing(names, limit=_NAMES_SHOWN)}. A pattern has to fit the beginning of a name."
    )


def main_output(module: nn.Module, output: object) -> object:
    """What a layer computes for others: of an RNN the sequence of outputs without the last state, else everything."""
    return output[0] if isinstance(module, nn.RNNBase) and isinstance(output, tuple) else output


def measured_tensors(module: nn.Module, output: object) -> list[Tensor]:
    """The tensors whose values make a layer's row: its float ones, or all if none is float."""
    main = main_output(module, output)
    return float_tensors(main) or list(tensors_of(main))


def joined(tensors: list[Tensor]) -> Tensor:
    """Tensors as one: the first one itself, or all of their numbers in a row."""
    if len(tensors) == 1:
        return tensors[0]
    dense = [t if t.layout is torch.strided else t.to_dense() for t in tensors]
    common = reduce(torch.promote_types, (t.dtype for t in dense))
    return torch.cat([t.cpu().reshape(-1).to(common) for t in dense])


def is_without_values() -> bool:
    """Whether a pass only records what would be computed: torch.jit.trace, an export, a compilation."""
    return torch.jit.is_tracing() or torch.compiler.is_compiling()  # type: ignore[attr-defined]  # torch documents it


def _nothing(*_: object) -> None:
    """Replaces a hook in a copy of the model."""


class Hook:
    """A hook that is not copied or saved with its model: in the copy it does nothing."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> None:
        """Call the function; interceptors of torch functions do not see what it does."""
        with torch._C.DisableTorchFunction(), torch.no_grad():  # noqa: SLF001 - torch has no public name for it
            self._function(*arguments)

    def __reduce__(self) -> tuple[type[Hook], tuple[Callable[..., None]]]:
        return Hook, (_nothing,)


class Calls:
    """How often each layer was called in the present forward pass of a model.

    A pass begins with the outermost call of the model; calls of its parts from outside belong to the pass before them.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._counts: Counter[str] = Counter()

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        """Hooks that see a pass begin and end, also by an exception."""
        return [
            model.register_forward_pre_hook(Hook(self._begin)),
            model.register_forward_hook(Hook(self._end), always_call=True),
        ]

    def _begin(self, *_: object) -> None:
        if self._depth == 0:
            self._counts.clear()
        self._depth += 1

    def _end(self, *_: object) -> None:
        self._depth = max(self._depth - 1, 0)

    def number(self, name: str) -> int:
        """Which call of this layer in the pass this is, from 0."""
        self._counts[name] += 1
        return self._counts[name] - 1


@dataclass
class _Bins:
    """How many magnitudes have which leading bits. Only bins that hold something are kept: a few thousand of 2^16.

    Bin 0 also holds the zeros. They are counted separately as well, because zero is not a tiny number.
    """

    zeros: int = 0
    keys: Array = field(default_factory=lambda: np.empty(0, np.int64))
    counts: Array = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, keys: Array, counts: Array) -> None:
        merged, place = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        total = np.zeros(merged.size, np.int64)
        np.add.at(total, place, np.concatenate([self.counts, counts]))
        self.keys, self.counts = merged, total


@dataclass
class _Accumulated:
    """The magnitudes of one tensor that every pass computes anew."""

    passes: int = 0
    count: int = 0
    nans: int = 0
    infinities: int = 0
    _sum: Fraction = Fraction(0)
    _maximum: float = 0
    _first: Magnitudes | None = None
    _bins: dict[Kind, _Bins] = field(default_factory=dict)

    def add(self, values: Values) -> None:
        """Add the tensor of one more pass."""
        if self.passes == 0:
            self._first = measure(values)
        self.passes += 1
        tally = _SingleTally() if values.size > _SMALL else None
        for piece in read_blocks(values):
            kind = _kind(piece)
            block, nans, infinities = finite_magnitudes(piece)
            self.nans += nans
            self.infinities += infinities
            bins = self._bins.setdefault(kind, _Bins())
            if block.size:
                self.count += block.size
                bins.zeros += block.size - int(np.count_nonzero(block))
                self._maximum = max(self._maximum, block.max().item())
                if kind == "single" and tally is not None:
                    tally.add(block)
                else:
                    bins.add(*np.unique(_bits(block) >> _DROPPED[kind], return_counts=True))
                    self._sum += exact_sum(block)
        if tally is not None and tally.is_used:
            keys, counts, total = tally.result()
            self._bins["single"].add(keys, counts)
            self._sum += total
        if values.implicit_zeros:
            self.count += values.implicit_zeros
            bins = self._bins.setdefault(next(iter(self._bins), "single"), _Bins())
            bins.zeros += values.implicit_zeros
            bins.add(np.zeros(1, np.int64), np.array([values.implicit_zeros]))

    def result(self) -> Magnitudes:
        """The statistics of all passes together; NaN everywhere without finite values."""
        if self.passes == 1 and self._first is not None:
            return self._first
        if self.count == 0:
            return Magnitudes(0, math.nan, math.nan, math.nan, self.nans, self.infinities)
        mean = nearest(self._sum / self.count, np.float64 if "double" in self._bins else np.float32)
        convert = int if set(self._bins) == {"integer"} else float
        missing, end = rank_from_above(self.count), math.inf
        from_above = heapq.merge(*(_upper_ends(kind, bins) for kind, bins in self._bins.items()), reverse=True)
        while missing > 0:  # the bins hold every finite magnitude
            end, count = next(from_above)
            missing -= count
        dynamic = convert(min(end, self._maximum))
        return Magnitudes(self.count, mean, convert(self._maximum), dynamic, self.nans, self.infinities)


class _SingleTally:
    """Bins and exact sum of float32 magnitudes, block by block: a count and the sum of the dropped bits per bin."""

    def __init__(self) -> None:
        self.is_used = False
        self._counts: Array = np.zeros(_SINGLE_BINS, np.int64)
        self._low_sums: Array = np.zeros(_SINGLE_BINS, np.float64)  # exact below 2^53: 2^38 numbers of 15 bits

    def add(self, block: Array) -> None:
        bits = _bits(block)
        dropped = _DROPPED["single"]
        keys = bits >> dropped
        self._counts += np.bincount(keys, minlength=_SINGLE_BINS)
        self._low_sums += np.bincount(keys, weights=bits & ((1 << dropped) - 1), minlength=_SINGLE_BINS)
        self.is_used = True

    def result(self) -> tuple[Array, Array, Fraction]:
        """The bins that hold something, their counts, and the sum of all magnitudes."""
        keys = np.flatnonzero(self._counts)
        counts = self._counts[keys]
        exponents = keys >> _KEPT_BITS
        kept = keys & ((1 << _KEPT_BITS) - 1)
        lowest = (kept << _DROPPED["single"]) + np.where(exponents > 0, _HIDDEN_BIT, 0)
        sums = np.zeros(int(exponents[-1]) + 1, np.int64)
        np.add.at(sums, exponents, counts * lowest + self._low_sums[keys].astype(np.int64))
        # exponent 0 (subnormal) has the unit of exponent 1
        total = sum(int(part) << max(exponent - 1, 0) for exponent, part in enumerate(sums))
        return keys, counts, total * _SINGLE_UNIT


def _kind(numbers: Array) -> Kind:
    if not is_floating(numbers):
        return "integer"
    return "double" if numbers.dtype == np.float64 else "single"


def _bits(magnitudes: Array) -> Array:
    """The bits of float numbers; of an integer, those of a float64 in the same bin."""
    if not is_floating(magnitudes):
        is_wide = magnitudes >> np.uint64(_DOUBLE_DIGITS) != 0
        magnitudes = np.where(is_wide, magnitudes & ~_BEYOND_DOUBLE, magnitudes).astype(np.float64)
    bits: Array = magnitudes.view(np.uint32 if magnitudes.dtype == np.float32 else np.int64)
    return bits


def _upper_ends(kind: Kind, bins: _Bins) -> Iterator[tuple[float, int]]:
    """The upper end and the count of every bin, the highest first."""
    for key, count in zip(bins.keys[::-1], bins.counts[::-1], strict=True):
        yield _upper_end(kind, int(key)), int(count) - (bins.zeros if key == 0 else 0)
    yield 0, bins.zeros


def _upper_end(kind: Kind, key: int) -> float:
    """The largest number of a kind in its bin; for integers a Python int."""
    beyond = (key + 1) << _DROPPED[kind]
    if kind == "single":
        return float(np.array(beyond - 1, np.uint32).view(np.float32))
    if kind == "double":
        return float(np.array(beyond - 1, np.int64).view(np.float64))
    return math.ceil(float(np.array(beyond, np.int64).view(np.float64))) - 1


@dataclass
class _Entry:
    """What becomes one row: a layer's n-th call in a pass. Shape and type are those of the first pass."""

    name: str
    call: int
    shape: str
    dtype: str
    values: _Accumulated = field(default_factory=_Accumulated)

    def row(self) -> Row:
        return Row.of(self.name, self.values.result(), shape=self.shape, dtype=self.dtype, call=self.call)


class LayerOutputs:
    """Rows of statistics that grow with every forward pass of the models watched.

    A row per call of a layer within a pass, in the order of their first calls. Nothing of a tensor is kept but its
    statistics; see `linger.analysis.layer_outputs` for what is exact.
    """

    def __init__(self, to_real: ToReal) -> None:
        self._to_real = to_real
        self._entries: dict[tuple[int, str, int], _Entry] = {}
        self._watched: list[list[str]] = []
        self._called: set[tuple[int, str]] = set()

    @property
    def is_watching(self) -> bool:
        """Whether any model was ever watched."""
        return bool(self._watched)

    @property
    def has_run(self) -> bool:
        """Whether a watched layer was called."""
        return bool(self._called)

    def watch(
        self, model: nn.Module, layers: Mapping[nn.Module, str], *, is_counted: Callable[[], bool]
    ) -> list[RemovableHandle]:
        """Hook the layers of a model; `is_counted` is asked at every call."""
        number, calls = len(self._watched), Calls()
        self._watched.append(list(layers.values()))
        handles = calls.watch(model)
        for layer, name in layers.items():
            see = Hook(partial(self._see, number, name, calls, is_counted))
            handles.append(layer.register_forward_hook(see))
        return handles

    def _see(
        self, number: int, name: str, calls: Calls, is_counted: Callable[[], bool], module: nn.Module, *rest: object
    ) -> None:
        if is_without_values() or not is_counted():
            return
        call = calls.number(name)
        self._called.add((number, name))
        tensors = [self._to_real(module, t) for t in measured_tensors(module, rest[-1])]
        if not tensors:
            return
        key = (number, name, call)
        if key not in self._entries:
            shapes = ", ".join(shape_text(tuple(t.shape)) for t in tensors)
            types = ", ".join(dict.fromkeys(dtype_text(t.dtype) for t in tensors))
            self._entries[key] = _Entry(name, call, shapes, types)
        self._entries[key].values.add(TensorValues(joined(tensors)))

    @property
    def result(self) -> Analysis:
        """The rows so far."""
        return Analysis(tuple(entry.row() for entry in self._entries.values()), LONG_HEADER, TITLE)

    @property
    def silent(self) -> list[str]:
        """Layers that were called and returned no tensor."""
        with_row = {key[:2] for key in self._entries}
        return [name for number, name in self._names() if (number, name) in self._called - with_row]

    @property
    def never_called(self) -> list[str]:
        """Layers that no pass has called."""
        return [name for number, name in self._names() if (number, name) not in self._called]

    def _names(self) -> Iterator[tuple[int, str]]:
        return ((number, name) for number, names in enumerate(self._watched) for name in names)
