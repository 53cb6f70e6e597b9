# SPDX-License-Identifier: Apache-2.0
"""Which nodes may be left out or computed once: those of which all is known that they do."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.walking import all_nodes, nodes_within

_KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "linger"})
"""Their ops only compute. What an op of an unknown domain does besides (print, count, write), nobody can tell."""

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
_RANDOM_BY_NAME = ("Random", "Dropout", "Sampling")
"""Parts of the names of com.microsoft's ops that draw numbers."""


class Effects:
    """What the nodes of a model do besides computing their outputs; functions are looked through."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._bodies: dict[ir.OperatorIdentifier, tuple[bool, bool]] = {}

    def has_effect(self, node: ir.Node) -> bool:
        """Whether a node may do something that its outputs do not show."""
        return any(self._look(inner)[0] for inner in nodes_within(node))

    def is_random(self, node: ir.Node) -> bool:
        """Whether a node may give something else when it runs again."""
        return any(any(self._look(inner)) for inner in nodes_within(node))

    def _look(self, node: ir.Node) -> tuple[bool, bool]:
        """Of one node without the graphs inside it: whether it may have an effect, whether it draws numbers."""
        identifier = node.op_identifier()
        if identifier in self._functions:
            return self._look_into(identifier)
        is_known = node.domain in _KNOWN_DOMAINS or is_dialect(node)
        draws = node.op_type in _RANDOM or any(part in node.op_type for part in _RANDOM_BY_NAME)
        return not is_known or not node.outputs, draws

    def _look_into(self, identifier: ir.OperatorIdentifier) -> tuple[bool, bool]:
        if identifier not in self._bodies:
            self._bodies[identifier] = (True, True)  # a function that calls itself is not understood
            found = [self._look(node) for node in all_nodes(self._functions[identifier])]
            self._bodies[identifier] = (any(e for e, _ in found), any(r for _, r in found))
        return self._bodies[identifier]
