# SPDX-License-Identifier: Apache-2.0
"""What the layers of a model put out: hooks on the leaves, statistics per call, gathered over forward passes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.utils.hooks import RemovableHandle

from linger.analysis.accumulated import Accumulated
from linger.analysis.batches import float_tensors, tensors_of
from linger.analysis.result import LONG_HEADER, Analysis, Row
from linger.analysis.values import TensorValues, shape_text
from linger.errors import UsageError, listing

ROOT = "root"
"""Name of the model itself; its layers are `root.<path>`."""

TITLE = "layer outputs"

Predicate = Callable[[nn.Module], bool]
ToReal = Callable[[nn.Module, Tensor], Tensor]
"""The real values of a tensor that a layer has returned."""

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that hold others and are never called."""

_NAMES_SHOWN = 6


def root_name(path: str) -> str:
    """`root.<path>`.

    >>> root_name("layer1.0.conv1"), root_name("")
    ('root.layer1.0.conv1', 'root')
    """
    return f"{ROOT}.{path}" if path else ROOT


def leaf_layers(model: nn.Module, *, is_whole: Predicate, is_helper: Predicate) -> dict[str, nn.Module]:
    """The layers that a model consists of, by `root.<path>`; a shared one has several names.

    A leaf has no parts, or `is_whole` says that its parts are its own business (so it is with torch's attention and with
    the parts of a parametrisation). `is_helper` names parts that are no layers. Scripted parts take no hooks, so none of
    them is a leaf.
    """
    found: dict[str, nn.Module] = {}
    closed: str | None = None  # the path whose inside is skipped; a parent comes before its parts
    for path, module in model.named_modules(remove_duplicate=False):
        if closed is not None and (not closed or path.startswith(f"{closed}.")):
            continue
        closed = None
        if is_helper(module) or isinstance(module, (ParametrizationList, torch.jit.ScriptModule)):
            closed = path
        elif is_whole(module) or isinstance(module, nn.MultiheadAttention) or not _has_parts(module, is_helper):
            closed = path
            if not isinstance(module, _LISTS):
                found[root_name(path)] = module
    return found


def _has_parts(module: nn.Module, is_helper: Predicate) -> bool:
    parametrizations = module.parametrizations if is_parametrized(module) else None
    return any(child is not parametrizations and not is_helper(child) for child in module.children())


