# SPDX-License-Identifier: Apache-2.0
"""A network: a file or a model in memory, loaded, checked, brought to normal form, typed and sized at most once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, Union

import onnx
import onnx_ir as ir

from linger.analysis.multiplications import product_of
from linger.errors import LingerError, UsageError
from linger.files import is_unchanged
from linger.graph.conversion.convert import convert_nodes
from linger.graph.core.dialects import NEWER, OLDER, has_nodes_of
from linger.graph.core.nodes import defined_in, required_inputs
from linger.graph.files.model_io import Content, ModelLike, copied, external_tensors, read_model, require_sound
from linger.graph.files.soundness import LISTED, refuse
from linger.graph.formats.propagation import Propagation, propagate
from linger.graph.lowering.bodies import Tensors, bring_to_normal_form, declared_tensors, known_tensors
from linger.graph.passes.constants import fix_shapes

NetworkLike = Union[ModelLike, "Network"]
"""What every command on a file takes: a path or a model makes a network of its own."""

_Found = TypeVar("_Found")
_UNNAMED = "batch"
"""The name of a batch axis that has none."""

_WRONG_NODE = (LingerError, LookupError, TypeError, ValueError)
"""What nodes raise whose attributes are not those of their op; `linger.check` says which they are."""


class Network:
    """A file, or a model in memory, with everything that is found out about it; each thing is found when it is first asked for.

    A file is read once. What changes on disk afterwards is not seen; where a file is read again, as for its digest,
    `require_unchanged` refuses. Nobody may change the models that it returns; `own` returns a copy for that.

    Args:
        source: The file, or a model in memory, which must not change as long as the network is used.
        is_checked: The source is an `ir.Model` that `load` has returned: it is not checked again.
    """

    def __init__(self, source: ModelLike, *, is_checked: bool = False) -> None:
        self.source = source
        self.path = Path(source) if isinstance(source, (str, os.PathLike)) else None
        is_trusted = is_checked and isinstance(source, ir.Model)
        self._content = Content(source, (), "") if is_trusted and isinstance(source, ir.Model) else None
        self._is_sound = is_trusted
        self._files: dict[Path, os.stat_result] = {}
        self._known: dict[Callable[[Network], Any], Any] = {}

    @classmethod
    def of(cls, source: NetworkLike, *, is_checked: bool = False) -> Network:
        """The network itself, or a new one of a path or a model."""
        return source if isinstance(source, Network) else cls(source, is_checked=is_checked)

    def once(self, find: Callable[[Network], _Found]) -> _Found:
        """What a function finds of this network; it runs once, and its result is kept with the network."""
        if find not in self._known:
            self._known[find] = find(self)
        found: _Found = self._known[find]
        return found

    def _read(self, allowed: Collection[str]) -> Content:
        """The content, read at the first call."""
        if self._content is None:
            before: dict[Path, os.stat_result] = {}
            if self.path is not None:
                with suppress(OSError, ValueError):  # reading it says what is wrong
                    before[self.path] = self.path.stat()
            self._content = read_model(self.source, allowed=allowed)
            self._files = before | {file: file.stat() for file in data_files(self._content.model)}
        return self._content

    @property
    def listed(self) -> ir.Model:
        """The content as a graph, which may have flaws that a check lists; other flaws are refused.

        Raises:
            UsageError: There is no such file.
            GraphError: As for `load`.
        """
        return self._read(LISTED).model

    @property
    def model(self) -> ir.Model:
        """The content as a graph without any flaw.

        Raises:
            UsageError: There is no such file.
            GraphError: As for `load`.
        """
        content = self._read(())
        if not self._is_sound:
            refuse(content.flaws, content.where)
            if content.proto is None:
                require_sound(content.model)
            self._is_sound = True
        return content.model

    def own(self) -> ir.Model:
        """A copy of the model that may be changed; the weights are shared."""
        return copied(self.model)

    @property
    def proto(self) -> onnx.ModelProto:
        """The content as the file has it, which onnx_ir would change in part; of a model in memory, what would be written.

        Raises:
            SerdeError: The model in memory cannot be written.
        """
        content = self._read(LISTED)
        return ir.to_proto(content.model) if content.proto is None else content.proto

    @property
    def files(self) -> Mapping[Path, os.stat_result]:
        """The file and its data files, each with its size and time when it was loaded; nothing for a model in memory."""
        self._read(())
        return {} if self.path is None else self._files

    def require_unchanged(self) -> None:
        """Refuse a file that is no longer what was loaded.

        Raises:
            UsageError: The file, or one with its data, has changed.
        """
        changed = [str(file) for file, before in self.files.items() if not is_unchanged(file, before)]
        if changed:
            raise UsageError(f"{', '.join(changed)}: the file has changed since it was loaded. Load it again.")

    @cached_property
    def normal(self) -> ir.Model:
        """The model in normal form: sorted, typed, in the older dialect, integer standard ops adopted.

        Raises:
            UnsupportedError: Nodes without an op, or with settings that have no agreed meaning.
        """
        made = self.own()
        bring_to_normal_form(made)
        return made

    @cached_property
    def sized(self) -> tuple[ir.Model, Tensors]:
        """The model with a batch of 1 in the older dialect, with shapes and types of its tensors."""
        return with_sizes(self.model)

    @cached_property
    def formats(self) -> Propagation:
        """Element type, scale and width of every tensor.

        Raises:
            GraphError: The nodes are not in the order of computation.
        """
        return propagate(self.model)


def data_files(model: ir.Model) -> list[Path]:
    """The files that hold a model's external data."""
    return sorted({Path(tensor.path) for tensor in external_tensors(model)})


def open_batch_axes(model: ir.Model) -> tuple[str, ...]:
    """The names of first axes of inputs whose size is open, each once; an axis without a name is called "batch"."""
    return tuple(dict.fromkeys(name or _UNNAMED for name in _batch_names(model)))


def _batch_names(model: ir.Model) -> list[str | None]:
    shapes = [value.shape for value in required_inputs(model)]
    first = [shape[0] for shape in shapes if shape is not None and len(shape) > 0]
    return [dim.value for dim in first if not isinstance(dim, int)]


def with_one_batch(model: ir.Model) -> ir.Model:
    """A copy whose open batch axes have the size 1."""
    names = {name for name in _batch_names(model) if name is not None}
    made = copied(model)
    inputs = set(required_inputs(made))
    for value in defined_in(made.graph):
        if value.shape is not None:
            value.shape = ir.Shape(
                1 if not isinstance(dim, int) and (dim.value in names or (axis == 0 and value in inputs)) else dim
                for axis, dim in enumerate(value.shape)
            )
    return made


def with_sizes(model: ir.Model) -> tuple[ir.Model, Tensors]:
    """A copy with a batch of 1, in the older dialect, and its tensors; only what the file declares where a node is wrong."""
    try:
        made = with_one_batch(model)
        if has_nodes_of(made, NEWER):
            convert_nodes(made, OLDER, partial=True)
        fix_shapes(made)
        return made, _joined(known_tensors(made), declared_tensors(made))
    except _WRONG_NODE:
        made = with_one_batch(model)
        return made, declared_tensors(made)


def _joined(found: Tensors, declared: Tensors) -> Tensors:
    """What was found, and what the file declares where only that is complete."""
    whole = {name: shape for name, shape in declared.shapes.items() if product_of(shape) is not None}
    more = {name: shape for name, shape in whole.items() if product_of(found.shapes.get(name)) is None}
    return Tensors(found.shapes | more, declared.types | found.types)
