# SPDX-License-Identifier: Apache-2.0
"""What calibration has found in the layers of a model on a part of the data, how several parts become one, and parts as bytes.

The largest magnitude of a range follows from its counts, which are added. What follows from other ranges is monotonic: a wider
range has a smaller scale, and so have those that follow from it. Hence the widest range and the smallest scale of all parts
are those of one pass over all data.

The bytes, for a file or another process, are two lines of text, JSON, and two numpy arrays. No pickle. The first line holds the
format's number and linger's version, the second one the SHA-256 of this line and all that follows.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from linger.dialect import Interval, find_op
from linger.errors import UsageError, listing
from linger.numeric.fixed import as_float32
from linger.numeric.torch.quantize import ZEROS, scale_for_range
from linger.quantization.core.distributed.exchange import order_functions
from linger.quantization.core.methods import bins_of
from linger.quantization.core.observation import BIN_COUNT, Histogram
from linger.quantization.core.quantized import QuantizedBase, layers_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import scope_of
from linger.quantization.core.stored import Kind, kind_of
from linger.version import __version__

_T = TypeVar("_T")

Decisions = Mapping[str, Any]
"""What a function has decided by its data, in the types of JSON."""


@dataclass(frozen=True)
class _PartialRange:
    """One range after the passes over a part of the data.

    Attributes:
        running: Its value; 0 where nothing was seen.
        scale: Its scale.
        bits: The width that it was last used for; 0 where it was not.
        bound: The finest scale that the device's format allowed.
        used: The interval that its users look at, where it is known.
        histogram: What was counted; None where it follows from others.
    """

    running: float
    scale: float
    bits: int = 0
    bound: float = math.inf
    used: Interval | None = None
    histogram: Histogram | None = None

    def merged(self, other: _PartialRange, *, is_weight: bool) -> _PartialRange:
        """The range after the passes over both parts; weights are the same in both."""
        scales = [scale for scale in (self.scale, other.scale) if scale]
        # where its bias bounds it, the scale of weights grows as that of the input falls
        choose = max if is_weight else min
        return _PartialRange(
            max(self.running, other.running),
            choose(scales, default=0.0),
            max(self.bits, other.bits),
            min(self.bound, other.bound),
            _of_both(self.used, other.used, lambda a, b: (min(a[0], b[0]), max(a[1], b[1]))),
            _of_both(self.histogram, other.histogram, lambda a, b: a if is_weight else a.merged(b)),
        )


def _of_both(first: _T | None, second: _T | None, join: Callable[[_T, _T], _T]) -> _T | None:
    """What follows from both parts; the only one where the other has none."""
    if first is None or second is None:
        return second if first is None else first
    return join(first, second)


@dataclass(frozen=True)
class _PartialLayer:
    """A layer, or the range of a function, after the passes over a part of the data.

    Attributes:
        ranges: Its ranges by name.
        input_range: Where the range of its input comes from, as of `QuantizedBase`.
        constants: Integers that follow from the scale of its input.
        decisions: What it has decided on each part.
        floor: The coarsest scale of its output, as of `QuantizedBase`.
    """

    ranges: Mapping[str, _PartialRange]
    input_range: str = ""
    constants: Mapping[str, float] = field(default_factory=dict)
    decisions: Sequence[Decisions] = ()
    floor: float = 0.0

    def merged(self, other: _PartialLayer) -> _PartialLayer:
        """The layer after the passes over both parts."""
        ranges = dict(self.ranges)
        for name, theirs in other.ranges.items():
            own = ranges.get(name)
            ranges[name] = theirs if own is None else own.merged(theirs, is_weight=kind_of(name) is Kind.WEIGHT)
        origins = {self.input_range, other.input_range}
        by_input_scale = [(part.ranges["x"].scale if "x" in part.ranges else 0.0, part) for part in (self, other)]
        return _PartialLayer(
            ranges,
            next((origin for origin in ("own", "adopted", "stale") if origin in origins), ""),
            min(by_input_scale, key=lambda pair: pair[0] or math.inf)[1].constants,
            [*self.decisions, *other.decisions],
            min([floor for floor in (self.floor, other.floor) if floor], default=0.0),
        )


Part = Mapping[str, _PartialLayer]
"""The layers of a model by their paths."""


def merge_parts(parts: Iterable[Part]) -> dict[str, _PartialLayer]:
    """One part for all the data of several; a part may lack layers that its data did not reach."""
    merged: dict[str, _PartialLayer] = {}
    for part in parts:
        for path, layer in part.items():
            merged[path] = merged[path].merged(layer) if path in merged else layer
    return merged


def collect_part(model: nn.Module, counted: Callable[[Range], Histogram | None]) -> dict[str, _PartialLayer]:
    """What the passes over a part of the data have left in a model; `counted` gives the counts of a range."""
    parts = {path: _collect(layer, counted) for path, layer in layers_of(model).items()}
    seen = {path: [each.running or each.histogram for each in part.ranges.values()] for path, part in parts.items()}
    return {path: part for path, part in parts.items() if part.decisions or any(seen[path])}


def _collect(layer: QuantizedBase, counted: Callable[[Range], Histogram | None]) -> _PartialLayer:
    ranges = {}
    for name, each in layer.ranges.items():
        bound = math.inf if each.bound is None else float(each.bound)
        known = (each.running.read(), each.scale, each.width or 0, bound, each.known_use, counted(each))
        ranges[name] = _PartialRange(*known)
    constants = {name: float(layer.get_buffer(name)) for name in constants_of(layer)}
    decided = layer.decisions()
    decisions = [] if decided is None else [decided]
    return _PartialLayer(ranges, layer.input_range, constants, decisions, float(layer.floor))


def constants_of(layer: nn.Module) -> tuple[str, ...]:
    """The buffers of a layer that hold integers which follow from the scale of its input."""
    name = getattr(layer, "op_name", None) if isinstance(layer, QuantizedBase) else None
    return () if name is None else find_op(name).constant_names


# into a model
def install_part(model: nn.Module, part: Part) -> list[tuple[Range, Histogram]]:
    """Leave in a model what one pass over all data would; returns what was counted for its ranges, which is not kept yet."""
    counted: list[tuple[Range, Histogram]] = []
    for path, merged in part.items():
        layer = _layer_at(model, path)
        layer.floor = merged.floor
        for name, one in merged.ranges.items():
            _install_range(layer, layer.ranges[name], one)
        own = [(layer.ranges[n], one.histogram) for n, one in merged.ranges.items() if one.histogram is not None]
        for range_, _ in own:
            layer.follow_range(range_.name)
        counted += own
        # an input that adopts the range of another layer does so again in the next pass
        layer.input_range = "stale" if merged.input_range == "adopted" else merged.input_range or layer.input_range
        for name, value in merged.constants.items():
            layer.get_buffer(name).fill_(value)
        layer.take_decisions(merged.decisions)
    order_functions(model)
    return counted


def _layer_at(model: nn.Module, path: str) -> QuantizedBase:
    """The layer at a path; that of a function is made where there is none yet."""
    parent_path, _, name = path.rpartition(".")
    parent = model.get_submodule(parent_path) if name else model
    layer = parent._modules.get(name) if name else model  # noqa: SLF001 - get_submodule would raise
    if layer is None:
        scope = scope_of(parent)
        assert scope is not None  # a module of a quantized model has one
        assert scope.runtime.make_function is not None  # init has set it
        layer = scope.runtime.make_function(parent, name)
    assert isinstance(layer, QuantizedBase)  # the models were compared
    return layer


def _install_range(layer: QuantizedBase, own: Range, merged: _PartialRange) -> None:
    if merged.used is not None:
        own.users.set(merged.used)
    running, scale = merged.running, merged.scale
    if merged.histogram is not None and own.kind in (Kind.INPUT, Kind.OUTPUT):
        largest = bins_of(own, merged.histogram).largest
        running = as_float32(max(min(largest, own.limit), merged.histogram.earlier)) or ZEROS
        floor = layer.floor if own.name == "o" else 0.0
        scale = max(min(scale_for_range(running, merged.bits), merged.bound), floor)
    if not running:
        return  # nothing was seen
    own.set(running, scale)
    if merged.bits:
        own.width, own.bound = merged.bits, merged.bound


# which model it is
_DIGITS = 16
_SETTINGS = ("geometry", "limited_to", "padding_mode", "batch_first")
_UNREAD = "num_batches_tracked"  # counts the steps of training; no pass of an evaluation reads it
_OF_RANGES = ("running", "scale", "threshold", "step", "bits")
"""What a layer keeps of each range: numbers, and parameters that follow them."""

Description = Mapping[str, tuple[str, str]]
"""Of each module by its path: digests of its kind, with settings, widths and sizes, and of its numbers."""


def describe(model: nn.Module) -> dict[str, tuple[str, str]]:
    """The description of a quantized model; its ranges, and the functions that passes have found, do not count."""
    with torch.no_grad():
        return {
            path: (_digest(_kind(module)), _digest(_numbers(module)))
            for path, module in model.named_modules()
            if not isinstance(module, QuantizedBase) or module.is_layer
        }


def differences(own: Description, other: Description) -> list[str]:
    """What another model has otherwise, as parts of a sentence; empty where it is the same model."""
    common = [path for path in own if path in other]
    structure = {
        "lacks": list(filterfalse(other.__contains__, own)),
        "also has": list(filterfalse(own.__contains__, other)),
        "has other types, sizes or widths in": [path for path in common if own[path][0] != other[path][0]],
    }
    numbers = {"has other weights or statistics in": [path for path in common if own[path][1] != other[path][1]]}
    return _told(structure) or _told(numbers)


def _told(paths: Mapping[str, Sequence[str]]) -> list[str]:
    named = {what: [path or "the model itself" for path in each] for what, each in paths.items() if each}
    return [f"{what} {listing(each, limit=5)}" for what, each in named.items()]


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:_DIGITS]


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
            plain: Any = (
                tensor.detach().cpu().clone().reshape(-1)
            )  # numpy would make the storage one that FSDP cannot free
            yield bytes(plain.view(torch.uint8).numpy().tobytes())


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a module itself, but for those that calibration sets."""
    left_out = {_UNREAD, *constants_of(module)}
    if isinstance(module, QuantizedBase):
        left_out |= {f"{kind}_{name}" for name in module.ranges for kind in _OF_RANGES} | module.optional.keys()
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if name not in left_out:
            yield name, tensor


