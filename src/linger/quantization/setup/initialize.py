# SPDX-License-Identifier: Apache-2.0
"""init: replace the layers of a model by quantized ones, weights kept."""

from __future__ import annotations

import logging
import re
import warnings
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import is_parametrized

from linger.constraint import conv_bn
from linger.constraint.limits import (
    AHEAD_RELU,
    FUSED,
    QUANTIZATION,
    QUANTIZED,
    Normalized,
    QuantChoice,
    Types,
    Widths,
    limits_of,
    limits_of_rows,
)
from linger.constraint.tracing import replace_everywhere
from linger.dialect import Binding, Op, Refusal
from linger.errors import UsageError, listing, no_module, refuse_if
from linger.quantization.core import supported
from linger.quantization.core.distributed.exchange import Exchange
from linger.quantization.core.distributed.fsdp import refuse_sharded
from linger.quantization.core.packing import Unpacked
from linger.quantization.core.quantized import QuantizedBase, device_of, layers_of, widths_in
from linger.quantization.core.runtime import (
    NOT_KEPT,
    Keeping,
    ProductPolicy,
    Runtime,
    Scope,
    attach_scope,
    required_runtime,
    runtime_of,
    scope_of,
)
from linger.quantization.core.stored import Recomputation, other_numbers
from linger.quantization.functions.attention import refusal_of
from linger.quantization.functions.dispatch import dispatch
from linger.quantization.functions.functional_layer import FLOAT_OPERAND, KEY_PREFIX, FunctionalLayer
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.norm_layers import BatchNormLayer, NormLayer, TransposedSignalLayer
from linger.quantization.layers.recurrent import QuantCell, QuantRecurrent
from linger.quantization.setup import marking
from linger.quantization.setup.config import finish, named_types, prepared
from linger.quantization.setup.config_file import SCALES, Config, newer_config, read_config
from linger.quantization.setup.float_tensors import EdgeMode, FloatWatch, InputQuantizer, quant_tensor
from linger.quantization.setup.learned_scales import refuse_other_methods
from linger.quantization.setup.marking import QuantMode
from linger.settings import Switches, chosen_switches, kept_float, newer_settings
from linger.targets import find_target, has_numbers, refuse_numbers

logger = logging.getLogger(__name__)

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
"""Where torch keeps the hooks of a module."""

_BY_ARGUMENTS = "kept float by disable_module or disable_submodel"
_BY_MARK = "kept float by linger.disable_quant"


def init(
    model: nn.Module,
    config_file: str | Path | None = None,
    disable_module: Iterable[type[nn.Module]] | None = None,
    disable_submodel: Iterable[str] | str | None = None,
    *,
    quant_modules: Sequence[type[nn.Module]] | None = None,
    bits: int | str | None = None,
    parameter_bits: int = 8,
    mode: QuantMode = QuantMode.QValue,
    target: str | None = None,
    per_channel: bool | None = None,
    unsigned: bool | None = None,
    switches: Switches | None = None,
) -> nn.Module:
    """Replace every supported layer by its quantized form, keeping the weights, and return the model.

    As documented, after `linger.init` `torch.onnx.export` is `linger.onnx.export`; `linger.restore()` undoes that.

    Args:
        model: The float model, as it is or after `trace_layers` and `normalize_layers`, whose limits the integers
            keep. Changed in place.
        config_file: A file of `save_config`, one written by hand, or one of linger 3.x, that holds the settings below, and
            pairs to fuse, widths, limits and scales of layers, by path or pattern. The model is the float one as it was
            written, or after `trace_layers`. Unknown names are errors, with a suggestion. None: what `QUANT_CONFIGS` was
            given in this context.
        disable_module: Module types that stay float, with the functions of their forward; what is inside is not concerned.
        disable_submodel: Dotted names of parts that stay float, with everything inside; `*` at the end matches any.
        quant_modules: Layer types to quantize, subclasses included; None: every type linger has an op for, but
            embeddings, which must be named, here or to `quant_module`. A fused pair counts as its convolution too.
        bits: Widths of what nobody has marked: 8, 16, or weights and activations as in "w4a8"; None: 8.
        parameter_bits: Width of the weights.
        mode: `QuantMode.QValue`: scales are powers of two.
        target: The chip whose arithmetic is simulated ("venus", "arcs", "venusA"), and whose limits an export keeps; or
            what runs the network without limits: "c" (portable C), "onnxruntime".
            None: that of venus, without limits.
        per_channel: Whether weights have one scale, a power of two, for each output channel; None: where the target has it.
        unsigned: Whether 8-bit activations that are never negative use 0 … 255; None: where the target has it.
        switches: Which functions stay float, for this model alone; None: as the setters (`SetIQTensorAdd`, …) say now.

    Raises:
        UsageError: An unsupported type, a width that does not exist, a name that matches nothing, an unknown chip, a
            second init, a module of torch.jit.

    Warns where no layer was replaced, and where a SyncBatchNorm stays float.
    """
    if not isinstance(model, nn.Module):
        raise no_module("init", model)
    supported.refuse_compiled(model)
    supported.refuse_empty(model)
    refuse_sharded(model, "init", "Call linger.init on the model as it was before, then fully_shard.")
    if mode is not QuantMode.QValue:
        raise UsageError(f"init: unknown mode {mode!r}. Use QuantMode.QValue.")
    refuse_unquantizable(model)
    if switches is not None and not isinstance(switches, Switches):
        raise UsageError(f"init: switches={switches!r}. Use linger.Switches(add=False, …).")
    chip = None if target is None else find_target(target).name
    refuse_numbers("init", chip, per_channel=per_channel, unsigned=unsigned)
    width = None if parameter_bits == 8 else parameter_bits
    arguments = _Arguments(quant_modules, chip, switches, width, bits, per_channel, unsigned)
    types, parts = marking.checked_exceptions("init", disable_module, disable_submodel)
    paths = [name for name, _ in model.named_modules()]
    if unknown := [part for part in parts if not any(_is_inside(path, [part]) for path in paths)]:
        raise UsageError(f"init: disable_submodel names {', '.join(unknown)}, which the model does not have.")
    order = partial(_ordered, arguments=arguments, types=types, parts=parts)
    order(Config())  # what is wrong with the arguments is said before the model changes
    config = _read(model, config_file, arguments, is_excepting=bool(types or parts))
    if bits is not None:
        marking.choose_widths(model, bits, "init", quant_modules)
    return _replaced(model, config, order(config), arguments)


