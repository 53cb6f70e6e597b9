# SPDX-License-Identifier: Apache-2.0
"""Other sizes for inputs whose sizes are left open: odd, uneven, and the same on every machine.

A file that was written from one example must be right at every size, so it is tried at sizes that share nothing with the
example's. Axes of one name have one size. A model may ask for more (sizes that divide by eight, pictures that are square), so
there are several proposals; the first that the model takes is as good as any.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

_OPEN_FORMS = ("iqAdaptiveAvgPool", "iqLargest")
"""What pools are in a file that leaves the sizes of their pictures open; the tensors of every form are named after them."""

_LARGE = 64
"""From here on a size grows by half only: the try costs as much as the example does."""

_MOST_HALVINGS = 32
"""What the sizes of a picture usually divide by: five halvings."""


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
    """A size for every open axis, again and again, none of them the example's; the most telling first."""
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


def has_open_forms(model: ir.Model) -> bool:
    """Whether a file has pools that compute their windows from its own shapes."""
    named = (value.name or "" for node in model.graph for value in node.outputs)
    return any(name.rpartition(".")[2].startswith(_OPEN_FORMS) for name in named) or any(
        node.op_type in _OPEN_FORMS for node in model.graph
    )


def _by_label(axis: OpenAxis) -> Hashable:
    return axis.label


def _by_place(axis: OpenAxis) -> Hashable:
    """Axes at one place of several inputs may belong together without saying so."""
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
