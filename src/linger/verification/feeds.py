# SPDX-License-Identifier: Apache-2.0
"""Inputs of a file: made up from seeds, spread over the range of each Quant, given by users, and of other sizes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import LingerError, UsageError, listing
from linger.graph.core.nodes import required_inputs
from linger.verification.array_files import Array, load_arrays

if TYPE_CHECKING:
    from linger.runtime.session import Session

Feed = dict[str, Array]
Inputs = object
"""A path of an .npz or .npy file, an array, a mapping from names to arrays, a tuple of arrays, or an iterable of these."""

_OPEN_SIZE = 2
"""The size of generated inputs along an open axis."""

_LARGEST_INPUT = 2**28
"""The most numbers that are generated; a file that declares more is damaged, or its user has real inputs."""

_FLOATS: dict[str, Any] = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
_INTEGERS: dict[str, tuple[Any, int, int]] = {
    "tensor(int8)": (np.int8, -(2**7), 2**8),
    "tensor(uint8)": (np.uint8, 0, 2**8),
    "tensor(int16)": (np.int16, -(2**15), 2**16),
    "tensor(uint16)": (np.uint16, 0, 2**16),
    "tensor(int32)": (np.int32, -8, 16),
    "tensor(int64)": (np.int64, -8, 16),
    "tensor(bool)": (bool, 0, 2),
}
"""The type, the least number and the count of numbers; 32 and 64 bits may be indices, so theirs are near zero."""

_UNIFORM_PARTS = 12
_FRACTION_BITS = 20

_SPREAD = 3.0
"""Standard deviations in the range of a Quant: nearly all integers occur, and a few saturate."""


def given_feeds(inputs: Inputs, model: ir.Model) -> list[Feed]:
    """One feed per batch, from inputs in any of the forms that `Inputs` lists.

    Raises:
        UsageError: A file that cannot be read, or arrays that are not the model's inputs; all of them are named.
    """
    batches = _batches(inputs)
    if not batches:
        raise UsageError("inputs: the list is empty. Give at least one feed, or leave inputs out.")
    labels = [f"inputs[{number}]" for number in range(len(batches))] if len(batches) > 1 else ["inputs"]
    feeds = [_feed(batch, model, label) for batch, label in zip(batches, labels, strict=True)]
    return [part for feed in feeds for part in cut(feed, model)]


def _batches(inputs: Inputs) -> list[Any]:
    """The batches; a tuple is one, unless none of its parts is an array."""
    is_one = isinstance(inputs, (str, bytes, os.PathLike, Mapping)) or hasattr(inputs, "__array__")
    if is_one or not isinstance(inputs, Iterable):
        return [inputs]
    parts = list(inputs)
    is_keyed = len(parts) > 1 and isinstance(parts[-1], Mapping) and not isinstance(parts[0], Mapping)
    nested = (str, os.PathLike, Mapping, tuple, list)
    is_pass = isinstance(inputs, tuple) and (is_keyed or not all(isinstance(part, nested) for part in parts))
    return [inputs] if is_pass else parts


def fitted(feed: Feed, model: ir.Model, where: str) -> Feed:
    """A feed in the types of the model's inputs: float64 becomes float32, and so on, as long as no integer changes.

    Raises:
        UsageError: Types or fixed sizes that do not fit; all of them are named.
    """
    made, wrong = {}, []
    for value in required_inputs(model):
        array = feed[value.name or ""]
        cast = _cast(array, _kind(value))
        if cast is None or not _fits(value, array.shape, feed, model):
            given = f"{array.dtype}{list(array.shape)}"
            wrong.append(f"{value.name} is {given}, expected {_type_text(value)}{_shape_text(value)}")
        else:
            made[value.name or ""] = cast
    if wrong:
        raise UsageError(f"{where}: {listing(wrong)}.")
    return made


def _cast(array: Array, kind: np.dtype[Any] | None) -> Array | None:
    """An array in the type of an input; None where an integer would change."""
    if kind is None:
        return array
    cast = array.astype(kind, casting="unsafe")
    is_exact = (kind.kind == "f" and array.dtype.kind in "iuf") or bool((cast == array).all())
    return cast if is_exact else None


def _fits(value: ir.Value, given: tuple[int, ...], feed: Feed, model: ir.Model) -> bool:
    """Whether the fixed sizes fit; the first may be a multiple, see `cut`."""
    if value.shape is None:
        return True
    if len(value.shape) != len(given):
        return False
    return batch_parts(feed, model) > 1 or tuple(_sizes(value, given)) == given


def cut(feed: Feed, model: ir.Model) -> list[Feed]:
    """A feed that holds several of the file's batches as separate feeds: 16 images for a file that takes one are 16."""
    parts = batch_parts(feed, model)
    if parts == 1:
        return [feed]
    pieces = {name: np.split(array, parts) for name, array in feed.items()}
    return [{name: split[i] for name, split in pieces.items()} for i in range(parts)]