def compiled_pattern(method: str, match_pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """The regular expression of a call.

    Raises:
        UsageError: It is none.
    """
    try:
        return re.compile(match_pattern)
    except (re.error, TypeError) as error:
        raise UsageError(
            f"{method}: match_pattern={match_pattern!r} is no regular expression ({error}). "
            "Give one that fits names such as 'root.layer1.0.conv1'; '.*' fits all."
        ) from error


def matching_layers(method: str, layers: Mapping[str, nn.Module], pattern: re.Pattern[str]) -> dict[nn.Module, str]:
    """The layers whose name fits from its start; a shared one under its first name that does.

    Raises:
        UsageError: There is none.
    """
    found: dict[nn.Module, str] = {}
    for name, module in layers.items():
        if pattern.match(name):
            found.setdefault(module, name)
    if not found:
        raise UsageError(f"{method}: {no_match(pattern, layers)}")
    return found


def no_match(pattern: re.Pattern[str], names: Mapping[str, Any]) -> str:
    """The sentence for a pattern that fits none of the names."""
    return (
        f"match_pattern={pattern.pattern!r} matches none of the {len(names)} layers, which are called "
        f"{listing(names, limit=_NAMES_SHOWN)}. A pattern has to fit the beginning of a name."
    )


def main_output(module: nn.Module, output: Any) -> Any:
    """What a layer is there for: of an RNN the sequence of outputs without the last state, else everything."""
    return output[0] if isinstance(module, nn.RNNBase) and isinstance(output, tuple) else output


def measured_tensors(module: nn.Module, output: Any) -> list[Tensor]:
    """The tensors whose values make a layer's row: its float ones, or all if none is float."""
    main = main_output(module, output)
    return float_tensors(main) or list(tensors_of(main))


def joined(tensors: list[Tensor]) -> Tensor:
    """Tensors as one: the first one itself, or all of their numbers in a row."""
    if len(tensors) == 1:
        return tensors[0]
    dense = [t if t.layout is torch.strided else t.to_dense() for t in tensors]
    common = reduce(torch.promote_types, (t.dtype for t in dense))
    return torch.cat([t.cpu().reshape(-1).to(common) for t in dense])


def is_without_values() -> bool:
    """Whether a pass only records what would be computed: torch.jit.trace, an export, a compilation."""
    return torch.jit.is_tracing() or torch.compiler.is_compiling()  # type: ignore[attr-defined]  # torch documents it


def _nothing(*_: Any) -> None:
    """Stands for a hook in a copy of the model."""


class Hook:
    """A hook that stays behind when its model is copied or saved: in the copy it does nothing."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> None:
        """Hand the call on, hidden from whoever intercepts torch functions."""
        with torch._C.DisableTorchFunction(), torch.no_grad():  # noqa: SLF001 - torch has no public name for it
            self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (_nothing,)


class Calls:
    """How often each layer was called in the present forward pass of a model.

    A pass begins with the outermost call of the model; calls of its parts from outside belong to the pass before them.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._counts: Counter[str] = Counter()

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        """Hooks that see a pass begin and end, also by an exception."""
        return [
            model.register_forward_pre_hook(Hook(self._begin)),
            model.register_forward_hook(Hook(self._end), always_call=True),
        ]

    def _begin(self, *_: Any) -> None:
        if self._depth == 0:
            self._counts.clear()
        self._depth += 1

    def _end(self, *_: Any) -> None:
        self._depth = max(self._depth - 1, 0)

    def number(self, name: str) -> int:
        """Which call of this layer in the pass this is, from 0."""
        self._counts[name] += 1
        return self._counts[name] - 1


@dataclass
class _Entry:
    """One row to be: a layer's n-th call in a pass. Shape and type are those of the first pass."""

    name: str
    call: int
    shape: str
    dtype: str
    values: Accumulated = field(default_factory=Accumulated)

    def row(self) -> Row:
        return Row.of(self.name, self.values.result(), shape=self.shape, dtype=self.dtype, call=self.call)


class LayerOutputs:
    """Rows of statistics that grow with every forward pass of the models watched.

    A row per call of a layer within a pass, in the order of their first calls. Nothing of a tensor is kept but its
    statistics; see `linger.analysis.accumulated` for what is exact.
    """

    def __init__(self, to_real: ToReal) -> None:
        self._to_real = to_real
        self._entries: dict[tuple[int, str, int], _Entry] = {}
        self._watched: list[list[str]] = []
        self._called: set[tuple[int, str]] = set()

    @property
    def is_watching(self) -> bool:
        """Whether any model was ever watched."""
        return bool(self._watched)

    @property
    def has_run(self) -> bool:
        """Whether a watched layer was called."""
        return bool(self._called)

    def watch(
        self, model: nn.Module, layers: Mapping[nn.Module, str], *, is_counted: Callable[[], bool]
    ) -> list[RemovableHandle]:
        """Hook the layers of a model; `is_counted` is asked at every call."""
        number, calls = len(self._watched), Calls()
        self._watched.append(list(layers.values()))
        handles = calls.watch(model)
        for layer, name in layers.items():
            see = Hook(partial(self._see, number, name, calls, is_counted))
            handles.append(layer.register_forward_hook(see))
        return handles

    def _see(
        self, number: int, name: str, calls: Calls, is_counted: Callable[[], bool], module: nn.Module, *rest: Any
    ) -> None:
        if is_without_values() or not is_counted():
            return
        call = calls.number(name)
        self._called.add((number, name))
        tensors = [self._to_real(module, t) for t in measured_tensors(module, rest[-1])]
        if not tensors:
            return
        key = (number, name, call)
        if key not in self._entries:
            shapes = ", ".join(shape_text(tuple(t.shape)) for t in tensors)
            types = ", ".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors))
            self._entries[key] = _Entry(name, call, shapes, types)
        self._entries[key].values.add(TensorValues(joined(tensors)))

    @property
    def result(self) -> Analysis:
        """The rows so far."""
        return Analysis(tuple(entry.row() for entry in self._entries.values()), LONG_HEADER, TITLE)

    @property
    def silent(self) -> list[str]:
        """Layers that were called and returned no tensor."""
        with_row = {key[:2] for key in self._entries}
        return [name for number, name in self._names() if (number, name) in self._called - with_row]

    @property
    def never_called(self) -> list[str]:
        """Layers that no pass has called."""
        return [name for number, name in self._names() if (number, name) not in self._called]

    def _names(self) -> Iterator[tuple[int, str]]:
        return ((number, name) for number, names in enumerate(self._watched) for name in names)
