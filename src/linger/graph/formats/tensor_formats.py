# SPDX-License-Identifier: Apache-2.0
"""Element type, scale and width of a tensor, and what each kind of node makes of those of its inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import onnx_ir as ir

from linger.graph.core.check_rules import (
    CONTRADICTION,
    MISSING_ATTRIBUTE,
    MISSING_DEQUANT,
    OPERAND_TYPE,
    SCALE_MISMATCH,
    CheckRule,
)
from linger.graph.core.dialects import StatedFormat, is_dequant, read_scale
from linger.graph.core.finding import ERROR, WARNING, Finding
from linger.graph.core.nodes import describe
from linger.graph.core.tensor_types import (
    INTEGERS,
    OLDEST_OPSET,
    REALS,
    cast_type,
    integer_bits,
    output_types,
    type_variable,
)
from linger.graph.formats.flow import (
    INTEGER_OPS,
    SHAPE_OPS,
    WHOLE_NUMBERS,
    Flow,
    RequiredIntegers,
    can_run,
    can_take,
    data_of,
    integer_inputs,
    moved_inputs,
    moved_outputs,
    takes_reals,
)
from linger.graph.qdq.qdq_node import bounds_of
from linger.numeric.onnx.writer import integer_type


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

    def once_real(self) -> TensorFormat:
        """The same with `was_real`."""
        return self if self.was_real else replace(self, was_real=True)

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


def quantized(scale: float | None, bits: int | None, element: ir.DataType | None = None) -> TensorFormat:
    """The fact of integers that stand for real numbers; the element type follows from the width unless it is given.

    >>> quantized(16.0, 4).element.name, quantized(16.0, 12).element.name
    ('INT8', 'INT16')
    """
    if element is None and bits is not None:
        element = integer_type(bits)
    return TensorFormat(element, scale, bits, is_quantized=True)


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take three times as long to make, and a walk makes many
class Use:
    """One place where a tensor is used: an input of a node, or an output of a graph."""

    owner: ir.Node | ir.Graph
    index: int

    @property
    def value(self) -> ir.Value:
        """The tensor that stands there now."""
        found = self.owner.inputs[self.index] if isinstance(self.owner, ir.Node) else self.owner.outputs[self.index]
        assert found is not None  # a use is of something
        return found

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
        trials: By function and inputs, the facts of its outputs; None where the body has to change for such inputs.
        tried: By function and inputs, what was found in the body, and what the functions that it calls got.
        calling: The functions that are being followed.
        reported: Tensors of which a finding says that their scale is not known.
    """

    flow: Flow
    required: RequiredIntegers
    result: Propagation = field(default_factory=Propagation)
    real_formals: set[ir.Value] = field(default_factory=set)
    is_settled: bool = True
    function_formats: FunctionFormats = field(default_factory=dict)
    trials: dict[tuple[ir.OperatorIdentifier, tuple[TensorFormat, ...]], list[TensorFormat] | None] = field(
        default_factory=dict
    )
    tried: dict[tuple[ir.OperatorIdentifier, tuple[TensorFormat, ...]], tuple[Propagation, FunctionFormats]] = field(
        default_factory=dict
    )
    calling: list[ir.OperatorIdentifier] = field(default_factory=list)
    reported: set[ir.Value] = field(default_factory=set)

    def begin(self) -> None:
        """Start another round: forget everything but which loops carry real numbers."""
        self.is_settled = True
        self.result = Propagation()
        self.function_formats.clear()
        self.trials.clear()
        self.tried.clear()
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

    def find(self, severity: str, where: str, reason: str, remedy: str, *, rule: CheckRule = CONTRADICTION) -> None:
        """Add a finding."""
        self.result.findings.append(Finding(severity, where, reason, remedy, rule.id))

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
            self.find(
                ERROR,
                str(use),
                f"it needs real numbers, and the scale of {value.name!r} ({self.fact(value)}) is not known",
                "Give the node that makes it a scale_o, or put a Dequant with the right scale behind it.",
                rule=MISSING_DEQUANT,
            )

    def take_integers(self, use: Use) -> None:
        """Note that a use takes integers; if it reads the result of a Dequant, it has to be moved before that."""
        value = use.value
        if value in self.required.tensors and is_dequant(value.producer()):
            self.result.integer_uses.append(use)

    def _format_of_source(self, value: ir.Value) -> TensorFormat:
        """The fact of an input, an initializer or a constant: its type, and the scale at which its readers take it."""
        element = value.dtype or (None if value.const_value is None else value.const_value.dtype)
        if element not in INTEGERS or value not in self.required.quantized:
            return plain(element)
        is_constant = value.const_value is not None and not value.is_graph_input()
        different = self.required.different_scales(value)
        if different and is_constant:
            return plain(element)  # numbers of a file may stand for several things
        if different:
            self.find(
                ERROR,
                f"input {value.name!r}",
                f"its readers take it at the scales {' and '.join(f'{s:g}' for s in different)}",
                "Give all of them the scale that the input has.",
                rule=SCALE_MISMATCH,
            )
        return quantized(self.required.scale_of(value), integer_bits(element), element)


