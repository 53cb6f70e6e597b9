# SPDX-License-Identifier: Apache-2.0
"""A configuration of linger 3.x read as a `Config`: what it means here, and a complaint or a warning where it means something else.

What chose a kernel, a device or a seed changes no number, and is accepted. What would change numbers and does not exist
here is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from linger.constraint.marks import Widths
from linger.quantization.core.methods import calibration_methods
from linger.quantization.setup.config_file import Config, Constraint, FunctionConfig, LayerConfig, unknown
from linger.targets import TARGETS

DEFAULT_CLAMP: dict[str, Any] = {
    "clamp_weight_value": None,
    "clamp_bias_value": None,
    "clamp_activation_value": 8,
    "clamp_factor_value": 7,
}
DEFAULT_QUANT: dict[str, Any] = {
    "weight_bits": 8,
    "activate_bits": 8,
    "bias_bits": 32,
    "a_strategy": "RANGE_MEAN",
    "w_strategy": "RANGE_MEAN",
    "is_symmetry": True,
    "is_perchannel": False,
    "round_mode": "floor_add",
    "activation_type": "none",
    "qat_method": "MOM",
    "w_calibrate_name": "abs_max",
    "a_calibrate_name": "top_10",
}
DEFAULT_PLATFORM = "venusA"
DEFAULTS: dict[str, Any] = {
    "open_quant": True,
    "quant_method": "NATIVE",
    "device": "cpu",
    "dtype": "torch.float32",
    "seed": 42,
    "platform": DEFAULT_PLATFORM,
    "clamp_info": DEFAULT_CLAMP,
    "quant_info": DEFAULT_QUANT,
}
"""Every key of linger 3.x and its default; `device` there is cuda where there is one."""

_PART_ONLY = ("input_bits", "output_bits")
_METHODS = {"abs_max": "max", "top_10": "topk:10", "w_like": "mse"}
"""Calibrators of linger 3.x and the methods nearest to them."""

_SCALES = {"MOM": "running", "TQT": "tqt"}
_STRATEGIES = ("MSE", "RANGE_MEAN", "NSTD", "HIST", "KLD", "TQT")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "quant_method": ("NATIVE", "CUDA", "CUDA_GS", "COMPILE", "TRITON", "ONNX"),
    "dtype": ("torch.float32", "float32"),
    "platform": tuple(TARGETS),
    "a_strategy": _STRATEGIES,
    "w_strategy": _STRATEGIES,
    "qat_method": tuple(_SCALES),
}
_ONLY: dict[str, tuple[Any, str]] = {
    "bias_bits": (32, "a bias always has 32 bits"),
    "is_symmetry": (True, "formats are symmetric"),
    "is_perchannel": (False, "a tensor has one scale"),
    "round_mode": ("floor_add", "numbers are rounded by floor(x + ½), as on the device"),
    "activation_type": ("none", "linger.trace_layers finds what follows a layer"),
    "open_quant": (True, "linger.init always quantises, as the key was never looked at"),
}
"""Keys with one value that holds here, and why."""

_WIDTHS: dict[str, tuple[int, ...]] = {
    "weight_bits": (4, 8, 16),
    "activate_bits": (4, 8, 16),
    "input_bits": (4, 8, 16),
    "output_bits": (4, 8, 16, 32),
}


def is_newer(content: object) -> bool:
    """Whether the content of a file is in the words of linger 3.x: it has keys of it, and none of linger's own."""
    if not isinstance(content, Mapping) or any(key in Config.__dataclass_fields__ for key in content):
        return False
    return any(key in DEFAULTS or _is_part(value) for key, value in content.items())


def _is_part(value: object) -> bool:
    return isinstance(value, Mapping) and "name" in value


def newer_problems(content: Mapping[Any, Any]) -> list[str]:
    """Everything in a configuration of linger 3.x that means nothing here, or something else."""
    problems: list[str] = []
    for key, value in content.items():
        if key in ("quant_info", "clamp_info"):
            problems += _section_problems(str(key), value, is_part=False)
        elif key in DEFAULTS:
            problems += _value_problems(str(key), str(key), value)
        elif _is_part(value):
            problems += _part_problems(str(key), value)
        else:
            problems.append(f"{unknown(str(key), str(key), DEFAULTS)}, nor is it a part: a mapping with the key 'name'")
    return problems


