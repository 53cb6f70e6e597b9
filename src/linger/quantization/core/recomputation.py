# SPDX-License-Identifier: Apache-2.0
"""Modules and functions that run again in the backward pass (torch.utils.checkpoint), as they ran the first time.

A second run would otherwise move ranges and running statistics twice, round with other scales than the pass whose gradient
it computes, and, outside any module, not know which module's ranges to use.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from linger.errors import UnsupportedError
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Frame, Keeping, Runtime, TorchFunction, is_in_backward, scope_of

_KEPT_CALLS = 32
"""Calls of one module that are remembered: as many may lie between a forward pass and its backward pass."""

_KEPT_FUNCTIONS = 2048
"""The same for functions of all modules together."""


@dataclass(frozen=True)
class _Statistics:
    """What one module has learned from its inputs so far."""

    holder: nn.Module
    buffers: dict[str, Tensor | None]
    input_range: str | None
    known: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, holder: nn.Module) -> _Statistics:
        """The tensors themselves, not copies."""
        known = holder.known_values() if isinstance(holder, QuantizedBase) else {}
        return cls(holder, dict(holder._buffers), getattr(holder, "input_range", None), known)  # noqa: SLF001 - by name, with None

    def mapped(self, function: Callable[[Tensor], Tensor]) -> _Statistics:
        """The same with other tensors."""
        return replace(self, buffers={n: None if b is None else function(b) for n, b in self.buffers.items()})

    def emptied(self) -> _Statistics:
        """The same before the first call."""
        stored = self.holder.stored if isinstance(self.holder, QuantizedBase) else {}
        absent = {key: each.absent for key, each in stored.items()}
        empty = {n: None if b is None else torch.full_like(b, absent.get(n, 0.0)) for n, b in self.buffers.items()}
        return _Statistics(self.holder, empty, "")

    def install(self) -> None:
        """Put these tensors in the place of the buffers; none is written, as gradients may need its content."""
        if isinstance(self.holder, QuantizedBase):
            self.holder.input_range = self.input_range or ""
            self.holder.put_buffers(self.buffers, self.known)
        else:
            self.holder._buffers.update(self.buffers)  # noqa: SLF001 - setattr would ask for a registration again


@dataclass(frozen=True)
class _Call:
    """One call: shape and sum of each input, the statistics before it, and whether functions stayed float."""

    inputs: list[tuple[tuple[int, ...], Tensor]]
    state: list[_Statistics]
    keeping: Keeping

    def is_for(self, inputs: list[tuple[tuple[int, ...], Tensor]]) -> bool:
        """Whether the inputs are the same; equal tensors have equal sums, since both are added in the same order."""
        if [shape for shape, _ in inputs] != [shape for shape, _ in self.inputs]:
            return False
        return all(torch.equal(a, b) for (_, a), (_, b) in zip(inputs, self.inputs, strict=True))


@dataclass(frozen=True)
class _FunctionCall:
    """A call of a function, and the frame of its module."""

    function: TorchFunction
    call: _Call
    frame: Frame


class Recomputation:
    """Keeps the calls that torch's checkpointing may repeat. The hooks of every module report them."""

    def __init__(self) -> None:
        self._calls: WeakKeyDictionary[nn.Module, deque[_Call]] = WeakKeyDictionary()
        self._functions: deque[_FunctionCall] = deque(maxlen=_KEPT_FUNCTIONS)
        self._set_aside: dict[nn.Module, list[_Statistics]] = {}

    def __reduce__(self) -> Any:
        """A copy of a model remembers no calls."""
        return Recomputation, ()

    def enter(self, frame: Frame, args: tuple[Any, ...]) -> None:
        """A module in training begins: remember the statistics, or bring those of the first run back."""
        if is_in_backward():
            self._repeat(frame, args)
        else:
            call = _Call(_described(args), _state_of(frame.module), frame.keeping)
            self._calls.setdefault(frame.module, deque(maxlen=_KEPT_CALLS)).append(call)

    def leave(self, module: nn.Module) -> None:
        """A repeated call ends, normally or by an exception: what the first run learned stays."""
        _install(self._set_aside.pop(module, []))

    def remember(self, function: TorchFunction, args: tuple[Any, ...], frame: Frame) -> None:
        """Note a function of a module at work."""
        call = _Call(_described(args), _state_of(frame.module), frame.keeping)
        place = Frame(frame.path, frame.module, Counter(frame.indices))
        self._functions.append(_FunctionCall(function, call, place))

    def kept_float(self, function: TorchFunction, args: tuple[Any, ...]) -> bool:
        """Whether the first run of a function was in a module that is kept float."""
        calls = [f.call for f in self._functions if f.function is function and f.call.keeping.reason]
        inputs = _described(args) if calls else []
        return any(call.is_for(inputs) for call in calls)

    @contextmanager
    def place_of(self, function: TorchFunction, args: tuple[Any, ...], runtime: Runtime) -> Iterator[None]:
        """Run a function again in the frame, and with the statistics, of its first run."""
        inputs = _described(args)
        found = (f for f in reversed(self._functions) if f.function is function and f.call.is_for(inputs))
        first = next(found, None)
        if first is None:
            name = getattr(function, "__name__", str(function))
            raise _other_input(f"{name}, outside any module,")
        place = Frame(first.frame.path, first.frame.module, Counter(first.frame.indices), keeping=first.call.keeping)
        set_aside = _bring_back(place.module, first.call.state)
        runtime.frames.append(place)
        try:
            yield
        finally:
            runtime.frames.pop()
            _install(set_aside)

    def _repeat(self, frame: Frame, args: tuple[Any, ...]) -> None:
        module = frame.module
        calls = self._calls.get(module)
        if not calls:
            return  # no checkpoint: a hook of the user runs the model in the backward pass
        inputs = _described(args)
        first = next((call for call in reversed(calls) if call.is_for(inputs)), None)
        if first is None:
            scope = scope_of(module)
            raise _other_input((scope.path if scope else "") or type(module).__name__)
        frame.keeping = first.keeping  # the modules around it are not at work now
        self._set_aside[module] = _bring_back(module, first.state)

    @property
    def is_awaited(self) -> bool:
        """Whether something ran in a way that a checkpoint may repeat."""
        return bool(self._calls) or bool(self._functions)


