# SPDX-License-Identifier: Apache-2.0
"""Marks: what a user says about single modules, kept on the modules themselves until a later stage reads it.

A mark is an attribute of its module, outside the state_dict: copies and pickles of a model keep it, checkpoints do not
hold it. `normalize_layers` reads `LIMITS`, `init` reads `QUANTIZATION` and sets `QUANTIZED`, `save_config` reads `FUSED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import nn

from linger.constraint.limits import Limits
from linger.errors import UsageError, no_module

_Said = TypeVar("_Said")
Types = tuple[type[nn.Module], ...]


class Mark(Generic[_Said]):
    """A kind of mark, by the name of the attribute that holds it."""

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    def of(self, module: nn.Module) -> _Said | None:
        """The value of the module's mark; None if it has none."""
        said: _Said | None = module.__dict__.get(self._attribute)
        return said

    def put(self, module: nn.Module, said: _Said) -> None:
        """Mark a module; a later mark replaces an earlier one."""
        module.__dict__[self._attribute] = said


@dataclass(frozen=True)
class Widths:
    """Bits of a layer's input, parameters and output."""

    data: int = 8
    parameter: int = 8
    output: int = 8

    def __str__(self) -> str:
        return f"{self.data}/{self.parameter}/{self.output}"


@dataclass(frozen=True)
class QuantChoice:
    """How a module is to be quantised: not at all, or with these widths.

    `is_alone`: what a module that is not quantised calls may be.
    """

    is_disabled: bool = False
    widths: Widths | None = None
    is_alone: bool = False


class Fusion:
    """Marks a convolution and the place of the batch norm that became part of it: both have the same object."""


FUSED: Mark[Fusion] = Mark("_linger_fused")
"""Set by `trace_layers`; `init` carries it on."""

LIMITS: Mark[Limits] = Mark("_linger_normalize_wish")
"""Set by `normalize_module` and `disable_normalize` (no limits at all)."""

QUANTIZATION: Mark[QuantChoice] = Mark("_linger_quant_mark")
"""Set by `quant_module` and `disable_quant`."""

FUNCTION_BITS: Mark[Mapping[str, int]] = Mark("_linger_function_mark")
"""Set by `quant_function`: widths of the outputs of functions that a module calls, by the names of their ops."""

QUANTIZED: Mark[bool] = Mark("_linger_is_quantized")
"""Set by `init` on every module of a quantised model."""


def refuse_quantized(model: nn.Module, function: str) -> None:
    """Complain about a model that is quantised, as a whole or in parts.

    Raises:
        UsageError: `init` came first, or it is no model.
    """
    if not isinstance(model, nn.Module):
        raise no_module(function, model)
    if any(QUANTIZED.of(module) for module in model.modules()):
        raise UsageError(
            f"{function}: {type(model).__name__} is quantised already, and this step works on the float model. "
            "Call trace_layers, then normalize_layers, then init."
        )


def checked_types(
    where: str, types: Iterable[type[nn.Module]] | type[nn.Module], accepted: Types, known: Types, problem: str
) -> Types:
    """The layer types that a user names, one or several: those accepted, or subclasses.

    Raises:
        UsageError: Other types, with the `problem` of each and the `known` ones.
    """
    wanted = tuple(types) if isinstance(types, Iterable) else (types,)
    wrong = [t for t in wanted if not (isinstance(t, type) and issubclass(t, accepted))]
    if wrong:
        names = ", ".join(getattr(t, "__name__", repr(t)) for t in wrong)
        raise UsageError(f"{where}: {names} {problem}. Supported types: {', '.join(t.__name__ for t in known)}.")
    return wanted
