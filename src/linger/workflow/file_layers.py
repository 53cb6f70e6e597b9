# SPDX-License-Identifier: Apache-2.0
"""The layers and tensors of a file as a report lists them: names, shapes, widths, formats, costs. Nothing is run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.checks.memory_use import LayerMemory, MemoryUse
from linger.dialect import is_known
from linger.errors import LingerError
from linger.graph.core.dialects import (
    NEWER,
    NEWER_OPS,
    OLDER,
    carried,
    has_nodes_of,
    is_quantizing,
    read_scale,
    stands_for,
    stated_formats,
)
from linger.graph.core.nodes import inputs_within, required_inputs
from linger.graph.core.tensor_types import REALS, constant_tensor, integer_bits
from linger.graph.formats.tensor_formats import UNKNOWN, TensorFormat
from linger.graph.network import Network
from linger.graph.qdq.qdq_node import MOVE, MOVE_BYTES, is_qdq, quantization_of, scale_of, zero_of
from linger.numeric.fixed import FixedPoint
from linger.reporting.facts import Bins, LayerFacts

MOST_BINS = 128
CHUNK = 1 << 18
"""Values that are counted at once: a tensor is never copied as a whole."""

_MOST_EXPONENTS = 32
"""An exponent is below the width of an accumulator."""

_MOST_DISTINCT = 1 << 16
"""Different integers that are counted; a tensor of 16 bits has no more."""


@dataclass(frozen=True)
class Grid:
    """How the integers of a tensor stand for real numbers: real = (integer - zero) / scale.

    The scale is None where it is not known, the width None for real numbers.
    """

    scale: float | None = None
    bits: int | None = None
    zero: int = 0
    is_signed: bool = True

    @property
    def width(self) -> str:
        """The width as text; `u8`: unsigned."""
        return f"{self.bits}" if self.is_signed else f"u{self.bits}"

    @property
    def q_format(self) -> str:
        """Bits before and behind the point, `Q2.5`, unsigned `UQ3.5`; empty where the scale is no power of two."""
        if self.scale is None or self.bits is None or self.zero:
            return ""
        fraction, exponent = math.frexp(self.scale)
        name = FixedPoint(self.bits - exponent + (not self.is_signed), exponent - 1).name if fraction == 0.5 else ""
        return name if self.is_signed or not name else f"U{name}"

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """The integers at which values are cut off; the least unsigned one is no end where it stands for 0."""
        if self.bits is None:
            return None, None
        if not self.is_signed:
            return (0 if self.zero else None), 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1


class Tally:
    """Counts the values of one tensor.

    Bins are 2^k grid steps wide (of real numbers: 2^k), and begin at multiples of their width. When values come that would
    need more than `most_bins` bins, neighbors are joined, so that nothing has to be counted again.

    >>> tally = Tally(Grid(scale=4.0, bits=8))
    >>> tally.add(np.array([-128, 1, 1, 127], np.int8))
    >>> tally.low, tally.high, tally.distinct, tally.clipped
    (-32.0, 31.75, 3, 0.5)
    """

    def __init__(self, grid: Grid, most_bins: int = MOST_BINS, exponent: int | None = None) -> None:
        self.grid, self._most_bins = grid, most_bins
        self._exponent, self._first = exponent, 0
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._low, self._high = math.inf, -math.inf
        self._seen: NDArray[Any] | None = np.zeros(0, np.int64)
        self._clipped = self.values = 0

    def add(self, array: NDArray[Any]) -> None:
        """Count the values of one batch; what is not finite is left out."""
        flat = np.asarray(array).reshape(-1)
        if flat.dtype.kind not in "iufb" or not flat.size:
            return
        for part in self._parts(flat):  # the range of all first: it decides how wide the bins are
            self._low, self._high = min(self._low, float(part.min())), max(self._high, float(part.max()))
        for part in self._parts(flat):
            self._count(part, is_integer=flat.dtype.kind in "iu")

    def _parts(self, flat: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """The finite values, a part at a time."""
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            if part.dtype.kind not in "iu":
                part = part.astype(np.float64)
                part = part[np.isfinite(part)]
            if part.size:
                yield part

    def _count(self, flat: NDArray[Any], *, is_integer: bool) -> None:
        self.values += int(flat.size)
        if is_integer:
            self._clipped += sum(int(np.count_nonzero(flat == end)) for end in self.grid.ends if end is not None)
        seen = np.union1d(self._seen, flat) if is_integer and self._seen is not None else None
        self._seen = None if seen is None or seen.size > _MOST_DISTINCT else seen
        exponent = self._needed_exponent(is_integer=is_integer)
        if self._counts.size:
            self._widen(exponent)
        self._exponent = exponent
        self._put(np.floor(np.ldexp(flat.astype(np.float64) - self.grid.zero, -exponent)).astype(np.int64))

    def _needed_exponent(self, *, is_integer: bool) -> int:
        """The least bin width, as a power of two, with which everything seen so far needs no more bins than there may be."""
        low, high = self._low - self.grid.zero, self._high - self.grid.zero
        exponent = self._exponent
        if exponent is None:
            span = (high - low) or abs(high) or 1.0
            exponent = 0 if is_integer else max(math.frexp(span / self._most_bins)[1] - 1, -1000)
        while math.floor(math.ldexp(high, -exponent)) - math.floor(math.ldexp(low, -exponent)) >= self._most_bins:
            exponent += 1
        return exponent

    def _widen(self, exponent: int) -> None:
        """Join neighbors until bins have this width."""
        shift = exponent - (self._exponent or 0)
        if shift <= 0:
            return
        places = (np.arange(self._counts.size, dtype=np.int64) + self._first) >> min(shift, 62)
        first = int(places[0])
        joined = np.zeros(int(places[-1]) - first + 1, np.int64)
        np.add.at(joined, places - first, self._counts)
        self._counts, self._first = joined, first

    def _put(self, indices: NDArray[np.int64]) -> None:
        first, last = int(indices.min()), int(indices.max())
        if self._counts.size:
            first, last = min(first, self._first), max(last, self._first + self._counts.size - 1)
        counts = np.bincount(indices - first, minlength=last - first + 1).astype(np.int64)
        if self._counts.size:
            start = self._first - first
            counts[start : start + self._counts.size] += self._counts
        self._counts, self._first = counts, first

    def _real(self, number: float) -> float:
        return number if self.grid.scale is None else (number - self.grid.zero) / self.grid.scale

    @property
    def low(self) -> float | None:
        """The smallest real value."""
        return self._real(self._low) if self.values else None

    @property
    def high(self) -> float | None:
        """The largest real value."""
        return self._real(self._high) if self.values else None

    @property
    def distinct(self) -> int | None:
        """How many different integers there were; None for real numbers."""
        return None if self._seen is None or not self.values else int(self._seen.size)

    @property
    def clipped(self) -> float | None:
        """The share of integers at the ends of the range; None for real numbers."""
        has_ends = any(end is not None for end in self.grid.ends)
        return self._clipped / self.values if self.values and has_ends else None

    @property
    def exponent(self) -> int | None:
        """Bins are 2^exponent steps wide."""
        return self._exponent if self._counts.size else None

    def bins(self) -> Bins | None:
        """The histogram, in real values; None where nothing was counted."""
        if not self._counts.size or self._exponent is None:
            return None
        step = 1.0 if self.grid.scale is None else 1.0 / self.grid.scale
        offset = self.grid.zero if self.grid.scale is None else 0
        width = math.ldexp(step, self._exponent)
        return Bins(self._first * width + offset, width, tuple(int(count) for count in self._counts))


QDQ, STANDARD = "qdq", "standard"
"""Forms of linger's own files. The scales of `standard` are in the arithmetic: its nodes quantize integers to other integers,
and state no real numbers. `qdq` states them where a tensor is dequantized; a node that quantizes may shift its numbers."""

INTEGER, FLOAT, MOVES = "integer", "float", "moves"
_MOVING = frozenset({*MOVE, *MOVE_BYTES, "Concat", "Where", "Compress", "Cast", "CastLike"})
_QUANTIZING_OPS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_INTEGER_OPS = frozenset({"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"})
_STANDARD = ("", "ai.onnx")


class _Origin(NamedTuple):
    """The simulated op that a node or a tensor of a file belongs to, read from its name, and which call of it, from 0."""

    name: str
    path: str
    op: str
    call: int


def origin_of(name: str) -> _Origin | None:
    """The op in a name that linger gave; None for other names.

    >>> origin_of("block.conv.Conv2dInt_1/QLinearConv_0")
    _Origin(name='block.conv.Conv2dInt_1', path='block.conv', op='Conv2dInt', call=1)
    >>> origin_of("Flatten") is None
    True
    """
    stem = name.partition("/")[0]
    path, _, last = stem.rpartition(".")
    op, _, number = last.rpartition("_")
    if not op or not number.isdecimal():
        op, number = last, "0"
    return _Origin(stem, path, op, int(number)) if is_known(op) or op in NEWER_OPS else None


@dataclass
class FileLayers:
    """The nodes of a file that compute data, in the order of execution, with what is known of their tensors.

    `use` is what it needs, layer by layer; what could not be found is told by notes.
    """

    network: Network
    use: MemoryUse
    notes: list[str] = field(default_factory=list)

    @property
    def model(self) -> ir.Model:
        """The file's graph."""
        return self.network.model

    @cached_property
    def rows(self) -> list[tuple[ir.Node, list[LayerMemory]]]:
        """Each node with its rows of memory: several where the newer dialect's node is written as several older ones."""
        makers = {value.name: node for node in self.model.graph for value in node.outputs if value.name}
        rows: list[tuple[ir.Node, list[LayerMemory]]] = []
        waiting: list[LayerMemory] = []
        for row in self.use.layers:
            waiting.append(row)
            node = next((makers[name] for name in row.outputs if name in makers), None)
            if node is not None:
                rows.append((node, waiting))
                waiting = []
        return rows

    @cached_property
    def maker_numbers(self) -> dict[str, int]:
        """By tensor, the number of the layer that makes it."""
        return {v.name: i for i, (node, _) in enumerate(self.rows) for v in node.outputs if v.name}

    @cached_property
    def facts(self) -> Mapping[ir.Value, TensorFormat]:
        """Type, scale and width of the tensors."""
        try:
            return self.network.formats.facts
        except LingerError as error:
            self.notes.append(f"The scales of the tensors are not known: {error}")
            return {}

    @cached_property
    def grids(self) -> dict[str, Grid]:
        """The grid of every tensor that holds integers, by name."""
        made = (value for node in self.model.graph for value in node.outputs)
        values = (*required_inputs(self.model), *self.model.graph.initializers.values(), *made)
        stated = {v.name: grid for v in values if v.name and (grid := self._stated(v)) is not None}
        quantizing = [node for node, _ in self.rows if is_quantizing(node)]
        for node in quantizing:
            stated |= dict(_weight_grids(node, stated))
        biases = chain.from_iterable(_bias_grids(node, stated) for node in quantizing)
        return {**stated, **dict(biases), **dict(_qdq_grids(self.model, self.form))}

    def _stated(self, value: ir.Value) -> Grid | None:
        fact = self.facts.get(value, UNKNOWN)
        element = value.dtype or fact.element
        if fact.is_quantized and element not in REALS:
            return Grid(fact.scale, fact.bits, 0, is_signed=not str(element).startswith("U"))
        if element is None or not element.is_integer() or element in (ir.DataType.INT64, ir.DataType.UINT64):
            return None
        return Grid(None, integer_bits(element) or int(element.bitwidth), 0, is_signed=element.is_signed())

    @cached_property
    def weights(self) -> dict[str, ir.TensorProtocol]:
        """The constants that layers read, by name, without single numbers, shapes and axes."""
        constants = ((value.name, constant_tensor(value)) for node, _ in self.rows for value in _data_of(node))
        return {name: tensor for name, tensor in constants if name and tensor is not None and _is_weight(tensor)}

    def layers(self) -> tuple[LayerFacts, ...]:
        """The layers, without what only a run tells."""
        return tuple(self._layer(node, rows) for node, rows in self.rows)

    def _layer(self, node: ir.Node, rows: Sequence[LayerMemory]) -> LayerFacts:
        inputs = [value.name for value in dict.fromkeys(inputs_within(node)) if value.name]
        outputs = [value.name for value in node.outputs if value.name]
        weights = [name for name in inputs if name in self.weights]
        data = [name for name in inputs if name not in self.weights]
        x, w, o = grids = [self.grids.get(next(iter(names), "")) for names in (data, weights, outputs)]
        x_format, w_format, o_format = ("" if grid is None else grid.q_format for grid in grids)
        return LayerFacts(
            name=node.name or next(iter(outputs), ""),
            path=path_of_node(node),
            op=node.op_type,
            runs_as=self._runs_as(node),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            shape=rows[-1].shape,
            bits=_bits(x, w, o),
            x_format=x_format,
            w_format=_channel_formats(node, w) or w_format,
            o_format=o_format,
            macs=sum(row.macs for row in rows),
            weight_bytes=sum(row.weight_bytes for row in rows),
            live_bytes=max(row.live_bytes for row in rows),
        )

    def _runs_as(self, node: ir.Node) -> str:
        if is_quantizing(node) or origin_of_node(node) is not None or node.op_type in (*_QUANTIZING_OPS, *_INTEGER_OPS):
            return INTEGER
        if node.domain in _STANDARD and node.op_type in _MOVING:
            return MOVES
        made = next(filter(attrgetter("name"), node.outputs), None)
        element = None if made is None else made.dtype or self.facts.get(made, UNKNOWN).element
        return FLOAT if element in (None, *REALS) else INTEGER

    def float_weight_bytes(self) -> int | None:
        """What the weights take in float32; None for a file without integer weights."""
        if not any(tensor.dtype.is_integer() for tensor in self.weights.values()):
            return None
        return 4 * sum(int(np.prod(tensor.shape.numpy(), dtype=np.int64)) for tensor in self.weights.values())

    @cached_property
    def form(self) -> str:
        """The form of the file, as the export names it, or what it is else."""
        if has_nodes_of(self.model, NEWER):
            return "newer dialect"
        if has_nodes_of(self.model, OLDER):
            return "dialect" if self.model.functions else "bare"
        if any(origin_of_node(node) is not None for node, _ in self.rows):
            return QDQ if any(map(_dequantizes_own_name, self.model.graph)) else STANDARD
        has_qdq = any(node.op_type in (*_QUANTIZING_OPS, *_INTEGER_OPS) for node in self.model.graph)
        return "quantized ONNX of another tool" if has_qdq else "float ONNX"


