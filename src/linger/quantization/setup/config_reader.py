# SPDX-License-Identifier: Apache-2.0
"""A settings file read as a `Config`, with every complaint at once: in linger's own words, or in those of linger 3.x.

A configuration of linger 3.x read as a `Config`: what it means here, and a complaint or a warning where it means something else.

What chose a kernel, a device or a seed changes no number, and is accepted. What would change numbers and does not exist
here is an error.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml

from linger.constraint.limits import Widths
from linger.errors import UsageError, listing
from linger.quantization.core.methods import calibration_methods
from linger.quantization.setup.config_file import (
    Config,
    Constraint,
    FunctionConfig,
    LayerConfig,
    PartName,
    joined,
    unknown,
)
from linger.records.reading import As, Is, Positive, one_of, read_with_problems
from linger.targets import TARGETS

DEFAULT_PLATFORM = "venusA"
_WITHOUT_TARGET = ("mars", "jupiter")
"""Chips that linger 3.x knows and linger does not."""
_METHODS = {"abs_max": "max", "top_10": "topk:10", "w_like": "mse"}
"""Calibrators of linger 3.x and the methods nearest to them."""
_SCALES = {"MOM": "running", "TQT": "tqt"}


def _only(why: str, *, value: object) -> Is:
    return Is(lambda given: given == value, f"{value!r}, and nothing else has a meaning here: {why}")


def _platform(given: object) -> str:
    if given in _WITHOUT_TARGET:
        raise ValueError(
            f"{given!r} is not supported: linger has no target file for this chip (known: {', '.join(TARGETS)})"
        )
    return _one_of(given, TARGETS)


def _one_of(given: object, known: Collection[str]) -> str:
    if not isinstance(given, str) or given not in known:
        raise ValueError(unknown("", str(given), known).removeprefix(": "))
    return given


Width = Annotated[int, one_of((4, 8, 16))]
Strategy = Annotated[str, one_of(("MSE", "RANGE_MEAN", "NSTD", "HIST", "KLD", "TQT"))]
Calibrator = Annotated[str, As(lambda given: _one_of(given, (*_METHODS, *calibration_methods())))]


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


def of_both_kinds(content: object) -> tuple[list[str], list[str]] | None:
    """The keys of linger's own files and those of linger 3.x, where a file has some of each."""
    keys = list(content) if isinstance(content, Mapping) else []
    own, newer = [key for key in keys if key in Config.__dataclass_fields__], [key for key in keys if key in DEFAULTS]
    return (own, newer) if own and newer else None


def _is_part(value: object) -> bool:
    return isinstance(value, Mapping) and "name" in value


def newer_problems(content: Mapping[Any, Any]) -> list[str]:
    """Everything in a configuration of linger 3.x that means nothing here, or something else."""
    problems, _ = read_with_problems(_Newer, {key: value for key, value in content.items() if key in DEFAULTS})
    for key, value in content.items():
        if _is_part(value):
            problems += read_with_problems(_Part, value, place=str(key))[0]
            problems += _of_the_whole(f"{key}.quant_info", value.get("quant_info"))
        elif key not in DEFAULTS:
            problems.append(f"{unknown(str(key), str(key), DEFAULTS)}, nor is it a part: a mapping with the key 'name'")
    return problems


def _of_the_whole(place: str, section: object) -> Iterator[str]:
    said = section if isinstance(section, Mapping) else {}
    for key in ("qat_method", "w_calibrate_name", "a_calibrate_name"):
        if said.get(key, DEFAULT_QUANT[key]) != DEFAULT_QUANT[key]:
            yield f"{place}.{key}: {said[key]!r}: this is chosen for the whole model, in the file's own quant_info"


def from_newer(content: Mapping[Any, Any], platform: str | None) -> Config:
    """The meaning of a configuration in which there are no problems; `platform` is the chip where it names none."""
    quant = DEFAULT_QUANT | dict(content.get("quant_info", {}))
    parts = {key: value for key, value in content.items() if key not in DEFAULTS}
    infos = [("*", content, True), *((name, part, False) for key, part in parts.items() for name in _paths(key, part))]
    layers: dict[str, LayerConfig] = {}
    functions: dict[str, FunctionConfig] = {}
    constraints: dict[str, Constraint] = {}
    for pattern, section, is_whole in infos:
        widths = _widths(section.get("quant_info", {}))
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


def _widths(quant_info: Mapping[str, Any]) -> Widths:
    info = DEFAULT_QUANT | dict(quant_info)
    return Widths(
        info.get("input_bits") or info["activate_bits"],
        info["weight_bits"],
        info.get("output_bits") or info["activate_bits"],
    )


def _constraint(clamp_info: Mapping[str, Any]) -> Constraint:
    """A value for the weights wins over the factor, which is there by default."""
    said = {**DEFAULT_CLAMP, **clamp_info}
    info = {key.split("_")[1]: None if value is None else float(value) for key, value in said.items()}
    factor = info["factor"] if info["weight"] is None else None
    return Constraint(info["weight"], info["bias"], info["activation"], factor)


def unsaid_method(quant_info: Mapping[str, Any]) -> str:
    """The calibrator of activations that holds where none is named: the default of linger 3.x only where scales are learned."""
    is_learned = quant_info.get("qat_method") == "TQT"
    return str(DEFAULT_QUANT["a_calibrate_name"] if is_learned else DEFAULT_QUANT["w_calibrate_name"])


def _methods(quant_info: Mapping[str, Any], *, is_learned: bool) -> dict[str, str]:
    """The methods that a file names; linger 3.x calibrates only where scales are learned, by its defaults if need be."""
    info = (DEFAULT_QUANT if is_learned else {}) | dict(quant_info)
    kinds = {"weights": "w_calibrate_name", "inputs": "a_calibrate_name", "outputs": "a_calibrate_name"}
    return {kind: _METHODS.get(info[key], info[key]) for kind, key in kinds.items() if key in info}


_MOST_ENTRIES = 10_000_000
"""Larger than any model's file."""


def read_config(path: str | Path) -> Config:
    """Read a file, linger's own or one of linger 3.x.

    Raises:
        UsageError: It cannot be read, is no YAML, or holds what means nothing here; every such place is named.
    """
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
    both = of_both_kinds(content)
    if both is not None:
        raise UsageError(
            f"config_file: {path} has keys of two kinds: {listing(both[0])} of linger, {listing(both[1])} of linger 3.x. "
            "Write all of it in the words of one. Nothing was changed."
        )
    if is_newer(content):
        return newer_config(content, f"config_file: {path}")
    problems, config = read_with_problems(Config, content)
    if config is None:
        raise UsageError(f"config_file: {path}: {joined(problems)}. Nothing was changed.")
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
