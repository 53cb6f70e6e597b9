# SPDX-License-Identifier: Apache-2.0
"""The slots in which torch's tracing exporter looks for translations: taken for a while, and left as they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch.onnx

Translations = Mapping[int, Callable[..., Any]]
"""Symbolic functions by the opset from which they hold."""


class Slot(Protocol):
    """An entry of torch's registry, or a method of a user's class, that a declaration takes for a while."""

    def read(self) -> object:
        """What stands there now."""

    def write(self, content: Any) -> None:
        """Put something there."""

    def clear(self, content: Any, before: Any) -> None:
        """Remove `content` if it is still there, and put back what was there before."""


@dataclass(frozen=True)
class RegistrySlot:
    """The entry of one operator kind (`aten::asinh`) in the exporter's registry; a built-in translation is hidden."""

    kind: str

    def read(self) -> dict[int, Callable[..., Any]] | None:
        """The translations that were registered by hand; None if the registry has no entry."""
        group = _registry().get_function_group(self.kind)
        if group is None:
            return None
        functions = group._functions  # noqa: SLF001 - torch can register and unregister, but not tell
        return {opset: functions[opset] for opset in functions if functions.overridden(opset)}

    def write(self, content: Translations) -> None:
        """Register each translation for its opset."""
        for opset, function in content.items():
            # the public function refuses names with a dot, which ONNX domains may have
            _registry().register(self.kind, opset, function, custom=True)

    def clear(self, content: Translations, before: Translations | None) -> None:
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
class SymbolicSlot:
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
        copied = RegistrySlot(f"::{self.function.__name__}")
        ours = {opset: found for opset, found in (copied.read() or {}).items() if found is content.__func__}
        if ours:
            copied.clear(ours, None)


class SlotOwners:
    """The owners of every slot: the newest fills it, then the one before; after the last, the slot is as it was first."""

    def __init__(self) -> None:
        self._before: dict[Slot, Any] = {}
        self._held: dict[Slot, list[tuple[object, Any]]] = {}

    def take(self, slot: Slot, owner: object, content: object) -> None:
        """Fill a slot, before its other owners."""
        held = self._held.setdefault(slot, [])
        if held:
            slot.clear(held[-1][1], self._before[slot])
        else:
            self._before[slot] = slot.read()
        held.append((owner, content))
        slot.write(content)

    def release(self, slot: Slot, owner: object) -> None:
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
