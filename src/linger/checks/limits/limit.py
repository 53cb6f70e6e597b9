# SPDX-License-Identifier: Apache-2.0
"""What a limit of a chip is: a rule, the ops that it concerns, and the check of one node against the chip's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from linger.dialect import Op, find_op
from linger.graph.core.check_rules import OPEN_SIZE, CheckRule, limit_rule
from linger.graph.core.dialects import is_newer
from linger.graph.core.nodes import ERROR, NOTE, WARNING, Finding, describe, is_dialect
from linger.graph.core.tensor_types import REALS, integer_bits
from linger.graph.lowering.bodies import Shape
from linger.targets import Target

KB = 1024
T = TypeVar("T")

BY_EXPORT = "linger.onnx.export(…, target={!r}) writes it so"
"""Ends a remedy that an export for the chip carries out itself, where it can."""

QUANTIZE_FOR = "Quantize the model for this chip: linger.init(model, target={!r})."


@dataclass(frozen=True)
class Site:
    """A node with the shapes and types of its tensors, as far as they are known, and the chip that it is for.

    Attributes:
        tables: The tables of the chip's file, by the dataclass that each became.
    """

    node: ir.Node
    shapes: Mapping[str, Shape]
    types: Mapping[str, ir.DataType]
    target: Target
    tables: Mapping[type, object]

    def limits(self, kind: type[T]) -> T:
        """The numbers of the chip in one table of its file."""
        table = self.tables[kind]
        assert isinstance(table, kind)  # every table was filled under its own type
        return table

    @property
    def op(self) -> Op:
        """The op of the dialect, for limits that ops name in their own files."""
        return find_op(self.op_type)

    @property
    def chip(self) -> str:
        """The chip's name."""
        return self.target.name

    @property
    def op_type(self) -> str:
        """The node's type."""
        return self.node.op_type

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value; lists as tuples."""
        attribute = self.node.attributes.get(name)
        if attribute is None or attribute.value is None:
            return default
        return tuple(attribute.value) if isinstance(attribute.value, (list, tuple)) else attribute.value

    def input(self, index: int) -> ir.Value | None:
        """An input, None where it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def shape(self, index: int) -> Shape | None:
        """The shape of an input; None where not even the number of axes is known."""
        return self._known(index, self.shapes)

    def _known(self, index: int, known: Mapping[str, T]) -> T | None:
        value = self.input(index)
        return None if value is None else known.get(value.name or "")

    def sizes(self, index: int, *axes: int) -> tuple[int, ...] | None:
        """The sizes of some axes of an input; None where one is open."""
        shape = self.shape(index) or ()
        sizes = [shape[axis] if -len(shape) <= axis < len(shape) else None for axis in axes]
        known = tuple(size for size in sizes if size is not None)
        return known if len(known) == len(axes) and self.shape(index) is not None else None

    def bits(self, index: int) -> int | None:
        """Storage width of an integer input; None for other types."""
        return integer_bits(self._known(index, self.types))

    def bytes(self, index: int, count: int) -> int:
        """The size of so many numbers of an input, 8 bits each where its type is not known."""
        return count * (self.bits(index) or 8) // 8

    @property
    def unsigned(self) -> tuple[str, ...]:
        """The tensors of unsigned bytes that a node of a dialect reads."""
        if not (is_dialect(self.node) or is_newer(self.node)):
            return ()
        names = [value.name or "" for value in self.node.inputs if value is not None]
        return tuple(name for name in dict.fromkeys(names) if self.types.get(name) == ir.DataType.UINT8)

    @property
    def is_standard(self) -> bool:
        """Whether the node is of standard ONNX."""
        return self.node.domain in ("", "ai.onnx")

    @property
    def is_foreign(self) -> bool:
        """Whether the node is neither of standard ONNX nor of a dialect."""
        return not (self.is_standard or is_dialect(self.node) or is_newer(self.node))

    @property
    def is_of_floats(self) -> bool:
        """Whether a standard op works on real numbers."""
        return self.is_standard and self.is_float(0)

    def is_float(self, index: int) -> bool:
        """Whether an input is known to hold floats."""
        return self._known(index, self.types) in REALS

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """The content of an input that never changes: an initializer or a Constant node."""
        value = self.input(index)
        if value is None:
            return None
        producer = value.producer()
        if producer is None:
            return None if value.const_value is None else value.const_value.numpy()
        if producer.op_type != "Constant" or len(producer.attributes) != 1:
            return None
        (content,) = producer.attributes.values()  # onnx_ir's own look would give the tensor a name
        if content.is_ref():
            return None  # the caller of the function gives it
        is_tensor = content.type == ir.AttributeType.TENSOR
        return content.as_tensor().numpy() if is_tensor else np.asarray(content.value)

    def error(self, reason: str, remedy: str) -> Finding:
        """A finding: the chip cannot take this."""
        return Finding(ERROR, describe(self.node), reason, remedy)

    def warning(self, reason: str, remedy: str) -> Finding:
        """A finding: this may go wrong."""
        return Finding(WARNING, describe(self.node), reason, remedy)

    def untried(self, reason: str, remedy: str) -> Finding:
        """A finding: nobody has compared this. On a chip that takes only what was seen to be exact it is an error."""
        is_refused = self.target.refuses_untried
        return self.error(f"not tried: {reason}", remedy) if is_refused else self.warning(reason, remedy)

    @property
    def beyond(self) -> str:
        """What is said of values beyond those of a limit."""
        return ", and nobody has tried another" if self.target.refuses_untried else ""

    def unchecked(self, what: str) -> Finding:
        """A finding: this could not be checked, because a size is open."""
        return Finding(NOTE, describe(self.node), f"a size is open, so {what} could not be checked", OPEN_SIZE)


Check = Callable[[Site], Iterable[Finding]]
"""The check of one limit: its findings about a node."""


@dataclass(frozen=True)
class Limit:
    """One limit of chips.

    Attributes:
        rule: The rule that a finding carries.
        op_types: Ops that it concerns, beside those that name it among their `chip_limits`; None: every node.
    """

    rule: CheckRule
    check: Check
    op_types: frozenset[str] | None

    def concerns(self, op_type: str, named: Iterable[str]) -> bool:
        """Whether an op is asked, by its type and by the limits that its file names."""
        return self.op_types is None or op_type in self.op_types or self.rule.name.removeprefix("target-") in named


def limit(
    number: int, name: str, summary: str, *op_types: str, severity: str = ERROR, everywhere: bool = False
) -> Callable[[Check], Limit]:
    """Turn a check into a limit.

    Args:
        number: The number of its rule, which never changes: `LGR<number>`.
        name: The name by which ops say that it concerns them (`chip_limits`), and that of its rule, `target-<name>`.
        summary: What it asks for, in one line.
        op_types: Ops that it concerns beside those: standard ops, and ops that alone are concerned.
        severity: The severity of most of its findings.
        everywhere: Every node is asked.
    """
    rule = limit_rule(number, name, summary, severity)
    return lambda check: Limit(rule, check, None if everywhere else frozenset(op_types))


def aligned(size: int, step: int) -> int:
    """The next multiple of a step.

    >>> aligned(9, 8), aligned(16, 8)
    (16, 16)
    """
    return -(-size // step) * step


def one_of(values: Iterable[int]) -> str:
    """Values as a choice, for a message.

    >>> one_of((1, 2, 4)), one_of((8,))
    ('1, 2 or 4', '8')
    """
    texts = [str(v) for v in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
