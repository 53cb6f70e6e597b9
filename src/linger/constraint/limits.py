# SPDX-License-Identifier: Apache-2.0
"""Limits of a layer's weight, bias and output, and the base of every layer that keeps within them.

Marks: what a user says about single modules, kept on the modules themselves until a later stage reads it.

A mark is an attribute of its module, outside the state_dict: copies and pickles of a model keep it, checkpoints do not
hold it. `normalize_layers` reads `LIMITS`, `init` reads `QUANTIZATION` and sets `QUANTIZED`, `save_config` reads `FUSED`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from linger.analysis.checkpoint import STORED_LIMITS
from linger.errors import UsageError, no_module
from linger.records.reading import Positive

AHEAD_RELU = "_linger_ahead_relu"
"""Attribute of a layer whose output only ReLU sees: its scale need not cover the negative part."""

_Layer = TypeVar("_Layer", bound="Normalized")
_OptionalTensor = TypeVar("_OptionalTensor", Tensor, "Tensor | None")


@dataclass(frozen=True)
class Limits:
    """Largest magnitudes of a layer's weight, bias and output; None: no limit."""

    weight: Positive | None = None
    bias: Positive | None = None
    output: Positive | None = None

    @property
    def is_any(self) -> bool:
        """Whether anything is limited."""
        return any(limit is not None for limit in (self.weight, self.bias, self.output))


def checked_limits(where: str, **values: float | None) -> Limits:
    """Limits from the arguments for weight, bias and output, in this order, whatever their names are.

    Raises:
        UsageError: A value is neither None nor a positive finite number; every wrong one is named.
    """

    def is_limit(value: object) -> bool:
        return not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < math.inf

    wrong = [f"{name}={value!r}" for name, value in values.items() if not (value is None or is_limit(value))]
    if wrong:
        raise UsageError(
            f"{where}: {', '.join(wrong)} cannot be a limit. Give a positive finite number, or None for no limit."
        )
    return Limits(*(None if value is None else float(value) for value in values.values()))


def clamp(x: _OptionalTensor, limit: float | None) -> _OptionalTensor:
    """X limited to ±limit; the gradient is 1 inside and on the edge, 0 outside."""
    return x if x is None or limit is None else torch.clamp(x, -limit, limit)


def exceeds(*parts: tuple[Tensor, float | None]) -> bool:
    """Whether any element of a tensor is beyond the limit beside it. A device is asked once for all tensors."""
    beyond = [(x.detach().abs() > limit).any() for x, limit in parts if limit is not None]
    return bool(beyond) and bool(torch.stack(beyond).any())


class Normalized(nn.Module):
    """Base of the Normalize* layers: the arguments of the torch layer, and the limits by keyword.

    The limits have no key in the state_dict, so checkpoints fit with and without them; its metadata tell them to those who
    judge the weights. `ahead_relu` says that only ReLU sees the output; `ahead_sigmoid` is accepted as documented and never
    changed a number.
    """

    # of the class, because torch's constructors and the files of older objects know nothing of them
    normalize_weight: float | None = None
    normalize_bias: float | None = None
    normalize_data: float | None = None

    def __init__(
        self,
        *arguments: object,
        normalize_data: float | None = None,
        normalize_weight: float | None = None,
        normalize_bias: float | None = None,
        ahead_relu: bool = False,
        ahead_sigmoid: bool = False,  # noqa: ARG002 - the documented signature
        **options: object,
    ) -> None:
        chosen = checked_limits(
            type(self).__name__,
            normalize_weight=normalize_weight,
            normalize_bias=normalize_bias,
            normalize_data=normalize_data,
        )
        super().__init__(*arguments, **options)
        self.limit_to(chosen)
        setattr(self, AHEAD_RELU, ahead_relu)

    @classmethod
    def from_layer(cls: type[_Layer], layer: nn.Module, chosen: Limits) -> _Layer:
        """A layer of this class with the state of a torch layer.

        The tables of parameters, buffers and hooks are the very same objects: an optimizer, a hook's handle and
        whoever else still holds the torch layer go on working.
        """
        limited = cls.__new__(cls)
        limited.__dict__.update(layer.__dict__)
        limited.__dict__.pop("_compiled_call_impl", None)  # compiled without limits
        limited.limit_to(chosen)
        return limited

    def limit_to(self, chosen: Limits) -> None:
        """Replace the limits."""
        self.normalize_weight, self.normalize_bias, self.normalize_data = chosen.weight, chosen.bias, chosen.output

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001 - torch's hook
        super()._save_to_state_dict(destination, prefix, keep_vars)
        told = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if told is not None and (self.normalize_weight is not None or self.normalize_bias is not None):
            told[STORED_LIMITS] = {"weight": self.normalize_weight, "bias": self.normalize_bias}

    def extra_repr(self) -> str:
        """Torch's own, and the limits that are set."""
        values = {name: getattr(self, name) for name in ("normalize_weight", "normalize_bias", "normalize_data")}
        parts = [super().extra_repr(), *(f"{name}={value:g}" for name, value in values.items() if value is not None)]
        return ", ".join(part for part in parts if part)


