# SPDX-License-Identifier: Apache-2.0
"""Axes, biases, borders and matrix products in forms that packers of chips take; the integers of every tensor stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import DOMAIN
from linger.graph.conversion.node_rewriter import NodeRewriter, content_of
from linger.graph.core.nodes import Changes, Names, all_nodes, attributes_of, describe, graph_of, op_of, tensor_names
from linger.graph.core.rewiring import drop_unused
from linger.graph.lowering.bodies import Shape, dialect_nodes, known_tensors, shape_of

_FEW = 3


def turn_fewer_axes(model: ir.Model) -> Changes:
    """Leave out axes of size 1 and merge axes that stay together, where a Transpose moves the first of more than three axes.

    The numbers are moved as before: Reshape, a Transpose of at most three axes, Reshape. Leaves: Transposes of more axes only
    where the first one stays in place, where a size is open, or where more than three axes are really exchanged.
    """
    changes, shapes, names = Changes(), known_tensors(model).shapes, tensor_names(model)
    for node in _standard_nodes(model, "Transpose"):
        x, perm = node.inputs[0], _order(node, shapes)
        sizes = list(_fixed(x, shapes) or ())  # a 0 in a Reshape means another size
        if x is None or perm is None or (perm[0] == 0 and len(sizes) == _FEW + 1):
            continue
        merged, turned = merge_axes(sizes, perm)
        if len(merged) <= _FEW:
            changes.note(describe(node), f"exchanges {len(merged)} axes of {merged} instead of {len(sizes)}")
            _rewrite(node, x, merged, turned, [sizes[axis] for axis in perm], names)
    return changes


def _standard_nodes(model: ir.Model, *op_types: str) -> list[ir.Node]:
    return [node for node in all_nodes(model) if not node.domain and node.op_type in op_types]


def _order(node: ir.Node, shapes: Mapping[str, Shape]) -> Sizes | None:
    """The order of a Transpose of more than three axes of fixed sizes; None for any other."""
    order, sizes = node.attributes.get("perm"), _fixed(node.inputs[0], shapes)
    if order is None or sizes is None or len(sizes) <= _FEW:
        return None
    perm = tuple(order.as_ints())
    return perm if sorted(perm) == list(range(len(sizes))) else None


def merge_axes(sizes: list[int], perm: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The fewest axes, and their order, that move the same numbers to the same places.

    >>> merge_axes([12, 1, 4, 8], (1, 2, 0, 3))
    ([12, 4, 8], [1, 0, 2])
    >>> merge_axes([1, 2, 3, 4], (0, 2, 3, 1))
    ([2, 12], [1, 0])
    """
    real = [axis for axis, size in enumerate(sizes) if size != 1]
    groups: list[list[int]] = []
    for axis in filter(real.__contains__, perm):
        if groups and real.index(axis) == real.index(groups[-1][-1]) + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    in_place = sorted(groups)
    return [math.prod(sizes[axis] for axis in group) for group in in_place], [in_place.index(group) for group in groups]


def _rewrite(node: ir.Node, x: ir.Value, merged: list[int], order: list[int], shape: list[int], names: Names) -> None:
    """Put Reshape, Transpose and Reshape in the place of a Transpose; its output keeps its name."""
    output, graph = node.outputs[0], graph_of(node)
    nodes: list[ir.Node] = []
    if order != sorted(order):
        nodes = _reshaped(x, merged, names.choose(f"{output.name}.merged"), names)
        turn = ir.node("Transpose", [nodes[-1].outputs[0]], {"perm": order}, name=node.name)
        turn.outputs[0].name, turn.outputs[0].type = names.choose(f"{output.name}.turned"), x.type
        nodes.append(turn)
    nodes += _reshaped(nodes[-1].outputs[0] if nodes else x, shape, None, names)
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, [output], [nodes[-1].outputs[0]])


