# SPDX-License-Identifier: Apache-2.0
"""The numbers in a file: types, shapes and ranges of weights and biases, and what they can add up to."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.checks.findings.accumulators import Accumulator, accumulator_findings
from linger.checks.findings.node_places import Place, Whole
from linger.checks.findings.weight_sums import WeightSums, row_sums, transposed_sums
from linger.dialect import Op, is_known
from linger.graph.core import check_rules as rules
from linger.graph.core.dialect_node import is_dialect, op_of
from linger.graph.core.finding import Finding
from linger.graph.core.tensor_types import INTEGERS
from linger.numeric.fixed import limits
from linger.numeric.onnx.writer import integer_type

_WEIGHTS = ("w", "w_ih", "w_hh")
_BIAS_OF = {"w": "b", "w_ih": "b_ih", "w_hh": "b_hh"}
_WIDTHS = ("data_bits", "parameter_bits", "o_bits")
_NARROWEST, _WIDEST = 2, 32
_WINDOW = {"Conv1dInt": 1, "Conv2dInt": 2, "ConvTranspose2dInt": 2}
"""Ops with a window, and its axes."""

_SUMS = frozenset({*_WINDOW, "LinearInt", "BatchNorm2dInt", "LSTMInt", "GRUInt"})
"""Ops that add products of data and weights in an accumulator of 32 bits."""


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


def number_findings(whole: Whole, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """What the constants of each dialect node say.

    Args:
        whole: The model.
        skip: Nodes, as findings name them, whose attributes or operands are wrong: nothing more can be said of them.
    """
    seen: dict[tuple[Any, ...], WeightSums] = {}
    for place in whole.places:
        node = place.node
        if not is_dialect(node) or not is_known(node.op_type) or str(place) in skip:
            continue
        op = op_of(node)
        widths = {a.name: _int(node, a.name, a.default) for a in op.attributes if a.name in _WIDTHS}
        wrong = {n: bits for n, bits in widths.items() if bits is None or not _NARROWEST <= bits <= _WIDEST}
        if wrong:
            listed = ", ".join(f"{n} = {bits}" for n, bits in wrong.items())
            yield place.finding(rules.BIT_WIDTH, f"{listed}: no width", "Use 4, 8, 16 or 32 bits.")
            continue
        yield from _node_findings(place, op, {n: bits for n, bits in widths.items() if bits is not None}, seen)


def _int(node: ir.Node, name: str, default: Any) -> int | None:
    found = node.attributes.get(name)
    if found is None:
        return default if isinstance(default, int) else None
    return found.as_int() if found.type == ir.AttributeType.INT and not found.is_ref() else None


def _node_findings(
    place: Place, op: Op, widths: dict[str, int], seen: dict[tuple[Any, ...], WeightSums]
) -> Iterator[Finding]:
    given = dict(zip(op.form(len(place.node.inputs)), place.node.inputs, strict=False))
    parameters = {name: found for name, value in given.items() if (found := _constant(value)) is not None}
    for name in _WEIGHTS:
        weight, bias = parameters.get(name), parameters.get(_BIAS_OF[name])
        if weight is None and bias is None:
            continue
        problems = [*_weight_problems(place, op, name, weight, widths), *_bias_problems(place, bias)]
        if weight is not None and not problems:
            problems = list(_shape_problems(place, op, weight, bias))
        yield from problems
        if weight is None or problems or "parameter_bits" not in widths:
            continue
        sums = _sums(place.node, op, weight, seen)
        yield from _range_problems(place, weight, sums, widths["parameter_bits"])
        if op.name in _SUMS:
            yield from accumulator_findings(place, _accumulator(place.node, op, name, sums, bias, widths))


def _constant(value: ir.Value | None) -> _Parameter | None:
    if value is None:
        return None
    producer = value.producer()
    if producer is None:
        return None if value.const_value is None else _Parameter(value, value.const_value)
    content = producer.attributes.get("value") if producer.op_type == "Constant" and not producer.domain else None
    if content is None or content.type != ir.AttributeType.TENSOR or content.is_ref():
        return None
    return _Parameter(value, content.as_tensor())


def _weight_problems(
    place: Place, op: Op, name: str, weight: _Parameter | None, widths: dict[str, int]
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


def _type_finding(place: Place, parameter: _Parameter, expected: str) -> Finding:
    return place.finding(
        rules.PARAMETER_TYPE,
        f"{parameter.name!r} is stored as {parameter.tensor.dtype.name}; expected {expected}",
        "Export the model again, or store the integers in that type.",
        tensor=parameter.name,
    )


def _bias_problems(place: Place, bias: _Parameter | None) -> Iterator[Finding]:
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


def _shape_problems(place: Place, op: Op, weight: _Parameter, bias: _Parameter | None) -> Iterator[Finding]:
    node, shape = place.node, weight.shape
    axes = 1 if op.name in ("BatchNorm2dInt", "LayerNormInt", "GroupNormInt") else 2 + _WINDOW.get(op.name, 0)
    if op.name in _SUMS and len(shape) != axes:
        yield _shape_finding(place, weight, f"{axes} axes")
        return
    group = _int(node, "group", 1) or 1
    if op.name in _WINDOW:
        window = node.attributes["kernel_shape"].as_ints()
        short = [n for n in ("strides", "dilations") if len(node.attributes[n].as_ints()) != len(window)]
        if short:
            reason = f"{' and '.join(short)} and kernel_shape have different lengths"
            yield place.finding(rules.PARAMETER_SHAPE, reason, "Give one number per axis of the window.")
            return
        if list(window) != list(shape[2:]):
            yield _shape_finding(place, weight, f"the window {list(window)} of kernel_shape")
            return
        if shape[0] % group:
            yield _shape_finding(place, weight, f"a first axis that its {group} groups divide")
            return
    channels = _channels(op, shape, group)
    if bias is not None and op.name in _SUMS and bias.shape != (channels,):
        yield _shape_finding(place, bias, f"[{channels}], one number per channel of the weight")


def _shape_finding(place: Place, parameter: _Parameter, expected: str) -> Finding:
    return place.finding(
        rules.PARAMETER_SHAPE,
        f"{parameter.name!r} has the shape {list(parameter.shape)}; expected {expected}",
        "Export the model again.",
        tensor=parameter.name,
    )


def _channels(op: Op, shape: tuple[int, ...], group: int) -> int:
    return shape[1] * group if op.name == "ConvTranspose2dInt" else shape[0] if shape else 1


def _sums(node: ir.Node, op: Op, weight: _Parameter, seen: dict[tuple[Any, ...], WeightSums]) -> WeightSums:
    """The sums of a weight; one that several nodes share is read once."""
    if op.name != "ConvTranspose2dInt":
        key: tuple[Any, ...] = (id(weight.tensor), _channels(op, weight.shape, 1))
        if key not in seen:
            seen[key] = row_sums(weight.tensor, key[1])
        return seen[key]
    group, strides, dilations = (
        node.attributes["group"].as_int(),
        tuple(node.attributes["strides"].as_ints()),
        tuple(node.attributes["dilations"].as_ints()),
    )
    key = (id(weight.tensor), group, strides, dilations)
    if key not in seen:
        seen[key] = transposed_sums(weight.tensor, group=group, strides=strides, dilations=dilations)
    return seen[key]


def _range_problems(place: Place, weight: _Parameter, sums: WeightSums, bits: int) -> Iterator[Finding]:
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
        is_gate=op.name in ("LSTMInt", "GRUInt"),
    )
