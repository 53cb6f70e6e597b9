# SPDX-License-Identifier: Apache-2.0
"""What a user declares about an operator: the torch op, the ONNX op, how arguments map, what it computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import torch

from linger.dialect import DOMAIN
from linger.errors import UnsupportedError, UsageError, listing
from linger.onnx.operators.arguments import UNKNOWN, ArgumentMap, TorchSignature, signature_of_function, signatures_of
from linger.onnx.operators.bodies import Body, BodyLike, read_bodies, select

FIRST_OPSET = 9
"""The oldest opset torch's tracing exporter writes."""

Source = str | type[torch.autograd.Function]

_TARGET = re.compile(r"\A(?:(?P<domain>[A-Za-z][\w.\-]*)::)?(?P<name>[A-Za-z_]\w*)\Z")
_TORCH_OP = re.compile(r"\A\w+::\w+(\.\w+)?\Z")
_STANDARD = ("ai.onnx", "onnx")
_RESERVED = (DOMAIN, "aten", "prim")


@dataclass(frozen=True)
class NodeCall:
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
    ) -> NodeCall:
        """The node for one call of the torch op.

        Args:
            signature: How the op was called.
            given: Every argument by name; None for what is missing.
            read: Turns an argument into a Python value.
            is_value: Tells a value of the graph from a constant.

        Raises:
            UnsupportedError: The call cannot be written as this op.
        """
        signature = signature.resolve(given, is_value)
        names = self.arguments.input_names(signature)
        missing = [n for n in names if given[n] is None]
        domain = self._domain_without(missing)
        inputs = [given[n] for n in names if domain == self.domain or n not in missing]
        while inputs and inputs[-1] is None:
            inputs.pop()
        wanted = len(self.bodies[domain][0].inputs) if domain in self.bodies else len(inputs)
        if wanted != len(inputs):
            raise UnsupportedError(
                f"{self.to}: the body takes {wanted} inputs, this call of {self.torch_name} has {len(inputs)}. "
                "Name them with inputs=[…]."
            )
        return NodeCall(domain, self.name, inputs, self.arguments.attributes_of(signature, given, read))

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
    source: object,
    to: str,
    arguments: ArgumentMap,
    *,
    body: BodyLike | Sequence[BodyLike] | None,
    opset: int | None,
) -> Declaration:
    """Read and check a declaration.

    Raises:
        UsageError: Something does not fit together.
    """
    found, (domain, name) = read_source(source), _read_target(to)
    bare = Declaration(found, domain, name, arguments, {}, FIRST_OPSET)
    signature = _check_arguments(bare)
    bodies: dict[str, list[Body]] = {}
    for one in [] if body is None else read_bodies(body, to):
        home = _home(bare, one, signature)
        bodies.setdefault(home, []).append(one.named(home, name))
    first = max(opset or FIRST_OPSET, _first_opset(domain, name, [b for found in bodies.values() for b in found]))
    return Declaration(found, domain, name, arguments, bodies, first)


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
    if domain in _RESERVED:
        raise UsageError(f"operator {to}: the domain {domain!r} is taken. Choose one of your own.")
    if not domain and not onnx.defs.has(name):
        raise UsageError(f"operator: ONNX has no op {name!r}. Write 'domain::{name}' for an op of your own.")
    return domain, name


def _check_arguments(declared: Declaration) -> TorchSignature | None:
    """The first signature with every argument that the user has named; None if torch does not know the op yet."""
    signatures, named = declared.signatures(), set(declared.arguments.named())
    if not signatures:
        if declared.torch_name.startswith("aten::"):
            raise UsageError(f"operator: torch has no op {declared.torch_name!r} that takes and returns tensors.")
        return None
    fitting = next((s for s in signatures if named <= set(s.kinds)), None)
    if fitting is None:
        raise _no_such_argument(declared, signatures)
    if not declared.domain and UNKNOWN not in fitting.kinds.values():
        _check_standard(declared, fitting)
    return fitting


def _no_such_argument(declared: Declaration, signatures: Sequence[TorchSignature]) -> UsageError:
    named = declared.arguments.named()
    somewhere = {name for signature in signatures for name in signature.kinds}
    unknown = [n for n in named if n not in somewhere] or named
    known = listing(f"{s.name}({', '.join(s.kinds)})" for s in signatures)
    return UsageError(f"operator {declared.to}: there is no argument {listing(unknown)}. The torch op is {known}.")


def _check_standard(declared: Declaration, signature: TorchSignature) -> None:
    """Refuse attributes that ONNX does not define for a standard op."""
    known = list(onnx.defs.get_schema(declared.name, "").attributes)
    strange = [n for n in declared.arguments.attribute_sources(signature) if n not in known]
    if strange:
        raise UsageError(
            f"operator {declared.to}: ONNX's {declared.name} has no attribute {listing(strange)}, only "
            f"{listing(known) or 'none'}. Say with attributes={{…}} what each is made of."
        )


def _home(declared: Declaration, body: Body, signature: TorchSignature | None) -> str:
    """The domain of a body: the op's own, or that of a variant without some inputs."""
    to = declared.to
    if not declared.domain:
        raise UsageError(f"operator {to}: ONNX defines what {to} computes. A body belongs to an op of your own domain.")
    if signature is None or (declared.arguments.inputs is None and UNKNOWN in signature.kinds.values()):
        return declared.domain
    given = declared.arguments.attribute_sources(signature)
    lacking = [a for a in body.required_attributes if a not in given]
    if lacking:
        raise UsageError(
            f"operator {to}: nothing gives the body's attribute {listing(lacking)}. Add it to attributes={{…}}, or "
            "give it a default in the body."
        )
    names = declared.arguments.input_names(signature)
    return declared.domain if len(body.inputs) == len(names) else _variant(declared, body, names)


def _variant(declared: Declaration, body: Body, names: Sequence[str]) -> str:
    """The domain of a body that leaves some inputs out."""
    if [n for n in names if n in body.inputs] != list(body.inputs):
        raise UsageError(
            f"operator {declared.to}: the body takes ({', '.join(body.inputs)}), the node has ({', '.join(names)}). "
            "A body takes all inputs in order, or leaves some out and names the others as torch does."
        )
    return variant_domain(declared.domain, [n for n in names if n not in body.inputs])


def _first_opset(domain: str, name: str, bodies: Sequence[Body]) -> int:
    if not domain:
        history = onnx.defs.get_all_schemas_with_history()
        return int(min(s.since_version for s in history if s.name == name and s.domain == ""))
    return min((b.written_for or FIRST_OPSET for b in bodies), default=FIRST_OPSET)
