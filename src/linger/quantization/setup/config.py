# SPDX-License-Identifier: Apache-2.0
"""save_config: all that was decided about a quantized model, but its weights, as a file.

What `init(config_file=…)` does with a file: before its own work, and after it.

Whether a settings file fits a float model: every place where it does not, before anything is changed; and which layers and functions
of a model a pattern of paths in the file means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from linger.constraint.conv_bn import ConvBN, EmptyBatchNorm, as_batch_norm, layer_of, parts_of_pairs
from linger.constraint.limits import (
    FUNCTION_BITS,
    FUSED,
    QUANTIZATION,
    Fusion,
    Normalized,
    QuantChoice,
    Types,
    Widths,
    limits_of,
)
from linger.constraint.normalize import NORMALIZED, ChannelLimits, limit_channels
from linger.constraint.tracing import fuse, fused_kind, replace_everywhere
from linger.errors import UsageError, printable
from linger.numeric.fixed import scale_for
from linger.quantization.core.quantized import QuantizedBase, device_of, ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Runtime, runtime_of
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
    write_config,
)
from linger.quantization.setup.marking import adjustable_ops, checked_types, choice_for, types_by_name
from linger.settings import Switches

_T = TypeVar("_T")
_SIGNS = "*?["
_INSIDE = ".*"

_LAYERS = (QuantLayer, QuantRecurrent)
_WIDTHS = (8, 16, 32, 4)
"""The usual one first."""


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
    runtime = runtime_of(model)
    assert runtime is not None  # checked by the caller
    assert runtime.products is not None  # init made it
    modules = dict(model.named_modules())
    floats = _float_parts(modules, runtime)
    ranges = _own_ranges(model)
    functions = {path: m for path, m in modules.items() if isinstance(m, FunctionalLayer)}
    return Config(
        complete=True,
        target=runtime.target,
        parameter_bits=runtime.products.widths.parameter,
        types=_types_of(runtime.products.ops),
        scales=next(_learning_methods(modules), runtime.scales),
        calibration=dict(runtime.methods),
        switches=_unusual(runtime.switches),
        stays_float=floats.whole,
        stays_float_alone=floats.alone,
        not_quantized=floats.not_quantized,
        fused=tuple(_fused_pairs(modules)),
        channel_limits=_channel_limits(modules),
        limits={path: limits_of(m) for path, m in modules.items() if limits_of(m).is_any},
        parts=dict(_parts(modules)),
        layers={path: _layer_config(m, ranges) for path, m in modules.items() if isinstance(m, _LAYERS)},
        functions={_function_name(path): _function_config(m, ranges) for path, m in functions.items()},
    )


def _learning_methods(modules: dict[str, nn.Module]) -> Iterator[str]:
    """The methods of ranges that are learned now."""
    return (
        each.learned.method
        for m in modules.values()
        if isinstance(m, QuantizedBase)
        for each in m.learned_ranges
        if each.learned is not None
    )


def _channel_limits(modules: dict[str, nn.Module]) -> dict[str, ChannelLimit]:
    found = {path: m for path, m in modules.items() if isinstance(m, ChannelLimits)}
    return {path: ChannelLimit(m.largest, tuple(m.limit.shape)) for path, m in found.items()}


def _parts(modules: dict[str, nn.Module]) -> Iterator[tuple[str, Widths]]:
    """The widths of products in the forward of a user's own modules."""
    for path, module in modules.items():
        choice = None if isinstance(module, QuantizedBase) else QUANTIZATION.of(module)
        if choice is not None and choice.widths is not None:
            yield path, choice.widths


def _unusual(switches: Switches) -> dict[str, bool]:
    usual = asdict(Switches())
    return {name: is_on for name, is_on in asdict(switches).items() if is_on != usual[name]}


def _types_of(ops: frozenset[str]) -> tuple[str, ...] | None:
    table = supported_types()
    usual = {op.name for kind, (op, _) in table.items() if issubclass(kind, checked_types(None))}
    return None if ops == usual else tuple(kind.__name__ for kind, (op, _) in table.items() if op.name in ops)


class _FloatParts(NamedTuple):
    """The topmost parts that stay float as a whole, modules that do so alone, and layers that nobody asked to stay float."""

    whole: tuple[str, ...]
    alone: tuple[str, ...]
    not_quantized: tuple[str, ...]


def _float_parts(modules: dict[str, nn.Module], runtime: Runtime) -> _FloatParts:
    assert runtime.products is not None  # init made it
    inside = tuple(f"{path}." for path, m in modules.items() if isinstance(m, (ConvBN, QuantizedBase)))
    own = [path for path, m in modules.items() if not path.startswith(inside) and not isinstance(m, FunctionalLayer)]
    asked = {path for path, keeping in runtime.asked.items() if keeping.reason}
    whole: list[str] = []
    alone: list[str] = []
    left: list[str] = []
    for path in own:
        if any(_is_in(path, top) for top in whole):
            continue
        if path in asked:
            (whole if {other for other in own if _is_in(other, path)} <= asked else alone).append(path)
        elif path in runtime.products.float_paths:
            left.append(path)
    return _FloatParts(tuple(whole), tuple(alone), tuple(left))


