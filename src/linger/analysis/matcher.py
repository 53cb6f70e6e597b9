# SPDX-License-Identifier: Apache-2.0
"""Which layers feed which: one watched forward pass.

Hooks see which tensor a layer returned, a TorchFunctionMode sees which function used it. A tensor counts as used by
every call that receives it, and by being part of the model's output, so "its only consumer" is exact for the path that
ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from linger.analysis.attributes import evaluating
from linger.analysis.batches import Batch, Function, Keywords, run_batch

_RELU = frozenset(
    {torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_, nn.functional.relu, nn.functional.relu_}
)
_BATCH_NORM = frozenset({nn.functional.batch_norm, torch.batch_norm})


@dataclass
class _Use:
    function: Function
    module: nn.Module | None
    is_in_place: bool


@dataclass
class Wiring:
    """What the watched pass saw: the results of each layer's calls, the uses of each tensor."""

    results: dict[nn.Module, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    inputs: dict[nn.Module, list[object]] = field(default_factory=lambda: defaultdict(list))
    uses: dict[int, list[_Use]] = field(default_factory=lambda: defaultdict(list))
    returned: set[int] = field(default_factory=set)
    kept: list[object] = field(default_factory=list)  # ids are unique only while the tensors live

    def sole_consumer(self, tensor: Tensor) -> _Use | None:
        """The one use of a tensor, or None if it has none, several, or leaves the model."""
        found = self.uses[id(tensor)]
        return found[0] if len(found) == 1 and id(tensor) not in self.returned else None

    def feeds_only_relu(self, tensor: Tensor) -> bool:
        """Whether ReLU is the only consumer of a tensor; after an in-place ReLU all others see its result."""
        uses = self.uses[id(tensor)]
        if uses and uses[0].is_in_place:
            return uses[0].function in _RELU
        use = self.sole_consumer(tensor)
        return use is not None and use.function in _RELU

    def feeds_only_batch_norm(self, tensor: Tensor) -> nn.Module | None:
        """The batch-norm layer that is the only consumer of a tensor."""
        use = self.sole_consumer(tensor)
        return use.module if use is not None and use.function in _BATCH_NORM else None


class _Watch(TorchFunctionMode):
    def __init__(self, wiring: Wiring, running: list[nn.Module]) -> None:
        super().__init__()
        self._wiring, self._running = wiring, running

    def __torch_function__(self, func: Function, types: object, args: Batch = (), kwargs: Keywords = None) -> object:
        kwargs = kwargs or {}
        is_look = getattr(func, "__name__", "") in ("__get__", "size", "dim", "numel", "is_floating_point")
        if not is_look:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    self._wiring.kept.append(leaf)
                    module = self._running[-1] if self._running else None
                    self._wiring.uses[id(leaf)].append(_Use(func, module, _is_in_place(func, args, kwargs)))
        return func(*args, **kwargs)


def _is_in_place(func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if func is nn.functional.relu:
        return bool(kwargs.get("inplace", args[1] if len(args) > 1 else False))
    return getattr(func, "__name__", "").endswith("_") and not getattr(func, "__name__", "").endswith("__")


def watch(model: nn.Module, arguments: Sequence[Any]) -> Wiring:
    """Run `model(*arguments)` once, in evaluation mode, and note which call used which tensor.

    The model's mode, statistics and the random state are as before afterwards.
    """
    wiring = Wiring()
    running: list[nn.Module] = []

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        running.append(module)
        wiring.inputs[module].append(args[0] if args else None)
        wiring.kept.append(args)

    def leave(module: nn.Module, args: tuple[Any, ...], output: object) -> None:  # noqa: ARG001 - a hook's signature
        running.pop()
        if isinstance(output, Tensor):
            wiring.results[module].append(output)
        wiring.kept.append(output)

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(enter).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(_Watch(wiring, running))
        output = run_batch(model, arguments)
    wiring.returned = {id(leaf) for leaf in tree_leaves(output) if isinstance(leaf, Tensor)}
    return wiring


def computes_like(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer computes what its torch ancestor does; False for a subclass with a forward of its own."""
    methods = ("forward", "_conv_forward")
    is_overridden = any(getattr(type(layer), name, None) is not getattr(kind, name, None) for name in methods)
    return not is_overridden and "forward" not in layer.__dict__
