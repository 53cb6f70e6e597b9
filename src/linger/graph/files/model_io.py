# SPDX-License-Identifier: Apache-2.0
"""Models in and out of files, with weights inside or beside them: clear errors on the way in, all or nothing on the way out."""

from __future__ import annotations

import copy
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Union

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from linger.errors import GraphError, UsageError, listing, printable
from linger.files import places_beside, write_atomically, write_together
from linger.graph.core.nodes import GraphPlace, all_graphs, defined_in
from linger.graph.files.soundness import DEEPEST, UNREADABLE, Flaw, flaws, node_flaws, proto_flaws, refuse

ModelLike = Union[str, "os.PathLike[str]", bytes, onnx.ModelProto, ir.Model]

GIVEN_MODEL = "the given model"
_GIVEN = {bytes: "the given bytes", onnx.ModelProto: "the given ModelProto"}
_SHOWN_LETTERS = 200
_LARGEST_FILE = 2**31 - 1
_LARGEST_TENSORS = _LARGEST_FILE - 2**26
"""A protobuf file ends at 2 GB; 64 MB are left for nodes, names and shapes."""

INLINE_BYTES = 1024
"""Tensors up to this size stay in the model file: shape inference reads them there, and nowhere else."""

_ALIGNED_BYTES = 1 << 20
_ALIGNMENT = 1 << 16
"""Large tensors start at multiples of the largest page size in use, so that they can be mapped into memory."""

_SHOWN_LOCATION = 80
"""Letters of a location that a message shows."""

Exchange = Mapping[int, ir.TensorProtocol]
"""Other tensors, by the id of the tensor they stand in for."""


def load(
    source: ModelLike, *, prepare: Callable[[onnx.ModelProto], bool] | None = None, allowed: Collection[str] = ()
) -> ir.Model:
    """An ONNX model from a path, bytes, a ModelProto or an onnx_ir model (which is returned as it is).

    Weights in a file of their own are found beside the model and read when they are needed; bytes and a ModelProto, which
    lie in no folder, must have theirs inside.

    Args:
        source: The model.
        prepare: Repairs a file before it is read as a graph, and returns whether it changed anything; a given ModelProto is
            copied for it.
        allowed: Categories of flaws (`linger.graph.files.soundness`) with which a model is not refused: for those that report
            them, or repair them.

    Raises:
        UsageError: There is no such file, or it is something else than a file.
        GraphError: The content is not a complete ONNX model, it contradicts itself (cycles, endless functions, tensors
            that nothing makes or whose data does not fit), or its external data is missing, outside its folder,
            or cannot be found because the model was not given as a path.
    """
    return read_model(source, prepare=prepare, allowed=allowed).model


@dataclass(frozen=True)
class Content:
    """A model that was read and searched for flaws.

    Attributes:
        flaws: Its flaws, of allowed categories only.
        where: What messages call it.
        proto: The content as the file has it; None for a model in memory.
    """

    model: ir.Model
    flaws: Sequence[Flaw]
    where: str
    proto: onnx.ModelProto | None = None


def read_model(
    source: ModelLike, *, prepare: Callable[[onnx.ModelProto], bool] | None = None, allowed: Collection[str] = ()
) -> Content:
    """What `load` does, with everything that was found on the way."""
    if isinstance(source, ir.Model):
        found = flaws(source)
        refuse(found, GIVEN_MODEL, allowed=allowed)
        return Content(source, found, GIVEN_MODEL)
    where, folder, proto = _GIVEN.get(type(source)) or str(source), None, source  # a model as text takes a second
    if isinstance(proto, bytes):
        proto = _parse(proto, where)
    elif not isinstance(proto, onnx.ModelProto):
        proto, folder = _parse(_content(proto), where), Path(proto).parent
    found = proto_flaws(proto)
    if prepare is not None:
        refuse((flaw for flaw in found if flaw.category in UNREADABLE), where)
        proto = copy.deepcopy(proto) if proto is source else proto
        found = proto_flaws(proto) if prepare(proto) else found
    _complete(proto, where)
    refuse(found, where, allowed=allowed)
    try:
        model = ir.from_proto(proto)
    except (ValueError, KeyError, TypeError, RecursionError, ir.serde.SerdeError) as error:
        raise GraphError(f"{where}: the graph cannot be read: {_root(error)}. Export it again.") from error
    found = [*found, *flaws(model), *node_flaws(model)]
    refuse(found, where, allowed=allowed)
    resolve_external_data(model, folder, where)
    return Content(model, found, where, proto)


