# SPDX-License-Identifier: Apache-2.0
"""QUANT_CONFIGS and what belongs to it: the settings of linger 3.x, kept for this thread or task only.

constrain and const_module: the limits of linger 3.x, kept by the Normalize layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from linger.constraint.conv_bn import ConvBN, as_batch_norm, counts_as, parts_of_pairs
from linger.constraint.limits import LIMITS, Limits, Normalized, checked_limits, limits_of, refuse_quantized
from linger.constraint.normalize import DEFAULT_TYPES, NORMALIZED, normalize_layers
from linger.errors import UsageError, listing, refuse_if
from linger.quantization.core.supported import SETTERS, SWITCHES, supported_types
from linger.quantization.setup.config import last_fitting, patterns_in, save_config, unfitting
from linger.quantization.setup.config_file import (
    DEFAULT_CLAMP,
    DEFAULT_QUANT,
    DEFAULTS,
    Config,
    Constraint,
    joined,
    newer_config,
    read_config,
    unknown,
    unsaid_method,
    write_config,
)
from linger.quantization.setup.marking import checked_exceptions
from linger.settings import choose, choose_newer, keep_float, newer_settings

_SECTIONS: Mapping[str, Mapping[str, Any]] = {"clamp_info": DEFAULT_CLAMP, "quant_info": DEFAULT_QUANT}


class _UnknownSettingError(UsageError, AttributeError):
    """There is no setting of this name; also what Python expects where an attribute is missing."""


class _QuantConfigs:
    """The settings of linger 3.x under their names, to read and to write.

    `linger.QUANT_CONFIGS.quant_info.weight_bits = 4` holds for the models that this thread or task constrains and initializes
    afterwards without a file. It keeps nothing itself; another thread sees its own settings. A name or value that means nothing
    is refused.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name in _SECTIONS:
            return _ConfigSection(name)
        _known(name, DEFAULTS, "QUANT_CONFIGS")
        return newer_settings().get(name, None if name == "platform" else DEFAULTS[name])

    def __setattr__(self, name: str, value: Any) -> None:
        _known(name, DEFAULTS, "QUANT_CONFIGS")
        if name in _SECTIONS and not isinstance(value, Mapping):
            raise UsageError(f"QUANT_CONFIGS.{name}: a mapping is expected, not {value!r}.")
        _set(name, dict(value) if name in _SECTIONS else _plain(value))

    def __dir__(self) -> list[str]:
        return list(DEFAULTS)

    def __repr__(self) -> str:
        return f"QUANT_CONFIGS({', '.join(f'{key}={value!r}' for key, value in newer_settings().items())})"


