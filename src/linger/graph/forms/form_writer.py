# SPDX-License-Identifier: Apache-2.0
"""What every other form of a dialect node is written with: standard nodes and constants of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.graph.core.names import Names
from linger.numeric.onnx.writer import make_attribute


@dataclass
class FormWriter:
    """Collects the nodes and initializers that stand for one node."""

    node: ir.Node
    attributes: Mapping[str, Any]
    names: Names | None = field(default=None, kw_only=True)
    """The names of the model, where new ones must differ from them."""
    nodes: list[ir.Node] = field(default_factory=list, init=False)
    initializers: list[ir.Value] = field(default_factory=list, init=False)

    def input(self, index: int) -> ir.Value:
        """An input of the dialect node; in normal form none is missing."""
        value = self.node.inputs[index]
        assert value is not None
        return value

    def known(self, index: int) -> NDArray[Any] | None:
        """The content of an input that cannot change: an initializer or a Constant."""
        value = self.input(index)
        tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
        return None if tensor is None else tensor.numpy()

    def emit(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """Add one standard node and return its output."""
        name = self._free(
            f"{self.node.outputs[0].name}/{op_type}_{len(self.nodes)}"
        )  # nodes may have no name of their own
        made = ir.Value(name=name)
        attrs = [make_attribute(key, value) for key, value in attributes.items()]
        self.nodes.append(ir.Node("", op_type, inputs, attributes=attrs, outputs=[made], name=name))
        return made

    def initializer(self, content: Any, dtype: type[np.generic], role: str) -> ir.Value:
        """A constant of this node's own: runtimes edit the scale and zero point of a Q or DQ node in place."""
        name = self._free(f"{self.node.outputs[0].name}/{role}_{len(self.initializers)}")
        array = np.asarray(content, dtype)
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self.initializers.append(value)
        return value

    def _free(self, name: str) -> str:
        return name if self.names is None else self.names.choose(name)

    def put(self, model: ir.Model) -> None:
        """Insert what was written in front of the node."""
        graph = self.node.graph
        assert graph is not None  # the node came from a graph
        for value in self.initializers:
            model.graph.register_initializer(value)
        graph.insert_before(self.node, self.nodes)