def _reshaped(x: ir.Value, shape: list[int], name: str | None, names: Names) -> list[ir.Node]:
    content = ir.node("Constant", [], {"value": ir.tensor(np.array(shape, np.int64))})
    content.outputs[0].name = names.choose(f"{x.name}.shape")
    reshape = ir.node("Reshape", [x, content.outputs[0]])
    reshape.outputs[0].name, reshape.outputs[0].type = name, x.type
    return [content, reshape]


_WEIGHT, _BIAS = "weight", "bias"
_MATRIX_AXES = 2


def count_axes_from_the_front(model: ir.Model) -> Changes:
    """Write the axes of Squeeze and Unsqueeze as numbers from 0 on.

    Leaves: axes counted from the back only where they are computed or the number of axes is not known.
    """
    changes, rewriter = Changes(), NodeRewriter(model, None, tensor_names(model))
    nodes = _standard_nodes(model, "Squeeze", "Unsqueeze")
    backward = {node: axes for node in nodes if min(axes := _axes_of(node), default=0) < 0}
    shapes = known_tensors(model).shapes if backward else {}
    for node, axes in backward.items():
        forward, old = _forward(node, axes, shapes), list(node.inputs[1:])
        if forward and forward[0] >= 0:  # too small in a broken file, which the checks report
            rewriter.set_axes(node, forward)
            drop_unused(old, constants_only=True)
            changes.note(describe(node), f"its axes {axes} became {forward}, because axes are counted from the front")
    return changes


def _forward(node: ir.Node, axes: Sequence[int], shapes: Mapping[str, Shape]) -> list[int]:
    """The axes counted from the front: those of Unsqueeze are axes of its output. None where the rank is not known."""
    shape = shape_of(node.inputs[0], shapes)
    rank = 0 if shape is None else len(shape) + (len(axes) if node.op_type == "Unsqueeze" else 0)
    return [] if shape is None else sorted(axis + rank if axis < 0 else axis for axis in axes)


def _axes_of(node: ir.Node) -> list[int]:
    """The axes that a node names; none where they are left out or computed."""
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return [] if attribute.is_ref() else list(attribute.as_ints())
    content = _constant(node.inputs[1] if len(node.inputs) > 1 else None)
    return [] if content is None else [int(axis) for axis in content.reshape(-1)]


def slice_parts(model: ir.Model) -> Changes:
    """Write the parts of a Split as one Slice each: packers read the sizes of parts from an attribute that ONNX does not have.

    Leaves: Splits only where the sizes of their parts are not known.
    """
    changes, names, splits = Changes(), tensor_names(model), _standard_nodes(model, "Split")
    shapes = known_tensors(model).shapes if splits else {}
    for node in splits:
        axis = node.attributes.get_int("axis", 0)
        parts = [part for output in node.outputs if (part := _fixed(output, shapes)) is not None]
        if len(parts) == len(node.outputs) and all(-len(part) <= axis < len(part) for part in parts):
            _slice(node, axis % len(parts[0]), [part[axis] for part in parts], names)
            changes.note(describe(node), f"its {len(parts)} parts became Slices")
    return changes


def _slice(node: ir.Node, axis: int, sizes: Sequence[int], names: Names) -> None:
    """Put Slices of these sizes in the place of a Split; they take the names and the readers of its parts."""
    graph, end = graph_of(node), 0
    for output, size in zip(node.outputs, sizes, strict=True):
        start, end = end, end + size
        result = ir.Value(type=output.type, shape=output.shape)
        graph.insert_before(node, _cut(node.inputs[0], (start, end, axis), result, str(output.name), names))
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        result.name, output.name = output.name, names.choose(f"{output.name}.split")
    graph.remove(node, safe=True)


def _cut(x: ir.Value | None, part: tuple[int, int, int], result: ir.Value, name: str, names: Names) -> list[ir.Node]:
    """A Slice from a start to an end along an axis, and before it the Constants of these."""
    bounds = [_whole([n], f"{name}.{i}", names) for i, n in enumerate((*part, 1))]
    inputs = [x, *(bound.outputs[0] for bound in bounds)]
    return [*bounds, ir.Node("", "Slice", inputs, outputs=[result], name=f"{name}.Slice")]


