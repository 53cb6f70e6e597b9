# SPDX-License-Identifier: Apache-2.0
"""Names that are still free: a tensor in a sub-graph must not be have the name of one in a graph around it."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from linger.graph.core.walking import all_graphs, defined_in


class Names:
    """Knows the names in use, and chooses new ones that are still free."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def claim(self, name: str) -> None:
        """Reserve a name exactly as it is."""
        self._taken.add(name)

    def choose(self, preferred_name: str) -> str:
        """Return the preferred name, with the first free number behind it if it is taken; reserve the result.

        >>> names = Names(["x"])
        >>> names.choose("x"), names.choose("x"), names.choose("y")
        ('x_1', 'x_2', 'y')
        """
        name, count = preferred_name, self._counts.get(preferred_name, 0)
        while name in self._taken:
            count += 1
            name = f"{preferred_name}_{count}"
        self._counts[preferred_name] = count  # a name is never released, so lower numbers stay taken
        self._taken.add(name)
        return name


def tensor_names(model: ir.Model) -> Names:
    """The names of all tensors of a model, in every graph and function."""
    return Names(value.name for place in all_graphs(model) for value in defined_in(place.graph) if value.name)
