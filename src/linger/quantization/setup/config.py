# SPDX-License-Identifier: Apache-2.0
"""save_config: all that was decided about a quantized model, but its weights, as a file.

What `init(config_file=…)` does with a file: before its own work, and after it.

Whether a settings file fits a float model: every place where it does not, before anything is changed; and which layers and functions
of a model a pattern of paths in the file means.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from linger.constraint.conv_bn import ConvBN, EmptyBatchNorm, as_batch_norm, layer_of, parts_of_pairs
from linger.constraint.limits import (
    FUNCTION_BITS,
    FUSED,
    QUANTIZATION,
    Normalized,
    QuantChoice,
    Types,
    Widths,
    limits_of,
)
from linger.constraint.normalize import NORMALIZED, ChannelLimits, limit_channels
from linger.constraint.tracing import follow, fuse, fused_kind, replace_everywhere, unfollow
from linger.errors import UsageError, printable
from linger.numeric.fixed import scale_for
from linger.quantization.core.quantized import QuantizedBase, device_of, layers_of, ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import NOT_KEPT, Runtime, required_runtime, runtime_of
from linger.quantization.core.stored import Kind, kind_of
from linger.quantization.core.supported import has_own_forward, op_for, supported_types
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.layers.layer import QuantLayer, range_names
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.layers.recurrent_operands import range_suffix
from linger.quantization.setup.config_file import (
    ChannelLimit,
    Config,
    FunctionConfig,
    Fused,
    LayerConfig,
    PartName,
    joined,
    unknown,
    unusual,
    write_config,
)
from linger.quantization.setup.marking import adjustable_ops, checked_types, choice_for, types_by_name
from linger.targets import has_numbers

_T = TypeVar("_T")
_M = TypeVar("_M", bound=nn.Module)
_SIGNS = "*?["
_INSIDE = ".*"

_LAYERS = (QuantLayer, QuantRecurrent)
_WIDTHS = (8, 16, 32, 4)  # the usual one first


def save_config(model: nn.Module, path: str | Path) -> None:
    """Write all that was decided about a quantized model as YAML: everything but its weights.

    `linger.init(float_model, config_file=path)` reads it: fused pairs, parts that stay float, widths, limits, scales of
    layers and functions, chip and switches. With the weights of this model (`load_state_dict`) it then gives the same
    integers, without any data.

    Raises:
        UsageError: The model is not quantized, or the file cannot be written.
    """
    if not isinstance(model, nn.Module) or runtime_of(model) is None:
        raise UsageError("save_config: the model is not quantized. Call linger.init first.")
    write_config(config_of(model), type(model).__name__, path)


def config_of(model: nn.Module) -> Config:
    """What `save_config` writes."""
    runtime = required_runtime(model, "save_config")
    assert runtime.products is not None  # init made it
    modules = dict(model.named_modules())
    stays_float, alone, not_quantized = _float_parts(modules, runtime, runtime.products.float_paths)
    ranges = [one for one in ranges_of(model, with_adopted=True).values() if not follows(one)]
    learned = chain.from_iterable(layer.learned_ranges for layer in layers_of(model).values())
    limited, functions = _of_type(modules, ChannelLimits), _of_type(modules, FunctionalLayer)
    layers = _of_type(modules, QuantLayer) | _of_type(modules, QuantRecurrent)
    return Config(
        complete=True,
        target=runtime.target,
        per_channel=None
        if runtime.is_per_channel == has_numbers(runtime.target, "per_channel")
        else runtime.is_per_channel,
        unsigned=None if runtime.is_unsigned == has_numbers(runtime.target, "unsigned") else runtime.is_unsigned,
        parameter_bits=runtime.products.widths.parameter,
        types=_types_of(runtime.products.ops),
        scales=next((str(each.learned.method) for each in learned), runtime.scales),
        calibration=dict(runtime.methods),
        switches=unusual(runtime.switches),
        stays_float=tuple(stays_float),
        stays_float_alone=tuple(alone),
        not_quantized=tuple(not_quantized),
        fused=tuple(_fused_pairs(modules)),
        channel_limits={path: ChannelLimit(m.largest, tuple(m.limit.shape)) for path, m in limited.items()},
        limits={path: limits for path, m in modules.items() if (limits := limits_of(m)).is_any},
        parts=dict(_parts(modules)),
        layers={path: _layer_config(layers[path], ranges) for path in modules if path in layers},
        functions={_function_name(path): _function_config(m, ranges) for path, m in functions.items()},
    )


def _of_type(modules: Mapping[str, nn.Module], kind: type[_M]) -> dict[str, _M]:
    return {path: m for path, m in modules.items() if isinstance(m, kind)}


def _parts(modules: dict[str, nn.Module]) -> Iterator[tuple[str, Widths]]:
    """The widths of products in the forward of a user's own modules."""
    for path, module in modules.items():
        choice = None if isinstance(module, QuantizedBase) else QUANTIZATION.of(module)
        if choice is not None and choice.widths is not None:
            yield path, choice.widths


