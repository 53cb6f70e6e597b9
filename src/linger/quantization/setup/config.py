# SPDX-License-Identifier: Apache-2.0
"""save_config: all that was decided about a quantised model, but its weights, as a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from torch import nn

from linger.constraint.channel_limits import ChannelLimits
from linger.constraint.conv_bn import ConvBN, EmptyBatchNorm
from linger.constraint.limits import FUSED, QUANTIZATION, Fusion, Widths, limits_of
from linger.errors import UsageError
from linger.numeric.fixed import scale_for
from linger.quantization.core.quantized import QuantizedBase, ranges_of
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import Runtime, runtime_of
from linger.quantization.core.stored import Kind, kind_of
from linger.quantization.core.supported import supported_types
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.quantization.setup.config_file import ChannelLimit, Config, FunctionConfig, Fused, LayerConfig, write_config
from linger.quantization.setup.marking import checked_types
from linger.settings import Switches

_LAYERS = (QuantLayer, QuantRecurrent)
_WIDTHS = (8, 16, 32, 4)
"""The usual one first."""


def save_config(model: nn.Module, path: str | Path) -> None:
    """Write all that was decided about a quantised model as YAML: everything but its weights.

    `linger.init(float_model, config_file=path)` reads it: fused pairs, parts that stay float, widths, limits, scales of
    layers and functions, chip and switches. With the weights of this model (`load_state_dict`) it then gives the same
    integers, without any data.

    Raises:
        UsageError: The model is not quantised, or the file cannot be written.
    """
    if not isinstance(model, nn.Module) or runtime_of(model) is None:
        raise UsageError("save_config: the model is not quantised. Call linger.init first.")
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
