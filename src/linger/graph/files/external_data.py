# SPDX-License-Identifier: Apache-2.0
"""Weights in a file beside the model: where they may be, how they are laid out, and how large a file would be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

import onnx_ir as ir

from linger.errors import GraphError, listing
from linger.graph.core.walking import all_graphs

INLINE_BYTES = 1024
"""Tensors up to this size stay in the model file: shape inference reads them there, and nowhere else."""

_ALIGNED_BYTES = 1 << 20
_ALIGNMENT = 1 << 16
"""Large tensors start at multiples of the largest page size in use, so that they can be mapped into memory."""

_SHOWN_LETTERS = 80

Exchange = Mapping[int, ir.TensorProtocol]
"""Other tensors, by the id of the tensor they stand in for."""


def _initializers(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for place in all_graphs(model):
        for value in place.graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value


def _attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr, ir.TensorProtocol]]:
    for place in all_graphs(model):
        for node in place.graph:
            for attribute in tuple(node.attributes.values()):
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    # as_tensor() asks whether it is one, method by method: half the time of reading a file
                    yield node, attribute, attribute.value


def _tensors(model: ir.Model) -> dict[int, ir.TensorProtocol]:
    found = [t for _, t in _initializers(model)] + [t for _, _, t in _attributes(model)]
    return {id(tensor): tensor for tensor in found}


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Every tensor of a model whose content lies in another file."""
    return [t for t in _tensors(model).values() if isinstance(t, ir.ExternalTensor)]


def resolve_external_data(model: ir.Model, folder: Path | None, where: str) -> None:
    """Tell every external tensor the folder its file lies in (None: the model was not given as a file, so there is none).

    Raises:
        GraphError: Data without a folder, locations outside of it, files that are missing or too short; all are named.
    """
    _refuse(((tensor, _problem_in(folder, tensor)) for tensor in external_tensors(model)), where)


def require_external_data(model: ir.Model, where: str) -> None:
    """Refuse external data that does not lie in the folder that its tensor knows already.

    Raises:
        GraphError: As for `resolve_external_data`.
    """
    _refuse(((t, _location_problem(t) or file_problem(t)) for t in external_tensors(model)), where)


def _refuse(found: Iterable[tuple[ir.ExternalTensor, str | None]], where: str) -> None:
    wrong = [f"{tensor.name}: {problem}" for tensor, problem in found if problem is not None]
    if wrong:
        raise GraphError(
            f"{where}: external data cannot be used ({listing(wrong)}). "
            "Put the data files beside the model, unchanged, and give its path."
        )


def _problem_in(folder: Path | None, tensor: ir.ExternalTensor) -> str | None:
    problem = _location_problem(tensor)
    if problem is not None:
        return problem
    if folder is None:  # onnx_ir would look in the working directory
        return f"a model in memory has no folder in which {str(tensor.location)[:_SHOWN_LETTERS]!r} could be"
    tensor.base_dir = folder
    return file_problem(tensor)


def _location_problem(tensor: ir.ExternalTensor) -> str | None:
    location = str(tensor.location)
    for path in (PurePosixPath(location), PureWindowsPath(location)):
        if path.anchor or ".." in path.parts or not path.parts:
            return f"the location {location[:_SHOWN_LETTERS]!r} is outside the model's folder"
    return None


def file_problem(tensor: ir.ExternalTensor) -> str | None:
    """Why the file of an external tensor cannot be read, or None."""
    try:
        return _file_problem(tensor)
    except (OSError, ValueError) as error:  # a name that no file can have
        return f"the location {str(tensor.location)[:_SHOWN_LETTERS]!r} cannot be read ({error.strerror if isinstance(error, OSError) else error})"


def _file_problem(tensor: ir.ExternalTensor) -> str | None:
    folder, path = Path(tensor.base_dir), Path(tensor.path)
    if not path.resolve().is_relative_to(folder.resolve()):
        return f"{str(tensor.location)!r} leads outside the model's folder"
    if not path.is_file():
        return f"there is no file {str(path)!r}"
    if path.stat().st_nlink > 1:
        return f"{str(path)!r} has several hard links, which are not followed for safety"
    start, length, size = tensor.offset or 0, tensor.length, path.stat().st_size
    if start < 0 or (length is not None and length != tensor.nbytes):
        return f"offset {start} and length {length} do not fit its {tensor.nbytes} bytes"
    end = start + tensor.nbytes
    return f"it ends at byte {end}, but {str(path)!r} has {size}" if end > size else None


