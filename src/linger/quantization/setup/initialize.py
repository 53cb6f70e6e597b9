# SPDX-License-Identifier: Apache-2.0
"""init: replace the layers of a model by quantised ones, weights kept."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from linger.constraint.batch_norm import as_batch_norm, freeze_statistics
from linger.constraint.conv_bn import ConvBN, counts_as, freeze_batch_norms, layer_of, parts_of_pairs
from linger.constraint.limits import AHEAD_RELU, Normalized, limits_of
from linger.constraint.marks import QUANTIZATION, QUANTIZED, QuantChoice, Types, Widths
from linger.constraint.tracing import replace_everywhere
from linger.dialect import Refusal
from linger.errors import UsageError, listing
from linger.quantization.core.frozen import limits_of_rows
from linger.quantization.core.packing import Unpacked
from linger.quantization.core.recomputation import Recomputation
from linger.quantization.core.runtime import ProductPolicy, Runtime, attach_scope
from linger.quantization.core.statistics import QuantizedBase, device_of
from linger.quantization.core.supported import (
    has_own_forward,
    holds_matrices,
    op_for,
    refuse_compiled,
    refuse_empty,
    supported_types,
)
from linger.quantization.core.switched import why_off
from linger.quantization.functions.attention import refusal_of
from linger.quantization.functions.dispatch import dispatch
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.layers.batch_norm_layer import BatchNormLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.norm_layer import NormLayer
from linger.quantization.layers.recurrent import QuantCell, QuantRecurrent
from linger.quantization.layers.signal_layer import TransposedSignalLayer
from linger.quantization.setup.float_inputs import EdgeMode, InputQuantizer
from linger.quantization.setup.marking import BY_NAME, QuantMode, checked_types, checked_widths
from linger.quantization.setup.tensor_quantizer import quant_tensor
from linger.quantization.setup.watch import FloatWatch
from linger.quantization.setup.weight_norm import fold_weight_norm, load_folded
from linger.settings import Switches, chosen_switches
from linger.targets import find_target

logger = logging.getLogger(__name__)

_RUNTIME = "_linger_runtime"
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
"""Where torch keeps the hooks of a module."""

_LAYERS: dict[str, type[QuantLayer]] = {
    "BatchNorm2dInt": BatchNormLayer,
    "LayerNormInt": NormLayer,
    "GroupNormInt": NormLayer,
}
"""Ops whose layers are more than weights times input."""


def init(
    model: nn.Module,
    config_file: Any = None,
    disable_module: Iterable[type[nn.Module]] | None = None,
    disable_submodel: Iterable[str] | None = None,
    *,
    quant_modules: Sequence[type[nn.Module]] | None = None,
    parameter_bits: int = 8,
    mode: QuantMode = QuantMode.QValue,
    target: str | None = None,
    switches: Switches | None = None,
) -> nn.Module:
    """Replace every supported layer by its quantised form, keeping the weights, and return the model.

    Args:
        model: The float model, as it is or after `trace_layers` and `normalize_layers`, whose limits the integers
            keep. Changed in place.
        config_file: Reserved for settings files; must be None.
        disable_module: Layer types that stay float.
        disable_submodel: Dotted names of parts that stay float, with everything inside; `*` at the end matches any.
        quant_modules: Layer types to quantise, subclasses included; None: every type linger has an op for, but
            embeddings, which must be named, here or to `quant_module`. A fused pair counts as its convolution too.
        parameter_bits: Width of the weights.
        mode: `QuantMode.QValue`: scales are powers of two.
        target: The chip whose arithmetic is simulated ("venus", "arcs", "venusA"), and whose limits an export keeps.
            None: that of venus, without limits.
        switches: Which functions stay float, for this model alone; None: as the setters (`SetIQTensorAdd`, …) say now.

    Raises:
        UsageError: An unsupported type, a width that does not exist, a name that matches nothing, an unknown chip, a
            second init, a module of torch.jit.
    """
    if config_file is not None:
        raise UsageError(
            "init: configuration files are not supported yet. Pass quant_modules and parameter_bits instead."
        )
    refuse_compiled(model)
    refuse_empty(model)
    if mode is not QuantMode.QValue:
        raise UsageError(f"init: unknown mode {mode!r}. Use QuantMode.QValue.")
    _refuse(model)
    if switches is not None and not isinstance(switches, Switches):
        raise UsageError(f"init: switches={switches!r}. Use linger.Switches(add=False, …).")
    chosen = chosen_switches() if switches is None else switches
    types = checked_types(quant_modules)
    widths = checked_widths(8, parameter_bits, 8)
    excluded = tuple(disable_module or ())
    float_paths = _float_paths(model, disable_submodel)
    name = None if target is None else find_target(target).name
    runtime = Runtime(dispatch, make_watch=FloatWatch, target=name, switches=chosen)
    freeze_batch_norms(model, is_frozen=chosen.freezes_batch_norm)
    replacements: dict[nn.Module, nn.Module] = {}
    kept_float: dict[str, nn.Module] = {}
    inside_pairs = parts_of_pairs(model)
    for path, module in model.named_modules():
        is_wanted = not counts_as(module, excluded) and not _is_inside(path, float_paths)
        if module in inside_pairs:
            kept_float[path] = module
            continue
        made = _quantized(module, path, types, widths, runtime) if is_wanted else None
        if made is not None:
            replacements[module] = made
            _carry_hooks(module, made)
        elif not is_wanted or _stays_float(module, types):
            kept_float[path] = module
            _keep_reason(module, path, runtime, is_wanted=is_wanted)
    _allow_products(model, runtime, types, kept_float, widths)
    root = replacements.get(model, model)
    replace_everywhere(root, replacements)
    _attach(root, runtime)
    logger.info("init: %d layers quantised", len(replacements))
    return root


def _refuse(model: nn.Module) -> None:
    """Complain about a model that cannot be quantised: it is already, or its code is no longer there."""
    if runtime_of(model) is not None:
        raise UsageError("init: this model is quantised already. Call init once, on the float model.")
    scripts = [
        path or type(model).__name__ for path, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)
    ]
    outer = [path for path in scripts if not any(path.startswith(f"{other}.") for other in scripts)]
    if outer:
        raise UsageError(
            f"init: {listing(outer)}: a module of torch.jit.trace or torch.jit.script computes by itself, without the layers "
            "that could be replaced. Pass the nn.Module that it was made from."
        )


def why_nothing(model: nn.Module) -> str | None:
    """Why `init` has replaced nothing in a model; None where it has, or where its functions may become integers."""
    runtime = runtime_of(model)
    assert runtime is not None  # init made it
    is_any = any(isinstance(m, QuantizedBase) or _quantized_inputs(m, p, runtime) for p, m in model.named_modules())
    if is_any or runtime.make_edge is not None or any(_calls_quant_tensor(m) for m in model.modules()):
        return None
    reasons = listing((f"{path or 'model'} ({reason})" for path, reason in runtime.reasons.items()), limit=5)
    leaves = dict.fromkeys(type(m).__name__ for m in model.modules() if not any(m.children()))
    return (
        f"init: no layer of {type(model).__name__} was replaced, so nothing will run as integers; it holds {listing(leaves)}. "
        f"{f'Refused: {reasons}. ' if reasons else ''}"
        "Look at quant_modules, disable_module, disable_submodel and linger.disable_quant, or at the types that linger "
        f"quantises: {listing(kind.__name__ for kind in supported_types())}."
    )


def _calls_quant_tensor(module: nn.Module) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and quant_tensor.__name__ in code.co_names


def runtime_of(model: nn.Module) -> Runtime | None:
    """The runtime of a quantised model; None for a float one."""
    found: Runtime | None = model.__dict__.get(_RUNTIME)
    return found


def quantized_layers(model: nn.Module) -> dict[str, QuantLayer]:
    """The quantised layers by their path."""
    return {path: m for path, m in model.named_modules() if isinstance(m, QuantLayer)}


def _float_paths(model: nn.Module, patterns: Iterable[str] | None) -> list[str]:
    known = [name for name, _ in model.named_modules()]
    wanted = list(patterns or ())
    unknown = [p for p in wanted if not any(_is_inside(name, [p]) for name in known)]
    if unknown:
        raise UsageError(f"init: disable_submodel names {', '.join(unknown)}, which the model does not have.")
    return wanted


def _is_inside(path: str, parents: Iterable[str]) -> bool:
    """Whether a path is one of the parents or inside it; a trailing * stands for any rest of the name."""
    return any(
        path == p or path.startswith(f"{p}.") or (p.endswith("*") and path.startswith(p.removesuffix("*")))
        for p in parents
    )


def _quantized(
    module: nn.Module, path: str, types: Types, widths: Widths, runtime: Runtime
) -> QuantLayer | QuantRecurrent | None:
    """The quantised form of a module; None if it stays what it is."""
    layer = layer_of(module)
    choice = _choice_for(module)
    if choice.is_disabled:
        return None
    found = op_for(layer)
    if found is None and limits_of(module).is_any:
        logger.warning("%s (%s) stays float, within its limits: it has no integer form", path, type(module).__name__)
    is_named = choice.widths is not None and isinstance(layer, BY_NAME)
    if found is None or not (is_named or counts_as(module, types)):
        return None
    if _is_functional(module):
        return None
    op, binding = found
    folded = fold_weight_norm(layer)
    geometry = _refusal(module) or binding(layer)
    if isinstance(geometry, Refusal):
        logger.warning("%s (%s) stays float: %s", path, type(layer).__name__, geometry.reason)
        runtime.reasons[path] = geometry.reason
        load_folded(layer, folded)
        return None
    chosen = choice.widths or widths
    if op.forms:
        kind = QuantCell if isinstance(layer, nn.RNNCellBase) else QuantRecurrent
        recurrent = kind(op, layer, chosen, runtime)
        recurrent.path, recurrent.limited_to = path, limits_of(module)
        load_folded(recurrent, folded)
        return recurrent
    is_signal = isinstance(layer, nn.ConvTranspose1d)
    form = TransposedSignalLayer if is_signal else _LAYERS.get(op.name, QuantLayer)
    made = form(op, layer, geometry, chosen, runtime)
    made.path = path
    load_folded(made, folded)
    if isinstance(made, BatchNormLayer):
        freeze_statistics(made, is_frozen=runtime.switches.freezes_batch_norm)
    made.is_ahead_of_relu = bool(getattr(module, AHEAD_RELU, False))
    made.limited_to = limits_of_rows(limits_of(module)) if made.is_lookup else limits_of(module)
    if isinstance(module, ConvBN):
        made.take_batch_norm(module.bn)
        made.training = module.training  # not train(): a frozen batch norm stays frozen
    return made


def _choice_for(module: nn.Module) -> QuantChoice:
    """What the marks say about a module; the mark of a convolution holds for the pair that `trace_layers` made of it."""
    return QUANTIZATION.of(module) or QUANTIZATION.of(layer_of(module)) or QuantChoice()


def _carry_hooks(source: nn.Module, made: nn.Module) -> None:
    """A user's hooks see, and may change, what the layer takes and gives, as before; their handles still remove them."""
    for name in _HOOKS:
        setattr(made, name, getattr(source, name))
    if source._backward_hooks or source._backward_pre_hooks:  # noqa: SLF001 - torch has no question for it
        logger.warning("%s: backward hooks of a quantised layer are never called", made.path)


