# SPDX-License-Identifier: Apache-2.0
"""Element type, scale and width of a tensor; where its numbers come from unchanged; which tensors must hold integers.

First what standard ops do: which move, select, join or compare numbers, and so may do it with integers. Last the state of the walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property

import onnx_ir as ir

from linger.graph.core.check_rules import CONTRADICTION, MISSING_DEQUANT, SCALE_MISMATCH, CheckRule
from linger.graph.core.dialects import (
    StatedFormats,
    is_dequant,
    is_quantizing,
    is_quantizing_domain,
    read_scale,
    stated_formats,
)
from linger.graph.core.nodes import Finding, all_nodes, describe, inner_graphs, is_in_order
from linger.graph.core.tensor_types import INTEGERS, OLDEST_OPSET, QUANTIZED, REALS, constant_type, integer_bits, takes
from linger.graph.qdq.qdq_node import COMPARE, MOVE, MOVE_BYTES, bounds_of
from linger.numeric.onnx.writer import integer_type

LOOP_FORMALS = 2
"""How many inputs of a Loop's body come before the carried tensors: the iteration and the condition."""

CONTAINERS = ("If", "Loop", "Scan")
_ENOUGH = 2
"""How many scales of one tensor are kept: two are a contradiction already."""

WHOLE_NUMBERS = INTEGERS | {ir.DataType.INT64}

