# SPDX-License-Identifier: Apache-2.0
"""An example call of a model: its arguments, flattened to graph inputs, and a run that leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten_with_path, tree_map, tree_unflatten

from linger.analysis.batches import Forward, evaluating, failure_of, first_pass, passes_of
from linger.errors import LingerError, UsageError
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import Runtime, runtime_of

Exportable = nn.Module | Callable[..., Any]
"""A module, or a function that torch.jit has scripted or traced."""

WRAPPED = "model"
"""Name of the model inside `FlatModel`; the exporter removes it from every name of the file."""


@dataclass(frozen=True)
class ExampleCall:
    """Positional and keyword arguments of one forward pass."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def is_plain(self) -> bool:
        """Whether the arguments are positional tensors only, which a trace can take as they are."""
        return not self.kwargs and all(isinstance(a, Tensor) for a in self.args)

    def leaves(self) -> list[tuple[str, Any]]:
        """(name, value) of every leaf, in the order of the graph's inputs."""
        return _leaves(self.args, self.kwargs)[0]

    def tensors(self) -> list[Tensor]:
        """The graph inputs: the tensors, and the numbers as 0-d tensors."""
        return [_as_tensor(value) for _, value in self.leaves() if is_input(value)]


def are_by_name(call: ExampleCall, names: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a file's inputs are those of a call, some of which are given by name: a dict may have another order than the file."""
    return bool(call.kwargs) and set(names) == set(wanted)


def read_call(model: Exportable, args: object, kwargs: Mapping[str, Any] | None) -> ExampleCall:
    """Read the arguments of a pass in any form that inputs may have; of several batches, the first.

    Raises:
        UsageError: They are not what forward takes.
    """
    return ExampleCall(*as_plain(first_pass(model, args, "args", kwargs)))


def calls_of(model: Exportable, inputs: object, kwargs: Mapping[str, Any] | None = None) -> Iterator[ExampleCall]:
    """A call for each batch of inputs.

    Raises:
        UsageError: They are not what forward takes.
    """
    return (ExampleCall(*as_plain(one)) for one in passes_of(model, inputs, "inputs", kwargs))


def as_plain(tree: Any) -> Any:
    """Dequantize the quantized tensors among arguments, such as a state that an earlier pass has returned."""
    return tree_map(lambda leaf: leaf.dequantize().detach() if isinstance(leaf, QTensor) else leaf, tree)


def as_constant_of_a_trace(tensor: Tensor) -> Tensor:
    """Make a tensor that a model keeps a constant for a trace: without gradient; a quantized one as its integers."""
    if isinstance(tensor, QTensor) and tensor.scale is not None:
        return QTensor(tensor.integers(), tensor.scale, tensor.bits, tensor.runtime)
    real = tensor.dequantize() if isinstance(tensor, QTensor) else tensor
    return real.detach() if real.requires_grad else real


def repeated(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Resize a tensor by cutting or repeating its numbers along each axis."""
    for axis, (old, new) in enumerate(zip(tensor.shape, shape, strict=True)):
        if old != new:
            tensor = tensor.index_select(axis, torch.arange(new, device=tensor.device) % max(old, 1))
    return tensor


def run_once(model: Exportable, call: ExampleCall) -> object:
    """Run a forward pass; if it fails, raise a UsageError that says what to do."""
    try:
        return model(*call.args, **call.kwargs)
    except LingerError:
        raise
    except Exception as error:
        values = [value for _, value in call.leaves()]
        raise UsageError(failure_of(model, values, error, "the example input")) from error


class FlatModel(nn.Module):
    """A model that takes the leaves of a call as positional tensors."""

    def __init__(self, model: Exportable, call: ExampleCall) -> None:
        super().__init__()
        setattr(self, WRAPPED, model)
        leaves, self._spec = _leaves(call.args, call.kwargs)
        self._fixed = [None if is_input(value) else value for _, value in leaves]
        self._is_input = [is_input(value) for _, value in leaves]
        self.training = bool(getattr(model, "training", False))

    def forward(self, *tensors: Tensor) -> object:
        """Rebuild the call around the tensors."""
        given = iter(tensors)
        leaves = [
            next(given) if is_given else fixed for is_given, fixed in zip(self._is_input, self._fixed, strict=True)
        ]
        args, kwargs = tree_unflatten(leaves, self._spec)
        return getattr(self, WRAPPED)(*args, **kwargs)


def default_names(model: Exportable, call: ExampleCall) -> tuple[str, ...]:
    """Name the graph inputs after forward's parameters and the keys of dicts."""
    names = Forward.of(model).names
    result = []
    for path, value in call.leaves():
        if is_input(value):
            head, _, rest = path.partition(".")
            if head.isdigit():
                place = int(head)
                head = names[place] if place < len(names) else f"input_{place}"
            result.append(f"{head}.{rest}" if rest else head)
    return tuple(result)


def _leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], TreeSpec]:
    found, spec = tree_flatten_with_path((tuple(args), dict(kwargs)))
    return [(".".join(_key(k) for k in path[1:]), value) for path, value in found], spec


def _key(entry: object) -> str:
    return str(getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", entry))))


def is_input(value: object) -> bool:
    """Whether a leaf of a call becomes an input of the graph: a tensor, or a number."""
    return isinstance(value, Tensor) or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _as_tensor(value: Tensor | float) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value)


@contextmanager
def preserved(model: object) -> Iterator[Runtime | None]:
    """Set a model to evaluation mode without gradients; restore mode, buffers, random state and observers on exit."""
    if not isinstance(model, nn.Module):  # a scripted function has no mode and no state
        with torch.random.fork_rng(), torch.no_grad():
            yield None
        return
    runtime = runtime_of(model)
    buffers = [
        (module, name, buffer.clone())
        for module in model.modules()
        if isinstance(module, QuantizedBase)
        for name, buffer in module.named_buffers(recurse=False)
    ]
    with nullcontext() if runtime is None else _kept(runtime):
        try:
            with evaluating(model), torch.random.fork_rng(), torch.no_grad():
                yield runtime
        finally:
            for module, name, content in buffers:
                current = getattr(module, name)
                if not torch.equal(current, content):
                    current.copy_(content)


@contextmanager
def _kept(runtime: Runtime) -> Iterator[None]:
    """Restore on exit what an export or a recording sets in a runtime; inside, parameters are read anew."""
    before = runtime.emitter, runtime.recorder, runtime.has_open_sizes, runtime.ops
    runtime.is_thorough = True  # nothing that was edited behind torch's back may get into a file or a proof
    try:
        yield
    finally:
        runtime.abandon()
        runtime.is_thorough = False
        runtime.emitter, runtime.recorder, runtime.has_open_sizes, runtime.ops = before
        runtime.announcer = None
