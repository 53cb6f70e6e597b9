# SPDX-License-Identifier: Apache-2.0
"""Standard nodes that only move elements, as maps from places of the result to places of what it is taken from.

No op is described here. A node is run by onnx's own reference on the numbers 1, 2, 3, …, so what comes out is the map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from linger.errors import UnsupportedError
from linger.graph.core.nodes import describe
from linger.numeric.c.nodes import Tables

Array = NDArray[Any]

ALIASES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Ops whose result has the elements of their first input, in the same order."""

MOVES = frozenset(
    {
        "Transpose",
        "Slice",
        "Split",
        "Concat",
        "Gather",
        "Expand",
        "Tile",
        "Pad",
        "DepthToSpace",
        "SpaceToDepth",
        "Where",
    }
)
"""Ops whose elements are elements of their inputs, at places that depend on sizes and constants only."""

_MOVED = {"Concat": slice(None), "Where": slice(1, None)}
"""The inputs whose elements an op moves, where that is not the first one alone."""

_IR_VERSION = 8


@dataclass(frozen=True)
class Part:
    """A box of the result, and where its elements come from.

    Attributes:
        begin: The first index of the box on each axis of the result, as it lies in memory.
        shape: Its sizes.
        source: Which input; None: the constant `value`.
        first: The place in the input's memory of the box's first element.
        steps: For each axis what moving along it adds to the place: one number, or a table of what each index adds.
        value: The constant.
    """

    begin: tuple[int, ...]
    shape: tuple[int, ...]
    source: int | None
    first: int = 0
    steps: tuple[int | tuple[int, ...], ...] = ()
    value: int | float = 0


def map_of(node: ir.Node, shapes: Sequence[tuple[int, ...]], constants: Mapping[str, Array], opset: int) -> list[Array]:
    """For each output the place that each element is taken from, counted through all data inputs; −1 for a border.

    Args:
        node: The node.
        shapes: The shapes of its data inputs.
        constants: Contents by name: the inputs that are no data are among them.
        opset: The opset of the model.
    """
    feeds = {name: constants[name] for name in settings(node) if name in constants}
    done = 1  # counted from 1, because a border without a value is 0
    for name, shape in zip(data_names(node), shapes, strict=True):
        size = int(np.prod(shape, dtype=np.int64))
        feeds[name] = np.arange(done, done + size, dtype=np.int64).reshape(shape)
        done += size
    if node.op_type == "Pad":
        feeds |= {value.name: np.array(0, np.int64) for value in node.inputs[2:3] if value is not None and value.name}
    if node.op_type == "Pad" and node.attributes.get_float("value", 0.0) != 0.0:
        raise UnsupportedError(f"{describe(node)}, whose border has a value as before opset 11; convert the file")
    return [places - 1 for places in _run(node, feeds, opset)]


def data_names(node: ir.Node) -> list[str]:
    """The tensors that a node moves, each once, in the order in which maps count them; some may be constants."""
    values = node.inputs[_MOVED.get(node.op_type, slice(1))]
    return list(dict.fromkeys(v.name for v in values if v is not None and v.name))


def settings(node: ir.Node) -> list[str]:
    """The inputs that decide which elements a node moves where: sizes, indices, masks."""
    moved = node.inputs[_MOVED.get(node.op_type, slice(1))]
    return [v.name for v in node.inputs if v is not None and v.name and v not in moved]


def _run(node: ir.Node, feeds: Mapping[str, Array], opset: int) -> list[Array]:
    proto = ir.to_proto(node)
    assert isinstance(proto, onnx.NodeProto)
    inputs = [
        onnx.ValueInfoProto(
            name=name,
            type=onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=int(ir.DataType.from_numpy(array.dtype)))),
        )
        for name, array in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = onnx.GraphProto(name="g", node=[proto], input=inputs, output=outputs)
    opsets = [onnx.OperatorSetIdProto(domain="", version=opset)]
    model = onnx.ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=opsets)
    return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, dict(feeds))]


def parts_of(places: Array, ends: Sequence[int]) -> list[Part] | None:
    """A map as boxes; None where it is no sum of what each axis adds.

    Args:
        places: For each element of the result, in memory order, the place it is taken from, counted through all inputs.
        ends: Where each input ends in that count.
    """
    if places.size == 0:
        return []
    owner = np.searchsorted(np.asarray(ends), places, side="right")
    owner = np.where(places < 0, len(ends), owner)
    cuts = [_cuts(owner, axis) for axis in range(places.ndim)]
    parts = []
    for ranges in product(*cuts):
        box = tuple(slice(a, b) for a, b in ranges)
        inside = owner[box]
        if inside.min() != inside.max():
            return None
        part = _part(places[box], tuple(a for a, _ in ranges), int(inside.flat[0]), ends)
        if part is None:
            return None
        parts.append(part)
    return parts


