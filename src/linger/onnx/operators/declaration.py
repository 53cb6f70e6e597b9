# SPDX-License-Identifier: Apache-2.0
"""What a user declares about an operator: the torch op, the ONNX op, how arguments map, what it computes.

A declared operator in the forms of torch's two exporters: a symbolic function, and entries of a translation table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import onnx
import onnx_ir as ir
import onnxscript
import torch
from onnxscript import evaluator
from torch import Tensor
from torch._ops import OpOverload
from torch.onnx import symbolic_helper

from linger.dialect import DOMAIN
from linger.errors import UnsupportedError, UsageError, listing, refuse_if
from linger.onnx.operators.bodies import (
    UNKNOWN,
    ArgumentMap,
    Body,
    BodyLike,
    TorchSignature,
    choose,
    read_bodies,
    select,
    signature_of_function,
    signatures_of,
)

FIRST_OPSET = 9
"""The oldest opset torch's tracing exporter writes."""

Source = str | type[torch.autograd.Function]

_TARGET = re.compile(r"\A(?:(?P<domain>[A-Za-z][\w.\-]*)::)?(?P<name>[A-Za-z_]\w*)\Z")
_TORCH_OP = re.compile(r"\A\w+::\w+(\.\w+)?\Z")
_STANDARD = ("ai.onnx", "onnx")
_RESERVED = (DOMAIN, "aten", "prim")


@dataclass(frozen=True)
class _NodeCall:
    """A node to write. An input that is left out between others is None."""

    domain: str
    name: str
    inputs: list[Any]
    attributes: list[ir.Attr]


@dataclass(frozen=True)
class Declaration:
    """How a torch op becomes an ONNX op. `bodies` are kept by domain: a variant without some inputs has its own domain."""

    source: Source
    domain: str
    name: str
    arguments: ArgumentMap
    bodies: Mapping[str, Sequence[Body]]
    first_opset: int

    @property
    def to(self) -> str:
        """The ONNX op as the user writes it."""
        return f"{self.domain}::{self.name}" if self.domain else self.name

    @property
    def torch_name(self) -> str:
        """The torch op."""
        return self.source if isinstance(self.source, str) else self.source.__name__

    def signatures(self) -> list[TorchSignature]:
        """The ways to call the op in torch; looked up each time, because its library may be loaded later."""
        return signatures_of(self.source) if isinstance(self.source, str) else [signature_of_function(self.source)]

    def function(self, domain: str, opset: int) -> onnx.FunctionProto | None:
        """What a node of this domain computes in a model of this opset; None without a body."""
        return select(self.bodies[domain], opset).at(opset) if domain in self.bodies else None

    def output_count(self, signature: TorchSignature) -> int:
        """How many outputs the node has."""
        if isinstance(self.source, str) or not self.bodies:
            return signature.output_count
        return len(next(iter(self.bodies.values()))[0].function.output)

    def translate(
        self,
        signature: TorchSignature,
        given: Mapping[str, Any],
        *,
        read: Callable[[Any], Any],
        is_value: Callable[[Any], bool],
    ) -> _NodeCall:
        """The node for one call of the torch op; an UnsupportedError if the call cannot be written as this op.

        `given` has every argument by name, None for what is missing. `read` turns an argument into a Python value, and
        `is_value` tells a value of the graph from a constant.
        """
        signature = signature.resolve(given, is_value)
        names = self.arguments.input_names(signature)
        missing = [n for n in names if given[n] is None]
        domain = self._domain_without(missing)
        left_out = [] if domain == self.domain else missing
        inputs = [given[n] for n in names if n not in left_out]
        while inputs and inputs[-1] is None:
            inputs.pop()
        expected = len(self.bodies[domain][0].inputs) if domain in self.bodies else len(inputs)
        if expected != len(inputs):
            raise UnsupportedError(
                f"{self.to}: the body takes {expected} inputs, this call of {self.torch_name} has {len(inputs)}. "
                "Name them with inputs=[…]."
            )
        return _NodeCall(domain, self.name, inputs, self.arguments.attributes_of(signature, given, read))

    def _domain_without(self, missing: Sequence[str]) -> str:
        if not missing or not self.bodies:
            return self.domain
        domain = variant_domain(self.domain, missing)
        if domain not in self.bodies:
            raise UnsupportedError(
                f"{self.to}: {listing(missing)} of {self.torch_name} is None in this call, and every body needs it. "
                "Declare the operator with a further body that has no such input."
            )
        return domain