def _replaced(model: nn.Module, config: Config, order: _Order, arguments: _Arguments) -> nn.Module:
    """The model with its layers replaced."""
    is_said = config.complete or bool(config.switches)
    switches = arguments.switches or (Switches(**config.switches) if is_said else chosen_switches())
    target = arguments.target or config.target
    runtime = Runtime(dispatch, make_watch=FloatWatch, target=target, switches=switches)
    runtime.is_per_channel = _has(target, "per_channel", arguments.per_channel, config.per_channel)
    runtime.is_unsigned = _has(target, "unsigned", arguments.unsigned, config.unsigned)
    runtime.methods, runtime.scales = config.calibration, config.scales
    conv_bn.freeze_batch_norms(model, is_frozen=switches.freezes_batch_norm)
    replacements, stay = _replacements(model, order, runtime)
    _allow_products(model, runtime, order, stay)
    root = replacements.get(model, model)
    replace_everywhere(root, replacements)
    _attach(root, runtime)
    if config != Config():
        finish(root, config)
    synchronized = [path or "the model" for path, m in root.named_modules() if isinstance(m, nn.SyncBatchNorm)]
    if synchronized:
        warnings.warn(
            f"init: {listing(synchronized)}: a SyncBatchNorm stays float. Keep nn.BatchNorm: a quantized one learns the "
            "statistics of all processes.",
            stacklevel=3,
        )
    logger.info("init: %d layers quantized", len(replacements))
    return root


def _has(target: str | None, kind: str, *said: bool | None) -> bool:
    """Whether a model has an extension of the numbers: as the first says that does, else as its target."""
    return next((each for each in said if each is not None), has_numbers(target, kind))


class _Arguments(NamedTuple):
    """Arguments of `init` that a configuration has, too; None where they were left out."""

    quant_modules: Sequence[type[nn.Module]] | None
    target: str | None
    switches: Switches | None
    parameter_bits: int | None
    bits: int | str | None = None
    per_channel: bool | None = None
    unsigned: bool | None = None