def limits_of(module: nn.Module) -> Limits:
    """The limits of a module; none for any that is not a Normalize* layer."""
    if not isinstance(module, Normalized):
        return Limits()
    return Limits(module.normalize_weight, module.normalize_bias, module.normalize_data)


_Value = TypeVar("_Value")
Types = tuple[type[nn.Module], ...]


class Mark(Generic[_Value]):
    """A kind of mark, by the name of the attribute that holds it."""

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    def of(self, module: nn.Module) -> _Value | None:
        """The value of the module's mark; None if it has none."""
        return cast("_Value | None", module.__dict__.get(self._attribute))

    def put(self, module: nn.Module, value: _Value) -> None:
        """Mark a module; a later mark replaces an earlier one."""
        module.__dict__[self._attribute] = value


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
    """How a module is to be quantized: not at all, or with these widths.

    `is_alone`: what a module that is not quantized calls may be.
    """

    is_disabled: bool = False
    widths: Widths | None = None
    is_alone: bool = False


class Fusion:
    """Marks a convolution and the place of the batch norm that became part of it: both have the same object.

    A class with a name: models that were saved as a whole (`torch.save(model, …)`) refer to it.
    """


FUSED: Mark[Fusion] = Mark("_linger_fused")
"""Set by `trace_layers` on a convolution and on what stands for its batch norm, the same object on both; `init` carries it on."""

LIMITS: Mark[Limits] = Mark("_linger_normalize_wish")
"""Set by `normalize_module` and `disable_normalize` (no limits at all)."""

QUANTIZATION: Mark[QuantChoice] = Mark("_linger_quant_mark")
"""Set by `quant_module` and `disable_quant`."""

FUNCTION_BITS: Mark[Mapping[str, int]] = Mark("_linger_function_mark")
"""Set by `quant_function`: widths of the outputs of functions that a module calls, by the names of their ops."""

QUANTIZED: Mark[bool] = Mark("_linger_is_quantized")
"""Set by `init` on every module of a quantized model."""


def refuse_quantized(model: nn.Module, function: str) -> None:
    """Complain about a model that is quantized, as a whole or in parts.

    Raises:
        UsageError: `init` came first, or it is no model.
    """
    if not isinstance(model, nn.Module):
        raise no_module(function, model)
    if any(QUANTIZED.of(module) for module in model.modules()):
        raise UsageError(
            f"{function}: {type(model).__name__} is quantized already, and this step works on the float model. "
            "Call trace_layers, then normalize_layers, then init."
        )


def checked_types(
    where: str, types: Iterable[type[nn.Module]] | type[nn.Module], accepted: Types, known: Types, problem: str
) -> Types:
    """The layer types that a user names, one or several: those accepted, or subclasses.

    Raises:
        UsageError: Other types, with the `problem` of each and the `known` ones.
    """
    named = tuple(types) if isinstance(types, Iterable) else (types,)
    wrong = [t for t in named if not (isinstance(t, type) and issubclass(t, accepted))]
    if wrong:
        names = ", ".join(getattr(t, "__name__", repr(t)) for t in wrong)
        raise UsageError(f"{where}: {names} {problem}. Supported types: {', '.join(t.__name__ for t in known)}.")
    return named


def limits_of_rows(limits: Limits) -> Limits:
    """The limits of an embedding's table: its rows are its output, so the smaller of both limits holds for them."""
    both = [limit for limit in (limits.weight, limits.output) if limit is not None]
    return Limits(weight=min(both, default=None))