def _part_problems(place: str, part: Mapping[Any, Any]) -> Iterator[str]:
    yield from (
        unknown(f"{place}.{key}", str(key), ("name", "quant_info", "clamp_info"))
        for key in part
        if key not in ("name", "quant_info", "clamp_info")
    )
    names = part["name"]
    if not isinstance(names, (str, list)) or not all(isinstance(name, str) for name in names):
        yield f"{place}.name: a path, or a list of paths, is expected, not {names!r}"
    for key in ("quant_info", "clamp_info"):
        if key in part:
            yield from _section_problems(f"{place}.{key}", part[key], is_part=True)


def _section_problems(place: str, section: object, *, is_part: bool) -> Iterator[str]:
    if not isinstance(section, Mapping):
        yield f"{place}: a mapping is expected, not {section!r}"
        return
    known: Collection[str] = DEFAULT_CLAMP if place.endswith("clamp_info") else (*DEFAULT_QUANT, *_PART_ONLY)
    for key, value in section.items():
        if key not in known:
            yield unknown(f"{place}.{key}", str(key), known)
            continue
        yield from _value_problems(f"{place}.{key}", str(key), value)
        whole = ("qat_method", "w_calibrate_name", "a_calibrate_name")
        if is_part and key in whole and value != DEFAULT_QUANT[key]:
            yield f"{place}.{key}: {value!r}: this is chosen for the whole model, in the file's own quant_info"


def _value_problems(place: str, key: str, value: object) -> Iterator[str]:
    if key in _CHOICES and value not in _CHOICES[key]:
        yield unknown(place, str(value), [str(item) for item in _CHOICES[key]])
    elif key in _ONLY and value != _ONLY[key][0]:
        yield f"{place}: {value!r} has no meaning here: {_ONLY[key][1]} ({_ONLY[key][0]!r})"
    elif key in _WIDTHS and (isinstance(value, bool) or value not in _WIDTHS[key]):
        yield f"{place}: {value!r} is no width (known: {', '.join(map(str, _WIDTHS[key]))})"
    elif key.startswith("clamp_"):
        is_limit = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
        if value is not None and not is_limit:
            yield f"{place}: {value!r} is no positive number"
    elif key.endswith("calibrate_name") and value not in (*_METHODS, *calibration_methods()):
        yield unknown(place, str(value), [*_METHODS, *calibration_methods()])


def from_newer(content: Mapping[Any, Any], platform: str | None) -> Config:
    """The meaning of a configuration in which there are no problems; `platform` is the chip where it names none."""
    quant = DEFAULT_QUANT | dict(content.get("quant_info", {}))
    parts = {key: value for key, value in content.items() if key not in DEFAULTS}
    infos = [("*", content, True), *((name, part, False) for part in parts.values() for name in _paths(part))]
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


def _paths(part: Mapping[str, Any]) -> Iterator[str]:
    """The patterns of a part: a dotted prefix stands for the module of this name and all inside it."""
    names = part["name"]
    for name in [names] if isinstance(names, str) else names:
        yield name if name.endswith("*") else f"{name}.*"


def _widths(quant_info: Mapping[str, Any]) -> Widths:
    info = DEFAULT_QUANT | dict(quant_info)
    return Widths(
        info.get("input_bits", info["activate_bits"]),
        info["weight_bits"],
        info.get("output_bits", info["activate_bits"]),
    )


def _constraint(clamp_info: Mapping[str, Any]) -> Constraint:
    """A value for the weights wins over the factor, which is there by default."""
    said = {**DEFAULT_CLAMP, **clamp_info}
    info = {key.split("_")[1]: None if value is None else float(value) for key, value in said.items()}
    factor = info["factor"] if info["weight"] is None else None
    return Constraint(info["weight"], info["bias"], info["activation"], factor)


def _methods(quant_info: Mapping[str, Any], *, is_learned: bool) -> dict[str, str]:
    """The methods that a file names; linger 3.x calibrates only where scales are learned, by its defaults if need be."""
    info = (DEFAULT_QUANT if is_learned else {}) | dict(quant_info)
    kinds = {"weights": "w_calibrate_name", "inputs": "a_calibrate_name", "outputs": "a_calibrate_name"}
    return {kind: _METHODS.get(info[key], info[key]) for kind, key in kinds.items() if key in info}
