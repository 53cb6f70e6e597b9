# SPDX-License-Identifier: Apache-2.0
"""The settings of a quantized model as a YAML file: what may stand in it, and how it is written."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import yaml

from linger.constraint.limits import Limits, Widths
from linger.errors import UsageError, listing, printable
from linger.files import write_atomically
from linger.quantization.core.methods import Choice
from linger.records.reading import As, Is, Positive, one_of
from linger.settings import Switches
from linger.targets import TARGETS

VERSION = 1

SCALES = ("running", "tqt", "lsq")
"""How scales are found in training: from running ranges, or learned, by either rule."""

CALIBRATED = ("inputs", "weights", "outputs")
"""The kinds of ranges that a method of calibration may be chosen for."""

_SHOWN = 40
"""Complaints in one message; the others are counted."""

_HEADER = """\
# How {model} is quantized: read by linger.init(model, config_file=…), written by linger.save_config.
# A scale 2^n stores a number x as the integer round(x·2^n). Ranges are named as in checkpoints: x (or i) is a layer's input,
# w (iw, hw) its weights, o its output. Weights without a scale here have the one of their largest magnitude.
# The device's format may allow only a coarser scale than a range asks for. bits are those of input/weights/output.
"""


_POWER = re.compile(r"2\^(-?\d{1,3})")
_WIDTHS = re.compile(r"(4|8|16)/(4|8|16)/(4|8|16|32)")
_LARGEST_EXPONENT = 126


def _matched(pattern: re.Pattern[str], written: object) -> tuple[int, ...]:
    match = pattern.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        raise ValueError
    return tuple(map(int, match.groups()))


def _power(written: object) -> float:
    (exponent,) = _matched(_POWER, written)
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError
    return 2.0**exponent


def _method(written: object) -> str:
    try:
        return Choice(str(written), "").written
    except UsageError as error:
        raise ValueError(str(error).strip(": .")) from error


Scale = Annotated[float, As(_power, "a scale (write a power of two: 2^5 or 2^-3)")]
WidthsText = Annotated[
    Widths, As(lambda text: Widths(*_matched(_WIDTHS, text)), "widths (write input/weights/output: 8/16/8)")
]
Method = Annotated[str, As(_method)]


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

    largest: Positive
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LayerConfig:
    """One quantized layer.

    Attributes:
        op: Its op; empty: whichever it has.
        shape: Of its weights; empty: whichever they have.
        bits: Widths of input, weights and output; left out: as of every other layer.
        relu_ahead: Whether only ReLU reads its output.
        limits: Largest magnitudes, as `normalize_layers` sets them.
        scales: Scale of each range; weights only where it was chosen.
        methods: The method of calibration that found a range, where it is not the largest magnitude.
        adopts_input: Whether its input has the scale of the layer before.
    """

    op: str = ""
    shape: tuple[int, ...] = ()
    bits: WidthsText | None = None
    relu_ahead: bool = False
    limits: Limits = field(default_factory=Limits)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    adopts_input: bool = False


@dataclass(frozen=True)
class FunctionConfig:
    """One functional op, or an input that is quantized on its own.

    Attributes:
        scales: Scale of each range.
        methods: As of a layer.
        bits: Widths of the ranges that have other than 8 bits.
        subtracts_max: Whether a softmax subtracts the largest number of each row first.
    """

    scales: Mapping[str, Scale] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    bits: Mapping[str, Annotated[int, one_of((4, 8, 16, 32))]] = field(default_factory=dict)
    subtracts_max: bool = False


@dataclass(frozen=True)
class Constraint:
    """Limits that `linger.constrain` sets in the float model.

    Attributes:
        weight: The largest magnitude of weights.
        bias: The largest magnitude of biases.
        output: The largest magnitude of outputs.
        weight_factor: Weights may have this many times their mean magnitude; counts where `weight` is left out.
    """

    weight: Positive | None = None
    bias: Positive | None = None
    output: Positive | None = None
    weight_factor: Positive | None = None


@dataclass(frozen=True)
class Config:
    """All that a file may hold.

    A key of `layers`, `limits`, `functions` and `constrain` is a path, or a pattern of paths (`block.*`, `*.conv?`). A path stands
    above patterns; among patterns the last that fits counts.

    Attributes:
        version: Of the format.
        complete: Whether every layer of the model is named; then a model with others is refused.
        target: The chip.
        parameter_bits: Width of weights that nothing else is said about.
        types: Names of the layer types that are quantized; None: all but embeddings.
        scales: How scales are found in training: `running` ranges, or learned ones (`tqt`, `lsq`).
        calibration: Methods of `linger.calibration()` where the call names none, for `inputs`, `weights` and `outputs`.
        switches: Those that differ from the usual.
        stays_float: Parts that stay float with everything inside, functions that they call included.
        stays_float_alone: Modules that stay float themselves, with the functions that they call; what is inside is not concerned.
        not_quantized: Layers that are not quantized, because their type was not asked for or linger has no form for them; functions
            that they call may still be integers.
        channel_limits: Modules whose channels have limits of their own. Paths elsewhere are those of a model that has them.
        fused: Convolutions with their batch norms.
        constrain: Limits that `linger.constrain` sets before training; `init` does not look at them.
        limits: Limits of layers, set before they are quantized; those that stay float keep them, too.
        parts: Widths of products in the forward of a user's own modules.
        layers: Quantized layers by path.
        functions: Functional ops by the path of their module and their number.
        run: How `linger quantize` made the model; `init` does not look at it.
    """

    version: Annotated[int, Is(lambda version: version == VERSION, f"{VERSION}, which this linger reads")] = VERSION
    complete: bool = False
    target: Annotated[str, one_of(TARGETS)] | None = None
    parameter_bits: Annotated[int, one_of((4, 8, 16))] = 8
    types: tuple[str, ...] | None = None
    scales: Annotated[str, one_of(SCALES)] = SCALES[0]
    calibration: Mapping[Annotated[str, one_of(CALIBRATED)], Method] = field(default_factory=dict)
    switches: Mapping[Annotated[str, one_of(entry.name for entry in fields(Switches))], bool] = field(
        default_factory=dict
    )
    stays_float: tuple[str, ...] = ()
    stays_float_alone: tuple[str, ...] = ()
    not_quantized: tuple[str, ...] = ()
    channel_limits: Mapping[str, ChannelLimit] = field(default_factory=dict)
    fused: tuple[Fused, ...] = ()
    constrain: Mapping[str, Constraint] = field(default_factory=dict)
    limits: Mapping[str, Limits] = field(default_factory=dict)
    parts: Mapping[str, WidthsText] = field(default_factory=dict)
    layers: Mapping[str, LayerConfig] = field(default_factory=dict)
    functions: Mapping[str, FunctionConfig] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


class PartName(str):
    """A pattern that a file of linger 3.x does not hold itself, and the place of the name that it was made from."""

    place: str

    def __new__(cls, pattern: str, place: str) -> PartName:
        """The pattern."""
        made = super().__new__(cls, pattern)
        made.place = place
        return made


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
        elif isinstance(value, Mapping) and entry.name not in ("switches", "calibration"):
            lines += ["", f"{entry.name}:"]
            lines += [line for name, settings in value.items() for line in _entry_lines(name, settings)]
        elif isinstance(value, tuple):
            lines += [f"{entry.name}:", *(f"  - {_shown(item)}" for item in value)]
        else:
            lines.append(f"{entry.name}: {_shown(value)}")
    return "\n".join(lines) + "\n"


def _entry_lines(name: str, settings: object) -> list[str]:
    if isinstance(settings, (Widths, Limits, Constraint)):
        return [f"  {_shown(name)}: {_shown(settings)}"]
    usual = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields(settings)}  # type: ignore[arg-type]  # a dataclass
    said = {key: getattr(settings, key) for key in usual}
    kept = {key: value for key, value in said.items() if value != usual[key]}
    return [f"  {_shown(name)}:", *(f"    {key}: {_shown(value)}" for key, value in kept.items())]


def _shown(value: Any) -> str:
    """A setting on one line of YAML, scales as powers of two."""
    return _on_one_line(_plain(value))


def _on_one_line(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def _plain(value: Any) -> Any:
    if isinstance(value, (Widths, PartName)):
        return str(value)
    if isinstance(value, (Fused, Limits, Constraint)):
        return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) not in (None, False)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: f"2^{int(math.log2(v))}" if isinstance(v, float) else v for key, v in value.items()}
    return value


# complaints
def unknown(place: str, name: str, known: Collection[str]) -> str:
    """A complaint about a name, with the one that may be meant, or all that there are."""
    near = get_close_matches(name, list(known), n=1)
    hint = f"is {near[0]} meant?" if near else f"known: {listing([name for name in known if name], limit=12)}"
    return f"{printable(place)}: {printable(name)!r} is unknown ({hint})"


def joined(problems: Collection[str]) -> str:
    """Complaints in one message."""
    shown = list(problems)[:_SHOWN]
    return "; ".join([*shown, *([f"{len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])])
