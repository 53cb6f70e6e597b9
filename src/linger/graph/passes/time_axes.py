# SPDX-License-Identifier: Apache-2.0
"""Which axis of each tensor is time: where a node takes an axis of its input, and which axes of the model's inputs are time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir as ir

from linger.graph.core.nodes import attributes_of, is_dialect, op_of
from linger.graph.core.tensor_types import constant_tensor

Shapes = Mapping[str, tuple[int, ...]]
"""The sizes of every tensor of a model, by name."""

_FIRST_SPATIAL = 2
"""Windows move over the axes behind batch and channels."""


@dataclass(frozen=True)
class _Operand:
    """One input of a node, and what the rules for axes ask about it."""

    node: ir.Node
    index: int
    shapes: Shapes

    def shape(self, index: int | None = None) -> tuple[int, ...]:
        """The sizes of an input of the node; None: of this one."""
        value = self.node.inputs[self.index if index is None else index]
        assert value is not None  # absent inputs are no operands
        return self.shapes[str(value.name)]

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self.shape())

    @property
    def result(self) -> tuple[int, ...]:
        """The sizes of the node's first output."""
        return self.shapes[str(self.node.outputs[0].name)]

    def setting(self, name: str, default: Any = None) -> Any:
        """An attribute of the node, with the default of its op where it has one."""
        if is_dialect(self.node):
            return attributes_of(self.node, op_of(self.node)).get(name, default)
        found = self.node.attributes.get(name)
        return default if found is None else found.value


Rule = Callable[[_Operand, int], "int | None"]
"""From an input and one of its axes to the axis of the output whose places are those of that axis; None: they are mixed."""


def whole_numbers(node: ir.Node, name: str, index: int) -> list[int] | None:
    """Whole numbers that a node has as an attribute or as a constant input; None where it has neither."""
    attribute = node.attributes.get(name)
    if attribute is not None and not attribute.is_ref():
        return [int(number) for number in attribute.as_ints()]
    tensor = constant_tensor(node.inputs[index]) if index < len(node.inputs) else None
    return None if tensor is None else [int(number) for number in tensor.numpy().reshape(-1)]