def batch_parts(feed: Feed, model: ir.Model) -> int:
    """How many batches of the file's fixed size a feed holds; 1 where the inputs do not agree on a number."""
    counts = {_batch_count(value, feed.get(value.name or "")) for value in required_inputs(model)}
    return (counts.pop() or 1) if len(counts) == 1 else 1


def _batch_count(value: ir.Value, array: Array | None) -> int | None:
    """How many batches of an input's fixed size an array holds; None where it does not fit."""
    size = _first_size(value)
    if array is None or size is None or value.shape is None or array.ndim != len(value.shape):
        return None
    if array.shape[0] % size or array.shape[1:] != tuple(_sizes(value, array.shape))[1:]:
        return None
    return int(array.shape[0] // size)


def _sizes(value: ir.Value, given: tuple[int, ...]) -> list[int]:
    """The sizes of an input, open ones as given."""
    assert value.shape is not None  # the caller has looked
    return [d if isinstance(d, int) else n for d, n in zip(value.shape, given, strict=True)]


def _first_size(value: ir.Value) -> int | None:
    shape = value.shape
    return shape[0] if shape is not None and len(shape) and isinstance(shape[0], int) and shape[0] else None


def _feed(batch: object, model: ir.Model, where: str) -> Feed:
    names = [value.name or "" for value in required_inputs(model)]
    where = str(batch) if isinstance(batch, (str, os.PathLike)) else where
    arrays = _named(batch, names, where)
    missing = [name for name in names if name not in arrays]
    is_numbered = isinstance(batch, (str, os.PathLike)) and len(arrays) == len(names) == len(missing)
    if is_numbered:  # numpy.savez names by number
        return fitted(dict(zip(names, arrays.values(), strict=True)), model, where)
    if not missing:
        return fitted(arrays, model, where)
    has = listing(arrays) or "nothing"
    raise UsageError(f"{where}: it lacks {listing(missing)} and has {has}. The model's inputs are {listing(names)}.")


def _named(batch: object, names: Sequence[str], where: str) -> dict[str, Array]:
    if isinstance(batch, (str, os.PathLike)):
        return load_arrays(Path(batch), "with the model's inputs")
    from linger.runtime.session import pass_of  # with ONNX Runtime, which commands that only look at a file do without

    read = pass_of(batch, names, where)
    if not isinstance(read, dict) and len(read) != len(names):
        raise UsageError(
            f"{where}: the file has {len(names)} inputs ({listing(names)}), {len(read)} were given. A tuple holds the arrays of "
            "one pass, a list holds batches: (x, y) is one batch of two inputs, [x1, x2] are two batches of one."
        )
    found = read if isinstance(read, dict) else dict(zip(names, read, strict=True))
    wrong = [f"{name} ({array.dtype})" for name, array in found.items() if array.dtype.kind not in "iufb"]
    if wrong:
        raise UsageError(f"{where}: these are no arrays of numbers: {listing(wrong)}. Give numpy arrays.")
    return found


def _kind(value: ir.Value) -> np.dtype[Any] | None:
    if value.dtype is None or value.dtype == ir.DataType.STRING:
        return None
    kind = value.dtype.numpy()
    return kind if kind.kind in "iufb" else None


def _type_text(value: ir.Value) -> str:
    return "no type" if value.dtype is None else "open rank" if value.shape is None else value.dtype.name.lower()


def _shape_text(value: ir.Value) -> str:
    return "" if value.shape is None else f"[{', '.join(str(d) if isinstance(d, int) else '?' for d in value.shape)}]"


def generated_shapes(session: Session, open_size: int = _OPEN_SIZE) -> dict[str, tuple[int, ...]]:
    """The shapes of a session's inputs by name, with one size for all that are open."""
    return {i.name: tuple(d if isinstance(d, int) else open_size for d in i.shape) for i in session.get_inputs()}


def generated_feeds(session: Session, seed: int, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Feed:
    """Random inputs for a session, by name: for a seed the same numbers on every machine, with every version of numpy.

    Floats are close to a standard normal distribution, integers of 8 and 16 bits take their whole range, wider ones
    (they may be indices) −8 … 7, booleans are true half of the time. Without shapes, open sizes become 2.

    Raises:
        UsageError: Inputs of other types, or too large to be made up; all of them are named.
    """
    shapes = shapes or generated_shapes(session)
    kinds = {i.name: i.type for i in session.get_inputs()}
    strange = [f"{name} ({kind})" for name, kind in kinds.items() if kind not in {*_FLOATS, *_INTEGERS}]
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    strange += [f"{name} ({size} elements)" for name, size in sizes.items() if size > _LARGEST_INPUT]
    if strange:
        raise UsageError(f"no values can be made up for the inputs {listing(strange)}. Give the inputs.")
    # the raw bits of PCG64 are guaranteed for a seed; numpy's distributions may change
    bits = np.random.PCG64(seed)
    return {name: _generated(bits, sizes[name], kinds[name]).reshape(shape) for name, shape in shapes.items()}


def _generated(bits: np.random.PCG64, count: int, kind: str) -> Array:
    if kind in _FLOATS:
        return _nearly_normal(bits, count).astype(_FLOATS[kind])
    made, least, span = _INTEGERS[kind]
    raw = np.asarray(bits.random_raw(count), np.uint64) >> np.uint64(40)
    return np.asarray((raw % np.uint64(span)).astype(np.int64) + least).astype(made)


def _nearly_normal(bits: np.random.PCG64, count: int) -> NDArray[np.float64]:
    """Sums of twelve uniform numbers, minus six: variance 1, and exact, so that no library's logarithm matters."""
    total = np.zeros(count, np.int64)
    for _ in range(_UNIFORM_PARTS // 3):
        raw = np.asarray(bits.random_raw(count), np.uint64)
        for part in range(3):
            total += ((raw >> np.uint64(part * _FRACTION_BITS)) & np.uint64(2**_FRACTION_BITS - 1)).astype(np.int64)
    return np.asarray(total / 2**_FRACTION_BITS - _UNIFORM_PARTS / 2)


def spread_feeds(model: ir.Model, *, seed: int, batches: int) -> list[Feed]:
    """Random inputs for a model; a float input spreads over the range of the Quant behind it, open sizes become 2.

    Raises:
        UsageError: Inputs of other types, without a number of axes, or too large; all of them are named.
    """
    inputs = required_inputs(model)
    wrong = [f"{v.name} ({_type_text(v)}{_shape_text(v)})" for v in inputs if not _can_be_made_up(v)]
    if wrong:
        raise UsageError(f"no values can be made up for the inputs {listing(wrong)}. Give inputs.")
    generator = np.random.default_rng(seed)
    return [{v.name or "": _made_up(v, generator) for v in inputs} for _ in range(batches)]


def _can_be_made_up(value: ir.Value) -> bool:
    return _kind(value) is not None and value.shape is not None and math.prod(_made_up_sizes(value)) <= _LARGEST_INPUT


def _made_up_sizes(value: ir.Value) -> list[int]:
    assert value.shape is not None  # the caller has looked
    return [d if isinstance(d, int) and d >= 0 else _OPEN_SIZE for d in value.shape]


def _made_up(value: ir.Value, generator: np.random.Generator) -> Array:
    kind = _kind(value)
    assert kind is not None  # spread_feeds has looked
    shape = _made_up_sizes(value)
    if kind.kind == "f":
        return (generator.standard_normal(shape) * _deviation(value)).astype(kind)
    if kind.kind == "b":
        return generator.integers(0, 2, shape).astype(kind)
    if kind.itemsize <= 2:  # 8 and 16 bits are quantized tensors: the whole range
        ends = np.iinfo(kind)
        return generator.integers(ends.min, ends.max + 1, shape).astype(kind)
    return generator.integers(1, 3, shape).astype(kind)  # indices and lengths: small ones fit most often


def _deviation(value: ir.Value) -> float:
    for node in value.consumers():
        scale, bits = node.attributes.get("scale_x"), node.attributes.get("data_bits")
        if node.op_type == "Quant" and scale is not None and scale.as_float() > 0:
            width = 8 if bits is None else bits.as_int()
            return float(2.0 ** (width - 1) / scale.as_float() / _SPREAD)
    return 1.0


T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]
Sizes = Mapping[str, Sequence[Sequence[int]]] | int
"""Shapes of inputs by name, each a list of trials; or how many sizes linger chooses itself."""

OWN_TRIALS = 2
"""How many sizes are tried where the user has named none."""

_LARGE = 64
"""From here on a size grows by half only, so that a trial costs about as much as the example."""

_MOST_HALVINGS = 32
"""The largest power of two by which the sizes of an image usually divide: five halvings."""


@dataclass(frozen=True)
class OpenAxis:
    """An axis of an input whose size the file leaves open; `size` is that of the example."""

    tensor: str
    axis: int
    label: str
    size: int

    def __str__(self) -> str:
        return f"axis {self.axis} of {self.tensor!r}"


def other_sizes(axes: Sequence[OpenAxis]) -> Iterator[dict[OpenAxis, int]]:
    """Proposals of a size for every open axis, never the example's size; the ones that reveal most come first."""
    proposals: list[dict[OpenAxis, int]] = []
    for key in _KEYS:
        groups: dict[Hashable, list[OpenAxis]] = {}
        for axis in axes:
            groups.setdefault(key(axis), []).append(axis)
        for rule in (_grown, _shrunk, _in_steps):
            sizes = [_size_of(group, number, rule) for number, group in enumerate(groups.values())]
            proposal = {axis: size for group, size in zip(groups.values(), sizes, strict=True) for axis in group}
            if proposal and proposal not in proposals:
                proposals.append(proposal)
                yield proposal


def resized_shape(name: str, shape: Sequence[int], sizes: Mapping[OpenAxis, int]) -> tuple[int, ...]:
    """The shape of an input at the sizes of a proposal."""
    new = {axis.axis: size for axis, size in sizes.items() if axis.tensor == name}
    return tuple(new.get(axis, int(size)) for axis, size in enumerate(shape))


_KEYS: tuple[Callable[[OpenAxis], Hashable], ...] = (
    lambda axis: axis.label,
    lambda axis: (axis.axis, axis.size),
    lambda axis: axis.size,
)
"""What says which axes belong together: names; places, because those of several inputs may differ in their names; sizes."""


def _size_of(group: Sequence[OpenAxis], number: int, rule: Callable[[int, int], int]) -> int:
    size = group[0].size
    is_batch = all(axis.axis == 0 for axis in group)
    new = (3 if rule is _grown else 2) if is_batch else rule(size, number)
    while new == size:
        new += 2
    return new


def _grown(size: int, number: int) -> int:
    return ((size * 3 // 2 if size >= _LARGE else 2 * size) | 1) + 2 * number


def _shrunk(size: int, number: int) -> int:
    return ((size // 2) | 1) + 2 * number


def _in_steps(size: int, number: int) -> int:
    return size + (min(size & -size, _MOST_HALVINGS) or 1) * (number + 1)


@dataclass
class SizeTrials:
    """The sizes that were asked for, those that were tried, and those that were impossible."""

    wanted: Sizes
    tried: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def are_named(self) -> bool:
        """Whether the user named the sizes: then one that is impossible is an error."""
        return not isinstance(self.wanted, int)

    def results(self, run: Callable[[int, Shapes], T], file: ir.Model, *examples: Shapes) -> Iterator[T]:
        """Run at one size after another, until enough were possible.

        Args:
            run: Takes the number of the trial and the shapes of all inputs. A LingerError means that the size is
                impossible: such a size is skipped, unless the user named it.
            file: The file whose open axes are resized.
            examples: The shapes that were run before, by the names of the inputs.
        """
        for number, shapes in enumerate(self.shapes(file, *examples)):
            try:
                result = run(number, shapes)
            except LingerError:
                if self.are_named:
                    raise
                self.note(shapes, is_possible=False)
            else:
                self.note(shapes, is_possible=True)
                yield result

    def shapes(self, file: ir.Model, *examples: Shapes) -> Iterator[Shapes]:
        """Shapes of all inputs to try next, until enough were noted as possible; examples were run before."""
        if not isinstance(self.wanted, int):
            yield from _shapes_named(self.wanted, examples[0], file)
            return
        seen: list[Shapes] = list(examples)
        for example in examples:
            for sizes in other_sizes(open_axes_of(file, example)):
                shapes = {name: resized_shape(name, shape, sizes) for name, shape in example.items()}
                if len(self.tried) >= self.wanted:
                    return
                if shapes not in seen:
                    seen.append(shapes)
                    yield shapes

    def note(self, shapes: Shapes, *, is_possible: bool) -> None:
        """Remember whether a size was possible."""
        text = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items())
        (self.tried if is_possible else self.skipped).append(text)


def open_axes_of(file: ir.Model, shapes: Mapping[str, Sequence[int]]) -> list[OpenAxis]:
    """The open axes of a file's inputs; `shapes` are those of the example."""
    found = []
    for value in required_inputs(file):
        if value.name is not None and value.name in shapes and value.shape is not None:
            for axis, (dim, size) in enumerate(zip(value.shape, shapes[value.name], strict=False)):
                if not isinstance(dim, int):
                    found.append(OpenAxis(value.name, axis, str(dim.value or f"{value.name}[{axis}]"), int(size)))
    return found


def _shapes_named(wanted: Mapping[str, Sequence[Sequence[int]]], example: Shapes, file: ir.Model) -> Iterator[Shapes]:
    """The shapes that the user named; an input that was not named keeps its own."""
    unknown = [name for name in wanted if name not in example]
    if unknown:
        raise UsageError(
            f"verify: sizes names {listing(unknown)}, which is no input of the file. Its inputs: {listing(example)}."
        )
    open_axes: dict[str, list[int]] = {}
    for axis in open_axes_of(file, example):
        open_axes.setdefault(axis.tensor, []).append(axis.axis)
    for number in range(max(map(len, wanted.values()), default=0)):
        chosen = {name: tuple(map(int, trials[min(number, len(trials) - 1)])) for name, trials in wanted.items()}
        for name, shape in chosen.items():
            _require_open(name, shape, example[name], open_axes.get(name, []))
        yield {**example, **chosen}


def _require_open(name: str, shape: Sequence[int], example: Sequence[int], open_axes: Sequence[int]) -> None:
    """Refuse a shape that differs from the example's in an axis that is not open."""
    changed = [axis for axis, (a, b) in enumerate(zip(shape, example, strict=False)) if a != b]
    if len(shape) != len(example) or not set(changed) <= set(open_axes):
        raise UsageError(
            f"verify: sizes asks for {name} of shape {shape}, but the file has {len(example)} axes there, and only "
            f"{listing(map(str, open_axes)) or 'none'} of them open. Ask for other sizes."
        )