def _keep_reason(module: nn.Module, path: str, runtime: Runtime, *, is_wanted: bool) -> None:
    """Remember, for `coverage`, why a module stays float, unless it was refused for a reason of its own."""
    refusal = refusal_of(module) if isinstance(module, nn.MultiheadAttention) else None
    if not is_wanted:
        reason = "kept float by disable_module or disable_submodel"
    elif refusal is not None:
        logger.warning("%s (%s) stays float: %s", path, type(module).__name__, refusal.reason)
        reason = refusal.reason
    elif isinstance(module, BY_NAME):
        reason = "it is quantised only where quant_modules or linger.quant_module names its type"
    else:
        reason = "quant_modules does not name its type"
    runtime.reasons.setdefault(path, reason)


def _refusal(module: nn.Module) -> Refusal | None:
    """Why a layer of a supported type stays float, whatever its settings are."""
    layer = layer_of(module)
    if has_own_forward(layer):
        return Refusal("it overrides forward")
    is_computed = isinstance(getattr(layer, "weight", None), Tensor) and "weight" not in layer._parameters  # noqa: SLF001 - hasattr finds both
    if is_computed or is_parametrized(layer):
        return Refusal(
            "its weight is computed from others (a parametrization, spectral_norm, pruning); make it permanent first, "
            "e.g. with torch.nn.utils.parametrize.remove_parametrizations"
        )
    if isinstance(module, ConvBN) and as_batch_norm(module.bn).running_mean is None:
        return Refusal("its batch norm keeps no statistics that could be folded")
    return None