class _ConfigSection:
    """A section of the settings, `quant_info` or `clamp_info`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        known = _SECTIONS[self._name]
        _known(name, known, f"QUANT_CONFIGS.{self._name}")
        said = newer_settings().get(self._name, {})
        return said.get(name, unsaid_method(said) if name == "a_calibrate_name" else known[name])

    def __setattr__(self, name: str, value: Any) -> None:
        _known(name, _SECTIONS[self._name], f"QUANT_CONFIGS.{self._name}")
        _set(self._name, {**newer_settings().get(self._name, {}), name: _plain(value)})

    def __dir__(self) -> list[str]:
        return list(_SECTIONS[self._name])

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{key}={getattr(self, key)!r}' for key in dir(self))})"


QUANT_CONFIGS = _QuantConfigs()
"""The settings of linger 3.x, see `_QuantConfigs`."""


def _known(name: str, known: Iterable[str], where: str) -> None:
    names = list(known)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"Is {near[0]} meant?" if near else f"Known: {listing(names)}."
        raise _UnknownSettingError(f"{where} has no setting {name!r}. {hint}")


def _plain(value: Any) -> Any:
    """A member of an enumeration as its name, a type of torch as its own."""
    return value.name if isinstance(value, Enum) else str(value) if type(value).__module__ == "torch" else value


def _set(key: str, value: Any) -> None:
    content = {**newer_settings(), key: value}
    if key == "platform" and value is None:
        del content[key]
    newer_config(content, "QUANT_CONFIGS")  # raises where it means nothing
    choose_newer(content)


def config_save_to_yaml(yaml_save_path: str | Path, model: nn.Module | None = None) -> None:
    """Write the settings of `QUANT_CONFIGS`, or all that was decided about a quantized model, as a file that `init` reads.

    Args:
        yaml_save_path: The file; it is linger's own format, which `save_config` writes.
        model: A quantized model; None: the settings of this context, which know no model.

    Raises:
        UsageError: The model is not quantized, or the file cannot be written.
    """
    if model is not None:
        save_config(model, yaml_save_path)
    else:
        write_config(newer_config(newer_settings(), "QUANT_CONFIGS", platform=None), "a model", yaml_save_path)


def disable_quant_ops(
    qmodule_list: Iterable[type[nn.Module] | str] = (), qtensor_list: Iterable[Callable[..., Any] | str] = ()
) -> None:
    """Keep layer types and functions float in the models that this thread or task initializes afterwards.

    Args:
        qmodule_list: Types (`nn.Conv2d`) or their names; subclasses are meant, too.
        qtensor_list: Functions (`torch.add`) or names of switches, as `get_quant_ops_name` lists them.

    Raises:
        UsageError: A type or function has no integer form that could be left out; every such one is named.
    """
    by_name = {kind.__name__: kind for kind in supported_types()}
    own = [*by_name, *by_name.values()]
    types = {_name(item): by_name[_name(item)] if item in own else None for item in qmodule_list}
    functions = {_name(item): _switches_of(item) for item in qtensor_list}
    problems = [unknown("qmodule_list", name, by_name) for name, kind in types.items() if kind is None]
    problems += [unknown("qtensor_list", name, SETTERS) for name, switches in functions.items() if not switches]
    refuse_if(problems, f"disable_quant_ops: {'; '.join(problems)}. Nothing was changed.")
    keep_float(tuple(filter(None, types.values())))
    choose(**dict.fromkeys(chain(*functions.values()), False))


def get_quant_ops_name() -> tuple[list[str], list[str]]:
    """The names of the layer types that `init` may quantize, and of the functions that can be switched off."""
    return [kind.__name__ for kind in supported_types()], list(SETTERS)


def _switches_of(item: Callable[..., Any] | str) -> tuple[str, ...]:
    """The first switch of a function: attention, which has several, is kept float by one of them."""
    if isinstance(item, str):
        return (item,) if item in SETTERS else ()
    return SWITCHES.get(item, ())[:1] if callable(item) else ()


def _name(item: object) -> str:
    return item if isinstance(item, str) else str(getattr(item, "__name__", item))


def constrain(
    model: nn.Module,
    config_file: str | Path | None = None,
    disable_module: Iterable[type[nn.Module]] | None = None,
    disable_submodel: Iterable[str] | str | None = None,
) -> nn.Module:
    """Keep weights, biases and outputs of a float model within limits, weights kept, and return the model.

    Without a file: outputs within ±8, weights within 7 times their mean magnitude. That number is fixed now: call it after
    `trace_layers`, which folds batch norms into weights, and `const_module` to take it anew later. Layers get the limits that the file has for them in `constrain` (`clamp_info` in a file
    of linger 3.x), `limits` or `layers`, the later of these counting more; those that `normalize_module` or `disable_normalize`
    marked, or that have limits already, keep those. A file that has none of these leaves the model as it is.

    Args:
        model: The float model, before or after `trace_layers`. Changed in place.
        config_file: As of `init`; None: what `QUANT_CONFIGS.clamp_info` says in this context.
        disable_module: Layer types that stay without limits.
        disable_submodel: Dotted names of parts that do, with everything inside; `*` at the end matches any.

    Raises:
        UsageError: The file is wrong or does not fit the model, a name matches nothing, or the model is quantized.
    """
    refuse_quantized(model, "constrain")
    source = str(config_file or "QUANT_CONFIGS")
    config = newer_config(newer_settings(), source) if config_file is None else read_config(config_file)
    excluded, without = checked_exceptions("constrain", disable_module, disable_submodel)
    problems = [*_misfits(config, model), *_unmatched(without, model)]
    refuse_if(
        problems, f"constrain: {source} does not fit {type(model).__name__}: {joined(problems)}. Nothing was changed."
    )
    inside = parts_of_pairs(model)
    for path, layer in model.named_modules():
        is_left = layer in inside or counts_as(layer, excluded) or _is_inside_any(path, without)
        is_said = LIMITS.of(layer) is not None or limits_of(layer).is_any
        wanted = None if is_left or is_said else _wanted(config, path, layer)
        if wanted is not None:
            LIMITS.put(layer, _fixed(wanted, layer))
    return normalize_layers(
        model,
        normalize_modules=DEFAULT_TYPES,
        normalize_weight_value=None,
        normalize_bias_value=None,
        normalize_output_value=None,
    )


def const_module(
    module: nn.Module,
    c_activation_val: float | None = 8.0,
    c_weight_val: float | None = 8.0,
    c_bias_val: float | None = None,
    c_weight_factor: float | None = None,
) -> nn.Module:
    """Change the limits of a module, and of what is inside it, that `constrain` or `normalize_layers` has set.

    Args:
        module: A layer or a whole part of the float model.
        c_activation_val: Largest magnitude of an output; None: no limit.
        c_weight_val: Largest magnitude of a weight.
        c_bias_val: Largest magnitude of a bias.
        c_weight_factor: Weights may have so many times their mean magnitude, as it is now; counts above `c_weight_val`.

    Returns:
        The module.

    Raises:
        UsageError: A value is no limit, nothing in the module has limits, or the model is quantized.
    """
    refuse_quantized(module, "const_module")
    limits = checked_limits(
        "const_module", c_weight_val=c_weight_val, c_bias_val=c_bias_val, c_activation_val=c_activation_val
    )
    checked_limits("const_module", c_weight_factor=c_weight_factor, _=None, __=None)
    inside = parts_of_pairs(module)
    layers = [layer for layer in module.modules() if isinstance(layer, Normalized) and layer not in inside]
    refuse_if(
        not layers,
        f"const_module: nothing in {type(module).__name__} has limits. Call linger.constrain on the model first.",
    )
    for layer in layers:
        chosen = _fixed(Constraint(limits.weight, limits.bias, limits.output, c_weight_factor), layer)
        LIMITS.put(layer, chosen)
        layer.limit_to(chosen)
    return module


def _misfits(config: Config, model: nn.Module) -> Iterator[str]:
    """What a file says about limits of layers that the model does not have, or that cannot have limits."""
    modules = dict(model.named_modules())
    yield from (problem for problem in unfitting(config, model) if not problem.startswith("functions"))
    for place in ("constrain", "limits", "layers"):
        entries: Mapping[str, object] = getattr(config, place)
        patterns = patterns_in(entries, modules)
        for path in entries:
            if path not in modules and path not in patterns:
                yield unknown(place, path, modules)
            elif place != "layers" and path in modules and not isinstance(modules[path], (*NORMALIZED, Normalized)):
                yield f"{place}.{path}: {type(modules[path]).__name__} cannot be kept within limits"


def _unmatched(names: Iterable[str], model: nn.Module) -> Iterator[str]:
    paths = [path for path, _ in model.named_modules()]
    for name in names:
        if not any(_is_inside(path, name) for path in paths):
            yield unknown("disable_submodel", name, paths)


def _is_inside_any(path: str, tops: Iterable[str]) -> bool:
    return any(_is_inside(path, top) for top in tops)


def _is_inside(path: str, top: str) -> bool:
    is_start = top.endswith("*") and path.startswith(top.removesuffix("*"))
    return is_start or path == top or path.startswith(f"{top}.")


def _wanted(config: Config, path: str, layer: nn.Module) -> Constraint | None:
    """What a configuration says about a layer; patterns reach only layers of the usual types."""
    if not isinstance(layer, (*NORMALIZED, Normalized)):
        return None
    said = last_fitting(config.constrain, path) if counts_as(layer, DEFAULT_TYPES) or path in config.constrain else None
    entry, of_float = last_fitting(config.layers, path), last_fitting(config.limits, path)
    for limits in (of_float, None if entry is None else entry.limits):
        if limits is not None and limits.is_any:
            said = Constraint(limits.weight, limits.bias, limits.output)
    return said


def _fixed(wanted: Constraint, layer: nn.Module) -> Limits:
    """Limits as numbers: the factor times the mean magnitude of the weights, unless they are all zero."""
    weight = wanted.weight
    if wanted.weight_factor is not None:
        with torch.no_grad():
            magnitudes = [part.abs().flatten() for part in _weights(layer)]
            mean = float(torch.cat(magnitudes).mean()) if magnitudes else 0.0
        weight = wanted.weight_factor * mean if mean > 0.0 else None
    return Limits(weight, wanted.bias, wanted.output)


def _weights(layer: nn.Module) -> list[Tensor]:
    """What limits of weights act on: folded weights of a pair, γ/σ of a batch norm."""
    own = dict(layer.named_parameters(recurse=False))
    if any(is_lazy(weight) for weight in own.values()):
        return []
    if isinstance(layer, ConvBN):
        has_statistics = as_batch_norm(layer.bn).running_mean is not None
        return [layer.folded()[0] if has_statistics else layer.conv.weight]
    if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
        if layer.running_var is None or layer.weight is None:
            return []
        return [layer.weight * torch.rsqrt(layer.running_var + layer.eps)]
    return [weight for name, weight in own.items() if name.startswith("weight")]