def embedded_bytes(model: ir.Model) -> int:
    """How many bytes all tensors would take inside the model file."""
    return sum(_embedded_bytes(tensor) for tensor in _tensors(model).values())


def _embedded_bytes(tensor: ir.TensorProtocol) -> int:
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return int(tensor.raw.ByteSize())  # written as it was read, which need not be the densest way
    if tensor.dtype == ir.DataType.STRING:
        return sum(len(item) for item in tensor.numpy().reshape(-1))
    return tensor.nbytes


@dataclass(frozen=True)
class DataFile:
    """Tensors one after the other, each at an offset known before anything is written."""

    tensors: Mapping[int, ir.TensorProtocol]
    placed: Mapping[int, ir.ExternalTensor]

    def write(self, file: IO[bytes]) -> None:
        """Write the content of every tensor at its place."""
        for key, tensor in self.tensors.items():
            file.seek(self.placed[key].offset or 0)
            if isinstance(tensor, (ir.Tensor, ir.ExternalTensor)):
                tensor.tofile(file)  # without a copy in memory
            else:
                file.write(tensor.tobytes())


def plan_data_file(model: ir.Model, target: Path) -> DataFile:
    """Lay out the initializers that do not stay inline, in the order of the model."""
    placed: dict[int, ir.ExternalTensor] = {}
    tensors: dict[int, ir.TensorProtocol] = {}
    offset = 0
    for value, tensor in _initializers(model):
        if id(tensor) in placed or tensor.dtype == ir.DataType.STRING or tensor.nbytes <= INLINE_BYTES:
            continue
        if tensor.nbytes >= _ALIGNED_BYTES:
            offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
        shape, name = ir.Shape(tensor.shape.numpy()), value.name or ""
        placed[id(tensor)] = ir.ExternalTensor(
            target.name, offset, tensor.nbytes, tensor.dtype, shape=shape, name=name, base_dir=target.parent
        )
        tensors[id(tensor)] = tensor
        offset += tensor.nbytes
    return DataFile(tensors, placed)


def in_memory(model: ir.Model) -> dict[int, ir.TensorProtocol]:
    """A tensor in memory (mapped, where possible) for every external one.

    Raises:
        GraphError: Data files that are gone or have changed; all of them are named.
    """
    external = external_tensors(model)
    wrong = [f"{t.name}: {problem}" for t in external if (problem := file_problem(t)) is not None]
    if wrong:
        raise GraphError(
            f"external data cannot be read ({listing(wrong)}). Bring the files back, or load the model again."
        )
    return {id(t): ir.Tensor(t.numpy(), dtype=t.dtype, name=t.name) for t in external}


def exchange(model: ir.Model, tensors: Exchange) -> None:
    """Put other tensors in the place of those that a model has."""
    for value, tensor in list(_initializers(model)):
        if id(tensor) in tensors:
            value.const_value = tensors[id(tensor)]
    for node, attribute, tensor in list(_attributes(model)):
        if id(tensor) in tensors:
            made = ir.AttrTensor(attribute.name, tensors[id(tensor)], doc_string=attribute.doc_string)
            node.attributes[attribute.name] = made


def share_tensors(model: ir.Model, copy: ir.Model) -> None:
    """Give a copy made by way of protobuf the tensors of the model: only these know the folder of their data."""
    for own, other in zip(all_graphs(model), all_graphs(copy), strict=True):
        for name, value in other.graph.initializers.items():
            value.const_value = own.graph.initializers[name].const_value
        for node, twin in zip(own.graph, other.graph, strict=True):
            tensors = {k: a for k, a in node.attributes.items() if a.type is ir.AttributeType.TENSOR}
            twin.attributes.update(tensors)


@contextmanager
def exchanged(model: ir.Model, tensors: Exchange) -> Iterator[None]:
    """Exchange tensors of a model while the context lasts."""
    if not tensors:
        yield
        return
    present = _tensors(model)
    try:
        exchange(model, tensors)
        yield
    finally:
        exchange(model, {id(tensors[key]): tensor for key, tensor in present.items() if key in tensors})