def is_repeating(runtime: Runtime) -> bool:
    """Whether a checkpoint of this model may be at work; a function's own backward computes without gradients."""
    return is_in_backward() and torch.is_grad_enabled() and runtime.recomputation.is_awaited


def _other_input(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what}: a checkpoint runs it again in the backward pass, with an input it has not had before, so the scales of the "
        "first run are not known. Let the function compute the same both times (preserve_rng_state=True), or leave the "
        "checkpoint out."
    )


def _described(args: Any) -> list[tuple[tuple[int, ...], Tensor]]:
    """Shape and sum of every tensor."""
    with torch.no_grad(), torch._C.DisableTorchFunction():  # noqa: SLF001 - no computation of the model: none is noted
        contents = [
            x.moved_content if isinstance(x, QTensor) else x for x in tree_leaves(args) if isinstance(x, Tensor)
        ]
        return [(tuple(x.shape), x.sum(dtype=None if x.is_complex() else torch.float64)) for x in contents]


def _state_of(module: nn.Module) -> list[_Statistics]:
    return [_Statistics.of(holder).mapped(torch.clone) for holder in _holders(module)]


def _holders(module: nn.Module) -> Iterator[nn.Module]:
    """Modules whose statistics change in a call of this one: itself, and parts that are not called as modules."""
    if isinstance(module, QuantizedBase):
        yield from module.modules()
        return
    yield module
    yield from (child for child in module.children() if scope_of(child) is None)


def _bring_back(module: nn.Module, state: list[_Statistics]) -> list[_Statistics]:
    """Give a module the statistics of an earlier call; returns those it had. Ranges made since then begin with zeros."""
    present = [_Statistics.of(holder) for holder in _holders(module)]
    before = {statistics.holder: statistics.mapped(torch.clone) for statistics in state}
    _install([before.get(p.holder) or p.emptied() for p in present])
    return present


def _install(state: list[_Statistics]) -> None:
    for statistics in state:
        statistics.install()
