# SPDX-License-Identifier: Apache-2.0
"""The arguments of a torch op: which become inputs of the ONNX node, and which become attributes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch._ops import OpOverload

from linger.errors import UnsupportedError, UsageError, listing

_KINDS = {"Tensor": "tensor", "int": "int", "float": "float", "bool": "bool", "str": "str", "number": "number"}
_KIND_OF: dict[type, tuple[str, Callable[[Any], Any]]] = {
    int: ("INT", int),
    float: ("FLOAT", float),
    str: ("STRING", str),
}
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

        Args:
            signature: How the op was called.
            given: Every argument by name.
            read: Turns an argument into a Python value; raises UnsupportedError if it is not constant.
        """
        found = []
        for name, source in self.attribute_sources(signature).items():
            arguments = _arguments_of(source)
            values = [_read_one(signature, a, given[a], read) for a in arguments]
            value = _literal(source) if not arguments else values[0] if isinstance(source, str) else values
            if value is not None and all(v is not None for v in values):
                is_float = any(signature.kinds[a] == "float" for a in arguments)
                found.append(_as_attribute(name, value, is_float=is_float, where=signature.name))
        return found


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
    overloads = {o: getattr(packet, o) for o in packet.overloads() if not wanted or o == wanted}
    found = [_read_schema(op if wanted else _full_name(kind, o), target) for o, target in overloads.items()]
    return [s for s in found if s is not None]


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


def _read_schema(name: str, target: OpOverload) -> TorchSignature | None:
    schema = target._schema  # noqa: SLF001 - torch has no public reader of schemas
    takes_tensors = any(_kind(a) == "tensor" for a in schema.arguments)
    if (
        not takes_tensors
        or any(a.is_out for a in schema.arguments)
        or any(str(r.type) != "Tensor" for r in schema.returns)
    ):
        return None
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return TorchSignature(name, {a.name: _kind(a) for a in schema.arguments}, defaults, len(schema.returns), target)


def _kind(argument: torch._C.Argument) -> str:
    text = str(argument.real_type)  # a dtype is an int in `type`
    for wrapper in ("Optional[", "List["):
        if text.startswith(wrapper):
            text = text[len(wrapper) : -1]
    return _KINDS.get(text, "")


def _full_name(kind: str, overload: str) -> str:
    return kind if overload == "default" else f"{kind}.{overload}"


def _arguments_of(source: object) -> list[str]:
    """The arguments an attribute is made of; none for a constant."""
    if isinstance(source, str):
        return [source]
    if isinstance(source, (list, tuple)) and source and all(isinstance(s, str) for s in source):
        return list(source)
    return []


def _literal(source: object) -> object:
    return source.decode() if isinstance(source, bytes) else source


def _read_one(signature: TorchSignature, argument: str, value: object, read: Callable[[object], object]) -> object:
    try:
        found = read(value)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{signature.name}: argument {argument!r} is computed while the model runs, and an attribute must be "
            f"constant. Make it one of the inputs."
        ) from error
    return found.tolist() if isinstance(found, Tensor) else found


def _as_attribute(name: str, value: object, *, is_float: bool, where: str) -> ir.Attr:
    """Make an attribute of a number, a string or a list of one kind; booleans become 0 and 1."""
    elements = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(e, (int, float, str)) for e in elements):
        raise UsageError(
            f"{where}: attribute {name!r} cannot be {value!r}. An attribute is a number, a string or a list of them."
        )
    kind, convert = _KIND_OF[next((t for t in (float, str) if any(isinstance(e, t) for e in elements)), int)]
    if is_float:
        kind, convert = _KIND_OF[float]
    content = [convert(e) for e in elements]
    if isinstance(value, (list, tuple)):
        return ir.Attr(name, ir.AttributeType[f"{kind}S"], content)
    return ir.Attr(name, ir.AttributeType[kind], content[0])
