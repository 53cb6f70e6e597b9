# SPDX-License-Identifier: Apache-2.0
"""One Fact per tensor, the contradictions between them, and the state of the walk that finds both."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import onnx_ir as ir

from linger.graph.core.check_rules import CONTRADICTION, MISSING_DEQUANT, SCALE_MISMATCH, CheckRule
from linger.graph.core.dialect_node import describe
from linger.graph.core.dialects import is_dequant
from linger.graph.core.finding import ERROR, Finding
from linger.graph.core.schema import OLDEST_OPSET
from linger.graph.core.tensor_types import INTEGERS, REALS, integer_bits
from linger.graph.facts.flow import Flow, RequiredIntegers
from linger.numeric.onnx.writer import integer_type


@dataclass(frozen=True)
class Fact:
    """What is known of one tensor.

    Attributes:
        element: The element type; None where it cannot be known.
        scale: int = real · scale; None for tensors that are not quantised, and where the scale cannot be known.
        bits: Width of the integers, which may be less than the type's (4 bits are stored in int8).
        is_quantised: The integers stand for real numbers. A shape or an index is not quantised.
        was_real: A Dequant stands before the tensor in the file and is ignored here, because integers are needed further on.
    """

    element: ir.DataType | None = None
    scale: float | None = None
    bits: int | None = None
    is_quantised: bool = False
    was_real: bool = field(default=False, compare=False)

    @property
    def is_real(self) -> bool:
        """Whether the tensor is known to hold floating-point numbers."""
        return self.element in REALS

    def once_real(self) -> Fact:
        """The same with `was_real`."""
        return self if self.was_real else replace(self, was_real=True)

    def __str__(self) -> str:
        """Short, for messages.

        >>> str(Fact(ir.DataType.INT8, 16.0, 8, True)), str(Fact(ir.DataType.FLOAT)), str(Fact())
        ('int8 at scale 16', 'float32', 'unknown')
        """
        if self.element is None:
            return "unknown"
        name = "float32" if self.element == ir.DataType.FLOAT else self.element.name.lower()
        if not self.is_quantised:
            return name
        return f"{name} at an unknown scale" if self.scale is None else f"{name} at scale {self.scale:g}"


UNKNOWN = Fact()
REAL = Fact(ir.DataType.FLOAT)


@cache
def plain(element: ir.DataType | None) -> Fact:
    """The fact of a tensor of an element type that is not quantised."""
    return Fact(element)


def quantised(scale: float | None, bits: int | None, element: ir.DataType | None = None) -> Fact:
    """The fact of integers that stand for real numbers; the element type follows from the width unless it is given.

    >>> quantised(16.0, 4).element.name, quantised(16.0, 12).element.name
    ('INT8', 'INT16')
    """
    if element is None and bits is not None:
        element = integer_type(bits)
    return Fact(element, scale, bits, is_quantised=True)


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

    facts: dict[ir.Value, Fact] = field(default_factory=dict)
    needs: list[Use] = field(default_factory=list)
    kept_real: list[Use] = field(default_factory=list)
    integer_uses: list[Use] = field(default_factory=list)
    wrong_scales: list[tuple[ir.Node, float]] = field(default_factory=list)
    dequant_scales: dict[ir.Node, set[float]] = field(default_factory=dict)
    of_reals: list[ir.Node] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    reads_dequant_scales: bool = False

    def fact(self, value: ir.Value | None) -> Fact:
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


FunctionFacts = dict[ir.OperatorIdentifier, list[Fact]]
"""What functions are called with."""


@dataclass
class FactBook:
    """The state of the walk, which the rules for nodes read and write.

    Attributes:
        flow: Which node holds which graph, and which nodes call which function.
        required: The tensors that must hold integers.
        result: The facts of this round.
        real_formals: Inputs of loop bodies that turned out to carry real numbers.
        is_settled: Whether this round found no more of them.
        function_facts: By function whose body has to change, what its first call gave it.
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
    function_facts: FunctionFacts = field(default_factory=dict)
    trials: dict[tuple[ir.OperatorIdentifier, tuple[Fact, ...]], list[Fact] | None] = field(default_factory=dict)
    tried: dict[tuple[ir.OperatorIdentifier, tuple[Fact, ...]], tuple[Propagation, FunctionFacts]] = field(
        default_factory=dict
    )
    calling: list[ir.OperatorIdentifier] = field(default_factory=list)
    reported: set[ir.Value] = field(default_factory=set)

    def begin(self) -> None:
        """Start another round: forget everything but which loops carry real numbers."""
        self.is_settled = True
        self.result = Propagation()
        self.function_facts.clear()
        self.trials.clear()
        self.tried.clear()
        self.reported.clear()

    @cached_property
    def opset(self) -> int:
        """The version of standard ONNX."""
        return self.flow.model.graph.opset_imports.get("", OLDEST_OPSET)

    def fact(self, value: ir.Value | None) -> Fact:
        """The fact of a tensor; for an input or an initializer it is derived here, from its type and its readers."""
        if value is None:
            return UNKNOWN
        found = self.result.facts.get(value)
        if found is None:
            if value.producer() is not None:
                return UNKNOWN
            found = self.result.facts[value] = self._fact_of_source(value)
        return found

    def find(self, severity: str, where: str, reason: str, remedy: str, *, rule: CheckRule = CONTRADICTION) -> None:
        """Add a finding."""
        self.result.findings.append(Finding(severity, where, reason, remedy, rule.id))

    def need_reals(self, use: Use) -> None:
        """Note that a use needs real numbers: it gets a Dequant, or a finding where the scale is not known."""
        value = use.value
        fact = self.fact(value)
        if fact.is_quantised and (fact.scale is not None or is_dequant(value.producer())):
            self.result.needs.append(use)
        elif fact.is_quantised or fact.element in INTEGERS:
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

    def _fact_of_source(self, value: ir.Value) -> Fact:
        """The fact of an input, an initializer or a constant: its type, and the scale at which its readers take it."""
        element = value.dtype or (None if value.const_value is None else value.const_value.dtype)
        if element not in INTEGERS or value not in self.required.quantised:
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
        return quantised(self.required.scale_of(value), integer_bits(element), element)
