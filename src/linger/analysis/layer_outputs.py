# SPDX-License-Identifier: Apache-2.0
"""The outputs of the layers of a model: hooks on its leaves, and statistics per call, gathered over forward passes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.utils.hooks import RemovableHandle

from linger.analysis.accumulated import Accumulated
from linger.analysis.batches import float_tensors, tensors_of
from linger.analysis.result import LONG_HEADER, Analysis, Row
from linger.analysis.values import TensorValues, dtype_text, shape_text
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

    A leaf has no parts, or counts as one layer with them: by `is_whole`, and torch's attention. Helpers are no parts:
    those of `is_helper`, and parametrizations. Scripted modules take no hooks, so none of them is a leaf.
    """
    found: dict[str, nn.Module] = {}
    closed = ""  # how the names begin that are skipped; a parent comes before its parts
    for path, module in model.named_modules(remove_duplicate=False):
        name = root_name(path)
        if closed and name.startswith(closed):
            continue
        is_skipped = is_helper(module) or isinstance(module, (ParametrizationList, torch.jit.ScriptModule))
        is_leaf = not is_skipped and _is_leaf(module, is_whole, is_helper)
        closed = f"{name}." if is_skipped or is_leaf else ""
        if is_leaf and not isinstance(module, _LISTS):
            found[name] = module
    return found


def _is_leaf(module: nn.Module, is_whole: Predicate, is_helper: Predicate) -> bool:
    parametrizations = module.parametrizations if is_parametrized(module) else None
    parts = [child for child in module.children() if child is not parametrizations and not is_helper(child)]
    return not parts or is_whole(module) or isinstance(module, nn.MultiheadAttention)


def compiled_pattern(method: str, match_pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """The regular expression that a call was given.

    Raises:
        UsageError: It is not a regular expression.
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


def no_match(pattern: re.Pattern[str], names: Collection[str]) -> str:
    """The sentence for a pattern that fits none of the names."""
    return (
        f"match_pattern={pattern.pattern!r} matches none of the {len(names)} layers, which are called "
        f"{listing(names, limit=_NAMES_SHOWN)}. A pattern has to fit the beginning of a name."
    )


def main_output(module: nn.Module, output: object) -> object:
    """What a layer computes for others: of an RNN the sequence of outputs without the last state, else everything."""
    return output[0] if isinstance(module, nn.RNNBase) and isinstance(output, tuple) else output


def measured_tensors(module: nn.Module, output: object) -> list[Tensor]:
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


def _nothing(*_: object) -> None:
    """Replaces a hook in a copy of the model."""


class Hook:
    """A hook that is not copied or saved with its model: in the copy it does nothing."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> None:
        """Call the function; interceptors of torch functions do not see what it does."""
        with torch._C.DisableTorchFunction(), torch.no_grad():  # noqa: SLF001 - torch has no public name for it
            self._function(*arguments)

    def __reduce__(self) -> tuple[type[Hook], tuple[Callable[..., None]]]:
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

    def _begin(self, *_: object) -> None:
        if self._depth == 0:
            self._counts.clear()
        self._depth += 1

    def _end(self, *_: object) -> None:
        self._depth = max(self._depth - 1, 0)

    def number(self, name: str) -> int:
        """Which call of this layer in the pass this is, from 0."""
        self._counts[name] += 1
        return self._counts[name] - 1


@dataclass
class _Entry:
    """What becomes one row: a layer's n-th call in a pass. Shape and type are those of the first pass."""

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
        self, number: int, name: str, calls: Calls, is_counted: Callable[[], bool], module: nn.Module, *rest: object
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
            types = ", ".join(dict.fromkeys(dtype_text(t.dtype) for t in tensors))
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
