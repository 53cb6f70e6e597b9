# SPDX-License-Identifier: Apache-2.0
"""Names that are still free: a tensor in a sub-graph must not be called like one around it."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from linger.graph.core.walking import all_graphs, defined_in


class Names:
    """The names in use, and new ones made from a name that is wished for."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def claim(self, name: str) -> None:
        """Use a name exactly as it is."""
        self._taken.add(name)

    def choose(self, wish: str) -> str:
        """The wish itself, or the wish with the first number that is free; it is then taken.

        >>> names = Names(["x"])
        >>> names.choose("x"), names.choose("x"), names.choose("y")
        ('x_1', 'x_2', 'y')
        """
        name, count = wish, self._counts.get(wish, 0)
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._counts[wish] = count  # numbers below are taken for good: a name is never given back
        self._taken.add(name)
        return name


def tensor_names(model: ir.Model) -> Names:
    """The names of all tensors of a model, in every graph and function."""
    return Names(value.name for place in all_graphs(model) for value in defined_in(place.graph) if value.name)
