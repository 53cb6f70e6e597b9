# SPDX-License-Identifier: Apache-2.0
"""Type, scale and width of every tensor, from the inputs to the outputs; contradictions are findings, never guesses.

Every input of a node is a use. It takes integers, or needs real numbers and a Dequant before it, which is ignored where integers follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Literal, get_args

import onnx_ir as ir

from linger.errors import GraphError, UsageError, listing
from linger.graph.core.check_rules import MISSING_ATTRIBUTE, MISSING_DEQUANT, OPERAND_TYPE, SCALE_MISMATCH
from linger.graph.core.dialects import StatedFormat, is_dequant, is_quantizing, read_scale
from linger.graph.core.nodes import WARNING, describe, inner_graphs, makers
from linger.graph.core.tensor_types import (
    INTEGERS,
    QUANTIZED,
    cast_type,
    constant_tensor,
    integer_bits,
    is_standard,
    output_types,
    type_variable,
)
from linger.graph.formats.tensor_formats import (
    CONTAINERS,
    INTEGER_OPS,
    LOOP_FORMALS,
    REAL,
    SHAPE_OPS,
    UNKNOWN,
    WHOLE_NUMBERS,
    Flow,
    FormatBook,
    FunctionFormats,
    Propagation,
    TensorFormat,
    Use,
    can_run,
    can_take,
    data_of,
    integer_inputs,
    is_default_domain,
    moved_inputs,
    moved_outputs,
    plain,
    quantized,
    required_integers,
    scan_states,
    takes_reals,
)
from linger.graph.qdq.qdq_node import bounds_of
from linger.numeric.onnx.writer import integer_type

OutputPolicy = Literal["declared", "float", "integer"]
_CONSTANTS = ("Constant", "ConstantOfShape")
_INLINE = "Inline the function, or give it the same kind of numbers everywhere."


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
    sources = [value.producer() for value in book.required.dequant_scales]
    book.result.reads_dequant_scales = any(node is None or node.op_type in _CONSTANTS for node in sources)
    for index, value in enumerate(model.graph.outputs):
        if _shall_be_real(value, book.fact(value), outputs):
            book.need_reals(Use(model.graph, index))
    return book.result


def _refuse_several_scales(book: FormatBook) -> None:
    """A Dequant in a function whose calls give it tensors of several scales cannot have the scale of each."""
    several = {node: scales for node, scales in book.result.dequant_scales.items() if len(scales) > 1}
    for node in dict.fromkeys(node for node, _ in book.result.wrong_scales if node in several):
        scales = listing(f"{scale:g}" for scale in sorted(several[node]))
        book.find(node, f"calls of its function give it tensors of the scales {scales}", _INLINE)
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
    if outputs == "integer" or (outputs == "declared" and value.dtype in QUANTIZED):
        return False
    return fact.is_quantized or (value.dtype == ir.DataType.FLOAT and fact.element in INTEGERS)


def _visit(book: FormatBook, graph: ir.Graph) -> None:
    for node in graph:
        for maker in makers(value for value in node.inputs if value not in book.result.facts):
            if maker.graph is not None:
                place = f"{describe(node)}: it stands before {describe(maker)}, whose result it uses"
                raise GraphError(f"{place}. Sort the nodes first.")
        facts = _formats_of(book, node)
        for index, output in enumerate(node.outputs):
            book.result.facts[output] = facts[index] if index < len(facts) else UNKNOWN


def _formats_of(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """The facts of a node's outputs; what its inputs need is noted on the way."""
    if is_quantizing(node):
        return _formats_of_dequant(book, node) if is_dequant(node) else _formats_of_dialect(book, node)
    function = book.flow.function_of(node)
    if function is not None:
        return _formats_of_call(book, node, function)
    if not is_default_domain(node) or not is_standard(node.op_type):
        return _formats_of_unknown(book, node)
    if node.op_type in CONTAINERS:
        return {"If": _formats_of_if, "Loop": _formats_of_loop, "Scan": _formats_of_scan}[node.op_type](book, node)
    return _formats_of_standard(book, node)


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
    return facts + _collected(book, body, carried + 1)