def _is_functional(module: nn.Module) -> bool:
    """A layer with a forward of its own whose products are noticed one by one."""
    found = op_for(module)
    is_product = found is not None and "w" in found[0].inputs and found[0].state_name is not None
    return is_product and has_own_forward(module) and not isinstance(module, Normalized)


def _stays_float(module: nn.Module, types: Types) -> bool:
    """Whether a module that was not replaced must not have its functions computed as integers either."""
    if _choice_for(module).is_disabled:
        return True
    if isinstance(module, nn.MultiheadAttention):
        return refusal_of(module) is not None
    if op_for(layer_of(module)) is None:
        return False
    return not (_is_functional(module) and counts_as(module, types))


def _allow_products(
    model: nn.Module,
    runtime: Runtime,
    types: Types,
    kept_float: dict[str, nn.Module],
    widths: Widths,
) -> None:
    """Let calls like F.linear become layers: of the kinds that are quantised, where nothing is to stay float."""
    wanted = {op.name for kind, (op, _) in supported_types().items() if any(issubclass(kind, t) for t in types)}
    runtime.products = ProductPolicy(frozenset(wanted), frozenset(kept_float), widths)
    own = set(model.modules()) - set(kept_float.values())
    runtime.make_edge = EdgeMode if holds_matrices(own) else None


