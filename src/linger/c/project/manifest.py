# SPDX-License-Identifier: Apache-2.0
"""The manifest of an exported folder: what its functions take, how tensors lie in memory, and the digests of its files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linger.c.exported_folder import FORMAT, VERSION
from linger.c.project.interface import Interface, scale_of_edge
from linger.c.source_files import state_bytes
from linger.c.steps import Edge, Order
from linger.errors import UsageError, printable
from linger.graph.network import Network, data_files
from linger.verification.proof.certificate import describe_model, file_sha256, read_certificate
from linger.version import __version__

Entry = dict[str, Any]


def manifest_of(
    face: Interface, contents: Mapping[str, bytes], sources: Sequence[str], origin: Mapping[str, Any]
) -> Entry:
    """The manifest.

    Args:
        face: The interface.
        contents: Every other file of the folder by its path.
        sources: The paths of the files to compile.
        origin: What the program was made from: the entries "model" and "certificate".
    """
    source = face.source
    tensors = source.plan.network.tensors
    return {
        "format": FORMAT,
        "version": VERSION,
        "linger": __version__,
        "name": source.name,
        **origin,
        "arena": "caller" if face.has_callers_arena else "static",
        "arena_bytes": face.arena_bytes,
        "arena_least": source.arena.least,
        "weight_bytes": face.weight_bytes,
        "state_bytes": state_bytes(face),
        "weights": _weights(face, contents),
        "sources": list(sources),
        "inputs": [_edge(face, e.edge) for e in face.inputs],
        "outputs": [_edge(face, e.edge) for e in face.outputs],
        "states": [_state(face, number) for number in range(len(face.states))],
        "stream": _stream(face),
        **({} if face.cut is None else {"cut": asdict(face.cut)}),
        "tensors": [
            {
                "id": shown.number,
                "name": shown.name,
                "shape": list(tensors[shown.name].shape),
                "type": tensors[shown.name].dtype,
                "order": _ordered(shown.layout.order, len(tensors[shown.name].shape)),
                "permutation": None if shown.layout.permutation is None else shown.layout.permutation.tolist(),
            }
            for shown in source.shown
        ],
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }


def _ordered(order: Order, axes: int) -> list[int]:
    return list(range(axes)) if order is None else list(order)


def _weights(face: Interface, contents: Mapping[str, bytes]) -> Entry | None:
    if not face.has_callers_weights:
        return None
    file = next(path for path in contents if path.endswith("_weights.bin"))
    return {"file": file, "bytes": face.weight_bytes}


def _edge(face: Interface, edge: Edge) -> Entry:
    scale, outer, inner = scale_of_edge(edge), face.tensor(edge, quantized=False), face.tensor(edge, quantized=True)
    return {
        "name": edge.name,
        "c_name": face.names[edge.name],
        "shape": list(outer.shape),
        "type": outer.dtype,
        "order": _ordered(face.order(edge), len(outer.shape)),
        "quantized": None if scale is None else {"tensor": edge.tensor, "type": inner.dtype, "scale": scale},
    }


def _state(face: Interface, number: int) -> Entry:
    state = face.states[number]
    tensor = face.source.plan.network.tensors[state.taken]
    return {
        "field": state.field,
        "input": state.taken,
        "output": state.given,
        "shape": list(tensor.shape),
        "type": tensor.dtype,
    }


def _stream(face: Interface) -> Entry | None:
    """How the frames of one step relate to the whole sequence."""
    if face.stream is None or face.stream_options is None:
        return None
    tensors = (("inputs", face.stream.inputs), ("outputs", face.stream.outputs))
    return {
        "frames": face.stream_options.frames,
        "time": face.stream_options.time,
        "pairs": face.stream_options.pairs,
        **{
            key: [{"name": t.name, "axis": t.axis, "frames": t.frames, "delay": t.delay} for t in found]
            for key, found in tensors
        },
    }


def origin_of(network: Network, certificate: str | os.PathLike[str] | None) -> Entry:
    """The entries that tie a folder to the file it was made from, and to a certificate about that file.

    Raises:
        UsageError: The certificate is about another file, the model is no file, or the file has changed since it was loaded.
        VerificationError: The certificate is damaged.
    """
    described = None
    if network.path is not None:
        described = describe_model(network.path, data_files(network.model))
        network.require_unchanged()
    return {"model": described, "certificate": None if certificate is None else _certificate(certificate, described)}


def _certificate(certificate: str | os.PathLike[str], model: Entry | None) -> Entry:
    path = Path(certificate)
    content = read_certificate(path)
    shown = printable(str(path))
    if model is None:
        raise UsageError(f"certificate={shown!r} is about a file, and the model is none. Export the file.")
    if content["model"]["sha256"] != model["sha256"]:
        raise UsageError(
            f"certificate={shown!r} is about another file than {printable(model['name'])}. Verify that file."
        )
    return {"name": path.name, "sha256": file_sha256(path), "verdict": content["verdict"]}
