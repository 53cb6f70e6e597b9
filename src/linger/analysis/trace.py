# SPDX-License-Identifier: Apache-2.0
"""A trace: the one recorder of forward passes, for whoever asks what a model's modules and torch functions take and return.

Hooks see what a module takes and returns, a TorchFunctionMode sees the functions between them. `Trace` hands both to its
user while they run: later a function may have overwritten the numbers. `wiring_of` answers one question, which layers feed
which. A tensor counts as used by every call that receives it, and by being part of the model's output, so "its
only consumer" is exact for the path that ran.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from linger.analysis.batches import Batch, Function, Keywords, evaluating, fresh, run_batch

RunFunction = Callable[[Function, Batch, dict[str, Any]], Any]
"""Runs a torch function on its arguments and returns the result; what it computes itself is not part of the trace."""


@contextmanager
def unaffected(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards modes, attributes and the random state are as before."""
    with evaluating(model), torch.random.fork_rng(devices=[]):
        yield


class Trace:
    """Forward passes of a model, without gradients, in a `with` block: at its end all hooks are gone.

    Attributes:
        batch: The number of the pass in this block, from 0.
    """

    def __init__(self, model: nn.Module, function: RunFunction | None = None) -> None:
        self.model, self.batch = model, -1
        self._functions = nullcontext() if function is None else _Functions(function)
        self._stack = ExitStack()
        self._running: list[tuple[str, nn.Module]] = []
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.batch = -1
        self._stack.enter_context(torch.no_grad())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def before(self, modules: Iterable[nn.Module], hook: Callable[..., None], *, is_first: bool = False) -> None:
        """Call `hook(module, args, kwargs)` before each call of these modules, before their other hooks if `is_first`."""
        for module in modules:
            handle = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=is_first)
            self._stack.callback(handle.remove)

    def after(self, modules: Iterable[nn.Module], hook: Callable[..., object], *, always: bool = False) -> None:
        """Call `hook(module, args, kwargs, output)` after each call of these modules, `always`: also after one that fails.

        What it returns, if it is not None, is the call's result.
        """
        for module in modules:
            handle = module.register_forward_hook(hook, with_kwargs=True, always_call=always)
            self._stack.callback(handle.remove)

    def observe(self, observers: list[Callable[..., None]], observer: Callable[..., None]) -> None:
        """Be among the observers of a quantized model's ops."""
        observers.append(observer)
        self._stack.callback(observers.remove, observer)

    def follow_modules(self) -> None:
        """Know from now on which module is running."""
        paths = {module: path for path, module in self.model.named_modules()}
        self.before(paths, lambda module, *_: self._running.append((paths[module], module)))
        self.after(paths, self._leave, always=True)

    def _leave(self, *_: object) -> None:
        self._running.pop()

    @property
    def module(self) -> nn.Module | None:
        """The innermost module that is running; None outside all of them."""
        return self._running[-1][1] if self._running else None

    @property
    def path(self) -> str:
        """The path of that module; empty for the model itself and outside."""
        return self._running[-1][0] if self._running else ""

    def next_call(self, key: str) -> tuple[int, int]:
        """Number a call of a layer or function: the pass, and which of its calls in this pass, both from 0."""
        self._counts[key] += 1
        return self.batch, self._counts[key] - 1

    def run(self, batch: Sequence[Any]) -> Any:
        """One pass, on a copy of the batch; returns the model's output.

        Raises:
            UsageError: The model does not accept the batch.
        """
        self.batch += 1
        self._counts.clear()
        with self._functions:
            return run_batch(self.model, fresh(batch))


class _Functions(TorchFunctionMode):
    """Hands the torch functions of a pass to a handler."""

    def __init__(self, handler: RunFunction) -> None:
        super().__init__()
        self._handler = handler

    def __torch_function__(self, func: Function, types: object, args: Batch = (), kwargs: Keywords = None) -> object:
        return self._handler(func, args, kwargs or {})


def running_functions(function: RunFunction) -> TorchFunctionMode:
    """A block in which a function runs the torch functions."""
    return _Functions(function)


_PLAIN = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (*_PLAIN[:5], "output_padding", "groups", "dilation")
CONVOLUTIONS = dict.fromkeys((torch.conv1d, torch.conv2d), _PLAIN) | dict.fromkeys(
    (torch.conv_transpose1d, torch.conv_transpose2d), _TRANSPOSED
)
"""Functions that convolve, and the names of their arguments."""

_RELU = frozenset(
    {torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_, nn.functional.relu, nn.functional.relu_}
)
_BATCH_NORM = frozenset({nn.functional.batch_norm, torch.batch_norm})
_Given = dict[str, Any]


@dataclass
class _Use:
    function: Function
    module: nn.Module | None
    is_in_place: bool


@dataclass
class Wiring:
    """What the recorded pass saw: results of each layer's calls, uses of each tensor, each module's functional convolutions."""

    results: dict[nn.Module, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    inputs: dict[nn.Module, list[object]] = field(default_factory=lambda: defaultdict(list))
    uses: dict[int, list[_Use]] = field(default_factory=lambda: defaultdict(list))
    convolved: dict[nn.Module | None, list[tuple[_Given, Tensor]]] = field(default_factory=lambda: defaultdict(list))
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


def _is_in_place(func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if func is nn.functional.relu:
        return bool(kwargs.get("inplace", args[1] if len(args) > 1 else False))
    return getattr(func, "__name__", "").endswith("_") and not getattr(func, "__name__", "").endswith("__")


def wiring_of(model: nn.Module, arguments: Sequence[Any]) -> Wiring:
    """Run `model(*arguments)` once, in evaluation mode, and note which call used which tensor.

    The model's mode, statistics and the random state are as before afterwards.
    """
    wiring = Wiring()

    def enter(module: nn.Module, args: Batch, kwargs: object) -> None:  # noqa: ARG001 - a hook's signature
        wiring.inputs[module].append(args[0] if args else None)
        wiring.kept.append(args)

    def leave(module: nn.Module, args: object, kwargs: object, output: object) -> None:  # noqa: ARG001 - a hook's signature
        if isinstance(output, Tensor):
            wiring.results[module].append(output)
        wiring.kept.append(output)

    def run(func: Function, args: Batch, kwargs: dict[str, Any]) -> object:
        if getattr(func, "__name__", "") not in ("__get__", "size", "dim", "numel", "is_floating_point"):
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    wiring.kept.append(leaf)
                    wiring.uses[id(leaf)].append(_Use(func, trace.module, _is_in_place(func, args, kwargs)))
        result = func(*args, **kwargs)
        if func in CONVOLUTIONS:
            wiring.convolved[trace.module].append((dict(zip(CONVOLUTIONS[func], args, strict=False)) | kwargs, result))
        return result

    with unaffected(model), Trace(model, run) as trace:
        trace.follow_modules()
        trace.before(model.modules(), enter)
        trace.after(model.modules(), leave)
        output = trace.run(arguments)
    wiring.returned = {id(leaf) for leaf in tree_leaves(output) if isinstance(leaf, Tensor)}
    return wiring


def computes_like(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer computes what its torch ancestor does; False for a subclass with a forward of its own."""
    methods = ("forward", "_conv_forward")
    is_overridden = any(getattr(type(layer), name, None) is not getattr(kind, name, None) for name in methods)
    return not is_overridden and "forward" not in layer.__dict__
