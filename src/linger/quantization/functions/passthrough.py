# SPDX-License-Identifier: Apache-2.0
"""Functions that move numbers without changing them: scale and width pass through."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.numeric.torch.quantize import fake_quantize
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import TorchFunction

_NAMES = (
    "reshape reshape_as view view_as flatten unflatten ravel transpose permute movedim moveaxis swapaxes swapdims t squeeze "
    "unsqueeze narrow select split split_with_sizes tensor_split chunk unbind contiguous clone detach expand expand_as repeat "
    "tile flip roll index_select broadcast_to adjoint"
)
_IN_PLACE_VIEWS = "squeeze_ unsqueeze_ transpose_ t_ resize_ resize_as_ swapaxes_ swapdims_ as_strided_"


def _collect(names: str) -> frozenset[TorchFunction]:
    """Functions and methods of these names, as far as torch has them."""
    found = [getattr(place, name) for name in names.split() for place in (torch, Tensor) if hasattr(place, name)]
    return frozenset(found)


# torch.export calls the op itself where an index is a size that it does not know
MOVES = _collect(_NAMES) | frozenset[TorchFunction]((Tensor.__getitem__, torch.ops.aten.slice, torch.ops.aten.select))
IN_PLACE_VIEWS = _collect(_IN_PLACE_VIEWS)
TRANSPOSES: frozenset[TorchFunction] = frozenset(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH"))
DROPOUTS = _collect("dropout feature_dropout alpha_dropout") | frozenset[TorchFunction](
    (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
)
_SHIFTING_DROPOUTS = _collect("alpha_dropout feature_alpha_dropout") | frozenset[TorchFunction](
    (F.alpha_dropout, F.feature_alpha_dropout)
)
CONVERSIONS: frozenset[TorchFunction] = frozenset(
    {Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.float, Tensor.type_as, Tensor.pin_memory}
)
ALL = MOVES | DROPOUTS | CONVERSIONS


def move(func: TorchFunction, x: QTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Apply a moving function to the content."""
    result = func(x.moved_content, *args, **kwargs)
    if isinstance(result, Tensor):
        return x.like(result)
    return type(result)(x.like(part) for part in result)


def convert(func: TorchFunction, x: QTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """.to(device) and .float() leave the numbers as they are; another type asks for real values."""
    if not x.is_integer:
        result = func(x.moved_content, *args, **kwargs)
        if result.dtype == x.moved_content.dtype:
            return x.like(result)
    result = func(x.dequantize(), *args, **kwargs)
    return x if x.is_integer and result.dtype == torch.float32 else result


def drop(func: TorchFunction, x: QTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> QTensor:
    """Dropout: nothing in evaluation; in training the survivors, scaled up, are rounded to the same grid."""
    kwargs = {k: v for k, v in kwargs.items() if k != "inplace"}
    if x.is_integer:
        return x
    assert x.scale is not None  # dispatch handles overwritten tensors
    before = x.content if func in _SHIFTING_DROPOUTS else x.moved_content
    dropped = func(before, *args, **kwargs)
    if dropped is before:
        return x
    if x.runtime.now.is_real:
        return x.like(dropped)
    result = QTensor(fake_quantize(dropped, x.scale, x.bits), x.scale, x.bits, x.runtime)  # alpha dropout goes negative
    result.origins = x.origins  # the survivors are larger than before, so limits behind a dropout hold before it too
    return result
