# SPDX-License-Identifier: Apache-2.0
"""quant_module, quant_function and disable_quant mark single modules for `init`; checks of the types and widths that they may be given."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any

from torch import nn

from linger.constraint import limits
from linger.constraint.conv_bn import counts_as, layer_of
from linger.constraint.limits import FUNCTION_BITS, QUANTIZATION, QUANTIZED, Normalized, QuantChoice, Types, Widths
from linger.dialect import Op, ops
from linger.errors import UsageError, listing, no_module, refuse_unknown
from linger.notation import as_width, read_bits
from linger.quantization.core.supported import supported_types
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.functions.products import PRODUCTS
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent

_PADS = ("Zero", "Constant", "Reflection", "Replication", "Circular")

THROUGH_FUNCTIONS = (
    *(nn.LeakyReLU, nn.PReLU, nn.GELU, nn.SiLU, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.ReLU),
    *(getattr(nn, f"{kind}Pad{axes}d") for kind in _PADS for axes in (1, 2)),
    *(nn.ChannelShuffle, nn.Upsample, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Flatten, nn.Identity),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    *(nn.MultiheadAttention, nn.TransformerEncoderLayer),
)
"""Layers that need no replacement: the functions they call work on quantized tensors."""

_WIDTHS = (4, 8, 16)
_USUAL = 8
_SYMBOLS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "@": "matmul", "stack": "cat", "where": "iqWhere"}

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
    names = ("data_bits", "parameter_bits", "out_bits")
    allowed = (_WIDTHS, _WIDTHS, (*_WIDTHS, 32))
    wrong = [f"{name}={bits!r}" for name, bits, known in zip(names, read, allowed, strict=True) if bits not in known]
    if wrong:
        raise UsageError(f"{', '.join(wrong)}: no such width. Use 4, 8 or 16 bits (out_bits also 32).")
    return Widths(*read)


def types_by_name() -> Types:
    """Layers that are quantized only where a list of types names them: those that look up rows of their weights."""
    return tuple(kind for kind, (op, _) in supported_types().items() if op.inputs[0] == "w")


def checked_exceptions(
    where: str, disable_module: object, disable_submodel: object
) -> tuple[tuple[type[nn.Module], ...], tuple[str, ...]]:
    """The types and the dotted names that a user leaves out, one or several of each; anything else is a `UsageError`."""
    types, names = _several(disable_module), _several(disable_submodel)
    problems = []
    if any(not (isinstance(t, type) and issubclass(t, nn.Module)) for t in types):
        problems.append(f"disable_module={disable_module!r} (types of layers are expected, as [nn.Linear])")
    if any(not isinstance(name, str) for name in names):
        problems.append(f"disable_submodel={disable_submodel!r} (dotted names of parts are expected, as ['block.0'])")
    if problems:
        raise UsageError(f"{where}: {' and '.join(problems)}. Nothing was changed.")
    return types, names


def _several(items: object) -> tuple[Any, ...]:
    if items is None:
        return ()
    return tuple(items) if isinstance(items, Iterable) and not isinstance(items, (str, type)) else (items,)


def checked_types(types: Iterable[type[nn.Module]] | type[nn.Module] | None) -> Types:
    """The layer types to quantize; complains about all that linger has no op for.

    Normalize* types are all accepted, as the old lists name them; a layer without an op stays float.
    """
    supported = tuple(supported_types())
    if types is None:
        return tuple(kind for kind in supported if kind not in types_by_name())
    accepted = (*supported, *THROUGH_FUNCTIONS, Normalized)
    return limits.checked_types("quant_modules", types, accepted, supported, "has no integer form")


# functions
def quant_function(
    module: nn.Module, functions: str | Iterable[str] | None = None, *, out_bits: int | None
) -> nn.Module:
    """Choose the width of what functions return that the forward of a module, or of its parts, calls.

    Before `init` or after it. A function whose width nobody chose returns the width of its widest operand. A layer that reads
    the result takes it if its own `data_bits` are as many, else it requantizes.

    Args:
        module: A module whose forward calls the functions, or a whole model.
        functions: Names of torch (`"add"`, `"torch.cat"`, `"+"`) or of ops (`"iqAdd"`); None: all that can have another width.
        out_bits: 4, 8 or 16; None takes an earlier choice back.

    Returns:
        The module.

    Raises:
        UsageError: There is no such function or width, or the width of a function is fixed; all of them are named.

    >>> import linger, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    >>> model = linger.quant_function(model, "gelu", out_bits=16)
    """
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"quant_function: needs a module, not a {type(module).__name__}. Give the model, or a part of it."
        )
    names = [functions] if isinstance(functions, str) else list(adjustable_ops() if functions is None else functions)
    problems = list(filter(None, map(_name_problem, names)))
    if out_bits not in (None, *_WIDTHS):
        problems = [f"out_bits={out_bits!r} is no width; use 4, 8 or 16, or None for that of the operands", *problems]
    if problems:
        raise UsageError(f"quant_function: {'; '.join(problems)}.")
    chosen = {op.name: op for name in names for op in _by_name()[_plain(name)]}
    for part in module.modules():
        _choose(part, chosen, out_bits)
    return module


def choose_widths(model: nn.Module, bits: object, where: str, types: Sequence[type[nn.Module]] | None = None) -> None:
    """Mark layers and functions with the widths that a user gave; what is marked already stays.

    Widths that do not exist, or are mixed, which takes measurements, are a `UsageError`.
    """
    widths = read_bits(bits, where)
    if widths.is_mixed:
        raise UsageError(
            f'{where}: bits="mixed" needs measurements. Use 8, 16 or "w4a8" here, and linger.tune(model, data, bits="mixed") for mixed '
            "widths."
        )
    if widths.weights == widths.data == _USUAL:
        return
    marks = [(part, QUANTIZATION.of(part), FUNCTION_BITS.of(part)) for part in model.modules()]
    quant_module(model, types, data_bits=widths.data, parameter_bits=widths.weights, out_bits=widths.data)
    if widths.data != _USUAL:
        quant_function(model, out_bits=widths.data)
    for part, choice, chosen in marks:
        if choice is not None:
            QUANTIZATION.put(part, choice)
        if chosen:
            FUNCTION_BITS.put(part, {**(FUNCTION_BITS.of(part) or {}), **chosen})


def _choose(module: nn.Module, chosen: dict[str, Op], bits: int | None) -> None:
    others = {name: width for name, width in (FUNCTION_BITS.of(module) or {}).items() if name not in chosen}
    FUNCTION_BITS.put(module, others if bits is None else others | dict.fromkeys(chosen, bits))
    prefixes = tuple(f"{KEY_PREFIX}{op.state_name}_" for op in chosen.values())
    for name, child in module.named_children():
        if isinstance(child, FunctionalLayer) and name.startswith(prefixes):
            child.out_bits = bits


def _name_problem(name: object) -> str:
    """What keeps a name from being a function whose width can be chosen; empty: nothing."""
    if not isinstance(name, str):
        return f"{name!r} is no name of a function"
    if _plain(name) in _by_name():
        return ""
    if _plain(name) in map(attrgetter("__name__"), PRODUCTS):
        return f"{name!r} is a product with weights, whose widths are those of a layer; use linger.quant_module"
    if any(_plain(name) in _names(op) for op in ops().values()):
        return f"{name!r} returns the width of its input, or has one format only"
    near = get_close_matches(_plain(name), _by_name(), n=1)
    # one name for each function: that of torch, not of the operators that spell it
    shown = {known for known in _by_name() if known.islower() and not known.startswith(("iq", "i", "r"))}
    hint = f"is {near[0]!r} meant?" if near else f"known: {listing(sorted(shown), limit=99)}"
    return f"there is no function {name!r} ({hint})"


def _plain(name: str) -> str:
    """The last part of a dotted name, without the underscores of methods; a symbol as its function."""
    return _SYMBOLS.get(name, name.rpartition(".")[2].strip("_"))


def _names(op: Op) -> set[str]:
    return {op.name, *(_plain(path) for path in (*op.functions, *op.layers))}


@cache
def adjustable_ops() -> dict[str, Op]:
    """Ops that have a range of their own for their output, and state its width."""
    return {
        name: op
        for name, op in ops().items()
        if op.state_name is not None and op.limit is not None and op.has_attribute("o_bits") and op.weight_axes is None
    }


@cache
def _by_name() -> dict[str, tuple[Op, ...]]:
    by_name: dict[str, tuple[Op, ...]] = {}
    for op in adjustable_ops().values():
        for name in _names(op):
            by_name[name] = (*by_name.get(name, ()), op)
    return by_name
