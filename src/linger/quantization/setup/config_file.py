# SPDX-License-Identifier: Apache-2.0
"""The settings of a quantised model as a YAML file: what may stand in it, written for a reader, read with every complaint."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml

from linger.constraint.limits import Limits
from linger.constraint.marks import Widths
from linger.errors import UsageError, listing, printable
from linger.files import write_atomically
from linger.settings import Switches
from linger.targets import TARGETS

VERSION = 1

_T = TypeVar("_T")
_POWER = re.compile(r"2\^(-?\d{1,3})")
_WIDTHS = re.compile(r"(4|8|16)/(4|8|16)/(4|8|16|32)")
_LARGEST_EXPONENT = 126
_SHOWN = 40
"""Complaints in one message; the others are counted."""

_HEADER = """\
# How {model} is quantised: read by linger.init(model, config_file=…), written by linger.save_config.
# A scale 2^n stores a number x as the integer round(x·2^n). Ranges are named as in checkpoints: x (or i) is a layer's input,
# w (iw, hw) its weights, o its output. Weights without a scale here have the one of their largest magnitude.
# The device's format may allow only a coarser scale than a range asks for. bits are those of input/weights/output.
"""


@dataclass(frozen=True)
class Fused:
    """A convolution and the batch norm that is part of it, by their paths in the float model.

    Attributes:
        conv: The convolution.
        bn: The batch norm.
        folded: Whether the batch norm is folded into the weights for good, so that checkpoints hold no statistics.
    """

    conv: str
    bn: str
    folded: bool = False


@dataclass(frozen=True)
class ChannelLimit:
    """Limits of a module's single channels, as `linger.equalize` sets them; the limits themselves are in the checkpoint.

    Attributes:
        largest: The largest of them.
        shape: Of all of them.
    """

    largest: float = math.inf
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class LayerConfig:
    """One quantised layer.

    Attributes:
        op: Its op; empty: whichever it has.
        shape: Of its weights; empty: whichever they have.
        bits: Widths of input, weights and output.
        relu_ahead: Whether only ReLU reads its output.
        limits: Largest magnitudes, as `normalize_layers` sets them.
        scales: Scale of each range; weights only where it was chosen.
        methods: The method of calibration that found a range, where it is not the largest magnitude.
        adopts_input: Whether its input has the scale of the layer before.
    """

    op: str = ""
    shape: tuple[int, ...] = ()
    bits: Widths = field(default_factory=Widths)
    relu_ahead: bool = False
    limits: Limits = field(default_factory=Limits)
    scales: Mapping[str, float] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    adopts_input: bool = False


@dataclass(frozen=True)
class FunctionConfig:
    """One functional op, or an input that is quantised on its own.

    Attributes:
        scales: Scale of each range.
        methods: As of a layer.
        bits: Widths of the ranges that have other than 8 bits.
        subtracts_max: Whether a softmax subtracts the largest number of each row first.
    """

    scales: Mapping[str, float] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    bits: Mapping[str, int] = field(default_factory=dict)
    subtracts_max: bool = False


@dataclass(frozen=True)
class Config:
    """All that a file may hold.

    Attributes:
        version: Of the format.
        complete: Whether every layer of the model is named; then a model with others is refused.
        target: The chip.
        parameter_bits: Width of weights that nothing else is said about.
        types: Names of the layer types that are quantised; None: all but embeddings.
        switches: Those that differ from the usual.
        stays_float: Parts that stay float with everything inside.
        stays_float_alone: Modules that stay float themselves; what is inside is not concerned.
        channel_limits: Modules whose channels have limits of their own. Paths elsewhere are those of a model that has them.
        fused: Convolutions with their batch norms.
        limits: Limits of layers that stay float.
        parts: Widths of products in the forward of a user's own modules.
        layers: Quantised layers by path.
        functions: Functional ops by the path of their module and their number.
        run: How `linger quantize` made the model; `init` does not look at it.
    """

    version: int = VERSION
    complete: bool = False
    target: str | None = None
    parameter_bits: int = 8
    types: tuple[str, ...] | None = None
    switches: Mapping[str, bool] = field(default_factory=dict)
    stays_float: tuple[str, ...] = ()
    stays_float_alone: tuple[str, ...] = ()
    channel_limits: Mapping[str, ChannelLimit] = field(default_factory=dict)
    fused: tuple[Fused, ...] = ()
    limits: Mapping[str, Limits] = field(default_factory=dict)
    parts: Mapping[str, Widths] = field(default_factory=dict)
    layers: Mapping[str, LayerConfig] = field(default_factory=dict)
    functions: Mapping[str, FunctionConfig] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


# writing
def write_config(config: Config, model: str, path: str | Path) -> None:
    """Write a file whole or not at all.

    Raises:
        UsageError: It cannot be written.
    """
    write_atomically(Path(path), as_text(config, model).encode())


def as_text(config: Config, model: str) -> str:
    """The content of a file: a line for each layer's settings that are not the usual ones."""
    lines = [_HEADER.format(model=printable(model)) + f"version: {config.version}"]
    usual = Config()
    for entry in fields(Config):
        value = getattr(config, entry.name)
        if value == getattr(usual, entry.name):
            continue
        if entry.name == "run":
            lines += ["", "run:", *(f"  {key}: {_on_one_line(item)}" for key, item in value.items())]
        elif isinstance(value, Mapping) and entry.name != "switches":
            lines += ["", f"{entry.name}:"]
            lines += [line for name, settings in value.items() for line in _entry_lines(name, settings)]
        elif isinstance(value, tuple):
            lines += [f"{entry.name}:", *(f"  - {_shown(item)}" for item in value)]
        else:
            lines.append(f"{entry.name}: {_shown(value)}")
    return "\n".join(lines) + "\n"


