# SPDX-License-Identifier: Apache-2.0
"""A settings file read as a `Config`, with every complaint at once: in linger's own words, or in those of linger 3.x."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from linger.constraint.limits import Limits
from linger.constraint.marks import Widths
from linger.errors import UsageError, listing
from linger.quantization.core.methods import Choice
from linger.quantization.setup.config_file import (
    CALIBRATED,
    SCALES,
    VERSION,
    ChannelLimit,
    Config,
    Constraint,
    FunctionConfig,
    Fused,
    LayerConfig,
    joined,
    unknown,
)
from linger.quantization.setup.newer_file import DEFAULT_PLATFORM, from_newer, is_newer, newer_problems
from linger.settings import Switches
from linger.targets import TARGETS

_T = TypeVar("_T")
_POWER = re.compile(r"2\^(-?\d{1,3})")
_WIDTHS = re.compile(r"(4|8|16)/(4|8|16)/(4|8|16|32)")
_LARGEST_EXPONENT = 126


def read_config(path: str | Path) -> Config:
    """Read a file, linger's own or one of linger 3.x.

    Raises:
        UsageError: It cannot be read, is no YAML, or holds what means nothing here; every such place is named.
    """
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_OnceOnly)
    except OSError as error:
        raise UsageError(f"config_file: {path} cannot be read ({error.strerror or error}).") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"config_file: {path} is no YAML: {' '.join(str(error).split())}.") from error
    if is_newer(content):
        return newer_config(content, f"config_file: {path}")
    reader = _Reader()
    config = reader.config({} if content is None else content)
    if reader.problems:
        raise UsageError(f"config_file: {path}: {joined(reader.problems)}. Nothing was changed.")
    return config


def newer_config(content: Mapping[str, Any], where: str, *, platform: str | None = DEFAULT_PLATFORM) -> Config:
    """The meaning of settings in the words of linger 3.x; `platform` is the chip where they name none.

    Raises:
        UsageError: Something has no meaning here; every such place is named.
    """
    problems = newer_problems(content)
    if problems:
        raise UsageError(f"{where}: {joined(problems)}. Nothing was changed.")
    return from_newer(content, platform)


class _OnceOnly(yaml.SafeLoader):
    """Plain data only; a key that stands twice is an error instead of silently winning."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - yaml's signature
        """A mapping of distinct keys."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for i, key in enumerate(keys) if key in keys[:i]]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} stands twice", node.start_mark)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


class _Reader:
    """Turns plain data into a `Config`, and keeps a sentence for everything that it cannot."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def config(self, content: object) -> Config:
        """The whole file."""
        if not isinstance(content, dict):
            self.problems.append(
                "a mapping with the keys " + ", ".join(f.name for f in fields(Config)) + " is expected"
            )
            return Config()
        readers: dict[str, Callable[[str, Any], Any]] = {
            "version": self._version,
            "complete": self._boolean,
            "target": lambda place, value: self._one_of(place, value, TARGETS),
            "parameter_bits": lambda place, value: self._one_of(place, value, (4, 8, 16)),
            "types": self._names,
            "scales": lambda place, value: self._one_of(place, value, SCALES),
            "calibration": lambda place, value: self._fields(place, value, dict.fromkeys(CALIBRATED, self._method)),
            "switches": self._switches,
            "stays_float": self._names,
            "stays_float_alone": self._names,
            "channel_limits": lambda place, value: self._each(place, value, self._channel_limit),
            "fused": self._fused,
            "constrain": lambda place, value: self._each(place, value, self._constraint),
            "limits": lambda place, value: self._each(place, value, self._limits),
            "parts": lambda place, value: self._each(place, value, self._widths),
            "layers": lambda place, value: self._each(place, value, self._layer),
            "functions": lambda place, value: self._each(place, value, self._function),
            "run": lambda place, value: self._each(place, value, lambda _, item: item),
        }
        return Config(**self._fields("", content, readers))

    def _fields(self, place: str, value: object, readers: Mapping[str, Callable[[str, Any], Any]]) -> dict[str, Any]:
        """The values of a mapping with known keys."""
        if not isinstance(value, dict):
            self.problems.append(f"{place}: a mapping with keys among {listing(readers)} is expected, not {value!r}")
            return {}
        found = {}
        for key, item in value.items():
            where = f"{place}.{key}".lstrip(".")
            if key not in readers:
                self.problems.append(unknown(where, str(key), readers))
            else:
                found[key] = readers[key](where, item)
        return found

    def _each(self, place: str, value: object, read: Callable[[str, Any], _T]) -> dict[str, _T]:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self.problems.append(f"{place}: a mapping from paths to settings is expected, not {value!r}")
            return {}
        return {key: read(f"{place}.{key}", item) for key, item in value.items()}

    def _channel_limit(self, place: str, value: object) -> ChannelLimit:
        found = self._fields(place, value, {"largest": self._limit, "shape": self._shape})
        missing = [key for key in ("largest", "shape") if key not in found]
        if missing:
            self.problems.append(f"{place}: {' and '.join(missing)} is missing")
        return ChannelLimit(**found)

    def _layer(self, place: str, value: object) -> LayerConfig:
        readers: dict[str, Callable[[str, Any], Any]] = {
            "op": self._text,
            "shape": self._shape,
            "bits": self._widths,
            "relu_ahead": self._boolean,
            "limits": self._limits,
            "scales": self._scales,
            "methods": lambda where, methods: self._each(where, methods, self._text),
            "adopts_input": self._boolean,
        }
        return LayerConfig(**self._fields(place, value, readers))

    def _function(self, place: str, value: object) -> FunctionConfig:
        readers: dict[str, Callable[[str, Any], Any]] = {
            "scales": self._scales,
            "methods": lambda where, methods: self._each(where, methods, self._text),
            "bits": lambda where, bits: self._each(where, bits, lambda w, b: self._one_of(w, b, (4, 8, 16, 32))),
            "subtracts_max": self._boolean,
        }
        return FunctionConfig(**self._fields(place, value, readers))

    def _fused(self, place: str, value: object) -> tuple[Fused, ...]:
        readers: dict[str, Callable[[str, Any], Any]] = {"conv": self._text, "bn": self._text, "folded": self._boolean}
        if not isinstance(value, list):
            self.problems.append(f"{place}: a list of pairs is expected, not {value!r}")
            return ()
        found = [self._fields(f"{place}[{i}]", item, readers) for i, item in enumerate(value)]
        for i, item in enumerate(found):
            missing = [key for key in ("conv", "bn") if key not in item]
            if missing:
                self.problems.append(f"{place}[{i}]: {' and '.join(missing)} is missing")
        return tuple(Fused(**({"conv": "", "bn": ""} | item)) for item in found)

    def _switches(self, place: str, value: object) -> dict[str, bool]:
        return self._fields(place, value, {entry.name: self._boolean for entry in fields(Switches)})

    def _limits(self, place: str, value: object) -> Limits:
        return Limits(**self._fields(place, value, dict.fromkeys(("weight", "bias", "output"), self._limit)))

    def _constraint(self, place: str, value: object) -> Constraint:
        keys = [entry.name for entry in fields(Constraint)]
        return Constraint(**self._fields(place, value, dict.fromkeys(keys, self._limit)))

    def _method(self, place: str, value: object) -> str:
        try:
            return Choice(str(value), place).written
        except UsageError as error:
            self.problems.append(str(error).rstrip("."))
            return "max"

    def _limit(self, place: str, value: object) -> float | None:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        self.problems.append(f"{place}: {value!r} is no positive number")
        return None

    def _scales(self, place: str, value: object) -> dict[str, float]:
        return self._each(place, value, self._scale)

    def _scale(self, place: str, value: object) -> float:
        found = _POWER.fullmatch(value) if isinstance(value, str) else None
        if found is not None and abs(int(found[1])) <= _LARGEST_EXPONENT:
            return 2.0 ** int(found[1])
        self.problems.append(f"{place}: {value!r} is no scale (write a power of two: 2^5 or 2^-3)")
        return 1.0

    def _widths(self, place: str, value: object) -> Widths:
        found = _WIDTHS.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            self.problems.append(f"{place}: {value!r} are no widths (write input/weights/output: 8/16/8)")
            return Widths()
        return Widths(*map(int, found.groups()))

    def _version(self, place: str, value: object) -> int:
        if value != VERSION or isinstance(value, bool):
            self.problems.append(f"{place}: {value!r} is unknown to this linger, which reads {VERSION}")
        return VERSION

    def _boolean(self, place: str, value: object) -> bool:
        if not isinstance(value, bool):
            self.problems.append(f"{place}: true or false is expected, not {value!r}")
        return bool(value)

    def _text(self, place: str, value: object) -> str:
        if not isinstance(value, str):
            self.problems.append(f"{place}: a name is expected, not {value!r}")
        return str(value)

    def _names(self, place: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.problems.append(f"{place}: a list of names is expected, not {value!r}")
            return ()
        return tuple(value)

    def _shape(self, place: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            self.problems.append(f"{place}: a list of sizes is expected, not {value!r}")
            return ()
        return tuple(value)

    def _one_of(self, place: str, value: Any, known: Collection[Any]) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value not in known:
            self.problems.append(unknown(place, str(value), [str(item) for item in known]))
            return next(iter(known))
        return value