def declare(
    source: object, to: str, arguments: ArgumentMap, *, body: BodyLike | Sequence[BodyLike] | None, opset: int | None
) -> Declaration:
    """Read and check a declaration; refuse what does not fit together."""
    torch_op, (domain, name) = read_source(source), _read_target(to)
    bare = Declaration(torch_op, domain, name, arguments, {}, FIRST_OPSET)
    signature = _check_arguments(bare)
    bodies: dict[str, list[Body]] = {}
    for one in read_bodies(body, to):
        home = _home(bare, one, signature)
        bodies.setdefault(home, []).append(one.named(home, name))
    if domain:
        versions = [one.written_for or FIRST_OPSET for group in bodies.values() for one in group]
    else:
        history = onnx.defs.get_all_schemas_with_history()
        versions = [schema.since_version for schema in history if schema.name == name and schema.domain == ""]
    first = max(opset or FIRST_OPSET, min(versions, default=FIRST_OPSET))
    return Declaration(torch_op, domain, name, arguments, bodies, first)


def variant_domain(domain: str, missing: Sequence[str]) -> str:
    """The domain of the body without some inputs: an ONNX function has one signature."""
    return f"{domain}.without_{'_'.join(missing)}"


def read_source(source: object) -> Source:
    """The torch op a user means, as a name or as an autograd function."""
    if isinstance(source, type) and issubclass(source, torch.autograd.Function):
        return source
    # an overload has a method name(); packets of overloads and custom ops have private attributes
    method = getattr(source, "name", None)
    name = method() if callable(method) else getattr(source, "_qualified_op_name", getattr(source, "_qualname", source))
    if isinstance(name, str) and _TORCH_OP.match(name):
        return name
    kind = repr(source) if isinstance(source, str) else f"a {type(source).__name__}"
    raise UsageError(
        f"operator: {kind} is no torch op. Give a name like 'aten::asinh', an op of torch.ops, or a "
        "torch.autograd.Function; a plain function becomes an op with torch.library.custom_op."
    )


def _read_target(to: str) -> tuple[str, str]:
    match = _TARGET.match(to)
    if match is None:
        raise UsageError(
            f"operator: {to!r} is no ONNX op. Write 'Asinh' for a standard op, 'domain::name' for your own."
        )
    domain, name = match["domain"] or "", match["name"]
    domain = "" if domain in _STANDARD else domain
    refuse_if(domain in _RESERVED, f"operator {to}: the domain {domain!r} is taken. Choose one of your own.")
    refuse_if(
        not domain and not onnx.defs.has(name),
        f"operator: ONNX has no op {name!r}. Write 'domain::{name}' for an op of your own.",
    )
    return domain, name


def _check_arguments(declared: Declaration) -> TorchSignature | None:
    """The first signature with every argument that the user has named; None if torch does not know the op yet."""
    signatures, named = declared.signatures(), set(declared.arguments.named())
    if not signatures:
        refuse_if(
            declared.torch_name.startswith("aten::"),
            f"operator: torch has no op {declared.torch_name!r} that takes and returns tensors.",
        )
        return None
    fitting = next((s for s in signatures if named <= set(s.kinds)), None)
    if fitting is None:
        raise _no_such_argument(declared, signatures)
    if not declared.domain and UNKNOWN not in fitting.kinds.values():
        known = list(onnx.defs.get_schema(declared.name, "").attributes)
        strange = [n for n in declared.arguments.attribute_sources(fitting) if n not in known]
        refuse_if(
            strange,
            f"operator {declared.to}: ONNX's {declared.name} has no attribute {listing(strange)}, only "
            f"{listing(known) or 'none'}. Say with attributes={{…}} what each is made of.",
        )
    return fitting


def _no_such_argument(declared: Declaration, signatures: Sequence[TorchSignature]) -> UsageError:
    named = declared.arguments.named()
    somewhere = {name for signature in signatures for name in signature.kinds}
    unknown = [n for n in named if n not in somewhere] or named
    known = listing(f"{s.name}({', '.join(s.kinds)})" for s in signatures)
    return UsageError(f"operator {declared.to}: there is no argument {listing(unknown)}. The torch op is {known}.")


