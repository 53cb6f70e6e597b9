# SPDX-License-Identifier: Apache-2.0
"""The data that a model runs on: the forms that inputs may have (page "Inputs"), tensors inside nests, one forward pass.

`evaluating` and `kept_attributes` restore a model's modes and plain attributes after a pass: a model may keep its state there.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
        batch = super().__new__(cls, arguments)
        batch.keywords = dict(keywords or {})
        return batch


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
    def parameters(self) -> list[inspect.Parameter]:
        """All parameters; none where Python cannot tell."""
        return [] if self.signature is None else list(self.signature.parameters.values())

    @property
    def needed(self) -> int:
        """How many arguments it cannot do without."""
        return sum(p.kind not in _REST and p.default is inspect.Parameter.empty for p in self.parameters)

    @property
    def has_names_only(self) -> bool:
        """Whether some parameter can be given by name only."""
        return any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in self.parameters)

    @property
    def names(self) -> list[str]:
        """The parameters that can be given by name, and those by position only."""
        return [p.name for p in self.parameters if p.kind not in _REST]

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
        for parameter in self.parameters[len(args) :]:
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
        parameters = []
        for argument in cast(Any, script.schema).arguments:
            default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
            place = "KEYWORD_ONLY" if argument.kwarg_only else "POSITIONAL_OR_KEYWORD"
            parameters.append(inspect.Parameter(argument.name, getattr(inspect.Parameter, place), default=default))
        return inspect.Signature([p for p in parameters if p.name != "self"])
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
    return itertools.starmap(forward.bound, passes_of(model, inputs, where))


def passes_of(model: object, inputs: object, where: str, extra: Mapping[str, Any] | None = None) -> Iterable[Pass]:
    """The arguments of each forward pass: by position as they were given, and by name, with `extra`, in forward's order.

    Raises:
        UsageError: As `as_batches`.
    """
    forward = Forward.of(model)
    if isinstance(inputs, Dataset) and not isinstance(inputs, IterableDataset):
        raise UsageError(
            f"{where}: a Dataset gives samples. Give batches: torch.utils.data.DataLoader(dataset, batch_size=32)."
        )
    if isinstance(inputs, (Tensor, np.ndarray, tuple, Mapping)):
        return [forward.in_order(*read_arguments(forward, inputs, extra, where=where))]
    if isinstance(inputs, _NO_BATCH) or not isinstance(inputs, Iterable):
        raise UsageError(f"{where}: {type(inputs).__name__} is no batch. {_ONE_OF}.")
    return (forward.in_order(*read_arguments(forward, item, extra, where=where, is_item=True)) for item in inputs)


def first_pass(model: object, inputs: object, where: str, extra: Mapping[str, Any] | None = None) -> Pass:
    """The arguments of the only pass, or of the first one.

    Raises:
        UsageError: As `as_batches`, or there is none.
    """
    with torch.random.fork_rng(devices=[]):  # a loader may shuffle
        for first in passes_of(model, inputs, where, extra):
            return first
    raise UsageError(f"{where}: there is no batch in it. {_ONE_OF}.")


def read_arguments(
    forward: Forward, item: object, extra: Mapping[str, Any] | None = None, *, where: str, is_item: bool = False
) -> Pass:
    """(args, kwargs) of one pass: the first reading that forward takes of a batch in any form.

    One that `is_item` comes out of an iterable: a list holds arguments, too, and labels may be anything.

    Raises:
        UsageError: No reading fits.
    """
    extra = dict(extra or {})
    if isinstance(item, BoundBatch):
        return tuple(item), item.keywords | extra
    if isinstance(item, _NO_BATCH):
        raise UsageError(f"{where}: {type(item).__name__} is no batch. {_ONE_OF}.")
    item = as_tensors(item, forward, where)
    if isinstance(item, Mapping):
        return _by_name(forward, item, extra, where)
    is_sequence = isinstance(item, (tuple, list)) if is_item else isinstance(item, tuple)
    if not is_sequence or isinstance(item, PackedSequence):
        return (item,), extra
    parts = tuple(cast(Sequence[Any], item))
    for args, kwargs in _readings(forward, parts, item):
        if forward.takes(args, {**kwargs, **extra}):
            return args, {**kwargs, **extra}
    shorter = _without_labels(forward, parts, extra, where, is_item=is_item)
    if shorter is None:
        raise UsageError(_refusal(forward, parts, extra, where))
    return shorter, extra


def _readings(forward: Forward, parts: Batch, item: object) -> Iterator[Pass]:
    """What the parts of a tuple or list may mean, the likeliest first.

    The dict at the end may hold the keywords of (args, kwargs), or follow the arguments, which is how torch.onnx.export takes it.
    """
    if isinstance(item, list):
        if forward.needed < len(parts) and can_be_labels(parts):
            yield parts[:-1], {}
        if re.search("list|List|Sequence", "".join(str(p.annotation) for p in forward.parameters[:1])):
            yield (item,), {}
    yield from _with_keywords(parts, forward)
    yield parts, {}


def _with_keywords(parts: Batch, forward: Forward) -> Iterator[Pass]:
    last = parts[-1] if parts else None
    if not isinstance(last, dict):
        return
    if len(parts) == 2 and isinstance(parts[0], tuple) and all(isinstance(key, str) for key in last):
        yield parts[0], last
    if all(key in forward.names for key in last):
        yield parts[:-1], last


def _by_name(forward: Forward, arguments: Mapping[Any, Any], extra: dict[str, Any], where: str) -> Pass:
    """A dict as arguments by name, without what forward does not take; else as the one argument."""
    plain = {str(key): value for key, value in arguments.items()}
    known = {name: plain[name] for name in forward.names if name in plain}
    typos, unknown = _wrong_names(plain, forward.names)
    readings: list[Pass] = [((), plain), ((), known) if known else ((arguments,), {})]
    for args, kwargs in readings[: 1 if known and typos else 2]:
        if forward.takes(args, {**kwargs, **extra}):
            return args, {**kwargs, **extra}
    raise UsageError(
        f"{where}: {forward} does not take {listing(typos or unknown)} by name. Give its arguments by their names: "
        f"{listing(forward.names)}."
    )


def _wrong_names(arguments: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names that look like typos, with what they may mean; and all that forward does not take, or all where it knows each."""
    unknown, free = [key for key in arguments if key not in names], [name for name in names if name not in arguments]
    near = {key: difflib.get_close_matches(key, free, 1) for key in unknown}
    return [f"{key} (is it {match[0]}?)" for key, match in near.items() if match], unknown or list(arguments)