def _types_of(ops: frozenset[str]) -> tuple[str, ...] | None:
    table = supported_types()
    usual = {op.name for kind, (op, _) in table.items() if issubclass(kind, checked_types(None))}
    return None if ops == usual else tuple(kind.__name__ for kind, (op, _) in table.items() if op.name in ops)


def _float_parts(
    modules: dict[str, nn.Module], runtime: Runtime, float_paths: Collection[str]
) -> tuple[list[str], list[str], list[str]]:
    """The topmost parts that stay float as a whole, modules that do so alone, and layers that nobody asked to stay float."""
    own, asked = _own_paths(modules), runtime.asked
    whole: list[str] = []
    alone: list[str] = []
    left: list[str] = []
    for path in own:
        if any(_is_in(path, top) for top in whole):
            continue
        if asked.get(path, NOT_KEPT).reason:
            is_whole = all(asked.get(other, NOT_KEPT).reason for other in own if _is_in(other, path))
            (whole if is_whole else alone).append(path)
        elif path in float_paths:
            left.append(path)
    return whole, alone, left


def _own_paths(modules: dict[str, nn.Module]) -> list[str]:
    """The modules of the model of the user, without the parts of quantized layers."""
    inside = tuple(f"{path}." for path, m in modules.items() if isinstance(m, (ConvBN, QuantizedBase)))
    return [path for path, m in modules.items() if not path.startswith(inside) and not isinstance(m, FunctionalLayer)]


def _is_in(path: str, part: str) -> bool:
    """Whether a path is that of a part or of something inside it."""
    return not part or f"{path}.".startswith(f"{part}.")


def _fused_pairs(modules: dict[str, nn.Module]) -> Iterator[Fused]:
    """The pairs of `trace_layers` and others that have its mark."""
    marks = {path: mark for path, m in modules.items() if (mark := FUSED.of(m)) is not None}
    bns = {mark: path for path, mark in marks.items() if isinstance(modules[path], EmptyBatchNorm)}
    for path, mark in marks.items():
        if mark in bns and not isinstance(modules[path], EmptyBatchNorm):
            yield Fused(path, bns[mark], folded=getattr(modules[path], "bn", None) is None)


def _layer_config(layer: QuantLayer | QuantRecurrent, ranges: list[Range]) -> LayerConfig:
    weight = layer._parameters.get("weight")  # noqa: SLF001 - a recurrent layer has several
    return LayerConfig(
        op=layer.op_name,
        shape=() if weight is None else tuple(weight.shape),
        bits=layer.widths,
        relu_ahead=layer.is_ahead_of_relu,
        limits=layer.limited_to,
        scales=_scales(layer, ranges),
        methods={r.name: r.method for r in layer.ranges.values() if r.method is not None},
        adopts_input=layer.input_range in ("adopted", "stale"),
        **_numbers(layer, ranges),
    )


