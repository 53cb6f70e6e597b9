# SPDX-License-Identifier: Apache-2.0
"""Restores the plain attributes of modules after a pass of linger's own: a model may keep its state in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

_OWN = "linger."
"""Modules of this package are left alone: their attributes are no state of the user's."""

_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that every module has: parameters, children, hooks, the mode."""


@contextmanager
def kept_attributes(model: object, change: Callable[[Tensor], Tensor] | None = None) -> Iterator[None]:
    """Let a pass change attributes and buffers of a model; afterwards they are as they were.

    That holds for what an attribute refers to, and for the content of tensors, lists, dicts, sets and deques, inside each
    other too. An object of the user's own class keeps what a pass writes into it.

    Args:
        model: A module; anything else has no attributes.
        change: Replaces a tensor in an attribute for the time of the pass.
    """
    memory = _Memory(change)
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        for module in model.modules():
            if not type(module).__module__.startswith(_OWN):
                memory.keep_module(module)
    try:
        yield
    finally:
        memory.restore()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards each module's own mode and attributes are restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with kept_attributes(model):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


class _Memory:
    """What was there, and how to bring it back."""

    def __init__(self, change: Callable[[Tensor], Tensor] | None) -> None:
        self._change = change or (lambda tensor: tensor)
        self._undo: list[Callable[[], None]] = []
        self._changed: dict[int, Any] = {}  # by id, which none gets twice: what undoes holds every value

    def keep_module(self, module: nn.Module) -> None:
        """Remember a module's attributes and buffers."""
        attributes, buffers = vars(module), module._buffers  # noqa: SLF001 - named_buffers leaves None out
        own = {name: value for name, value in attributes.items() if name not in _OF_TORCH and not _is_private(name)}
        kept_buffers = dict(buffers)

        def undo() -> None:
            for name in [n for n in attributes if n not in own and n not in _OF_TORCH and not _is_private(n)]:
                del attributes[name]
            attributes.update(own)
            buffers.clear()
            buffers.update(kept_buffers)

        self._undo.append(undo)
        attributes.update({name: self._kept(value) for name, value in own.items()})
        buffers.update({name: cast(Tensor | None, self._kept(value)) for name, value in kept_buffers.items()})

    def restore(self) -> None:
        """Bring everything back."""
        for undo in reversed(self._undo):
            undo()

    def _kept(self, value: object) -> object:
        """The value that the pass will see; everything in it that can be changed is remembered."""
        if id(value) in self._changed:
            return self._changed[id(value)]
        if isinstance(value, nn.Parameter):
            return value  # a weight is no state between calls, and may be large
        if isinstance(value, Tensor):
            seen: object = self._change(value)
            self._keep_tensor(value)
        elif isinstance(value, tuple):
            parts = [self._kept(part) for part in value]
            is_same = all(new is old for new, old in zip(parts, value, strict=True))
            seen = value if is_same else _tuple_like(value, parts)
        else:
            seen = self._changed[id(value)] = value  # before its content, which may lead back to it
            self._keep_content(value)
        self._changed[id(value)] = seen
        return seen

    def _keep_content(self, value: object) -> None:
        if not isinstance(value, (list, deque, dict, set)):
            return
        content = dict(value) if isinstance(value, dict) else list(value)  # plain ones: a user's class may not copy
        refill: Callable[..., None] = value.extend if isinstance(value, (list, deque)) else value.update

        def undo() -> None:
            value.clear()
            refill(content)

        self._undo.append(undo)
        if isinstance(value, dict):
            value.update({key: self._kept(item) for key, item in value.items()})
        elif not isinstance(value, set):
            for index, item in enumerate(content):
                value[index] = self._kept(item)

    def _keep_tensor(self, tensor: Tensor) -> None:
        if type(tensor) is not Tensor and vars(tensor):  # a wrapper, whose content is another tensor
            own = dict(vars(tensor))
            self._undo.append(lambda: vars(tensor).update(own))
            return
        content = tensor.detach().clone()

        def undo() -> None:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if not torch.equal(tensor, content):
                    tensor.copy_(content)

        self._undo.append(undo)


def _tuple_like(value: tuple[Any, ...], parts: list[object]) -> object:
    """A tuple of the same kind, also a named one."""
    make: Callable[[list[object]], object] = getattr(type(value), "_make", type(value))
    return make(parts)


def _is_private(name: str) -> bool:
    return name.startswith("_linger")
