# SPDX-License-Identifier: Apache-2.0
"""Attention as integer ops: BmmInt → iqMul → iqWhere (masks) → SoftmaxInt → BmmInt, between LinearInt projections.

torch's fused kernels never see a quantized tensor; nn.MultiheadAttention keeps its own parameters and keys, and each of
its three input projections has a weight scale and an output scale of its own.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.dialect import Refusal
from linger.quantization.core.qtensor import QTensor, is_quantized, runtime_among
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Runtime, TorchFunction
from linger.quantization.core.supported import supported_types
from linger.quantization.functions.constants import Kind, kind_of
from linger.quantization.functions.masks import MASKED, fact, fill, masks_scores
from linger.quantization.functions.resizing import Size
from linger.quantization.functions.rewrites import Handler

Call = Callable[..., Any]
"""Runs a torch function inside: on quantized tensors as in the model's own forward."""

_FLOAT_OPERAND = "query, key or value is a float tensor; quantize it with linger.quant_tensor"
_FLOAT_SCORES = Refusal("its scores are no integers")


Attended = tuple[Tensor, Tensor | None] | Refusal
"""What nn.MultiheadAttention returns: the attended values, and the probabilities where they are wanted."""


class _Masking(NamedTuple):
    """Which scores do not count, and what is added to those that do.

    `is_causal`: it masks later positions, so that every row keeps at least one score.
    """

    blocked: Tensor | None = None
    summand: Tensor | None = None
    is_causal: bool = False


def attend(
    q: Tensor, k: Tensor, v: Tensor, masking: _Masking, scale: float, dropout_p: float, call: Call
) -> tuple[QTensor, QTensor] | Refusal:
    """The attended values and the probabilities, over the last two axes.

    Masked probabilities are exactly 0, also where a whole row is masked, as torch's attention gives them.
    """
    scores = call(torch.matmul, q, call(torch.transpose, k, -2, -1))
    if scale != 1.0:
        scores = call(torch.mul, scores, scale)
    if masking.summand is not None:
        scores = call(torch.add, scores, masking.summand)
    if not isinstance(scores, QTensor):
        return _FLOAT_SCORES
    if masking.blocked is not None:
        scores = cast(QTensor, fill(scores, masking.blocked, -math.inf))  # −∞ always has a form, and so has 0
    weights = call(torch.softmax, scores, -1)
    if masking.blocked is not None and not masking.is_causal:
        weights = cast(QTensor, fill(weights, masking.blocked, 0.0))
    if dropout_p > 0.0:
        weights = call(F.dropout, weights, dropout_p)
    return call(torch.matmul, weights, v), weights


def causal(length: Size, source: Size, device: torch.device) -> Tensor:
    """The mask of later positions, by comparing numbers: old opsets have no triangular matrices."""
    return torch.arange(source, device=device)[None, :] > torch.arange(length, device=device)[:, None]


def read_mask(mask: Tensor | None, runtime: Runtime, *, is_taking: bool) -> _Masking | Refusal:
    """A mask of booleans (True takes part, or is blocked) or of numbers to add."""
    if mask is None:
        return _Masking()
    if is_quantized(mask):
        return _Masking(summand=mask)
    if mask.dtype == torch.bool:
        return _Masking(~mask if is_taking else mask)
    if not mask.is_floating_point():
        return Refusal(f"a mask of type {mask.dtype} has no meaning here; use booleans")
    kind = kind_of(mask, runtime)
    learns = mask.requires_grad or kind is Kind.LEARNED
    if not learns and fact(runtime, lambda: masks_scores(mask, is_surely=kind is not Kind.FROZEN)):
        return _Masking(mask <= MASKED)
    return _Masking(summand=mask)


def _attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> object:
    runtime = runtime_among((query, key, value))
    if runtime.frame is None:
        return Refusal("outside the model")
    if enable_gqa:
        return Refusal("enable_gqa=True has no integer form; repeat the heads of key and value")
    masking = read_mask(attn_mask, runtime, is_taking=True)
    if isinstance(masking, Refusal):
        return masking
    if is_causal:
        masking = _Masking(causal(query.shape[-2], key.shape[-2], query.device), is_causal=True)
    factor = 1.0 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    attended = attend(query, key, value, masking, factor, dropout_p, call)
    return attended if isinstance(attended, Refusal) else attended[0]


# nn.MultiheadAttention
def refusal_of(module: nn.MultiheadAttention) -> Refusal | None:
    """Why an attention layer stays float, if it does."""
    if module.bias_k is not None or module.add_zero_attn:
        return Refusal("add_bias_kv and add_zero_attn have no integer form; leave them out")
    return None