def _entry_lines(name: str, settings: object) -> list[str]:
    if isinstance(settings, (Widths, Limits)):
        return [f"  {_shown(name)}: {_shown(settings)}"]
    usual = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields(settings)}  # type: ignore[arg-type]  # a dataclass
    said = {key: getattr(settings, key) for key in usual}
    kept = {key: value for key, value in said.items() if value != usual[key] or (key == "bits" and value)}
    return [f"  {_shown(name)}:", *(f"    {key}: {_shown(value)}" for key, value in kept.items())]


def _shown(value: Any) -> str:
    """A setting on one line of YAML, scales as powers of two."""
    return _on_one_line(_plain(value))


def _on_one_line(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def _plain(value: Any) -> Any:
    if isinstance(value, Widths):
        return str(value)
    if isinstance(value, (Fused, Limits)):
        return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) not in (None, False)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: f"2^{int(math.log2(v))}" if isinstance(v, float) else v for key, v in value.items()}
    return value


# reading
def read_config(path: str | Path) -> Config:
    """Read a file.

    Raises:
        UsageError: It cannot be read, is no YAML, or holds what means nothing here; every such place is named.
    """
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_OnceOnly)
    except OSError as error:
        raise UsageError(f"config_file: {path} cannot be read ({error.strerror or error}).") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"config_file: {path} is no YAML: {' '.join(str(error).split())}.") from error
    reader = _Reader()
    config = reader.config({} if content is None else content)
    if reader.problems:
        raise UsageError(f"config_file: {path}: {joined(reader.problems)}. Nothing was changed.")
    return config


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
            "switches": self._switches,
            "stays_float": self._names,
            "stays_float_alone": self._names,
            "channel_limits": lambda place, value: self._each(place, value, self._channel_limit),
            "fused": self._fused,
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


def unknown(place: str, name: str, known: Collection[str]) -> str:
    """A complaint about a name, with the one that may be meant, or all that there are."""
    near = get_close_matches(name, list(known), n=1)
    hint = f"is {near[0]} meant?" if near else f"known: {listing(known, limit=12)}"
    return f"{printable(place)}: {printable(name)!r} is unknown ({hint})"


def joined(problems: Collection[str]) -> str:
    """Complaints in one message."""
    shown = list(problems)[:_SHOWN]
    return "; ".join([*shown, *([f"{len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])])
