# SPDX-License-Identifier: Apache-2.0
"""linger.onnx.operator: one declaration binds a torch op to an ONNX op and says what the ONNX op computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import onnx
import onnx_ir as ir
import torch.onnx
from torch._ops import OpOverload

from linger.errors import refuse_if
from linger.graph.core.nodes import Changes, all_nodes, opset_of
from linger.graph.lowering.bodies import FUNCTION_IR_VERSION
from linger.onnx.operators.bodies import ArgumentMap, BodyLike, expand_functions
from linger.onnx.operators.declaration import FIRST_OPSET, Carrier, Declaration, Symbolic, declare, table_entries

_Translations = Mapping[int, Callable[..., Any]]
"""Symbolic functions by the opset from which they hold."""


@dataclass(frozen=True)
class _RegistrySlot:
    """The entry of one operator kind (`aten::asinh`) in the exporter's registry; a built-in translation is hidden."""

    kind: str

    def read(self) -> dict[int, Callable[..., Any]] | None:
        """The translations that were registered by hand; None if the registry has no entry."""
        group = _registry().get_function_group(self.kind)
        if group is None:
            return None
        functions = group._functions  # noqa: SLF001 - torch can register and unregister, but not tell
        return {opset: functions[opset] for opset in functions if functions.overridden(opset)}

    def write(self, content: _Translations) -> None:
        """Register each translation for its opset."""
        for opset, function in content.items():
            # the public function refuses names with a dot, which ONNX domains may have
            _registry().register(self.kind, opset, function, custom=True)

    def clear(self, content: _Translations, before: _Translations | None) -> None:
        """Unregister the translations; those that were registered by others in the meantime stay."""
        present = self.read() or {}
        freed = [opset for opset, function in content.items() if present.get(opset) is function]
        for opset in freed:
            _registry().unregister(self.kind, opset)
        self.write({opset: function for opset, function in (before or {}).items() if opset in freed})
        group = _registry().get_function_group(self.kind)
        if group is not None and not group._functions:  # noqa: SLF001
            # torch keeps an entry without functions, and a later export fails on it: "min() arg is an empty sequence"
            del _registry()._registry[self.kind]  # noqa: SLF001


@dataclass(frozen=True)
class _SymbolicSlot:
    """The method `symbolic` of a torch.autograd.Function, which the tracing exporter calls."""

    function: type[torch.autograd.Function]

    def read(self) -> object:
        """The method of the class itself, None if it has none."""
        return vars(self.function).get("symbolic")

    def write(self, content: object) -> None:
        """Give the class a method `symbolic`."""
        setattr(self.function, "symbolic", content)  # noqa: B010 - not every Function has one

    def clear(self, content: staticmethod[..., object], before: object) -> None:
        """Give the class its own method back."""
        if self.read() is content:
            if before is None:
                delattr(self.function, "symbolic")
            else:
                self.write(before)
        # while it exports, torch also puts the method under this name and leaves it there
        copied = _RegistrySlot(f"::{self.function.__name__}")
        ours = {opset: symbolic for opset, symbolic in (copied.read() or {}).items() if symbolic is content.__func__}
        if ours:
            copied.clear(ours, None)


_Slot = _RegistrySlot | _SymbolicSlot
"""What a declaration takes for a while."""


class _SlotOwners:
    """The owners of every slot: the newest fills it, then the one before; after the last, the slot is as it was first."""

    def __init__(self) -> None:
        self._before: dict[_Slot, Any] = {}
        self._held: dict[_Slot, list[tuple[object, Any]]] = {}

    def take(self, slot: _Slot, owner: object, content: Any) -> None:
        """Fill a slot, before its other owners."""
        held = self._held.setdefault(slot, [])
        if held:
            slot.clear(held[-1][1], self._before[slot])
        else:
            self._before[slot] = slot.read()
        held.append((owner, content))
        slot.write(content)

    def release(self, slot: _Slot, owner: object) -> None:
        """Give a slot up; if this owner filled it, the one before fills it again."""
        held = self._held.get(slot, [])
        index = next((i for i, (holder, _) in enumerate(held) if holder is owner), None)
        if index is None:
            return
        _, content = held.pop(index)
        if index == len(held):
            slot.clear(content, self._before[slot])
            if held:
                slot.write(held[-1][1])
        if not held:
            del self._held[slot], self._before[slot]


def _registry() -> Any:
    return torch.onnx.utils.registration.registry  # type: ignore[attr-defined]  # loosely typed by torch


# the declared operators: global, because torch's registry, which they are entered in, is global
_owners = _SlotOwners()
_registered: list[Operator] = []