def reshaped_axis(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """The axis that a Reshape leaves as it is; None where it joins it with others or splits it.

    >>> reshaped_axis((1, 4, 9), (1, 2, 2, 9), 2), reshaped_axis((1, 4, 9), (1, 36), 2)
    (3, None)
    """
    outer = math.prod(before[:axis])
    found = [i for i, n in enumerate(after) if n == before[axis] and math.prod(after[:i]) == outer]
    return found[0] if len(found) == 1 else None


def _pointwise(operand: _Operand, axis: int) -> int | None:
    """Operands meet at their last axes; an operand without the time axis, or of one place there, serves every step."""
    return axis + len(operand.result) - operand.rank


def _first_only(rule: Rule, operand: _Operand, axis: int) -> int | None:
    return rule(operand, axis) if operand.index == 0 else None


def _all_but(mixed: int, operand: _Operand, axis: int) -> int | None:
    """An op that mixes one axis, counted from the front or from the back, and leaves the others as they are."""
    return None if axis == mixed % operand.rank else axis


def _along(name: str, default: int, operand: _Operand, axis: int) -> int | None:
    """An op along the axis that an attribute names, which may vanish."""
    mixed = int(operand.setting(name, default)) % operand.rank
    if axis == mixed:
        return None
    return axis - (len(operand.result) < operand.rank and mixed < axis)


def _normalized(operand: _Operand, axis: int) -> int | None:
    """LayerNormInt mixes the last axes, as many as the numbers of its weight fill."""
    return axis if math.prod(operand.shape()[axis + 1 :]) % math.prod(operand.shape(1)) == 0 else None


def _over_last(operand: _Operand, axis: int) -> int | None:
    """Softmax of the standard: before opset 13 it mixes all axes from the named one on, so only the last one is trusted."""
    named = operand.setting("axis")
    first = 1 if named is None else int(named) % operand.rank
    return axis if axis < first else None


def _left_matrix(operand: _Operand, axis: int) -> int | None:
    """Rows of the left matrix stay rows of the product."""
    return axis if axis == operand.rank - 2 and len(operand.result) == operand.rank else None


def _steps(operand: _Operand, axis: int) -> int | None:
    return axis if axis == int(bool(operand.setting("batch_first"))) else None


def _transposed(operand: _Operand, axis: int) -> int | None:
    order = list(operand.setting("perm", range(operand.rank)[::-1]))
    return order.index(axis)


def _with_axes(operand: _Operand, axis: int) -> int | None:
    """Unsqueeze: the axes of the output that are not new, in order."""
    rank = len(operand.result)
    new = {n % rank for n in whole_numbers(operand.node, "axes", 1) or ()}
    kept = [i for i in range(rank) if i not in new]
    return kept[axis] if len(kept) == operand.rank else None


def _without_axes(operand: _Operand, axis: int) -> int | None:
    """Squeeze: an axis that stays moves to the front by those that go before it."""
    named = whole_numbers(operand.node, "axes", 1)
    sizes = operand.shape()
    gone = {i for i, n in enumerate(sizes) if n == 1} if named is None else {n % operand.rank for n in named}
    return None if axis in gone else axis - sum(i < axis for i in gone)


def _reshaped(operand: _Operand, axis: int) -> int | None:
    return reshaped_axis(operand.shape(), operand.result, axis)


def _selected(operand: _Operand, axis: int) -> int | None:
    """Gather of the standard: the axes of the indices stand where the axis was that they select from."""
    chosen = int(operand.setting("axis", 0)) % operand.rank
    if axis == chosen:
        return None
    return axis + (len(operand.result) - operand.rank if axis > chosen else 0)


def _looked_up(operand: _Operand, axis: int) -> int | None:
    """Gather of the dialect: a row of the table for each index."""
    return axis if operand.index == 1 else None


def _same(_operand: _Operand, axis: int) -> int | None:
    return axis


_POINTWISE = (
    "iqAbs", "iqAdd", "iqSub", "iqMul", "iqDiv", "iqMax", "iqMin", "iqWhere", "iqClamp", "Clip", "Relu", "iqSigmoid",
    "iqTanh", "iqGelu", "iqSwish", "iqHardsigmoid", "iqHardswish", "iqLeakyRelu", "Quant", "Dequant", "Requant",
)  # fmt: skip
_STANDARD_POINTWISE = (
    "Abs", "Add", "Cast", "Clip", "Div", "Elu", "Equal", "Exp", "Greater", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu",
    "Less", "Log", "Max", "Min", "Mul", "Neg", "Not", "Pow", "Relu", "Sigmoid", "Sqrt", "Sub", "Tanh", "Where",
)  # fmt: skip
WINDOWS = ("Conv1dInt", "Conv2dInt", "MaxPool", "AvgPool2dInt")
"""Ops of the dialect whose window may move over time."""

_channelwise = partial(_first_only, partial(_all_but, 1))

_DIALECT: dict[str, Rule] = {
    **dict.fromkeys(_POINTWISE, _pointwise),
    **dict.fromkeys(("BatchNorm2dInt", "iqPRelu", "ShuffleChannel", *WINDOWS), _channelwise),
    **dict.fromkeys(("SoftmaxInt", "LogSoftmaxInt", "iqSubMax", "iqVar"), partial(_along, "dim", -1)),
    **dict.fromkeys(("iqMean", "iqSum", "iqLargest"), partial(_along, "dims", -1)),
    **dict.fromkeys(("LSTMInt", "GRUInt"), partial(_first_only, _steps)),
    "iqCat": partial(_along, "dim", 0),
    "LinearInt": partial(_first_only, partial(_all_but, -1)),
    "LayerNormInt": partial(_first_only, _normalized),
    "BmmInt": partial(_first_only, _left_matrix),
    "Gather": _looked_up,
    "iqPad": partial(_first_only, _same),
}
_STANDARD: dict[str, Rule] = {
    **dict.fromkeys(_STANDARD_POINTWISE, _pointwise),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _over_last),
    **dict.fromkeys(("ArgMax", "ArgMin", "Concat"), partial(_along, "axis", 0)),
    **dict.fromkeys(("Reshape", "Flatten"), partial(_first_only, _reshaped)),
    **dict.fromkeys(("Pad", "Slice"), partial(_first_only, _same)),
    "Split": partial(_first_only, partial(_along, "axis", 0)),
    "Transpose": _transposed,
    "Unsqueeze": partial(_first_only, _with_axes),
    "Squeeze": partial(_first_only, _without_axes),
    "Gather": partial(_first_only, _selected),
}