def _home(declared: Declaration, body: Body, signature: TorchSignature | None) -> str:
    """The domain of a body: the op's own, or that of a variant without some inputs."""
    to = declared.to
    refuse_if(
        not declared.domain,
        f"operator {to}: ONNX defines what {to} computes. A body belongs to an op of your own domain.",
    )
    if signature is None or (declared.arguments.inputs is None and UNKNOWN in signature.kinds.values()):
        return declared.domain
    given = declared.arguments.attribute_sources(signature)
    lacking = [a for a in body.required_attributes if a not in given]
    refuse_if(
        lacking,
        f"operator {to}: nothing gives the body's attribute {listing(lacking)}. Add it to attributes={{…}}, or "
        "give it a default in the body.",
    )
    names = declared.arguments.input_names(signature)
    return declared.domain if len(body.inputs) == len(names) else _variant(declared, body, names)


def _variant(declared: Declaration, body: Body, names: Sequence[str]) -> str:
    """The domain of a body that leaves some inputs out."""
    refuse_if(
        [n for n in names if n in body.inputs] != list(body.inputs),
        f"operator {declared.to}: the body takes ({', '.join(body.inputs)}), the node has ({', '.join(names)}). "
        "A body takes all inputs in order, or leaves some out and names the others as torch does.",
    )
    return variant_domain(declared.domain, [n for n in names if n not in body.inputs])


_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_ANY_TENSOR = [f"tensor({e})" for e in ("float", "double", "float16", "bfloat16", "bool", "string", *_INTEGERS)]


class GraphContext(Protocol):
    """What torch hands to a symbolic function: the graph that is being written, and the call that is translated."""

    opset: int
    graph: torch._C.Graph
    original_node: torch._C.Node

    def op(self, opname: str, *inputs: object, outputs: int = 1, **attributes: object) -> Any:
        """Write a node."""


class Symbolic:
    """The symbolic function of a declaration, called by the tracing exporter for every call of the torch op."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.opset: int | None = None
        """The opset of the export under way, or of the last one."""

    def __call__(self, g: GraphContext, *values: object, **_: object) -> object:
        """Write the node."""
        declaration, self.opset = self.declaration, g.opset
        signature = choose(declaration.torch_name, declaration.signatures(), len(values))
        nones = [v is None or (_is_value(v) and v.node().mustBeNone()) for v in values]
        given = {n: None if none else v for n, v, none in zip(signature.kinds, values, nones, strict=True)}
        call = declaration.translate(signature, given, read=_constant, is_value=_is_value)
        declaration.function(call.domain, g.opset)  # raises before anything is written if the body is wrong
        return _write(g, call, declaration.output_count(signature))


class Carrier:
    """An entry of torch's registry under the name of the ONNX op, from which torch takes the function for the file."""

    def __init__(self, symbolic: Symbolic, domain: str) -> None:
        self._symbolic, self._domain = symbolic, domain

    def __call__(self, *_: object, **__: object) -> object:
        """Nothing calls it: no torch op has this name."""
        raise UsageError(f"{self._symbolic.declaration.to} is an ONNX op; torch has no op of this name.")

    def to_function_proto(self) -> onnx.FunctionProto:
        """The body, fitted to the export under way."""
        symbolic = self._symbolic
        assert symbolic.opset is not None  # the node was written by the symbolic function
        function = symbolic.declaration.function(self._domain, symbolic.opset)
        assert function is not None  # a carrier exists only for a body
        return function


def table_entries(declaration: Declaration) -> dict[OpOverload, Callable[..., object]]:
    """The declaration for `custom_translation_table` of torch.onnx.export(dynamo=True), one entry per overload.

    An autograd function gives none: torch.export looks inside it and sees the ops it calls.
    """
    return {s.target: _translator(declaration, s) for s in declaration.signatures() if s.target is not None}