_MOVED = {
    **dict.fromkeys((*MOVE, *MOVE_BYTES, *COMPARE, "Compress", "Resize", "TopK"), (0,)),
    "Where": (1, 2),
    **dict.fromkeys(("ScatterElements", "ScatterND"), (0, 2)),
}
_JOINED_ALL = frozenset({"Concat", "Max", "Min"})
_COMPARED = {
    **dict.fromkeys(("ArgMax", "ArgMin"), (0,)),
    **dict.fromkeys(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"), (0, 1)),
}

_ON_DATA = frozenset({*_MOVED, *_JOINED_ALL, *_COMPARED})
"""Ops of which `data_of` may give something."""

SHAPE_OPS = frozenset({"Shape", "Size"})
"""Ops that read the shape of a tensor and never its numbers."""

INTEGER_OPS = frozenset(
    {"Cast", "CastLike", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "DequantizeLinear", "BitShift",
     "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}
)  # fmt: skip
"""Ops that read integers as they are; what these stand for is stated elsewhere, or nowhere."""

_ONLY_INTEGERS = INTEGER_OPS - {"Cast", "CastLike"}
_EXACT_COMPARISON_BITS = 16
"""Wider integers may become equal as float32, so that comparing the integers gives another answer."""

_WITHOUT_KERNEL = {
    **dict.fromkeys((ir.DataType.INT8, ir.DataType.UINT8), frozenset[str]()),
    ir.DataType.INT16: frozenset(
        {"Pad", "Max", "Min", "Where", "DepthToSpace", "SpaceToDepth", "Resize", "ReduceMax", "ReduceMin", "ArgMax",
         "ArgMin"}
    ),
    ir.DataType.INT32: frozenset({"DepthToSpace", "SpaceToDepth"}),
}  # fmt: skip
"""By element type, ops that ONNX Runtime 1.31.1 cannot run, as measured."""

_ADOPTED = frozenset({"Relu", "MaxPool", "Clip"})
"""Ops that become dialect ops on integers, so that no kernel of ONNX Runtime is needed."""

_RESIZE_KERNEL_OPSET = 13
"""The first opset for which ONNX Runtime has a Resize of integers."""


def moved_inputs(node: ir.Node) -> tuple[int, ...]:
    """Inputs of a standard node whose numbers come out unchanged; where there are several, they must have one scale."""
    op_type = node.op_type
    if op_type in _JOINED_ALL:
        return tuple(range(len(node.inputs)))
    if op_type == "Resize" and _text(node, "mode", "nearest") != "nearest":
        return ()
    if op_type == "Clip" and ("min" in node.attributes or "max" in node.attributes):
        return ()  # before opset 11: bounds are real numbers
    return _MOVED.get(op_type, ())


def moved_outputs(node: ir.Node) -> int:
    """How many outputs carry the numbers on; the others are indices."""
    return len(node.outputs) if node.op_type == "Split" else 1


def data_of(node: ir.Node) -> tuple[int, ...]:
    """Inputs of a standard node that are moved, selected or compared: at one scale, integers give what real numbers give."""
    return moved_inputs(node) or _COMPARED.get(node.op_type, ())


def integer_inputs(node: ir.Node, opset: int) -> tuple[int, ...]:
    """Inputs of a standard node that must be integers: the op takes only integers, or meets a constant of integers."""
    op_type = node.op_type
    if op_type in _ONLY_INTEGERS:
        return tuple(i for i in range(len(node.inputs)) if not takes_reals(node, i, opset))
    if op_type not in _ON_DATA:
        return ()
    together = [i for i in (*data_of(node), *bounds_of(node)) if i < len(node.inputs)]
    others = tuple(i for i in together if _constant_element(node.inputs[i]) not in QUANTIZED)
    return others if len(others) < len(together) else ()


def _constant_element(value: ir.Value | None) -> ir.DataType | None:
    """The element type of an initializer that cannot be overridden, or of a Constant."""
    if value is None or value.is_graph_input():
        return None
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        return constant_type(producer)
    return None if value.const_value is None else value.const_value.dtype


def can_run(node: ir.Node, element: ir.DataType | None, bits: int | None, opset: int) -> bool:
    """Whether ONNX and ONNX Runtime have a node of this type for integers of an element type."""
    if node.op_type in _COMPARED and (bits is None or bits > _EXACT_COMPARISON_BITS):
        return False
    if node.op_type in _ADOPTED:
        return len(node.outputs) == 1
    if element is None or element not in QUANTIZED or node.op_type in _WITHOUT_KERNEL[element]:
        return False
    if node.op_type == "Resize" and opset < _RESIZE_KERNEL_OPSET:
        return False
    return takes(node.op_type, min(data_of(node), default=0), element, opset)


def can_take(node: ir.Node, index: int, element: ir.DataType | None, opset: int) -> bool:
    """Whether an input of a standard node may have an element type; True also where floats are not allowed either."""
    if element is None or node.op_type in _ADOPTED or not takes_reals(node, index, opset):
        return True
    return takes(node.op_type, index, element, opset)


def takes_reals(node: ir.Node, index: int, opset: int) -> bool:
    """Whether an input of a standard node may hold floats."""
    return takes(node.op_type, index, ir.DataType.FLOAT, opset)


def _text(node: ir.Node, name: str, default: str) -> str:
    found = node.attributes.get(name)
    if found is None or found.type != ir.AttributeType.STRING:
        return default
    return "" if found.is_ref() else found.as_string()  # what the caller of a function gives is not known


def is_default_domain(node: ir.Node) -> bool:
    """Whether a node is of standard ONNX."""
    return node.domain in ("", "ai.onnx")


def home_of(value: ir.Value) -> ir.Graph | None:
    """The graph that defines a tensor; a branch may list a tensor of the graph around it as its output."""
    producer = value.producer()
    return value.graph if producer is None else producer.graph


def scan_states(node: ir.Node) -> int | None:
    """How many states a Scan carries; None where its attribute is missing or does not fit its inputs."""
    count = node.attributes.get("num_scan_inputs")
    if count is None or count.type != ir.AttributeType.INT or count.is_ref():
        return None
    states = len(node.inputs) - count.as_int()
    return states if states >= 0 else None


@dataclass
class Flow:
    """How numbers move through a model: which node holds which graph, and which nodes call which function."""

    model: ir.Model
    owners: dict[ir.Graph, ir.Node] = field(default_factory=dict)
    functions: dict[ir.Graph, ir.Function] = field(default_factory=dict)
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = field(default_factory=dict)
    _listed: list[ir.Node] = field(default_factory=list)
    _formats: dict[ir.Node, StatedFormats] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model) -> Flow:
        """The flow of a model as it is now."""
        flow = cls(model)
        # functions of a dialect's domain are bodies of its ops, whose nodes state all that matters
        own = [f for f in model.functions.values() if not is_quantizing_domain(f.domain)]
        flow.functions.update((function.graph, function) for function in own)
        for graph in (model.graph, *flow.functions):
            flow._listed += all_nodes(graph, flow.owners)
        for node in flow._listed if flow.functions else ():
            if flow.function_of(node) is not None:
                flow.calls.setdefault(node.op_identifier(), []).append(node)
        return flow

    def formats(self, node: ir.Node) -> StatedFormats:
        """What a dialect node states about its tensors, read once."""
        if node not in self._formats:
            self._formats[node] = stated_formats(node)
        return self._formats[node]

    def function_of(self, node: ir.Node) -> ir.Function | None:
        """The user's function that a node calls."""
        if not self.functions or is_quantizing(node):
            return None
        return self.model.functions.get(node.op_identifier())

    def nodes(self) -> Iterator[ir.Node]:
        """Every node of the main graph, of the graphs inside it and of users' functions; not what was added since."""
        return (node for node in self._listed if node.graph is not None)

    def graphs(self) -> Iterator[ir.Graph]:
        """Every graph, outer ones first."""
        yield self.model.graph
        yield from self.functions
        yield from self.owners

    def sort(self) -> None:
        """Bring the nodes of every graph into an order in which they can run; what can stay, stays."""
        if all(map(is_in_order, self.graphs())):
            return  # sorting takes five times as long
        for graph in (self.model.graph, *self.functions):
            graph.sort()

    def sources(self, value: ir.Value) -> list[ir.Value]:
        """The tensors whose numbers come out as `value`; a Dequant counts as if it were not there."""
        node = value.producer()
        sources = self._sources_of_formal(value) if node is None else self._sources_of_result(node, value.index() or 0)
        return [source for source in sources if source is not None]

    def _sources_of_result(self, node: ir.Node, index: int) -> list[ir.Value | None]:
        if is_dequant(node):
            return list(node.inputs[:1])
        if is_quantizing(node):
            kept = None if index else self.formats(node).kept
            return [] if kept is None else list(node.inputs[kept : kept + 1])
        function = self.function_of(node)
        if function is not None:
            return list(function.outputs[index : index + 1])
        if not is_default_domain(node):
            return []
        if node.op_type in CONTAINERS:
            return _of_container(node, index)
        moved = moved_inputs(node) if index < moved_outputs(node) else ()
        return [value for i, value in enumerate(node.inputs) if i in moved]

    def _sources_of_formal(self, value: ir.Value) -> list[ir.Value | None]:
        """Of an input of a body or a function: what its node or its callers give, and what a loop hands back."""
        graph = value.graph
        if graph is None or not value.is_graph_input():
            return []
        position = next(i for i, formal in enumerate(graph.inputs) if formal is value)
        if graph in self.functions:
            calls = self.calls.get(self.functions[graph].identifier(), [])
            return [call.inputs[position] for call in calls if position < len(call.inputs)]
        owner = self.owners.get(graph)
        return [] if owner is None else _of_body_formal(owner, graph, position)


def _of_container(node: ir.Node, index: int) -> list[ir.Value | None]:
    offset = 1 if node.op_type == "Loop" else 0
    ends = slice(index + offset, index + offset + 1)
    sources: list[ir.Value | None] = [v for body in inner_graphs(node) for v in body.outputs[ends]]
    if node.op_type == "Loop":
        sources += node.inputs[index + LOOP_FORMALS : index + LOOP_FORMALS + 1]
    if node.op_type == "Scan" and index < (scan_states(node) or 0):
        sources += node.inputs[index : index + 1]
    return sources


def _of_body_formal(owner: ir.Node, graph: ir.Graph, position: int) -> list[ir.Value | None]:
    if position >= len(owner.inputs):
        return []
    if owner.op_type == "Loop" and position >= LOOP_FORMALS:
        return [owner.inputs[position], *graph.outputs[position - 1 : position]]
    if owner.op_type == "Scan":
        back = graph.outputs[position : position + 1] if position < (scan_states(owner) or 0) else []
        return [owner.inputs[position], *back]
    return []


_DIALECT, _DEQUANT, _PLAIN = "dialect", "dequant", "plain"
"""What reads integers: a dialect op, a Dequant, or a standard op that only takes integers."""

_Reading = tuple[ir.Value, str, float | None]
"""A tensor that must hold integers, what reads it, and the scale at which that reads it."""


@dataclass
class _RequiredIntegers:
    """The tensors that must hold integers because of what reads them further on.

    Attributes:
        tensors: Tensors that reach an input which must hold integers, directly or through data movement.
        quantized: Those of them that a dialect op or a Dequant reads.
        scales: The scales at which dialect ops read them, in the order found; at most two.
        dequant_scales: The scales at which Dequants read them; they count only where no dialect op states a scale.
    """

    tensors: set[ir.Value] = field(default_factory=set)
    quantized: set[ir.Value] = field(default_factory=set)
    scales: dict[ir.Value, list[float]] = field(default_factory=dict)
    dequant_scales: dict[ir.Value, list[float]] = field(default_factory=dict)

    def __contains__(self, value: ir.Value) -> bool:
        return value in self.tensors

    def scales_of(self, value: ir.Value) -> list[float]:
        """The scales at which a tensor is read; several contradict each other."""
        return self.scales.get(value) or self.dequant_scales.get(value, [])

    def scale_of(self, value: ir.Value) -> float | None:
        """The one scale at which a tensor is read; None where there is none, or more than one."""
        scales = self.scales_of(value)
        return scales[0] if len(scales) == 1 else None

    def add(self, value: ir.Value, reader: str, scale: float | None) -> bool:
        """Note that something reads the integers of a tensor; returns whether the scale was new."""
        self.tensors.add(value)
        if reader != _PLAIN:
            self.quantized.add(value)
        if scale is None:
            return False
        known = (self.dequant_scales if reader == _DEQUANT else self.scales).setdefault(value, [])
        is_new = scale not in known and len(known) < _ENOUGH
        known += [scale] if is_new else []
        return is_new


def required_integers(flow: Flow) -> _RequiredIntegers:
    """Walk back from every input that must hold integers, through all that only moves numbers."""
    required = _RequiredIntegers()
    opset = flow.model.graph.opset_imports.get("", OLDEST_OPSET)
    waiting = [reading for node in flow.nodes() for reading in _readings(flow, node, opset)]
    visited: set[tuple[ir.Value, str]] = set()
    while waiting:
        value, reader, scale = waiting.pop()
        if reader == _DEQUANT and is_dequant(value.producer()):
            continue  # a Dequant of a Dequant's result is one too many; it says nothing of the integers
        if required.add(value, reader, scale) or (value, reader) not in visited:
            visited.add((value, reader))
            waiting += [(source, reader, scale) for source in flow.sources(value)]
    return required


def _readings(flow: Flow, node: ir.Node, opset: int) -> list[_Reading]:
    """The inputs of a node that must hold integers."""
    scales: dict[int, float | None]
    if is_dequant(node):
        scales, reader = {0: read_scale(node, "scale_o")}, _DEQUANT
    elif is_quantizing(node):
        scales, reader = {i: stated.scale for i, stated in flow.formats(node).integers.items()}, _DIALECT
    else:
        scales, reader = dict.fromkeys(integer_inputs(node, opset) if is_default_domain(node) else ()), _PLAIN
    inputs = enumerate(node.inputs if scales else ())
    return [(value, reader, scales[i]) for i, value in inputs if i in scales and value is not None]


@dataclass(frozen=True)
class TensorFormat:
    """What is known of one tensor.

    Attributes:
        element: The element type; None where it cannot be known.
        scale: int = real · scale; None for tensors that are not quantized, and where the scale cannot be known.
        bits: Width of the integers, which may be less than the type's (4 bits are stored in int8).
        is_quantized: The integers stand for real numbers. A shape or an index is not quantized.
        was_real: A Dequant stands before the tensor in the file and is ignored here, because integers are needed further on.
    """

    element: ir.DataType | None = None
    scale: float | None = None
    bits: int | None = None
    is_quantized: bool = False
    was_real: bool = field(default=False, compare=False)

    @property
    def is_real(self) -> bool:
        """Whether the tensor is known to hold floating-point numbers."""
        return self.element in REALS

    def __str__(self) -> str:
        """Short, for messages.

        >>> str(TensorFormat(ir.DataType.INT8, 16.0, 8, True)), str(TensorFormat(ir.DataType.FLOAT)), str(TensorFormat())
        ('int8 at scale 16', 'float32', 'unknown')
        """
        if self.element is None:
            return "unknown"
        name = "float32" if self.element == ir.DataType.FLOAT else self.element.name.lower()
        if not self.is_quantized:
            return name
        return f"{name} at an unknown scale" if self.scale is None else f"{name} at scale {self.scale:g}"


UNKNOWN = TensorFormat()
REAL = TensorFormat(ir.DataType.FLOAT)


@cache
def plain(element: ir.DataType | None) -> TensorFormat:
    """The fact of a tensor of an element type that is not quantized."""
    return TensorFormat(element)


def quantized(
    scale: float | None, bits: int | None, element: ir.DataType | None = None, *, is_unsigned: bool = False
) -> TensorFormat:
    """The fact of integers that stand for real numbers; the element type follows from the width unless it is given.

    >>> quantized(16.0, 4).element.name, quantized(16.0, 12).element.name
    ('INT8', 'INT16')
    """
    if element is None and bits is not None:
        element = integer_type(bits, is_unsigned=is_unsigned)
    return TensorFormat(element, scale, bits, is_quantized=True)


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take three times as long to make, and a walk makes many
class Use:
    """One place where a tensor is used: an input of a node, or an output of a graph."""

    owner: ir.Node | ir.Graph
    index: int

    @property
    def value(self) -> ir.Value:
        """The tensor that stands there now."""
        value = self.owner.inputs[self.index] if isinstance(self.owner, ir.Node) else self.owner.outputs[self.index]
        assert value is not None  # a use is of something
        return value

    def __str__(self) -> str:
        return describe(self.owner) if isinstance(self.owner, ir.Node) else f"output {self.value.name!r}"


@dataclass
class Propagation:
    """The facts of every tensor, and what does not fit together.

    Attributes:
        facts: Per tensor.
        needs: Uses that need real numbers of a tensor that holds integers; those that have a Dequant are among them.
        kept_real: Uses that take integers and real numbers alike, and get real numbers through a Dequant that is ignored.
        integer_uses: Uses that need integers and read the result of a Dequant.
        wrong_scales: Dequants with another scale than their tensor has, and that scale.
        dequant_scales: Scales of the tensors that Dequants read; in a function, calls may give several.
        of_reals: Dequants of tensors that hold real numbers already.
        findings: Contradictions, and what cannot be known.
        reads_dequant_scales: Whether Dequants read an input or a constant, which may have no other scale than theirs.
    """

    facts: dict[ir.Value, TensorFormat] = field(default_factory=dict)
    needs: list[Use] = field(default_factory=list)
    kept_real: list[Use] = field(default_factory=list)
    integer_uses: list[Use] = field(default_factory=list)
    wrong_scales: list[tuple[ir.Node, float]] = field(default_factory=list)
    dequant_scales: dict[ir.Node, set[float]] = field(default_factory=dict)
    of_reals: list[ir.Node] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    reads_dequant_scales: bool = False

    def fact(self, value: ir.Value | None) -> TensorFormat:
        """Type, scale and width of a tensor, as the walk found them; `UNKNOWN` for a tensor that it did not meet."""
        return UNKNOWN if value is None else self.facts.get(value, UNKNOWN)

    def element(self, value: ir.Value) -> ir.DataType | None:
        """The element type that a tensor has in the file as it is: the result of a Dequant is float even where it is ignored."""
        return ir.DataType.FLOAT if is_dequant(value.producer()) else self.fact(value).element

    @property
    def is_settled(self) -> bool:
        """Whether no Dequant has to be moved, inserted or rescaled."""
        return not (self.missing or self.integer_uses or self.wrong_scales or self.of_reals)

    @property
    def is_clean(self) -> bool:
        """Whether nothing has to change, and nothing is wrong."""
        return self.is_settled and not self.findings

    @property
    def missing(self) -> list[Use]:
        """Uses that need real numbers and get integers."""
        return [use for use in self.needs if not is_dequant(use.value.producer())]


FunctionFormats = dict[ir.OperatorIdentifier, list[TensorFormat]]
"""What functions are called with."""

_Trial = tuple[list[TensorFormat] | None, Propagation, FunctionFormats]


@dataclass
class FormatBook:
    """The state of the walk, which the rules for nodes read and write.

    Attributes:
        flow: Which node holds which graph, and which nodes call which function.
        required: The tensors that must hold integers.
        result: The facts of this round.
        real_formals: Inputs of loop bodies that turned out to carry real numbers.
        is_settled: Whether this round found no more of them.
        function_formats: By function whose body has to change, what its first call gave it.
        trials: By function and inputs, the facts of its outputs (None where the body has to change for such inputs), what was
            found in the body, and what the functions that it calls got.
        calling: The functions that are being followed.
        reported: Tensors of which a finding says that their scale is not known.
    """

    flow: Flow
    required: _RequiredIntegers
    result: Propagation = field(default_factory=Propagation)
    real_formals: set[ir.Value] = field(default_factory=set)
    is_settled: bool = True
    function_formats: FunctionFormats = field(default_factory=dict)
    trials: dict[tuple[ir.OperatorIdentifier, tuple[TensorFormat, ...]], _Trial] = field(default_factory=dict)
    calling: list[ir.OperatorIdentifier] = field(default_factory=list)
    reported: set[ir.Value] = field(default_factory=set)

    def begin(self) -> None:
        """Start another round: forget everything but which loops carry real numbers."""
        self.is_settled = True
        self.result = Propagation()
        self.function_formats.clear()
        self.trials.clear()
        self.reported.clear()

    @cached_property
    def opset(self) -> int:
        """The version of standard ONNX."""
        return self.flow.model.graph.opset_imports.get("", OLDEST_OPSET)

    def fact(self, value: ir.Value | None) -> TensorFormat:
        """The fact of a tensor; for an input or an initializer it is derived here, from its type and its readers."""
        if value is None:
            return UNKNOWN
        found = self.result.facts.get(value)
        if found is None:
            if value.producer() is not None:
                return UNKNOWN
            found = self.result.facts[value] = self._format_of_source(value)
        return found

    def find(
        self,
        where: ir.Node | str,
        reason: str,
        remedy: str,
        rule: CheckRule = CONTRADICTION,
        severity: str | None = None,
    ) -> None:
        """Add a finding, of the severity of its rule unless another one is given."""
        place = where if isinstance(where, str) else describe(where)
        self.result.findings.append(Finding(severity or rule.severity, place, reason, remedy, rule.id))

    def need_reals(self, use: Use) -> None:
        """Note that a use needs real numbers: it gets a Dequant, or a finding where the scale is not known."""
        value = use.value
        fact = self.fact(value)
        if fact.is_quantized and (fact.scale is not None or is_dequant(value.producer())):
            self.result.needs.append(use)
        elif fact.is_quantized or fact.element in INTEGERS:
            self.report_unknown_scale(use)

    def report_unknown_scale(self, use: Use) -> None:
        """Add a finding, once per tensor: a use needs real numbers, and no Dequant can make them without a scale."""
        value = use.value
        if value not in self.reported:
            self.reported.add(value)
            reason = f"it needs real numbers, and the scale of {value.name!r} ({self.fact(value)}) is not known"
            remedy = "Give the node that makes it a scale_o, or put a Dequant with the right scale behind it."
            self.find(str(use), reason, remedy, MISSING_DEQUANT)

    def take_integers(self, use: Use) -> None:
        """Note that a use takes integers; if it reads the result of a Dequant, it has to be moved before that."""
        value = use.value
        if value in self.required.tensors and is_dequant(value.producer()):
            self.result.integer_uses.append(use)

    def _format_of_source(self, value: ir.Value) -> TensorFormat:
        """The fact of an input, an initializer or a constant: its type, and the scale at which its readers take it."""
        element = value.dtype or (None if value.const_value is None else value.const_value.dtype)
        if element not in QUANTIZED or value not in self.required.quantized:
            return plain(element)
        is_constant = value.const_value is not None and not value.is_graph_input()
        scales = self.required.scales_of(value)
        if len(scales) > 1 and is_constant:
            return plain(element)  # numbers of a file may stand for several things
        if len(scales) > 1:
            reason = f"its readers take it at the scales {' and '.join(f'{s:g}' for s in scales)}"
            remedy = "Give all of them the scale that the input has."
            self.find(f"input {value.name!r}", reason, remedy, SCALE_MISMATCH)
        return quantized(self.required.scale_of(value), integer_bits(element), element)
