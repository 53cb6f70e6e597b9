# SPDX-License-Identifier: Apache-2.0
"""torch.compile: a quantised model runs as it is inside whatever is compiled around it, with the same integers.

Its layers look at ranges, names and modes in every pass, which is what a compiler cannot see through: traced, it would
break the graph hundreds of times, for minutes, and gain nothing. So compilation pauses while a quantised module is at work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn
from torch._C._dynamo import eval_frame

from linger.errors import UsageError, listing

_F = TypeVar("_F", bound=Callable[..., Any])

_REASON = (
    "a model quantised by linger runs as it is inside torch.compile, with the same integers. Leave fullgraph=True out, or "
    "compile what stands before and after the model"
)


def pause() -> Any:
    """Let what follows in this thread run as it is; returns what `resume` takes."""
    # before torch's compiler was ever loaded there is nothing to pause
    return eval_frame.set_eval_frame(None) if "torch._dynamo" in sys.modules else None


def resume(before: Any) -> None:
    """Compile again, if it was so."""
    if before is not None:
        eval_frame.set_eval_frame(before)


def not_traced(function: _F) -> _F:
    """Mark a function as one that torch's compiler calls instead of looking into it (`torch.compiler.disable` loads it)."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001 - the marks that it sets
    function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]  # noqa: SLF001
    return function


def refuse_compiled(model: nn.Module) -> None:
    """Refuse a model that is compiled, or has compiled parts: their traces hold the float layers.

    Raises:
        UsageError: It is, naming each part.
    """
    found = []
    for path, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            found.append(path.replace("_orig_mod.", "").removesuffix("_orig_mod").rstrip(".") or type(module).__name__)
    if found:
        raise UsageError(
            f"init: {listing(list(dict.fromkeys(found)))} went through torch.compile, whose traces hold the float layers. Give "
            "init the model as it was before (compiled._orig_mod), and call torch.compile on what init returns, if at all."
        )