def _translator(declaration: Declaration, signature: TorchSignature) -> Callable[..., object]:
    def translate(*args: object, **kwargs: object) -> object:
        given = {**dict.fromkeys(signature.kinds), **signature.defaults}
        given |= {**dict(zip(signature.kinds, args, strict=False)), **kwargs}
        call = declaration.translate(signature, given, read=_known, is_value=_is_recorded)
        flat = [one for value in call.inputs for one in (value if isinstance(value, (list, tuple)) else [value])]
        attributes = {attribute.name: attribute for attribute in call.attributes}
        if not call.domain:
            recorder: Any = evaluator.default()  # torch's, which knows the opset of the export
            return getattr(recorder.opset, call.name)(*flat, **attributes)
        schema = _schema(call, len(flat), declaration.output_count(signature))
        node = onnxscript.values.Op(onnxscript.values.Opset(call.domain, 1), call.name, schema)
        return node(*flat, **attributes)

    translate.__name__ = declaration.name
    return translate


def _schema(call: _NodeCall, input_count: int, output_count: int) -> onnx.defs.OpSchema:
    """A schema for onnxscript's recorder: any tensors in, any tensors out, the attributes of this call."""
    parameter = onnx.defs.OpSchema.FormalParameter
    inputs = [parameter(f"input_{i}", f"I{i}") for i in range(input_count)]
    outputs = [parameter(f"output_{i}", f"O{i}") for i in range(output_count)]
    types = [(p.type_str, _ANY_TENSOR, "") for p in (*inputs, *outputs)]
    kinds = onnx.defs.OpSchema.AttrType
    attributes = [onnx.defs.OpSchema.Attribute(a.name, getattr(kinds, a.type.name)) for a in call.attributes]
    return onnx.defs.OpSchema(
        call.name, call.domain, 1, inputs=inputs, outputs=outputs, type_constraints=types, attributes=attributes
    )


def _known(value: object) -> object:
    if _is_recorded(value):
        raise UnsupportedError("not a constant")
    return value


def _is_recorded(value: object) -> bool:
    return hasattr(value, "producer")


def _is_value(value: object) -> TypeGuard[torch._C.Value]:
    return isinstance(value, torch._C.Value)  # noqa: SLF001 - the type of every value in a traced graph


def _constant(value: object) -> object:
    """The Python value behind a value of the traced graph."""
    if not _is_value(value):
        return value
    node = value.node()
    if node.mustBeNone():
        return None
    if node.kind() == "onnx::Constant":
        content = symbolic_helper._node_get(node, "value")  # noqa: SLF001 - torch offers no public reader
        return content.tolist() if isinstance(content, Tensor) else content
    if node.kind() == "prim::ListConstruct":
        return [_constant(element) for element in node.inputs()]
    raise UnsupportedError(f"{node.kind()} is not a constant")


def _write(g: GraphContext, call: _NodeCall, output_count: int) -> object:
    inputs = [one for value in call.inputs for one in _elements(g, value)]
    # torch wants the kind in the name: alpha_f, pads_i, mode_s
    attributes = {f"{a.name}_{a.type.name[0].lower()}": _content(a) for a in call.attributes}
    made = g.op(
        f"{call.domain}::{call.name}" if call.domain else call.name, *inputs, outputs=output_count, **attributes
    )
    if g.original_node is not None:
        _set_types(g, made if isinstance(made, (list, tuple)) else [made])
    return made


def _elements(g: GraphContext, value: object) -> list[object]:
    """The inputs of a node for one argument: an empty one, the tensors of a list, or the value."""
    if value is None:
        return [symbolic_helper._optional_input_placeholder_tensor(g)]  # noqa: SLF001 - the only way to leave one out
    if _is_value(value) and value.node().kind() == "prim::ListConstruct":
        return list(value.node().inputs())
    return [value]


def _content(attribute: ir.Attr) -> object:
    return list(attribute.value) if attribute.type.name.endswith("S") else attribute.value


def _set_types(g: GraphContext, outputs: Iterable[Any]) -> None:
    """Types and ranks as traced; sizes too where every input of the graph has a fixed size."""
    kinds = [kind for v in g.graph.inputs() if isinstance(kind := v.type(), torch.TensorType)]
    is_static = all(kind.sizes() is not None for kind in kinds)
    for output, original in zip(outputs, g.original_node.outputs(), strict=True):
        kind = original.type()
        sizes = kind.sizes() if isinstance(kind, torch.TensorType) else None
        if sizes is not None:
            # torch would write a size that is fixed here into every Reshape that reads it
            output.setType(kind if is_static else kind.with_sizes([None] * len(sizes)))
