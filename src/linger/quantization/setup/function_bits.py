# SPDX-License-Identifier: Apache-2.0
"""quant_function: choose the width of what functions return, as `quant_module` does for layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache

from torch import nn

from linger.constraint.limits import FUNCTION_BITS, QUANTIZATION
from linger.dialect import Op, ops
from linger.errors import UsageError, listing
from linger.notation import read_bits
from linger.quantization.functions.functional_layer import KEY_PREFIX, FunctionalLayer
from linger.quantization.functions.products import PRODUCTS
from linger.quantization.setup.marking import quant_module

_WIDTHS = (4, 8, 16)
_USUAL = 8
_SYMBOLS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "@": "matmul", "stack": "cat", "where": "iqWhere"}


def quant_function(
    module: nn.Module, functions: str | Iterable[str] | None = None, *, out_bits: int | None
) -> nn.Module:
    """Choose the width of what functions return that the forward of a module, or of its parts, calls.

    Before `init` or after it. A function whose width nobody chose returns the width of its widest operand. A layer that reads
    the result takes it if its own `data_bits` are as many, else it requantises.

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