def path_of_node(node: ir.Node) -> str:
    """The module that a node comes from, by its name; empty where the name does not tell."""
    origin = origin_of_node(node)
    if origin is not None:
        return origin.path
    path, _, last = (node.name or "").rpartition(".")
    return path if re.fullmatch(rf"{re.escape(node.op_type)}(_\d+)?", last) else ""


def origin_of_node(node: ir.Node) -> _Origin | None:
    """The simulated op that a node belongs to, by its own name or that of what it makes."""
    made = [stands_for(value.name) for value in node.outputs if value.name and "/" in value.name]
    names = [name for name in (node.name or "", *made) if is_quantizing(node) or "/" in name]
    return next((origin for origin in map(origin_of, names) if origin is not None), None)


def read_array(tensor: ir.TensorProtocol) -> NDArray[Any] | None:
    """The content of a constant; None where it cannot be read."""
    try:
        return np.asarray(tensor.numpy())
    except (TypeError, ValueError, OSError):
        return None


def _data_of(node: ir.Node) -> list[ir.Value]:
    """What a node reads, without scales and zero points of quantizing nodes, and the bounds and shapes of moves."""
    if node.domain in _STANDARD and node.op_type in (*_QUANTIZING_OPS, *MOVE, *MOVE_BYTES):
        return [value for value in node.inputs[:1] if value is not None]
    return list(dict.fromkeys(inputs_within(node)))


