# SPDX-License-Identifier: Apache-2.0
"""Float ops that no quantised tensor takes part in: seen by a TorchFunctionMode while a model is calibrated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from linger.dialect import Refusal
from linger.quantization.core import packing
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.statistics import QuantizedBase
from linger.quantization.core.supported import NO_INTEGER_FORM
from linger.quantization.core.switched import why_off
from linger.quantization.functions import passthrough
from linger.quantization.functions.constants import note_derived
from linger.quantization.functions.dispatch import COMPOSITIONS, bindings
from linger.quantization.functions.masks import masks_scores
from linger.quantization.functions.multiplications import multiplications
from linger.quantization.functions.products import MATRIX_PRODUCTS, PRODUCTS, as_linear
from linger.quantization.functions.resizing import ADAPTIVE
from linger.quantization.functions.rewrites import REWRITES

if TYPE_CHECKING:
    from linger.quantization.core.runtime import Runtime


_MASK_MAKERS = frozenset(
    getattr(place, name)
    for name in (
        "zeros_like",
        "full_like",
        "new_zeros",
        "new_full",
        "masked_fill",
        "masked_fill_",
        "where",
        "triu",
        "tril",
    )
    for place in (torch, Tensor)
    if hasattr(place, name)
)


_COMPUTES_NOTHING = passthrough.MOVES | {*packing.FUNCTIONS, F.pad}
"""What moves real numbers, or puts others beside them."""

_QUANTIZES_INPUTS = frozenset({F.linear, F.multi_head_attention_forward})


_BY_OTHERS = (REWRITES, COMPOSITIONS, ADAPTIVE)
"""Functions that become integer ops as other functions."""


class FloatWatch(TorchFunctionMode):
    """Notes every computation on ordinary float tensors inside a quantised model."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function; note it if it computed floats from floats."""
        result = func(*args, **(kwargs or {}))
        frame = self._runtime.frame
        if frame is None or isinstance(frame.module, QuantizedBase):
            return result
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_plain = bool(leaves) and not any(isinstance(leaf, QTensor) for leaf in leaves)
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        name = getattr(func, "__name__", str(func))
        is_float = any(r.is_floating_point() for r in results) and not any(isinstance(r, QTensor) for r in results)
        if not is_plain or name.startswith("__get") or not is_float or note_derived(leaves, results, self._runtime):
            return result
        if func not in _COMPUTES_NOTHING and not _makes_mask(func, results):
            macs = multiplications(name, args, kwargs or {}, result)
            self._runtime.note_float(name, self._reason(func, args, kwargs or {}), macs)
        return result

    def _reason(self, func: Any, args: Any, kwargs: Any) -> str:
        """Why the function stayed float: the inputs of a product with a parameter would have been quantised."""
        off = why_off(func, self._runtime.switches) if func in _QUANTIZES_INPUTS else None
        if func in MATRIX_PRODUCTS:
            found = as_linear(func, args, kwargs, self._runtime)
            off = found.reason if isinstance(found, Refusal) else None
        has_form = any(func in table for table in (bindings(), PRODUCTS, MATRIX_PRODUCTS, *_BY_OTHERS))
        return off or ("its inputs are float tensors" if has_form else NO_INTEGER_FORM)


def _makes_mask(func: Any, results: list[Tensor]) -> bool:
    """Whether a function only writes a mask: zeros, and what is added to scores that do not count."""
    return func in _MASK_MAKERS and all(masks_scores(r, is_surely=True) for r in results)
