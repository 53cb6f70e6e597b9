# SPDX-License-Identifier: Apache-2.0
"""Parts of a calibration as bytes, for a file or another process: two lines of text, JSON, and two numpy arrays. No pickle.

The first line holds the format's number and linger's version, the second one the SHA-256 of this line and all that follows.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from linger.errors import UsageError
from linger.quantization.core.histogram import PLACES, Histogram
from linger.quantization.core.sharding.description import Description
from linger.quantization.core.sharding.partial import Part, PartialLayer, PartialRange
from linger.version import __version__

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
        for _, part in self.models.values():
            for path, layer in part.items():
                for name, found in layer.ranges.items():
                    if found.histogram is not None:
                        yield f"{path}.{name}", found.histogram

    @property
    def identity(self) -> str:
        """A digest of what was counted: that of two parts is the same where their data were."""
        found = hashlib.sha256()
        for key, histogram in sorted(self.histograms(), key=lambda pair: pair[0]):
            found.update(f"{key} {histogram.low!r} {histogram.high!r}\n".encode())
            found.update(histogram.places.numpy().tobytes() + histogram.counts.numpy().tobytes())
        return found.hexdigest()


def encode(parts: Parts) -> bytes:
    """Parts as bytes; the same parts give the same bytes."""
    histograms = [histogram for _, histogram in parts.histograms()]
    models = {
        label: {"modules": description, "layers": {path: _layer_text(layer) for path, layer in part.items()}}
        for label, (description, part) in parts.models.items()
    }
    header = {"facts": parts.facts, "models": models}
    body = io.BytesIO()
    body.write(json.dumps(header, separators=(",", ":")).encode() + b"\n")
    places = [h.places.numpy() for h in histograms] or [np.zeros(0)]
    counts = [h.counts.numpy() for h in histograms] or [np.zeros((3, 0))]
    np.save(body, np.concatenate(places).astype("<i4"), allow_pickle=False)
    np.save(body, np.concatenate(counts, 1).astype("<i8"), allow_pickle=False)
    content = body.getvalue()
    first = b"%s %d %s" % (_NAME, FORMAT, parts.version.encode())
    return b"\n".join([first, _digest(first, content), content])


def _digest(first: bytes, body: bytes) -> bytes:
    return hashlib.sha256(first + body).hexdigest().encode()


def decode(content: bytes) -> Parts:
    """Parts from bytes.

    Raises:
        UnreadableError: The bytes are foreign, damaged or of another format.
    """
    first, _, rest = content.partition(b"\n")
    found = _FIRST_LINE.fullmatch(first)
    if found is None:
        raise UnreadableError("is no file of linger.save_statistics")
    version = found[2].decode()
    if int(found[1]) != FORMAT:
        raise UnreadableError(
            f"has format {int(found[1])} of statistics (written by linger {version}), and this is linger {__version__}, "
            f"which has format {FORMAT}"
        )
    digest, _, body = rest.partition(b"\n")
    if _digest(first, body) != digest:
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


def _layer_text(layer: PartialLayer) -> dict[str, Any]:
    return {
        "ranges": {name: _range_text(found) for name, found in layer.ranges.items()},
        "input": layer.input_range,
        "constants": layer.constants,
        "decisions": layer.decisions,
        "floor": layer.floor,
    }


def _range_text(found: PartialRange) -> list[Any]:
    h = found.histogram
    counted = None if h is None else [len(h.places), h.low, h.high, h.earlier]
    return [found.running, found.scale, found.bits, found.bound, found.used, counted]


class _Reader:
    """Reads ranges one after the other: their counts stand in the arrays in the same order."""

    def __init__(self, places: Any, counts: Any) -> None:
        self._places, self._counts, self._next = torch.from_numpy(places), torch.from_numpy(counts), 0

    def layer(self, text: Mapping[str, Any]) -> PartialLayer:
        """The layer that `_layer_text` wrote."""
        ranges = {str(name): self._range(*found) for name, found in text["ranges"].items()}
        constants = {str(name): float(value) for name, value in text["constants"].items()}
        decisions = [dict(each) for each in text["decisions"]]
        return PartialLayer(ranges, str(text["input"]), constants, decisions, float(text["floor"]))

    def _range(self, running: float, scale: float, bits: int, bound: float, used: Any, counted: Any) -> PartialRange:
        interval = None if used is None else (float(used[0]), float(used[1]))
        histogram = None if counted is None else self._histogram(*counted)
        return PartialRange(float(running), float(scale), int(bits), float(bound), interval, histogram)

    def _histogram(self, length: int, low: float, high: float, earlier: float) -> Histogram:
        own = slice(self._next, self._next + length)
        self._next += length
        places, counts = self._places[own], self._counts[:, own]
        if len(places) != length or ((places < 0) | (places >= PLACES)).any() or (counts < 0).any():
            raise ValueError
        return Histogram(places, counts, float(low), float(high), float(earlier))