def _cuts(owner: Array, axis: int) -> list[tuple[int, int]]:
    """Where along an axis the elements begin to come from elsewhere."""
    moved = np.moveaxis(owner, axis, 0).reshape(owner.shape[axis], -1)
    edges = (1 + np.flatnonzero((moved[1:] != moved[:-1]).any(axis=1))).tolist()
    return list(zip([0, *edges], [*edges, len(moved)], strict=True))


def _part(places: Array, begin: tuple[int, ...], owner: int, ends: Sequence[int]) -> Part | None:
    if owner == len(ends):
        return Part(begin, places.shape, None)
    start = 0 if owner == 0 else ends[owner - 1]
    first = int(places.flat[0])
    total, steps = np.full((1,) * places.ndim, first), []
    for axis, size in enumerate(places.shape):
        line = places[tuple(slice(None) if a == axis else 0 for a in range(places.ndim))] - first
        shape = [1] * places.ndim
        shape[axis] = size
        total = total + line.reshape(shape)
        steps.append(_step(line))
    return Part(begin, places.shape, owner, first - start, tuple(steps)) if np.array_equal(total, places) else None


def _step(line: Array) -> int | tuple[int, ...]:
    """What moving along an axis adds, if it is always the same."""
    if line.size == 1:
        return 0
    each = int(line[1])
    return each if np.array_equal(line, each * np.arange(line.size)) else tuple(line.tolist())


def move_function(
    name: str, places: Array, inputs: Sequence[tuple[str, int]], output: str, tables: Tables, value: str = "0"
) -> str:
    """The text of a function that fills an array.

    Args:
        name: Its name.
        places: For each element of the result, in memory order, the place in the inputs, counted through all of them;
            negative: `value`.
        inputs: Type and number of elements of each input.
        output: The type of the result.
        tables: Where places that follow no rule go.
        value: What elements have that come from no input.
    """
    parameters = [f"const {ctype} *in_{i}" for i, (ctype, _) in enumerate(inputs)]
    ends = np.cumsum([size for _, size in inputs]).tolist()
    walked = _squeezed(places)
    parts = parts_of(walked, ends)
    if parts is None:
        walked = places.reshape(-1)
        parts = parts_of(walked, ends) or []
    lines = [line for part in parts for line in _loops(part, walked.shape, tables, value)]
    names = [*(f"in_{i}" for i in range(len(inputs))), "out_0"]
    unused = [f"    (void){each};" for each in names if not any(f"{each}[" in line for line in lines)]
    return "\n".join(
        [f"static void {name}({', '.join([*parameters, f'{output} *out_0'])}) {{", *unused, *lines, "}", ""]
    )


def _squeezed(places: Array) -> Array:
    """The map without axes of size 1, and with those joined that are walked through in one run."""
    joined = places.reshape([n for n in places.shape if n != 1] or [1])
    axis = joined.ndim - 1
    while axis > 0:
        merged = joined.reshape(*joined.shape[: axis - 1], -1, *joined.shape[axis + 1 :])
        if (np.diff(merged, axis=axis - 1) == 1).all():  # always one element further
            joined = merged
        axis -= 1
    return joined


def _loops(part: Part, shape: tuple[int, ...], tables: Tables, value: str) -> list[str]:
    lines, target, source = [], [], [str(part.first)] if part.first else []
    strides = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
    depth = 1
    for axis, (begin, size, stride) in enumerate(zip(part.begin, part.shape, strides, strict=True)):
        at = "0"
        if size > 1:
            at = f"i{axis}"
            lines.append(f"{'    ' * depth}for (int32_t {at} = 0; {at} < {size}; {at}++) {{")
            depth += 1
        target += _term(at, stride) + ([str(begin * stride)] if begin else [])
        if part.source is not None:
            source += _source_term(at, part.steps[axis], tables)
    element = value if part.source is None else f"in_{part.source}[{' + '.join(source) or '0'}]"
    lines.append(f"{'    ' * depth}out_0[{' + '.join(target) or '0'}] = {element};")
    while depth > 1:
        depth -= 1
        lines.append(f"{'    ' * depth}}}")
    return lines


def _term(at: str, step: int) -> list[str]:
    return [] if at == "0" or step == 0 else [at if step == 1 else f"{at} * {step}"]


def _source_term(at: str, step: int | tuple[int, ...], tables: Tables) -> list[str]:
    if isinstance(step, int):
        return _term(at, step)
    return [f"(int32_t){tables.name(step)}[{at}]"]
