# SPDX-License-Identifier: Apache-2.0
"""The data that a model runs on: the forms that inputs may have (page "Inputs"), tensors inside nests, one forward pass."""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, IterableDataset

from linger.errors import LingerError, UsageError, listing

_Tree = TypeVar("_Tree")

Batch = tuple[Any, ...]
"""The arguments of one forward pass: those by position; a `BoundBatch` has others by name."""

Function = Callable[..., Any]
Keywords = dict[str, Any] | None
"""A torch function and its keyword arguments, as a TorchFunctionMode gets them."""

SPELLINGS = (
    "A tuple holds the arguments of one forward pass, a list holds batches: (x, y) is one batch of two arguments, "
    "[x1, x2] are two batches of one, [(x1, y1), (x2, y2)] are two batches of two, and ((x,), {'mask': m}) gives an "
    "argument by its name"
)
_ONE_OF = (
    "Give a tensor, a tuple with the arguments of one forward pass, (args, kwargs), a dict by parameter name, or an iterable "
    "of these"
)
Pass = tuple[Batch, dict[str, Any]]
"""Arguments by position and by name."""

_NO_BATCH = (str, bytes, os.PathLike, int, float, complex, type, nn.Module, type(None))


class BoundBatch(tuple[Any, ...]):
    """The arguments of one forward pass, bound to its parameters: by position as far as possible, the rest in `keywords`."""

    keywords: dict[str, Any]

    def __new__(cls, arguments: Iterable[Any] = (), keywords: Mapping[str, Any] | None = None) -> Self:
        """Arguments that forward takes."""
        made = super().__new__(cls, arguments)
        made.keywords = dict(keywords or {})
        return made


def keywords_of(batch: Batch) -> dict[str, Any]:
    """The arguments of a batch that are given by name."""
    return batch.keywords if isinstance(batch, BoundBatch) else {}


def values_of(batch: Batch) -> Batch:
    """Every argument of a batch, those by name at the end."""
    return (*batch, *keywords_of(batch).values())


def rows_of_batch(batch: Batch, rows: slice) -> Batch:
    """Some rows of every tensor of a batch; other arguments stay."""

    def cut(part: Any) -> Any:
        return part[rows] if isinstance(part, Tensor) else part

    return BoundBatch(map(cut, batch), {name: cut(part) for name, part in keywords_of(batch).items()})


def joined_rows(batches: Sequence[Batch]) -> Batch:
    """Batches of tensors as one batch."""
    names = keywords_of(batches[0])
    return BoundBatch(
        (torch.cat(parts) for parts in zip(*batches, strict=True)),
        {name: torch.cat([keywords_of(batch)[name] for batch in batches]) for name in names},
    )


