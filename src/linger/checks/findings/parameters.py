# SPDX-License-Identifier: Apache-2.0
"""Weights and biases in a file: their types, shapes and ranges, and what they can add up to."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.checks.findings.accumulators import Accumulator, WeightSums, accumulator_findings, row_sums, transposed_sums
from linger.checks.findings.node_places import CheckedModel, NodePlace
from linger.dialect import Op, is_known
from linger.graph.core import check_rules as rules
from linger.graph.core.dialect_node import is_dialect, op_of
from linger.graph.core.finding import Finding
from linger.graph.core.tensor_content import constant_tensor
from linger.graph.core.tensor_types import INTEGERS
from linger.numeric.fixed import limits
from linger.numeric.onnx.writer import integer_type

_WEIGHTS = ("w", "w_ih", "w_hh")
_BIAS_OF = {"w": "b", "w_ih": "b_ih", "w_hh": "b_hh"}
_WIDTHS = ("data_bits", "parameter_bits", "o_bits")
_NARROWEST, _WIDEST = 2, 32

Seen = dict[tuple[object, ...], WeightSums]
"""Sums of weights that several nodes may share, by the tensor and what else they depend on."""


@dataclass(frozen=True)
class _Parameter:
    value: ir.Value
    tensor: ir.TensorProtocol

    @property
    def name(self) -> str:
        return self.value.name or "?"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.tensor.shape.numpy())


def number_findings(checked: CheckedModel, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """What is wrong with the constants of each dialect node.

    Args:
        checked: The model.
        skip: Nodes, as findings name them, whose attributes or operands are wrong: nothing more can be said of them.
    """
    seen: Seen = {}
    for place in checked.places:
        node = place.node
        if is_dialect(node) and is_known(node.op_type) and str(place) not in skip:
            op = op_of(node)
            stated = {a.name: _int(node, a.name, a.default) for a in op.attributes if a.name in _WIDTHS}
            widths = {name: bits for name, bits in stated.items() if bits is not None}
            yield from _width_findings(place, stated) or _node_findings(place, op, widths, seen)


def _width_findings(place: NodePlace, widths: dict[str, int | None]) -> list[Finding]:
    wrong = [f"{n} = {bits}" for n, bits in widths.items() if bits is None or not _NARROWEST <= bits <= _WIDEST]
    reason = f"{', '.join(wrong)}: no width"
    return [place.finding(rules.BIT_WIDTH, reason, "Use 4, 8, 16 or 32 bits.")] if wrong else []


def _int(node: ir.Node, name: str, default: object) -> int | None:
    found = node.attributes.get(name)
    if found is None:
        return default if isinstance(default, int) else None
    return found.as_int() if found.type == ir.AttributeType.INT and not found.is_ref() else None


def _node_findings(place: NodePlace, op: Op, widths: dict[str, int], seen: Seen) -> Iterator[Finding]:
    given = dict(zip(op.form(len(place.node.inputs)), place.node.inputs, strict=False))
    parameters = {name: found for name, value in given.items() if (found := _constant(value)) is not None}
    for name in _WEIGHTS:
        weight, bias = parameters.get(name), parameters.get(_BIAS_OF[name])
        problems = [*_weight_problems(place, op, name, weight, widths), *_bias_problems(place, bias)]
        if weight is not None and not problems:
            problems = list(_shape_problems(place, op, weight, bias))
        yield from problems
        if weight is not None and not problems and "parameter_bits" in widths:
            sums = _sums(place.node, op, weight, seen)
            yield from _range_problems(place, weight, sums, widths["parameter_bits"])
            if op.weight_axes is not None:
                yield from accumulator_findings(place, _accumulator(place.node, op, name, sums, bias, widths))


def _constant(value: ir.Value | None) -> _Parameter | None:
    tensor = constant_tensor(value)
    return None if value is None or tensor is None else _Parameter(value, tensor)


def _weight_problems(
    place: NodePlace, op: Op, name: str, weight: _Parameter | None, widths: dict[str, int]
) -> Iterator[Finding]:
    bits = widths.get("parameter_bits")
    if weight is None or name not in op.inputs:
        return
    dtype = weight.tensor.dtype
    if bits is None:
        if dtype not in INTEGERS:
            yield _type_finding(place, weight, "an integer type")
    elif dtype != integer_type(bits):
        yield _type_finding(place, weight, f"{integer_type(bits).name} for {bits} bits")


def _type_finding(place: NodePlace, parameter: _Parameter, expected: str) -> Finding:
    return place.finding(
        rules.PARAMETER_TYPE,
        f"{parameter.name!r} is stored as {parameter.tensor.dtype.name}; expected {expected}",
        "Export the model again, or store the integers in that type.",
        tensor=parameter.name,
    )


def _bias_problems(place: NodePlace, bias: _Parameter | None) -> Iterator[Finding]:
    if bias is None or bias.tensor.dtype == ir.DataType.INT32:
        return
    yield _type_finding(place, bias, "INT32 for a bias")
    if bias.tensor.dtype in (ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64):
        content = bias.tensor.numpy().reshape(-1)
        low, high = limits(32)
        outside = np.flatnonzero((content < low) | (content > high))
        if outside.size:
            channel = int(outside[0])
            yield place.finding(
                rules.BIAS_RANGE,
                f"{bias.name!r} has {int(content[channel])} at channel {channel}; int32 ends at {high}",
                "Lower scale_x or scale_w of this layer.",
                tensor=bias.name,
            )


def _shape_problems(place: NodePlace, op: Op, weight: _Parameter, bias: _Parameter | None) -> Iterator[Finding]:
    if op.weight_axes is not None and len(weight.shape) != op.weight_axes:
        yield _shape_finding(place, weight, f"{op.weight_axes} axes")
        return
    group = _int(place.node, "group", 1) or 1
    problem = _window_problem(place, weight, group) if op.window_axes else None
    if problem is not None:
        yield problem
        return
    channels = _channels(op, weight.shape, group)
    if bias is not None and op.weight_axes is not None and bias.shape != (channels,):
        yield _shape_finding(place, bias, f"[{channels}], one number per channel of the weight")


def _window_problem(place: NodePlace, weight: _Parameter, group: int) -> Finding | None:
    """Why the attributes of a convolution and the shape of its weight do not fit."""
    attributes, shape = place.node.attributes, weight.shape
    window = list(attributes["kernel_shape"].as_ints())
    short = [n for n in ("strides", "dilations") if len(attributes[n].as_ints()) != len(window)]
    if short:
        reason = f"{' and '.join(short)} and kernel_shape have different lengths"
        return place.finding(rules.PARAMETER_SHAPE, reason, "Give one number per axis of the window.")
    if window != list(shape[2:]):
        return _shape_finding(place, weight, f"the window {window} of kernel_shape")
    return _shape_finding(place, weight, f"a first axis that its {group} groups divide") if shape[0] % group else None


def _shape_finding(place: NodePlace, parameter: _Parameter, expected: str) -> Finding:
    return place.finding(
        rules.PARAMETER_SHAPE,
        f"{parameter.name!r} has the shape {list(parameter.shape)}; expected {expected}",
        "Export the model again.",
        tensor=parameter.name,
    )


def _channels(op: Op, shape: tuple[int, ...], group: int) -> int:
    return op.output_channels(shape, group) if shape else 1


def _sums(node: ir.Node, op: Op, weight: _Parameter, seen: Seen) -> WeightSums:
    """The sums of a weight; one that several nodes share is read once."""
    key: tuple[object, ...]
    if op.is_transposed:
        group = node.attributes["group"].as_int()
        strides, dilations = (tuple(node.attributes[name].as_ints()) for name in ("strides", "dilations"))
        key = (id(weight.tensor), group, strides, dilations)
        if key not in seen:
            seen[key] = transposed_sums(weight.tensor, group=group, strides=strides, dilations=dilations)
        return seen[key]
    channels = _channels(op, weight.shape, 1)
    key = (id(weight.tensor), channels)
    if key not in seen:
        seen[key] = row_sums(weight.tensor, channels)
    return seen[key]


def _range_problems(place: NodePlace, weight: _Parameter, sums: WeightSums, bits: int) -> Iterator[Finding]:
    low, high = limits(bits)
    outside = sums.low if sums.low < low else sums.high
    if sums.low < low or sums.high > high:
        yield place.finding(
            rules.PARAMETER_RANGE,
            f"{weight.name!r} holds {outside}; {bits} bits hold {low} to {high}",
            f"Quantise the weights to {bits} bits, or set parameter_bits to what they need.",
            tensor=weight.name,
        )


def _accumulator(
    node: ir.Node, op: Op, name: str, sums: WeightSums, bias: _Parameter | None, widths: dict[str, int]
) -> Accumulator:
    offsets: NDArray[np.int64] = (
        np.zeros(len(sums.positive), np.int64) if bias is None else bias.tensor.numpy().astype(np.int64)
    )
    scales = {n: node.attributes[n].as_float() for n in ("scale_x", "scale_w", "scale_o") if n in node.attributes}
    ratio = None
    if len(scales) == 3 and all(math.isfinite(s) and s > 0 for s in scales.values()):
        ratio = scales["scale_o"] / (scales["scale_x"] * scales["scale_w"])
    return Accumulator(
        sums=sums,
        bias=offsets,
        bias_name="" if bias is None else bias.name,
        # what a recurrent layer feeds back is its own output
        data_bits=widths["o_bits"] if name == "w_hh" else widths["data_bits"],
        output_bits=widths["o_bits"],
        ratio=ratio,
        is_gate=op.is_recurrent,
    )
