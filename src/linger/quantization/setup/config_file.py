# SPDX-License-Identifier: Apache-2.0
"""The settings of a quantized model as a YAML file: what may stand in it, how it is written, and how it is read.

A file is read with every complaint at once, in linger's own words or in those of linger 3.x. What chose a kernel, a device or a seed
there changes no number, and is accepted. What would change numbers and does not exist here is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, cast

import yaml

from linger.constraint.limits import Limits, Widths
from linger.errors import UsageError, listing, printable
from linger.files import write_atomically
from linger.quantization.core.methods import Choice, calibration_methods
from linger.records.reading import As, Is, Positive, one_of, read_with_problems
from linger.settings import Switches
from linger.targets import CHIPS, TARGETS

VERSION = 1

SCALES = ("running", "tqt", "lsq")
"""How scales are found in training: from running ranges, or learned, by either rule."""

CALIBRATED = ("inputs", "weights", "outputs")
"""The kinds of ranges that a method of calibration may be chosen for."""

_SHOWN = 40  # complaints in one message; the others are counted
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
        exponents: Of weights whose channels have scales that were chosen, by how much each is finer, in powers of two.
        unsigned: The ranges that are stored as 0 … 255.
    """

    op: str = ""
    shape: tuple[int, ...] = ()
    bits: WidthsText | None = None
    relu_ahead: bool = False
    limits: Limits = field(default_factory=Limits)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    adopts_input: bool = False
    exponents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unsigned: tuple[str, ...] = ()


@dataclass(frozen=True)
class FunctionConfig:
    """One functional op, or an input that is quantized on its own.

    Attributes:
        scales: Scale of each range.
        methods: As of a layer.
        bits: Widths of the ranges that have other than 8 bits.
        subtracts_max: Whether a softmax subtracts the largest number of each row first.
        exponents: As of a layer.
        unsigned: As of a layer.
    """

    scales: Mapping[str, Scale] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    bits: Mapping[str, Annotated[int, one_of((4, 8, 16, 32))]] = field(default_factory=dict)
    subtracts_max: bool = False
    exponents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unsigned: tuple[str, ...] = ()


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
        per_channel: Whether weights have one scale for each output channel; None: as the chip has it.
        unsigned: Whether 8-bit activations that are never negative use 0 … 255; None: as the chip has it.
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
    per_channel: bool | None = None
    unsigned: bool | None = None
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
        name = super().__new__(cls, pattern)
        name.place = place
        return name


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


# writing
def write_config(config: Config, model: str, path: str | Path) -> None:
    """Write a file whole or not at all; a `UsageError` where it cannot be written."""
    write_atomically(Path(path), as_text(config, model).encode())


def as_text(config: Config, model: str) -> str:
    """The content of a file: a line for each layer's settings that are not the usual ones."""
    lines = [_HEADER.format(model=printable(model)) + f"version: {config.version}"]
    for key, value in unusual(config).items():
        if key == "run":
            lines += ["", "run:", *(f"  {name}: {_on_one_line(item)}" for name, item in value.items())]
        elif isinstance(value, Mapping) and key not in ("switches", "calibration"):
            lines += ["", f"{key}:"]
            lines += [line for name, settings in value.items() for line in _entry_lines(name, settings)]
        elif isinstance(value, tuple):
            lines += [f"{key}:", *(f"  - {_shown(item)}" for item in value)]
        else:
            lines.append(f"{key}: {_shown(value)}")
    return "\n".join(lines) + "\n"


def unusual(settings: Any) -> dict[str, Any]:
    """The settings of a dataclass that differ from their defaults."""
    usual = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields(settings)}
    return {key: value for key, default in usual.items() if (value := getattr(settings, key)) != default}


