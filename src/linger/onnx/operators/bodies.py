# SPDX-License-Identifier: Apache-2.0
"""What a custom op computes: model-local functions read from ONNX text or onnxscript, fitted to an opset.

The arguments of a torch op: which become inputs of the ONNX node, and which become attributes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import onnx
import onnx.parser
import onnx_ir as ir
import torch
from onnx_ir.passes.common import InlinePass, NameFixPass
from torch import Tensor
from torch._ops import OpOverload

from linger.errors import UnsupportedError, UsageError, listing, refuse_if

CHANGED_MEANING = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), 13),
    "RoiAlign": 16,
    "Split": 18,
    "GridSample": 20,
    "GroupNormalization": 21,
}
"""Ops that compute something else from this opset on, with the same inputs and attributes (from onnx's changelog)."""

_COMMENTS = re.compile(r"\A(\s+|#[^\n]*\n)*")
_STANDARD = ("", "ai.onnx")


class _Scripted(Protocol):
    """An onnxscript function."""

    def to_function_proto(self) -> onnx.FunctionProto:
        """The function in ONNX form."""


BodyLike = str | onnx.FunctionProto | _Scripted


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
        """The function for a model of this opset, as onnx demands; refuse an opset at which the body is not what it was written as."""
        first = self.written_for
        refuse_if(
            first is not None and opset < first,
            f"{self.name}: the body is written for opset {first} and the model has opset {opset}. "
            f"Export with opset_version={first} or later, or give a body for opset {opset}.",
        )
        used = {node.op_type for node in _all_nodes(self.function.node) if node.domain in _STANDARD}
        changed = [] if first is None else sorted(op for op in used if first < CHANGED_MEANING.get(op, 0) <= opset)
        refuse_if(
            changed,
            f"{self.name}: the body is written for opset {first}, and {listing(changed)} computes something else at "
            f"opset {opset}. Give a body written for opset {opset}.",
        )
        fitted = _at_opset(self.function, opset)
        try:
            onnx.checker.check_model(_model_of([fitted]))
        except onnx.checker.ValidationError as error:
            raise UsageError(f"{self.name}: the body is not valid at opset {opset}: {_first_lines(error)}") from error
        return fitted


def read_bodies(source: BodyLike | Sequence[BodyLike] | None, name: str) -> list[Body]:
    """The bodies of an op, from one or several sources, each of which must be a function."""
    sources: Sequence[Any] = source if isinstance(source, (list, tuple)) else [] if source is None else [source]
    return [_read(one, name) for one in sources]


def expand_functions(model: ir.Model, is_chosen: Callable[[ir.Function], bool]) -> None:
    """Put the nodes of the chosen functions in place of their calls, in the graph and in the other functions."""
    InlinePass(criteria=is_chosen)(model)
    # InlinePass may give two values one name if functions call functions
    NameFixPass()(model)


def select(bodies: Sequence[Body], opset: int) -> Body:
    """Choose the body for an opset: the one written for the latest opset that is not later than this."""
    fitting = [body for body in bodies if (body.written_for or 0) <= opset]
    latest = max if fitting else min  # else a body for a later opset, which says so
    return latest(fitting or bodies, key=lambda body: body.written_for or 0)


def _read(source: Any, name: str) -> Body:
    if isinstance(source, str):
        return Body(name, _parse(source, name))
    if isinstance(source, onnx.FunctionProto):
        return Body(name, source)
    refuse_if(
        not callable(getattr(source, "to_function_proto", None)),
        f"{name}: a body is ONNX text, an onnxscript function or a FunctionProto, not {type(source).__name__}.",
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
    refuse_if(
        len(opsets) != 1, f"{name}: the body and the functions it calls are written for opsets {opsets}. Use one opset."
    )
    model = ir.from_proto(_model_of([_at_opset(f, opsets[0]) for f in functions]))
    identifier = (function.domain, function.name, "")
    expand_functions(model, lambda candidate: candidate.identifier() != identifier)
    inlined: onnx.FunctionProto = ir.to_proto(model.functions[identifier])
    used = {*_STANDARD, *(node.domain for node in _all_nodes(inlined.node))}
    imports = [i for i in inlined.opset_import if i.domain in used]
    del inlined.opset_import[:]
    inlined.opset_import.extend(imports)
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


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g.node)


def _model_of(functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    """A model that holds functions and nothing else."""
    model = onnx.ModelProto(ir_version=8, functions=functions, graph=onnx.GraphProto(name="empty"))
    domains = {f.domain: 1 for f in functions} | {i.domain: i.version for f in functions for i in f.opset_import}
    for domain, version in domains.items():
        model.opset_import.add(domain=domain, version=version)
    return model


def _first_lines(error: Exception) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:3] if line.strip()).rstrip(".") + "."


_KINDS = {"Tensor": "tensor", "int": "int", "float": "float", "bool": "bool", "str": "str", "number": "number"}
_KIND_OF: Mapping[type, str] = {int: "INT", float: "FLOAT", str: "STRING"}
UNKNOWN = "unknown"
"""Kind of an argument of an autograd function, whose type is known only when it is called."""


@dataclass(frozen=True)
class TorchSignature:
    """One way to call a torch op: what each argument holds, in order.

    Kinds are "tensor", "int", "float", "bool", "str", "number", UNKNOWN, or "" for what ONNX has no attribute for
    (a dtype, a device). A list has the kind of its elements.
    """

    name: str
    kinds: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    output_count: int = 1
    target: OpOverload | None = None

    @property
    def tensors(self) -> list[str]:
        """Names of the arguments that are tensors."""
        return [name for name, kind in self.kinds.items() if kind == "tensor"]

    def resolve(self, given: Mapping[str, object], is_value: Callable[[object], bool]) -> TorchSignature:
        """The signature of one call: an unknown argument is a tensor if its value is one of the graph, else a number."""
        known = {
            n: kind if kind != UNKNOWN else "tensor" if is_value(given[n]) else "number"
            for n, kind in self.kinds.items()
        }
        return replace(self, kinds=known)


