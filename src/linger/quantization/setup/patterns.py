# SPDX-License-Identifier: Apache-2.0
"""Patterns of paths in a settings file: which layers and functions of a model each one means."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from torch import nn

from linger.constraint.conv_bn import layer_of, parts_of_pairs
from linger.constraint.limits import FUNCTION_BITS, Normalized
from linger.constraint.normalize import NORMALIZED
from linger.errors import printable
from linger.quantization.core.supported import has_own_forward, op_for
from linger.quantization.setup.config_file import Config, FunctionConfig, PartName
from linger.quantization.setup.function_bits import adjustable_ops
from linger.quantization.setup.marking import choice_for, types_by_name

_T = TypeVar("_T")
_SIGNS = "*?["
_INSIDE = ".*"


def fits(pattern: str, path: str) -> bool:
    """Whether a pattern means a path; `block.*` means block itself, too, so that it is right for a layer and for a part."""
    return fnmatchcase(path, pattern) or (pattern.endswith(_INSIDE) and path == pattern.removesuffix(_INSIDE))


def last_fitting(entries: Mapping[str, _T], path: str) -> _T | None:
    """The entry of a path: its own, else that of the last pattern that fits."""
    if path in entries:
        return entries[path]
    return next((entries[key] for key in reversed(list(entries)) if fits(key, path)), None)


def patterns_in(entries: Mapping[str, _T], paths: Collection[str]) -> dict[str, _T]:
    """The entries whose keys are patterns; a name that a model has is none, whatever signs are in it."""
    return {key: value for key, value in entries.items() if any(s in key for s in _SIGNS) and key not in paths}


def unfitting(config: Config, model: nn.Module) -> list[str]:
    """Every pattern of a file that means nothing in a model, or asks for more than a pattern can; each once."""
    return list(dict.fromkeys(_unfitting(config, model)))


def _unfitting(config: Config, model: nn.Module) -> Iterator[str]:
    paths = [path for path, _ in model.named_modules()]
    for place in ("layers", "limits", "constrain"):
        yield from _fitting_nothing(place, patterns_in(getattr(config, place), paths), paths)
    functions = patterns_in(config.functions, paths)
    names = [name for path in paths for name in _function_names(path)] if functions else []
    yield from _fitting_nothing("functions", functions, names, paths)
    for key, entry in functions.items():
        if entry.bits.get("o") not in (4, 8, 16) or entry != FunctionConfig(bits={"o": entry.bits["o"]}):
            yield f"functions.{printable(key)}: a pattern chooses the width of results alone, as in bits: {{o: 16}} (4, 8 or 16)"


def _fitting_nothing(
    place: str, patterns: Collection[str], names: Collection[str], shown: Collection[str] | None = None
) -> Iterator[str]:
    for pattern in patterns:
        if not any(fits(pattern, name) for name in names):
            near = get_close_matches(pattern.strip(_SIGNS + "."), [name for name in shown or names if name], n=1)
            hint = f" (is {near[0]} meant?)" if near else ""
            if isinstance(pattern, PartName):
                yield f"{pattern.place}: {printable(pattern.removesuffix(_INSIDE))!r} fits nothing{hint}"
            else:
                yield f"{place}: the pattern {printable(pattern)!r} fits nothing{hint}"


def expanded(config: Config, model: nn.Module) -> Config:
    """The configuration with a path for each layer that a pattern means; patterns of functions are left to `mark_functions`."""
    modules = dict(model.named_modules())
    inside = parts_of_pairs(model)
    own = {path: m for path, m in modules.items() if m not in inside}
    layers = [path for path, m in own.items() if _is_quantized_by(path, m, config)]
    limited = [path for path, m in own.items() if isinstance(m, (*NORMALIZED, Normalized))]
    functions = patterns_in(config.functions, modules)
    return replace(
        config,
        layers=_by_path(config.layers, layers, modules),
        limits=_by_path(config.limits, limited, modules),
        functions={name: entry for name, entry in config.functions.items() if name not in functions},
    )


def _by_path(entries: Mapping[str, _T], candidates: Collection[str], modules: Collection[str]) -> dict[str, _T]:
    patterns = patterns_in(entries, modules)
    exact = {key: entry for key, entry in entries.items() if key not in patterns}
    found = {path: last_fitting(patterns, path) for path in candidates}
    return {path: entry for path, entry in found.items() if entry is not None} | exact


def _is_quantized_by(path: str, module: nn.Module, config: Config) -> bool:
    """Whether `init` quantises a module that no entry of the file names."""
    layer = layer_of(module)
    if path in (*config.stays_float_alone, *config.not_quantized, *(pair.bn for pair in config.fused)):
        return False
    if any(f"{path}.".startswith(f"{top}.") for top in config.stays_float) or choice_for(module).is_disabled:
        return False
    return op_for(layer) is not None and not has_own_forward(layer) and _is_wanted_type(layer, config)


def _is_wanted_type(layer: nn.Module, config: Config) -> bool:
    if config.types is None:
        return not isinstance(layer, types_by_name())
    return any(kind.__name__ in config.types for kind in type(layer).__mro__)


def mark_functions(config: Config, model: nn.Module) -> None:
    """Give the functions of a model the widths that patterns choose for them, for passes to come."""
    modules = dict(model.named_modules())
    patterns = patterns_in(config.functions, modules)
    for path, module in modules.items() if patterns else ():
        entries = {op: last_fitting(patterns, name) for name, op in _function_names(path).items()}
        chosen = {op: entry.bits["o"] for op, entry in entries.items() if entry is not None}
        if chosen:
            FUNCTION_BITS.put(module, {**(FUNCTION_BITS.of(module) or {}), **chosen})


def _function_names(path: str) -> dict[str, Any]:
    """The names that functions of a module have in a file, those of the first calls, and their ops."""
    return {f"{path}.{op.state_name}_0".lstrip("."): name for name, op in adjustable_ops().items()}