def _read(model: nn.Module, config_file: str | Path | None, arguments: _Arguments, *, is_excepting: bool) -> Config:
    """The settings of a file, else of this context, made ready in the model."""
    if config_file is not None:
        config, source = read_config(config_file), f"config_file: {config_file}"
        also = [name for name, value in arguments._asdict().items() if value is not None]
    else:
        content, source, also = newer_settings(), "QUANT_CONFIGS", []
        config = newer_config(content, source, platform=None) if content else Config()
    also += ["disable_module or disable_submodel"] if is_excepting and config.complete else []
    if also:
        raise UsageError(f"init: config_file says {listing(also)} already. Leave the arguments out, or edit the file.")
    if config == Config():
        return config
    config = prepared(model, config, source)
    if config.scales != SCALES[0]:
        warnings.warn(
            f"init: {source} asks for learned scales. Call linger.learn_scales(model, {config.scales!r}) after calibration; "
            "until then scales follow from running ranges.",
            stacklevel=4,
        )
    return config


@dataclass(frozen=True)
class _Order:
    """The arguments of `init`: layer types, widths, types and paths that stay float, and layers that are not replaced."""

    types: Types
    widths: Widths
    excluded: Types
    float_paths: Sequence[str]
    not_quantized: Sequence[str]

    def wants(self, path: str, module: nn.Module) -> bool:
        """Whether a module may be quantized at all."""
        return not conv_bn.counts_as(module, self.excluded) and not _is_inside(path, self.float_paths)


def _ordered(config: Config, arguments: _Arguments, types: Types, parts: Sequence[str]) -> _Order:
    quantized = named_types(config) if arguments.quant_modules is None else arguments.quant_modules
    return _Order(
        marking.checked_types(quantized),
        marking.checked_widths(8, arguments.parameter_bits or config.parameter_bits, 8),
        (*types, *(() if config.complete else kept_float())),
        [*config.stays_float, *parts],
        config.not_quantized,
    )


def _replacements(
    model: nn.Module, order: _Order, runtime: Runtime
) -> tuple[dict[nn.Module, nn.Module], dict[str, nn.Module]]:
    """The quantized layers by the modules that they replace, and the modules that stay float by their paths."""
    replacements: dict[nn.Module, nn.Module] = {}
    kept_float: dict[str, nn.Module] = {}
    inside_pairs = conv_bn.parts_of_pairs(model)
    for path, module in model.named_modules():
        if module in inside_pairs:
            kept_float[path] = module
            continue
        is_wanted = order.wants(path, module)
        is_possible = is_wanted and path not in order.not_quantized
        layer = _quantized(module, path, order, runtime) if is_possible else None
        keeping = NOT_KEPT if layer is not None else _keeping(module, path, order, runtime, is_wanted=is_wanted)
        if keeping is not None:
            runtime.asked[path] = keeping
        if layer is not None:
            replacements[module] = layer
            _carry_hooks(module, layer)
        elif not is_wanted or _stays_float(module, order.types):
            kept_float[path] = module
            _keep_reason(module, path, order, runtime)
    return replacements, kept_float


def _keeping(module: nn.Module, path: str, order: _Order, runtime: Runtime, *, is_wanted: bool) -> Keeping | None:
    """What was asked about the functions of a module that was not replaced; None: nothing."""
    if not is_wanted:
        return Keeping(_BY_ARGUMENTS, _is_inside(path, order.float_paths))
    choice = marking.choice_for(module)
    if choice.is_disabled:
        return Keeping(_BY_MARK, not choice.is_alone)
    if choice.widths is not None:
        return NOT_KEPT
    around = runtime.asked.get(path.rpartition(".")[0]) if path else None
    return around if around is not None and around.is_whole else None


def refuse_unquantizable(model: nn.Module) -> None:
    """Raise a `UsageError` where a model is quantized already, or torch.jit has removed its Python code."""
    if runtime_of(model) is not None:
        raise UsageError("init: this model is quantized already. Call init once, on the float model.")
    scripts = [path for path, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)]
    named = [path or type(model).__name__ for path in scripts]
    outer = [path for path in named if not any(path.startswith(f"{other}.") for other in named)]
    if outer:
        raise UsageError(
            f"init: {listing(outer)}: a module of torch.jit.trace or torch.jit.script computes by itself, without the layers "
            "that could be replaced. Pass the nn.Module that it was made from."
        )


def why_nothing(model: nn.Module) -> str | None:
    """Why `init` has replaced nothing in a model; None where it has, or where its functions may become integers."""
    runtime = required_runtime(model, "init")
    if runtime.make_edge is not None or any(_may_compute(m, path, runtime) for path, m in model.named_modules()):
        return None
    reasons = listing((f"{path or 'model'} ({reason})" for path, reason in runtime.reasons.items()), limit=5)
    kinds = dict.fromkeys(type(m).__name__ for m in model.modules() if not any(m.children()))
    return (
        f"init: no layer of {type(model).__name__} was replaced, so nothing will run as integers; it holds {listing(kinds)}. "
        f"{f'Refused: {reasons}. ' if reasons else ''}"
        "Look at quant_modules, disable_module, disable_submodel and linger.disable_quant, or at the types that linger "
        f"quantizes: {listing(kind.__name__ for kind in supported.supported_types())}."
    )