def _entry_lines(name: str, settings: object) -> list[str]:
    if isinstance(settings, (Widths, Limits, Constraint)):
        return [f"  {_shown(name)}: {_shown(settings)}"]
    return [f"  {_shown(name)}:", *(f"    {key}: {_shown(value)}" for key, value in unusual(settings).items())]


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
        return {key: f"2^{int(math.log2(v))}" if isinstance(v, float) else _plain(v) for key, v in value.items()}
    return value


# files of linger 3.x
DEFAULT_PLATFORM = "venusA"
_WITHOUT_TARGET = ("mars", "jupiter")  # chips that linger 3.x knows and linger does not
_METHODS = {"abs_max": "max", "top_10": "topk:10", "w_like": "mse"}
"""Calibrators of linger 3.x and the methods nearest to them."""
_SCALES = {"MOM": "running", "TQT": "tqt"}


def _only(why: str, *, value: object) -> Is:
    return Is(lambda said: said == value, f"{value!r}, and nothing else has a meaning here: {why}")


def _one_of(value: object, known: Collection[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(unknown("", str(value), known).removeprefix(": "))
    return value


def _platform(chip: object) -> str:
    if chip in _WITHOUT_TARGET:
        known = ", ".join(CHIPS)
        raise ValueError(f"{chip!r} is not supported: linger has no target file for this chip (known: {known})")
    return _one_of(chip, CHIPS)


Width = Annotated[int, one_of((4, 8, 16))]
Strategy = Annotated[str, one_of(("MSE", "RANGE_MEAN", "NSTD", "HIST", "KLD", "TQT"))]
Calibrator = Annotated[str, As(lambda name: _one_of(name, (*_METHODS, *calibration_methods())))]


@dataclass(frozen=True)
class _ClampInfo:
    """Limits that constrain a model."""

    clamp_weight_value: Positive | None = None
    clamp_bias_value: Positive | None = None
    clamp_activation_value: Positive | None = 8
    clamp_factor_value: Positive | None = 7


@dataclass(frozen=True)
class _QuantInfo:
    """How a model, or a part of it, is quantized."""

    weight_bits: Width = 8
    activate_bits: Width = 8
    bias_bits: Annotated[Any, _only("a bias always has 32 bits", value=32)] = 32
    a_strategy: Strategy = "RANGE_MEAN"
    w_strategy: Strategy = "RANGE_MEAN"
    is_symmetry: Annotated[Any, _only("formats are symmetric", value=True)] = True
    is_perchannel: Annotated[Any, _only("a tensor has one scale", value=False)] = False
    round_mode: Annotated[Any, _only("numbers are rounded by floor(x + ½), as on the device", value="floor_add")] = (
        "floor_add"
    )
    activation_type: Annotated[Any, _only("linger.trace_layers finds what follows a layer", value="none")] = "none"
    qat_method: Annotated[str, one_of(_SCALES)] = "MOM"
    w_calibrate_name: Calibrator = "abs_max"
    a_calibrate_name: Calibrator = "top_10"
    input_bits: Width | None = None
    output_bits: Annotated[int, one_of((4, 8, 16, 32))] | None = None


@dataclass(frozen=True)
class _Newer:
    """Every key of linger 3.x and its default; `device` there is cuda where there is one."""

    open_quant: Annotated[Any, _only("linger.init always quantizes, as the key was never looked at", value=True)] = True
    quant_method: Annotated[str, one_of(("NATIVE", "CUDA", "CUDA_GS", "COMPILE", "TRITON", "ONNX"))] = "NATIVE"
    device: Any = "cpu"
    dtype: Annotated[str, one_of(("torch.float32", "float32"))] = "torch.float32"
    seed: Any = 42
    platform: Annotated[str, As(_platform)] = DEFAULT_PLATFORM
    clamp_info: _ClampInfo = field(default_factory=_ClampInfo)
    quant_info: _QuantInfo = field(default_factory=_QuantInfo)


@dataclass(frozen=True)
class _Part:
    """A part of a model with settings of its own."""

    name: Annotated[
        Any,
        Is(
            lambda name: isinstance(name, (str, list)) and all(isinstance(n, str) for n in name),
            "a path, or a list of paths",
        ),
    ]
    quant_info: _QuantInfo = field(default_factory=_QuantInfo)
    clamp_info: _ClampInfo = field(default_factory=_ClampInfo)


DEFAULT_CLAMP: dict[str, Any] = asdict(_ClampInfo())
DEFAULT_QUANT: dict[str, Any] = {key: value for key, value in asdict(_QuantInfo()).items() if value is not None}
DEFAULTS: dict[str, Any] = asdict(_Newer()) | {"quant_info": DEFAULT_QUANT}


def is_newer(content: object) -> bool:
    """Whether the content of a file is in the words of linger 3.x: it has keys of it, and none of linger's own."""
    if not isinstance(content, Mapping) or any(key in Config.__dataclass_fields__ for key in content):
        return False
    return any(key in DEFAULTS or _is_part(value) for key, value in content.items())


def _is_part(value: object) -> bool:
    return isinstance(value, Mapping) and "name" in value


def _newer_problems(content: Mapping[Any, Any]) -> list[str]:
    """Everything in a configuration of linger 3.x that means nothing here, or something else."""
    problems, _ = read_with_problems(_Newer, {key: value for key, value in content.items() if key in DEFAULTS})
    for key, value in content.items():
        if _is_part(value):
            problems += read_with_problems(_Part, value, place=str(key))[0]
            section = value.get("quant_info")
            said = section if isinstance(section, Mapping) else {}
            problems += [
                f"{key}.quant_info.{name}: {said[name]!r}: this is chosen for the whole model, in the file's own quant_info"
                for name in ("qat_method", "w_calibrate_name", "a_calibrate_name")
                if said.get(name, DEFAULT_QUANT[name]) != DEFAULT_QUANT[name]
            ]
        elif key not in DEFAULTS:
            problems.append(f"{unknown(str(key), str(key), DEFAULTS)}, nor is it a part: a mapping with the key 'name'")
    return problems


def newer_config(content: Mapping[str, Any], where: str, *, platform: str | None = DEFAULT_PLATFORM) -> Config:
    """The meaning of settings in the words of linger 3.x; `platform` is the chip where they name none.

    A `UsageError` names every place that has no meaning here.
    """
    if problems := _newer_problems(content):
        raise UsageError(f"{where}: {joined(problems)}. Nothing was changed.")
    quant = DEFAULT_QUANT | dict(content.get("quant_info", {}))
    parts = [(name, part, False) for key, part in content.items() if key not in DEFAULTS for name in _paths(key, part)]
    layers: dict[str, LayerConfig] = {}
    functions: dict[str, FunctionConfig] = {}
    constraints: dict[str, Constraint] = {}
    for pattern, section, is_whole in [("*", content, True), *parts]:
        widths = _widths(DEFAULT_QUANT | dict(section.get("quant_info", {})))
        is_usual = widths == Widths(parameter=quant["weight_bits"]) if is_whole else "quant_info" not in section
        if not is_usual:
            layers |= {pattern: LayerConfig(bits=widths)}
            functions |= {pattern: FunctionConfig(bits={"o": min(widths.output, 16)})}
        if is_whole or "clamp_info" in section:
            constraints |= {pattern: _constraint(section.get("clamp_info", {}))}
    return Config(
        target=content.get("platform", platform),
        parameter_bits=quant["weight_bits"],
        scales=_SCALES[quant["qat_method"]],
        calibration=_methods(content.get("quant_info", {}), is_learned=quant["qat_method"] == "TQT"),
        constrain=constraints,
        layers=layers,
        functions=functions,
    )


def _paths(key: str, part: Mapping[str, Any]) -> Iterator[str]:
    """The patterns of a part: a dotted prefix stands for the module of this name and all inside it."""
    names = part["name"]
    for name in [names] if isinstance(names, str) else names:
        yield PartName(name if name.endswith("*") else f"{name}.*", f"{key}.name")


def _widths(info: Mapping[str, Any]) -> Widths:
    data, output = (info.get(key) or info["activate_bits"] for key in ("input_bits", "output_bits"))
    return Widths(data, info["weight_bits"], output)


def _constraint(clamp_info: Mapping[str, Any]) -> Constraint:
    """A value for the weights wins over the factor, which is there by default."""
    said = {**DEFAULT_CLAMP, **clamp_info}
    info = {key.split("_")[1]: None if value is None else float(value) for key, value in said.items()}
    weight = info["weight"]
    return Constraint(weight, info["bias"], info["activation"], info["factor"] if weight is None else None)


def unsaid_method(quant_info: Mapping[str, Any]) -> str:
    """The calibrator of activations that holds where none is named: the default of linger 3.x only where scales are learned."""
    is_learned = quant_info.get("qat_method") == "TQT"
    return str(DEFAULT_QUANT["a_calibrate_name"] if is_learned else DEFAULT_QUANT["w_calibrate_name"])


def _methods(quant_info: Mapping[str, Any], *, is_learned: bool) -> dict[str, str]:
    """The methods that a file names; linger 3.x calibrates only where scales are learned, by its defaults if need be."""
    info = (DEFAULT_QUANT if is_learned else {}) | dict(quant_info)
    kinds = {"weights": "w_calibrate_name", "inputs": "a_calibrate_name", "outputs": "a_calibrate_name"}
    return {kind: _METHODS.get(info[key], info[key]) for kind, key in kinds.items() if key in info}


# reading
_MOST_ENTRIES = 10_000_000  # larger than any model's file


def read_config(path: str | Path) -> Config:
    """Read a file, linger's own or one of linger 3.x; a `UsageError` names every place that means nothing here."""
    if not isinstance(path, (str, Path)):
        raise UsageError(
            f"config_file: the path of a file is expected, not {path!r}. Types that stay float are given as disable_module=[…]."
        )
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_OnceOnly)
        _refuse_bomb(content)
    except OSError as error:
        raise UsageError(f"config_file: {path} cannot be read ({error.strerror or error}).") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"config_file: {path} is no YAML: {' '.join(str(error).split())}.") from error
    if content is None:
        raise UsageError(f"config_file: {path} is empty. Write settings into it, or leave the argument out.")
    _refuse_both_kinds(content, path)
    if is_newer(content):
        return newer_config(content, f"config_file: {path}")
    problems, config = read_with_problems(Config, content)
    if config is None:
        raise UsageError(f"config_file: {path}: {joined(problems)}. Nothing was changed.")
    return config


