# SPDX-License-Identifier: Apache-2.0
"""quant_module and disable_quant: mark single modules for `init`; checks of the types and widths that both may be given."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from torch import nn

from linger.constraint import limits
from linger.constraint.conv_bn import counts_as, layer_of
from linger.constraint.limits import QUANTIZATION, QUANTIZED, Normalized, QuantChoice, Types, Widths
from linger.errors import UsageError, listing, no_module, refuse_unknown
from linger.notation import as_width
from linger.quantization.core.supported import supported_types
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent

THROUGH_FUNCTIONS = (
    nn.LeakyReLU,
    nn.PReLU,
    nn.GELU,
    nn.SiLU,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    *(
        getattr(nn, f"{kind}Pad{n}d")
        for kind in ("Zero", "Constant", "Reflection", "Replication", "Circular")
        for n in (1, 2)
    ),
    nn.ChannelShuffle,
    nn.Upsample,
    *(nn.ReLU, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Flatten, nn.Identity),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
)
"""Layers that need no replacement: the functions they call work on quantized tensors."""


_NEWER_LIMITS = ("c_activation_val", "c_weight_val", "c_bias_val", "c_weight_factor")


class QuantMode(Enum):
    """How scales are chosen: powers of two are the only kind; and how numbers are rounded to them, under its newer name."""

    QValue = 1
    floor_add = QValue


def choice_for(module: nn.Module) -> QuantChoice:
    """What the marks say about a module; the mark of a convolution holds for the pair that `trace_layers` made of it."""
    return QUANTIZATION.of(module) or QUANTIZATION.of(layer_of(module)) or QuantChoice()


def disable_quant(module: nn.Module) -> nn.Module:
    """Keep a module and everything inside it in float; call it before `init`.

    Functions in its forward get real values and return ordinary tensors; those that only move numbers leave them quantized.
    Returns the module, so that it can be used inline.

    Raises:
        UsageError: `init` came first: the layers are replaced already, and nothing would change.
    """
    if not isinstance(module, nn.Module):
        raise no_module("disable_quant", module)
    late = [name or type(module).__name__ for name, part in module.named_modules() if QUANTIZED.of(part)]
    if late:
        raise UsageError(
            f"disable_quant: {listing(late, limit=3)} is quantized already, and a mark comes too late. Call it before "
            "linger.init, or name the part there: linger.init(model, disable_submodel=[…])."
        )
    for part in module.modules():
        QUANTIZATION.put(part, QuantChoice(is_disabled=True))
    return module


_ARGUMENTS = (
    "type_modules",
    "mode",
    "data_bits",
    "parameter_bits",
    "weight_bits",
    "out_bits",
    "bias_bits",
    *_NEWER_LIMITS,
)


def quant_module(
    module: nn.Module,
    type_modules: Sequence[type[nn.Module]] | None = None,
    mode: QuantMode = QuantMode.QValue,
    data_bits: int | str = 8,
    parameter_bits: int | str = 8,
    out_bits: int | str | None = None,
    **newer: Any,
) -> nn.Module:
    """Choose the widths of a module and of what is inside it, for a later `init` (or at once, after it).

    Args:
        module: A layer or a whole part of the model.
        type_modules: Only layers of these types; None: every supported type but embeddings, which must be named.
        mode: `QuantMode.QValue`.
        data_bits: Width of the input.
        parameter_bits: Width of the weights (`weight_bits` is the newer name).
        out_bits: Width of the output; None: 8.
        newer: Arguments of the newer signature: `weight_bits`; `bias_bits` must be 32; limits (`c_weight_val`, …) never had an
            effect here, which a warning says: `linger.const_module` sets them.

    Returns:
        The module.
    """
    if not isinstance(module, nn.Module):
        raise no_module("quant_module", module)
    parameter_bits = newer.pop("weight_bits", parameter_bits)
    if newer.pop("bias_bits", 32) != 32:
        raise UsageError("quant_module: a bias always has 32 bits. Leave bias_bits out.")
    limits = [name for name in _NEWER_LIMITS if newer.pop(name, None) is not None]
    refuse_unknown("quant_module", newer, _ARGUMENTS)
    if mode is not QuantMode.QValue:
        raise UsageError(f"quant_module: unknown mode {mode!r}. Use QuantMode.QValue.")
    widths = checked_widths(data_bits, parameter_bits, 8 if out_bits is None else out_bits)
    types = checked_types(type_modules)
    if limits:
        warnings.warn(
            f"quant_module: {listing(limits)} has no effect. Call linger.const_module before linger.init.", stacklevel=2
        )
    for part in module.modules():
        if isinstance(part, (QuantLayer, QuantRecurrent)):
            part.widths = widths
        elif counts_as(part, types):
            QUANTIZATION.put(part, QuantChoice(widths=widths))
    return module


quant_module_by_type = quant_module
"""The other name of linger 1.x, where the two differed in how they ended at a wrong type."""


def checked_widths(data: int | str, parameter: int | str, output: int | str) -> Widths:
    """Widths that exist, as numbers or texts: 4, 8, 16 bits, and 32 for an output."""
    read: list[Any] = [as_width(bits) for bits in (data, parameter, output)]
    wrong = [
        f"{name}={bits!r}"
        for name, bits, allowed in (
            ("data_bits", read[0], (4, 8, 16)),
            ("parameter_bits", read[1], (4, 8, 16)),
            ("out_bits", read[2], (4, 8, 16, 32)),
        )
        if bits not in allowed
    ]
    if wrong:
        raise UsageError(f"{', '.join(wrong)}: no such width. Use 4, 8 or 16 bits (out_bits also 32).")
    return Widths(*read)


def types_by_name() -> Types:
    """Layers that are quantized only where a list of types names them: those that look up rows of their weights."""
    return tuple(kind for kind, (op, _) in supported_types().items() if op.inputs[0] == "w")


def checked_exceptions(
    where: str, disable_module: object, disable_submodel: object
) -> tuple[tuple[type[nn.Module], ...], tuple[str, ...]]:
    """The types and the dotted names that a user leaves out, one or several of each.

    Raises:
        UsageError: Something else was given; all of it is told.
    """
    types, names = _several(disable_module), _several(disable_submodel)
    problems = []
    if any(not (isinstance(t, type) and issubclass(t, nn.Module)) for t in types):
        problems.append(f"disable_module={disable_module!r} (types of layers are expected, as [nn.Linear])")
    if any(not isinstance(name, str) for name in names):
        problems.append(f"disable_submodel={disable_submodel!r} (dotted names of parts are expected, as ['block.0'])")
    if problems:
        raise UsageError(f"{where}: {' and '.join(problems)}. Nothing was changed.")
    return types, names


def _several(given: object) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, type)) else (given,)


def checked_types(types: Iterable[type[nn.Module]] | type[nn.Module] | None) -> Types:
    """The layer types to quantize; complains about all that linger has no op for.

    Normalize* types are all accepted, as the old lists name them; a layer without an op stays float.
    """
    supported = tuple(supported_types())
    if types is None:
        return tuple(kind for kind in supported if kind not in types_by_name())
    accepted = (*supported, *THROUGH_FUNCTIONS, Normalized)
    return limits.checked_types("quant_modules", types, accepted, supported, "has no integer form")
