# SPDX-License-Identifier: Apache-2.0
"""linger.c.export: a folder with a network as C.

The manifest of an exported folder: what its functions take, how tensors lie in memory, and the digests of its files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx_ir as ir

from linger.c.exported_folder import FORMAT, MANIFEST, VERSION, Cut, StreamOptions
from linger.c.integer_part import cut_to, find_cut
from linger.c.interface import Interface, Parameter, network_name, parameter_names, weights_file
from linger.c.network import load_network
from linger.c.readme_text import LAYOUTS, readme_text
from linger.c.source_files import c_files, check_program_text
from linger.c.steps import Order, Plan, channels_last, image_tensors, make_plan
from linger.c.writer import write_source
from linger.errors import UsageError, counted, listing, printable
from linger.files import require_free_folder, write_folder
from linger.graph.core.nodes import required_inputs
from linger.graph.network import Network, NetworkLike, data_files, with_one_batch
from linger.graph.passes.streaming import Streamed, streamed
from linger.verification.proof.certificate import describe_model, file_sha256, read_certificate
from linger.version import __version__

Entry = dict[str, Any]


def manifest_of(
    face: Interface, contents: Mapping[str, bytes], sources: Sequence[str], origin: Mapping[str, Any]
) -> Entry:
    """The manifest of a folder with these other files, by their paths; `origin` has the entries "model" and "certificate"."""
    source = face.source
    tensors = source.plan.network.tensors
    weights = next((path for path in contents if path.endswith("_weights.bin")), None)
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
        "state_bytes": face.state_bytes,
        "weights": None if weights is None else {"file": weights, "bytes": face.weight_bytes},
        "sources": list(sources),
        "inputs": list(map(_edge, face.inputs)),
        "outputs": list(map(_edge, face.outputs)),
        "states": [
            {
                "field": field,
                "input": state.input,
                "output": state.output,
                "shape": list(tensors[state.input].shape),
                "type": tensors[state.input].dtype,
            }
            for field, state in face.states.items()
        ],
        "stream": _stream(face),
        **({} if face.cut is None else {"cut": asdict(face.cut)}),
        "tensors": [
            {
                "id": source.numbers[name],
                "name": name,
                "shape": list(tensors[name].shape),
                "type": tensors[name].dtype,
                "order": _ordered(layout.order, len(tensors[name].shape)),
                "permutation": None if layout.permutation is None else layout.permutation.tolist(),
            }
            for name, layout in source.shown.items()
        ],
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }


def _ordered(order: Order, axes: int) -> list[int]:
    return list(range(axes)) if order is None else list(order)


def _edge(parameter: Parameter) -> Entry:
    outer, edge, scale = parameter.outer, parameter.edge, parameter.scale
    quantized = {"tensor": edge.tensor, "type": parameter.inner.dtype, "scale": scale}
    return {
        "name": edge.name,
        "c_name": parameter.name,
        "shape": list(outer.shape),
        "type": outer.dtype,
        "order": _ordered(parameter.order, len(outer.shape)),
        "quantized": None if scale is None else quantized,
    }


def _stream(face: Interface) -> Entry | None:
    """How the frames of one step relate to the whole sequence."""
    if face.stream is None or face.stream_options is None:
        return None
    inputs, outputs = map(asdict, face.stream.inputs), map(asdict, face.stream.outputs)
    return {**asdict(face.stream_options), "inputs": list(inputs), "outputs": list(outputs)}


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


ARENAS = ("static", "caller")
EDGE_LAYOUTS = ("file", "nhwc")
WEIGHTS = ("c", "file")

_HEADER_PURPOSES: Mapping[str, str] = {
    "linger_simd.h": "chooses the instruction set",
    "linger_dots.h": "sums of products, for convolutions and linear layers, for several instruction sets",
    "linger_panels.h": "the same for x86, with packed weights",
    "linger_columns.h": "sums of products with a matrix that is not transposed, for several instruction sets",
    "linger_depthwise.h": "sums of products of one channel each, for several instruction sets",
    "linger_pools.h": "sums and largest numbers of windows, for several instruction sets",
}


@dataclass(frozen=True)
class _FolderOptions:
    """What a folder is to be like; `export` explains each."""

    arena: str = "static"
    layout: str = "file"
    weights: str = "c"
    framework: str | None = None

    def check(self) -> None:
        """Refuse values that are unknown.

        Raises:
            UsageError: There are such, all of them are named.
        """
        choices: Mapping[str, tuple[Any, Collection[Any]]] = {
            "arena": (self.arena, ARENAS),
            "layout": (self.layout, EDGE_LAYOUTS),
            "weights": (self.weights, WEIGHTS),
            "framework": (self.framework, LAYOUTS),
        }
        wrong = [
            f"{name}={value!r} is none of {', '.join(repr(choice) for choice in known)}"
            for name, (value, known) in choices.items()
            if not isinstance(value, (str, type(None))) or value not in known
        ]
        if wrong:
            raise UsageError(f"export: {'; '.join(wrong)}.")


def export(
    model: NetworkLike,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    arena: str = "static",
    layout: str = "file",
    weights: str = "c",
    framework: str | None = None,
    stream: int | None = None,
    time: Mapping[str, int] | None = None,
    pairs: Mapping[str, str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    cut: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a network as C99 without dependencies.

    Args:
        model: The file, a model in memory, or a `Network`.
        folder: Where to write; it must not exist, or be empty.
        name: What the network is called in C: the beginning of every symbol. None: made of the name of the file.
        arena: "static": the program has its own memory; "caller": every call is given it, so that calls may run at the same
            time.
        layout: "file": images and signals lie at the edges as in the file, channels outside; "nhwc": channels innermost.
        weights: "c": they are compiled; "file": they are a file beside the program, and every call is given its bytes.
        framework: "zephyr", "esp-idf" or "arduino": the folder is a module, component or library of it; None: CMake.
        stream: Frames of one step: the program is called step by step and remembers what it needs; 0: the file is one step
            already, and its states are found. None: the network runs as a whole.
        time: With `stream`, the axis of each input that is time, by name; None: found from the layers.
        pairs: With `stream`, the states that the file has itself: names of inputs by names of outputs; None: found.
        certificate: A certificate about the file, which the manifest then names.
        cut: Whether nodes that have no C, such as float ops, stay outside: then the program is the part of the file with the
            most multiply-accumulates between them. README.md, header and manifest name its tensors and what is outside.
        overwrite: Whether a folder may be replaced that was exported before.

    Returns:
        The folder.

    Raises:
        UsageError: An argument is wrong, or the folder is not free.
        UnsupportedError: Parts of the network have no C, all of them.
    """
    options = _FolderOptions(arena, layout, weights, framework)
    options.check()
    network = Network.of(model)
    target, stem = Path(folder), network_name(network.source, name)
    is_own = is_exported if overwrite else None
    _require_free(target, is_overwriting=overwrite)
    if stream is None and (time is not None or pairs is not None):
        raise UsageError("export: time and pairs belong to a stream. Give stream, the frames of one step.")
    if stream is not None and cut:
        raise UsageError(
            "export: cut and stream exclude each other. A stream is the whole file; leave one of them out."
        )
    origin = origin_of(network, certificate)
    asked = None if stream is None else StreamOptions(stream, time, pairs)
    face = interface_of(network, stem, options, asked, find_cut(network) if cut else None)
    contents = _contents(face, options, origin)

    def fill(place: Path) -> None:
        for file, content in contents.items():
            path = place / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    write_folder(target, fill, is_own=is_own)
    return target


