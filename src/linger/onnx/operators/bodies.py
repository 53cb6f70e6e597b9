# SPDX-License-Identifier: Apache-2.0
"""What a custom op computes: model-local functions read from ONNX text or onnxscript, fitted to an opset."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx
import onnx.parser
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, NameFixPass

from linger.errors import UsageError, listing

CHANGED_MEANING = {
    "Softmax": 13,
    "LogSoftmax": 13,
    "Hardmax": 13,
    "RoiAlign": 16,
    "Split": 18,
    "GridSample": 20,
    "GroupNormalization": 21,
}
"""Ops that compute something else from this opset on, with the same inputs and attributes (from onnx's changelog)."""

_COMMENTS = re.compile(r"\A(\s+|#[^\n]*\n)*")
_STANDARD = ("", "ai.onnx")


class Scripted(Protocol):
    """An onnxscript function."""

    def to_function_proto(self) -> onnx.FunctionProto:
        """The function in ONNX form."""


BodyLike = str | onnx.FunctionProto | Scripted


@dataclass(frozen=True)
class Body:
    """A function that says what an op computes. `name` is used in messages."""

    name: str
    function: onnx.FunctionProto

    @property
    def written_for(self) -> int | None:
        """The opset that the body is written for; None if it names none and is used unchanged at every opset."""
        return next((i.version for i in self.function.opset_import if i.domain in _STANDARD), None)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(self.function.input)

    @property
    def required_attributes(self) -> list[str]:
        """Attributes without a default."""
        return list(self.function.attribute)

    def named(self, domain: str, name: str) -> Body:
        """The same body for another op."""
        function = onnx.FunctionProto()
        function.CopyFrom(self.function)
        function.domain, function.name = domain, name
        return Body(self.name, function)

    def at(self, opset: int) -> onnx.FunctionProto:
        """The function for a model of this opset, with that opset in its imports, as onnx demands.

        Raises:
            UsageError: The body needs a later opset, or means something else at this one.
        """
        first = self.written_for
        if first is not None and opset < first:
            raise UsageError(
                f"{self.name}: the body is written for opset {first} and the model has opset {opset}. "
                f"Export with opset_version={first} or later, or give a body for opset {opset}."
            )
        changed = [] if first is None else _changed_between(first, opset, self.function)
        if changed:
            raise UsageError(
                f"{self.name}: the body is written for opset {first}, and {listing(changed)} computes something else at "
                f"opset {opset}. Give a body written for opset {opset}."
            )
        fitted = _at_opset(self.function, opset)
        _check(self.name, fitted, opset)
        return fitted


def read_bodies(source: BodyLike | Sequence[BodyLike], name: str) -> list[Body]:
    """The bodies of an op, from one or several sources.

    Raises:
        UsageError: Something is no function.
    """
    found: Sequence[Any] = source if isinstance(source, (list, tuple)) else [source]
    return [_read(one, name) for one in found]


def expand_functions(model: ir.Model, is_chosen: Callable[[ir.Function], bool]) -> None:
    """Put the nodes of the chosen functions in place of their calls, in the graph and in the other functions."""
    InlinePass(criteria=is_chosen)(model)
    # InlinePass may give two values one name if functions call functions
    NameFixPass()(model)


def select(bodies: Sequence[Body], opset: int) -> Body:
    """Choose the body for an opset: the one written for the latest opset that is not later than this."""
    fitting = [b for b in bodies if (b.written_for or 0) <= opset]
    candidates = fitting or bodies
    choose = max if fitting else min
    return choose(candidates, key=lambda b: b.written_for or 0)


def _read(source: Any, name: str) -> Body:
    if isinstance(source, str):
        return Body(name, _parse(source, name))
    if isinstance(source, onnx.FunctionProto):
        return Body(name, source)
    if not callable(getattr(source, "to_function_proto", None)):
        raise UsageError(
            f"{name}: a body is ONNX text, an onnxscript function or a FunctionProto, not {type(source).__name__}."
        )
    description: Any = getattr(source, "function_ir", None)
    called = {} if description is None else description.get_called_functions()
    helpers = [f.to_function_proto() for f in called.values()]
    return Body(name, _with_inlined(source.to_function_proto(), helpers, name))


def _with_inlined(function: onnx.FunctionProto, helpers: Sequence[onnx.FunctionProto], name: str) -> onnx.FunctionProto:
    """The function with the nodes of the functions it calls in place of the calls."""
    if not helpers:
        return function
    functions = [function, *helpers]
    opsets = sorted({i.version for f in functions for i in f.opset_import if i.domain in _STANDARD})
    if len(opsets) != 1:
        raise UsageError(f"{name}: the body and the functions it calls are written for opsets {opsets}. Use one opset.")
    model = ir.from_proto(_model_of([_at_opset(f, opsets[0]) for f in functions]))
    identifier = (function.domain, function.name, "")
    expand_functions(model, lambda candidate: candidate.identifier() != identifier)
    inlined: onnx.FunctionProto = ir.to_proto(model.functions[identifier])
    used = {*_STANDARD, *(node.domain for node in _all_nodes(inlined.node))}
    kept = [i for i in inlined.opset_import if i.domain in used]
    del inlined.opset_import[:]
    inlined.opset_import.extend(kept)
    return inlined


def _parse(text: str, name: str) -> onnx.FunctionProto:
    has_header = text[len(_COMMENTS.match(text)[0]) :].startswith("<")  # type: ignore[index]  # it always matches
    header = "" if has_header else '<domain: "custom", opset_import: ["": 1]>\n'
    try:
        function = onnx.parser.parse_function(header + text)
    except onnx.parser.ParseError as error:
        raise UsageError(f"{name}: the body is not a function in ONNX text: {_first_lines(error)}") from error
    if not has_header:
        del function.opset_import[:]
    return function


def _at_opset(function: onnx.FunctionProto, opset: int) -> onnx.FunctionProto:
    fitted = onnx.FunctionProto()
    fitted.CopyFrom(function)
    others = [i for i in function.opset_import if i.domain not in _STANDARD]
    del fitted.opset_import[:]
    fitted.opset_import.add(domain="", version=opset)
    fitted.opset_import.extend(others)
    return fitted


def _changed_between(first: int, opset: int, function: onnx.FunctionProto) -> list[str]:
    used = {node.op_type for node in _all_nodes(function.node) if node.domain in _STANDARD}
    return sorted(op for op in used if first < CHANGED_MEANING.get(op, 0) <= opset)


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g.node)


def _check(name: str, function: onnx.FunctionProto, opset: int) -> None:
    try:
        onnx.checker.check_model(_model_of([function]))
    except onnx.checker.ValidationError as error:
        raise UsageError(f"{name}: the body is not valid at opset {opset}: {_first_lines(error)}") from error


def _model_of(functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    """A model that holds functions and nothing else."""
    model = onnx.ModelProto(ir_version=8, functions=functions, graph=onnx.GraphProto(name="empty"))
    domains = {f.domain: 1 for f in functions} | {i.domain: i.version for f in functions for i in f.opset_import}
    for domain, version in domains.items():
        model.opset_import.add(domain=domain, version=version)
    return model


def _first_lines(error: Exception) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:3] if line.strip()).rstrip(".") + "."
