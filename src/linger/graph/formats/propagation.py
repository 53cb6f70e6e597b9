# SPDX-License-Identifier: Apache-2.0
"""Type, scale and width of every tensor, from the inputs to the outputs; contradictions are findings, never guesses.

One walk over the nodes. Every input of every node is a use. A use takes the integers of a tensor, or it needs real numbers;
then a Dequant must stand before it. Where integers are needed behind a Dequant, the walk ignores that Dequant.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal, get_args

import onnx_ir as ir

from linger.errors import GraphError, UsageError, listing
from linger.graph.core.dialects import is_dequant, is_quantizing
from linger.graph.core.finding import ERROR
from linger.graph.core.nodes import describe, inner_graphs
from linger.graph.core.tensor_types import INTEGERS, is_standard
from linger.graph.formats.flow import CONTAINERS, LOOP_FORMALS, Flow, is_default_domain, required_integers, scan_states
from linger.graph.formats.tensor_formats import (
    CONSTANTS,
    REAL,
    UNKNOWN,
    FormatBook,
    FunctionFormats,
    Propagation,
    TensorFormat,
    Use,
    formats_of_dequant,
    formats_of_dialect,
    formats_of_standard,
    formats_of_unknown,
    plain,
)

__all__ = ["Formats", "OutputPolicy", "Propagation", "Use", "propagate"]

OutputPolicy = Literal["declared", "float", "integer"]


def propagate(model: ir.Model, *, outputs: OutputPolicy = "declared", flow: Flow | None = None) -> Propagation:
    """Follow types, scales and widths through a sorted model; nothing is changed.

    Args:
        model: The model; nodes in an order in which they can run.
        outputs: What quantized outputs of the model shall be: real numbers where the file does not declare an integer type
            ("declared"), always ("float"), or never ("integer").
        flow: The flow of the model as it is now, where that is known already.

    Raises:
        UsageError: `outputs` is none of the three.
        GraphError: The nodes are not sorted, or functions call themselves.
    """
    if outputs not in get_args(OutputPolicy):
        raise UsageError(f"outputs: {outputs!r} means nothing. Choose one of {listing(get_args(OutputPolicy))}.")
    flow = Flow.of(model) if flow is None else flow
    book = FormatBook(flow, required_integers(flow))
    while True:  # each round makes at least one more carried tensor real, so this ends
        book.begin()
        _visit(book, model.graph)
        if book.is_settled:
            break
    _refuse_several_scales(book)
    book.result.reads_dequant_scales = any(map(_is_given, book.required.dequant_scales))
    for index, value in enumerate(model.graph.outputs):
        if _shall_be_real(value, book.fact(value), outputs):
            book.need_reals(Use(model.graph, index))
    return book.result


def _refuse_several_scales(book: FormatBook) -> None:
    """A Dequant in a function whose calls give it tensors of several scales cannot have the scale of each."""
    several = {node: scales for node, scales in book.result.dequant_scales.items() if len(scales) > 1}
    for node in dict.fromkeys(node for node, _ in book.result.wrong_scales if node in several):
        reason = (
            f"calls of its function give it tensors of the scales {listing(f'{s:g}' for s in sorted(several[node]))}"
        )
        book.find(ERROR, describe(node), reason, "Inline the function, or give it the same kind of numbers everywhere.")
    book.result.wrong_scales = [wrong for wrong in book.result.wrong_scales if wrong[0] not in several]


class Formats:
    """What `propagate` finds in a model, found once as long as the model does not change."""

    def __init__(self, model: ir.Model, outputs: OutputPolicy = "declared") -> None:
        self._model, self._outputs = model, outputs

    @cached_property
    def flow(self) -> Flow:
        """How numbers move through the model."""
        return Flow.of(self._model)

    @cached_property
    def found(self) -> Propagation:
        """What `propagate` finds."""
        return propagate(self._model, outputs=self._outputs, flow=self.flow)

    def after_rescaling(self) -> Formats:
        """The facts once every Dequant of `wrong_scales` has the scale of its tensor.

        A Dequant's scale decides something only in two places. It is compared with the scale of its tensor, which agrees
        then. And it stands for the scale of an input or a constant whose readers state none; only with such a tensor
        must the model be followed again.
        """
        if self.found.reads_dequant_scales:
            return Formats(self._model, self._outputs)
        self.found.wrong_scales.clear()
        return self


def _shall_be_real(value: ir.Value, fact: TensorFormat, outputs: OutputPolicy) -> bool:
    """Whether an output of the model that holds integers shall hold real numbers."""
    if outputs == "integer" or (outputs == "declared" and value.dtype in INTEGERS):
        return False
    return fact.is_quantized or (value.dtype == ir.DataType.FLOAT and fact.element in INTEGERS)


def _is_given(value: ir.Value) -> bool:
    """Whether a tensor is an input, an initializer or a constant."""
    producer = value.producer()
    return producer is None or producer.op_type in CONSTANTS


def _visit(book: FormatBook, graph: ir.Graph) -> None:
    for node in graph:
        _require_sorted(book, node)
        facts = _formats_of(book, node)
        for index, output in enumerate(node.outputs):
            book.result.facts[output] = facts[index] if index < len(facts) else UNKNOWN


def _require_sorted(book: FormatBook, node: ir.Node) -> None:
    facts = book.result.facts
    for value in node.inputs:
        producer = None if value is None or value in facts else value.producer()
        if producer is not None and producer.graph is not None:
            raise GraphError(
                f"{describe(node)}: it stands before {describe(producer)}, whose result it uses. Sort the nodes first."
            )


def _formats_of(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """The facts of a node's outputs; what its inputs need is noted on the way."""
    if is_quantizing(node):
        return formats_of_dequant(book, node) if is_dequant(node) else formats_of_dialect(book, node)
    function = book.flow.function_of(node)
    if function is not None:
        return _formats_of_call(book, node, function)
    if not is_default_domain(node) or not is_standard(node.op_type):
        return formats_of_unknown(book, node)
    if node.op_type in CONTAINERS:
        return {"If": _formats_of_if, "Loop": _formats_of_loop, "Scan": _formats_of_scan}[node.op_type](book, node)
    return formats_of_standard(book, node)