def _refuse_both_kinds(content: object, path: str | Path) -> None:
    keys = list(content) if isinstance(content, Mapping) else []
    own, newer = [key for key in keys if key in Config.__dataclass_fields__], [key for key in keys if key in DEFAULTS]
    if own and newer:
        raise UsageError(
            f"config_file: {path} has keys of two kinds: {listing(own)} of linger, {listing(newer)} of linger 3.x. "
            "Write all of it in the words of one. Nothing was changed."
        )


class _OnceOnly(yaml.SafeLoader):
    """Plain data only; a key that stands twice is an error instead of silently winning."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - yaml's signature
        """A mapping of distinct keys."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for i, key in enumerate(keys) if key in keys[:i]]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} stands twice", node.start_mark)
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


def _refuse_bomb(content: object) -> None:
    """Refuse data in which aliases stand for so much that no memory holds it, or for what they are part of."""
    sizes: dict[int, float] = {}

    def size(item: object) -> float:
        parts = [*item, *item.values()] if isinstance(item, dict) else item if isinstance(item, list) else ()
        if id(item) not in sizes:
            sizes[id(item)] = math.inf  # until it is known: what holds itself has no end
            sizes[id(item)] = 1 + sum(map(size, parts))
        return sizes[id(item)]

    if size(content) > _MOST_ENTRIES:
        raise yaml.YAMLError("its aliases stand for too much")