def _whole(numbers: Sequence[int], name: str, names: Names) -> ir.Node:
    """A Constant of whole numbers."""
    content = ir.tensor(np.array(numbers, np.int64))
    value = ir.Value(name=names.choose(name), type=ir.TensorType(content.dtype), shape=ir.Shape([len(numbers)]))
    return ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", content)], outputs=[value], name=value.name)


def give_transposed_biases(model: ir.Model) -> Changes:
    """Give transposed convolutions without a bias one of zeros.

    Leaves: no bias only where the shape of the weight is not known.
    """
    changes, rewriter = Changes(), NodeRewriter(model, None, tensor_names(model))
    for node in dialect_nodes(model, "ConvTranspose2dInt"):
        weight, bias = (*node.inputs[1:3], None)[:2]
        size = None if weight is None or weight.shape is None else weight.shape[1]
        if weight is None or bias is not None or not isinstance(size, int):
            continue
        zeros, name = np.zeros(size * attributes_of(node, op_of(node))["group"], np.int32), str(weight.name)
        name = name.removesuffix(_WEIGHT) + _BIAS if name.endswith(_WEIGHT) else f"{name}.{_BIAS}"
        node.resize_inputs(3)
        node.replace_input_with(2, rewriter.constant(node, zeros, name))
        changes.note(describe(node), "got a bias of zeros, because a transposed convolution must have one")
    return changes


def flatten_products(model: ir.Model, *, most_axes: int = 3) -> Changes:
    """Put Reshapes around matrix products of tensors of many axes, so that the product itself has few.

    Requires: no pool is left of which onnx infers a wrong size (`drop_ceil_mode`). Leaves: products of more than `most_axes`
    axes only where a size is open or zero, or where one factor is repeated along leading axes of the other.
    """
    changes, names, products = Changes(), tensor_names(model), dialect_nodes(model, *_PRODUCTS)
    shapes = known_tensors(model).shapes if products else {}
    for node in products:
        x, y = (_fixed(value, shapes) for value in node.inputs[:2])
        is_long = x is not None and y is not None and max(len(x), len(y)) > most_axes
        flat = _PRODUCTS[node.op_type](x or (), y or (), most_axes) if is_long else None
        if flat is not None:
            what = f"its {len(flat.result)} axes became {most_axes}, between Reshapes"
            changes.note(describe(node), f"{what}, because a factor must not have more than {most_axes}")
            _flatten(node, flat, names)
    return changes


def flatten_norms(model: ir.Model, *, fewest_axes: int = 3) -> Changes:
    """Put Reshapes around layer norms over several axes, or of few axes, so that the norm itself is over the last of enough.

    Leaves: norms over several axes, or of fewer than `fewest_axes`, only where a size is open.
    """
    changes, names = Changes(), tensor_names(model)
    norms = [node for node in dialect_nodes(model) if _NORM in op_of(node).chip_limits]
    shapes = known_tensors(model).shapes if norms else {}
    for node in norms:
        x, weight = (_fixed(value, shapes) for value in node.inputs[:2])
        if x is not None and weight is not None and (x[-1] != weight[0] or len(x) < fewest_axes):
            lead = *(1,) * (fewest_axes - _MATRIX_AXES), math.prod(x) // weight[0]
            _flatten(node, _Flat(((*lead, *weight),), (*lead, *weight), x), names)
            what = f"its {len(x)} axes became {fewest_axes}, between Reshapes: it normalizes the last one"
            changes.note(describe(node), what)
    return changes