def carried_axis(node: ir.Node, index: int, axis: int, shapes: Shapes) -> int | None:
    """The axis of a node's outputs whose places are those of an axis of one of its inputs.

    Returns:
        None where the node mixes the places of that axis, or where nothing is known about the op.
    """
    rule = find_rule(node)
    return None if rule is None else rule(_Operand(node, index, shapes), axis)


def find_rule(node: ir.Node) -> Rule | None:
    """How a node carries axes; None where nothing is known about the op."""
    if is_dialect(node):
        return _DIALECT.get(node.op_type)
    return _STANDARD.get(node.op_type) if node.domain == "" else None


def is_recurrent(node: ir.Node) -> bool:
    """Whether a node carries a state from step to step."""
    return is_dialect(node) and op_of(node).is_recurrent


def find_time(model: ir.Model, shapes: Shapes) -> dict[str, int]:
    """The time axes of those inputs of a model that have one, by name.

    Time is the axis over which recurrent layers and one-dimensional convolutions move; from these nodes it is followed to the
    front and to the back, through every node that leaves an axis as it is.
    """
    known: dict[ir.Value, int] = {}
    for node in model.graph:
        axis = _own_axis(node)
        if axis is not None:
            known.setdefault(_data(node.inputs[0]), axis)
            known.setdefault(node.outputs[0], axis)
    count = -1
    while count < len(known):
        count = len(known)
        for node in model.graph:
            _follow(node, known, shapes)
        for node in reversed(model.graph):
            _follow(node, known, shapes)
    return {str(value.name): known[value] for value in model.graph.inputs if value in known}


def _data(value: ir.Value | None) -> ir.Value:
    assert value is not None  # the first input of these ops is never left out
    return value


def _own_axis(node: ir.Node) -> int | None:
    """The axis that is time for what a node is: a recurrent layer, or a convolution over one axis."""
    if not is_dialect(node):
        return None
    op = op_of(node)
    if op.is_recurrent:
        return int(bool(attributes_of(node, op)["batch_first"]))
    return _FIRST_SPATIAL if op.window_axes == 1 else None


def _follow(node: ir.Node, known: dict[ir.Value, int], shapes: Shapes) -> None:
    """Note the time axis of a node's outputs by that of its inputs, and of its inputs by that of its outputs."""
    outputs = [value for value in node.outputs if str(value.name) in shapes]
    if find_rule(node) is None or not outputs:
        return
    for index, value in enumerate(node.inputs):
        if value in known:
            axis = carried_axis(node, index, known[value], shapes)
            _note(known, outputs[:1] if is_recurrent(node) else outputs, axis)
        elif outputs[0] in known and _may_have_time(value, shapes):
            _note(known, [_data(value)], _axis_before(node, index, known[outputs[0]], shapes))


def _may_have_time(value: ir.Value | None, shapes: Shapes) -> bool:
    return value is not None and constant_tensor(value) is None and str(value.name) in shapes


def _note(known: dict[ir.Value, int], values: Iterable[ir.Value], axis: int | None) -> None:
    if axis is not None:
        for value in values:
            known.setdefault(value, axis)


def _axis_before(node: ir.Node, index: int, axis: int, shapes: Shapes) -> int | None:
    """The axis of an input that becomes an axis of the output; an operand of one place there has no time."""
    sizes = shapes[str(_data(node.inputs[index]).name)]
    found = [i for i in range(len(sizes)) if carried_axis(node, index, i, shapes) == axis]
    if len(found) != 1 or (sizes[found[0]] == 1 and shapes[str(node.outputs[0].name)][axis] > 1):
        return None
    return found[0]
