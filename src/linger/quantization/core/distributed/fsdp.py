# SPDX-License-Identifier: Apache-2.0
"""Models whose parameters `torch.distributed.fsdp.fully_shard` has spread over several processes.

A layer has its parameters only while the part that was sharded computes. FSDP is never imported here: where nobody has
imported it, nothing is sharded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from linger.errors import UsageError, listing

GATHER = (
    "On all of them, gather the weights with torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True, cpu_offload=True)); then load them into a model that is not sharded, on one."
)


def is_sharded(t: Tensor) -> bool:
    """Whether this process holds only a part of a tensor."""
    kinds: Any = sys.modules.get("torch.distributed.tensor")
    return kinds is not None and isinstance(t, kinds.DTensor)


def sharded_parts(model: nn.Module) -> dict[str, nn.Module]:
    """The parts of a model that `fully_shard` was called on, by their path."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return {} if kind is None else {path: m for path, m in model.named_modules() if isinstance(m, kind)}


def refuse_sharded(model: object, what: str, remedy: str = GATHER) -> None:
    """Raise a `UsageError` where a model is sharded; what is no module is not."""
    if not isinstance(model, nn.Module):
        return
    parts = [path or type(model).__name__ for path in sharded_parts(model)]
    names = parts or [name for name, p in model.named_parameters() if is_sharded(p)]
    if names:
        raise UsageError(
            f"{what}: {listing(names)}: the parameters are sharded over several processes (fully_shard). {remedy}"
        )


def check_shards(model: nn.Module) -> None:
    """Refuse what a group must not do to the parameters of a model.

    Where FSDP computes parts in 16 bits, the weights that are rounded would be others than those of a checkpoint, and so would the
    integers. Functions with learned ranges that were sharded on their own are called by nothing, so FSDP would never gather them.

    Raises:
        UsageError: There are such parts or functions; all are named.
    """
    parts = sharded_parts(model)
    converted = [path or type(model).__name__ for path, part in parts.items() if _has_other_types(part)]
    if converted:
        raise UsageError(
            f"{listing(converted)}: fully_shard was given an mp_policy with a param_dtype or an output_dtype. A quantized model rounds "
            "its float32 weights, so that every process, a checkpoint and the exported file have the same integers. Leave both "
            "out; reduce_dtype, the type in which gradients travel, may stay."
        )
    functions = [path for path, part in parts.items() if getattr(part, "is_layer", None) is False]  # of QuantizedBase
    learned = [path for path in functions if next(parts[path].parameters(), None) is not None]
    if learned:
        raise UsageError(
            f"{listing(learned)}: fully_shard was called on a function with a learned scale, which FSDP never gathers. Shard the "
            "layers and the whole model, not the functions."
        )


def _has_other_types(part: Any) -> bool:
    policy = getattr(part._get_fsdp_state(), "_mp_policy", None)  # noqa: SLF001 - torch has no public name
    return policy is not None and (policy.param_dtype is not None or policy.output_dtype is not None)


@contextmanager
def gathered(layer: nn.Module) -> Iterator[None]:
    """Give a layer whole parameters inside the block. Every process must come here, in the same order of layers."""
    places = [(m, name, p) for m in layer.modules() for name, p in m._parameters.items() if p is not None]  # noqa: SLF001 - by name
    shards = [(module, name, p) for module, name, p in places if is_sharded(p)]
    for module, name, shard in shards:
        whole: Tensor = shard.full_tensor()  # type: ignore[attr-defined]  # a method of DTensor
        module._parameters[name] = nn.Parameter(whole.detach(), requires_grad=shard.requires_grad)  # noqa: SLF001 - by name, without a registration
    try:
        yield
    finally:
        for module, name, shard in shards:
            module._parameters[name] = shard  # noqa: SLF001 - as FSDP puts them back