@dataclass(frozen=True)
class Forward:
    """What a model's forward takes.

    Attributes:
        name: The class of the model.
        signature: None where Python cannot tell.
        kind: The type of the model's real numbers, for arrays of 64 bits, which is what numpy gives by itself.
    """

    name: str
    signature: inspect.Signature | None
    kind: torch.dtype = torch.float32

    @classmethod
    def of(cls, model: object) -> Forward:
        """The forward of a module, or a function."""
        numbers = (p.dtype for p in model.parameters()) if isinstance(model, nn.Module) else ()
        kind = next((dtype for dtype in numbers if dtype.is_floating_point), torch.float32)
        return cls(type(model).__name__, _signature(model), kind)

    @property
    def needed(self) -> int:
        """How many arguments it cannot do without."""
        found = () if self.signature is None else self.signature.parameters.values()
        return sum(p.kind not in _REST and p.default is inspect.Parameter.empty for p in found)

    @property
    def has_names_only(self) -> bool:
        """Whether some parameter can be given by name only."""
        found = () if self.signature is None else self.signature.parameters.values()
        return any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in found)

    @property
    def names(self) -> list[str]:
        """The parameters that can be given by name, and those by position only."""
        return (
            [] if self.signature is None else [n for n, p in self.signature.parameters.items() if p.kind not in _REST]
        )

    def takes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the arguments bind."""
        return self.objection(args, kwargs) is None

    def objection(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Why the arguments do not bind; None where they do."""
        try:
            if self.signature is not None:
                self.signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return None

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundBatch:
        """Arguments by position up to the first one that is left out, the others by name, in the order of the signature."""
        rest, positional = dict(kwargs), list(args)
        for parameter in () if self.signature is None else list(self.signature.parameters.values())[len(args) :]:
            if parameter.kind != inspect.Parameter.POSITIONAL_OR_KEYWORD or parameter.name not in rest:
                break
            positional.append(rest.pop(parameter.name))
        known = [name for name in self.names if name in rest]
        return BoundBatch(positional, {name: rest[name] for name in dict.fromkeys((*known, *rest))})

    def in_order(self, args: Batch, kwargs: Mapping[str, Any]) -> Pass:
        """Arguments by name in the order of the parameters, so that a file has one order of inputs; unknown ones at the end."""
        places = {name: place for place, name in enumerate(self.names)}
        return args, dict(sorted(kwargs.items(), key=lambda item: places.get(item[0], len(places))))

    def __str__(self) -> str:
        return f"{self.name}.forward{self.signature or '(…)'}"


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _signature(model: Any) -> inspect.Signature | None:
    """The parameters of forward; of a scripted module or function those of its schema."""
    script = model.forward if isinstance(model, torch.jit.ScriptModule) else model
    if isinstance(script, (torch.jit.ScriptFunction, torch.ScriptMethod)):
        by_place, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        schema: Any = script.schema
        return inspect.Signature(
            [
                inspect.Parameter(
                    a.name,
                    by_name if a.kwarg_only else by_place,
                    default=a.default_value if a.has_default_value() else inspect.Parameter.empty,
                )
                for a in schema.arguments
                if a.name != "self"
            ]
        )
    with suppress(TypeError, ValueError):
        return inspect.signature(getattr(model, "forward", model))
    return None


def as_batches(model: object, inputs: object, where: str = "inputs") -> Iterable[Batch]:
    """One bound batch of arguments per forward pass, from every form that inputs may have.

    A tensor or array is the one argument of one pass. A tuple holds the arguments of one pass; it may end in a dict of
    keywords, and a tuple with a dict is (args, kwargs). A dict holds arguments by name. Anything else that can be iterated over
    gives batches in these forms, and lists as a DataLoader gives them: what forward does not take at the end is labels.

    Raises:
        UsageError: What was given is none of these, or not what forward takes.
    """
    forward = Forward.of(model)
    passes = passes_of(model, inputs, where)
    return (forward.bound(*one) for one in passes)


def passes_of(model: object, inputs: object, where: str, extra: Mapping[str, Any] | None = None) -> Iterable[Pass]:
    """The arguments of each forward pass: by position as they were given, and by name, with `extra`, in forward's order.

    Raises:
        UsageError: As `as_batches`.
    """
    forward = Forward.of(model)
    if _is_one_pass(inputs, where):
        return [forward.in_order(*read_arguments(forward, inputs, extra, where=where))]
    items = cast(Iterable[object], inputs)
    return (forward.in_order(*read_arguments(forward, item, extra, where=where, is_item=True)) for item in items)


def first_pass(model: object, inputs: object, where: str, extra: Mapping[str, Any] | None = None) -> Pass:
    """The arguments of the only pass, or of the first one.

    Raises:
        UsageError: As `as_batches`, or there is none.
    """
    with torch.random.fork_rng(devices=[]):  # a loader may shuffle
        for found in passes_of(model, inputs, where, extra):
            return found
    raise UsageError(f"{where}: there is no batch in it. {_ONE_OF}.")


def _is_one_pass(inputs: object, where: str) -> bool:
    """Whether this is one batch, not an iterable of batches; anything else is refused."""
    if isinstance(inputs, Dataset) and not isinstance(inputs, IterableDataset):
        raise UsageError(
            f"{where}: a Dataset gives samples. Give batches: torch.utils.data.DataLoader(dataset, batch_size=32)."
        )
    if isinstance(inputs, (Tensor, np.ndarray, tuple, Mapping)):
        return True
    if isinstance(inputs, _NO_BATCH) or not isinstance(inputs, Iterable):
        raise UsageError(f"{where}: {type(inputs).__name__} is no batch. {_ONE_OF}.")
    return False


