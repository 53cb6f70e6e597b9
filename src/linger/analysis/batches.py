# SPDX-License-Identifier: Apache-2.0
"""The data that a model runs on: the forms that `inputs` may have, tensors inside nests, one forward pass on a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from linger.errors import LingerError, UsageError

Batch = tuple[Any, ...]
"""The positional arguments of one forward pass."""


def as_batches(inputs: Any) -> Iterable[Batch]:
    """One tuple of arguments per batch, from every form a user may give.

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


def fresh(tree: Any) -> Any:
    """A nest of arguments with every tensor copied, once: what is changed in place later does not reach the original."""
    made: dict[int, Tensor] = {}

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return leaf._replace(data=copy(leaf.data))
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = leaf.detach().clone()
        return made[id(leaf)]

    return tree_map(copy, tree)


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


def run_batch(model: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> Any:
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
            f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}. Give inputs that the model accepts: "
            "a tuple holds the arguments of one pass, a list holds batches."
        ) from error
