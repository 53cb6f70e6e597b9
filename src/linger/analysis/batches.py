# SPDX-License-Identifier: Apache-2.0
"""The data that a model runs on: the forms that `inputs` may have, tensors inside nests, one forward pass on a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from linger.errors import LingerError, UsageError

_Tree = TypeVar("_Tree")

Batch = tuple[Any, ...]
"""The positional arguments of one forward pass."""

Function = Callable[..., Any]
Keywords = dict[str, Any] | None
"""A torch function and its keyword arguments, as a TorchFunctionMode gets them."""

_FORMS = "Give inputs that the model accepts: a tuple holds the arguments of one pass, a list holds batches."


def as_batches(inputs: object) -> Iterable[Batch]:
    """One tuple of arguments per batch, from every form that inputs may have.

    A tensor is the one argument of one batch, a tuple holds the arguments of one batch, anything else that can be
    iterated over gives batches: tensors, tuples, or single arguments of another kind.

    Raises:
        UsageError: What was given is none of these.
    """
    if isinstance(inputs, tuple):
        return [inputs]
    if isinstance(inputs, Tensor):
        return [(inputs,)]
    if isinstance(inputs, (str, bytes, Mapping)) or not isinstance(inputs, Iterable):
        raise UsageError(
            f"inputs: {type(inputs).__name__} is no batch. Give a tensor, a tuple with the arguments of one forward "
            "pass, or an iterable of either."
        )
    return (batch if isinstance(batch, tuple) else (batch,) for batch in inputs)


def fresh(tree: _Tree) -> _Tree:
    """A copy of a nest of arguments, tensors included: the original does not see what is changed in place later.

    A tensor that occurs twice is copied once.
    """
    made: dict[int, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor.detach().clone()
        return made[id(tensor)]

    def copy(leaf: object) -> object:
        if isinstance(leaf, PackedSequence):
            return leaf._replace(data=once(leaf.data))
        return once(leaf) if isinstance(leaf, Tensor) else leaf

    return cast(_Tree, tree_map(copy, tree))


def tensors_of(tree: object) -> Iterator[Tensor]:
    """Every tensor in a model's arguments or results, in order; a meta tensor has no values and does not count.

    Looks into tuples, lists, mappings, dataclasses and packed sequences (whose data counts, not their sizes).
    """
    if isinstance(tree, Tensor):
        if not tree.is_meta:
            yield tree
        return
    for part in _parts_of(tree):
        yield from tensors_of(part)


def _parts_of(tree: object) -> Iterable[object]:
    if isinstance(tree, PackedSequence):
        return (tree.data,)
    if isinstance(tree, Mapping):
        return tree.values()
    if isinstance(tree, (tuple, list)):
        return tree
    if is_dataclass(tree) and not isinstance(tree, type):
        return (getattr(tree, field.name) for field in fields(tree))
    return ()


def float_tensors(tree: object) -> list[Tensor]:
    """The tensors of a result that hold real or complex numbers."""
    return [tensor for tensor in tensors_of(tree) if tensor.is_floating_point() or tensor.is_complex()]


def run_batch(
    model: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None, *, what_to_do: str = _FORMS
) -> Any:
    """One forward pass whose failure says what to do.

    Raises:
        UsageError: The model does not accept the batch.
    """
    try:
        return model(*arguments, **(keywords or {}))
    except LingerError:
        raise
    except Exception as error:  # the model's code may raise anything
        shapes = [tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__ for a in arguments]
        raise UsageError(
            f"{type(model).__name__}: the forward pass fails on the input {shapes}: "
            f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}. {what_to_do}"
        ) from error