def _may_compute(module: nn.Module, path: str, runtime: Runtime) -> bool:
    """Whether a module may compute integers, by itself or in its forward."""
    code = getattr(type(module).forward, "__code__", None)
    calls_quant_tensor = code is not None and quant_tensor.__name__ in code.co_names
    return isinstance(module, QuantizedBase) or bool(_quantized_inputs(module, path, runtime)) or calls_quant_tensor


def quantized_layers(model: nn.Module) -> dict[str, QuantLayer]:
    """The quantized layers by their path."""
    return {path: m for path, m in model.named_modules() if isinstance(m, QuantLayer)}


def _is_inside(path: str, parents: Iterable[str]) -> bool:
    """Whether a path is one of the parents or inside one; a * at the end of a parent stands for any rest of a path."""
    starts = [(f"{p}.", p.removesuffix("*") if p.endswith("*") else f"{p}.") for p in parents]
    return any(f"{path}.".startswith(inside) or path.startswith(pattern) for inside, pattern in starts)


def _quantized(module: nn.Module, path: str, order: _Order, runtime: Runtime) -> QuantLayer | QuantRecurrent | None:
    """The quantized form of a module; None if it stays what it is."""
    form = _op_to_use(module, path, order.types)
    if form is None:
        return None
    (op, binding), layer = form, conv_bn.layer_of(module)
    folded = supported.fold_weight_norm(layer)
    geometry = _refusal(module) or binding(layer)
    if isinstance(geometry, Refusal):
        logger.warning("%s (%s) stays float: %s", path, type(layer).__name__, geometry.reason)
        runtime.reasons[path] = geometry.reason
        supported.load_folded(layer, folded)
        return None
    widths = marking.choice_for(module).widths or order.widths
    quantized: QuantLayer | QuantRecurrent
    if op.is_recurrent:
        quantized = (QuantCell if isinstance(layer, nn.RNNCellBase) else QuantRecurrent)(op, layer, widths, runtime)
        quantized.limited_to = limits_of(module)
    else:
        quantized = _layer_class(op, layer)(op, layer, geometry, widths, runtime)
        _carry_over(module, quantized, runtime)
    quantized.path = path
    supported.load_folded(quantized, folded)
    return quantized


def _op_to_use(module: nn.Module, path: str, types: Types) -> tuple[Op, Binding] | None:
    """The op that replaces a module and the binding of its settings; None if none is wanted or known."""
    layer, choice = conv_bn.layer_of(module), marking.choice_for(module)
    if choice.is_disabled:
        return None
    form = supported.op_for(layer)
    if form is None and limits_of(module).is_any:
        name = type(module).__name__
        logger.warning("%s (%s) stays float, within its limits: it has no integer form", path, name)
    is_named = choice.widths is not None and isinstance(layer, marking.types_by_name())
    return form if (is_named or conv_bn.counts_as(module, types)) and not _is_functional(module) else None


def _layer_class(op: Op, layer: nn.Module) -> type[QuantLayer]:
    """The class of a layer's quantized form: the general one, unless it is more than weights times input."""
    if isinstance(layer, nn.ConvTranspose1d):
        return TransposedSignalLayer
    if isinstance(layer, _BatchNorm):
        return BatchNormLayer
    return NormLayer if op.normalizes else QuantLayer


def _carry_over(module: nn.Module, layer: QuantLayer, runtime: Runtime) -> None:
    """Give a quantized layer what the stages before `init` made of its module: limits, a fused batch norm, a ReLU ahead."""
    if isinstance(layer, BatchNormLayer):
        conv_bn.freeze_statistics(layer, is_frozen=runtime.switches.freezes_batch_norm)
    together = FUSED.of(module)
    if together is not None:
        FUSED.put(layer, together)
    layer.is_ahead_of_relu = bool(getattr(module, AHEAD_RELU, False))
    layer.limited_to = limits_of_rows(limits_of(module)) if layer.is_lookup else limits_of(module)
    if isinstance(module, conv_bn.ConvBN):
        layer.take_batch_norm(module.bn)
        layer.training = module.training  # not train(): a frozen batch norm stays frozen