def operator(
    source: object,
    *,
    to: str,
    inputs: Sequence[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    body: BodyLike | Sequence[BodyLike] | None = None,
    opset: int | None = None,
) -> Operator:
    """Declare how a torch op is exported; it holds until `unregister()`, or to the end of a `with` block.

    The newest declaration of a torch op is used, rather than an earlier one, a symbolic function registered by hand or torch's
    own translation. When it ends, the one before is used again.

    Args:
        source: The torch op: its name (`"aten::asinh"`, `"mylib::foo"`, one overload: `"aten::add.Tensor"`), the op
            itself (of `torch.ops`, or from `torch.library.custom_op`), or a `torch.autograd.Function`.
        to: The ONNX op: `"Asinh"` of the standard domain, or `"domain::name"`.
        inputs: Arguments of the torch op that become inputs, in the node's order. None: every tensor.
        attributes: What each attribute is made of: the name of an argument, a list of names (a list attribute), or a
            constant (a number, a list of numbers, a string as bytes). None: every other argument, under its name.
            An argument that is None gives no attribute.
        body: What the ONNX op computes, as a function in ONNX text, an onnxscript function or a FunctionProto; it takes
            the inputs in order. There may be several: for different opsets, and without some of the inputs (left out
            by name) for calls in which these are None.
        opset: The first opset the declaration holds for. None: the first at which the ONNX op or a body exists.

    Raises:
        UsageError: Something does not fit together.
    """
    arguments = ArgumentMap(None if inputs is None else tuple(inputs), attributes)
    return Operator(declare(source, to, arguments, body=body, opset=opset))


class Operator:
    """A declaration in use. Made by `linger.onnx.operator`."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration: Declaration = declaration
        for other in (held.declaration for held in _registered if held.declaration.to == declaration.to):
            refuse_if(
                other.source != declaration.source and other.bodies != declaration.bodies,
                f"operator {declaration.to}: {other.torch_name} is declared as {other.to} with another body. "
                "Choose another name, or unregister that declaration first.",
            )
        self._slots = _slots(declaration)
        for slot, content in self._slots.items():
            _owners.take(slot, self, content)
        _registered.append(self)

    @property
    def is_registered(self) -> bool:
        """Whether the declaration still holds."""
        return self in _registered

    def unregister(self) -> None:
        """End the declaration; harmless when it has ended."""
        if self.is_registered:
            _registered.remove(self)
            for slot in self._slots:
                _owners.release(slot, self)

    def __enter__(self) -> Operator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unregister()

    def __repr__(self) -> str:
        declared = self.declaration
        body = "with a body" if declared.bodies else "without a body"
        return f"<operator {declared.torch_name} → {declared.to}, {body}{'' if self.is_registered else ', ended'}>"


def translation_table() -> dict[OpOverload, Callable[..., object]]:
    """Every declaration that holds, for `custom_translation_table` of torch.onnx.export(dynamo=True)."""
    return {target: entry for held in _registered for target, entry in table_entries(held.declaration).items()}


def attach_bodies(model: ir.Model, *, form: str = "dialect") -> Changes:
    """Give every node of a declared operator what the form wants; a model without such nodes stays as it is.

    Leaves, for "dialect": a function for each of these nodes, with the model's opset. "bare": no such function.
    "standard" and "qdq": the nodes of the functions in place of the calls. Functions of others are not touched.

    Raises:
        UsageError: A body does not fit the model's opset.
    """
    changes = Changes()
    if not any(held.declaration.bodies for held in _registered):
        return changes
    attached = _attach(model, changes)
    if not attached:
        return changes
    if form == "dialect":
        model.ir_version = max(model.ir_version, FUNCTION_IR_VERSION)
        return changes
    if form != "bare":
        expand_functions(model, lambda function: function.identifier() in attached)
    for identifier in attached:
        model.functions.pop(identifier, None)
        changes.note("::".join(identifier[:2]), "function left out" if form == "bare" else "expanded in place")
    if form != "bare":
        _drop_unused_domains(model, {domain for domain, _, _ in attached})
    return changes


def _drop_unused_domains(model: ir.Model, domains: set[str]) -> None:
    parts: list[ir.Model | ir.Function] = [model, *model.functions.values()]
    for domain in domains - {node.domain for part in parts for node in all_nodes(part)}:
        model.graph.opset_imports.pop(domain, None)


def with_bodies(content: bytes, *, form: str = "dialect") -> bytes:
    """`attach_bodies` on the content of a file; the same bytes where there is nothing to do."""
    if not any(held.declaration.bodies for held in _registered):
        return content
    model = ir.from_proto(onnx.load_from_string(content))
    return ir.to_proto(model).SerializeToString() if attach_bodies(model, form=form) else content


def _attach(model: ir.Model, changes: Changes) -> set[ir.OperatorIdentifier]:
    """Attach the function of every declared node in use, and of those inside these functions."""
    attached: set[ir.OperatorIdentifier] = set()
    waiting = list(dict.fromkeys(node.op_identifier() for node in all_nodes(model) if node.domain))
    while waiting:
        identifier = waiting.pop()
        proto = None if identifier in attached else _function_of(identifier, opset_of(model))
        if proto is not None:
            function = ir.serde.deserialize_function(proto)
            model.functions[identifier] = function
            model.graph.opset_imports.setdefault(function.domain, 1)
            attached.add(identifier)
            waiting += [node.op_identifier() for node in all_nodes(function)]
            changes.note("::".join(identifier[:2]), "runs as a function of the file")
    return attached


def _function_of(identifier: ir.OperatorIdentifier, opset: int) -> onnx.FunctionProto | None:
    domain, name, _ = identifier
    for held in reversed(_registered):
        if held.declaration.name == name and domain in held.declaration.bodies:
            return held.declaration.function(domain, opset)
    return None


def _slots(declaration: Declaration) -> dict[_Slot, Any]:
    """The slots of a declaration: the symbolic function of the torch op, and the function of the file under the ONNX op's name."""
    symbolic = Symbolic(declaration)
    slots: dict[_Slot, Any] = {
        # opsets of a custom domain are small numbers; torch takes the entry with the nearest one
        _RegistrySlot(f"{domain}::{declaration.name}"): dict.fromkeys(range(1, FIRST_OPSET), Carrier(symbolic, domain))
        for domain in declaration.bodies
    }
    if isinstance(declaration.source, type):
        return {**slots, _SymbolicSlot(declaration.source): staticmethod(symbolic)}
    slot = _RegistrySlot(declaration.source.partition(".")[0])
    opsets = range(declaration.first_opset, onnx.defs.onnx_opset_version() + 1)
    return {**slots, slot: {**slots.get(slot, {}), **dict.fromkeys(opsets, symbolic)}}