def _function_config(layer: FunctionalLayer, ranges: list[Range]) -> FunctionConfig:
    widths = {r.name: _used_bits(r) for r in ranges if r.layer is layer and r.scale}
    chosen = () if layer.out_bits is None else ("o",)
    return FunctionConfig(
        scales=_scales(layer, ranges),
        methods={r.name: r.method for r in layer.ranges.values() if r.method is not None},
        bits={name: bits for name, bits in widths.items() if bits != _WIDTHS[0] or name in chosen},
        subtracts_max=layer.subtracts_max,
        **_numbers(layer, ranges),
    )


def _scales(layer: QuantizedBase, ranges: list[Range]) -> dict[str, float]:
    """The scales of a layer's ranges; of weights only those that were chosen, as the others follow from the weights."""
    own = [r for r in ranges if r.layer is layer and r.scale]
    chosen = [r for r in own if r.kind is not Kind.WEIGHT or r.chosen_range() is not None]
    return {r.name: scale_for(r.largest, _used_bits(r) + r.users.is_unsigned(_used_bits(r))) for r in chosen}


def _numbers(layer: QuantizedBase, ranges: list[Range]) -> dict[str, Any]:
    """Which ranges of a layer are unsigned, and the exponents of channels whose scales were chosen."""
    own = [(r, _used_bits(r)) for r in ranges if r.layer is layer and r.scale]
    exponents = {}
    for one, bits in own:
        chosen = one.chosen_range()
        if isinstance(chosen, tuple):
            scales = [scale_for(each, bits) for each in chosen]
            exponents[one.name] = tuple(int(math.log2(scale / min(scales))) for scale in scales)
    return {"exponents": exponents, "unsigned": tuple(r.name for r, bits in own if r.users.is_unsigned(bits))}


def _used_bits(one: Range) -> int:
    """The width that a range is used for: the layer's, that of the last pass, or the one for which it gives its scale.

    If none does, because the device's format allows only a coarser scale, the smallest width is safe: the range that
    `choose` writes for it is the smallest, and the format decides as before.
    """
    if isinstance(one.layer, _LAYERS):
        return width_of(one.name, one.layer.widths)
    if one.width is not None:
        return one.bits
    return next((bits for bits in _WIDTHS if scale_for(one.largest, bits) == one.scale), min(_WIDTHS))


def _function_name(path: str) -> str:
    parent, _, name = path.rpartition(".")
    return f"{parent}.{name.removeprefix(KEY_PREFIX)}".lstrip(".")


def follows(one: Range) -> bool:
    """Whether a range is that of the layer before; a recurrent layer keeps its own, as it may need fewer bits."""
    is_adopted = one.layer.input_range in ("adopted", "stale")
    return is_adopted and one.kind is Kind.INPUT and not isinstance(one.layer, QuantRecurrent)


def width_of(name: str, widths: Widths) -> int:
    """The width of a layer's range."""
    by_kind = {Kind.INPUT: widths.data, Kind.WEIGHT: widths.parameter, Kind.OUTPUT: widths.output}
    return by_kind[kind_of(name) or Kind.OUTPUT]


def misfits(config: Config, model: nn.Module) -> Iterator[str]:
    """Every place where a file does not fit a float model."""
    modules = dict(model.named_modules())
    yield from _unknown("types", config.types or (), [kind.__name__ for kind in supported_types()])
    for place in ("stays_float", "stays_float_alone", "not_quantized", "parts", "layers", "limits"):
        yield from _unknown(place, getattr(config, place), modules)
    for path in config.limits:
        if path in modules and not isinstance(modules[path], (*NORMALIZED, Normalized)):
            yield f"limits.{path}: {type(modules[path]).__name__} cannot be kept within limits"
    for path, layer in config.layers.items():
        if path in modules:
            yield from _misfits_of_layer(path, layer, modules[path])
    for pair in config.fused:
        yield from _misfits_of_pair(pair, modules)
    for name, function in config.functions.items():
        yield from _misfits_of_function(name, function, modules)
    if config.complete:
        yield from _left_out(config, model)