def can_be_labels(parts: Sequence[Any]) -> bool:
    """Whether the last part of a batch is a whole number for each row of the first."""
    last, first = parts[-1], parts[0]
    is_whole = isinstance(last, Tensor) and not (last.is_floating_point() or last.is_complex())
    return is_whole and isinstance(first, Tensor) and bool(first.dim() and last.dim()) and len(first) == len(last)


def _without_labels(
    forward: Forward, parts: Batch, extra: Mapping[str, Any], where: str, *, is_item: bool
) -> Batch | None:
    """The most arguments that forward takes, where what stands behind them can be labels."""
    shorter = (parts[:n] for n in range(len(parts) - 1, 0, -1) if forward.takes(parts[:n], extra))
    args = next(shorter, (None,))
    if not isinstance(args[0], Tensor):
        return None
    rest = parts[len(args) :]
    alike = any(_is_alike(part, args[0]) for part in rest)
    lengths = {tuple(t.shape[:1]) for t in tensors_of(rest)}
    if not is_item and (alike or lengths - {(), tuple(args[0].shape[:1])}):
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
            tensor = torch.from_numpy(np.array(leaf, order="C"))
        except TypeError as error:
            text = f"{where}: an array of {leaf.dtype} holds no numbers. Give an array of numbers."
            raise UsageError(text) from error
        return tensor.to(forward.kind) if tensor.dtype == torch.float64 else tensor

    plain = dict(item) if isinstance(item, Mapping) and not isinstance(item, dict) else item
    return tree_map(convert, plain) if any(isinstance(leaf, np.ndarray) for leaf in tree_leaves(plain)) else plain