def read_arguments(
    forward: Forward, item: object, extra: Mapping[str, Any] | None = None, *, where: str, is_item: bool = False
) -> Pass:
    """(args, kwargs) of one pass: the first reading that forward takes.

    Args:
        forward: What takes them.
        item: One batch in any form.
        extra: Further keywords of the pass.
        where: Whose argument it is.
        is_item: It comes out of an iterable: a list holds arguments, too, and labels may be anything.

    Raises:
        UsageError: No reading fits.
    """
    if isinstance(item, BoundBatch):
        return tuple(item), {**item.keywords, **(extra or {})}
    if isinstance(item, _NO_BATCH):
        raise UsageError(f"{where}: {type(item).__name__} is no batch. {_ONE_OF}.")
    item, extra = as_tensors(item, forward, where), dict(extra or {})
    if isinstance(item, Mapping):
        return _by_name(forward, item, extra, where)
    is_sequence = isinstance(item, (tuple, list)) if is_item else isinstance(item, tuple)
    if not is_sequence or isinstance(item, PackedSequence):
        return (item,), extra
    parts = tuple(cast(Sequence[Any], item))
    readings = [*_with_keywords(parts, forward), (parts, {})]
    if isinstance(item, list) and _takes_a_list(forward):
        readings.insert(0, ((item,), {}))
    if isinstance(item, list) and forward.needed < len(parts) and can_be_labels(parts):
        readings.insert(0, (parts[:-1], {}))
    for args, kwargs in readings:
        if forward.takes(args, {**kwargs, **extra}):
            return args, {**kwargs, **extra}
    shorter = _without_labels(forward, parts, extra, where, is_item=is_item)
    if shorter is None:
        raise UsageError(_refusal(forward, parts, extra, where))
    return shorter, extra


def _with_keywords(parts: Batch, forward: Forward) -> Iterator[Pass]:
    """(args, kwargs), then arguments that end in a dict of keywords, which is how torch.onnx.export takes them."""
    last = parts[-1] if parts else None
    if not isinstance(last, dict):
        return
    if len(parts) == 2 and isinstance(parts[0], tuple) and all(isinstance(key, str) for key in last):
        yield parts[0], last
    if all(key in forward.names for key in last):
        yield parts[:-1], last


def _by_name(forward: Forward, given: Mapping[Any, Any], extra: dict[str, Any], where: str) -> Pass:
    """A dict as arguments by name, without what forward does not take; else as the one argument."""
    plain = {str(key): value for key, value in given.items()}
    known = {key: value for key, value in plain.items() if key in forward.names}
    if forward.takes((), {**plain, **extra}):
        return (), {**plain, **extra}
    free = [name for name in forward.names if name not in known]
    typos = [
        f"{key} (is it {near[0]}?)"
        for key in plain
        if key not in known and (near := difflib.get_close_matches(key, free, 1))
    ]
    if known and not typos and forward.takes((), {**known, **extra}):
        return (), {**known, **extra}
    if not known and forward.takes((given,), extra):
        return (given,), extra
    unknown = typos or [key for key in plain if key not in known]
    raise UsageError(
        f"{where}: {forward} does not take {listing(unknown or plain)} by name. Give its arguments by their names: "
        f"{listing(forward.names)}."
    )


def can_be_labels(parts: Sequence[Any]) -> bool:
    """Whether the last part of a batch is a whole number for each row of the first."""
    last, first = parts[-1], parts[0]
    is_whole = isinstance(last, Tensor) and not (last.is_floating_point() or last.is_complex())
    return is_whole and isinstance(first, Tensor) and bool(first.dim() and last.dim()) and len(first) == len(last)


