# SPDX-License-Identifier: Apache-2.0
"""What `init(config_file=…)` does with a file: before its own work, and after it."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from linger.constraint.channel_limits import limit_channels
from linger.constraint.conv_bn import ConvBN
from linger.constraint.limits import Normalized
from linger.constraint.marks import QUANTIZATION, QuantChoice, Types
from linger.constraint.normalize import NORMALIZED
from linger.constraint.tracing import fuse, replace_everywhere
from linger.errors import UsageError
from linger.quantization.core.ranges import device_of, ranges_of
from linger.quantization.core.supported import supported_types
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.setup.config import follows, width_of
from linger.quantization.setup.config_file import Config, FunctionConfig, LayerConfig, joined, read_config, unknown
from linger.quantization.setup.config_fit import misfits
from linger.quantization.setup.marking import types_by_name

_UNTIL_THE_NEXT_PASS = 1.0
"""The scale of an input that has that of the layer before, until a pass has shown it."""


def prepared(model: nn.Module, path: str | Path) -> Config:
    """Read a file for a float model, and give the model the pairs, limits and marks that `init` reads.

    Raises:
        UsageError: The file is wrong or belongs to another model; every such place is named, and nothing is changed.
    """
    config = read_config(path)
    around, problems = _with_channel_limits(model, config)
    problems += misfits(config, model)
    if problems:
        replace_everywhere(model, around)
        raise UsageError(
            f"config_file: {path} does not fit {type(model).__name__}: {joined(problems)}. Nothing was changed."
        )
    modules = dict(model.named_modules())
    for pair in config.fused:
        if not isinstance(modules[pair.conv], ConvBN):
            fuse(model, pair.conv, pair.bn, modules[pair.conv], modules[pair.bn])
    _limit(model, config)
    for place, widths in config.parts.items():
        QUANTIZATION.put(modules[place], QuantChoice(widths=widths))
    for place, layer in config.layers.items():
        if isinstance(modules[place], types_by_name()):
            QUANTIZATION.put(modules[place], QuantChoice(widths=layer.bits))
    for place in config.stays_float_alone:
        QUANTIZATION.put(modules[place], QuantChoice(is_disabled=True))
    return config


def _with_channel_limits(model: nn.Module, config: Config) -> tuple[dict[nn.Module, nn.Module], list[str]]:
    """Put limits around the modules that a file names, and tell the names that the model does not have."""
    modules = dict(model.named_modules())
    wanted = {path: (entry.largest, entry.shape) for path, entry in config.channel_limits.items()}
    known = {path: limits for path, limits in wanted.items() if path in modules and path}
    problems = [unknown("channel_limits", path, modules) for path in wanted if path not in known]
    return limit_channels(model, known), problems


def named_types(config: Config) -> Types | None:
    """The layer types that a file names."""
    if config.types is None:
        return None
    return tuple(kind for kind in supported_types() if kind.__name__ in config.types)


def _limit(model: nn.Module, config: Config) -> None:
    """Keep layers that stay float within limits."""
    for path, limits in config.limits.items():
        module = model.get_submodule(path)
        if isinstance(module, Normalized):
            module.limit_to(limits)
        else:
            kind = next(kind for kind in type(module).__mro__ if kind in NORMALIZED)
            replace_everywhere(model, {module: NORMALIZED[kind].from_layer(module, limits)})


def finish(model: nn.Module, config: Config) -> None:
    """Give a model after `init` the widths, limits and scales of a file."""
    modules = dict(model.named_modules())
    for path, entry in config.layers.items():
        layer = modules[path]
        assert isinstance(layer, (QuantLayer, QuantRecurrent))  # what does not fit was refused
        _finish_layer(layer, entry)
    for pair in config.fused:
        joined_layer = modules[pair.conv]
        if pair.folded and isinstance(joined_layer, QuantLayer):
            joined_layer.fold_batch_norm()
    for name, function in config.functions.items():
        _finish_function(model, name, function)
    _choose_scales(model, config)


def _choose_scales(model: nn.Module, config: Config) -> None:
    entries: dict[str, LayerConfig | FunctionConfig] = dict(config.layers)
    entries |= {_child(name): function for name, function in config.functions.items()}
    for one in ranges_of(model, with_adopted=True).values():
        entry = entries.get(one.key.rpartition(".")[0])
        if follows(one):
            one.choose(_UNTIL_THE_NEXT_PASS)
        elif entry is not None and one.name in entry.scales:
            one.choose(entry.scales[one.name])
            one.layer.method_of |= {name: method for name, method in entry.methods.items() if name == one.name}


def _finish_layer(layer: QuantLayer | QuantRecurrent, entry: LayerConfig) -> None:
    layer.widths, layer.limited_to, layer.is_ahead_of_relu = entry.bits, entry.limits, entry.relu_ahead
    layer.input_range = "stale" if entry.adopts_input else "own" if "x" in entry.scales else ""
    layer.bits_of |= {name: width_of(name, entry.bits) for name in entry.scales}


def _finish_function(model: nn.Module, name: str, function: FunctionConfig) -> None:
    path, _, key = name.rpartition(".")
    parent = model.get_submodule(path)
    made = parent._modules.get(KEY_PREFIX + key)  # noqa: SLF001 - get_submodule would raise
    if not isinstance(made, FunctionalLayer):
        made = FunctionalLayer(key, device_of(parent, model)).train(parent.training)
        parent.add_module(KEY_PREFIX + key, made)
    made.bits_of |= function.bits
    made.out_bits = function.bits.get("o")
    if made.may_be_finer:
        made.become_fine()  # its scale is written in the file
    made.subtract_max(is_wanted=function.subtracts_max)


def _child(name: str) -> str:
    """The path of a function's ranges."""
    parent, _, key = name.rpartition(".")
    return f"{parent}.{KEY_PREFIX}{key}".lstrip(".")