def _unknown(place: str, names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    yield from (unknown(place, name, known) for name in names if name not in known)


def _misfits_of_layer(path: str, layer: LayerConfig, module: nn.Module) -> Iterator[str]:
    inner, form = layer_of(module), op_for(layer_of(module))
    if form is None:
        yield f"{path}: {type(module).__name__} has no integer form"
        return
    op, _ = form
    if layer.op and op.name != layer.op:
        yield f"{path}: {type(module).__name__} becomes {op.name}, and the file has {layer.op}"
    if choice_for(module).is_disabled:
        yield f"{path}: linger.disable_quant keeps it float, and the file quantizes it"
    weight = getattr(inner, "weight", None)
    shape = tuple(weight.shape) if isinstance(weight, Tensor) else layer.shape
    if layer.shape not in ((), shape):
        yield f"{path}: its weights are {list(shape)}, and those of the file {list(layer.shape)}"
    known = _recurrent_ranges(inner) if op.is_recurrent else range_names(op)
    yield from _unknown(f"{path}.scales", (*layer.scales, *layer.methods), known)


def _recurrent_ranges(module: nn.Module) -> tuple[str, ...]:
    layers, directions = getattr(module, "num_layers", 1), 1 + getattr(module, "bidirectional", False)
    ends = [range_suffix(layer, back) for layer in range(layers) for back in range(directions)]
    return tuple(f"{name}{end}" for end in ends for name in ("i", "iw", "hw", "o"))


def _misfits_of_pair(pair: Fused, modules: dict[str, nn.Module]) -> Iterator[str]:
    if not {pair.conv, pair.bn} <= set(modules):
        yield from _unknown("fused", (pair.conv, pair.bn), modules)
        return
    conv, bn = modules[pair.conv], modules[pair.bn]
    is_fused = isinstance(conv, ConvBN) and isinstance(bn, EmptyBatchNorm)
    can_be = fused_kind(conv, bn) is not None and as_batch_norm(bn).running_mean is not None
    if not is_fused and not can_be:
        yield f"fused: {pair.conv} ({type(conv).__name__}) and {pair.bn} ({type(bn).__name__}) cannot be one layer"


def _misfits_of_function(name: str, function: FunctionConfig, modules: dict[str, nn.Module]) -> Iterator[str]:
    parent, _, key = name.rpartition(".")
    if parent not in modules:
        yield unknown("functions", parent, modules)
        return
    known = FunctionalLayer(key).ranges
    yield from _unknown(f"functions.{name}", (*function.scales, *function.methods, *function.bits), known)


def _left_out(config: Config, model: nn.Module) -> Iterator[str]:
    """Layers that would be quantized although a complete file does not name them."""
    inside = parts_of_pairs(model)
    for path, module in model.named_modules():
        layer = layer_of(module)
        is_said = module in inside or path in config.layers or _stays_float(path, config)
        has_form = op_for(layer) is not None and not has_own_forward(layer)
        if not is_said and has_form and not isinstance(layer, types_by_name()):
            yield f"{path or type(module).__name__}: the file says nothing about this {type(module).__name__}"


def _stays_float(path: str, config: Config) -> bool:
    """Whether a file says that a module stays float, or that it is the batch norm of a pair."""
    named = (*config.stays_float_alone, *config.not_quantized, *(pair.bn for pair in config.fused))
    return path in named or any(f"{path}.".startswith(f"{top}.") for top in config.stays_float)


_UNTIL_THE_NEXT_PASS = 1.0  # the scale of an input that has that of the layer before, until a pass has shown it


def prepared(model: nn.Module, said: Config, source: str) -> Config:
    """Give a float model the pairs, limits and marks of a configuration that `init` reads, and return it without patterns.

    Args:
        model: The float model.
        said: The configuration as it was written.
        source: Where it was, for messages.

    Raises:
        UsageError: The file belongs to another model; every place that does not fit is named, and nothing is changed.
    """
    followed = follow(model, [pair.conv for pair in said.fused])
    around, problems = _with_channel_limits(model, said)
    config = expanded(said, model)
    problems += [*unfitting(said, model), *misfits(config, model)]
    if problems:
        replace_everywhere(model, around)
        unfollow(model, followed)
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
    entries = {path: entry for path, entry in config.channel_limits.items() if path in modules and path}
    problems = [unknown("channel_limits", path, modules) for path in config.channel_limits if path not in entries]
    return limit_channels(model, {path: (each.largest, each.shape) for path, each in entries.items()}), problems


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
    entries: dict[str, LayerConfig | FunctionConfig] = dict(config.layers)
    for name, function in config.functions.items():
        parent, _, key = name.rpartition(".")
        _finish_function(model, model.get_submodule(parent), key, function)
        entries[f"{parent}.{KEY_PREFIX}{key}".lstrip(".")] = function
    for one in ranges_of(model, with_adopted=True).values():
        _finish_range(one, entries.get(one.key.rpartition(".")[0], FunctionConfig()))


def _finish_range(one: Range, own: LayerConfig | FunctionConfig) -> None:
    """Give a range the scale that its entry says."""
    if one.name in own.unsigned:
        one.users.add_unsigned(is_unsigned=True)
    if follows(one):
        one.choose(_UNTIL_THE_NEXT_PASS)
    elif one.name in own.scales:
        one.choose(own.scales[one.name], own.exponents.get(one.name, ()))
        one.method = own.methods.get(one.name)


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


def _finish_function(model: nn.Module, parent: nn.Module, key: str, function: FunctionConfig) -> None:
    layer = parent._modules.get(KEY_PREFIX + key)  # noqa: SLF001 - get_submodule would raise
    if not isinstance(layer, FunctionalLayer):
        layer = FunctionalLayer(key, device_of(parent, model)).train(parent.training)
        parent.add_module(KEY_PREFIX + key, layer)
    for each, bits in function.bits.items():
        layer.ranges[each].width = bits
    layer.out_bits = function.bits.get("o")
    if layer.may_be_finer:
        layer.become_fine()  # its scale is written in the file
    layer.subtract_max(is_wanted=function.subtracts_max)


# patterns
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
    paths = [path for path, _ in model.named_modules()]
    problems: list[str] = []
    for place in ("layers", "limits", "constrain"):
        problems += _fitting_nothing(place, patterns_in(getattr(config, place), paths), paths)
    functions = patterns_in(config.functions, paths)
    names = [name for path in paths for name in _function_names(path)] if functions else []
    problems += _fitting_nothing("functions", functions, names, paths)
    for key, entry in functions.items():
        if entry.bits.get("o") not in (4, 8, 16) or entry != FunctionConfig(bits={"o": entry.bits["o"]}):
            allowed = "a pattern chooses the width of results alone, as in bits: {o: 16} (4, 8 or 16)"
            problems.append(f"functions.{printable(key)}: {allowed}")
    return list(dict.fromkeys(problems))


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
    modules, inside = dict(model.named_modules()), parts_of_pairs(model)
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
    by_pattern = {path: entry for path in candidates if (entry := last_fitting(patterns, path)) is not None}
    return by_pattern | exact


def _is_quantized_by(path: str, module: nn.Module, config: Config) -> bool:
    """Whether `init` quantizes a module that no entry of the file names."""
    layer = layer_of(module)
    if _stays_float(path, config) or choice_for(module).is_disabled or op_for(layer) is None or has_own_forward(layer):
        return False
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
