# SPDX-License-Identifier: Apache-2.0
"""Models in and out of files: clear errors on the way in, all or nothing on the way out."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Union

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from linger.errors import GraphError, UsageError

ModelLike = Union[str, "os.PathLike[str]", bytes, onnx.ModelProto, ir.Model]


def load(source: ModelLike) -> ir.Model:
    """An ONNX model from a path, bytes, a ModelProto or an onnx_ir model (which is returned as it is).

    Raises:
        UsageError: There is no such file.
        GraphError: The content is not a complete ONNX model.
    """
    if isinstance(source, ir.Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source, "the given ModelProto")
    if isinstance(source, bytes):
        return _from_proto(_parse(source, "the given bytes"), "the given bytes")
    path = Path(source)
    if not path.exists():
        raise UsageError(f"{path}: there is no such file. Give the path of an ONNX model.")
    if path.is_dir():
        raise UsageError(f"{path}: this is a folder. Give the path of an ONNX model inside it.")
    model = _from_proto(_parse(path.read_bytes(), str(path)), str(path))
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _parse(content: bytes, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise GraphError(
            f"{where}: this is not a complete ONNX model ({len(content)} bytes: {error}). Export it again, or copy it again whole."
        ) from error
    return proto


def _from_proto(proto: onnx.ModelProto, where: str) -> ir.Model:
    if not proto.HasField("graph") or not proto.opset_import:
        raise GraphError(f"{where}: this is no ONNX model: it has no graph or no opset. Export it again.")
    try:
        return ir.from_proto(proto)
    except (ValueError, KeyError, TypeError) as error:
        raise GraphError(f"{where}: the graph cannot be read: {error}. Export it again.") from error


def save(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write a model so that `path` holds either the whole new file or what it held before."""
    target = Path(path)
    write_atomically(target, ir.to_proto(model).SerializeToString())


def write_atomically(target: Path, content: bytes) -> None:
    """Write beside the target, then move into place."""
    if not target.parent.is_dir():
        raise UsageError(f"{target}: the folder {str(target.parent)!r} does not exist. Create it first.")
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise UsageError(
            f"{target}: the folder cannot be written to ({error.strerror}). Choose another one."
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except OSError as error:
        raise UsageError(f"{target}: the file cannot be written ({error.strerror}).") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