CONSTANTS = ("Constant", "ConstantOfShape")


def formats_of_dequant(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """A Dequant: its tensor must hold integers at its scale. It is ignored where its result must be integers."""
    fact = book.fact(node.inputs[0])
    if fact.is_real:
        book.result.of_reals.append(node)
        return [fact]
    own = read_scale(node, "scale_o")
    if fact.scale is not None:
        book.result.dequant_scales.setdefault(node, set()).add(fact.scale)
    if fact.scale is not None and own != fact.scale:
        book.result.wrong_scales.append((node, fact.scale))
    elif own is None:
        reason = "it has no scale_o, and its tensor's scale is not known"
        book.find(ERROR, describe(node), reason, "Set scale_o.", rule=MISSING_ATTRIBUTE)
    book.take_integers(Use(node, 0))
    is_ignored = fact.is_quantized and node.outputs[0] in book.required
    return [fact.once_real() if is_ignored else REAL]


def formats_of_dialect(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """Any other dialect node: what it states about its inputs is compared with their facts."""
    stated = book.flow.formats(node)
    for index in _present(node, stated.integers):
        _expect_integers(book, node, index, stated.integers[index])
    for index in _present(node, stated.reals):
        book.need_reals(Use(node, index))
    if stated.kept is None:
        return [REAL if s is None else quantized(s.scale, s.bits) for s in stated.outputs]
    kept = node.inputs[stated.kept] if stated.kept < len(node.inputs) else None
    if book.fact(kept).is_quantized:
        book.take_integers(Use(node, stated.kept))
    return [book.fact(kept)]


def _present(node: ir.Node, indices: Iterable[int]) -> list[int]:
    """Those of some inputs that a node has."""
    return [index for index in indices if index < len(node.inputs) and node.inputs[index] is not None]


def _expect_integers(book: FormatBook, node: ir.Node, index: int, stated: StatedFormat) -> None:
    """An input must hold integers of the scale and width that the node states."""
    use = Use(node, index)
    value = use.value
    fact, name = book.fact(value), value.name
    if fact.is_real:
        if index == 0 or _constant_size(value) != 1:  # a second operand may be one real number
            book.find(
                ERROR,
                describe(node),
                f"it takes integers, and {name!r} holds real numbers",
                "Put a Quant with the scale that this node states before it.",
                rule=OPERAND_TYPE,
            )
        return
    book.take_integers(use)
    if stated.scale is not None and fact.scale is not None and stated.scale != fact.scale:
        book.find(
            ERROR,
            describe(node),
            f"{stated.attribute} is {stated.scale:g}, and {name!r} has the scale {fact.scale:g}",
            "Give this node the scale of its tensor, or requantize the tensor.",
            rule=SCALE_MISMATCH,
        )
    if stated.bits is not None and fact.bits is not None and not _fits(stated.bits, fact, value):
        book.find(
            ERROR,
            describe(node),
            f"it reads {name!r} as {stated.bits} bits, and that has {fact.bits} ({fact})",
            "State the width that the tensor has, or requantize it.",
            rule=OPERAND_TYPE,
        )


def _constant_size(value: ir.Value) -> int | None:
    """How many numbers a constant tensor holds; None for a tensor that is computed."""
    if value.const_value is not None:
        return value.const_value.size
    producer = value.producer()
    if producer is None or producer.op_type != "Constant":
        return None
    if "value_float" in producer.attributes:
        return 1
    held = producer.attributes.get("value")
    is_tensor = held is not None and held.type == ir.AttributeType.TENSOR and not held.is_ref()
    return held.as_tensor().size if held is not None and is_tensor else None


def _fits(bits: int, fact: TensorFormat, value: ir.Value) -> bool:
    """Whether a tensor can be read with a width: in the same storage, and not with fewer bits than it has."""
    producer = value.producer()
    if producer is None or producer.op_type == "Constant":
        return integer_type(bits) == fact.element  # nothing but its storage says how wide a given tensor is
    storage = integer_bits(fact.element)
    return fact.bits is not None and bits >= fact.bits and (storage is None or bits <= storage)


def formats_of_standard(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """A standard node: integers stay integers where they are moved, selected or compared, and a runtime can do so."""
    facts = [book.fact(v) for v in node.inputs]
    if not any(fact.is_quantized for fact in facts):
        return _plain_outputs(book, node, _without_misfits(book, node, facts))
    if node.op_type in SHAPE_OPS:
        _take_all(book, node, facts)
        return [plain(ir.DataType.INT64)]
    if node.op_type in INTEGER_OPS:
        if not _keeps_reals(node, facts[0]):
            _take_all(book, node, facts)
        return _formats_of_integer_op(book, node, facts)
    data = _present(node, data_of(node))
    if any(facts[i].element is None for i in data):
        return formats_of_unknown(book, node)  # the quantized tensor may meet integers or real numbers
    common = _common_format(node, facts, data)
    return _on_reals(book, node, facts) if common is None else _on_integers(book, node, facts, common)


def _without_misfits(book: FormatBook, node: ir.Node, facts: list[TensorFormat]) -> list[TensorFormat]:
    """Report integers without a scale where the op takes only real numbers, and go on as if they were real."""
    if not any(fact.element in WHOLE_NUMBERS for fact in facts):
        return facts
    seen = list(facts)
    groups = [type_variable(node.op_type, index, book.opset) for index in range(len(facts))]
    of_reals = {group for group, fact in zip(groups, facts, strict=True) if fact.is_real and group is not None}
    for index, fact in enumerate(facts):
        if fact.element not in WHOLE_NUMBERS:
            continue
        if groups[index] in of_reals or not can_take(node, index, fact.element, book.opset):
            book.report_unknown_scale(Use(node, index))
            seen[index] = REAL
    return seen


def _take_all(book: FormatBook, node: ir.Node, facts: list[TensorFormat]) -> None:
    for index, fact in enumerate(facts):
        if fact.is_quantized:
            book.take_integers(Use(node, index))


def _on_integers(
    book: FormatBook, node: ir.Node, facts: list[TensorFormat], common: TensorFormat
) -> list[TensorFormat]:
    """The node runs on the integers where it can; otherwise on real numbers."""
    is_wanted = any(output in book.required for output in node.outputs) or bool(integer_inputs(node, book.opset))
    if not is_wanted and not can_run(node, common.element, common.bits, book.opset):
        return _on_reals(book, node, facts)
    _take_all(book, node, facts)
    if not moved_inputs(node):
        return _plain_outputs(book, node, facts)
    return [common] * moved_outputs(node) + [plain(ir.DataType.INT64)] * len(node.outputs)


def _on_reals(book: FormatBook, node: ir.Node, facts: list[TensorFormat]) -> list[TensorFormat]:
    """The node runs on real numbers, so every quantized input needs a Dequant."""
    seen = list(facts)
    for index, fact in enumerate(facts):
        if not fact.is_quantized:
            continue
        if takes_reals(node, index, book.opset):
            book.need_reals(Use(node, index))
            seen[index] = REAL
        else:
            book.find(
                ERROR,
                describe(node),
                f"input {index} cannot be quantized numbers, and {Use(node, index).value.name!r} is {fact}",
                "Connect the tensor that is meant.",
                rule=OPERAND_TYPE,
            )
    return _plain_outputs(book, node, seen)


def _formats_of_integer_op(book: FormatBook, node: ir.Node, facts: list[TensorFormat]) -> list[TensorFormat]:
    """An op that reads integers as they are. A Cast to a type as wide keeps the scale; others lose it."""
    if node.op_type == "DequantizeLinear":
        return [REAL]
    if node.op_type != "Cast" or node.inputs[0] is None:
        return _plain_outputs(book, node, facts)
    target, fact = cast_type(node), facts[0]
    if _keeps_reals(node, fact):
        book.result.kept_real.append(Use(node, 0))
        return [plain(target)]
    bits, width = integer_bits(target), integer_bits(fact.element)
    if bits is not None and width is not None and bits >= width:
        return [quantized(fact.scale, fact.bits, target)]
    if target != ir.DataType.INT64 or not _is_cast_back(node):
        book.find(
            WARNING,
            describe(node),
            f"it takes the integers of {Use(node, 0).value.name!r} ({fact}) as they are, without their scale",
            "If real numbers are meant, put a Dequant before it.",
            rule=MISSING_DEQUANT,
        )
    return [plain(target)]


def _keeps_reals(node: ir.Node, fact: TensorFormat) -> bool:
    """Whether a Cast reads real numbers that a Dequant gives, whoever else takes the integers before it."""
    return node.op_type == "Cast" and fact.was_real and fact.scale is not None


def _is_cast_back(node: ir.Node) -> bool:
    """Whether the result of a Cast to 64 bits is only moved, compared and cast back, as torch writes cat, roll and `x > 0`."""
    waiting = list(node.outputs[:1])
    seen = set(waiting)
    while waiting:
        value = waiting.pop()
        if value.is_graph_output() or not all(_keeps_integers(user, index) for user, index in value.uses()):
            return False
        users = [user for user, _ in value.uses() if moved_inputs(user)]
        waiting += [o for user in users for o in user.outputs[: moved_outputs(user)] if o not in seen]
        seen.update(waiting)
    return True


def _keeps_integers(node: ir.Node, index: int) -> bool:
    """Whether a node moves or compares an input, or casts it to integers."""
    if node.domain:
        return False
    return index in data_of(node) or (node.op_type == "Cast" and cast_type(node) in WHOLE_NUMBERS)


def _plain_outputs(book: FormatBook, node: ir.Node, facts: list[TensorFormat]) -> list[TensorFormat]:
    """Outputs that are not quantized: of the types that ONNX gives them, else of those that the file declares."""
    elements = output_types(node, [fact.element for fact in facts], book.opset)
    if node.op_type in CONSTANTS:
        return [_constant(book, node, elements[0])]
    return [plain(element or output.dtype) for element, output in zip(elements, node.outputs, strict=False)]


def _constant(book: FormatBook, node: ir.Node, element: ir.DataType | None) -> TensorFormat:
    """A constant of integers is quantized where all that read it agree on a scale."""
    scale = book.required.scale_of(node.outputs[0]) if node.outputs else None
    return quantized(scale, integer_bits(element), element) if element in INTEGERS and scale else plain(element)


def formats_of_unknown(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """A node whose op, or the type of whose other inputs, is not known: nothing changes, and a finding says so."""
    for index, value in enumerate(node.inputs):
        fact = book.fact(value)
        if value is not None and fact.was_real and fact.scale is not None:
            book.result.kept_real.append(Use(node, index))
        elif value is not None and fact.is_quantized and not is_dequant(value.producer()):
            book.find(
                WARNING,
                describe(node),
                f"whether it takes the integers of {value.name!r} ({book.fact(value)}), its input {index}, cannot be told: "
                "the op, or the type of what it meets there, is not known",
                "If it computes with real numbers, put a Dequant before it.",
                rule=MISSING_DEQUANT,
            )
    return [plain(output.dtype) for output in node.outputs]


def _common_format(node: ir.Node, facts: list[TensorFormat], data: list[int]) -> TensorFormat | None:
    """The one fact of a node's data; None where they are not one kind of integers, or other inputs are quantized, too."""
    chosen = [facts[i] for i in data if facts[i].is_quantized]
    if not chosen or _are_mixed(node, facts, data) or not _has_one_scale(chosen, len(data)):
        return None
    widest = max(chosen, key=lambda fact: fact.bits or 0)
    return widest.once_real() if any(fact.was_real for fact in chosen) else widest


def _are_mixed(node: ir.Node, facts: list[TensorFormat], data: list[int]) -> bool:
    """Whether the data have several element types, quantized and computed plain numbers, or meet other quantized inputs."""
    together = [*data, *bounds_of(node)]
    if len({facts[i].element for i in together}) > 1:
        return True
    if any(fact.is_quantized for i, fact in enumerate(facts) if i not in together):
        return True
    # a constant beside quantized numbers is written for their scale
    return not all(facts[i].is_quantized or _is_constant(node.inputs[i]) for i in data)


def _has_one_scale(facts: list[TensorFormat], count: int) -> bool:
    """Whether quantized tensors have the same scale, which must be known where they are among several."""
    scales = {fact.scale for fact in facts}
    return len(scales) == 1 and (None not in scales or count == 1)


def _is_constant(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    is_made_constant = producer is not None and producer.op_type == "Constant"
    return is_made_constant or (value is not None and value.const_value is not None)
