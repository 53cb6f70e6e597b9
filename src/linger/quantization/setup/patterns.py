# SPDX-License-Identifier: Apache-2.0
"""Patterns of paths in a settings file: which layers and functions of a model each one means.

quant_function: choose the width of what functions return, as `quant_module` does for layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, TypeVar

from torch import nn

from linger.constraint.conv_bn import layer_of, parts_of_pairs
from linger.constraint.limits import FUNCTION_BITS, QUANTIZATION, Normalized
from linger.constraint.normalize import NORMALIZED
from linger.dialect import Op, ops
from linger.errors import UsageError, listing, printable
from linger.notation import read_bits
from linger.quantization.core.supported import has_own_forward, op_for
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.functions.products import PRODUCTS
from linger.quantization.setup.config_file import Config, FunctionConfig, PartName
from linger.quantization.setup.marking import choice_for, quant_module, types_by_name

_WIDTHS = (4, 8, 16)
_USUAL = 8
_SYMBOLS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "@": "matmul", "stack": "cat", "where": "iqWhere"}


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
    chosen = _chosen_ops(functions, out_bits)
    for part in module.modules():
        _choose(part, chosen, out_bits)
    return module


def choose_widths(model: nn.Module, bits: object, where: str, types: Sequence[type[nn.Module]] | None = None) -> None:
    """Mark layers and functions with the widths that a user gave; what is marked already stays.

    Raises:
        UsageError: There are no such widths, or they are mixed, which takes measurements.
    """
    widths = read_bits(bits, where)
    if widths.is_mixed:
        raise UsageError(
            f'{where}: bits="mixed" needs measurements. Use 8, 16 or "w4a8" here, and linger.tune(model, data, bits="mixed") for mixed '
            "widths."
        )
    if widths.weights == widths.data == _USUAL:
        return
    layers = [(part, choice) for part in model.modules() if (choice := QUANTIZATION.of(part)) is not None]
    functions = [(part, own) for part in model.modules() if (own := FUNCTION_BITS.of(part))]
    quant_module(model, types, data_bits=widths.data, parameter_bits=widths.weights, out_bits=widths.data)
    if widths.data != _USUAL:
        quant_function(model, out_bits=widths.data)
    for part, choice in layers:
        QUANTIZATION.put(part, choice)
    for part, chosen in functions:
        FUNCTION_BITS.put(part, {**(FUNCTION_BITS.of(part) or {}), **chosen})


def _chosen_ops(functions: str | Iterable[str] | None, bits: int | None) -> dict[str, Op]:
    """The ops of these functions; raises an error that names every wrong name and width."""
    names = [functions] if isinstance(functions, str) else list(adjustable_ops() if functions is None else functions)
    problems = [*_width_problems(bits), *(problem for name in names for problem in _name_problems(name))]
    if problems:
        raise UsageError(f"quant_function: {'; '.join(problems)}.")
    return {op.name: op for name in names for op in _by_name()[_plain(name)]}


def _choose(module: nn.Module, chosen: dict[str, Op], bits: int | None) -> None:
    kept = {name: width for name, width in (FUNCTION_BITS.of(module) or {}).items() if name not in chosen}
    FUNCTION_BITS.put(module, kept if bits is None else kept | dict.fromkeys(chosen, bits))
    prefixes = tuple(f"{KEY_PREFIX}{op.state_name}_" for op in chosen.values())
    for name, child in module.named_children():
        if isinstance(child, FunctionalLayer) and name.startswith(prefixes):
            child.out_bits = bits


def _width_problems(bits: object) -> Iterator[str]:
    if bits is not None and (isinstance(bits, bool) or bits not in _WIDTHS):
        yield f"out_bits={bits!r} is no width; use 4, 8 or 16, or None for that of the operands"


def _name_problems(name: object) -> Iterator[str]:
    """What keeps a name from being a function whose width can be chosen."""
    if not isinstance(name, str):
        yield f"{name!r} is no name of a function"
        return
    if _plain(name) in _by_name():
        return
    if _plain(name) in {function.__name__ for function in PRODUCTS}:
        yield f"{name!r} is a product with weights, whose widths are those of a layer; use linger.quant_module"
    elif any(_plain(name) in _names(op) for op in ops().values()):
        yield f"{name!r} returns the width of its input, or has one format only"
    else:
        near = get_close_matches(_plain(name), _by_name(), n=1)
        hint = f"is {near[0]!r} meant?" if near else f"known: {listing(sorted(_shown()), limit=99)}"
        yield f"there is no function {name!r} ({hint})"


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
    found: dict[str, tuple[Op, ...]] = {}
    for op in adjustable_ops().values():
        for name in _names(op):
            found[name] = (*found.get(name, ()), op)
    return found


def _shown() -> set[str]:
    """One name for each function: that of torch, not of the operators that spell it."""
    return {name for name in _by_name() if name.islower() and not name.startswith(("iq", "i", "r"))}


_T = TypeVar("_T")
_SIGNS = "*?["
_INSIDE = ".*"


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