def load_own(source: ModelLike) -> ir.Model:
    """As `load`; a given onnx_ir model stays as it is, and shares its weights with the copy that is returned."""
    model = load(source)
    if model is not source:
        return model
    require_sound(model)
    return copied(model)


def require_sound(model: ir.Model) -> None:
    """Refuse a model in memory whose nodes are no nodes of their ops, or whose external data is gone: `load` does not ask."""
    refuse(node_flaws(model), GIVEN_MODEL)
    _require_external_data(model, GIVEN_MODEL)


def copied(model: ir.Model) -> ir.Model:
    """A model that can be edited without changing the given one; the weights are shared."""
    try:
        clone = model.clone()
    except RuntimeError:  # its nodes are not in the order of computation
        clone = ir.from_proto(ir.to_proto(model))
        _share_tensors(model, clone)
    own_types(clone)
    return clone


def own_types(model: ir.Model) -> None:
    """Give each tensor of a clone a type of its own: clones share them, and element types are set in place."""
    for place in all_graphs(model):
        for value in defined_in(place.graph):
            if value.type is not None:
                value.type = copy.copy(value.type)


def read_proto(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The content of a model file as it is, without weights in other files; refuses what is no ONNX model."""
    where = str(path)
    proto = _complete(_parse(_content(path), where), where)
    refuse((flaw for flaw in proto_flaws(proto) if flaw.category in UNREADABLE), where)
    return proto


def _content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file; neither a pipe nor a device nor what no model can be is opened."""
    try:
        path = Path(path)
        kind = path.stat()
        if stat.S_ISREG(kind.st_mode) and kind.st_size <= _LARGEST_FILE:
            return path.read_bytes()
    except TypeError as error:
        raise UsageError(
            f"a model is a path, bytes, a ModelProto or an onnx_ir model, not a {type(path).__name__}."
        ) from error
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise UsageError(f"{path}: there is no such file. Give the path of an ONNX model.") from error
    except OSError as error:
        raise UsageError(
            f"{str(path)[:_SHOWN_LETTERS]}: the file cannot be read ({error.strerror or error})."
        ) from error
    if path.is_dir():
        raise UsageError(f"{path}: this is a folder. Give the path of an ONNX model inside it.")
    if not path.is_file():
        raise UsageError(f"{path}: this is a pipe or a device, not a file. Give the path of an ONNX model.")
    raise GraphError(
        f"{path}: it has {kind.st_size} bytes, and an ONNX model ends at {_LARGEST_FILE}. Keep weights in a file beside it."
    )


def _parse(content: bytes, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        if "MaxDepth" in str(error):
            raise GraphError(
                f"{where}: graphs lie more than {DEEPEST} levels deep inside each other. Flatten the model."
            ) from error
        raise GraphError(
            f"{where}: this is not a complete ONNX model ({len(content)} bytes: {error}). Export it again, or copy it again whole."
        ) from error
    return proto


def _complete(proto: onnx.ModelProto, where: str) -> onnx.ModelProto:
    if not proto.HasField("graph") or not proto.opset_import:
        raise GraphError(f"{where}: this is no ONNX model: it has no graph or no opset. Export it again.")
    if not proto.graph.output:
        raise GraphError(f"{where}: the model has no outputs, so it computes nothing. Export it again.")
    return proto


def _root(error: BaseException) -> str:
    """What went wrong at the bottom: onnx_ir wraps each error once per level of the model."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return printable(" ".join(str(error).split()).rstrip("."))  # it may quote a part of the file over several lines


def save(model: ir.Model, path: str | os.PathLike[str], *, external_data: bool | None = None) -> None:
    """Write a model so that `path` holds either the whole new file or what it held before.

    Args:
        model: The model. It is not changed; weights that it reads from a file which is overwritten are read from the
            new one afterwards.
        path: The file. It does not depend on any other file but its own data file.
        external_data: Whether weights go into a data file, `<name of the file>.data`, that is moved into place together
            with the model. None: only where the model would not fit into the 2 GB of one file.

    Raises:
        UsageError: The file cannot be written, or the model is too large for one file.
        GraphError: The model cannot be written, or the weights it refers to are gone.
    """
    target, size = Path(path), embedded_bytes(model)
    if external_data is None:
        external_data = size > _LARGEST_TENSORS
    if external_data:
        _save_with_data(model, target)
        return
    if size > _LARGEST_FILE:
        raise UsageError(
            f"{target}: the model's tensors have {size} bytes, and one file can hold {_LARGEST_FILE}. "
            "Save with external_data=True."
        )
    with exchanged(model, in_memory(model)):
        content = _serialize(model, target)
    write_atomically(target, content)


def _save_with_data(model: ir.Model, path: Path) -> None:
    target, data_target = places_beside(path, lambda place: f"{place.name}.data")
    near = in_memory(model)
    placed = plan_data_file(model, data_target)
    with exchanged(model, near | placed):
        content = _serialize(model, target)
    # what this model itself reads from the file that is about to be overwritten
    own = [id(t) for t in external_tensors(model) if Path(t.path).resolve() == data_target.resolve()]
    moved = {key: placed.get(key) or ir.Tensor(near[key].numpy().copy()) for key in own}

    def write_data(file: IO[bytes]) -> None:
        tensors = _tensors(model)
        for key, place in placed.items():
            file.seek(place.offset or 0)
            tensor = tensors[key]
            if isinstance(tensor, (ir.Tensor, ir.ExternalTensor)):
                tensor.tofile(file)  # without a copy in memory
            else:
                file.write(tensor.tobytes())

    files = {data_target: write_data} if placed else {}
    write_together(files | {target: lambda file: file.write(content)})
    if placed:
        exchange(model, moved)


def _serialize(model: ir.Model, target: Path) -> bytes:
    try:
        content: bytes = ir.to_proto(model).SerializeToString()
    except (ir.serde.SerdeError, ValueError, TypeError) as error:
        raise GraphError(f"{target}: the model cannot be written: {_root(error)}.") from error
    except EncodeError as error:
        raise UsageError(
            f"{target}: without its large initializers the model is still larger than the 2 GB of one file ({error}). "
            "Make initializers of its constants and save with external_data=True."
        ) from error
    return content


def _initializers(places: Iterable[GraphPlace]) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for place in places:
        for value in place.graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value


def _attributes(places: Iterable[GraphPlace]) -> Iterator[tuple[ir.Node, ir.Attr, ir.TensorProtocol]]:
    for place in places:
        for node in place.graph:
            for attribute in tuple(node.attributes.data.values()):
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    # as_tensor() asks whether it is one, method by method: half the time of reading a file
                    yield node, attribute, attribute.value


def _tensors(model: ir.Model) -> dict[int, ir.TensorProtocol]:
    places = all_graphs(model)
    found = [t for _, t in _initializers(places)] + [t for _, _, t in _attributes(places)]
    return {id(tensor): tensor for tensor in found}


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Every tensor of a model whose content lies in another file."""
    return [t for t in _tensors(model).values() if isinstance(t, ir.ExternalTensor)]


def resolve_external_data(model: ir.Model, folder: Path | None, where: str) -> None:
    """Tell external tensors the folder of their files (None: there is none); refuse, and name, all that cannot be used."""
    if folder is not None:
        for tensor in external_tensors(model):
            tensor.base_dir = folder
    _require_external_data(model, where, has_folder=folder is not None)


def _require_external_data(model: ir.Model, where: str, *, has_folder: bool = True) -> None:
    """Refuse external data that does not lie in the folder that its tensor knows already."""
    wrong = _problems(model, lambda tensor: _location_problem(tensor, has_folder=has_folder) or file_problem(tensor))
    if wrong:
        raise GraphError(
            f"{where}: external data cannot be used ({wrong}). "
            "Put the data files beside the model, unchanged, and give its path."
        )


def _problems(model: ir.Model, problem_of: Callable[[ir.ExternalTensor], str | None]) -> str:
    problems = [(tensor.name, problem_of(tensor)) for tensor in external_tensors(model)]
    return listing(f"{name}: {problem}" for name, problem in problems if problem is not None)


def _location_problem(tensor: ir.ExternalTensor, *, has_folder: bool) -> str | None:
    location = str(tensor.location)
    for path in (PurePosixPath(location), PureWindowsPath(location)):
        if path.anchor or ".." in path.parts or not path.parts:
            return f"the location {location[:_SHOWN_LOCATION]!r} is outside the model's folder"
    if not has_folder:  # onnx_ir would look in the working directory
        return f"a model in memory has no folder in which {location[:_SHOWN_LOCATION]!r} could be"
    return None


def file_problem(tensor: ir.ExternalTensor) -> str | None:
    """Why the file of an external tensor cannot be read, or None."""
    try:
        return _file_problem(tensor)
    except (OSError, ValueError) as error:  # a name that no file can have
        why = error.strerror if isinstance(error, OSError) else error
        return f"the location {str(tensor.location)[:_SHOWN_LOCATION]!r} cannot be read ({why})"


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
    return sum(map(_embedded_bytes, _tensors(model).values()))


def _embedded_bytes(tensor: ir.TensorProtocol) -> int:
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return int(tensor.raw.ByteSize())  # written as it was read, which need not be the densest way
    if tensor.dtype == ir.DataType.STRING:
        return sum(len(item) for item in tensor.numpy().reshape(-1))
    return tensor.nbytes


def plan_data_file(model: ir.Model, target: Path) -> dict[int, ir.ExternalTensor]:
    """Where the initializers that do not stay inline lie in the data file, one after the other in the order of the model."""
    placed: dict[int, ir.ExternalTensor] = {}
    offset = 0
    for value, tensor in _initializers(all_graphs(model)):
        if id(tensor) in placed or tensor.dtype == ir.DataType.STRING or tensor.nbytes <= INLINE_BYTES:
            continue
        if tensor.nbytes >= _ALIGNED_BYTES:
            offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
        shape, name = ir.Shape(tensor.shape.numpy()), value.name or ""
        placed[id(tensor)] = ir.ExternalTensor(
            target.name, offset, tensor.nbytes, tensor.dtype, shape=shape, name=name, base_dir=target.parent
        )
        offset += tensor.nbytes
    return placed


def in_memory(model: ir.Model) -> dict[int, ir.TensorProtocol]:
    """A tensor in memory (mapped, where possible) for every external one; refuses, and names, data that is gone."""
    wrong = _problems(model, file_problem)
    if wrong:
        raise GraphError(f"external data cannot be read ({wrong}). Bring the files back, or load the model again.")
    return {id(t): ir.Tensor(t.numpy(), dtype=t.dtype, name=t.name) for t in external_tensors(model)}


def exchange(model: ir.Model, tensors: Exchange) -> None:
    """Put other tensors in the place of those that a model has."""
    places = all_graphs(model) if tensors else []
    for value, tensor in list(_initializers(places)):
        if id(tensor) in tensors:
            value.const_value = tensors[id(tensor)]
    for node, attribute, tensor in list(_attributes(places)):
        if id(tensor) in tensors:
            other = ir.AttrTensor(attribute.name, tensors[id(tensor)], doc_string=attribute.doc_string)
            node.attributes[attribute.name] = other


def _share_tensors(model: ir.Model, copy: ir.Model) -> None:
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
    present = _tensors(model) if tensors else {}
    try:
        exchange(model, tensors)
        yield
    finally:
        exchange(model, {id(tensors[key]): tensor for key, tensor in present.items() if key in tensors})
