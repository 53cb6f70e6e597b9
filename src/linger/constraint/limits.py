# SPDX-License-Identifier: Apache-2.0
"""Limits of a layer's weight, bias and output, and the base of every layer that keeps within them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from linger.analysis.values import STORED_LIMITS
from linger.errors import UsageError
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
    wrong = [f"{name}={value!r}" for name, value in values.items() if not (value is None or _is_limit(value))]
    if wrong:
        raise UsageError(
            f"{where}: {', '.join(wrong)} cannot be a limit. Give a positive finite number, or None for no limit."
        )
    weight, bias, output = (None if value is None else float(value) for value in values.values())
    return Limits(weight, bias, output)


def _is_limit(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < math.inf


def clamp(x: _OptionalTensor, limit: float | None) -> _OptionalTensor:
    """X limited to ±limit; the gradient is 1 inside and on the edge, 0 outside."""
    return x if x is None or limit is None else torch.clamp(x, -limit, limit)


def exceeds(*parts: tuple[Tensor, float | None]) -> bool:
    """Whether any element of a tensor is beyond the limit beside it. A device is asked once for all tensors."""
    found = [(x.detach().abs() > limit).any() for x, limit in parts if limit is not None]
    return bool(found) and bool(torch.stack(found).any())


class Normalized(nn.Module):
    """Base of the Normalize* layers: the arguments of the torch layer, and the limits by keyword.

    The limits have no key in the state_dict, so checkpoints fit with and without them; its metadata tell them to those who
    judge the weights. `ahead_relu` says that only
    ReLU sees the output; `ahead_sigmoid` is accepted as documented and never changed a number.
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
        made = cls.__new__(cls)
        made.__dict__.update(layer.__dict__)
        made.__dict__.pop("_compiled_call_impl", None)  # compiled without limits
        made.limit_to(chosen)
        return made

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
