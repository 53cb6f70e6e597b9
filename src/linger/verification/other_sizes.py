# SPDX-License-Identifier: Apache-2.0
"""Other sizes for inputs whose sizes are left open: odd, uneven, and the same on every machine.

A file that was written from one example must be right at every size, so it is tried at sizes that
differ from the example's in every open axis. Axes of one name have one size. A model may ask for more (sizes that divide by eight, square pictures), so
there are several proposals; the first one that the model takes is used.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import onnx_ir as ir

from linger.errors import LingerError, UsageError, listing
from linger.graph.core.nodes import required_inputs

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]
Sizes = Mapping[str, Sequence[Sequence[int]]] | int
"""Shapes of inputs by name, each a list of trials; or how many sizes linger chooses itself."""

OWN_TRIALS = 2
"""How many sizes are tried where the user has named none."""

_LARGE = 64
"""From here on a size grows by half only, so that a trial costs about as much as the example."""

_MOST_HALVINGS = 32
"""The largest power of two by which the sizes of a picture usually divide: five halvings."""


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
    made: list[dict[OpenAxis, int]] = []
    for key in (_by_label, _by_place, _by_size):
        groups: dict[Hashable, list[OpenAxis]] = {}
        for axis in axes:
            groups.setdefault(key(axis), []).append(axis)
        for rule in (_grown, _shrunk, _in_steps):
            sizes = {
                axis: size for number, group in enumerate(groups.values()) for axis, size in _sized(group, number, rule)
            }
            if sizes and sizes not in made:
                made.append(sizes)
                yield sizes


def resized_shape(name: str, shape: Sequence[int], sizes: Mapping[OpenAxis, int]) -> tuple[int, ...]:
    """The shape of an input at the sizes of a proposal."""
    new = {axis.axis: size for axis, size in sizes.items() if axis.tensor == name}
    return tuple(new.get(axis, int(size)) for axis, size in enumerate(shape))


def _by_label(axis: OpenAxis) -> Hashable:
    return axis.label


def _by_place(axis: OpenAxis) -> Hashable:
    """Axes at the same place of several inputs may belong together although their names differ."""
    return axis.axis, axis.size


def _by_size(axis: OpenAxis) -> Hashable:
    return axis.size


def _sized(group: Sequence[OpenAxis], number: int, rule: Callable[[int, int], int]) -> Iterator[tuple[OpenAxis, int]]:
    size = group[0].size
    is_batch = all(axis.axis == 0 for axis in group)
    new = (3 if rule is _grown else 2) if is_batch else rule(size, number)
    while new == size:
        new += 2
    return ((axis, new) for axis in group)


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
            yield from _named(self.wanted, examples[0], file)
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


def _named(wanted: Mapping[str, Sequence[Sequence[int]]], example: Shapes, file: ir.Model) -> Iterator[Shapes]:
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