def _is_in(path: str, part: str) -> bool:
    """Whether a path is that of a part or of something inside it."""
    return not part or f"{path}.".startswith(f"{part}.")


def _fused_pairs(modules: dict[str, nn.Module]) -> Iterator[Fused]:
    """The pairs of `trace_layers` and others that have its mark."""
    bns: dict[Fusion, str] = {}
    for path, module in modules.items():
        together = FUSED.of(module)
        if together is not None and isinstance(module, EmptyBatchNorm):
            bns[together] = path
    for path, module in modules.items():
        together = FUSED.of(module)
        if together in bns and not isinstance(module, EmptyBatchNorm):
            yield Fused(path, bns[together], folded=getattr(module, "bn", None) is None)


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
    )


def _function_config(layer: FunctionalLayer, ranges: list[Range]) -> FunctionConfig:
    widths = {r.name: _used_bits(r) for r in ranges if r.layer is layer and r.scale}
    chosen = () if layer.out_bits is None else ("o",)
    return FunctionConfig(
        scales=_scales(layer, ranges),
        methods={r.name: r.method for r in layer.ranges.values() if r.method is not None},
        bits={name: bits for name, bits in widths.items() if bits != _WIDTHS[0] or name in chosen},
        subtracts_max=layer.subtracts_max,
    )


def _scales(layer: QuantizedBase, ranges: list[Range]) -> dict[str, float]:
    """The scales of a layer's ranges; of weights only those that were chosen, as the others follow from the weights."""
    own = [r for r in ranges if r.layer is layer and r.scale]
    kept = [r for r in own if r.kind is not Kind.WEIGHT or r.chosen_range() is not None]
    return {r.name: scale_for(r.largest, _used_bits(r)) for r in kept}


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


def _own_ranges(model: nn.Module) -> list[Range]:
    return [one for one in ranges_of(model, with_adopted=True).values() if not follows(one)]


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
    yield from _misfits_of_layers(config, modules)
    for pair in config.fused:
        yield from _misfits_of_pair(pair, modules)
    for name, function in config.functions.items():
        yield from _misfits_of_function(name, function, modules)
    if config.complete:
        yield from _left_out(config, model)


def _unknown(place: str, names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    yield from (unknown(place, name, known) for name in names if name not in known)


def _misfits_of_layers(config: Config, modules: Mapping[str, nn.Module]) -> Iterator[str]:
    for path in config.limits:
        if path in modules and not isinstance(modules[path], (*NORMALIZED, Normalized)):
            yield f"limits.{path}: {type(modules[path]).__name__} cannot be kept within limits"
    for path, layer in config.layers.items():
        if path in modules:
            yield from _misfits_of_layer(path, layer, modules[path])


def _misfits_of_layer(path: str, layer: LayerConfig, module: nn.Module) -> Iterator[str]:
    inner, found = layer_of(module), op_for(layer_of(module))
    if found is None:
        yield f"{path}: {type(module).__name__} has no integer form"
        return
    if layer.op and found[0].name != layer.op:
        yield f"{path}: {type(module).__name__} becomes {found[0].name}, and the file has {layer.op}"
    if choice_for(module).is_disabled:
        yield f"{path}: linger.disable_quant keeps it float, and the file quantizes it"
    weight = getattr(inner, "weight", None)
    shape = tuple(weight.shape) if isinstance(weight, Tensor) else layer.shape
    if layer.shape not in ((), shape):
        yield f"{path}: its weights are {list(shape)}, and those of the file {list(layer.shape)}"
    yield from _unknown(f"{path}.scales", (*layer.scales, *layer.methods), _known_ranges(inner))


def _known_ranges(module: nn.Module) -> tuple[str, ...]:
    found = op_for(module)
    assert found is not None  # checked by the caller
    if not found[0].is_recurrent:
        return range_names(found[0])
    layers = getattr(module, "num_layers", 1)
    ends = [range_suffix(k, back) for k in range(layers) for back in range(1 + getattr(module, "bidirectional", False))]
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
    known = [k.removeprefix("running_") for k in FunctionalLayer(key).state_dict() if k.startswith("running_")]
    yield from _unknown(f"functions.{name}", (*function.scales, *function.methods, *function.bits), known)


def _left_out(config: Config, model: nn.Module) -> Iterator[str]:
    """Layers that would be quantized although a complete file does not name them."""
    inside = parts_of_pairs(model)
    named = {*config.layers, *config.stays_float_alone, *config.not_quantized, *(pair.bn for pair in config.fused)}
    tops = tuple(f"{top}." for top in config.stays_float)
    for path, module in model.named_modules():
        is_said = module in inside or path in named or f"{path}.".startswith(tops)
        if not is_said and _would_be_quantized(layer_of(module)):
            yield f"{path or type(module).__name__}: the file says nothing about this {type(module).__name__}"


def _would_be_quantized(layer: nn.Module) -> bool:
    return op_for(layer) is not None and not isinstance(layer, types_by_name()) and not has_own_forward(layer)


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
    """Whether `init` quantizes a module that no entry of the file names."""
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
