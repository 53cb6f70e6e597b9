# SPDX-License-Identifier: Apache-2.0
"""The places where torch's tracing exporter looks for translations: occupied for a while, left as they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch.onnx

Translations = Mapping[int, Callable[..., Any]]
"""Symbolic functions by the opset they hold from."""


class Place(Protocol):
    """Something of torch or of the user that a declaration occupies for a while."""

    def read(self) -> Any:
        """What stands there now."""

    def write(self, content: Any) -> None:
        """Put something there."""

    def clear(self, content: Any, before: Any) -> None:
        """Take `content` away where it still stands, and bring back what was there before."""


@dataclass(frozen=True)
class RegistryPlace:
    """The entry of one operator kind (`aten::asinh`) in the exporter's registry; a built-in translation is hidden."""

    kind: str

    def read(self) -> dict[int, Callable[..., Any]] | None:
        """Translations registered by hand; None if the registry has no entry at all."""
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
        """Unregister; where somebody else has registered in the meantime, that stays."""
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
class SymbolicMethod:
    """The method `symbolic` of a torch.autograd.Function, which the tracing exporter calls."""

    function: type[torch.autograd.Function]

    def read(self) -> Any:
        """The method of the class itself, None if it has none."""
        return vars(self.function).get("symbolic")

    def write(self, content: Any) -> None:
        """Give the class a method `symbolic`."""
        setattr(self.function, "symbolic", content)  # noqa: B010 - not every Function has one

    def clear(self, content: Any, before: Any) -> None:
        """Give the class its own method back."""
        if self.read() is content:
            if before is None:
                delattr(self.function, "symbolic")
            else:
                self.write(before)
        # while it exports, torch also puts the method under this name and leaves it there
        copied = RegistryPlace(f"::{self.function.__name__}")
        ours = {opset: found for opset, found in (copied.read() or {}).items() if found is content.__func__}
        if ours:
            copied.clear(ours, None)


class Claims:
    """Who occupies a place: the newest claim that is still held; what stood there first comes back last."""

    def __init__(self) -> None:
        self._before: dict[Place, Any] = {}
        self._held: dict[Place, list[tuple[object, Any]]] = {}

    def take(self, place: Place, owner: object, content: Any) -> None:
        """Occupy a place in front of everybody who holds it."""
        held = self._held.setdefault(place, [])
        if held:
            place.clear(held[-1][1], self._before[place])
        else:
            self._before[place] = place.read()
        held.append((owner, content))
        place.write(content)

    def release(self, place: Place, owner: object) -> None:
        """Give a place up; the one before gets it back if the owner was in front."""
        held = self._held.get(place, [])
        index = next((i for i, (holder, _) in enumerate(held) if holder is owner), None)
        if index is None:
            return
        _, content = held.pop(index)
        if index == len(held):
            place.clear(content, self._before[place])
            if held:
                place.write(held[-1][1])
        if not held:
            del self._held[place], self._before[place]


def _registry() -> Any:
    return torch.onnx.utils.registration.registry  # type: ignore[attr-defined]  # loosely typed by torch
