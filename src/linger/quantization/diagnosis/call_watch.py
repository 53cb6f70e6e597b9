# SPDX-License-Identifier: Apache-2.0
"""Every module call of a forward pass, with what went in and what came out."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from linger.analysis.batches import fresh
from linger.constraint.conv_bn import ConvBN
from linger.quantization.core.qtensor import unwrap
from linger.quantization.core.statistics import QuantizedBase

Key = tuple[str, int]
"""A module's path and which of its calls in this pass, from 0."""


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
    """

    key: Key
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    source: Key | None = None
    has_inner: bool = False


class CallWatch:
    """Hooks on a model that call `finished(call, output)` at the end of every module's call."""

    def __init__(self, model: nn.Module, finished: Callable[[Call, object], None]) -> None:
        self.modules = dict(_watched(model))
        self._paths = {module: path for path, module in self.modules.items()}
        self._finished = finished
        self._is_paused = False
        self.begin()
        for module in self.modules.values():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave, with_kwargs=True)

    def begin(self) -> None:
        """A new forward pass."""
        self._running: list[Call] = []
        self._counts: Counter[str] = Counter()
        self._returned: dict[int, tuple[weakref.ref[Tensor], Key]] = {}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls inside this block are not watched."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_paused:
            return
        path = self._paths[module]
        key = (path, self._counts[path])
        self._counts[path] += 1
        copied_args, copied_kwargs = unwrap(fresh((args, kwargs)))
        for outer in self._running:
            outer.has_inner = True
        self._running.append(Call(key, module, copied_args, copied_kwargs, self._origin(args[0] if args else None)))

    def _leave(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:  # noqa: ARG002 - a hook's signature
        if self._is_paused:
            return
        call = self._running.pop()
        if isinstance(output, Tensor) and self._origin(output) is None:  # else it was only handed on
            # the id of a tensor that is gone may be used again, so a weak reference says whether it is the same one
            self._returned[id(output)] = (weakref.ref(output), call.key)
        self._finished(call, output)

    def _origin(self, tensor: object) -> Key | None:
        known = self._returned.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None


def _watched(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules by their first path. What is inside a fused, quantised or attention layer is part of that layer."""
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        if module not in inside:
            yield path, module
        if isinstance(module, (ConvBN, QuantizedBase, nn.MultiheadAttention)):
            inside |= set(module.modules()) - {module}