def _is_weight(tensor: ir.TensorProtocol) -> bool:
    count = int(np.prod(tensor.shape.numpy(), dtype=np.int64))
    return count > 1 and tensor.dtype not in (ir.DataType.INT64, ir.DataType.STRING, ir.DataType.BOOL)


def _bits(x: Grid | None, w: Grid | None, o: Grid | None) -> str:
    """Widths of input, weights and output, or of the output alone."""
    if o is None or o.bits is None:
        return ""
    if w is None:
        return o.width
    return "/".join("?" if grid is None or grid.bits is None else grid.width for grid in (x, w, o))


def _exponents(node: ir.Node, scale: str) -> tuple[int, ...]:
    """The exponents of the channels of weights whose scale is in this attribute; none where all have one scale."""
    given = node.attributes.get(scale.replace("scale_", "exponents_"))
    return () if given is None or given.type != ir.AttributeType.INTS or given.is_ref() else tuple(given.as_ints())


def _channel_formats(node: ir.Node, w: Grid | None) -> str:
    """The formats of weights whose channels have scales of their own, from the coarsest to the finest."""
    own, scale = _exponents(node, "scale_w"), read_scale(node, "scale_w")
    if w is None or scale is None or not own or not 0 <= min(own) <= max(own) < _MOST_EXPONENTS:
        return ""
    return " … ".join(dict.fromkeys(replace(w, scale=scale * 2.0**e).q_format for e in (min(own), max(own))))