def _takes_a_list(forward: Forward) -> bool:
    """Whether the annotation of the first parameter says that it is a list."""
    parameters = [] if forward.signature is None else list(forward.signature.parameters.values())
    return bool(parameters) and any(word in str(parameters[0].annotation) for word in ("list", "List", "Sequence"))


def _without_labels(
    forward: Forward, parts: Batch, extra: Mapping[str, Any], where: str, *, is_item: bool
) -> Batch | None:
    """The most arguments that forward takes, where what stands behind them can be labels."""
    if not parts or not isinstance(parts[0], Tensor):
        return None
    fitting = (parts[:n] for n in range(len(parts) - 1, 0, -1) if forward.takes(parts[:n], extra))
    args = next(fitting, None)
    if args is None:
        return None
    alike = [part for part in parts[len(args) :] if _is_alike(part, parts[0])]
    if not is_item and (alike or any(len(t) != len(parts[0]) for t in tensors_of(parts[len(args) :]) if t.dim())):
        return None
    if alike:
        warnings.warn(
            f"{where}: {forward} takes {len(args)} of the {len(parts)} parts of a batch; the last was left out, as targets are. "
            "Give batches without targets if they are none.",
            stacklevel=4,
        )
    return args


def _is_alike(part: object, first: Tensor) -> bool:
    """Whether something could be another input as well: labels are whole numbers, or have another shape."""
    if not isinstance(part, Tensor) or part.dtype != first.dtype or part.dim() != first.dim():
        return False
    return part.dim() > 2 or part.shape[1:] == first.shape[1:]


def _refusal(forward: Forward, parts: Batch, extra: Mapping[str, Any], where: str) -> str:
    if parts and all(isinstance(part, int) for part in parts):
        return f"{where}: {parts} is a shape. Give a tensor of this shape: torch.randn{parts}."
    count = f"{len(parts)} positional arguments" + (f" and {', '.join(extra)}" if extra else "")
    return f"{where}: {forward} does not take {count} ({forward.objection(parts, extra)}). {SPELLINGS}."


def as_tensors(item: Any, forward: Forward, where: str) -> Any:
    """Numpy arrays as tensors, real numbers of 64 bits in the model's own type."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        try:
            made = torch.from_numpy(np.array(leaf, order="C"))
        except TypeError as error:
            raise UsageError(
                f"{where}: an array of {leaf.dtype} holds no numbers. Give an array of numbers."
            ) from error
        return made.to(forward.kind) if made.dtype == torch.float64 else made

    plain = dict(item) if isinstance(item, Mapping) and not isinstance(item, dict) else item
    return tree_map(convert, plain) if any(isinstance(leaf, np.ndarray) for leaf in tree_leaves(plain)) else plain


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
        if isinstance(leaf, BoundBatch):
            return BoundBatch(tree_map(copy, tuple(leaf)), tree_map(copy, leaf.keywords))
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
    if isinstance(tree, BoundBatch):
        return values_of(tree)
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
    named = {**keywords_of(cast(Batch, arguments)), **(keywords or {})}
    try:
        return model(*arguments, **named)
    except LingerError:
        raise
    except Exception as error:  # the model's code may raise anything
        raise UsageError(failure_of(model, (*arguments, *named.values()), error)) from error


_SIGNATURES = ("received an invalid combination of arguments", "must be Tensor, not")


def failure_of(model: object, arguments: Sequence[Any], error: Exception, what: str = "the input") -> str:
    """Why a forward pass failed, and what to do; of torch's lists of signatures, that a tensor was expected."""
    shapes = [tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__ for a in arguments]
    reason = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, TypeError) and any(part in reason for part in _SIGNATURES):
        reason = f"{Forward.of(model)} computes with something there that is no tensor"
    else:
        reason = f"{type(error).__name__}: {reason}"
    is_plain = len(arguments) == 1 and isinstance(arguments[0], Tensor)
    remedy = "Give an input that the model accepts." + ("" if is_plain else f" {SPELLINGS}.")
    return f"{type(model).__name__}: the forward pass fails on {what} {shapes}: {reason}. {remedy}"