def _carry_hooks(source: nn.Module, layer: nn.Module) -> None:
    """Give the quantized layer the hooks of the module: they are called as before, and their handles still remove them."""
    for name in _HOOKS:
        setattr(layer, name, getattr(source, name))
    if source._backward_hooks or source._backward_pre_hooks:  # noqa: SLF001 - torch has no public name
        logger.warning("%s: backward hooks of a quantized layer are never called", layer.path)


def _keep_reason(module: nn.Module, path: str, order: _Order, runtime: Runtime) -> None:
    """Remember, for `coverage`, why a module stays float, unless it was refused for a reason of its own."""
    refusal = refusal_of(module) if isinstance(module, nn.MultiheadAttention) else None
    if not order.wants(path, module):
        reason = _BY_ARGUMENTS
    elif path in order.not_quantized:
        reason = "config_file says that it is not quantized"
    elif refusal is not None:
        logger.warning("%s (%s) stays float: %s", path, type(module).__name__, refusal.reason)
        reason = refusal.reason
    elif isinstance(module, marking.types_by_name()):
        reason = "it is quantized only where quant_modules or linger.quant_module names its type"
    else:
        reason = "quant_modules does not name its type"
    runtime.reasons.setdefault(path, reason)


def _refusal(module: nn.Module) -> Refusal | None:
    """Why a layer of a supported type stays float, whatever its settings are."""
    layer = conv_bn.layer_of(module)
    if supported.has_own_forward(layer):
        return Refusal("it overrides forward")
    is_computed = isinstance(getattr(layer, "weight", None), Tensor) and "weight" not in layer._parameters  # noqa: SLF001 - hasattr finds both
    if is_computed or is_parametrized(layer):
        return Refusal(
            "its weight is computed from others (a parametrization, spectral_norm, pruning); make it permanent first, "
            "e.g. with torch.nn.utils.parametrize.remove_parametrizations"
        )
    if isinstance(module, conv_bn.ConvBN) and conv_bn.as_batch_norm(module.bn).running_mean is None:
        return Refusal("its batch norm keeps no statistics that could be folded")
    return None


def _is_functional(module: nn.Module) -> bool:
    """Whether a module is a layer with a forward of its own, whose products become integers one by one."""
    form = supported.op_for(module)
    is_product = form is not None and "w" in form[0].inputs and form[0].state_name is not None
    return is_product and supported.has_own_forward(module) and not isinstance(module, Normalized)


def _stays_float(module: nn.Module, types: Types) -> bool:
    """Whether a module that was not replaced must not have its functions computed as integers either."""
    if marking.choice_for(module).is_disabled:
        return True
    if isinstance(module, nn.MultiheadAttention):
        return refusal_of(module) is not None
    if supported.op_for(conv_bn.layer_of(module)) is None:
        return False
    return not (_is_functional(module) and conv_bn.counts_as(module, types))


def _allow_products(model: nn.Module, runtime: Runtime, order: _Order, kept_float: dict[str, nn.Module]) -> None:
    """Let calls like F.linear become layers: of the kinds that are quantized, where nothing is to stay float."""
    names = {op.name for kind, (op, _) in supported.supported_types().items() if issubclass(kind, order.types)}
    runtime.products = ProductPolicy(frozenset(names), frozenset(kept_float), order.widths)
    own = set(model.modules()) - set(kept_float.values())
    runtime.make_edge = EdgeMode if supported.holds_matrices(own) else None


def _attach(root: nn.Module, runtime: Runtime) -> None:
    """Hooks that name the module at work, and that make functional layers when a checkpoint has them."""
    has_recurrent, has_float = (any(isinstance(m, k) for m in root.modules()) for k in (QuantRecurrent, nn.RNNBase))
    runtime.make_unpacking = Unpacked if has_recurrent and not has_float else None
    runtime.recomputation, runtime.make_function = Recomputation(), _make_function
    runtime.exchange = Exchange(_make_function)
    home = device_of(root)
    root.register_load_state_dict_pre_hook(refuse_other_methods)
    for path, module in root.named_modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # torch's way around padding, which also goes around every layer
        QUANTIZED.put(module, value=True)
        if isinstance(module, QuantizedBase) and module.is_layer:
            runtime.layers.append(module)
            module.to(next((p.device for p in module.parameters()), home))  # ranges live where the numbers are
        scope = attach_scope(runtime, path, module)
        if isinstance(module, conv_bn.EmptyBatchNorm):
            continue  # it computes nothing, so no op can ask where it is
        module.register_forward_pre_hook(scope.enter)
        if names := _quantized_inputs(module, path, runtime):
            module.register_forward_pre_hook(InputQuantizer(runtime, names), with_kwargs=True)
        module.register_forward_hook(scope.leave, always_call=True)
        module.register_load_state_dict_pre_hook(_refuse_other_numbers)
        module.register_load_state_dict_pre_hook(_make_functional_layers)