# as bytes
FORMAT = 1
_NAME = b"linger statistics"
_FIRST_LINE = re.compile(re.escape(_NAME) + rb" (\d{1,9}) ([\w.+-]{1,50})")


class UnreadableError(UsageError):
    """Why bytes hold no statistics, as the rest of a sentence about them."""


@dataclass(frozen=True)
class Parts:
    """What one process or one file says.

    Attributes:
        models: The description of each model, and what was found in it.
        facts: What else is to be known, in the types of JSON.
        version: The version of linger that wrote it.
    """

    models: Mapping[str, tuple[Description, Part]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__

    def histograms(self) -> Iterator[tuple[str, Histogram]]:
        """All counts by the key of their range."""
        for path, layer in (pair for _, part in self.models.values() for pair in part.items()):
            for name, each in layer.ranges.items():
                if each.histogram is not None:
                    yield f"{path}.{name}", each.histogram

    @property
    def identity(self) -> str:
        """A digest of what was counted: that of two parts is the same where their data were."""
        digest = hashlib.sha256()
        for key, histogram in sorted(self.histograms(), key=lambda pair: pair[0]):
            digest.update(f"{key} {histogram.low!r} {histogram.high!r}\n".encode())
            digest.update(histogram.places.numpy().tobytes() + histogram.counts.numpy().tobytes())
        return digest.hexdigest()


def encode(parts: Parts) -> bytes:
    """Parts as bytes; the same parts give the same bytes."""
    histograms = [histogram for _, histogram in parts.histograms()]
    models = {
        label: {"modules": description, "layers": {path: _layer_text(layer) for path, layer in part.items()}}
        for label, (description, part) in parts.models.items()
    }
    header = json.dumps({"facts": parts.facts, "models": models}, separators=(",", ":"))
    body = io.BytesIO()
    body.write(header.encode() + b"\n")
    places = [h.places.numpy() for h in histograms] or [np.zeros(0)]
    counts = [h.counts.numpy() for h in histograms] or [np.zeros((3, 0))]
    np.save(body, np.concatenate(places).astype("<i4"), allow_pickle=False)
    np.save(body, np.concatenate(counts, 1).astype("<i8"), allow_pickle=False)
    content = body.getvalue()
    first = b"%s %d %s" % (_NAME, FORMAT, parts.version.encode())
    return b"\n".join([first, _checksum(first, content), content])


def _checksum(first: bytes, body: bytes) -> bytes:
    return hashlib.sha256(first + body).hexdigest().encode()


def decode(content: bytes) -> Parts:
    """Parts from bytes; an `UnreadableError` where these are foreign, damaged or of another format."""
    first, _, rest = content.partition(b"\n")
    match = _FIRST_LINE.fullmatch(first)
    if match is None:
        raise UnreadableError("is no file of linger.save_statistics")
    number, version = int(match[1]), match[2].decode()
    if number != FORMAT:
        raise UnreadableError(
            f"has format {number} of statistics (written by linger {version}), and this is linger {__version__}, "
            f"which has format {FORMAT}"
        )
    digest, _, body = rest.partition(b"\n")
    if _checksum(first, body) != digest:
        raise UnreadableError("is damaged: its content is not what its SHA-256 says")
    try:
        return _read(body, version)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, EOFError) as error:
        raise UnreadableError(f"is damaged: {type(error).__name__}") from error


