# SPDX-License-Identifier: Apache-2.0
"""Which module an op that cannot be exported comes from."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from linger.errors import listing
from linger.simulation.example_call import ExampleCall

_OPERATOR = re.compile(r"\b(\w+)::(\w+)")


class _Calls(TorchDispatchMode):
    """Notes the path of the module at work for each op."""

    def __init__(self, running: list[str]) -> None:
        super().__init__()
        self.running, self.paths = running, {}  # type: ignore[var-annotated]  # op name to module paths

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        self.paths.setdefault(name, dict.fromkeys(self.running[-1:]) | self.paths.get(name, {}))
        self.paths[name] |= dict.fromkeys(self.running[-1:])
        return func(*args, **(kwargs or {}))


def callers_of(model: Any, call: ExampleCall, message: str) -> str:
    """The modules that call the op an exporter's message names; the model's type where none can be told.

    The tracing exporter says which op it cannot write, but not where it stands in the model.
    """
    fallback = type(model).__name__
    names = ["::".join(found) for found in _OPERATOR.findall(message)]
    if not names or not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return fallback
    running: list[str] = []
    calls = _Calls(running)
    try:
        with ExitStack() as stack:
            for path, module in model.named_modules():
                label = f"{path or fallback} ({type(module).__name__})"
                stack.callback(module.register_forward_pre_hook(lambda *_, label=label: running.append(label)).remove)
                stack.callback(module.register_forward_hook(lambda *_: running.pop() and None, always_call=True).remove)
            stack.enter_context(torch.no_grad())
            stack.enter_context(calls)
            model(*call.args, **call.kwargs)
    except Exception:  # noqa: BLE001 - this only looks for a better message than the one that is being reported
        return fallback
    found = [path for name in names for path in calls.paths.get(name, {})]
    return listing(dict.fromkeys(found)) or fallback
