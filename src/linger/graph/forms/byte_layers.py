# SPDX-License-Identifier: Apache-2.0
"""Write the 8-bit layers of a model with ONNX's own integer kernels, exactly, and its curves as tables.

`byte_forms` says how each op is written and why that is exact. Tensors between such layers are unsigned bytes; where another
node reads one, it is made signed again under its own name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from linger.graph.core.carriers import MIDDLE, OFFSET, PLAIN, POSITIVE
from linger.graph.core.dialect_node import describe, is_dialect, opset_of
from linger.graph.core.names import tensor_names
from linger.graph.core.walking import all_nodes
from linger.graph.forms.byte_forms import ByteWriter, Carrier, byte_form
from linger.graph.forms.form_writer import FormWriter
from linger.graph.forms.normal_form import bring_to_normal_form

OLDEST_OPSET = 12
"""Clip and MaxPool take bytes from here on."""

_MOVES = frozenset({"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Gather", "Identity", "Concat"})
"""Standard ops that move bytes as they are, and whose first input is their data; of Concat all are."""


def write_byte_layers(model: ir.Model, *, is_saturating: bool = True, is_normal: bool = False) -> list[str]:
    """Replace dialect nodes of 8 bits by integer kernels; run `expand_dialect` or `attach_functions` afterwards for the rest.

    Leaves: the model in its normal form, and no more than that below opset 12.

    Args:
        model: Edited in place.
        is_saturating: Whether the file must be exact on CPUs whose kernels saturate when they multiply unsigned by signed bytes.
        is_normal: Whether the model is in normal form already.

    Returns:
        The dialect nodes that were replaced.
    """
    if not is_normal:
        bring_to_normal_form(model)
    layers = _Layers(model, is_saturating)
    if opset_of(model) >= OLDEST_OPSET:
        layers.write()
    return layers.written


@dataclass
class _Layers:
    """The carriers of a model's tensors, and the nodes that have become others."""

    model: ir.Model
    is_saturating: bool
    written: list[str] = field(default_factory=list)
    carriers: dict[ir.Value, Carrier] = field(default_factory=dict)
    replaced: list[ir.Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = tensor_names(self.model)
        windows = (node.attributes.get("ceil_mode") for node in all_nodes(self.model))
        self.has_sure_shapes = not any(mode is not None and mode.value for mode in windows)

    def write(self) -> None:
        for node in list(self.model.graph):
            if not self._is_free(node):
                continue
            if is_dialect(node):
                self._write(node)
            elif node.domain == "" and node.op_type in _MOVES:
                self._move(node)
        self._restore()

    def _is_free(self, node: ir.Node) -> bool:
        """Whether no other tensor has the name of a carrier of the node's results."""
        ends = (OFFSET, PLAIN, POSITIVE)
        return not any(f"{value.name}{end}" in self.names for value in node.outputs for end in ends)

    def _write(self, node: ir.Node) -> None:
        found = byte_form(node)
        if found is None:
            return
        form, attributes = found
        writer = ByteWriter(
            node,
            attributes,
            carrier_of=self.carriers.get,
            carry=self._carry,
            is_free=self._is_free,
            has_sure_shapes=self.has_sure_shapes,
            opset=opset_of(self.model),
            is_saturating=self.is_saturating,
            names=self.names,
        )
        made = form(writer)
        if made is None:
            return
        writer.put(self.model)
        self.written.append(describe(node))
        if isinstance(made, Carrier):
            self.carriers[node.outputs[0]] = made
            self.replaced.append(node)
            return
        made.shape, made.type = node.outputs[0].shape, node.outputs[0].type
        _replace(node, made)

    def _move(self, node: ir.Node) -> None:
        """Let a node that moves elements move the carriers instead."""
        count = len(node.inputs) if node.op_type == "Concat" else 1
        given = [None if value is None else self.carriers.get(value) for value in node.inputs[:count]]
        carriers = [carrier for carrier in given if carrier is not None]
        if len(carriers) < len(given) or len({carrier.zero for carrier in carriers}) != 1:
            return
        inputs = [*(carrier.value for carrier in carriers), *node.inputs[count:]]
        output, zero = node.outputs[0], carriers[0].zero
        made = ir.Value(
            name=f"{output.name}{OFFSET if zero else PLAIN}",
            type=ir.TensorType(ir.DataType.UINT8),
            shape=output.shape,
        )
        copy = ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=[made], name=node.name)
        self.model.graph.insert_before(node, copy)
        self.carriers[output] = Carrier(made, zero)
        self.replaced.append(node)

    def _carry(self, value: ir.Value) -> Carrier | None:
        """The carrier of a tensor; one that has none is moved by 128, behind the node that makes it.

        Cast, not DequantizeLinear, stands before the QuantizeLinear: runtimes merge the other two.
        """
        if value in self.carriers:
            return self.carriers[value]
        name = f"{value.name}{OFFSET}"
        if name in self.names:
            return None
        self.names.claim(name)
        constant = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
        made = self._moved(value, name) if constant is None else self._moved_constant(constant, name)
        self.carriers[value] = Carrier(made, MIDDLE)
        return self.carriers[value]

    def _moved_constant(self, constant: ir.TensorProtocol, name: str) -> ir.Value:
        content = (constant.numpy().astype(np.int16) + MIDDLE).astype(np.uint8)
        tensor = ir.tensor(content, name=name)
        made = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(content.shape), const_value=tensor)
        self.model.graph.register_initializer(made)
        return made

    def _moved(self, value: ir.Value, name: str) -> ir.Value:
        maker = value.producer()
        real = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, name=self.names.choose(f"{value.name}/real"))
        real.outputs[0].name = real.name
        writer = FormWriter(real, {}, names=self.names)
        scale, zero = (
            writer.initializer(1.0, np.float32, "scale"),
            writer.initializer(MIDDLE, np.uint8, "zero_point"),
        )
        moved = ir.node("QuantizeLinear", [real.outputs[0], scale, zero], name=name)
        made = moved.outputs[0]
        made.name, made.type, made.shape = name, ir.TensorType(ir.DataType.UINT8), value.shape
        for initializer in writer.initializers:
            self.model.graph.register_initializer(initializer)
        if maker is None:
            self.model.graph.insert_before(self.model.graph[0], [real, moved])
        else:
            self.model.graph.insert_after(maker, [real, moved])
        return made

    def _restore(self) -> None:
        """Make signed bytes of what other nodes, sub-graphs and outputs read, and remove what was replaced."""
        gone = set(self.replaced)
        for node in self.replaced:
            for output in node.outputs:
                is_read = output.is_graph_output() or any(reader not in gone for reader in output.consumers())
                if is_read:
                    self._make_signed(node, output, self.carriers[output])
        weights = {
            value for node in self.replaced for value in node.inputs if value is not None and value.is_initializer()
        }
        for node in reversed(self.replaced):
            self.model.graph.remove(node, safe=True)
        for value in weights:
            if not value.uses() and not value.is_graph_output():
                self.model.graph.initializers.pop(value.name or "", None)

    def _make_signed(self, node: ir.Node, output: ir.Value, carrier: Carrier) -> None:
        assert carrier.is_limited  # else the one reader, a ReLU, was written too
        writer = FormWriter(node, {}, names=self.names)
        scale = writer.initializer(1.0, np.float32, "signed_scale")
        zero = writer.initializer(carrier.zero, np.uint8, "signed_zero_point")
        real = writer.emit("DequantizeLinear", [carrier.value, scale, zero])
        made = writer.emit("Cast", [real], to=int(ir.DataType.INT8))
        writer.put(self.model)
        made.type, made.shape = output.type, output.shape
        made.name, output.name = output.name, f"{output.name}/replaced"
        output.replace_all_uses_with(made, replace_graph_outputs=True)


def _replace(node: ir.Node, made: ir.Value) -> None:
    """Let another tensor stand for the result of a node, under its name, and remove the node."""
    output, graph = node.outputs[0], node.graph
    assert graph is not None  # the node came from a graph
    made.name, output.name = output.name, f"{output.name}/replaced"
    output.replace_all_uses_with(made, replace_graph_outputs=True)
    graph.remove(node, safe=True)