def _read(body: bytes, version: str) -> Parts:
    text, _, arrays = body.partition(b"\n")
    header, stream = json.loads(text), io.BytesIO(arrays)
    places, counts = np.load(stream, allow_pickle=False), np.load(stream, allow_pickle=False)
    reader = _Reader(places.astype(np.int64), counts.astype(np.int64))
    models = {
        str(label): (
            {str(path): (str(kind), str(numbers)) for path, (kind, numbers) in model["modules"].items()},
            {str(path): reader.layer(layer) for path, layer in model["layers"].items()},
        )
        for label, model in header["models"].items()
    }
    return Parts(models, dict(header["facts"]), version)


def _layer_text(layer: _PartialLayer) -> dict[str, Any]:
    ranges: dict[str, list[Any]] = {}
    for name, one in layer.ranges.items():
        h = one.histogram
        counted = None if h is None else [len(h.places), h.low, h.high, h.earlier]
        ranges[name] = [one.running, one.scale, one.bits, one.bound, one.used, counted]
    settings = {"input": layer.input_range, "constants": layer.constants, "decisions": layer.decisions}
    return {"ranges": ranges, **settings, "floor": layer.floor}


class _Reader:
    """Reads ranges one after the other: their counts stand in the arrays in the same order."""

    def __init__(self, places: Any, counts: Any) -> None:
        self._places, self._counts, self._next = torch.from_numpy(places), torch.from_numpy(counts), 0

    def layer(self, text: Mapping[str, Any]) -> _PartialLayer:
        """The layer that `_layer_text` wrote."""
        ranges = {str(name): self._range(*numbers) for name, numbers in text["ranges"].items()}
        constants = {str(name): float(value) for name, value in text["constants"].items()}
        decisions = [dict(each) for each in text["decisions"]]
        return _PartialLayer(ranges, str(text["input"]), constants, decisions, float(text["floor"]))

    def _range(self, running: float, scale: float, bits: int, bound: float, used: Any, counted: Any) -> _PartialRange:
        interval = None if used is None else (float(used[0]), float(used[1]))
        histogram = None if counted is None else self._histogram(*counted)
        return _PartialRange(float(running), float(scale), int(bits), float(bound), interval, histogram)

    def _histogram(self, length: int, low: float, high: float, earlier: float) -> Histogram:
        own = slice(self._next, self._next + length)
        self._next += length
        places, counts = self._places[own], self._counts[:, own]
        if len(places) != length or ((places < 0) | (places >= BIN_COUNT)).any() or (counts < 0).any():
            raise ValueError
        return Histogram(places, counts, float(low), float(high), float(earlier))