def _quantized_inputs(module: nn.Module, path: str, runtime: Runtime) -> tuple[str, ...]:
    """The arguments that are quantized on their way into a module that is no layer of linger's, if they are float."""
    if runtime.products is None or path in runtime.products.float_paths or isinstance(module, QuantLayer):
        return ()
    if isinstance(module, nn.MultiheadAttention):
        is_off = supported.why_off(nn.functional.multi_head_attention_forward, runtime.switches) is not None
        projection, _ = supported.supported_types()[nn.Linear]
        return ("query", "key", "value") if projection.name in runtime.products.ops and not is_off else ()
    return ("input",) if _is_functional(module) else ()


_NUMBERS = re.compile(r"(.*?)\.?(scale|unsigned)_(\w+)")
"""A key of a checkpoint that says how a tensor is quantized: the path of its layer, what is said, the range."""


def _refuse_other_numbers(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: object) -> None:
    """Refuse a checkpoint with scales of channels, or unsigned tensors, for a model without; and with one scale where it has many."""
    del rest
    runtime, layers = cast(Scope, scope_of(module)).runtime, layers_of(module)
    said = _numbers_in(state_dict, prefix, layers)
    ranges = [(path, each) for path, layer in layers.items() for each in layer.ranges.values()]
    has_rows = {prefix + f"{path}.{each.name}".lstrip(".") for path, each in ranges if each.rows is not None}
    finer = [] if runtime.is_per_channel else said["scale", True]
    whole = list(filter(has_rows.__contains__, said["scale", False]))
    unsigned = [] if runtime.is_unsigned else said["unsigned", True]
    how = {"per_channel": bool(said["scale", True]), "unsigned": bool(said["unsigned", True])}
    refuse_if(finer or whole or unsigned, other_numbers(finer, whole, unsigned, how))


def _numbers_in(
    state_dict: dict[str, Any], prefix: str, layers: Container[str]
) -> Mapping[tuple[str, bool], list[str]]:
    """The ranges in a checkpoint with many scales, or with one, and with another sign, or without."""
    said: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for key, value in state_dict.items():
        found = _NUMBERS.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
        if found is not None and (found[1] in layers or KEY_PREFIX in found[1]):
            path, what, name = found.groups()
            said[what, value.numel() > 1 if what == "scale" else bool(value)].append(
                prefix + f"{path}.{name}".lstrip(".")
            )
    return said


def _make_functional_layers(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: object) -> None:
    """Make the functional layers that a checkpoint has and the module does not have yet."""
    del rest
    pattern = re.compile(re.escape(prefix + KEY_PREFIX) + r"([^.]+)\.")
    names = dict.fromkeys(match.group(1) for key in state_dict if (match := pattern.match(key)))  # in their order
    for name in names:
        child = KEY_PREFIX + name
        if child not in module._modules:  # noqa: SLF001 - hasattr would also find attributes that are no modules
            _make_function(module, child)
        widths = widths_in(state_dict, f"{prefix}{child}.")
        if widths is not None:  # of products that the module calls
            QUANTIZATION.put(module, QuantChoice(widths=widths))
    outputs = [] if prefix else [value for key, value in state_dict.items() if key.endswith(".running_o")]
    if outputs:
        _forget_unknown_ranges(module, state_dict)
        runtime = runtime_of(module)
        if runtime is not None and any(value.any() for value in outputs):
            runtime.keeps_float_operands = not any(FLOAT_OPERAND in key for key in state_dict)


def _make_function(module: nn.Module, child: str) -> FunctionalLayer:
    """Make the functional layer of this name in a module."""
    layer = FunctionalLayer(child.removeprefix(KEY_PREFIX), device_of(module)).train(module.training)
    module.add_module(child, layer)
    return layer


def _forget_unknown_ranges(model: nn.Module, state_dict: dict[str, Any]) -> None:
    """Let functions keep the scale of their input where a checkpoint has ranges, and was made without theirs."""
    for path, layer in model.named_modules():
        if isinstance(layer, FunctionalLayer) and layer.keeps_unseen:
            for name in ("running_o", "scale_o"):
                state_dict.setdefault(f"{path}.{name}", torch.zeros_like(layer.get_buffer(name)))