def _attach(root: nn.Module, runtime: Runtime) -> None:
    """Hooks that name the module at work, and that make functional layers when a checkpoint has them."""
    root.__dict__[_RUNTIME] = runtime
    modules, home = list(root.modules()), device_of(root)
    has_float = any(isinstance(m, nn.RNNBase) for m in modules)
    is_unpacking = any(isinstance(m, QuantRecurrent) for m in modules) and not has_float
    runtime.make_unpacking = Unpacked if is_unpacking else None
    runtime.recomputation = Recomputation()
    for path, module in root.named_modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # torch's way around padding, which also goes around every layer
        QUANTIZED.put(module, said=True)
        if isinstance(module, QuantizedBase) and module.is_layer:
            runtime.layers.append(module)
            own = [p.device for p in module.parameters()]
            module.to(own[0] if own else home)  # ranges live where the numbers are
        scope = attach_scope(runtime, path, module)
        module.register_forward_pre_hook(scope.enter)
        names = _quantized_inputs(module, path, runtime)
        if names:
            module.register_forward_pre_hook(InputQuantizer(runtime, names), with_kwargs=True)
        module.register_forward_hook(scope.leave, always_call=True)
        module.register_load_state_dict_pre_hook(_make_functional_layers)


def _quantized_inputs(module: nn.Module, path: str, runtime: Runtime) -> tuple[str, ...]:
    """The arguments that a module of the user's gets as quantised tensors, also where they are float."""
    if runtime.products is None or path in runtime.products.float_paths or isinstance(module, QuantLayer):
        return ()
    if isinstance(module, nn.MultiheadAttention):
        is_off = why_off(nn.functional.multi_head_attention_forward, runtime.switches) is not None
        return ("query", "key", "value") if "LinearInt" in runtime.products.ops and not is_off else ()
    return ("input",) if _is_functional(module) else ()


def _make_functional_layers(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
    del rest
    pattern = re.compile(re.escape(prefix + KEY_PREFIX) + r"([^.]+)\.")
    names = dict.fromkeys(match.group(1) for key in state_dict if (match := pattern.match(key)))  # in their order
    for name in names:
        child = KEY_PREFIX + name
        if child not in module._modules:  # noqa: SLF001 - hasattr would also find attributes that are no modules
            module.add_module(child, FunctionalLayer(name, device_of(module)).train(module.training))