def _multi_head(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> object:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    refusal = _refused_arguments(given)
    if refusal is not None or given["query"].content.dim() != 2:
        return refusal or _batched(given, call)
    # [length, width]: a batch of one
    names = ("query", "key", "value")
    single = {id(given[name]): call(torch.unsqueeze, given[name], 1) for name in names}
    padding = given["key_padding_mask"]
    batched = {name: single[id(given[name])] for name in names}
    batched["key_padding_mask"] = None if padding is None else padding.unsqueeze(0)
    attended = _batched(given | batched, call)
    if isinstance(attended, Refusal):
        return attended
    output, weights = attended
    return call(torch.squeeze, output, 1), None if weights is None else call(torch.squeeze, weights, 0)


def _refused_arguments(given: dict[str, Any]) -> Refusal | None:
    query = given["query"]
    if not all(is_quantized(given[name]) for name in ("query", "key", "value")):
        return Refusal(_FLOAT_OPERAND)
    frame, policy = query.runtime.frame, query.runtime.products
    projection = supported_types()[nn.Linear][0]
    if frame is None or policy is None or not policy.allows(projection.name, frame):
        return Refusal("this layer stays float, as init was asked")
    if given["add_zero_attn"] or any(given[name] is not None for name in ("bias_k", "static_k", "static_v")):
        return Refusal("add_bias_kv, add_zero_attn and static keys have no integer form; leave them out")
    return None


def _batched(given: dict[str, Any], call: Call) -> Attended:
    query, key, heads = given["query"], given["key"], given["num_heads"]
    width = given["embed_dim_to_check"]
    length, batch = query.content.shape[:2]
    source = key.content.shape[0]
    masking = _head_masks(given, batch, heads, length, source)
    if isinstance(masking, Refusal):
        return masking
    projected = [
        call(torch.permute, call(torch.reshape, p, (n, batch, heads, width // heads)), (1, 2, 0, 3))
        for p, n in zip(_project(given, call), (length, source, source), strict=True)
    ]
    dropout = given["dropout_p"] if given["training"] else 0.0
    q, k, v = projected
    attended = attend(q, k, v, masking, 1.0 / math.sqrt(width // heads), dropout, call)
    if isinstance(attended, Refusal):
        return attended
    values, weights = attended
    joined = call(torch.reshape, call(torch.permute, values, (2, 0, 1, 3)), (length, batch, width))
    output = _output(joined, given, call)
    if not given["need_weights"]:
        return output, None
    return output, _mean_over_heads(weights, heads, call) if given["average_attn_weights"] else weights


def _project(given: dict[str, Any], call: Call) -> list[Tensor]:
    """Query, key and value: three layers, each with scales of its own."""
    has_own = given["use_separate_proj_weight"]
    weights = [given[f"{n}_proj_weight"] for n in "qkv"] if has_own else given["in_proj_weight"].chunk(3)
    biases = [None] * 3 if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
    inputs = (given["query"], given["key"], given["value"])
    return [call(F.linear, x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]


def _output(x: QTensor, given: dict[str, Any], call: Call) -> Tensor:
    """The output projection: the quantized layer that the attention layer holds, where the call comes from it."""
    frame = x.runtime.frame
    assert frame is not None  # checked by _refused_arguments
    layer = frame.module._modules.get("out_proj")  # noqa: SLF001 - any module may have made the call
    if isinstance(layer, QuantizedBase) and getattr(layer, "weight", None) is given["out_proj_weight"]:
        return cast(Tensor, layer(x))
    return cast(Tensor, call(F.linear, x, given["out_proj_weight"], given["out_proj_bias"]))


def _head_masks(given: dict[str, Any], batch: Size, heads: int, length: Size, source: Size) -> _Masking | Refusal:
    """Both masks as one, of the shape of the scores [batch, heads, length, source]."""
    runtime, mask, padding = given["query"].runtime, given["attn_mask"], given["key_padding_mask"]
    if given["is_causal"] and padding is None and not given["need_weights"]:
        # as torch reads the hint
        return _Masking(causal(length, source, given["query"].content.device), is_causal=True)
    first = read_mask(mask, runtime, is_taking=False)
    second = read_mask(padding, runtime, is_taking=False)
    if isinstance(first, Refusal) or isinstance(second, Refusal):
        return first if isinstance(first, Refusal) else second
    if second.summand is not None or (first.summand is not None and mask.dim() == 3):
        return Refusal("such a mask with other values than 0 and −∞ has no integer form; use booleans")
    sizes = (batch, heads, length, source)
    return _Masking(_blocked(first.blocked, second.blocked, sizes), first.summand)


def _blocked(scores: Tensor | None, keys: Tensor | None, sizes: tuple[Size, ...]) -> Tensor | None:
    """Scores that are masked one by one, and those of masked keys."""
    if scores is not None and scores.dim() == 3:
        scores = scores.reshape(*sizes)
    if keys is None:
        return scores
    keys = keys.reshape(sizes[0], 1, 1, sizes[-1])
    return keys if scores is None else scores | keys


def _mean_over_heads(weights: QTensor, heads: int, call: Call) -> QTensor:
    """The mean over an axis that is made an image's width: average pooling.

    It is computed on first use: most callers drop it, and a file then has no such node.
    """
    runtime, frame = weights.runtime, weights.runtime.frame
    assert frame is not None  # the attention layer is at work

    def mean() -> Tensor:
        runtime.frames.append(frame)  # named and noted as if it were computed at once
        try:
            last = call(torch.permute, weights, (0, 2, 3, 1))
            pooled: QTensor = call(torch.select, call(F.avg_pool2d, last, (1, heads)), -1, 0)
            return pooled.content
        finally:
            runtime.frames.pop()

    return weights.like(weights.content[:, 0]).deferred(mean)


ATTENTION: dict[TorchFunction, Handler] = {
    F.scaled_dot_product_attention: lambda _, args, kwargs, call: _attention(call, *args, **kwargs),
    F.multi_head_attention_forward: _multi_head,
}