def _dequantizes_own_name(node: ir.Node) -> bool:
    """Whether a node dequantizes a tensor that is no carrier: the form `standard` has carriers only."""
    value = node.inputs[0] if is_qdq(node, "DequantizeLinear") and node.inputs else None
    return value is not None and carried(value.name or "")[1] is None


def _weight_grids(node: ir.Node, stated: Mapping[str, Grid]) -> Iterator[tuple[str, Grid]]:
    """Weights of the width that their layer states: 4 bits are kept in bytes."""
    for index, form in stated_formats(node).integers.items():
        value = node.inputs[index] if index < len(node.inputs) else None
        name = "" if value is None or constant_tensor(value) is None else value.name or ""
        if form.bits and name in stated:
            scale = None if _exponents(node, form.attribute) else stated[name].scale
            yield name, replace(stated[name], bits=form.bits, scale=scale)


def _bias_grids(node: ir.Node, stated: Mapping[str, Grid]) -> Iterator[tuple[str, Grid]]:
    """The bias of a dialect layer has the scale of its products."""
    names = [getattr(value, "name", None) or "" for value in node.inputs]
    tensor = constant_tensor(node.inputs[2]) if len(names) == 3 and names[2] else None
    if tensor is not None and tensor.dtype == ir.DataType.INT32:
        x, w, b = (stated.get(name, Grid(bits=32)) for name in names)
        if x.scale and w.scale:
            yield names[2], Grid(x.scale * w.scale, b.bits)


def _qdq_grids(model: ir.Model, form: str) -> Iterator[tuple[str, Grid]]:
    """The grids that QuantizeLinear and DequantizeLinear state, where there is one scale for the tensor."""
    for node in model.graph:
        value = _quantized_tensor(node, form)
        plan = None if value is None else quantization_of(node)
        if value is None or plan is None or plan.axis is not None or plan.block:
            continue
        scale = float(np.asarray(scale_of(node)).reshape(-1)[0])
        if value.name and scale > 0:
            stated = None if form == STANDARD else 1.0 / scale
            yield (
                value.name,
                Grid(stated, int(plan.element.bitwidth), zero_of(node), is_signed=plan.element.is_signed()),
            )


def _quantized_tensor(node: ir.Node, form: str) -> ir.Value | None:
    """The tensor whose numbers a QuantizeLinear or DequantizeLinear states."""
    if is_qdq(node, "QuantizeLinear") and form != QDQ:
        return node.outputs[0]
    return node.inputs[0] if is_qdq(node, "DequantizeLinear") and node.inputs else None
