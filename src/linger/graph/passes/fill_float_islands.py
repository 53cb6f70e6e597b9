# SPDX-License-Identifier: Apache-2.0
"""Float ops between DequantizeLinear and QuantizeLinear run on the integers, where that gives the same numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe
from linger.graph.core.names import Names
from linger.graph.core.replace_value import Takeover, become_identity
from linger.graph.core.walking import all_graphs, defined_in
from linger.graph.qdq.float_islands import Island, bounds_of, float_islands
from linger.graph.qdq.moving_ops import data_inputs, data_outputs
from linger.graph.qdq.qdq_node import constant, quantized, zero_of


def fill_float_islands(model: ir.Model) -> Changes:
    """Take the DQ and Q nodes away around ops that move, choose or limit numbers, where all of them quantise alike.

    Relu becomes a Clip at the zero point; bounds and borders become integers. Leaves: DQ nodes that others use; islands
    with different scales, with a scale for each channel, without an integer kernel in ONNX Runtime, with a Where or of int8
    beside an op for which ONNX Runtime would choose another kernel then, or with nodes that lead nowhere and decide about
    kernels (`float_islands.island_findings` lists them).
    """
    changes = Changes()
    islands = [(i, i.quantization.element) for i in float_islands(model) if i.quantization and not i.obstacle]
    if not islands:
        return changes
    names = Names(v.name for place in all_graphs(model) for v in defined_in(place.graph) if v.name)
    takeover = Takeover(model)
    for island, element in islands:
        if not _can_be_written(island, takeover):
            continue
        _fill(island, element, names, takeover)
        for node in island.nodes:
            changes.note(
                describe(node), f"runs on {element.name.lower()} now, without DequantizeLinear and QuantizeLinear"
            )
    takeover.finish()
    return changes


def _can_be_written(island: Island, takeover: Takeover) -> bool:
    """Whether the integers can be named where the floats are used now."""
    graph = island.nodes[0].graph
    integers = [source.inputs[0] for source in island.sources]
    return graph is not None and all(q is not None and takeover.is_visible(q, graph) for q in integers)


def _fill(island: Island, element: ir.DataType, names: Names, takeover: Takeover) -> None:
    sources = set(island.sources)
    for node in island.nodes:
        for index in data_inputs(node):
            value = node.inputs[index]
            maker = None if value is None else value.producer()
            if maker is not None and maker in sources:
                node.replace_input_with(index, maker.inputs[0])
        _bring_bounds(node, island.sinks[0], element, names, takeover)
        for output in data_outputs(node):
            output.type = ir.TensorType(element)
    for sink in island.sinks:
        _drop_sink(sink, takeover)
    for source in island.sources:
        takeover.discard_if_unused(source)


def _bring_bounds(node: ir.Node, sink: ir.Node, element: ir.DataType, names: Names, takeover: Takeover) -> None:
    """Integers for the numbers that the data is compared with; Relu compares with 0."""
    numbers = {}
    for index in bounds_of(node):
        tensor = constant(node.inputs[index])
        assert tensor is not None  # else the island had an obstacle
        numbers[index] = float(tensor.numpy().reshape(-1)[0])
    if node.op_type == "Relu":
        node.op_type, numbers = "Clip", {1: 0.0}
    if node.op_type == "Pad" and 2 not in numbers and zero_of(sink):
        numbers[2] = 0.0  # left out, it would be the integer 0
    for index, number in numbers.items():
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        takeover.set_input(node, index, _integer(quantized(number, sink, element), node, element, names))


def _integer(number: int | None, node: ir.Node, element: ir.DataType, names: Names) -> ir.Value:
    assert number is not None  # else the island had an obstacle
    graph = node.graph
    assert graph is not None  # the node came from a graph
    name = names.choose(f"{node.outputs[0].name}_{number}")
    tensor = ir.tensor(np.asarray(number, element.numpy()), dtype=element, name=name)
    value = ir.Value(name=name, type=ir.TensorType(element), shape=ir.Shape([]), const_value=tensor)
    graph.register_initializer(value)
    return value


def _drop_sink(sink: ir.Node, takeover: Takeover) -> None:
    """Whoever used the integers of a Q takes those that come to it now."""
    integers = sink.inputs[0]
    assert integers is not None  # it belongs to an island
    if takeover.replace(sink.outputs[0], integers, with_name=True):
        takeover.discard(sink)
    else:
        takeover.release(sink)
        become_identity(sink, integers)