def pad_more_axes(model: ir.Model, *, rank: int = 4) -> Changes:
    """Put Reshapes around borders of tensors of few axes, so that a border itself is of `rank` axes.

    Leaves: borders of fewer axes only where a size is open or the border is computed.
    """
    changes, names, borders = Changes(), tensor_names(model), dialect_nodes(model, "iqPad")
    shapes = known_tensors(model).shapes if borders else {}
    for node in borders:
        x, y, pads = _fixed(node.inputs[0], shapes), _fixed(node.outputs[0], shapes), _constant(node.inputs[1])
        if x is None or y is None or pads is None or len(x) >= rank or pads.size != 2 * len(x):
            continue
        changes.note(describe(node), f"its {len(x)} axes became {rank}, between Reshapes: a border must have so many")
        _flatten(node, _Flat((_widened(x, rank),), _widened(y, rank), y), names)
        more = [(*ends[:-1], *(0,) * (rank - len(x)), ends[-1]) for ends in pads.reshape(2, -1).tolist()]
        constant, old = _whole([*more[0], *more[1]], f"{node.outputs[0].name}.pads", names), node.inputs[1]
        graph_of(node).insert_before(node, constant)
        node.replace_input_with(1, constant.outputs[0])
        drop_unused([old], constants_only=True)
    return changes


def _constant(value: ir.Value | None) -> NDArray[Any] | None:
    """The content of a tensor that nobody can exchange."""
    return None if value is None or value.is_graph_input() else content_of(value)


