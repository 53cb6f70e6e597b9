# SPDX-License-Identifier: Apache-2.0
"""Sees the calls of a model's modules, and the torch functions that its own forwards call, in order and with numbers."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linger.analysis.batches import Batch, Function, Keywords, fresh
from linger.constraint.conv_bn import ConvBN
from linger.quantization.core.qtensor import unwrap
from linger.quantization.core.quantized import QuantizedBase

Key = tuple[str, int]
"""A module's path and which of its calls in this pass, from 0."""

FunctionKey = tuple[str, int, str, int]
"""A module's path, which of its calls, a torch function, and which of its calls there, from 0."""

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keyword arguments."""

FunctionHandler = Callable[[FunctionKey, partial[object], Given], object]
"""Runs a function that is bound to its arguments, and returns what it returns."""

_WHOLE = (ConvBN, QuantizedBase, nn.MultiheadAttention)
"""What is inside such a layer is part of it."""


@dataclass
class Call:
    """One call of a module.

    Attributes:
        key: Path and number.
        module: The module.
        args: Positional arguments as real values, copied before the module could change them.
        kwargs: Keyword arguments, likewise.
        source: The call that returned the first argument (the same object).
        has_inner: Whether the module called another one.
        functions: How often it has called each torch function itself.
    """

    key: Key
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    source: Key | None = None
    has_inner: bool = False
    functions: Counter[str] = field(default_factory=Counter)


class CallWatch:
    """Hooks on a model that call `finished(call, output)` at the end of every module's call.

    `functions` runs the torch functions that modules call in their own forwards.
    """

    def __init__(
        self, model: nn.Module, finished: Callable[[Call, object], None], functions: FunctionHandler | None = None
    ) -> None:
        self.modules = dict(_watched(model))
        self._paths = {module: path for path, module in self.modules.items()}
        self._finished = finished
        self._is_paused = False
        self.begin()
        self._mode = None if functions is None else _FunctionMode(self, functions)
        if (
            self._mode is not None
        ):  # begins last and ends first: it sees a function before the modes of a quantised model do
            model.register_forward_pre_hook(self._mode.enter)
            model.register_forward_hook(self._mode.leave, prepend=True)
        for module in self.modules.values():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave, with_kwargs=True)

    def function_key(self, name: str) -> FunctionKey | None:
        """Number a function of the module at work; None where a layer computes, which is compared as a whole."""
        if self._is_paused or not self._running or isinstance(self._running[-1].module, _WHOLE):
            return None
        call = self._running[-1]
        call.functions[name] += 1
        return (*call.key, name, call.functions[name] - 1)

    def begin(self) -> None:
        """A new forward pass."""
        self._running: list[Call] = []
        self._counts: Counter[str] = Counter()
        self._returned: dict[int, tuple[weakref.ref[Tensor], Key]] = {}

    def end(self) -> None:
        """The pass has ended, normally or by an exception."""
        if self._mode is not None:
            self._mode.end()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls inside this block are not watched."""
        was_paused, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was_paused

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_paused:
            return
        path = self._paths[module]
        key = (path, self._counts[path])
        self._counts[path] += 1
        with self.paused():
            copied_args, copied_kwargs = unwrap(fresh((args, kwargs)))
        for outer in self._running:
            outer.has_inner = True
        self._running.append(Call(key, module, copied_args, copied_kwargs, self.origin(args[0] if args else None)))

    def _leave(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:  # noqa: ARG002 - a hook's signature
        if self._is_paused:
            return
        call = self._running.pop()
        if isinstance(output, Tensor) and self.origin(output) is None:  # else it was only handed on
            # the id of a tensor that is gone may be used again, so a weak reference says whether it is the same one
            self._returned[id(output)] = (weakref.ref(output), call.key)
        with self.paused():
            self._finished(call, output)

    def origin(self, tensor: object) -> Key | None:
        """The call that returned a tensor."""
        known = self._returned.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None


def _watched(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules by their first path. What is inside a fused, quantised or attention layer is part of that layer."""
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        if module not in inside:
            yield path, module
        if isinstance(module, _WHOLE):
            inside |= set(module.modules()) - {module}


class _FunctionMode(TorchFunctionMode):
    """Hands the functions of a model's own forwards to a handler, from its first to its last module's call."""

    def __init__(self, watch: CallWatch, handler: FunctionHandler) -> None:
        super().__init__()
        self._watch, self._handler, self._depth = watch, handler, 0

    def enter(self, *_: object) -> None:
        """A forward pre-hook of the model, which may call itself."""
        if self._depth == 0:
            self.__enter__()
        self._depth += 1

    def leave(self, *_: object) -> None:
        """A forward hook of the model."""
        self._depth -= 1
        if self._depth == 0:
            self.__exit__(None, None, None)

    def end(self) -> None:
        """An exception may have left no time for hooks."""
        if self._depth > 0:
            self._depth = 0
            self.__exit__(None, None, None)

    def __torch_function__(self, func: Function, types: object, args: Batch = (), kwargs: Keywords = None) -> object:
        """Run a function, or let the handler run it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        key = None if name in ("__get__", "size", "dim") else self._watch.function_key(name)
        if key is None:
            return func(*args, **kwargs)
        return self._handler(key, partial(func, *args, **kwargs), (args, kwargs))
