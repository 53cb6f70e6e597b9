# SPDX-License-Identifier: Apache-2.0
"""Whether a settings file fits a float model: every place where it does not, before anything is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from torch import Tensor, nn

from linger.constraint.batch_norm import as_batch_norm
from linger.constraint.conv_bn import ConvBN, EmptyBatchNorm, layer_of, parts_of_pairs
from linger.constraint.limits import Normalized
from linger.constraint.normalize import NORMALIZED
from linger.constraint.tracing import fused_kind
from linger.quantization.core.supported import has_own_forward, op_for, supported_types
from linger.quantization.functions.functional_layer import FunctionalLayer
from linger.quantization.layers.layer import range_names
from linger.quantization.layers.recurrent_operands import range_suffix
from linger.quantization.setup.config_file import Config, FunctionConfig, Fused, LayerConfig, unknown
from linger.quantization.setup.marking import choice_for, types_by_name


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
        yield f"{path}: linger.disable_quant keeps it float, and the file quantises it"
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
    """Layers that would be quantised although a complete file does not name them."""
    inside = parts_of_pairs(model)
    named = {*config.layers, *config.stays_float_alone, *config.not_quantized, *(pair.bn for pair in config.fused)}
    tops = tuple(f"{top}." for top in config.stays_float)
    for path, module in model.named_modules():
        is_said = module in inside or path in named or f"{path}.".startswith(tops)
        if not is_said and _would_be_quantized(layer_of(module)):
            yield f"{path or type(module).__name__}: the file says nothing about this {type(module).__name__}"


def _would_be_quantized(layer: nn.Module) -> bool:
    return op_for(layer) is not None and not isinstance(layer, types_by_name()) and not has_own_forward(layer)
