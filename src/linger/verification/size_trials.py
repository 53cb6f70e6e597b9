# SPDX-License-Identifier: Apache-2.0
"""At which other sizes a file with open axes is proven, and which of them were possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from linger.errors import UsageError, listing
from linger.verification.other_sizes import OpenAxis, other_sizes, resized_shape

Shapes = Mapping[str, tuple[int, ...]]
Sizes = Mapping[str, Sequence[Sequence[int]]] | int
"""Shapes of inputs by name, one after the other; or how many sizes linger chooses itself."""

OWN_TRIALS = 2
"""So many sizes are tried where nobody has named any."""


@dataclass
class SizeTrials:
    """The sizes that were asked for, and what became of them."""

    wanted: Sizes
    tried: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def are_named(self) -> bool:
        """Whether somebody named the sizes: then one that is impossible is an error."""
        return not isinstance(self.wanted, int)

    def shapes(self, file: ir.Model, *examples: Shapes) -> Iterator[Shapes]:
        """The next shapes of all inputs, until enough were possible; examples are what they were before."""
        if not isinstance(self.wanted, int):
            yield from _named(self.wanted, examples[0], file)
            return
        seen: list[Shapes] = list(examples)
        for example in examples:
            axes = open_axes_of(file, example)
            for sizes in other_sizes(axes):
                shapes = {name: resized_shape(name, shape, sizes) for name, shape in example.items()}
                if len(self.tried) >= self.wanted:
                    return
                if shapes not in seen:
                    seen.append(shapes)
                    yield shapes

    def note(self, shapes: Shapes, *, is_possible: bool) -> None:
        """Remember what became of a size."""
        text = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in shapes.items())
        (self.tried if is_possible else self.skipped).append(text)


def open_axes_of(file: ir.Model, shapes: Mapping[str, Sequence[int]]) -> list[OpenAxis]:
    """The open axes of a file's inputs whose example has these shapes."""
    found = []
    for value in _inputs(file):
        if value.name is not None and value.name in shapes and value.shape is not None:
            for axis, (dim, size) in enumerate(zip(value.shape, shapes[value.name], strict=False)):
                if not isinstance(dim, int):
                    found.append(OpenAxis(value.name, axis, str(dim.value or f"{value.name}[{axis}]"), int(size)))
    return found


def input_names(file: ir.Model) -> list[str]:
    """Names of the inputs that a caller gives."""
    return [value.name or "" for value in _inputs(file)]


def _inputs(file: ir.Model) -> Iterable[ir.Value]:
    return [value for value in file.graph.inputs if value.name not in file.graph.initializers]


def _named(wanted: Mapping[str, Sequence[Sequence[int]]], example: Shapes, file: ir.Model) -> Iterator[Shapes]:
    """The shapes that were asked for; an input that was not named keeps its own."""
    unknown = [name for name in wanted if name not in example]
    if unknown:
        raise UsageError(
            f"verify: sizes names {listing(unknown)}, which is no input of the file. Its inputs: {listing(example)}."
        )
    are_open = {(axis.tensor, axis.axis) for axis in open_axes_of(file, example)}
    for number in range(max(map(len, wanted.values()), default=0)):
        shapes = dict(example)
        for name, listed in wanted.items():
            shape = tuple(int(n) for n in listed[min(number, len(listed) - 1)])
            fixed = [
                i
                for i, (a, b) in enumerate(zip(shape, example[name], strict=False))
                if a != b and (name, i) not in are_open
            ]
            if len(shape) != len(example[name]) or fixed:
                raise UsageError(
                    f"verify: sizes asks for {name} of shape {shape}, but the file has {len(example[name])} axes there, and only "
                    f"{listing(str(i) for n, i in sorted(are_open) if n == name) or 'none'} of them open. Ask for other sizes."
                )
            shapes[name] = shape
        yield shapes