def reserve_scratch(model: ir.Model, missing: Mapping[ir.Node, int], *, per_number: int) -> Changes:
    """Put a product with the identity before a layer that needs more scratch than the packer reserves for any layer.

    A product with a bias makes it reserve `per_number` bytes for each of its results; 64·x + 0, 6 bits further right, is x in
    every rounding. What a layer reads is taken as rows of few numbers, so that the matrix is small; where as many results are
    too few, the rows get longer by zeros, which a Slice cuts off again. `missing` has the bytes that each layer needs.

    Leaves: such layers only where all of them read other integers than those of 8 bits, or a size is open.
    """
    changes, names = Changes(), tensor_names(model)
    tensors, needed = known_tensors(model), max(missing.values(), default=0)
    for node in missing:
        x = node.inputs[0]
        shape = _fixed(x, tensors.shapes)
        if x is None or shape is None or tensors.types.get(x.name or "") is not ir.DataType.INT8:
            continue
        count = math.prod(shape)
        length = next((n for n in range(_SHORT_ROW, count) if count % n == 0), count)
        longer = length * -(-needed // (per_number * count))
        _put_identity(node, shape, (1, count // length, length), longer, NodeRewriter(model, None, names), names)
        reserved = f"so that the packer reserves {per_number * count * longer // length} bytes of scratch ({needed} are written)"
        cost = f"{longer * (length + 4)} bytes of parameters and {count * longer} multiply-accumulates"
        what = f"a product with the identity stands before it, {reserved}; it costs {cost}, and changes no number"
        changes.note(describe(node), what)
        break  # the largest reservation of a file serves all of its layers
    return changes


def _put_identity(node: ir.Node, shape: Sizes, rows: Sizes, longer: int, rewriter: NodeRewriter, names: Names) -> None:
    """Let a node read its first input through Reshape, a product with the identity, Slice and Reshape."""
    graph, x, given = graph_of(node), node.inputs[0], attributes_of(node, op_of(node))
    assert x is not None  # its shape is known
    scale = given.get("scale_x") or given["scale_i"]
    name = f"{node.outputs[0].name}.scratch"
    made = _reshape(x, rows, f"{name}_rows", names)
    weight = rewriter.constant(node, np.eye(longer, rows[-1], dtype=np.int8) * _ONE, f"{name}.{_WEIGHT}")
    bias = rewriter.constant(node, np.zeros(longer, np.int32), f"{name}.{_BIAS}")
    scales = {"scale_x": scale, "scale_w": _ONE, "scale_o": scale}
    attributes = [ir.AttrFloat32(key, float(value)) for key, value in scales.items()]
    attributes += [ir.AttrInt64(key, 8) for key in ("data_bits", "parameter_bits", "o_bits")]
    result = ir.Value(name=names.choose(name), type=x.type, shape=_typed_shape(x, (*rows[:-1], longer)))
    inputs = [made[-1].outputs[0], weight, bias]
    made += [ir.Node(DOMAIN, "LinearInt", inputs, attributes, outputs=[result], name=f"{name}.LinearInt")]
    if longer > rows[-1]:
        cut = ir.Value(name=names.choose(f"{name}_cut"), type=x.type, shape=_typed_shape(x, rows))
        made += _cut(result, (0, rows[-1], len(rows) - 1), cut, name, names)
    made += _reshape(made[-1].outputs[0], shape, f"{name}_shaped", names)
    graph.insert_before(node, made)
    node.replace_input_with(0, made[-1].outputs[0])


_ONE = 64
"""The integer that is 1 in the weights of an identity, and their scale."""

_SHORT_ROW = 8
"""Numbers in a row that chips fill up to anyway."""

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class _Flat:
    """Shapes of the factors that are flattened, of the product that they make, and of what it must be again."""

    factors: tuple[Sizes, ...]
    product: Sizes
    result: Sizes


def _widened(shape: Sizes, rank: int) -> Sizes:
    """A shape of more axes: those of size 1 stand before the last one."""
    return (*shape[:-1], *(1,) * (rank - len(shape)), shape[-1])


def _fixed(value: ir.Value | None, shapes: Mapping[str, Shape]) -> Sizes | None:
    """The shape of a tensor; None where a size is open, or zero, which a Reshape takes for another."""
    shape = shape_of(value, shapes)
    return None if shape is None or not all(shape) else tuple(size or 0 for size in shape)


def _flat_linear(x: Sizes, w: Sizes, most_axes: int) -> _Flat | None:
    """All rows one below the other."""
    if most_axes < _MATRIX_AXES:
        return None
    lead = *(1,) * (most_axes - _MATRIX_AXES), math.prod(x[:-1])
    return _Flat(((*lead, x[-1]),), (*lead, w[0]), (*x[:-1], w[0]))


def _flat_matrices(x: Sizes, y: Sizes, most_axes: int) -> _Flat | None:
    """All matrices one behind the other, where there are as many of both; else None."""
    if most_axes <= _MATRIX_AXES or x[:-2] != y[:-2]:
        return None
    lead = *(1,) * (most_axes - _MATRIX_AXES - 1), math.prod(x[:-2])
    return _Flat(((*lead, *x[-2:]), (*lead, *y[-2:])), (*lead, x[-2], y[-1]), (*x[:-1], y[-1]))


_NORM = "layer-norm"
"""The limit of chips that layer norms name."""

_PRODUCTS = {"LinearInt": _flat_linear, "BmmInt": _flat_matrices}


def _flatten(node: ir.Node, flat: _Flat, names: Names) -> None:
    """Put a Reshape before every factor and one behind the product, which takes the product's name and readers."""
    graph, old = graph_of(node), node.outputs[0]
    for index, shape in enumerate(flat.factors):
        value = node.inputs[index]
        assert value is not None  # its shape is known
        nodes = _reshape(value, shape, f"{old.name}.{'xy'[index]}_flat", names)
        graph.insert_before(node, nodes)
        node.replace_input_with(index, nodes[-1].outputs[0])
    nodes = _reshape(old, flat.result, f"{old.name}.flat", names)
    graph.insert_after(node, nodes)
    new = nodes[-1].outputs[0]
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    nodes[-1].replace_input_with(0, old)  # the new node itself goes on reading the old tensor
    new.name, old.name = old.name, new.name
    new.shape, old.shape = old.shape, _typed_shape(old, flat.product)


def _reshape(x: ir.Value, shape: Sizes, name: str, names: Names) -> list[ir.Node]:
    """A Reshape, and before it the Constant of its shape."""
    name = names.choose(name)
    constant = _whole(shape, f"{name}_shape", names)
    result = ir.Value(name=name, type=x.type, shape=_typed_shape(x, shape))
    return [constant, ir.Node("", "Reshape", [x, constant.outputs[0]], outputs=[result], name=f"{name}.Reshape")]


def _typed_shape(value: ir.Value, shape: Sizes) -> ir.Shape | None:
    """The shape of a tensor of the type of a value; None where that is not known: a file cannot have one without the other."""
    return None if value.type is None else ir.Shape(shape)