@dataclass(frozen=True)
class ArgumentMap:
    """The arguments that become inputs, in order, and the source of each attribute, as the user declares them.

    None is the default: every tensor is an input, every other argument an attribute of the same name.
    """

    inputs: tuple[str, ...] | None
    attributes: Mapping[str, Any] | None

    def named(self) -> list[str]:
        """Every argument that the user has named."""
        from_attributes = [name for source in (self.attributes or {}).values() for name in _arguments_of(source)]
        return [*(self.inputs or ()), *from_attributes]

    def input_names(self, signature: TorchSignature) -> tuple[str, ...]:
        """Arguments that become inputs."""
        return self.inputs if self.inputs is not None else tuple(signature.tensors)

    def attribute_sources(self, signature: TorchSignature) -> Mapping[str, Any]:
        """Where each attribute of the node comes from."""
        if self.attributes is not None:
            return self.attributes
        inputs = self.input_names(signature)
        return {n: n for n, kind in signature.kinds.items() if kind not in ("tensor", "") and n not in inputs}

    def attributes_of(
        self, signature: TorchSignature, given: Mapping[str, object], read: Callable[[object], object]
    ) -> list[ir.Attr]:
        """The node's attributes: numbers, strings or lists of them; an argument that is None gives none.

        `read` turns an argument into a Python value, and raises an UnsupportedError if it is not constant.
        """
        attributes = []
        for name, source in self.attribute_sources(signature).items():
            arguments = _arguments_of(source)
            values = [_read_one(signature, a, given[a], read) for a in arguments]
            value: object = values[0] if isinstance(source, str) else values
            if not arguments:
                value = source.decode() if isinstance(source, bytes) else source
            if value is not None and all(v is not None for v in values):
                is_float = any(signature.kinds[a] == "float" for a in arguments)
                attributes.append(_as_attribute(name, value, is_float=is_float, where=signature.name))
        return attributes


def signatures_of(op: str) -> list[TorchSignature]:
    """The overloads of a torch op (`aten::add`, or one of them: `aten::add.Tensor`) that take and return tensors.

    Empty if torch does not know the op; a library that defines it may be loaded later.
    """
    kind, _, wanted = op.partition(".")
    namespace, _, name = kind.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
    except (AttributeError, RuntimeError):
        return []
    overloads = [getattr(packet, o) for o in packet.overloads() if wanted in ("", o)]
    return [s for s in map(_read_schema, overloads) if s is not None]


def signature_of_function(function: type[torch.autograd.Function]) -> TorchSignature:
    """The arguments of a torch.autograd.Function's forward, its context left out."""
    parameters = list(inspect.signature(function.forward).parameters.values())
    has_context = function.setup_context is torch.autograd.Function.setup_context
    parameters = parameters[1:] if has_context else parameters
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return TorchSignature(function.__name__, {p.name: UNKNOWN for p in parameters}, defaults)


def choose(op: str, signatures: Sequence[TorchSignature], count: int) -> TorchSignature:
    """The signature with this number of arguments."""
    for signature in signatures:
        if len(signature.kinds) == count:
            return signature
    known = listing(f"{s.name}({', '.join(s.kinds)})" for s in signatures) or "none"
    raise UnsupportedError(f"{op}: called with {count} arguments; the declaration knows {known}. Name the overload.")


def _read_schema(target: OpOverload) -> TorchSignature | None:
    schema = target._schema  # noqa: SLF001 - torch has no public reader of schemas
    kinds = {a.name: _kind(a) for a in schema.arguments}
    returns_others = any(str(r.type) != "Tensor" for r in schema.returns)
    if "tensor" not in kinds.values() or returns_others or any(a.is_out for a in schema.arguments):
        return None
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return TorchSignature(target.name(), kinds, defaults, len(schema.returns), target)


def _kind(argument: torch._C.Argument) -> str:
    text = str(argument.real_type)  # a dtype is an int in `type`
    for wrapper in ("Optional[", "List["):
        if text.startswith(wrapper):
            text = text[len(wrapper) : -1]
    return _KINDS.get(text, "")


def _arguments_of(source: object) -> list[str]:
    """The arguments an attribute is made of; none for a constant."""
    if isinstance(source, str):
        return [source]
    if isinstance(source, (list, tuple)) and source and all(isinstance(s, str) for s in source):
        return list(source)
    return []


def _read_one(signature: TorchSignature, argument: str, value: object, read: Callable[[object], object]) -> object:
    try:
        constant = read(value)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{signature.name}: argument {argument!r} is computed while the model runs, and an attribute must be "
            f"constant. Make it one of the inputs."
        ) from error
    return constant.tolist() if isinstance(constant, Tensor) else constant


def _as_attribute(name: str, value: object, *, is_float: bool, where: str) -> ir.Attr:
    """Make an attribute of a number, a string or a list of one kind; booleans become 0 and 1."""
    elements: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(e, (int, float, str)) for e in elements):
        raise UsageError(
            f"{where}: attribute {name!r} cannot be {value!r}. An attribute is a number, a string or a list of them."
        )
    kind = float if is_float else next((t for t in (float, str) if any(isinstance(e, t) for e in elements)), int)
    content: list[Any] = [kind(e) for e in elements]
    if isinstance(value, (list, tuple)):
        return ir.Attr(name, ir.AttributeType[f"{_KIND_OF[kind]}S"], content)
    return ir.Attr(name, ir.AttributeType[_KIND_OF[kind]], content[0])