def _formats_of_scan(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """A Scan carries its states as a Loop does; its other inputs are cut into slices."""
    bodies, states = inner_graphs(node), scan_states(node)
    if not bodies or states is None:
        return _formats_of_unknown(book, node)
    body = bodies[0]
    _enter_body(book, body, dict(enumerate(node.inputs[: len(body.inputs)])))
    known = min(len(node.inputs), len(body.inputs))
    for index in range(states, known):
        _hand_over(book, node, index, book.result.facts[body.inputs[index]])
    facts = [_carried(book, node, body, i, i) for i in range(min(states, known, len(body.outputs)))]
    return facts + _collected(book, body, states)


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


def _collected(book: FormatBook, body: ir.Graph, first: int) -> list[TensorFormat]:
    """The facts of the outputs from the first on, of which each puts together what the iterations give."""
    facts = [book.fact(value) for value in body.outputs[first:]]
    for index, fact in enumerate(facts, first):
        if fact.is_quantized:
            book.take_integers(Use(body, index))
    return facts


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
        kinds = f"{', '.join(map(str, given))}, and another call gives it {', '.join(map(str, known))}"
        book.find(node, f"it calls a function with {kinds}", _INLINE)
        return [plain(output.dtype) for output in node.outputs]
    return [book.fact(v) for v in function.outputs]


def _tried(book: FormatBook, function: ir.Function, given: list[TensorFormat]) -> list[TensorFormat] | None:
    """The results of a function for these inputs if nothing in its body has to change; None otherwise."""
    key = (function.identifier(), tuple(given))
    if key not in book.trials:
        result, known, reported = book.result, dict(book.function_formats), set(book.reported)
        book.result = Propagation()
        _enter_function(book, function, given)
        trial, book.result = book.result, result
        inside = {name: facts for name, facts in book.function_formats.items() if name not in known}
        book.function_formats = known
        book.reported = reported
        # where a node inside keeps the real numbers that a Dequant outside gives, the body would get one
        is_kept = trial.is_clean and all(is_dequant(use.value.producer()) for use in trial.kept_real)
        book.trials[key] = [trial.fact(v) for v in function.outputs] if is_kept else None, trial, inside
    outputs, trial, inside = book.trials[key]
    if outputs is not None and not _is_bound(book, function, given):
        _learn(book, function, given, trial, inside)
    return outputs


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
    if known is None or known == given:
        return False
    return book.trials.get((identifier, tuple(known)), (None,))[0] is None


def _enter_function(book: FormatBook, function: ir.Function, given: list[TensorFormat]) -> None:
    book.result.facts.update(zip(function.inputs, given, strict=False))
    book.calling.append(function.identifier())
    _visit(book, function.graph)
    book.calling.pop()


def _is_same_kind(one: TensorFormat, other: TensorFormat) -> bool:
    return one.is_quantized and other.is_quantized and (one.element, one.scale) == (other.element, other.scale)


def _formats_of_dequant(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
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
        book.find(node, reason, "Set scale_o.", MISSING_ATTRIBUTE)
    book.take_integers(Use(node, 0))
    is_ignored = fact.is_quantized and node.outputs[0] in book.required
    return [replace(fact, was_real=True) if is_ignored else REAL]


def _formats_of_dialect(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """Any other dialect node: what it states about its inputs is compared with their facts."""
    stated = book.flow.formats(node)
    for index in _present(node, stated.integers):
        _expect_integers(book, node, index, stated.integers[index])
        if index in stated.signed:
            _expect_sign(book, node, index)
    for index in _present(node, stated.reals):
        book.need_reals(Use(node, index))
    if stated.kept is None:
        return [REAL if s is None else quantized(s.scale, s.bits, is_unsigned=s.is_unsigned) for s in stated.outputs]
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
        if index == 0 or not _is_one_number(value):  # a second operand may be one real number
            remedy = "Put a Quant with the scale that this node states before it."
            book.find(node, f"it takes integers, and {name!r} holds real numbers", remedy, OPERAND_TYPE)
        return
    book.take_integers(use)
    if stated.scale is not None and fact.scale is not None and stated.scale != fact.scale:
        reason = f"{stated.attribute} is {stated.scale:g}, and {name!r} has the scale {fact.scale:g}"
        book.find(node, reason, "Give this node the scale of its tensor, or requantize the tensor.", SCALE_MISMATCH)
    if stated.bits is not None and fact.bits is not None and not _fits(stated.bits, fact, value):
        reason = f"it reads {name!r} as {stated.bits} bits, and that has {fact.bits} ({fact})"
        book.find(node, reason, "State the width that the tensor has, or requantize it.", OPERAND_TYPE)


def _expect_sign(book: FormatBook, node: ir.Node, index: int) -> None:
    """An input must not be unsigned bytes, because the op does not take them."""
    fact = book.fact(node.inputs[index])
    if fact.is_quantized and fact.element == ir.DataType.UINT8:
        half = "half its scale" if fact.scale is None else f"the scale {fact.scale / 2:g}"
        reason = f"it takes signed integers, and {Use(node, index).value.name!r} has unsigned bytes"
        book.find(node, reason, f"Put a Requant to 8 bits at {half} between, as an export does.", OPERAND_TYPE)


def _is_one_number(value: ir.Value) -> bool:
    """Whether a tensor is a constant of one number."""
    producer, content = value.producer(), constant_tensor(value)
    is_scalar = producer is not None and producer.op_type == "Constant" and "value_float" in producer.attributes
    return is_scalar or (content is not None and content.size == 1)


def _fits(bits: int, fact: TensorFormat, value: ir.Value) -> bool:
    """Whether a tensor can be read with a width: in the same storage, and not with fewer bits than it has."""
    producer = value.producer()
    if producer is None or producer.op_type == "Constant":
        types = integer_type(bits), integer_type(bits, is_unsigned=bits == 8)
        return fact.element in types  # nothing but its storage says how wide a given tensor is
    storage = integer_bits(fact.element)
    return fact.bits is not None and bits >= fact.bits and (storage is None or bits <= storage)


def _formats_of_standard(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
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
        return _formats_of_unknown(book, node)  # the quantized tensor may meet integers or real numbers
    common = _common_format(node, facts, data)
    return _on_reals(book, node, facts) if common is None else _on_integers(book, node, facts, common)


def _without_misfits(book: FormatBook, node: ir.Node, facts: list[TensorFormat]) -> list[TensorFormat]:
    """Report integers without a scale where the op takes only real numbers, and go on as if they were real."""
    integers = [index for index, fact in enumerate(facts) if fact.element in WHOLE_NUMBERS]
    if not integers:
        return facts
    groups = [type_variable(node.op_type, index, book.opset) for index in range(len(facts))]
    of_reals = {group for group, fact in zip(groups, facts, strict=True) if fact.is_real} - {None}
    results = list(facts)
    for index in integers:
        if groups[index] in of_reals or not can_take(node, index, facts[index].element, book.opset):
            book.report_unknown_scale(Use(node, index))
            results[index] = REAL
    return results


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
            reason = f"input {index} cannot be quantized numbers, and {Use(node, index).value.name!r} is {fact}"
            book.find(node, reason, "Connect the tensor that is meant.", OPERAND_TYPE)
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
    if _holds(target, fact.element):
        return [quantized(fact.scale, fact.bits, target)]
    if target != ir.DataType.INT64 or not _is_cast_back(node):
        reason = f"it takes the integers of {Use(node, 0).value.name!r} ({fact}) as they are, without their scale"
        book.find(node, reason, "If real numbers are meant, put a Dequant before it.", MISSING_DEQUANT, WARNING)
    return [plain(target)]


def _holds(target: ir.DataType | None, source: ir.DataType | None) -> bool:
    """Whether a type of quantized tensors holds every number of another one."""
    bits, width = integer_bits(target), integer_bits(source)
    if bits is None or width is None or ir.DataType.UINT8 not in (source, target):
        return bits is not None and width is not None and bits >= width
    return source == target or bits > width


def _keeps_reals(node: ir.Node, fact: TensorFormat) -> bool:
    """Whether a Cast reads real numbers that a Dequant gives, whoever else takes the integers before it."""
    return node.op_type == "Cast" and fact.was_real and fact.scale is not None


def _is_cast_back(node: ir.Node) -> bool:
    """Whether the result of a Cast to 64 bits is only moved, compared and cast back, as torch writes cat, roll and `x > 0`."""

    def keeps_integers(user: ir.Node, index: int) -> bool:
        is_cast = user.op_type == "Cast" and cast_type(user) in WHOLE_NUMBERS
        return not user.domain and (is_cast or index in data_of(user))

    waiting = list(node.outputs[:1])
    known = set(waiting)
    while waiting:
        value = waiting.pop()
        if value.is_graph_output() or not all(keeps_integers(user, index) for user, index in value.uses()):
            return False
        users = [user for user, _ in value.uses() if moved_inputs(user)]
        waiting += [o for user in users for o in user.outputs[: moved_outputs(user)] if o not in known]
        known.update(waiting)
    return True


def _plain_outputs(book: FormatBook, node: ir.Node, facts: list[TensorFormat]) -> list[TensorFormat]:
    """Outputs that are not quantized: of the types that ONNX gives them, else of those that the file declares."""
    elements = output_types(node, [fact.element for fact in facts], book.opset)
    if node.op_type in _CONSTANTS:
        return [_format_of_constant(book, node, elements[0])]
    return [plain(element or output.dtype) for element, output in zip(elements, node.outputs, strict=False)]


def _format_of_constant(book: FormatBook, node: ir.Node, element: ir.DataType | None) -> TensorFormat:
    """A constant of integers is quantized where all that read it agree on a scale; what the caller of a function gives is open."""
    scale = book.required.scale_of(node.outputs[0]) if node.outputs else None
    return quantized(scale, integer_bits(element), element) if element in QUANTIZED and scale else plain(element)


def _formats_of_unknown(book: FormatBook, node: ir.Node) -> list[TensorFormat]:
    """A node whose op, or the type of whose other inputs, is not known: nothing changes, and a finding says so."""
    for index, value in enumerate(node.inputs):
        fact = book.fact(value)
        if value is not None and fact.was_real and fact.scale is not None:
            book.result.kept_real.append(Use(node, index))
        elif value is not None and fact.is_quantized and not is_dequant(value.producer()):
            reason = (
                f"whether it takes the integers of {value.name!r} ({fact}), its input {index}, cannot be told: "
                "the op, or the type of what it meets there, is not known"
            )
            remedy = "If it computes with real numbers, put a Dequant before it."
            book.find(node, reason, remedy, MISSING_DEQUANT, WARNING)
    return [plain(output.dtype) for output in node.outputs]


def _common_format(node: ir.Node, facts: list[TensorFormat], data: list[int]) -> TensorFormat | None:
    """The one fact of a node's data; None where they are not one kind of integers, or other inputs are quantized, too."""
    chosen = [facts[i] for i in data if facts[i].is_quantized]
    scales = {fact.scale for fact in chosen}
    is_one_scale = len(scales) == 1 and (None not in scales or len(data) == 1)  # of several it must be known
    if not is_one_scale or _are_mixed(node, facts, data):
        return None
    widest = max(chosen, key=lambda fact: fact.bits or 0)
    return replace(widest, was_real=any(fact.was_real for fact in chosen))


def _are_mixed(node: ir.Node, facts: list[TensorFormat], data: list[int]) -> bool:
    """Whether the data have several element types, quantized and computed plain numbers, or meet other quantized inputs."""
    together = [*data, *bounds_of(node)]
    if len({facts[i].element for i in together}) > 1:
        return True
    if any(fact.is_quantized for i, fact in enumerate(facts) if i not in together):
        return True
    # a constant beside quantized numbers is written for their scale
    return not all(facts[i].is_quantized or _is_constant(node.inputs[i]) for i in data)


def _is_constant(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    is_result = producer is not None and producer.op_type == "Constant"
    return is_result or (value is not None and value.const_value is not None)
