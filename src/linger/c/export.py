# SPDX-License-Identifier: Apache-2.0
"""linger.c.export: a folder with a network as C."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from linger.c.exported_folder import FORMAT, MANIFEST, VERSION
from linger.c.network import load_network
from linger.c.source_files import (
    Interface,
    header_text,
    ordered,
    scale_of_edge,
    source_text,
    weight_bytes,
    weights_files,
)
from linger.c.steps import Edge, make_plan
from linger.c.writer import Source, write_source
from linger.errors import UsageError
from linger.files import write_folder
from linger.graph.files.model_io import ModelLike
from linger.version import __version__

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")


def export(model: ModelLike, folder: str | os.PathLike[str], *, name: str | None = None, arena: str = "static") -> Path:
    """Write a network as C99 without dependencies.

    Args:
        model: The file, or a model in memory.
        folder: Where to write; it must not exist or be empty.
        name: What the network is called in C; None: the name of the file.
        arena: "static": the program has its own memory; "caller": the caller gives it.

    Returns:
        The folder.

    Raises:
        UsageError: An argument is wrong.
        UnsupportedError: Parts of the network have no C, all of them.
    """
    target = Path(folder)
    stem = _name(model, name)
    plan = make_plan(load_network(model))
    source = write_source(plan, stem)
    face = Interface(source, _c_names(source), is_callers_arena=arena == "caller")
    texts = {f"{stem}.h": header_text(face), f"{stem}.c": source_text(face), **weights_files(source)}
    texts |= _headers(source.includes)
    contents = {file: text.encode() for file, text in texts.items()}
    contents[MANIFEST] = json.dumps(_manifest(face, contents), indent=1).encode()

    def fill(place: Path) -> None:
        for file, content in contents.items():
            (place / file).write_bytes(content)

    write_folder(target, fill)
    return target


def _name(model: ModelLike, name: str | None) -> str:
    if name is None:
        stem = Path(model).stem if isinstance(model, (str, os.PathLike)) else "network"
        name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_") or "network"
        name = name if name[0].isalpha() else f"n_{name}"
    if not _IDENTIFIER.fullmatch(name):
        raise UsageError(
            f"name={name!r} is no name in C. Use lower-case letters, digits and underscores, a letter first."
        )
    return name


def _c_names(source: Source) -> dict[str, str]:
    """A C name for each input and output: the file's name where that is one, made safe, each once."""
    found: dict[str, str] = {}
    for edge in (*source.inputs, *source.outputs):
        stem = re.sub(r"[^a-z0-9]+", "_", edge.edge.name.lower()).strip("_") or "x"
        stem = stem if stem[0].isalpha() else f"x_{stem}"
        stem = f"{stem}_" if stem in ("arena", "memory", "state") or not _is_free(stem) else stem
        name, number = stem, 1
        while name in found.values():
            number += 1
            name = f"{stem}_{number}"
        found[edge.edge.name] = name
    return found


_KEYWORDS = frozenset(
    [
        "auto",
        "break",
        "case",
        "char",
        "const",
        "continue",
        "default",
        "do",
        "double",
        "else",
        "enum",
        "extern",
        "float",
        "for",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "typedef",
        "union",
        "unsigned",
        "void",
        "volatile",
        "while",
    ]
)


def _is_free(name: str) -> bool:
    return name not in _KEYWORDS


def _headers(includes: Iterable[str]) -> dict[str, str]:
    """The headers of linger that a source includes, with those that they include."""
    found: dict[str, str] = {}
    waiting = list(includes)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = (files("linger.c") / "include" / name).read_text(encoding="utf-8")
            waiting += re.findall(r'#\s*include "(linger_\w+\.h)"', found[name])
    return found


def _manifest(face: Interface, contents: dict[str, bytes]) -> dict[str, Any]:
    source = face.source
    tensors = source.plan.network.tensors
    return {
        "format": FORMAT,
        "version": VERSION,
        "linger": __version__,
        "name": source.name,
        "arena": "caller" if face.is_callers_arena else "static",
        "arena_bytes": max(source.arena.size, 16),
        "arena_least": source.arena.least,
        "weight_bytes": weight_bytes(source),
        "sources": [f"{source.name}.c", f"{source.name}_weights.c"],
        "inputs": [_edge(face, e.edge) for e in face.inputs],
        "outputs": [_edge(face, e.edge) for e in face.outputs],
        "states": [],
        "tensors": [
            {
                "id": shown.number,
                "name": shown.name,
                "shape": list(tensors[shown.name].shape),
                "type": tensors[shown.name].dtype,
                "order": ordered(shown.layout.order, len(tensors[shown.name].shape)),
                "permutation": None if shown.layout.permutation is None else shown.layout.permutation.tolist(),
            }
            for shown in source.shown
        ],
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }


def _edge(face: Interface, edge: Edge) -> dict[str, Any]:
    tensors, scale = face.source.plan.network.tensors, scale_of_edge(edge)
    inner = tensors[edge.tensor]
    return {
        "name": edge.name,
        "c_name": face.names[edge.name],
        "shape": list(tensors[edge.name].shape),
        "type": tensors[edge.name].dtype,
        "quantized": None if scale is None else {"tensor": edge.tensor, "type": inner.dtype, "scale": scale},
    }