def is_exported(folder: Path) -> bool:
    """Whether a folder was exported before and holds nothing else, so that it may be replaced."""
    return _strangers(folder) == []


def _strangers(folder: Path) -> list[str] | None:
    """The files of an exported folder that the export did not write, such as those of a build; None for any other folder."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        if content["format"] != FORMAT:
            return None
        known = {MANIFEST, *content["files"]}
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return sorted(found - known)


def _require_free(folder: Path, *, is_overwriting: bool) -> None:
    """Refuse a folder that may not be written, and say what helps where an export has written it.

    Raises:
        UsageError: Something is in the way.
    """
    strangers = _strangers(folder)
    if strangers:
        raise UsageError(
            f"{folder}: linger exported this folder, and it holds other files too: {listing(map(printable, strangers))}. "
            "Move or remove them, or choose another folder."
        )
    if strangers is not None and not is_overwriting:
        raise UsageError(
            f"{folder}: linger exported this folder before. Replace it with overwrite=True (on the command line "
            "--overwrite), or choose another one."
        )
    require_free_folder(folder, is_exported)


def stream_of(network: Network, options: StreamOptions) -> Streamed:
    """One step of a network.

    Raises:
        UsageError: The arguments do not fit the model.
        UnsupportedError: Nodes need the whole sequence, all of them are named.
    """
    frames = options.frames
    if isinstance(frames, bool) or not isinstance(frames, int) or frames < 0:
        raise UsageError(
            f"export: stream={printable(repr(frames))} is no number of frames. Give 1 or more, or 0 for a file that is one step."
        )
    whole = with_one_batch(network.model)
    try:
        stream = streamed(whole, frames or None, time=options.time, pairs=options.pairs)
    except UsageError as error:  # a pass calls the number of frames what its own argument is called
        raise UsageError(str(error).replace(f"frames={frames}:", f"stream={frames}:")) from error
    if frames:
        _require_steps(whole, stream)
    elif not stream.states:
        raise UsageError(
            "export: stream=0 is for a file that is one step and takes and returns its states; this one has none that "
            "belong to recurrent layers. Name them, as in pairs={'hn': 'h0'} (outputs: "
            f"{listing(printable(t.name) for t in stream.outputs)}; inputs: "
            f"{listing(printable(t.name) for t in stream.inputs)}), or leave stream out."
        )
    return stream


def _require_steps(whole: ir.Model, stream: Streamed) -> None:
    """Refuse a step that the sequence of the file does not hold, or that leaves frames over which an output would miss."""
    sizes = {value.name: value.shape for value in required_inputs(whole)}
    last = [tensor.name for tensor in stream.outputs if tensor.axis is None]
    for tensor in stream.inputs:
        shape = sizes[tensor.name]
        if tensor.axis is None or shape is None:
            continue
        length, name = int(shape.numpy()[tensor.axis]), printable(tensor.name)
        if length < tensor.frames:
            raise UsageError(
                f"export: stream={tensor.frames}: the sequence {name} of the file has {counted(length, 'frame')}, fewer than "
                f"one step. Give at most {length}, or export a file with a longer sequence."
            )
        if length % tensor.frames and last:
            raise UsageError(
                f"export: stream={tensor.frames}: the sequence {name} of the file has {counted(length, 'frame')}, and steps of "
                f"{tensor.frames} do not end with it, as {listing(map(printable, last))} needs, which is that of the whole "
                f"sequence. Give a divisor of {length}, or export a file with another length."
            )


def interface_of(
    model: NetworkLike,
    name: str,
    options: _FolderOptions,
    stream_options: StreamOptions | None = None,
    cut: Cut | None = None,
) -> Interface:
    """The program of a network, and the functions that it offers.

    Raises:
        UnsupportedError: Parts of the network have no C, all of them.
    """
    network = Network.of(model)
    stream = None if stream_options is None else stream_of(network, stream_options)
    whole = network if stream is None else Network(stream.model)
    plan = make_plan(load_network(whole if cut is None else cut_to(whole, cut)))
    states = () if stream is None else stream.states
    carried = {edge for state in states for edge in (state.input, state.output)}
    orders = _edge_orders(plan, carried) if options.layout == "nhwc" else {}
    source = write_source(plan, name, edge_orders=orders, carried=carried)
    edges = [e.edge.name for e in (*source.inputs, *source.outputs) if e.edge.name not in carried]
    return Interface(
        source,
        parameter_names(name, edges),
        stream,
        stream_options,
        cut,
        has_callers_arena=options.arena == "caller",
        has_callers_weights=options.weights == "file",
    )


def _edge_orders(plan: Plan, carried: Collection[str]) -> dict[str, Order]:
    """The order of edges that are images or signals, with channels innermost."""
    images, tensors = image_tensors(plan.network), plan.network.tensors
    return {
        edge.name: channels_last(len(tensors[edge.tensor].shape))
        for edge in (*plan.inputs, *plan.outputs)
        if edge.tensor in images and len(tensors[edge.tensor].shape) > 2 and edge.name not in carried
    }


def _contents(face: Interface, options: _FolderOptions, origin: Mapping[str, Any]) -> dict[str, bytes]:
    """Every file of a folder by its path."""
    layout, name = LAYOUTS[options.framework], face.name
    texts = c_files(face) | _headers(face.source.includes)
    contents = {layout.place(file): text.encode() for file, text in texts.items()}
    sources = [path for path in contents if path.endswith(".c")]
    if face.has_callers_weights:
        contents[layout.place(f"{name}_weights.bin")] = weights_file(face.source)
    contents[layout.test] = check_program_text(face).encode()
    contents |= {path: text.encode() for path, text in layout.build(face, sources).items()}
    contents["README.md"] = readme_text(face, _purposes(face, contents), options.framework).encode()
    contents[MANIFEST] = json.dumps(manifest_of(face, contents, sources, origin), indent=1).encode()
    return contents


def _purposes(face: Interface, contents: Iterable[str]) -> dict[str, str]:
    """What each file is for."""
    name = face.name
    known = {
        f"{name}.h": "the interface, the only header that a caller includes",
        f"{name}_internal.h": "what the C files share",
        f"{name}.c": "the network",
        f"{name}_float.c": "the interface with real numbers",
        f"{name}_weights.h": "declares the constants",
        f"{name}_weights.c": "the constants",
        f"{name}_weights.bin": "the constants, little-endian",
        "test.c": "a test with vectors",
        **_HEADER_PURPOSES,
    }
    found = {path: known.get(Path(path).name, "") for path in contents}
    generic = {".h": "what the C files share", ".ino": "an example"}
    named = {path: what or generic.get(Path(path).suffix, "for the build") for path, what in found.items()}
    return {**named, MANIFEST: "sizes, layouts and digests, for `linger.c.build`"}


def _headers(includes: Iterable[str]) -> dict[str, str]:
    """The headers of linger that a source includes, with those that they include."""
    texts: dict[str, str] = {}
    waiting = list(includes)
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = (files("linger.c") / "include" / name).read_text(encoding="utf-8")
            waiting += re.findall(r'#\s*include "(linger_\w+\.h)"', texts[name])
    return dict(sorted(texts.items()))
