# SPDX-License-Identifier: Apache-2.0
"""What `init(config_file=…)` does with a file: before its own work, and after it."""

from __future__ import annotations

from torch import nn

from linger.constraint.channel_limits import limit_channels
from linger.constraint.conv_bn import ConvBN
from linger.constraint.limits import QUANTIZATION, Normalized, QuantChoice, Types, Widths
from linger.constraint.normalize import NORMALIZED
from linger.constraint.tracing import fuse, replace_everywhere
from linger.errors import UsageError
from linger.quantization.core.quantized import device_of, ranges_of
from linger.quantization.core.supported import supported_types
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.setup.config import follows, width_of
from linger.quantization.setup.config_file import Config, FunctionConfig, LayerConfig, joined, unknown
from linger.quantization.setup.config_fit import misfits
from linger.quantization.setup.marking import types_by_name
from linger.quantization.setup.patterns import expanded, mark_functions, unfitting

_UNTIL_THE_NEXT_PASS = 1.0
"""The scale of an input that has that of the layer before, until a pass has shown it."""


def prepared(model: nn.Module, said: Config, source: str) -> Config:
    """Give a float model the pairs, limits and marks of a configuration that `init` reads, and return it without patterns.

    Args:
        model: The float model.
        said: The configuration as it was written.
        source: Where it was, for messages.

    Raises:
        UsageError: The file belongs to another model; every place that does not fit is named, and nothing is changed.
    """
    around, problems = _with_channel_limits(model, said)
    problems += unfitting(said, model)
    config = expanded(said, model)
    problems += misfits(config, model)
    if problems:
        replace_everywhere(model, around)
        raise UsageError(f"{source} does not fit {type(model).__name__}: {joined(problems)}. Nothing was changed.")
    mark_functions(said, model)
    modules = dict(model.named_modules())
    for pair in config.fused:
        if not isinstance(modules[pair.conv], ConvBN):
            fuse(model, pair.conv, pair.bn, modules[pair.conv], modules[pair.bn])
    _limit(model, config)
    for place, widths in config.parts.items():
        QUANTIZATION.put(modules[place], QuantChoice(widths=widths))
    for place, layer in config.layers.items():
        if isinstance(modules[place], types_by_name()):
            QUANTIZATION.put(modules[place], QuantChoice(widths=layer.bits or Widths(parameter=config.parameter_bits)))
    for place in config.stays_float_alone:
        QUANTIZATION.put(modules[place], QuantChoice(is_disabled=True, is_alone=True))
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
        if isinstance(layer, (QuantLayer, QuantRecurrent)):  # else init has said why it stays float
            _finish_layer(layer, entry, is_whole=config.complete)
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
            one.method = entry.methods.get(one.name)


def _finish_layer(layer: QuantLayer | QuantRecurrent, entry: LayerConfig, *, is_whole: bool) -> None:
    """Give a layer what its entry says; what the entry leaves out stays, unless the file says everything."""
    layer.widths = entry.bits or layer.widths
    if is_whole or entry.limits.is_any:
        layer.limited_to = entry.limits
    if is_whole or entry.relu_ahead:
        layer.is_ahead_of_relu = entry.relu_ahead
    if is_whole or entry.adopts_input or entry.scales:
        layer.input_range = "stale" if entry.adopts_input else "own" if "x" in entry.scales else ""
    for name in entry.scales:
        layer.ranges[name].width = width_of(name, layer.widths)


def _finish_function(model: nn.Module, name: str, function: FunctionConfig) -> None:
    path, _, key = name.rpartition(".")
    parent = model.get_submodule(path)
    made = parent._modules.get(KEY_PREFIX + key)  # noqa: SLF001 - get_submodule would raise
    if not isinstance(made, FunctionalLayer):
        made = FunctionalLayer(key, device_of(parent, model)).train(parent.training)
        parent.add_module(KEY_PREFIX + key, made)
    for each, bits in function.bits.items():
        made.ranges[each].width = bits
    made.out_bits = function.bits.get("o")
    if made.may_be_finer:
        made.become_fine()  # its scale is written in the file
    made.subtract_max(is_wanted=function.subtracts_max)


def _child(name: str) -> str:
    """The path of a function's ranges."""
    parent, _, key = name.rpartition(".")
    return f"{parent}.{KEY_PREFIX}{key}".lstrip(".")
