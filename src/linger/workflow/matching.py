# SPDX-License-Identifier: Apache-2.0
"""Which node of a file a row of another result speaks of: rows name modules and calls, nodes extend those names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from linger.reporting.facts import LayerFacts
from linger.workflow.file_layers import origin_of

_FORMATS = ("Quant", "Dequant", "Requant")
"""Nodes that change the format of a module's input or output: a row about the module means its other nodes."""

_NUMBER = re.compile(r"_(\d+)$")


@dataclass(frozen=True)
class _Place:
    """One simulated op: where its result is made, and how it is called."""

    number: int
    path: str
    op: str
    call: int


class LayerMatcher:
    """Finds layers by the names of modules, functions and calls."""

    def __init__(self, layers: Sequence[LayerFacts]) -> None:
        found: dict[str, _Place] = {}
        for number, layer in enumerate(layers):
            origin = origin_of(layer.name)
            if origin is not None and layer.path:
                found[origin.name] = _Place(
                    number, layer.path, origin.op, origin.call
                )  # its last node makes the result
            else:
                counted = _NUMBER.search(layer.name)
                found[layer.name] = _Place(number, layer.path, layer.op, int(counted[1]) if counted else 0)
        self._places = list(found.values())
        self._numbers = {layer.name.partition("/")[0]: number for number, layer in enumerate(layers)}

    def of_call(self, path: str, call: int, op: str) -> int | None:
        """The layer that makes the result of a module's call; None for a call whose result the file does not have."""
        own = [p for p in self._places if p.path == path and p.op not in _FORMATS]
        exact = [p for p in own if p.op == op and p.call == call]
        same_call = [p for p in own if p.call == call]
        inside = [p for p in self._places if path and p.path.startswith(f"{path}.") and p.op not in _FORMATS]
        for candidates in (exact, same_call, inside if call == 0 else []):
            if candidates:
                return candidates[-1].number
        return None

    def of_function(self, name: str) -> int | None:
        """The layer that makes the result of a function's call, whose name is that of its node."""
        return self._numbers.get(name)

    def of_name(self, name: str) -> list[int]:
        """Every layer of a module, or of a function whose name ends in its op."""
        exact = [p.number for p in self._places if f"{p.path}.{p.op}".lstrip(".") == name]
        return exact or [p.number for p in self._places if p.path == name and p.op not in _FORMATS]

    def of_op(self, path: str, op: str) -> list[int]:
        """Every layer of a module that runs an op."""
        return [p.number for p in self._places if p.path == path and p.op == op]