def fresh(tree: _Tree) -> _Tree:
    """A copy of a nest of arguments, tensors included: the original does not see what is changed in place later.

    A tensor that occurs twice is copied once.
    """
    copies: dict[int, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().clone()
        return copies[id(tensor)]

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
    parts: Iterable[object] = ()
    if isinstance(tree, Tensor):
        yield from [] if tree.is_meta else [tree]
    elif isinstance(tree, PackedSequence):
        parts = (tree.data,)
    elif isinstance(tree, Mapping):
        parts = tree.values()
    elif isinstance(tree, (tuple, list)):
        parts = values_of(cast(Batch, tree))
    elif is_dataclass(tree) and not isinstance(tree, type):
        parts = (getattr(tree, field.name) for field in fields(tree))
    for part in parts:
        yield from tensors_of(part)


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
    text = " ".join(str(error).split()).rstrip(".")
    reason = f"{type(error).__name__}: {text}"
    if isinstance(error, TypeError) and any(part in text for part in _SIGNATURES):
        reason = f"{Forward.of(model)} computes with something there that is no tensor"
    is_plain = len(arguments) == 1 and isinstance(arguments[0], Tensor)
    remedy = "Give an input that the model accepts." + ("" if is_plain else f" {SPELLINGS}.")
    return f"{type(model).__name__}: the forward pass fails on {what} {shapes}: {reason}. {remedy}"


_NEARLY = 1e-3
"""How far the sum of probabilities may be from 1."""


def class_axis(outputs: Sequence[Tensor]) -> int | None:
    """The axis along which the largest number is a decision; None where the outputs do not look like scores.

    One tensor of two axes is taken for scores. With more axes it is, where the numbers along one are probabilities or their
    logarithms: an image or a signal has channels too, and its largest channel decides nothing.
    """
    if len(outputs) != 1 or outputs[0].is_complex() or outputs[0].dim() < 2 or not outputs[0].numel():
        return None
    scores = outputs[0].double()
    if scores.dim() == 2:
        return -1 if scores.shape[-1] > 1 else None
    for axis in (-1, 1):
        if scores.shape[axis] > 1 and (_are_shares(scores, axis) or _are_shares(scores.exp(), axis)):
            return axis
    return None


def _are_shares(x: Tensor, axis: int) -> bool:
    close = (x.sum(axis) - 1.0).abs().max() < _NEARLY * x.shape[axis]
    return bool(close) and bool((x >= 0).all())


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
            if not type(module).__module__.startswith("linger."):  # whose attributes are no state of the user's
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
        own = {name: value for name, value in attributes.items() if _is_of_user(name)}
        own_buffers = dict(buffers)

        def undo() -> None:
            for name in [n for n in attributes if n not in own and _is_of_user(n)]:
                del attributes[name]
            attributes.update(own)
            buffers.clear()
            buffers.update(own_buffers)

        self._undo.append(undo)
        attributes.update({name: self._visible(value) for name, value in own.items()})
        buffers.update({name: cast(Tensor | None, self._visible(value)) for name, value in own_buffers.items()})

    def restore(self) -> None:
        """Bring everything back."""
        for undo in reversed(self._undo):
            undo()

    def _visible(self, value: object) -> object:
        """The value that the pass will see; everything in it that can be changed is remembered."""
        if id(value) in self._changed:
            return self._changed[id(value)]
        if isinstance(value, nn.Parameter):
            return value  # a weight is no state between calls, and may be large
        if isinstance(value, Tensor):
            visible: object = self._change(value)
            self._keep_tensor(value)
        elif isinstance(value, tuple):
            parts = [self._visible(part) for part in value]
            is_same = all(new is old for new, old in zip(parts, value, strict=True))
            visible = value if is_same else getattr(type(value), "_make", type(value))(parts)  # a named tuple stays one
        else:
            visible = self._changed[id(value)] = value  # before its content, which may lead back to it
            self._keep_content(value)
        self._changed[id(value)] = visible
        return visible

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
            value.update({key: self._visible(item) for key, item in value.items()})
        elif not isinstance(value, set):
            for index, item in enumerate(content):
                value[index] = self._visible(item)

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


def _is_of_user(name: str) -> bool:
    return name not in _OF_TORCH and not name.startswith("_linger")