def _formats_of_if(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """Both branches of an If give the same kind of integers, or real numbers."""
    bodies = inner_graphs(node)
    for body in bodies:
        _visit(book, body)
    return [_one_of(book, [Use(b, i) for b in bodies if i < len(b.outputs)]) for i in range(len(node.outputs))]


def _one_of(book: FormatBook, uses: list[Use]) -> TensorFormat:
    """The fact of a tensor that is one of several: quantized only if all of them are the same kind of integers."""
    facts = [book.fact(use.value) for use in uses]
    if any(f.is_quantized for f in facts):
        return _one_of_quantized(book, uses, facts)
    return next((f for f in facts if f.element is not None), UNKNOWN)


def _one_of_quantized(book: FormatBook, uses: list[Use], facts: list[TensorFormat]) -> TensorFormat:
    is_same = all(_is_same_kind(f, facts[0]) for f in facts)
    if not is_same and any(f.element is None for f in facts):
        return UNKNOWN
    for use in uses:
        (book.take_integers if is_same else book.need_reals)(use)
    return max(facts, key=lambda fact: fact.bits or 0) if is_same else REAL


def _formats_of_loop(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """Carried tensors of a Loop keep their kind from one iteration to the next."""
    bodies = inner_graphs(node)
    if not bodies:
        return []
    body = bodies[0]
    carried = max(min(len(node.inputs), len(body.inputs)) - LOOP_FORMALS, 0)
    _enter_body(book, body, {i: node.inputs[i] for i in range(LOOP_FORMALS, LOOP_FORMALS + carried)})
    facts = [_carried(book, node, body, i + LOOP_FORMALS, i + 1) for i in range(carried)]
    return [*facts, *(_collected(book, body, i) for i in range(carried + 1, len(body.outputs)))]


def _formats_of_scan(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """A Scan carries its states as a Loop does; its other inputs are cut into slices."""
    bodies, states = inner_graphs(node), scan_states(node)
    if not bodies or states is None:
        return formats_of_unknown(book, node)
    body = bodies[0]
    _enter_body(book, body, dict(enumerate(node.inputs[: len(body.inputs)])))
    known = min(len(node.inputs), len(body.inputs))
    for index in range(states, known):
        _hand_over(book, node, index, book.result.facts[body.inputs[index]])
    facts = [_carried(book, node, body, i, i) for i in range(min(states, known, len(body.outputs)))]
    return [*facts, *(_collected(book, body, i) for i in range(states, len(body.outputs)))]


def _enter_body(book: FormatBook, body: ir.Graph, given: Mapping[int, ir.Value | None]) -> None:
    """Follow a body whose inputs hold what is given; real numbers where an earlier round or the file says so."""
    for index, formal in enumerate(body.inputs):
        fact = book.fact(given[index]) if index in given else plain(formal.dtype)
        is_declared_real = formal.dtype == ir.DataType.FLOAT and formal not in book.required
        if fact.is_quantized and (formal in book.real_formals or is_declared_real):
            fact = REAL
        book.result.facts[formal] = plain(formal.dtype) if fact.element is None else fact
    _visit(book, body)


def _hand_over(book: FormatBook, node: ir.Node, index: int, inside: TensorFormat) -> None:
    """An input of a node goes into a body or a function: as integers if it is quantized there, else as real numbers."""
    if book.fact(node.inputs[index]).is_quantized:
        (book.take_integers if inside.is_quantized else book.need_reals)(Use(node, index))


def _carried(book: FormatBook, node: ir.Node, body: ir.Graph, given: int, returned: int) -> TensorFormat:
    """The fact of a tensor that a loop carries: what goes in and what comes back must be of the same kind."""
    formal = body.inputs[given]
    fact = book.result.facts[formal]
    if returned >= len(body.outputs) or node.inputs[given] is None:
        return fact
    back = book.fact(body.outputs[returned])
    if (fact.is_quantized or back.is_quantized) and not _is_same_kind(fact, back):
        if fact.is_quantized and formal not in book.real_formals:
            book.real_formals.add(formal)
            book.is_settled = False
        book.need_reals(Use(body, returned))
    elif back.is_quantized:
        book.take_integers(Use(body, returned))
    _hand_over(book, node, given, fact)
    return fact


def _collected(book: FormatBook, body: ir.Graph, index: int) -> TensorFormat:
    """The fact of the tensors that iterations give, put together."""
    fact = book.fact(body.outputs[index])
    if fact.is_quantized:
        book.take_integers(Use(body, index))
    return fact


def _formats_of_call(book: FormatBook, node: ir.Node, function: ir.Function) -> list[TensorFormat]:
    """A user's function gets integers where its body moves them or needs them, else real numbers."""
    if function.identifier() in book.calling:
        raise GraphError(f"{describe(node)}: the function calls itself. Remove the circle.")
    given = [book.fact(v) for v in node.inputs]
    if _tried(book, function, given) is None:
        pairs = zip(function.inputs, given, strict=False)
        given = [REAL if fact.is_quantized and formal not in book.required else fact for formal, fact in pairs]
    for index, fact in enumerate(given):
        _hand_over(book, node, index, fact)
    results = _tried(book, function, given)
    return _called(book, node, function, given) if results is None or _is_bound(book, function, given) else results


def _called(book: FormatBook, node: ir.Node, function: ir.Function, given: list[TensorFormat]) -> list[TensorFormat]:
    """The results of a function whose body has to change, or holds contradictions; it can change for one kind of inputs."""
    identifier = function.identifier()
    known = book.function_formats.get(identifier)
    if known is None:
        book.function_formats[identifier] = given
        _enter_function(book, function, given)
    elif known != given:
        book.find(
            ERROR,
            describe(node),
            f"it calls a function with {', '.join(map(str, given))}, and another call gives it {', '.join(map(str, known))}",
            "Inline the function, or give it the same kind of numbers everywhere.",
        )
        return [plain(output.dtype) for output in node.outputs]
    return [book.fact(v) for v in function.outputs]


def _tried(book: FormatBook, function: ir.Function, given: list[TensorFormat]) -> list[TensorFormat] | None:
    """The results of a function for these inputs if nothing in its body has to change; None otherwise."""
    key = (function.identifier(), tuple(given))
    if key not in book.trials:
        kept, known, reported = book.result, dict(book.function_formats), set(book.reported)
        book.result = Propagation()
        _enter_function(book, function, given)
        trial, book.result = book.result, kept
        inside = {name: facts for name, facts in book.function_formats.items() if name not in known}
        book.function_formats = known
        book.reported = reported
        # where a node inside keeps the real numbers that a Dequant outside gives, the body would get one
        is_kept = trial.is_clean and all(is_dequant(use.value.producer()) for use in trial.kept_real)
        book.trials[key] = [trial.fact(v) for v in function.outputs] if is_kept else None
        book.tried[key] = trial, inside
    if book.trials[key] is not None and not _is_bound(book, function, given):
        _learn(book, function, given, *book.tried[key])
    return book.trials[key]


def _learn(
    book: FormatBook, function: ir.Function, given: list[TensorFormat], trial: Propagation, inside: FunctionFormats
) -> None:
    """Take over what a trial found: the body, and the functions that it calls, cannot change for another call any more."""
    known, result = book.function_formats, book.result
    book.function_formats = {**inside, **known, function.identifier(): known.get(function.identifier(), given)}
    for node, scales in trial.dequant_scales.items():
        result.dequant_scales.setdefault(node, set()).update(scales)
    for value, fact in trial.facts.items():  # bodies may be called with several kinds
        result.facts[value] = fact if result.facts.get(value, fact) == fact else UNKNOWN


def _is_bound(book: FormatBook, function: ir.Function, given: list[TensorFormat]) -> bool:
    """Whether the body has to change for an earlier call, and so cannot serve one with other inputs."""
    identifier = function.identifier()
    known = book.function_formats.get(identifier)
    return known is not None and known != given and book.trials.get((identifier, tuple(known))) is None


def _enter_function(book: FormatBook, function: ir.Function, given: list[TensorFormat]) -> None:
    book.result.facts.update(zip(function.inputs, given, strict=False))
    book.calling.append(function.identifier())
    _visit(book, function.graph)
    book.calling.pop()


def _is_same_kind(one: TensorFormat, other: TensorFormat) -> bool:
    return one.is_quantized and other.is_quantized and (one.element, one.scale) == (other.element, other.scale)
